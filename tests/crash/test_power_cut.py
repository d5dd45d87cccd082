"""A power cut: what an ack means in each mode, on a disk that forgets what was not synced."""

import random

import pytest

from crash.lives import lost_after, writers
from crash.writer import CONFIG, LOGS, NOW, a_batch, open_directory, rows, value_of
from harness.mounts import private_mounts

CUTS = 10
SIZE = 48 * 1024 * 1024


@pytest.fixture
def mounts(tmp_path):
    with private_mounts(tmp_path) as mounts:
        mounts.make_ext4(SIZE)
        yield mounts
        mounts.unmount()


@pytest.fixture
def processes(tmp_path):
    with writers(tmp_path) as processes:
        yield processes


def cut(mounts, processes, mode, *, seed, seconds):
    path = mounts.path / "data"
    acked = processes.live(path, mode, seed=seed, seconds=seconds, end=mounts.cut_power)
    mounts.unmount()
    mounts.mount_ext4()
    return acked


def filled(path):
    logs = open_directory(path)
    for name in LOGS:
        log = logs.create(name, CONFIG)
        for sequence in range(0, 300, 2):
            log.append(a_batch(name, sequence, 2), leader_epoch=0, now_ms=NOW)
    return logs


def reports_of_all(path):
    """See that all is there that `filled` wrote; give what was found at the start."""
    logs = open_directory(path)
    assert logs.failed == {}
    for name in LOGS:
        log = logs.logs[name]
        assert list(rows(log)) == [(offset, value_of(name, offset)) for offset in range(300)]
        assert [producer.last_sequence for producer in log.producer_states] == [299]
        for offset in (0, 1, 150, 299):
            assert log.offset_for_timestamp(NOW + offset) == (offset, NOW + offset)
        assert list(log.leader_epochs) == [(0, 0)]
    logs.close()
    return logs.reports


def test_nothing_that_was_acked_is_lost_by_a_power_cut_where_acks_wait_for_the_device(
    mounts, processes
):
    chance = random.Random(0)
    acked = {}
    for number in range(CUTS):
        acked |= cut(mounts, processes, "fsync", seed=number, seconds=chance.uniform(0.02, 0.2))

        lost = lost_after(mounts.path / "data", acked, clean=number % 2 == 0)

        assert lost == 0, f"cut {number}"
    assert sum(acked.values()) > CUTS


def test_a_power_cut_does_lose_what_was_acked_from_the_page_cache(mounts, processes):
    acked = cut(mounts, processes, "unsynced", seed=0, seconds=0.2)

    lost = lost_after(mounts.path / "data", acked, clean=True, may_have_gaps=True)

    assert lost > 0


def test_a_power_cut_right_after_a_clean_stop_loses_nothing(mounts):
    logs = filled(mounts.path / "data")
    logs.close()

    mounts.cut_power()
    mounts.unmount()
    mounts.mount_ext4()

    reports = reports_of_all(mounts.path / "data")
    assert all(reports[name].was_clean for name in LOGS)


def test_a_power_cut_right_after_a_checkpoint_loses_nothing_before_it(mounts):
    logs = filled(mounts.path / "data")
    logs.checkpoint_recovery_points()

    mounts.cut_power()
    logs.flusher.stop()
    for log in logs.logs.values():
        for segment in log.segments:
            segment.close()
    logs.disk.close(logs._lock)
    mounts.unmount()
    mounts.mount_ext4()

    assert reports_of_all(mounts.path / "data").keys() == set(LOGS)
