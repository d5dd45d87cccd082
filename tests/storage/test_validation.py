"""What producers wrote into batch headers deletes nothing, and every invalid record is listed."""

import os
import shutil

import pytest

from harness.logs import NOW, NoSyncDisk, a_batch, a_log
from harness.raw_batches import raw_batch, raw_record
from ottla.protocol.batch import RecordBatch, split_batches
from ottla.storage.config import LogConfig
from ottla.storage.errors import InvalidTimestampError, KeylessRecordError
from ottla.storage.files import OpenFiles
from ottla.storage.log import VALIDATED_FROM_FILE
from ottla.storage.recovery import open_log
from ottla.storage.validation import split

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
CONFIG = {"retention_ms": HOUR_MS, "segment_bytes": 2000}
#: As librdkafka sends records without timestamps: -1, below a max timestamp of 0 in the header.
WITHOUT_TIMESTAMPS = raw_batch(
    raw_record(-1) + raw_record(-1, 1), 2, base_timestamp=0, max_timestamp=0
)


def append(log, batch, now_ms=NOW):
    return log.append(batch, leader_epoch=0, now_ms=now_ms)


def append_unvalidated(log, batch, now_ms=NOW):
    view = memoryview(bytearray(batch))
    log.append_batches(view, split(view), leader_epoch=0, now_ms=now_ms, is_validated=False)


def stored(log):
    return list(split_batches(bytes(log.read(log.start_offset, 10**6).view)))


def reopened(log, **options):
    return open_log(log.directory, log.config, OpenFiles(NoSyncDisk()), **options)[0]


# Headers.


@pytest.mark.parametrize("claimed", [0, -1, 5, NOW - DAY_MS, NOW + 10**12, -(2**63), 2**63 - 1])
def test_a_wrong_max_timestamp_is_corrected_and_decides_nothing(tmp_path, claimed):
    log = a_log(tmp_path, **CONFIG)
    payload = raw_record() + raw_record(7, 1)

    append(log, raw_batch(payload, 2, max_timestamp=claimed))

    (batch,) = stored(log)
    batch.validate()
    assert batch.max_timestamp == NOW + 7
    assert log.apply_retention(NOW + HOUR_MS) == 0
    assert log.offset_for_timestamp(NOW + 1) == (1, NOW + 7)
    assert log.apply_retention(NOW + HOUR_MS + 8) == 1


def test_records_without_timestamps_are_kept_for_retention_ms_after_their_append(tmp_path):
    log = a_log(tmp_path, **CONFIG)
    append(log, WITHOUT_TIMESTAMPS)

    assert stored(log)[0].max_timestamp == -1
    assert log.apply_retention(NOW + HOUR_MS) == 0
    assert log.end_offset - log.start_offset == 2

    assert log.apply_retention(NOW + HOUR_MS + 1) == 1


def test_after_a_restart_records_without_timestamps_are_as_old_as_their_file(tmp_path):
    log = a_log(tmp_path, **CONFIG)
    append(log, WITHOUT_TIMESTAMPS)
    log.roll()
    append(log, a_batch(time=NOW + 5))
    log.close()
    os.utime(log.segments[0].path(".log"), (NOW / 1000, NOW / 1000))

    log = reopened(log)

    assert log.apply_retention(NOW + HOUR_MS) == 0
    assert log.apply_retention(NOW + HOUR_MS + 1) == 1


def test_validated_old_timestamps_still_delete_at_once(tmp_path):
    log = a_log(tmp_path, **CONFIG)
    append(log, a_batch(time=NOW - DAY_MS))

    assert log.apply_retention(NOW) == 1


@pytest.mark.parametrize("restarts", [False, True])
def test_without_validation_retention_goes_by_the_time_of_the_append(tmp_path, restarts):
    log = a_log(tmp_path, **CONFIG)
    append_unvalidated(log, raw_batch(raw_record(), max_timestamp=0))
    log.roll()
    append_unvalidated(log, raw_batch(raw_record(), max_timestamp=NOW + 10**12), NOW + 1)
    if restarts:
        log.close()
        for number, segment in enumerate(log.segments):
            os.utime(segment.path(".log"), ((NOW + number) / 1000,) * 2)
        log = reopened(log)

    assert log.apply_retention(NOW + HOUR_MS) == 0
    assert log.apply_retention(NOW + HOUR_MS + 1) == 1
    assert log.apply_retention(NOW + HOUR_MS + 2) == 1


def test_segments_from_before_validation_go_by_the_time_of_the_append(tmp_path):
    log = a_log(tmp_path, **CONFIG)
    append_unvalidated(log, a_batch(time=5))
    append(log, a_batch(time=6))
    assert log.validated_from == 1
    log.roll()
    append(log, a_batch(time=7))
    log.roll()

    assert log.newest_record_ms(log.segments[0]) == NOW, "it has a batch that was not validated"
    assert log.newest_record_ms(log.segments[1]) == 7
    log.close()
    assert reopened(log).validated_from == 1


def test_an_append_without_validation_ends_the_trust_in_headers(tmp_path):
    log = a_log(tmp_path, **CONFIG)
    append(log, a_batch(time=5))
    assert (log.directory / VALIDATED_FROM_FILE).read_text() == "0"

    append_unvalidated(log, a_batch(time=6))

    assert log.newest_record_ms(log.segments[0]) == NOW
    log.close()
    assert reopened(log).validated_from is None


@pytest.mark.parametrize("content", [b"", b"x", b"[1]", b'"0"', b"null"])
def test_a_damaged_record_of_validation_counts_as_none(tmp_path, content):
    log = a_log(tmp_path, **CONFIG)
    append(log, a_batch())
    log.close()
    (log.directory / VALIDATED_FROM_FILE).write_bytes(content)

    assert reopened(log).validated_from is None


def test_min_compaction_lag_does_not_go_by_unvalidated_headers(tmp_path):
    log = a_log(tmp_path, cleanup_policy="compact", min_compaction_lag_ms=HOUR_MS)
    append_unvalidated(log, raw_batch(raw_record(), max_timestamp=0))

    assert log.newest_record_ms(log.active_segment) == NOW


# Rejected records.


def test_every_record_without_a_key_is_named(tmp_path):
    log = a_log(tmp_path, cleanup_policy="compact")
    keys = [b"a", None, b"b", None, None]
    payload = b"".join(raw_record(0, n, key) for n, key in enumerate(keys))

    with pytest.raises(KeylessRecordError, match="3 records") as caught:
        append(log, raw_batch(payload, 5))

    assert list(caught.value.record_errors) == [1, 3, 4]
    assert log.end_offset == 0


def test_every_timestamp_out_of_range_is_named_beside_records_without_keys(tmp_path):
    log = a_log(tmp_path, cleanup_policy="compact", message_timestamp_after_max_ms=10)
    payload = raw_record(11, 0) + raw_record(10, 1) + raw_record(0, 2, None) + raw_record(2**62, 3)

    with pytest.raises(InvalidTimestampError) as caught:
        append(log, raw_batch(payload, 4))

    assert sorted(caught.value.record_errors) == [0, 2, 3]


@pytest.mark.parametrize(
    ("base", "delta"), [(NOW, 2**63 - 1), (2**63 - 1, 1), (-(2**63), -5), (-(2**63), 0)]
)
def test_a_timestamp_beyond_64_bits_is_rejected(tmp_path, base, delta):
    log = a_log(tmp_path)
    for limit in (0, 2**63 - 1):
        log.set_config(LogConfig(message_timestamp_after_max_ms=limit))

        with pytest.raises(InvalidTimestampError):
            append(log, raw_batch(raw_record(delta), base_timestamp=base))


@pytest.mark.parametrize("timestamp_type", ["CreateTime", "LogAppendTime"])
def test_a_producer_cannot_set_the_timestamp_type(tmp_path, timestamp_type):
    log = a_log(tmp_path, message_timestamp_type=timestamp_type)
    payload = raw_record() + raw_record(0, 1)

    with pytest.raises(InvalidTimestampError) as caught:
        append(log, raw_batch(payload, 2, attributes=0x08, max_timestamp=2**62))

    assert list(caught.value.record_errors) == [0, 1]


def test_log_append_time_replaces_any_timestamp(tmp_path):
    log = a_log(tmp_path, message_timestamp_type="LogAppendTime")

    append(log, raw_batch(raw_record(2**63 - 1), max_timestamp=5))

    assert [record.timestamp for record in stored(log)[0].records()] == [NOW]
    assert log.offset_for_timestamp(NOW - 5) == (0, NOW)


# Searches by timestamp in what was stored without validation.


def test_a_search_ends_at_a_batch_that_cannot_be_decoded(tmp_path):
    log = a_log(tmp_path)
    append(log, a_batch(time=NOW - 10))
    append_unvalidated(log, raw_batch(b"garbage! garbage!", max_timestamp=NOW + 5))
    append(log, a_batch(time=NOW + 5))

    assert log.offset_for_timestamp(NOW - 10) == (0, NOW - 10)
    assert log.offset_for_timestamp(NOW) == (1, NOW + 5)


def test_a_search_passes_over_some_false_headers_and_then_settles(tmp_path):
    log = a_log(tmp_path, segment_bytes=100_000)
    for _ in range(3):
        append_unvalidated(log, raw_batch(raw_record(), max_timestamp=NOW + 5))
    append(log, a_batch(time=NOW + 5))
    assert log.offset_for_timestamp(NOW + 1) == (3, NOW + 5)

    for _ in range(20):
        append_unvalidated(log, raw_batch(raw_record(), max_timestamp=NOW + 9))
    append(log, a_batch(time=NOW + 9))

    assert log.offset_for_timestamp(NOW + 6) == (20, NOW + 9), "after 16 false headers"


def test_a_stored_timestamp_beyond_64_bits_is_not_found(tmp_path):
    log = a_log(tmp_path)
    append_unvalidated(log, raw_batch(raw_record(2**63 - 1), max_timestamp=NOW + 5))
    append(log, a_batch(time=NOW + 5))

    assert log.offset_for_timestamp(NOW) == (1, NOW + 5)
    assert log.offset_for_max_timestamp() == (1, NOW + 5)


# Idempotent producers.


def of_producer(sequence, time):
    return a_batch(time=time, producer_id=7, producer_epoch=0, base_sequence=sequence)


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_producer_of_old_records_does_not_expire_after_a_crash(tmp_path, snapshot):
    """It backfills records of two days ago; then the broker is killed."""
    log = a_log(tmp_path, segment_bytes=10**6)
    old = NOW - 2 * DAY_MS
    append(log, of_producer(0, old))
    if snapshot:
        log.roll()
    append(log, of_producer(1, old))
    log.flush()
    for path in log.directory.glob("*.log"):
        os.utime(path, (NOW / 1000, NOW / 1000))
    shutil.copytree(log.directory, tmp_path / "copy" / "t-0")
    crashed = tmp_path / "copy" / "t-0"

    recovered, _ = open_log(crashed, log.config, OpenFiles(NoSyncDisk()), recovery_point=0)
    recovered.producer_states.expire(NOW + DAY_MS - 1, DAY_MS)

    again = append(recovered, of_producer(1, old))
    assert again.is_duplicate
    assert again.base_offset == 1
    recovered.producer_states.expire(NOW + 10 * DAY_MS, DAY_MS)
    assert len(recovered.producer_states) == 0


def test_recovery_does_not_change_the_time_of_the_last_append(tmp_path):
    log = a_log(tmp_path)
    append(log, of_producer(0, NOW))
    log.flush()
    path = log.active_segment.path(".log")
    for _ in range(2):
        os.utime(path, (NOW / 1000, NOW / 1000))
        log = reopened(log, recovery_point=0)

        assert log.active_segment.last_append_time() == NOW
        assert path.stat().st_mtime == pytest.approx(NOW / 1000, abs=0.002)


def test_a_batch_is_a_view_that_can_be_corrected():
    batch = RecordBatch(raw_batch(raw_record(), max_timestamp=1))

    batch.set_max_timestamp(NOW)

    batch.validate()
    assert RecordBatch(batch.view).max_timestamp == NOW
