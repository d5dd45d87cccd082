"""Exceptions of the SDK.

    KafkaError                     the broker returned an error code; `.code`, `.retriable`
    └── RetriableError             a retry may succeed
        └── RefreshError           a retry may succeed after a metadata refresh
    ClientError                    all other errors
    ├── ConnectionLostError        refused, reset, or a malformed response; retriable
    ├── AuthenticationError        TLS or SASL failed for a reason that a retry does not change
    ├── DeadlineError              a timeout has passed; also a TimeoutError
    ├── UnsupportedError           the broker does not support an API, or the needed version of it
    ├── ClosedError                the producer, consumer or admin is closed
    ├── BufferFullError            no buffer memory for a record within `buffer_timeout`
    ├── RecordTooLargeError        a record does not fit a request or the buffer
    ├── ConsumerError              an operation that the consumer's assignment does not allow
    ├── AcknowledgeError           some records are delivered again; `.failed`
    ├── LogTruncationError         the log does not have what was read; `.diverging_offset`
    ├── TruncatedError             a broker sent less than one batch
    ├── TransactionError           an operation that the state of the transaction does not allow
    │   ├── AbortableTransactionError  the transaction failed; abort it, and the producer can go on
    │   └── FatalTransactionError  the producer cannot go on; close it
    │       └── ProducerFencedError  a newer producer has the same transactional id
    ├── SerializationError         a serializer or deserializer raised; its error is the cause
    │   └── BadRecordError         a deserializer raised; `.record` is the record
    └── PartialError               some parts of a request failed; `.failed`, `.done`

The first three are defined in `ottla.protocol.errors`, with the error codes; TruncatedError and
BadRecordError in `consumer.fetched_data`, and PartialError in `admin`. `ottla.client` exports all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.errors import ErrorCode, KafkaError, RefreshError, RetriableError, error_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .types import TopicPartition

__all__ = [
    "AbortableTransactionError",
    "AcknowledgeError",
    "AuthenticationError",
    "BufferFullError",
    "ClientError",
    "ClosedError",
    "ConnectionLostError",
    "ConsumerError",
    "DeadlineError",
    "ErrorCode",
    "FatalTransactionError",
    "KafkaError",
    "LogTruncationError",
    "ProducerFencedError",
    "RecordTooLargeError",
    "RefreshError",
    "RetriableError",
    "SerializationError",
    "TransactionError",
    "UnsupportedError",
    "error_of",
]


class ClientError(Exception):
    """An error of the client, not returned by a broker."""

    #: Whether a retry may succeed.
    retriable = False


class ConnectionLostError(ClientError):
    """The connection was refused or reset, or a response was malformed."""

    retriable = True


class AuthenticationError(ClientError):
    """TLS or SASL failed: certificates, credentials or mechanism. A retry does not change that."""


class DeadlineError(ClientError, TimeoutError):
    """A timeout has passed."""

    retriable = True


class UnsupportedError(ClientError):
    """The broker does not support an API, or the needed version of it."""


class ClosedError(ClientError):
    """The producer, consumer or admin is closed."""


class BufferFullError(ClientError):
    """No buffer memory for a record within `BatchConfig.buffer_timeout`."""

    retriable = True


class RecordTooLargeError(ClientError):
    """A record does not fit a request or the buffer."""


class ConsumerError(ClientError):
    """An operation that the consumer's assignment does not allow."""


class AcknowledgeError(ClientError):
    """Some acknowledgements failed: the records are delivered again.

    `failed` has the error of each partition.
    """

    def __init__(self, failed: Mapping[TopicPartition, Exception]) -> None:
        self.failed = dict(failed)
        reasons = "; ".join(f"{tp}: {error}" for tp, error in failed.items())
        super().__init__(f"Some records were not acknowledged: {reasons}")


class LogTruncationError(ClientError):
    """The log was truncated below a consumer's position, and auto_offset_reset is "none".

    After an unclean leader election, records that were read may be gone, and others be in their
    place. Seek to continue: at `diverging_offset` everything that is in the log now is read.
    """

    def __init__(
        self, partition: TopicPartition, position: int, diverging_offset: int | None
    ) -> None:
        super().__init__(
            f"{partition}: the log was truncated below position {position}, "
            + (
                "at an unknown offset"
                if diverging_offset is None
                else f"and diverges at offset {diverging_offset}"
            )
        )
        self.partition = partition
        #: The offset of the record that would have been delivered next.
        self.position = position
        #: The first offset that is known to diverge; None if the leader does not know it.
        self.diverging_offset = diverging_offset


class TransactionError(ClientError):
    """An operation that the state of the transaction does not allow."""


class AbortableTransactionError(TransactionError):
    """The transaction has failed, and can only be aborted; the cause is the error.

    The producer can begin another one afterwards.
    """


class FatalTransactionError(TransactionError):
    """The producer cannot go on: close it. The cause is the error."""


class ProducerFencedError(FatalTransactionError):
    """A newer producer with the same transactional id has replaced this one.

    Or the transaction was open for longer than the transaction timeout.
    """


class SerializationError(ClientError):
    """A serializer or deserializer raised; its error is the cause of this one."""
