"""Runs seeds until one violates a promise, or the time is up."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from itertools import count

from .checks import Violation
from .world import World


def run_seed(seed: int) -> str | None:
    """Run a seed; return the violation and what led to it, or None."""
    world = World(seed)
    try:
        world.run()
    except Violation as violation:
        events = "\n".join(world.events)
        return f"seed {seed}: {violation}\n{events}\nReplay: make sim SIM='--seed {seed} --count 1'"
    return None


def run_seeds(first: int, seconds: float, max_count: int | None = None) -> Iterator[str | None]:
    """Run seeds from `first` on, for a time; yield the violation of each, or None."""
    gc.freeze()  # Each seed ends with a collection, which then looks only at what it left.
    try:
        end = time.perf_counter() + seconds
        for number in count():
            if time.perf_counter() > end or number == max_count:
                return
            yield run_seed(first + number)
    finally:
        gc.unfreeze()
