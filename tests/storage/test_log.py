"""A partition's log: appends, reads, rolls, timestamps, truncation, retention."""

import gc
import os

import pytest

from harness.logs import NOW, a_batch, a_log, append, offsets
from ottla.protocol.batch import BatchError, Record, RecordBatch, build_batch, split_batches
from ottla.storage.config import LogConfig
from ottla.storage.errors import (
    BatchTooLargeError,
    InvalidTimestampError,
    KeylessRecordError,
    LogOfflineError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    SequenceError,
)
from ottla.storage.files import OpenFiles
from ottla.storage.recovery import open_log


def reopened(log):
    log.close()
    return open_log(log.directory, log.config, OpenFiles())[0]


def test_appends_assign_offsets_and_leave_the_records_as_they_are(tmp_path):
    log = a_log(tmp_path)

    first = log.append(a_batch(3), leader_epoch=4, now_ms=NOW)
    second = log.append(a_batch(2), leader_epoch=4, now_ms=NOW)

    assert (first.base_offset, first.last_offset) == (0, 2)
    assert (second.base_offset, second.last_offset) == (3, 4)
    stored = list(split_batches(bytes(log.read(0, 10_000).view)))
    assert [batch.partition_leader_epoch for batch in stored] == [4, 4]
    assert [record.value for record in stored[1].records()] == [b"value"] * 2
    assert bytes(stored[0].view)[21:] == bytes(a_batch(3))[21:]
    assert log.leader_epochs.current == 4


def test_several_batches_are_appended_together(tmp_path):
    log = a_log(tmp_path)

    result = log.append(a_batch(3) + a_batch(2), leader_epoch=0, now_ms=NOW)

    assert (result.base_offset, result.last_offset) == (0, 4)
    assert offsets(log) == [0, 1, 2, 3, 4]


def test_a_read_only_batch_is_copied(tmp_path):
    log = a_log(tmp_path)
    append(log, 3)
    data = bytes(a_batch(2))

    log.append(data, leader_epoch=0, now_ms=NOW)

    assert offsets(log) == [0, 1, 2, 3, 4]
    assert RecordBatch(data).base_offset == 0


def test_a_read_returns_whole_batches_and_at_least_one(tmp_path):
    log = a_log(tmp_path)
    append(log, 4, times=5)
    size = len(a_batch(4))

    assert len(log.read(0, 1).view) == size
    assert len(log.read(6, 1).view) == size
    assert RecordBatch(bytes(log.read(6, 1).view)).base_offset == 4
    assert len(log.read(0, 2 * size).view) == 2 * size
    assert len(log.read(0, 3 * size - 1).view) == 2 * size
    assert len(log.read(20, 1000).view) == 0


@pytest.mark.parametrize("index_interval_bytes", [1, 150, 10_000])
def test_a_read_returns_as_many_batches_as_max_bytes_allows(tmp_path, index_interval_bytes):
    log = a_log(tmp_path, segment_bytes=1024, index_interval_bytes=index_interval_bytes)
    batches = []
    for count in (1, 4, 2, 1, 6, 3, 1, 1, 5, 2):
        appended = append(log, count)
        batches.append((appended, len(a_batch(count)), log.active_segment))

    for at, (first, size, segment) in enumerate(batches):
        for end in [appended.last_offset + 1 for appended, _size, _segment in batches[at:]]:
            for max_bytes in (1, size, size + 1, 200, 250, 333, 400, 512, 700, 5000):
                expected = size
                for following, more, of in batches[at + 1 :]:
                    if (
                        following.base_offset >= end
                        or expected + more > max_bytes
                        or of is not segment
                    ):
                        break
                    expected += more
                for offset in (first.base_offset, first.last_offset):
                    assert len(log.read(offset, max_bytes, end).view) == expected


def test_a_read_stops_at_end_offset(tmp_path):
    log = a_log(tmp_path)
    append(log, 4, times=5)

    assert RecordBatch(bytes(log.read(0, 10_000, end_offset=4).view)).last_offset == 3
    assert len(log.read(0, 10_000, end_offset=12).view) == 3 * len(a_batch(4))
    assert len(log.read(4, 10_000, end_offset=4).view) == 0


@pytest.mark.parametrize("offset", [-1, 21])
def test_a_read_outside_the_log_is_out_of_range(tmp_path, offset):
    log = a_log(tmp_path)
    append(log, 4, times=5)

    with pytest.raises(OffsetOutOfRangeError, match=f"Offset {offset} is out of range 0 to 20"):
        log.read(offset, 100)


def test_segments_roll_by_size_and_are_named_after_their_base_offset(tmp_path):
    log = a_log(tmp_path)

    append(log, 2, times=60, value=b"x" * 100)

    names = sorted(path.name for path in log.directory.glob("*.log"))
    assert names == [f"{segment.base_offset:020d}.log" for segment in log.segments]
    assert len(names) > 5
    assert all(segment.size <= 2000 for segment in log.segments)
    for start in range(120):
        assert offsets(log, start) == list(range(start, 120))


def test_segments_roll_by_age(tmp_path):
    log = a_log(tmp_path, segment_ms=1000)

    log.append(a_batch(), leader_epoch=0, now_ms=NOW)
    log.append(a_batch(), leader_epoch=0, now_ms=NOW + 1000)
    log.append(a_batch(), leader_epoch=0, now_ms=NOW + 1001)

    assert [segment.base_offset for segment in log.segments] == [0, 2]


def test_jitter_rolls_the_segments_of_each_log_at_a_time_of_its_own(tmp_path):
    ages = set()
    config = LogConfig(segment_ms=1000, segment_jitter_ms=500)
    for name in "abcdef":
        log, _report = open_log(tmp_path / f"{name}-0", config, OpenFiles())
        for age in range(0, 1001, 10):
            log.append(a_batch(), leader_epoch=0, now_ms=NOW + age)
            if len(log.segments) > 1:
                ages.add(age)
                break

    assert len(ages) > 3
    assert all(500 <= age <= 1000 for age in ages)


def test_a_preallocated_segment_has_its_full_size_until_it_is_sealed(tmp_path):
    log = a_log(tmp_path, segment_bytes=10_000_000, preallocate=True)

    append(log)

    first = log.active_segment.path(".log")
    assert first.stat().st_size == 10_000_000
    log.roll()
    assert first.stat().st_size == log.segments[0].size


def test_segments_roll_when_an_index_is_full(tmp_path):
    log = a_log(tmp_path, segment_bytes=100_000, segment_index_bytes=48, index_interval_bytes=1)

    for n in range(20):
        log.append(a_batch(time=NOW + n), leader_epoch=0, now_ms=NOW)

    assert len(log.segments) > 3
    assert offsets(log) == list(range(20))


def test_records_are_found_by_timestamp(tmp_path):
    log = a_log(tmp_path)
    for n in range(50):
        log.append(a_batch(2, time=NOW + n * 10), leader_epoch=0, now_ms=NOW)

    for n in range(50):
        assert log.offset_for_timestamp(NOW + n * 10) == (2 * n, NOW + n * 10)
        assert log.offset_for_timestamp(NOW + n * 10 + 1) == (2 * n + 1, NOW + n * 10 + 1)
    assert log.offset_for_timestamp(NOW + 492) is None
    assert log.offset_for_timestamp(-5) == (0, NOW)
    assert log.offset_for_max_timestamp() == (99, NOW + 491)


def test_timestamps_need_not_increase(tmp_path):
    log = a_log(tmp_path)
    times = [5, 3, 9, 1, 9, 2, 0, 7] * 6
    for time in times:
        log.append(a_batch(time=NOW + time * 10), leader_epoch=0, now_ms=NOW)

    for earliest in range(10):
        expected = next(n for n, time in enumerate(times) if time >= earliest)
        assert log.offset_for_timestamp(NOW + earliest * 10).offset == expected
    assert log.offset_for_max_timestamp().offset == 2


def test_without_timestamps_the_first_record_has_the_largest(tmp_path):
    log = a_log(tmp_path)
    for _ in range(3):
        log.append(a_batch(time=-1), leader_epoch=0, now_ms=NOW)
    log.delete_records_before(1)

    assert log.offset_for_max_timestamp() == (1, -1)


def test_an_empty_log_has_no_timestamps(tmp_path):
    log = a_log(tmp_path)

    assert log.offset_for_max_timestamp() is None
    assert log.offset_for_timestamp(0) is None
    assert len(log.read(0, 100).view) == 0


def test_log_append_time_is_written_into_the_batch(tmp_path):
    log = a_log(tmp_path, message_timestamp_type="LogAppendTime")

    result = log.append(a_batch(2, time=5), leader_epoch=0, now_ms=NOW + 77)

    assert result.append_time_ms == NOW + 77
    batch = RecordBatch(bytes(log.read(0, 100).view))
    batch.validate()
    assert {record.timestamp for record in batch.records()} == {NOW + 77}


@pytest.mark.parametrize(
    ("config", "data", "error"),
    [
        ({"max_message_bytes": 80}, a_batch(2), BatchTooLargeError),
        ({"segment_bytes": 1024}, a_batch(value=b"x" * 1024), BatchTooLargeError),
        ({"message_timestamp_after_max_ms": 10}, a_batch(time=NOW + 11), InvalidTimestampError),
        ({"message_timestamp_before_max_ms": 10}, a_batch(time=NOW - 11), InvalidTimestampError),
        (
            {"cleanup_policy": "compact"},
            build_batch([Record(0, NOW, None, b"v")]),
            KeylessRecordError,
        ),
        ({}, a_batch()[:-1], BatchError),
        ({}, a_batch() + b"x", BatchError),
        ({}, b"", BatchError),
        ({}, a_batch() + a_batch(control=True), BatchError),
    ],
)
def test_a_rejected_append_leaves_no_trace(tmp_path, config, data, error):
    log = a_log(tmp_path, **config)
    append(log)

    with pytest.raises(error):
        log.append(data, leader_epoch=0, now_ms=NOW)

    assert log.end_offset == 1
    append(log)
    assert offsets(log) == [0, 1]


def test_a_duplicate_batch_is_not_appended_again(tmp_path):
    log = a_log(tmp_path)
    producer = {"producer_id": 9, "producer_epoch": 0}
    first = append(log, 2, base_sequence=0, **producer)
    append(log, 2, base_sequence=2, **producer)

    again = append(log, 2, base_sequence=0, **producer)

    assert again.is_duplicate
    assert (again.base_offset, again.last_offset) == (first.base_offset, first.last_offset)
    assert log.end_offset == 4
    with pytest.raises(OutOfOrderSequenceError):
        append(log, 2, base_sequence=5, **producer)
    with pytest.raises(SequenceError, match="send one at a time"):
        log.append(a_batch(base_sequence=4, **producer) * 2, leader_epoch=0, now_ms=NOW)


def test_producer_states_survive_a_restart(tmp_path):
    log = a_log(tmp_path)
    producer = {"producer_id": 9, "producer_epoch": 0}
    append(log, 2, base_sequence=0, **producer)

    log = reopened(log)

    assert append(log, 2, base_sequence=0, **producer).is_duplicate
    assert append(log, 2, base_sequence=2, **producer).base_offset == 2


def test_a_log_is_unchanged_by_a_clean_restart_and_accepts_appends(tmp_path):
    log = a_log(tmp_path)
    append(log, 2, times=60, value=b"x" * 100)

    log = reopened(log)

    assert offsets(log) == list(range(120))
    assert append(log).base_offset == 120
    assert log.offset_for_timestamp(NOW) == (0, NOW)
    assert offsets(reopened(log)) == list(range(121))


def test_truncation_removes_whole_batches_from_the_offset_on(tmp_path):
    log = a_log(tmp_path)
    append(log, 4, times=30, value=b"x" * 50)

    log.truncate(50)

    assert log.end_offset == 48
    assert offsets(log) == list(range(48))
    assert append(log).base_offset == 48
    log.truncate(1000)
    assert log.end_offset == 49
    log.truncate(0)
    assert log.end_offset == 0
    assert offsets(reopened(log)) == []


def test_truncation_forgets_the_producer_states_of_removed_batches(tmp_path):
    log = a_log(tmp_path)
    for sequence in range(20):
        producer = {"producer_id": 9, "producer_epoch": 0, "base_sequence": sequence}
        append(log, value=b"x" * 300, **producer)

    log.truncate(3)
    for sequence in range(3, 20):
        producer = {"producer_id": 9, "producer_epoch": 0, "base_sequence": sequence}
        assert not append(log, value=b"y" * 300, **producer).is_duplicate

    assert offsets(reopened(log)) == list(range(20))


def test_deleting_records_advances_the_log_start_offset_for_good(tmp_path):
    log = a_log(tmp_path)
    append(log, 2, times=60, value=b"x" * 100)
    before = len(log.segments)

    log.delete_records_before(51)

    assert len(log.segments) < before
    assert offsets(log) == list(range(51, 120))
    with pytest.raises(OffsetOutOfRangeError):
        log.read(50, 100)
    log = reopened(log)
    assert log.start_offset == 51
    log.delete_records_before(120)
    assert offsets(log) == []
    assert append(log).base_offset == 120
    with pytest.raises(OffsetOutOfRangeError):
        log.delete_records_before(122)


def test_retention_by_time_deletes_segments_and_advances_the_log_start_offset(tmp_path):
    log = a_log(tmp_path, retention_ms=1000, segment_bytes=1024)
    for n in range(40):
        log.append(a_batch(time=NOW + n * 100, value=b"x" * 100), leader_epoch=0, now_ms=NOW)

    dropped = log.apply_retention(NOW + 39 * 100)

    assert dropped > 0
    assert log.start_offset == log.segments[0].base_offset
    assert all(segment.max_timestamp >= NOW + 29 * 100 for segment in log.segments)
    assert offsets(log) == list(range(log.start_offset, 40))
    log.apply_retention(NOW + 10**9)
    assert (log.start_offset, log.end_offset) == (40, 40)
    assert append(log).base_offset == 40


def test_retention_by_size_deletes_the_oldest_segments(tmp_path):
    log = a_log(tmp_path, retention_ms=-1, retention_bytes=4000)
    append(log, times=100, value=b"x" * 100)

    log.apply_retention(NOW)

    assert 4000 <= log.size < 4000 + 2000
    assert offsets(log) == list(range(log.start_offset, 100))


def test_the_view_of_a_slow_reader_stays_valid_when_its_segment_is_deleted(tmp_path):
    log = a_log(tmp_path)
    append(log, 2, times=60, value=b"x" * 100)
    slices = [log.read(offset, 1500) for offset in (0, 30, 60, 118)]
    copies = [bytes(log_slice.view) for log_slice in slices]

    log.delete_records_before(59)
    log.truncate(61)
    append(log, times=30)
    log.roll()

    assert [bytes(log_slice.view) for log_slice in slices] == copies
    assert log.purge_deleted_segments() > 0
    assert list(log.directory.glob("*.deleted"))
    slices.clear()
    gc.collect()
    assert log.purge_deleted_segments() == 0
    assert not list(log.directory.glob("*.deleted"))


def test_the_number_of_open_files_is_limited(tmp_path):
    files = OpenFiles(limit=5)
    log = a_log(tmp_path, files=files, segment_bytes=1024)
    append(log, times=200, value=b"x" * 400)
    log.flush()

    assert len(log.segments) > 50
    for offset in range(0, 200, 3):
        log.read(offset, 500)
    assert len(files) <= 5 + 1
    assert offsets(log) == list(range(200))


def test_a_slice_can_be_loaded_into_the_page_cache(tmp_path):
    log = a_log(tmp_path, segment_bytes=1 << 20, max_message_bytes=1 << 20)
    append(log, value=b"x" * 500_000)
    log_slice = log.read(0, 1)

    log_slice.load_into_page_cache()

    assert log_slice.is_in_page_cache()


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="requires posix_fadvise")
def test_what_was_never_flushed_may_not_be_in_the_page_cache(tmp_path):
    """The system writes it back and evicts it without being asked to."""
    log = a_log(tmp_path, segment_bytes=1 << 20, max_message_bytes=1 << 20)
    append(log, value=b"x" * 500_000)
    with open(log.active_segment.path(".log"), "rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        if log.disk.is_cached(file.fileno(), 250_000):
            pytest.skip("the pages stay in the cache here")

    assert not log.read(0, 1).is_in_page_cache()


def test_an_offline_log_rejects_appends_and_still_serves_reads(tmp_path):
    log = a_log(tmp_path)
    append(log, times=3)

    log.fail(OSError(5, "gone"))

    with pytest.raises(LogOfflineError, match="gone"):
        append(log)
    with pytest.raises(LogOfflineError):
        log.flush()
    assert offsets(log) == [0, 1, 2]


def test_flushes_are_due_by_flush_messages_and_flush_ms(tmp_path):
    log = a_log(tmp_path, flush_messages=3, flush_ms=1000)
    log.last_flush_ms = NOW

    assert not log.is_flush_due(NOW + 5000)
    append(log, 2)
    assert not log.is_flush_due(NOW)
    assert log.is_flush_due(NOW + 1000)
    append(log)
    assert log.is_flush_due(NOW)
    log.flush()
    assert not log.is_flush_due(NOW)
    assert log.recovery_point == 3


def test_the_config_can_change_while_a_log_is_open(tmp_path):
    log = a_log(tmp_path)
    append(log)

    log.set_config(LogConfig(max_message_bytes=10))

    with pytest.raises(BatchTooLargeError):
        append(log)
