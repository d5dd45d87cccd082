"""Compaction: which records stay, when a pass is due, and what a crash during a commit leaves."""

import errno
import os
import shutil
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.logs import commit, compact
from ottla.protocol.batch import HEADER_BYTES, Record, build_batch, split_batches
from ottla.protocol.compression import Compression
from ottla.protocol.errors import BatchError
from ottla.storage.cleaner import rewrite
from ottla.storage.compaction import commit_next_segment, plan
from ottla.storage.config import LogConfig
from ottla.storage.disk import Disk
from ottla.storage.errors import CompactionStoppedError, OutOfOrderSequenceError
from ottla.storage.files import OpenFiles
from ottla.storage.recovery import open_log

NOW = 1_700_000_000_000
HOUR_MS = 60 * 60 * 1000
DAY_MS = 24 * HOUR_MS
LONG_MAX = 2**63 - 1
COMMIT, ABORT = b"\0\0\0\1", b"\0\0\0\0"


def a_log(path, *, disk=None, recovery_point=None, **config):
    config = {"cleanup_policy": "compact", "min_cleanable_dirty_ratio": 0.01, **config}
    files = OpenFiles(disk)
    opened, report = open_log(path, LogConfig(**config), files, recovery_point=recovery_point)
    assert report.damaged_ranges == []
    assert report.truncated_bytes == 0
    return opened


def a_batch(*pairs, timestamp=NOW, **fields):
    """Build a batch from (key, value) or (key, value, headers) tuples."""
    records = [
        Record(index, timestamp + index, *_bytes(pair[:2]), *pair[2:])
        for index, pair in enumerate(pairs)
    ]
    return build_batch(records, **fields)


def _bytes(texts):
    return [None if text is None else text.encode() for text in texts]


def append(log, *pairs, now=NOW, **fields):
    return log.append(a_batch(*pairs, **fields), leader_epoch=0, now_ms=now)


def append_marker(log, producer_id, key):
    """Append a transaction marker, which producers cannot do."""
    log.append_marker(
        producer_id=producer_id,
        producer_epoch=0,
        coordinator_epoch=0,
        is_commit=key == COMMIT,
        transaction_version=1,
        leader_epoch=0,
        now_ms=NOW,
    )


def seal(log):
    log.roll()
    log.flush()


def batches_of(log, start=None):
    """Read all batches, as a consumer does."""
    offset = log.start_offset if start is None else start
    batches = []
    while offset < log.end_offset:
        data = bytes(log.read(offset, 1000).view)
        if not data:
            break
        for batch in split_batches(data):
            batch.validate()
            batches.append(batch)
            offset = batch.next_offset
    return batches


def records_of(log, start=None):
    return [
        record
        for batch in batches_of(log, start)
        if not batch.is_control
        for record in batch.records()
    ]


def texts_of(log):
    """Return (offset, key, value) of each record."""
    return [
        (
            record.offset,
            record.key and record.key.decode(),
            None if record.value is None else record.value.decode(),
        )
        for record in records_of(log)
    ]


def last_values(log):
    values = {record.key: record.value for record in records_of(log)}
    return {key: value for key, value in values.items() if value is not None}


def leftovers(path):
    return [name for name in os.listdir(path) if ".cleaned" in name or name.endswith(".tmp")]


def test_the_last_record_of_each_key_stays_at_its_offset(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"), ("b", "1"), ("c", "1"))
    append(log, ("a", "2"), ("a", "3"))
    seal(log)
    append(log, ("b", "2"), ("d", "1"))
    seal(log)

    stats = compact(log, NOW)

    assert texts_of(log) == [(2, "c", "1"), (4, "a", "3"), (5, "b", "2"), (6, "d", "1")]
    assert (log.start_offset, log.end_offset) == (0, 7)
    assert (stats.records_kept, stats.records_dropped) == (4, 3)
    assert stats.bytes_after == log.size < stats.bytes_before
    assert stats.segments == 1
    assert stats.first_dirty_offset == 7


def test_the_active_segment_is_not_compacted_and_replaces_nothing(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"), ("a", "2"))
    seal(log)
    append(log, ("a", "3"), ("a", "4"))

    compact(log, NOW)

    assert texts_of(log) == [(1, "a", "2"), (2, "a", "3"), (3, "a", "4")]


def test_unflushed_segments_are_not_compacted_and_replace_nothing(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"), ("a", "2"))
    seal(log)
    append(log, ("a", "3"))
    log.roll()

    compact(log, NOW)

    assert texts_of(log) == [(1, "a", "2"), (2, "a", "3")]


def test_a_later_pass_removes_records_that_an_earlier_one_kept(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"), ("b", "1"))
    seal(log)
    compact(log, NOW)
    append(log, ("a", "2"))
    seal(log)

    compact(log, NOW)

    assert texts_of(log) == [(1, "b", "1"), (2, "a", "2")]


def test_a_compacted_log_is_unchanged_by_a_restart_and_by_a_crash(tmp_path):
    log = a_log(tmp_path)
    for n in range(20):
        append(log, (f"k{n % 3}", str(n)), (f"x{n}", str(n)))
        seal(log)
    compact(log, NOW)
    expected = texts_of(log)
    end = log.end_offset
    log.close()

    for point in (None, 0, end // 2, end):
        again = a_log(tmp_path, recovery_point=point)

        assert texts_of(again) == expected
        assert again.end_offset == end


def test_a_read_from_any_offset_returns_the_remaining_records(tmp_path):
    log = a_log(tmp_path, index_interval_bytes=1)
    for n in range(30):
        append(log, (f"k{n % 7}", str(n)), (f"k{n % 5}", str(n)), (f"x{n % 11}", str(n)))
        if n % 4 == 3:
            seal(log)
    compact(log, NOW)
    remaining = texts_of(log)
    assert len(remaining) < 40

    for offset in range(log.end_offset + 1):
        offsets = [record.offset for record in records_of(log, offset) if record.offset >= offset]

        assert offsets == [kept for kept, _, _ in remaining if kept >= offset]


def test_unchanged_batches_are_copied_as_they_are_and_unchanged_segments_are_not(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"), ("b", "1"), compression=Compression.ZSTD, level=1)
    seal(log)
    append(log, ("c", "1"), compression=Compression.ZSTD, level=1)
    append(log, ("d", "1"))
    seal(log)
    append(log, ("d", "2"))
    seal(log)
    before = [bytes(batch.view) for batch in batches_of(log)]
    files = [segment.path(".log").stat().st_ino for segment in log.segments]

    stats = compact(log, NOW)

    after = [bytes(batch.view) for batch in batches_of(log)]
    assert [after[0], after[1], after[3]] == [before[0], before[1], before[3]]
    again = [segment.path(".log").stat().st_ino for segment in log.segments]
    assert [old == new for old, new in zip(files, again, strict=True)] == [True, False, True, True]
    assert stats.segments == 1


def test_large_batches_and_segments_are_compacted(tmp_path):
    log = a_log(tmp_path, max_message_bytes=1 << 23)
    for n in range(9):
        append(log, (f"k{n}", str(n) * 400_000))
    append(log, ("big", "b" * 3_000_000), ("k9", "9"))
    for n in (7, 2):
        append(log, (f"k{n}", str(n) * 700_000))
    seal(log)
    before = {record.key: record for record in records_of(log)}

    compact(log, NOW)

    assert {record.key: record for record in records_of(log)} == before
    assert len(records_of(log)) == 11
    assert len(log.read(9, 1).view) > 3_000_000


@pytest.mark.parametrize("compression", Compression)
def test_a_rewritten_batch_keeps_everything_except_the_removed_records(tmp_path, compression):
    log = a_log(tmp_path)
    headers = (("h", b"1"), ("n", None))
    append(
        log,
        ("gone", "1" * 500),
        ("kept", "2" * 500, headers),
        ("gone", "3"),
        compression=compression,
        producer_id=7,
        producer_epoch=2,
        base_sequence=40,
    )
    append(log, ("gone", "4"))
    log.append(a_batch(("last", "5")), leader_epoch=3, now_ms=NOW)
    seal(log)

    compact(log, NOW)

    first = batches_of(log)[0]
    assert first.records() == [Record(1, NOW + 1, b"kept", b"2" * 500, headers)]
    assert (first.base_offset, first.last_offset) == (0, 2)
    assert (first.producer_id, first.producer_epoch, first.base_sequence) == (7, 2, 40)
    assert first.last_sequence == 42
    assert first.compression is compression
    assert first.max_timestamp == NOW + 1
    assert [batch.partition_leader_epoch for batch in batches_of(log)] == [0, 0, 3]


def test_log_append_time_is_kept(tmp_path):
    log = a_log(tmp_path, message_timestamp_type="LogAppendTime")
    append(log, ("a", "1"), ("b", "1"), now=NOW + 5)
    append(log, ("gone", "1"), now=NOW + 6)
    append(log, ("dead", None), ("c", "1"), now=NOW + 7)
    append(log, ("a", "2"), ("gone", "2"), now=NOW + 8)
    seal(log)

    compact(log, NOW + 9)

    times = [(record.offset, record.timestamp) for record in records_of(log)]
    assert times == [
        (1, NOW + 5),
        (3, NOW + 7),
        (4, NOW + 7),
        (5, NOW + 8),
        (6, NOW + 8),
    ]
    assert all(batch.has_append_time for batch in batches_of(log))
    assert [batch.has_delete_horizon for batch in batches_of(log)] == [False, True, False]


def test_records_are_found_by_timestamp_after_compaction(tmp_path):
    log = a_log(tmp_path, index_interval_bytes=1)
    for n in range(12):
        append(log, (f"k{n % 4}", str(n)), timestamp=NOW + n)
        if n % 3 == 2:
            seal(log)
    compact(log, NOW)

    assert log.offset_for_timestamp(NOW) == (8, NOW + 8)
    assert log.offset_for_timestamp(NOW + 10) == (10, NOW + 10)
    assert log.offset_for_timestamp(NOW + 12) is None
    assert log.offset_for_max_timestamp() == (11, NOW + 11)


def test_tombstones_stay_for_delete_retention_ms_from_the_first_pass_that_saw_them(tmp_path):
    log = a_log(tmp_path, delete_retention_ms=DAY_MS)
    append(log, ("a", "1"), ("b", "1"))
    append(log, ("a", None), ("c", "1"), timestamp=NOW - 10 * DAY_MS)
    seal(log)

    compact(log, NOW)

    assert texts_of(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    batch = batches_of(log)[1]
    assert batch.has_delete_horizon
    assert batch.base_timestamp == NOW + DAY_MS
    times = [record.timestamp for record in batch.records()]
    assert times == [NOW - 10 * DAY_MS, NOW - 10 * DAY_MS + 1]
    assert batch.max_timestamp == NOW - 10 * DAY_MS + 1

    append(log, ("x", "1"))
    seal(log)
    compact(log, NOW + DAY_MS - 1)

    assert (2, "a", None) in texts_of(log)
    assert batches_of(log)[1].base_timestamp == NOW + DAY_MS

    append(log, ("y", "1"))
    seal(log)
    compact(log, NOW + DAY_MS)

    assert texts_of(log) == [(1, "b", "1"), (3, "c", "1"), (4, "x", "1"), (5, "y", "1")]
    batch = batches_of(log)[1]
    assert not batch.has_delete_horizon
    assert batch.base_timestamp == batch.records()[0].timestamp == NOW - 10 * DAY_MS + 1


def test_a_tombstone_is_replaced_by_a_later_value_at_once(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"), ("a", None), ("a", "2"), ("b", None))
    seal(log)
    compact(log, NOW)
    assert texts_of(log) == [(2, "a", "2"), (3, "b", None)]
    append(log, ("b", "1"))
    seal(log)

    compact(log, NOW)

    assert texts_of(log) == [(2, "a", "2"), (4, "b", "1")]
    assert not batches_of(log)[0].has_delete_horizon


def test_tombstones_can_be_kept_forever(tmp_path):
    log = a_log(tmp_path, delete_retention_ms=LONG_MAX)
    append(log, ("a", None), ("b", None), timestamp=-1)
    seal(log)

    compact(log, NOW)

    assert texts_of(log) == [(0, "a", None), (1, "b", None)]
    assert [record.timestamp for record in records_of(log)] == [-1, 0]


def test_a_record_is_not_compacted_before_min_compaction_lag_ms(tmp_path):
    log = a_log(tmp_path, min_compaction_lag_ms=HOUR_MS)
    append(log, ("a", "1"), ("a", "2"))
    seal(log)
    append(log, ("a", "3"), ("a", "4"), timestamp=NOW + HOUR_MS, now=NOW + HOUR_MS)
    seal(log)
    append(log, ("a", "5"), timestamp=NOW)
    seal(log)

    assert plan(log, NOW + HOUR_MS) is None

    compact(log, NOW + HOUR_MS + 1)

    assert [offset for offset, _, _ in texts_of(log)] == [1, 2, 3, 4]

    compact(log, NOW + 2 * HOUR_MS + 1)

    assert texts_of(log) == [(4, "a", "5")]


def test_future_timestamps_do_not_matter_without_a_lag(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"), ("a", "2"), timestamp=NOW + HOUR_MS - 1)
    seal(log)

    compact(log, NOW)

    assert texts_of(log) == [(1, "a", "2")]


def test_a_pass_is_due_at_min_cleanable_dirty_ratio(tmp_path):
    log = a_log(tmp_path, min_cleanable_dirty_ratio=0.5)
    for n in range(4):
        append(log, (f"k{n}", "x" * 100))
    seal(log)
    assert compact(log, NOW) is not None
    assert compact(log, NOW) is None
    for n in range(3):
        append(log, (f"k{n}", "y" * 100))
    seal(log)

    assert plan(log, NOW) is None

    append(log, ("k4", "y" * 100))
    seal(log)

    planned = plan(log, NOW)
    assert planned.first_dirty_offset == 4
    assert planned.end_offset == 8
    assert planned.dirty_bytes * 2 == log.size


def test_no_pass_is_due_without_dirty_segments(tmp_path):
    log = a_log(tmp_path, min_cleanable_dirty_ratio=0.0)
    assert plan(log, NOW) is None
    append(log, ("a", "1"))
    assert plan(log, NOW) is None
    seal(log)
    compact(log, NOW)

    assert plan(log, NOW) is None


def test_a_pass_is_due_at_max_compaction_lag_ms(tmp_path):
    log = a_log(tmp_path, min_cleanable_dirty_ratio=1.0, max_compaction_lag_ms=HOUR_MS)
    append(log, *[(f"k{n}", "x" * 100) for n in range(9)])
    seal(log)
    compact(log, NOW)
    append(log, ("k1", "2"))
    seal(log)

    assert plan(log, NOW + HOUR_MS) is None

    compact(log, NOW + HOUR_MS + 1)

    assert 1 not in [offset for offset, _, _ in texts_of(log)]


def test_the_active_segment_is_rolled_at_max_compaction_lag_ms(tmp_path):
    log = a_log(tmp_path, max_compaction_lag_ms=HOUR_MS)
    append(log, ("a", "1"), ("a", "2"))
    assert plan(log, NOW + HOUR_MS) is None
    assert len(log.segments) == 1

    assert plan(log, NOW + HOUR_MS + 2) is None
    log.flush()
    compact(log, NOW + HOUR_MS + 2)

    assert texts_of(log) == [(1, "a", "2")]


def test_a_log_without_the_compact_policy_is_not_compacted(tmp_path):
    log = a_log(tmp_path, cleanup_policy="delete")
    append(log, ("a", "1"), ("a", "2"))
    seal(log)

    assert compact(log, NOW) is None


def test_a_log_can_have_both_cleanup_policies(tmp_path):
    log = a_log(tmp_path, cleanup_policy="compact,delete", retention_ms=HOUR_MS)
    append(log, ("a", "1"))
    seal(log)
    append(log, ("a", "2"), timestamp=NOW + HOUR_MS)
    seal(log)
    compact(log, NOW + 1)

    assert log.segments[0].size == HEADER_BYTES
    assert log.apply_retention(NOW + HOUR_MS + 1) == 1
    assert texts_of(log) == [(1, "a", "2")]


def test_a_pass_ends_at_max_keys_and_the_next_continues_there(tmp_path):
    log = a_log(tmp_path)
    for n in range(40):
        append(log, (f"k{n % 20}", str(n)))
        if n % 7 == 6:
            seal(log)
    seal(log)
    expected = [(n, f"k{n % 20}", str(n)) for n in range(20, 40)]

    passes = []
    while stats := compact(log, NOW, max_keys=6):
        passes.append(stats.first_dirty_offset)
        assert texts_of(log)[-20:] == expected

    assert passes == [6, 12, 18, 24, 30, 36, 40]
    assert texts_of(log) == expected


def test_a_batch_with_more_than_max_keys_is_a_pass_of_its_own(tmp_path):
    log = a_log(tmp_path)
    for n in range(3):
        append(log, *[(f"k{key}", str(n)) for key in range(10)])
    seal(log)

    passes = 0
    while compact(log, NOW, max_keys=2):
        passes += 1

    assert passes == 3
    assert [offset for offset, _, _ in texts_of(log)] == list(range(20, 30))


def test_tombstones_after_the_end_of_a_pass_are_unchanged(tmp_path):
    log = a_log(tmp_path, delete_retention_ms=0)
    append(log, ("a", "1"))
    append(log, ("b", "1"))
    append(log, ("a", None))
    append(log, ("c", "1"))
    seal(log)

    compact(log, NOW, max_keys=2)

    assert [batch.has_delete_horizon for batch in batches_of(log)] == [False] * 4

    compact(log, NOW, max_keys=2)

    assert texts_of(log) == [(1, "b", "1"), (2, "a", None), (3, "c", "1")]
    assert [batch.has_delete_horizon for batch in batches_of(log)] == [False, True, False]


def test_empty_batches_are_removed_except_the_last_of_a_segment(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"))
    append(log, ("b", "1"))
    append(log, ("a", "2"), compression=Compression.GZIP)
    seal(log)
    append(log, ("a", "3"))
    seal(log)

    compact(log, NOW)

    spans = [(b.base_offset, b.last_offset, b.record_count, b.size) for b in batches_of(log)]
    assert [span[:3] for span in spans] == [(1, 1, 1), (2, 2, 0), (3, 3, 1)]
    assert spans[1][3] == HEADER_BYTES
    assert batches_of(log)[1].max_timestamp == NOW


def test_empty_segments_are_removed_except_the_first(tmp_path):
    log = a_log(tmp_path)
    for n in range(4):
        append(log, ("a", str(n)), ("a", str(n)))
        seal(log)

    stats = compact(log, NOW)

    assert stats.segments_removed == 2
    assert [segment.base_offset for segment in log.segments] == [0, 6, 8]
    assert log.size == stats.bytes_after
    assert sorted(name for name in os.listdir(tmp_path) if name.endswith("index")) == [
        f"{base:020d}.{kind}" for base in (0, 6) for kind in ("index", "timeindex")
    ]
    for offset in range(8):
        assert records_of(log, offset)[0].offset == 7
    log.close()
    again = a_log(tmp_path, recovery_point=0)
    assert (again.start_offset, again.end_offset) == (0, 8)
    assert texts_of(again) == [(7, "a", "3")]


def test_the_last_batch_of_a_producer_survives_compaction_and_a_crash(tmp_path):
    log = a_log(tmp_path)
    for sequence in range(3):
        append(log, ("a", "1"), producer_id=7, producer_epoch=1, base_sequence=sequence)
    append(log, ("b", "1"))
    append(log, ("a", "2"))
    seal(log)
    compact(log, NOW)
    assert [batch.base_offset for batch in batches_of(log)] == [2, 3, 4]
    for name in os.listdir(tmp_path):
        if name.endswith(".snapshot"):
            os.unlink(tmp_path / name)

    again = a_log(tmp_path, recovery_point=0)

    producer = {"producer_id": 7, "producer_epoch": 1}
    assert append(again, ("a", "1"), base_sequence=2, **producer).is_duplicate
    with pytest.raises(OutOfOrderSequenceError):
        append(again, ("a", "1"), base_sequence=4, **producer)
    assert append(again, ("a", "1"), base_sequence=3, **producer).base_offset == 5
    (state,) = again.producer_states
    assert state.last_append_ms == NOW


def test_an_empty_batch_is_removed_after_a_newer_batch_of_its_producer(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"), producer_id=7, producer_epoch=1, base_sequence=0)
    append(log, ("a", "2"))
    seal(log)
    compact(log, NOW)
    assert [batch.record_count for batch in batches_of(log)] == [0, 1]
    append(log, ("b", "1"), producer_id=7, producer_epoch=1, base_sequence=1)
    seal(log)

    compact(log, NOW)

    assert [batch.base_offset for batch in batches_of(log)] == [1, 2]


def test_records_without_a_key_are_kept_and_counted(tmp_path):
    log = a_log(tmp_path, cleanup_policy="delete")
    append(log, (None, "1"), ("a", "1"), (None, None), ("a", "2"))
    seal(log)
    log.close()
    log = a_log(tmp_path, delete_retention_ms=0)

    stats = compact(log, NOW)
    append(log, ("b", "1"))
    seal(log)
    compact(log, NOW + 1)

    assert texts_of(log) == [(0, None, "1"), (2, None, None), (3, "a", "2"), (4, "b", "1")]
    assert stats.records_without_key == 2


def test_only_committed_transactional_records_stay_and_replace_others(tmp_path):
    log = a_log(tmp_path)
    fields = {"producer_epoch": 0, "transactional": True}
    append(log, ("a", "1"), ("b", "1"))
    append(log, ("a", "2"), producer_id=7, base_sequence=0, **fields)
    append(log, ("b", "2"), producer_id=8, base_sequence=0, **fields)
    append_marker(log, 7, ABORT)
    append_marker(log, 8, COMMIT)
    seal(log)

    compact(log, NOW)

    assert texts_of(log) == [(0, "a", "1"), (3, "b", "2")]
    assert [batch.is_control for batch in batches_of(log)] == [False, False, True, True]
    assert [batch.is_transactional for batch in batches_of(log)] == [False] + [True] * 3


def test_a_pass_ends_before_an_open_transaction(tmp_path):
    log = a_log(tmp_path, delete_retention_ms=0)
    append(log, ("a", "1"), ("c", "1"))
    append(log, ("a", None), producer_id=7, base_sequence=0, producer_epoch=0, transactional=True)
    append(log, ("c", "2"))
    seal(log)

    stats = compact(log, NOW)

    assert stats.first_dirty_offset == 2
    assert texts_of(log) == [(0, "a", "1"), (1, "c", "1"), (2, "a", None), (3, "c", "2")]

    append_marker(log, 7, COMMIT)
    seal(log)
    compact(log, NOW)

    assert texts_of(log) == [(2, "a", None), (3, "c", "2")]


def test_a_damaged_batch_is_kept_as_it_is_and_counted(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"))
    append(log, ("a", "2"))
    append(log, ("a", "3"))
    seal(log)
    size = log.segments[0].size // 3
    with log.segments[0].path(".log").open("r+b") as file:
        file.seek(size - 1)
        file.write(b"\x77")
        file.seek(0)
        damaged = file.read(size)

    stats = compact(log, NOW)

    assert stats.damaged_batches == 1
    assert stats.records_dropped == 1
    assert bytes(log.read(0, 1).view) == damaged
    assert records_of(log, 1)[0].offset == 2


def test_bytes_that_are_not_batches_end_the_pass_without_changes(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"))
    append(log, ("a", "2"))
    seal(log)
    with log.segments[0].path(".log").open("r+b") as file:
        file.seek(log.segments[0].size // 2 + 8)
        file.write(b"\x7f\xff\xff\xff")

    with pytest.raises(BatchError):
        compact(log, NOW)

    assert leftovers(tmp_path) == []
    assert log.offline_reason is None


def test_a_batch_with_an_extreme_timestamp_is_kept_as_it_is(tmp_path):
    log = a_log(tmp_path)
    extreme = [
        Record(0, -(2**62), b"k", b"1"),
        Record(1, NOW, b"a", b"1"),
        Record(2, 5, b"b", None),
    ]
    log.append(build_batch(extreme), leader_epoch=0, now_ms=NOW)
    append(log, ("a", "2"))
    seal(log)

    compact(log, NOW)

    assert records_of(log)[:3] == extreme


def test_a_damaged_cleaner_offset_makes_the_whole_log_dirty(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"))
    seal(log)
    compact(log, NOW)
    checkpoint = tmp_path / "compacted-offset"
    assert checkpoint.read_bytes() == b"1"

    for content in (b"", b"{", b'"x"', b"-3", b"99"):
        checkpoint.write_bytes(content)
        assert plan(log, NOW).first_dirty_offset == 0


def test_records_appended_after_a_truncation_are_dirty(tmp_path):
    log = a_log(tmp_path, delete_retention_ms=0)
    append(log, ("a", "1"))
    append(log, ("b", "1"))
    seal(log)
    compact(log, NOW)
    log.truncate(1)
    append(log, ("a", None))
    seal(log)

    for n in range(3):
        compact(log, NOW + n)
        append(log, ("x", "1"))
        seal(log)
        assert (0, "a", "1") not in texts_of(log)


def test_the_view_of_a_reader_stays_valid_during_compaction(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1" * 5000), ("b", "1"))
    append(log, ("a", "2"))
    seal(log)
    log_slice = log.read(0, 100_000)
    before = bytes(log_slice.view)

    compact(log, NOW)
    append(log, ("b", "2"))
    seal(log)
    compact(log, NOW)
    log_slice.load_into_page_cache()

    assert bytes(log_slice.view) == before
    assert log_slice.is_in_page_cache() in (True, False)
    assert len(log.read(0, 100_000).view) < len(before)


def test_appends_continue_during_a_rewrite(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"), ("a", "2"), ("b", "1"))
    seal(log)
    planned = plan(log, NOW)
    append(log, ("b", "2"), ("b", "3"))

    rewritten = rewrite(planned)
    seal(log)
    append(log, ("c", "1"))
    commit(log, rewritten)

    assert [offset for offset, _, _ in texts_of(log)] == [1, 2, 3, 4, 5]
    compact(log, NOW)
    assert [offset for offset, _, _ in texts_of(log)] == [1, 4, 5]


@pytest.mark.parametrize("when", ["before", "after"])
def test_segments_deleted_during_a_rewrite_stay_deleted(tmp_path, when):
    log = a_log(tmp_path)
    for n in range(4):
        append(log, ("a", str(n)), (f"b{n}", str(n)))
        seal(log)
    planned = plan(log, NOW)

    if when == "before":
        log.delete_records_before(4)
    rewritten = rewrite(planned)
    if when == "after":
        log.delete_records_before(4)
    stats = commit(log, rewritten)

    assert texts_of(log) == [(5, "b2", "2"), (6, "a", "3"), (7, "b3", "3")]
    assert stats.first_dirty_offset == 8
    assert leftovers(tmp_path) == []


def test_a_pass_is_abandoned_when_the_log_was_truncated(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1"))
    append(log, ("b", "1"))
    append(log, ("a", "2"))
    seal(log)
    rewritten = rewrite(plan(log, NOW))
    log.truncate(2)

    assert commit(log, rewritten) is None

    assert texts_of(log) == [(0, "a", "1"), (1, "b", "1")]
    assert leftovers(tmp_path) == []
    assert not (tmp_path / "compacted-offset").exists()


def test_a_commit_proceeds_segment_by_segment(tmp_path):
    log = a_log(tmp_path)
    for n in range(3):
        append(log, ("a", str(n)), (f"b{n}", "1"))
        seal(log)
    rewritten = rewrite(plan(log, NOW))
    sizes = []

    while commit_next_segment(log, rewritten):
        sizes.append(log.size)
        assert last_values(log) == {b"a": b"2", b"b0": b"1", b"b1": b"1", b"b2": b"1"}

    assert len(sizes) == len(set(sizes)) == 2


def test_a_rewrite_is_throttled_and_can_be_stopped(tmp_path):
    log = a_log(tmp_path)
    append(log, ("a", "1" * 1000))
    append(log, ("a", "2" * 1000))
    seal(log)
    planned = plan(log, NOW)

    started = time.monotonic()
    rewritten = rewrite(planned, bytes_per_second=log.size * 20)
    assert time.monotonic() - started > 0.1
    assert commit(log, rewritten) is not None

    append(log, ("a", "3"))
    seal(log)
    stop = threading.Event()
    threading.Timer(0.05, stop.set).start()
    with pytest.raises(CompactionStoppedError):
        rewrite(plan(log, NOW), bytes_per_second=1, stop=stop)
    assert leftovers(tmp_path) == []


class FailingDisk(Disk):
    """Fails after a number of directory changes, or all writes as a full disk."""

    def __init__(self):
        self.remaining_changes = None
        self.is_full = False

    def _change(self):
        if self.remaining_changes is not None:
            self.remaining_changes -= 1
            if self.remaining_changes < 0:
                raise OSError(5, "disk failed")

    def rename(self, source, target):
        self._change()
        super().rename(source, target)

    def unlink(self, path):
        self._change()
        super().unlink(path)

    def sync_directory(self, path):
        self._change()
        super().sync_directory(path)

    def write(self, fd, data, position):
        if self.is_full:
            raise OSError(28, "no space")
        return super().write(fd, data, position)


def a_log_to_compact(path, disk=None):
    """The first segment will be rewritten, the second removed, the third and fourth rewritten."""
    log = a_log(path, disk=disk, delete_retention_ms=0)
    append(log, ("a", "1"), ("b", "1"), ("dead", "1"))
    append(log, ("dead", None), ("first", "1"))
    seal(log)
    compact(log, NOW)
    append(log, ("a", "2"), ("b", "2"))
    seal(log)
    append(log, ("a", "3"), ("third", "1"), ("dying", "1"))
    seal(log)
    append(log, ("dying", None), ("b", "3"), ("a", "4"))
    append(log, ("b", "4"))
    seal(log)
    return log


LAST_VALUES = {b"a": b"4", b"b": b"4", b"first": b"1", b"third": b"1"}


def test_a_full_disk_ends_the_pass_and_the_log_stays_online(tmp_path):
    disk = FailingDisk()
    log = a_log_to_compact(tmp_path, disk)
    before = texts_of(log)

    disk.is_full = True
    with pytest.raises(OSError, match="no space"):
        compact(log, NOW + 1)
    disk.is_full = False

    assert texts_of(log) == before
    assert leftovers(tmp_path) == []
    append(log, ("z", "1"))
    assert compact(log, NOW + 1) is not None


@pytest.mark.exhaustive
def test_a_crash_at_any_step_of_a_commit_keeps_the_last_value_of_each_key(tmp_path):
    origin = tmp_path / "origin"
    log = a_log_to_compact(origin)
    end = log.end_offset
    old = texts_of(log)
    log.close()
    new = None
    for step in range(100):
        disk = FailingDisk()
        work = tmp_path / f"step{step}"
        shutil.copytree(origin, work)
        log = a_log(work, disk=disk, delete_retention_ms=0)
        rewritten = rewrite(plan(log, NOW + 1))
        disk.remaining_changes = step
        try:
            commit(log, rewritten)
            new = texts_of(log)
        except OSError:
            assert log.offline_reason is not None
        for point in (0, end // 2, end):
            copy = tmp_path / f"step{step}-{point}"
            shutil.copytree(work, copy)
            again = a_log(copy, recovery_point=point, delete_retention_ms=0)

            assert last_values(again) == LAST_VALUES
            assert again.end_offset == end
            assert set(texts_of(again)) <= set(old)
            assert leftovers(copy) == []
            for segment in again.segments[:-1]:
                assert segment.max_timestamp >= NOW

            compact(again, NOW + 1)
            append(again, ("more", "1"))
            seal(again)
            compact(again, NOW + 2)
            assert last_values(again) == {**LAST_VALUES, b"more": b"1"}
            assert texts_of(again)[-1] == (end, "more", "1")
            assert len(texts_of(again)) == 5
        if new is not None:
            break
    assert step > 15
    assert [offset for offset, _, _ in new] == [4, 8, 10, 12, 13]


def test_a_log_stays_online_without_space_for_the_cleaner_offset(tmp_path):
    disk = Disk()
    log = a_log_to_compact(tmp_path / "log")
    log.close()
    log = a_log(tmp_path / "log", disk=disk, delete_retention_ms=0)

    def replace_file(path, content, *, durable=True):
        raise OSError(errno.ENOSPC, "no space", str(path))

    rewritten = rewrite(plan(log, NOW + 1))
    disk.replace_file = replace_file
    with pytest.raises(OSError, match="no space"):
        commit(log, rewritten)
    del disk.replace_file

    assert log.offline_reason is None
    assert last_values(log) == LAST_VALUES
    assert compact(log, NOW + 1) is not None
    append(log, ("more", "1"))
    assert last_values(log) == {**LAST_VALUES, b"more": b"1"}


@pytest.mark.exhaustive
def test_a_log_is_readable_after_a_disk_error_during_a_commit(tmp_path):
    for step in range(100):
        disk = OnceFailingDisk()
        log = a_log_to_compact(tmp_path / str(step), disk)
        rewritten = rewrite(plan(log, NOW + 1))
        disk.remaining_changes = step
        try:
            commit(log, rewritten)
        except OSError:
            assert last_values(log) == LAST_VALUES
        else:
            break
    assert step > 15


class OnceFailingDisk(FailingDisk):
    def _change(self):
        try:
            super()._change()
        except OSError:
            self.remaining_changes = None
            raise


KEYS = st.sampled_from(["a", "b", "c", "d", "e"])
VALUES = st.one_of(st.none(), st.text("xyz", max_size=3))
STEPS = st.one_of(
    st.tuples(
        st.just("append"),
        st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=5),
        st.sampled_from([Compression.NONE, Compression.LZ4]),
    ),
    st.tuples(st.just("seal")),
    st.tuples(st.just("compact"), st.integers(1, 6)),
    st.tuples(st.just("wait"), st.integers(1, 2 * DAY_MS)),
    st.tuples(st.just("reopen"), st.sampled_from([None, 0, 1])),
)


@contextmanager
def a_directory():
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@given(st.lists(STEPS, max_size=40))
def test_any_sequence_of_operations_keeps_the_last_value_of_each_key(steps):
    values, written, now = {}, {}, NOW
    config = {"min_cleanable_dirty_ratio": 0.0, "index_interval_bytes": 1}
    with a_directory() as path:
        log = a_log(path, **config)
        for kind, *arguments in steps:
            match kind:
                case "append":
                    pairs, compression = arguments
                    base = append(log, *pairs, timestamp=now, now=now, compression=compression)
                    for index, (key, value) in enumerate(pairs):
                        values[key] = value
                        written[base.base_offset + index] = (key, value, now + index)
                case "seal":
                    seal(log)
                case "compact":
                    compact(log, now, max_keys=arguments[0])
                case "wait":
                    now += arguments[0]
                case "reopen":
                    (part,) = arguments
                    log.close()
                    point = None if part is None else log.end_offset * part
                    log = a_log(path, recovery_point=point, **config)

            stored = {}
            offsets = []
            for record in records_of(log):
                key = record.key.decode()
                value = None if record.value is None else record.value.decode()
                stored[key] = value
                offsets.append(record.offset)
                assert written[record.offset] == (key, value, record.timestamp)
            assert offsets == sorted(set(offsets))
            assert log.end_offset == len(written)
            present = {key: value for key, value in stored.items() if value is not None}
            assert present == {key: value for key, value in values.items() if value is not None}
        log.close()
