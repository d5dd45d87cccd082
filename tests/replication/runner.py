"""Runs episodes of the model."""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection
from dataclasses import dataclass

from .model import ViolationError, World

_STEPS = (120, 200, 300)
_TRACE = 45


@dataclass
class Outcome:
    """What a number of episodes came to."""

    episodes: int = 0
    acks: int = 0
    elections: int = 0
    truncations: int = 0
    #: Reassignments that were completed.
    completions: int = 0
    unsettled: int = 0
    #: The first violation, with its seed and what led to it.
    violation: str = ""


def run_episodes(
    first_seed: int,
    *,
    seconds: float = float("inf"),
    max_episodes: int | None = None,
    without: Collection[str] = (),
    reassigns: bool = False,
) -> Outcome:
    """Run episodes until the time or the number is up, or a violation is found."""
    outcome = Outcome()
    deadline = time.perf_counter() + seconds
    for number in itertools.count():
        if number == max_episodes or time.perf_counter() > deadline:
            return outcome
        seed = first_seed + number
        world = World(seed, without, reassigns=reassigns)
        outcome.episodes += 1
        try:
            for _step in range(_STEPS[seed % len(_STEPS)]):
                world.step()
            is_settled = world.settle()
        except ViolationError as violation:
            events = "\n  ".join(world.trace[-_TRACE:])
            outcome.violation = f"seed {seed}: {violation}\n  {events}"
            return outcome
        outcome.acks += world.acks
        outcome.elections += world.elections
        outcome.truncations += world.truncations
        outcome.completions += world.completions
        outcome.unsettled += not is_settled
    return outcome
