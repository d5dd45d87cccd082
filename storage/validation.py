"""Validation of produced batches: what may be appended to a log.

The functions depend on a batch, a config and the time only. `validate_records` decompresses, so it
may be called in a thread, before the append. Where the header's max timestamp is not that of the
records, it is corrected in the batch: indexes and retention then rely on headers.
"""

from __future__ import annotations

from ottla.protocol.batch import MAX_DECOMPRESSED_BYTES, RecordBatch
from ottla.protocol.validation import INT64_MAX, MAX_LISTED_RECORDS, validate_batch

from .config import LogConfig
from .disk import Buffer
from .errors import BatchTooLargeError, InvalidTimestampError, KeylessRecordError

_NO_KEY = "A compacted topic cannot accept a record without a key"
_OUT_OF_RANGE = "The timestamp is out of range"
_APPEND_TIME = "A producer cannot set the timestamp type to LogAppendTime"


def split(data: Buffer) -> list[RecordBatch]:
    """Return the batches in a buffer, nearly always one. Raises BatchError for anything else."""
    view = memoryview(data)
    batch = RecordBatch(view)
    batches = [batch]
    end = batch.size
    while end < len(view):
        batch = RecordBatch(view[end:])
        batches.append(batch)
        end += batch.size
    return batches


def validate_header(batch: RecordBatch, config: LogConfig) -> None:
    """Check a produced batch as a whole, without its timestamps and records.

    Raises BatchError, BatchTooLargeError and InvalidTimestampError.
    """
    batch.validate_produced()
    if batch.size > config.max_message_bytes:
        raise BatchTooLargeError(batch.size, config.max_message_bytes)
    if batch.size > config.segment_bytes:
        raise BatchTooLargeError(batch.size, config.segment_bytes)
    if batch.has_append_time:
        indexes = range(min(batch.record_count, MAX_LISTED_RECORDS))
        raise InvalidTimestampError(_APPEND_TIME, dict.fromkeys(indexes, _APPEND_TIME))


def validate_header_timestamp(batch: RecordBatch, config: LogConfig, now_ms: int) -> None:
    """Check the max timestamp in the header, where records are not validated.

    Raises InvalidTimestampError.
    """
    permitted = _permitted_timestamps(config, now_ms)
    timestamp = batch.max_timestamp
    if permitted is not None and not permitted[0] <= timestamp <= permitted[1] and timestamp != -1:
        raise _out_of_range(permitted, {})


def validate_records(
    batch: RecordBatch,
    config: LogConfig,
    now_ms: int,
    max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES,
) -> None:
    """Check the records of a batch whose header is valid, and correct its max timestamp.

    Raises BatchError, InvalidTimestampError and KeylessRecordError.
    """
    permitted = _permitted_timestamps(config, now_ms)
    validated = validate_batch(
        batch, permitted, requires_keys=config.compacts, max_bytes=max_decompressed_bytes
    )
    if validated.invalid_count:
        record_errors = dict.fromkeys(validated.without_key, _NO_KEY)
        record_errors.update(dict.fromkeys(validated.out_of_range, _OUT_OF_RANGE))
        if permitted is not None and validated.out_of_range:
            raise _out_of_range(permitted, record_errors)
        raise KeylessRecordError(validated.invalid_count, record_errors)
    if permitted is not None and batch.max_timestamp != validated.max_timestamp:
        batch.set_max_timestamp(validated.max_timestamp)


def _permitted_timestamps(config: LogConfig, now_ms: int) -> tuple[int, int] | None:
    """Return the earliest and the latest permitted timestamp; None with LogAppendTime."""
    if config.message_timestamp_type == "LogAppendTime":
        return None
    latest = now_ms + config.message_timestamp_after_max_ms
    # The default of both is the largest 64-bit number.
    return now_ms - config.message_timestamp_before_max_ms, min(latest, INT64_MAX)


def _out_of_range(
    permitted: tuple[int, int], record_errors: dict[int, str]
) -> InvalidTimestampError:
    return InvalidTimestampError(
        f"Timestamps must be from {permitted[0]} to {permitted[1]}, by"
        " message.timestamp.before.max.ms and message.timestamp.after.max.ms",
        record_errors,
    )
