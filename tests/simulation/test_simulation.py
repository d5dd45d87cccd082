"""Simulated clusters with faults keep their promises; with a bug in the code, they do not.

SIM_SEED is the first seed, for a replay; SIM_SECONDS how long to run.
"""

from __future__ import annotations

import os
import secrets

import pytest

from simulation.mutations import MUTATIONS, mutated
from simulation.runner import run_seed, run_seeds

_SECONDS = float(os.environ.get("SIM_SECONDS", "8"))
#: By this many seeds a mutation must be found.
_MAX_SEEDS = 60


def test_random_seeds_keep_all_promises() -> None:
    first = int(os.environ.get("SIM_SEED") or secrets.randbelow(2**31))
    print(f"SIM_SEED={first}")
    violations = [found for found in run_seeds(first, _SECONDS) if found]
    assert not violations, violations[0]


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_a_bug_is_found(mutation: str) -> None:
    with mutated(mutation):
        assert any(run_seeds(0, 30.0, _MAX_SEEDS)), f"no seed up to {_MAX_SEEDS} finds it"


def test_a_seed_is_deterministic() -> None:
    with mutated("sessions and rebalances never expire"):
        first = run_seed(3)
        assert first is not None
        assert run_seed(3) == first
