"""What can go wrong with a log.

    StorageError
    ├── OffsetOutOfRangeError      an offset that the log does not have, or not any more
    ├── BatchTooLargeError         a batch over max.message.bytes, or over what a segment can hold
    ├── InvalidTimestampError      a record time outside the window that the topic allows
    ├── KeylessRecordError         a record without a key in a compacted topic
    ├── SequenceError              an idempotent producer's batch that does not follow its last
    │   ├── OutOfOrderSequenceError
    │   └── StaleProducerEpochError
    ├── LogOfflineError            the disk failed this log; no appends until it is opened anew
    └── DataDirectoryError         the directory cannot be used: locked, foreign, another format

A batch that is no batch is `ottla.protocol.batch.BatchError`.
"""

from __future__ import annotations


class StorageError(Exception):
    """Something is wrong with a log, or with what it was asked."""


class OffsetOutOfRangeError(StorageError):
    """An offset that the log does not have, or not any more."""

    def __init__(self, offset: int, start: int, end: int) -> None:
        self.offset = offset
        super().__init__(f"offset {offset} is outside of {start} to {end}")


class BatchTooLargeError(StorageError):
    """A batch over max.message.bytes, or over what a segment can hold."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"a batch of {size} bytes, the limit is {limit}")


class InvalidTimestampError(StorageError):
    """A record time outside the window that the topic allows."""


class KeylessRecordError(StorageError):
    """A record without a key in a compacted topic; `index` says which of the batch's records."""

    def __init__(self, index: int) -> None:
        self.index = index
        super().__init__(f"record {index} has no key, and the topic is compacted")


class SequenceError(StorageError):
    """An idempotent producer's batch does not follow the last one that is known."""


class OutOfOrderSequenceError(SequenceError):
    """A sequence number is missing, or the batch is too old to be known as a duplicate."""


class StaleProducerEpochError(SequenceError):
    """The batch is of an epoch before the one that is known."""


class LogOfflineError(StorageError):
    """The disk failed this log: it takes no appends until it is opened anew."""


class DataDirectoryError(StorageError):
    """The data directory cannot be used: locked, foreign, or of another format."""
