"""Exceptions and the Kafka error codes that clients receive for them."""

from __future__ import annotations

from ottla.coord.metadata_image import InvalidTopicError
from ottla.protocol.configdef import ConfigError
from ottla.protocol.errors import BatchError, ErrorCode
from ottla.storage.errors import (
    BatchTooLargeError,
    InvalidProducerEpochError,
    InvalidTimestampError,
    InvalidTxnStateError,
    KeylessRecordError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    SequenceError,
    StorageError,
    TransactionCoordinatorFencedError,
)


class ApiError(Exception):
    """A request, or a part of one, that fails with an error code."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        super().__init__(message or code.message)


class NotLeaderError(ApiError):
    """Another broker is the leader of the partition."""

    def __init__(self, leader_id: int, leader_epoch: int) -> None:
        self.leader_id = leader_id
        self.leader_epoch = leader_epoch
        super().__init__(
            ErrorCode.NOT_LEADER_OR_FOLLOWER, f"The leader of the partition is broker {leader_id}"
        )


# Subclasses before their bases: the first match counts. ApiError and BatchError carry their codes.
_ERROR_CODES: dict[type[Exception], ErrorCode] = {
    OffsetOutOfRangeError: ErrorCode.OFFSET_OUT_OF_RANGE,
    BatchTooLargeError: ErrorCode.MESSAGE_TOO_LARGE,
    InvalidTimestampError: ErrorCode.INVALID_TIMESTAMP,
    KeylessRecordError: ErrorCode.INVALID_RECORD,
    OutOfOrderSequenceError: ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    InvalidProducerEpochError: ErrorCode.INVALID_PRODUCER_EPOCH,
    SequenceError: ErrorCode.INVALID_RECORD,
    InvalidTxnStateError: ErrorCode.INVALID_TXN_STATE,
    TransactionCoordinatorFencedError: ErrorCode.TRANSACTION_COORDINATOR_FENCED,
    StorageError: ErrorCode.KAFKA_STORAGE_ERROR,
    OSError: ErrorCode.KAFKA_STORAGE_ERROR,
    InvalidTopicError: ErrorCode.INVALID_TOPIC_EXCEPTION,
    ConfigError: ErrorCode.INVALID_CONFIG,
}

#: Errors that handlers catch and return as error codes; any other exception is a bug.
EXPECTED_ERRORS: tuple[type[Exception], ...] = (ApiError, BatchError, *_ERROR_CODES)

# A message may quote what a client sent, and strings before flexible versions end at 32,767 bytes.
_MAX_MESSAGE_CHARACTERS = 1000


def error_code_of(error: Exception) -> ErrorCode:
    """Return the error code for an exception; UNKNOWN_SERVER_ERROR if it is a bug."""
    if isinstance(error, ApiError | BatchError):
        return error.code
    for kind, code in _ERROR_CODES.items():
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


def error_message_of(error: Exception) -> str:
    """Return the error message for an exception, short enough for any response."""
    if isinstance(error, OSError) and error.strerror:
        return f"Disk error: {error.strerror}"
    return str(error)[:_MAX_MESSAGE_CHARACTERS]
