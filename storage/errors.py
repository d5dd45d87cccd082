"""Errors of storage.

    StorageError
    ├── OffsetOutOfRangeError      an offset outside the log
    ├── BatchTooLargeError         a batch over max.message.bytes or segment.bytes
    ├── InvalidTimestampError      a timestamp outside the range that the topic allows
    ├── KeylessRecordError         a record without a key in a compacted topic
    ├── SequenceError              an idempotent producer's batch that does not follow its last one
    │   ├── OutOfOrderSequenceError
    │   └── StaleProducerEpochError
    ├── LogOfflineError            the disk failed this log: no appends until it is opened again
    ├── CompactionStoppedError     a compaction was asked to stop
    └── DataDirectoryError         the data directory is locked, foreign, damaged or incompatible

A malformed batch raises `ottla.protocol.batch.BatchError`.
"""

from __future__ import annotations


class StorageError(Exception):
    """Something is wrong with a log, or with a request to it."""


class OffsetOutOfRangeError(StorageError):
    """An offset that is not in the log, or no longer."""

    def __init__(self, offset: int, start_offset: int, end_offset: int) -> None:
        self.offset = offset
        super().__init__(f"Offset {offset} is out of range {start_offset} to {end_offset}")


class BatchTooLargeError(StorageError):
    """A batch over max.message.bytes or segment.bytes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"Batch of {size} bytes is larger than the limit of {limit}")


class InvalidTimestampError(StorageError):
    """A timestamp outside the range that the topic allows."""


class KeylessRecordError(StorageError):
    """A record without a key in a compacted topic; `index` is its index in the batch."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(f"Record {index} has no key, which a compacted topic requires")


class SequenceError(StorageError):
    """A batch of an idempotent producer that does not follow its last known batch."""


class OutOfOrderSequenceError(SequenceError):
    """A sequence number is missing, or the batch is too old to be recognized as a duplicate."""


class StaleProducerEpochError(SequenceError):
    """The batch has an older epoch than the known one."""


class LogOfflineError(StorageError):
    """The disk failed this log: it accepts no appends until it is opened again."""


class CompactionStoppedError(StorageError):
    """A compaction was asked to stop; it has removed the files it wrote."""


class DataDirectoryError(StorageError):
    """The data directory is locked, foreign, damaged, or has another format version."""
