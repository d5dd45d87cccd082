"""Runs seeds until one violates a promise, or the time is up."""

from __future__ import annotations

import gc
import sys
import time
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple
from unittest.mock import patch

from .checks import Invariant, Violation
from .replicated_world import ReplicatedWorld
from .world import World


class Failure(NamedTuple):
    """A seed that violates an invariant; its text is what led to it."""

    seed: int
    invariant: Invariant
    text: str

    def __str__(self) -> str:
        return self.text


def run_seed(seed: int, *, is_replicated: bool = False, **options: bool) -> Failure | None:
    """Run a seed; return how it failed, or None. Other options are those of `World`."""
    # What is left of the world is closed outside of its loop.
    with patch.object(sys, "unraisablehook", lambda _error: None):
        failure = _run_seed(seed, is_replicated=is_replicated, **options)
        gc.collect()
    return failure


def _run_seed(seed: int, *, is_replicated: bool, **options: bool) -> Failure | None:
    world = ReplicatedWorld(seed) if is_replicated else World(seed, **options)
    try:
        world.run()
    except Violation as violation:
        events = "\n".join(world.events)
        kind = "--replicated " if is_replicated else ""
        text = f"seed {seed}: {violation}\n{events}\nReplay: make sim SIM='{kind}--seed {seed}'"
        return Failure(seed, violation.invariant, text)
    return None


def run_seeds(
    first: int, seconds: float, max_count: int | None = None, **options: bool
) -> Iterator[Failure | None]:
    """Run seeds from `first` on, for a time; yield the failure of each, or None."""
    gc.freeze()  # Each seed ends with a collection, which then looks only at what it left.
    try:
        end = time.perf_counter() + seconds
        for number in count():
            if time.perf_counter() > end or number == max_count:
                return
            yield run_seed(first + number, **options)
    finally:
        gc.unfreeze()
