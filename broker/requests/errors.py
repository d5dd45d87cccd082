"""What a client is told of what went wrong: one table, from exceptions to Kafka's codes."""

from __future__ import annotations

from ottla.coord.metadata_image import InvalidTopicError
from ottla.protocol.configdef import ConfigError
from ottla.protocol.errors import BatchError, ErrorCode
from ottla.storage.errors import (
    BatchTooLargeError,
    InvalidTimestampError,
    KeylessRecordError,
    OffsetOutOfRangeError,
    OutOfOrderSequenceError,
    SequenceError,
    StaleProducerEpochError,
    StorageError,
)


class ApiError(Exception):
    """A request, or a part of one, that is answered with this code."""

    def __init__(self, code: ErrorCode, message: str | None = None) -> None:
        self.code = code
        super().__init__(message or code.message)


class NotLeaderError(ApiError):
    """A partition that another broker owns."""

    def __init__(self, leader_id: int) -> None:
        self.leader_id = leader_id
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {leader_id} owns the partition")


# The first that fits counts.
_CODES: tuple[tuple[type[Exception], ErrorCode], ...] = (
    (OffsetOutOfRangeError, ErrorCode.OFFSET_OUT_OF_RANGE),
    (BatchTooLargeError, ErrorCode.MESSAGE_TOO_LARGE),
    (InvalidTimestampError, ErrorCode.INVALID_TIMESTAMP),
    (KeylessRecordError, ErrorCode.INVALID_RECORD),
    (OutOfOrderSequenceError, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER),
    (StaleProducerEpochError, ErrorCode.INVALID_PRODUCER_EPOCH),
    (SequenceError, ErrorCode.INVALID_RECORD),
    (StorageError, ErrorCode.KAFKA_STORAGE_ERROR),
    (OSError, ErrorCode.KAFKA_STORAGE_ERROR),
    (InvalidTopicError, ErrorCode.INVALID_TOPIC_EXCEPTION),
    (ConfigError, ErrorCode.INVALID_CONFIG),
)

#: What can be answered; anything else is a bug, and is not caught where these are.
EXPECTED_ERRORS: tuple[type[Exception], ...] = (
    ApiError,
    BatchError,
    *(kind for kind, _code in _CODES),
)

# An error may quote what a client sent, and a string of an old version ends at 32,767 bytes.
_MESSAGE_CHARACTERS = 1000


def error_code_of(error: Exception) -> ErrorCode:
    """Give the code by which a client is told of an error."""
    if isinstance(error, ApiError | BatchError):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


def error_message_of(error: Exception) -> str:
    """Give the words by which a client is told of an error: not more than a string can hold."""
    return str(error)[:_MESSAGE_CHARACTERS]
