"""SIGKILL: acked records are stored once, at their offsets, after any number of kills."""

import random

import pytest

from crash.lives import lost_records, writers

SERIES = 10
CYCLES = 20


@pytest.mark.parametrize("series", range(SERIES))
def test_sigkill_loses_no_acked_record(tmp_path, series):
    rng = random.Random(series)
    path, acked = tmp_path / "data", {}
    with writers(tmp_path) as processes:
        for cycle in range(CYCLES):
            seed, seconds = series * CYCLES + cycle, rng.uniform(0.005, 0.04)

            acked |= processes.run(path, "page-cache", seed=seed, seconds=seconds)

            lost = lost_records(path, acked, clean=rng.random() < 0.3)
            assert lost == 0, f"series {series}, cycle {cycle}"
    assert sum(acked.values()) > CYCLES
