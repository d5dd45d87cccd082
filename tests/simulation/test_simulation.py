"""Simulated clusters with faults keep their promises; with a bug in the code, they do not.

SIM_SEED is the first seed, for a replay; SIM_SECONDS how long to run.
"""

from __future__ import annotations

import os
import secrets

import pytest

from simulation.mutations import MUTATIONS, mutated
from simulation.runner import run_seed, run_seeds

_SECONDS = float(os.environ.get("SIM_SECONDS", "6"))
#: By this many seeds a mutation must be found.
_MAX_SEEDS = 400


def test_random_seeds_keep_all_promises() -> None:
    first = int(os.environ.get("SIM_SEED") or secrets.randbelow(2**31))
    print(f"SIM_SEED={first}")
    failures = [failure for failure in run_seeds(first, _SECONDS) if failure]
    assert not failures, failures[0].text


def test_random_seeds_with_replicas_keep_all_promises() -> None:
    first = int(os.environ.get("SIM_SEED") or secrets.randbelow(2**31))
    print(f"SIM_SEED={first}")
    seeds = run_seeds(first, _SECONDS, is_replicated=True)
    failures = [failure for failure in seeds if failure]
    assert not failures, failures[0].text


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_bug_violates_what_it_should(name: str) -> None:
    mutation = MUTATIONS[name]
    with mutated(name):
        options = {"loses_controller": True} if mutation.loses_controller else {}
        first, kind = mutation.first_seed, {"is_replicated": mutation.is_replicated}
        failures = run_seeds(first, 60.0, _MAX_SEEDS, **kind, **options)
        is_found = any(failure and failure.invariant is mutation.violates for failure in failures)
    assert is_found, f"no seed of {_MAX_SEEDS} finds that {mutation.violates.value}"


def test_a_seed_is_deterministic() -> None:
    with mutated("members get each other's assignments"):
        failures = [failure for failure in run_seeds(0, 60.0, 20) if failure]
        assert failures
        assert run_seed(failures[-1].seed) == failures[-1]


def test_a_seed_with_replicas_is_deterministic() -> None:
    with mutated("acks=all does not wait for followers"):
        failures = [one for one in run_seeds(32, 60.0, 20, is_replicated=True) if one]
        assert failures
        assert run_seed(failures[-1].seed, is_replicated=True) == failures[-1]
