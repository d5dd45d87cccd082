"""Errors of storage.

    StorageError
    ├── OffsetOutOfRangeError      an offset outside the log
    ├── BatchTooLargeError         a batch over max.message.bytes or segment.bytes
    ├── InvalidRecordsError        well-formed records that the topic does not accept
    │   ├── InvalidTimestampError  timestamps outside the range that the topic allows
    │   └── KeylessRecordError     records without a key in a compacted topic
    ├── SequenceError              an idempotent producer's batch that does not follow its last one
    │   ├── OutOfOrderSequenceError
    │   └── InvalidProducerEpochError
    ├── InvalidTxnStateError       a batch outside the transaction that its producer has open
    ├── TransactionCoordinatorFencedError  a marker of an older transaction coordinator
    ├── DivergedBatchError         a fetched batch that does not follow the log of a follower
    ├── LogOfflineError            the disk failed this log: no appends until it is opened again
    ├── CompactionStoppedError     a compaction was asked to stop
    └── DataDirectoryError         the data directory is locked, foreign, damaged or incompatible

A malformed batch raises `ottla.protocol.batch.BatchError`.
"""

from __future__ import annotations

from collections.abc import Mapping


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


class InvalidRecordsError(StorageError):
    """Well-formed records that the topic does not accept.

    `record_errors` has a message for each of them, by its index in the batch, up to a limit. It is
    empty if the batch as a whole is not accepted.
    """

    def __init__(self, message: str, record_errors: Mapping[int, str]) -> None:
        self.record_errors = record_errors
        super().__init__(message)


class InvalidTimestampError(InvalidRecordsError):
    """Timestamps outside the range that the topic allows."""


class KeylessRecordError(InvalidRecordsError):
    """Records without a key in a compacted topic."""

    def __init__(self, count: int, record_errors: Mapping[int, str]) -> None:
        super().__init__(
            f"{count} records have no key, which a compacted topic requires", record_errors
        )


class SequenceError(StorageError):
    """A batch of an idempotent producer that does not follow its last known batch."""


class OutOfOrderSequenceError(SequenceError):
    """A sequence number is missing, or the batch is too old to be recognized as a duplicate."""


class InvalidProducerEpochError(SequenceError):
    """The batch, or the marker, has an older epoch than the known one."""


class InvalidTxnStateError(StorageError):
    """A batch outside a transaction, of a producer that has one open in this log."""


class TransactionCoordinatorFencedError(StorageError):
    """A marker of a transaction coordinator that another one has replaced."""


class DivergedBatchError(StorageError):
    """A fetched batch that does not follow the log of a follower."""


class LogOfflineError(StorageError):
    """The disk failed this log: it accepts no appends until it is opened again."""


class CompactionStoppedError(StorageError):
    """A compaction was asked to stop; it has removed the files it wrote."""


class DataDirectoryError(StorageError):
    """The data directory is locked, foreign, damaged, or has another format version."""
