"""kill -9: what was acked is there, once, at its offset, however often."""

import random

import pytest

from crash.lives import lost_after, writers

LANES = 10
CYCLES = 20


@pytest.mark.parametrize("lane", range(LANES))
def test_nothing_that_was_acked_is_lost_by_kill_9(tmp_path, lane):
    chance = random.Random(lane)
    path, acked = tmp_path / "data", {}
    with writers(tmp_path) as processes:
        for cycle in range(CYCLES):
            seed, seconds = lane * CYCLES + cycle, chance.uniform(0.005, 0.04)

            acked |= processes.live(path, "page-cache", seed=seed, seconds=seconds)

            lost = lost_after(path, acked, clean=chance.random() < 0.3)
            assert lost == 0, f"lane {lane}, cycle {cycle}"
    assert sum(acked.values()) > CYCLES
