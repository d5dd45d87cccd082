"""The log of a follower: batches of the leader, truncation by epoch, a new start."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.logs import NOW, a_batch, a_log, offsets
from ottla.protocol.batch import BatchError
from ottla.storage.errors import DivergedBatchError
from ottla.storage.files import OpenFiles
from ottla.storage.log import Log
from ottla.storage.logdir import LogDirectory
from ottla.storage.recovery import open_log


def _produce(log: Log, count: int = 1, *, epoch: int = 0, sequence: int | None = None) -> None:
    header = {} if sequence is None else {"producer_id": 7, "base_sequence": sequence}
    if header:
        header["producer_epoch"] = 0
    log.append(a_batch(count, **header), leader_epoch=epoch, now_ms=NOW)


def _replicate(leader: Log, follower: Log, max_bytes: int = 700) -> None:
    while follower.end_offset < leader.end_offset:
        follower.append_as_follower(bytes(leader.read(follower.end_offset, max_bytes).view), NOW)


def _bytes(log: Log) -> bytes:
    return b"".join(bytes(segment.read(0, segment.size)) for segment in log.segments)


@pytest.fixture
def leader(tmp_path: Path) -> Log:
    return a_log(tmp_path / "leader")


@pytest.fixture
def follower(tmp_path: Path) -> Log:
    return a_log(tmp_path / "follower")


def test_a_follower_has_the_bytes_offsets_and_epochs_of_its_leader(
    leader: Log, follower: Log
) -> None:
    for epoch in (0, 0, 2, 2, 5):
        _produce(leader, 30, epoch=epoch)
    _replicate(leader, follower, max_bytes=100_000)
    assert _bytes(follower) == _bytes(leader)
    assert offsets(follower) == list(range(150))
    assert list(follower.leader_epochs) == [(0, 0), (2, 60), (5, 120)]
    assert len(follower.segments) > 1
    follower.close()
    again, report = open_log(follower.directory, follower.config, OpenFiles())
    assert report.was_clean
    assert (again.end_offset, list(again.leader_epochs)) == (150, [(0, 0), (2, 60), (5, 120)])


def test_a_crash_of_a_follower_loses_nothing_and_finds_the_epochs_again(
    leader: Log, follower: Log
) -> None:
    for epoch in (1, 4):
        _produce(leader, 3, epoch=epoch)
    _replicate(leader, follower)
    (follower.directory / "leader-epoch-checkpoint").unlink()
    again, _report = open_log(follower.directory, follower.config, OpenFiles(), recovery_point=0)
    assert (offsets(again), list(again.leader_epochs)) == (list(range(6)), [(1, 0), (4, 3)])


def test_one_response_may_be_larger_than_a_segment(leader: Log, follower: Log) -> None:
    for _ in range(30):
        _produce(leader, 5)
    fetched = b"".join(bytes(leader.read(offset, 1).view) for offset in range(0, 150, 5))
    follower.append_as_follower(fetched, NOW)
    assert _bytes(follower) == _bytes(leader)
    assert all(segment.size <= 2000 for segment in follower.segments)


def test_offsets_that_compaction_removed_are_gaps(leader: Log, follower: Log) -> None:
    for _ in range(3):
        _produce(leader, 2)
    follower.append_as_follower(bytes(leader.read(0, 1).view), NOW)
    follower.append_as_follower(bytes(leader.read(4, 1).view), NOW)
    assert offsets(follower) == [0, 1, 4, 5]


def test_batches_that_do_not_follow_are_refused(leader: Log, follower: Log) -> None:
    _produce(leader, 2, epoch=3)
    _produce(leader, 2, epoch=3)
    both = bytes(leader.read(0, 10_000).view)
    follower.append_as_follower(both, NOW)
    with pytest.raises(DivergedBatchError, match="does not follow offset 4 in epoch 3"):
        follower.append_as_follower(both, NOW)
    stale = a_log(leader.directory.parent / "stale")
    for _ in range(3):
        _produce(stale, 2, epoch=1)
    with pytest.raises(DivergedBatchError, match="in epoch 1"):
        follower.append_as_follower(bytes(stale.read(4, 1).view), NOW)
    assert offsets(follower) == [0, 1, 2, 3]


def test_a_damaged_batch_is_refused(leader: Log, follower: Log) -> None:
    _produce(leader, 2)
    damaged = bytearray(leader.read(0, 10_000).view)
    damaged[-1] ^= 1
    with pytest.raises(BatchError, match="CRC"):
        follower.append_as_follower(damaged, NOW)
    assert follower.end_offset == 0


def test_a_follower_that_becomes_leader_recognizes_duplicates(leader: Log, follower: Log) -> None:
    _produce(leader, 2, sequence=0)
    _produce(leader, 2, sequence=2)
    _replicate(leader, follower)
    batch = a_batch(2, producer_id=7, producer_epoch=0, base_sequence=2)
    appended = follower.append(batch, leader_epoch=1, now_ms=NOW)
    assert (appended.base_offset, appended.is_duplicate) == (2, True)


def test_a_transaction_is_stable_when_its_marker_is_below_the_high_watermark(
    leader: Log, follower: Log
) -> None:
    follower.high_watermark = 0
    batch = a_batch(1, producer_id=7, producer_epoch=0, base_sequence=0, transactional=True)
    leader.append(batch, leader_epoch=0, now_ms=NOW)
    leader.append_marker(
        producer_id=7,
        producer_epoch=0,
        coordinator_epoch=0,
        is_commit=False,
        transaction_version=1,
        leader_epoch=0,
        now_ms=NOW,
    )
    _replicate(leader, follower)
    assert follower.first_unstable_offset == 0
    assert [one.first_offset for one in follower.aborted_transactions(0, 2)] == [0]
    follower.high_watermark = 2
    assert follower.first_unstable_offset is None


def test_truncation_and_catching_up_give_the_log_of_the_new_leader(
    leader: Log, follower: Log
) -> None:
    for _ in range(12):
        _produce(leader, 3)
    _replicate(leader, follower)
    for _ in range(8):
        _produce(leader, 3)  # Never replicated.
    for _ in range(4):
        _produce(follower, 3, epoch=1)  # The follower leads now.
    epoch, end = follower.leader_epochs.end_of_led(0, 1, follower.end_offset)
    offset = leader.leader_epochs.truncation_offset(epoch, end, leader.end_offset)
    assert offset == 36
    leader.truncate(offset)
    _replicate(follower, leader)
    assert offsets(leader) == offsets(follower)
    assert _bytes(leader) == _bytes(follower)
    assert list(leader.leader_epochs) == [(0, 0), (1, 36)]


def test_a_follower_far_behind_starts_anew_where_the_leader_starts(
    leader: Log, follower: Log
) -> None:
    _produce(follower, 2, sequence=0)
    for _ in range(10):
        _produce(leader, 5, epoch=3)
    leader.delete_records_before(20)
    follower.restart_at(20)
    assert (follower.start_offset, follower.end_offset) == (20, 20)
    _replicate(leader, follower)
    assert offsets(follower) == offsets(leader) == list(range(20, 50))
    assert list(follower.leader_epochs) == [(3, 20)]
    follower.close()
    again, _report = open_log(follower.directory, follower.config, OpenFiles())
    assert (again.start_offset, offsets(again)) == (20, list(range(20, 50)))


def test_retention_keeps_what_is_not_committed(tmp_path: Path) -> None:
    log = a_log(tmp_path, retention_bytes=0)
    for _ in range(10):
        _produce(log, 30)
    log.high_watermark = 100
    assert log.apply_retention(NOW)
    assert 0 < log.start_offset <= 100
    log.high_watermark = 300
    assert log.apply_retention(NOW)
    assert log.start_offset == log.segments[-1].base_offset


def test_high_watermarks_survive_a_restart(tmp_path: Path) -> None:
    directory = LogDirectory(tmp_path, broker_id=1)
    directory.load({}, a_log(tmp_path / "any").config)
    config = a_log(tmp_path / "any").config
    replicated, single = directory.create("t-0", config), directory.create("t-1", config)
    _produce(replicated, 5)
    _produce(single, 5)
    replicated.high_watermark = 3
    directory.checkpoint_high_watermarks()
    assert directory.read_high_watermarks() == {"t-0": 3}
    replicated.high_watermark = 5
    directory.close()
    assert LogDirectory(tmp_path, broker_id=1).read_high_watermarks() == {"t-0": 5}
