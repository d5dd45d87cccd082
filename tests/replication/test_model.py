"""The replication protocol keeps its promises in the model, and each of its rules is needed.

MODEL_SEED is the first seed, for a replay; MODEL_SECONDS how long to walk.
"""

from __future__ import annotations

import os
import secrets

import pytest

from .mutations import MUTATIONS, without
from .runner import run_episodes

_SECONDS = float(os.environ.get("MODEL_SECONDS", "4"))
#: From its seed on, a missing rule must be found by this many episodes.
_MAX_EPISODES = 3000


@pytest.mark.parametrize("reassigns", [False, True])
def test_no_episode_violates_a_promise(reassigns: bool) -> None:
    first = int(os.environ.get("MODEL_SEED") or secrets.randbelow(2**31))
    print(f"MODEL_SEED={first}")
    outcome = run_episodes(first, seconds=_SECONDS / 2, reassigns=reassigns)
    assert not outcome.violation, outcome.violation
    assert not outcome.unsettled
    assert outcome.acks
    assert outcome.elections
    assert outcome.truncations
    assert bool(outcome.completions) is reassigns


@pytest.mark.parametrize("rule", MUTATIONS)
def test_each_rule_is_needed(rule: str) -> None:
    with without(rule) as flags:
        outcome = run_episodes(MUTATIONS[rule].seed, max_episodes=_MAX_EPISODES, without=flags)
    assert outcome.violation, f"not found in {outcome.episodes} episodes"


def test_an_episode_is_deterministic() -> None:
    with without("a sufficient ISR empties the ELR") as flags:
        first, second = (run_episodes(0, max_episodes=200, without=flags) for _ in range(2))
    assert first == second
