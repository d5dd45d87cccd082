"""Power cuts: what survives in each durability mode, on a disk that loses unsynced data."""

import random
from uuid import uuid4

import pytest

from crash.lives import lost_records, writers
from crash.writer import CONFIG, LOGS, NOW, a_batch, open_directory, rows, value_of
from harness.mounts import private_mounts
from ottla.storage.partition_metadata import PartitionMetadata

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
    acked = processes.run(path, mode, seed=seed, seconds=seconds, end=mounts.cut_power)
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


def verified_reports(path):
    """Assert that everything `filled` wrote is there; return the recovery reports."""
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


def test_a_power_cut_loses_no_acked_record_with_fsync(mounts, processes):
    rng = random.Random(0)
    acked = {}
    for number in range(CUTS):
        acked |= cut(mounts, processes, "fsync", seed=number, seconds=rng.uniform(0.02, 0.2))

        lost = lost_records(mounts.path / "data", acked, clean=number % 2 == 0)

        assert lost == 0, f"cut {number}"
    assert sum(acked.values()) > CUTS


def test_a_power_cut_loses_acked_records_without_fsync(mounts, processes):
    acked = cut(mounts, processes, "unsynced", seed=0, seconds=0.2)

    lost = lost_records(mounts.path / "data", acked, clean=True, may_have_gaps=True)

    assert lost > 0


def test_a_power_cut_after_a_clean_shutdown_loses_nothing(mounts):
    logs = filled(mounts.path / "data")
    logs.close()

    mounts.cut_power()
    mounts.unmount()
    mounts.mount_ext4()

    reports = verified_reports(mounts.path / "data")
    assert all(reports[name].was_clean for name in LOGS)


def test_a_power_cut_after_a_checkpoint_loses_nothing_before_it(mounts):
    logs = filled(mounts.path / "data")
    logs.checkpoint_recovery_points()

    cut_power_of(mounts, logs)

    assert verified_reports(mounts.path / "data").keys() == set(LOGS)


def test_a_power_cut_after_the_first_flush_keeps_the_topic_id(mounts):
    logs = open_directory(mounts.path / "data")
    metadata = PartitionMetadata(uuid4(), log_lost=True)
    (log,) = logs.create_all({"t-0": CONFIG}, {"t-0": metadata})
    log.append(a_batch(LOGS[0], 0, 2), leader_epoch=0, now_ms=NOW)
    log.flush()

    cut_power_of(mounts, logs)

    assert PartitionMetadata.read(mounts.path / "data" / "t-0") == metadata


def cut_power_of(mounts, logs):
    """Cut the power of an open data directory, and mount the disk again."""
    mounts.cut_power()
    logs.flusher.stop()
    for log in logs.logs.values():
        for segment in log.segments:
            segment.close()
    logs.disk.close(logs._lock)
    mounts.unmount()
    mounts.mount_ext4()
