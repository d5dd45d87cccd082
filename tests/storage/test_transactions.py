"""Transactions in a log: markers, the first unstable offset, aborted transactions."""

import struct

import pytest

from harness.logs import NOW, NoSyncDisk, a_log
from ottla.protocol.batch import (
    BatchError,
    EndTxnMarker,
    Record,
    RecordBatch,
    build_batch,
    build_control_batch,
    parse_marker,
    split_batches,
)
from ottla.storage import compaction
from ottla.storage.cleaner import rewrite
from ottla.storage.errors import (
    InvalidProducerEpochError,
    InvalidTxnStateError,
    OutOfOrderSequenceError,
    TransactionCoordinatorFencedError,
)
from ottla.storage.files import OpenFiles
from ottla.storage.producer_states import ProducerStates
from ottla.storage.recovery import open_log

#: Kafka's bytes of a COMMIT marker for producer 1000.
COMMIT_MARKER = bytes.fromhex(
    "0000000000000000 00000042 ffffffff 02 a1ac499f 0030 00000000 0000018bcfe56800"
    "0000018bcfe56800 00000000000003e8 0000 ffffffff 00000001"
    "20 00 00 00 08 0000 0001 0c 0000 00000000 00"
)


class Producer:
    """Sends batches of one record to a log, with the right sequences."""

    def __init__(self, log, producer_id, epoch=0):
        self.log, self.id, self.epoch, self.sequence = log, producer_id, epoch, 0

    def send(self, value=b"v", *, transactional=True, size=0, now=NOW):
        batch = build_batch(
            [Record(0, NOW, b"k", value + b"x" * size)],
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            transactional=transactional,
        )
        offset = self.log.append(batch, leader_epoch=0, now_ms=now).base_offset
        self.sequence += 1
        return offset

    def end(self, *, commit, epoch=None, coordinator_epoch=0, version=1):
        return self.log.append_marker(
            producer_id=self.id,
            producer_epoch=self.epoch if epoch is None else epoch,
            coordinator_epoch=coordinator_epoch,
            is_commit=commit,
            transaction_version=version,
            leader_epoch=0,
            now_ms=NOW,
        ).base_offset


def crashed(log):
    """Open a copy of the log as after a crash of the process: nothing was closed."""
    return open_log(log.directory, log.config, OpenFiles(), recovery_point=log.recovery_point)[0]


def reopened(log):
    log.close()
    return open_log(log.directory, log.config, OpenFiles())[0]


def aborted(log, start=0, end=None):
    end = log.end_offset if end is None else end
    return [(t.producer_id, t.first_offset) for t in log.aborted_transactions(start, end)]


def test_a_marker_has_the_bytes_of_kafka():
    marker = build_control_batch(
        producer_id=1000,
        producer_epoch=0,
        coordinator_epoch=0,
        is_commit=True,
        timestamp=1_700_000_000_000,
    )

    assert marker == COMMIT_MARKER
    assert parse_marker(RecordBatch(marker)) == EndTxnMarker(is_commit=True, coordinator_epoch=0)


def test_other_batches_are_no_markers():
    with pytest.raises(BatchError, match="not a transaction marker"):
        parse_marker(RecordBatch(build_batch([Record(0, NOW, b"\0\0\0\1", b"v")])))
    with pytest.raises(BatchError, match="not a transaction marker"):
        parse_marker(RecordBatch(build_batch([Record(0, NOW, b"\0\0\0\2", b"v")], control=True)))


def test_a_transaction_is_unstable_until_its_marker(tmp_path):
    log = a_log(tmp_path)
    producer = Producer(log, 7)
    producer.send(transactional=False)
    assert log.first_unstable_offset is None

    producer.send()
    producer.send()
    assert log.first_unstable_offset == 1

    assert producer.end(commit=True) == 3
    assert log.first_unstable_offset is None
    assert aborted(log) == []
    stored = list(split_batches(bytes(log.read(0, 10_000).view)))
    assert [(batch.is_transactional, batch.is_control) for batch in stored] == [
        (False, False),
        (True, False),
        (True, False),
        (True, True),
    ]


def test_the_oldest_open_transaction_decides(tmp_path):
    log = a_log(tmp_path)
    first, second = Producer(log, 1), Producer(log, 2)
    first.send()
    second.send()
    first.end(commit=False)
    assert log.first_unstable_offset == 1
    first.send()
    second.end(commit=False)
    assert log.first_unstable_offset == 3

    assert aborted(log) == [(1, 0), (2, 1)]


def test_a_fetch_needs_the_transactions_that_touch_its_range(tmp_path):
    log = a_log(tmp_path)
    long, short = Producer(log, 1), Producer(log, 2)
    long.send()  # 0
    for _ in range(3):
        log.roll()
        short.send()  # 1, 3, 5
        short.end(commit=False)  # 2, 4, 6
    long.end(commit=False)  # 7
    short.send()  # 8
    short.end(commit=False)  # 9

    assert aborted(log) == [(1, 0), (2, 1), (2, 3), (2, 5), (2, 8)]
    assert aborted(log, 3, 5) == [(1, 0), (2, 3)]
    assert aborted(log, 4, 5) == [(1, 0), (2, 3)]
    assert aborted(log, 0, 1) == [(1, 0)]
    assert aborted(log, 7, 8) == [(1, 0)]
    assert aborted(log, 8, 9) == [(2, 8)]


# Rules for batches and markers.


def test_a_plain_batch_is_refused_while_a_transaction_is_open(tmp_path):
    log = a_log(tmp_path)
    producer = Producer(log, 7)
    producer.send()

    with pytest.raises(InvalidTxnStateError, match="Producer 7 has an open transaction"):
        producer.send(transactional=False)
    Producer(log, 8).send(transactional=False)
    producer.end(commit=True)
    producer.send(transactional=False)


def test_a_resent_batch_of_a_transaction_is_a_duplicate(tmp_path):
    log = a_log(tmp_path)
    producer = Producer(log, 7)
    producer.send()
    producer.send()
    producer.end(commit=False)

    producer.sequence = 1
    assert producer.send() == 1
    assert log.first_unstable_offset is None
    assert log.end_offset == 3


def test_a_marker_of_an_older_epoch_is_refused(tmp_path):
    log = a_log(tmp_path)
    producer = Producer(log, 7, epoch=3)
    producer.send()

    with pytest.raises(InvalidProducerEpochError, match="epoch 2, older than 3"):
        producer.end(commit=True, epoch=2)
    assert log.first_unstable_offset == 0


def test_a_marker_of_an_older_coordinator_is_refused(tmp_path):
    log = a_log(tmp_path)
    producer = Producer(log, 7)
    producer.send()
    producer.end(commit=True, coordinator_epoch=5)
    producer.send()

    with pytest.raises(TransactionCoordinatorFencedError, match="epoch 4, older than 5"):
        producer.end(commit=True, coordinator_epoch=4)
    producer.end(commit=True, coordinator_epoch=5)


def test_a_marker_of_a_newer_epoch_fences_the_producer(tmp_path):
    log = a_log(tmp_path)
    producer = Producer(log, 7)
    producer.send()
    producer.end(commit=False, epoch=1)

    with pytest.raises(InvalidProducerEpochError):
        producer.send()
    producer.epoch = 1
    with pytest.raises(OutOfOrderSequenceError, match="expected sequence 0"):
        producer.send()
    producer.sequence = 0
    producer.send()


def test_with_transaction_version_2_a_marker_needs_a_newer_epoch(tmp_path):
    log = a_log(tmp_path)
    producer = Producer(log, 7)
    producer.send()

    with pytest.raises(InvalidProducerEpochError):
        producer.end(commit=True, version=2)
    producer.end(commit=True, epoch=1, version=2)
    # The same marker again: no transaction is open.
    assert producer.end(commit=True, epoch=1, version=2) == 2
    with pytest.raises(InvalidProducerEpochError):
        producer.end(commit=True, epoch=0, version=2)


def test_a_marker_without_an_open_transaction_is_appended(tmp_path):
    log = a_log(tmp_path)
    producer = Producer(log, 7)

    assert [producer.end(commit=False), producer.end(commit=True)] == [0, 1]
    assert log.end_offset == 2
    assert aborted(log) == []
    (state,) = log.producer_states
    assert (state.last_sequence, state.coordinator_epoch, state.txn_start_offset) == (-1, 0, -1)


def test_with_transaction_version_2_an_unknown_producer_starts_at_sequence_0(tmp_path):
    log = a_log(tmp_path)

    def append(sequence):
        data = build_batch(
            [Record(0, NOW, b"k", b"v")],
            producer_id=7,
            producer_epoch=1,
            base_sequence=sequence,
            transactional=True,
        )
        batch = RecordBatch(data)
        return log.append_batches(
            memoryview(data), [batch], leader_epoch=0, now_ms=NOW, must_start_at_zero=True
        )

    with pytest.raises(OutOfOrderSequenceError, match="starts with sequence 4"):
        append(4)
    Producer(log, 7, epoch=1).end(commit=True)
    with pytest.raises(OutOfOrderSequenceError, match="starts with sequence 4"):
        append(4)
    append(0)
    append(1)


def test_sequences_of_the_brokers_own_batches_are_not_checked(tmp_path):
    log = a_log(tmp_path)
    batch = build_batch(
        [Record(0, NOW, b"k", b"v")],
        producer_id=7,
        producer_epoch=1,
        base_sequence=0,
        transactional=True,
    )
    for _ in range(2):
        log.append(batch, leader_epoch=0, now_ms=NOW, validates_records=False)
    assert (log.end_offset, log.first_unstable_offset) == (2, 0)

    Producer(log, 7, epoch=2).end(commit=True)
    with pytest.raises(InvalidProducerEpochError):
        log.append(batch, leader_epoch=0, now_ms=NOW, validates_records=False)


def test_a_producer_with_an_open_transaction_is_never_forgotten():
    states = ProducerStates(max_producers=2)
    for producer_id in range(1, 6):
        data = build_batch(
            [Record(0, NOW, b"k", b"v")],
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=0,
            transactional=producer_id < 3,
        )
        states.update(RecordBatch(data), producer_id, NOW)
    assert sorted(state.producer_id for state in states) == [1, 2]
    states = ProducerStates.restore(states.snapshot().encode(), NOW, max_producers=1)
    states.expire(2 * NOW, 1)

    assert states.first_open_offset == 1
    assert [state.txn_start_offset for state in states if state.producer_id == 2] == [2]


# Restarts, truncation and deletion.


def a_history(log):
    """Append open, aborted and committed transactions, over several segments."""
    first, second, third = Producer(log, 1), Producer(log, 2), Producer(log, 3)
    first.send(size=100)  # 0
    second.send(size=100)  # 1
    third.send(size=100)  # 2
    first.end(commit=False)  # 3
    log.roll()
    first.send(size=100)  # 4
    second.end(commit=False, coordinator_epoch=2)  # 5
    first.end(commit=True)  # 6
    second.send(size=100)  # 7
    return first, second, third


ABORTED = [(1, 0), (2, 1)]


def facts(log):
    states = sorted(
        (s.producer_id, s.epoch, s.last_sequence, s.coordinator_epoch, s.txn_start_offset)
        for s in log.producer_states
    )
    return states, log.first_unstable_offset, log.aborted_transactions(0, log.end_offset)


@pytest.mark.parametrize("restart", [crashed, reopened])
def test_transactions_survive_a_restart(tmp_path, restart):
    log = a_log(tmp_path)
    a_history(log)
    before = facts(log)

    again = restart(log)

    assert facts(again) == before
    assert (aborted(again), again.first_unstable_offset) == (ABORTED, 2)
    again = reopened(again)
    assert facts(again) == before


def test_a_crash_after_a_clean_restart_rebuilds_the_index_of_the_whole_segment(tmp_path):
    log = a_log(tmp_path)
    a_history(log)
    for _ in range(4):
        log = reopened(log)
        Producer(log, 9).send(transactional=False) if log.end_offset == 8 else None
        Producer(log, 10 + log.end_offset).send(transactional=False)
    before = facts(log)

    again = crashed(log)

    assert facts(again) == before
    assert aborted(again) == ABORTED


def test_the_file_has_kafkas_format(tmp_path):
    log = a_log(tmp_path)
    a_history(log)
    log.close()

    files = sorted(tmp_path.rglob("*.txnindex"))
    assert [path.name for path in files] == [
        "00000000000000000000.txnindex",
        "00000000000000000004.txnindex",
    ]
    assert [path.stat().st_size for path in files] == [34, 34]
    assert struct.unpack(">hqqqq", files[0].read_bytes()) == (0, 1, 0, 3, 1)
    assert struct.unpack(">hqqqq", files[1].read_bytes()) == (0, 2, 1, 5, 2)


@pytest.mark.parametrize("damage", [b"", b"x", b"\0" * 33, b"\0" * 34, b"\0\1" + b"\0" * 32])
@pytest.mark.parametrize("restart", [crashed, reopened])
def test_an_index_that_does_not_fit_is_rebuilt(tmp_path, damage, restart):
    log = a_log(tmp_path)
    a_history(log)
    log.roll()
    log.close()
    log = open_log(log.directory, log.config, OpenFiles())[0]
    path = log.segments[0].path(".txnindex")
    path.write_bytes(path.read_bytes() + damage if len(damage) == 33 else damage)

    again = restart(log)

    assert aborted(again) == ABORTED


def test_the_index_of_a_segment_that_was_sealed_after_the_last_flush_is_rebuilt(tmp_path):
    log = a_log(tmp_path)
    a_history(log)
    log.flush()
    log.roll()
    # A power cut loses what was not fsynced.
    log.segments[1].path(".txnindex").unlink()

    again = crashed(log)

    assert aborted(again) == ABORTED


class RollingDisk(NoSyncDisk):
    """Rolls a log during its next fsync, as the event loop may do during a flush."""

    log = None

    def __init__(self):
        self.synced = set()

    def sync(self, fd, *, metadata=False):
        if self.log is not None:
            log, self.log = self.log, None
            log.roll()

    def sync_path(self, path):
        self.synced.add(path)


def test_a_flush_covers_the_indexes_of_a_segment_that_was_sealed_meanwhile(tmp_path):
    disk = RollingDisk()
    log = a_log(tmp_path, files=OpenFiles(disk))
    a_history(log)
    log.flush()
    log.after_roll = lambda _log: None
    producer = Producer(log, 9)
    producer.send()
    producer.end(commit=False)
    disk.synced.clear()
    disk.log = log

    assert log.flush() == log.end_offset == log.active_segment.base_offset

    sealed = log.segments[-2]
    assert {sealed.path(suffix) for suffix in (".index", ".timeindex", ".txnindex")} <= disk.synced


@pytest.mark.parametrize("offset", range(8))
def test_truncation_opens_transactions_whose_marker_it_removes(tmp_path, offset):
    log = a_log(tmp_path)
    a_history(log)
    log.truncate(offset)

    markers = {1: 3, 2: 5}
    firsts = {1: 0, 2: 1}
    expected = [(pid, firsts[pid]) for pid in (1, 2) if markers[pid] < offset]
    still_open = [0] * (0 < offset <= 3) + [1] * (1 < offset <= 5) + [2] * (offset > 2)
    assert aborted(log) == expected
    assert log.first_unstable_offset == min(still_open, default=None)
    before = facts(log)
    again = crashed(log)
    assert facts(again) == before
    assert facts(reopened(again)) == before


def test_deletion_may_cut_into_an_open_transaction(tmp_path):
    log = a_log(tmp_path)
    producer = Producer(log, 7)
    producer.send()
    log.roll()
    producer.send()
    log.roll()
    log.delete_records_before(2)

    assert log.start_offset == 2
    assert log.first_unstable_offset == 0
    producer.end(commit=False)
    assert log.first_unstable_offset is None
    assert aborted(log, 2) == [(7, 0)]


def test_a_deleted_segment_takes_its_index_along(tmp_path):
    log = a_log(tmp_path)
    a_history(log)
    log.flush()
    log.delete_records_before(4)
    log.purge_deleted_segments()

    assert aborted(log, 4) == [(2, 1)]
    log.close()
    assert [path.name[:20] for path in tmp_path.rglob("*.txnindex*")] == ["00000000000000000004"]


def test_with_durability_fsync_a_transaction_is_unstable_until_its_marker_is_durable(tmp_path):
    log = a_log(tmp_path, durability="fsync")
    producer, other = Producer(log, 7), Producer(log, 8)
    producer.send()
    other.send()
    log.flush()
    other.end(commit=True)
    producer.end(commit=False)
    assert log.first_unstable_offset == 0

    log.flush()
    assert log.first_unstable_offset is None

    producer.send()
    producer.end(commit=True)
    log.truncate(5)
    assert log.first_unstable_offset == 4


# Compaction.


def compact(log, now_ms=NOW):
    log.roll()
    log.flush()
    plan = compaction.plan(log, now_ms)
    if plan is not None:
        rewritten = rewrite(plan)
        while compaction.commit_next_segment(log, rewritten):
            pass


def batches(log):
    return [
        batch for segment in log.segments for batch in split_batches(segment.read(0, segment.size))
    ]


def values(log):
    return [r.value for b in batches(log) if not b.is_control for r in b.records()]


def a_compacted_log(tmp_path, **config):
    return a_log(tmp_path, cleanup_policy="compact", min_cleanable_dirty_ratio=0.0, **config)


def test_compaction_drops_aborted_records_and_their_index_entries(tmp_path):
    log = a_compacted_log(tmp_path)
    kept, dropped = Producer(log, 1), Producer(log, 2)
    kept.send(b"kept")
    kept.end(commit=True)
    dropped.send(b"aborted")
    dropped.end(commit=False)
    dropped.send(b"also aborted")
    dropped.end(commit=False)
    compact(log)

    assert values(log) == [b"kept"]
    assert aborted(log) == []
    assert not list(tmp_path.rglob("*.txnindex*"))
    # The last batch of each producer stays, without records, and so does its marker.
    assert [(b.base_offset, b.is_control) for b in batches(log)] == [
        (0, False),
        (1, True),
        (3, True),
        (5, True),
    ]
    before = facts(log)
    assert facts(crashed(log)) == before


def test_compaction_ends_before_an_undecided_transaction(tmp_path):
    log = a_compacted_log(tmp_path)
    plain, producer = Producer(log, 1), Producer(log, 2)
    plain.send(b"first", transactional=False)
    producer.send(b"undecided")
    plain.send(b"second", transactional=False)
    compact(log)
    assert values(log) == [b"first", b"undecided", b"second"]

    producer.end(commit=True)
    compact(log)
    assert values(log) == [b"second"]


def test_a_marker_goes_after_its_transaction_and_its_delete_horizon(tmp_path):
    log = a_compacted_log(tmp_path, delete_retention_ms=1000)
    producer = Producer(log, 1)
    for value in (b"1", b"2", b"3"):
        producer.send(value)
        producer.end(commit=True)
    compact(log, NOW)
    assert values(log) == [b"3"]
    markers = [b for b in batches(log) if b.is_control]
    assert [(b.base_offset, b.has_delete_horizon) for b in markers] == [
        (1, True),
        (3, True),
        (5, False),
    ]
    assert all(parse_marker(b).is_commit for b in markers)

    producer.send(b"4")
    producer.end(commit=True)
    compact(log, NOW + 999)
    assert len([b for b in batches(log) if b.is_control]) == 4
    producer.send(b"5")
    producer.end(commit=True)
    compact(log, NOW + 1000)

    assert [b.base_offset for b in batches(log) if b.is_control] == [5, 7, 9]
    assert facts(crashed(log)) == facts(log)


def test_a_transaction_with_more_keys_than_the_map_is_compacted(tmp_path):
    log = a_compacted_log(tmp_path)
    producer = Producer(log, 1)
    for _ in range(2):
        records = [Record(i, NOW, b"%d" % i, b"v") for i in range(20)]
        for first in range(0, 20, 5):
            log.append(
                build_batch(
                    [Record(i, *r[1:]) for i, r in enumerate(records[first : first + 5])],
                    producer_id=1,
                    producer_epoch=0,
                    base_sequence=producer.sequence,
                    transactional=True,
                ),
                leader_epoch=0,
                now_ms=NOW,
            )
            producer.sequence += 5
        producer.end(commit=True)
    log.roll()
    log.flush()
    for _ in range(10):
        plan = compaction.plan(log, NOW)
        if plan is None:
            break
        rewritten = rewrite(plan, max_keys=6)
        while compaction.commit_next_segment(log, rewritten):
            pass

    assert compaction.plan(log, NOW) is None
    assert len(values(log)) == 20
