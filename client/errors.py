"""What can go wrong for a program that uses the SDK.

    KafkaError                     the broker answered with an error code; `.code`, `.retriable`
    └── RetriableError             … which may not be the last word
        └── RefreshError           … once metadata have been looked up again
    ClientError                    everything else
    ├── ConnectionLostError        nobody answered: refused, reset, or not understood; retriable
    ├── DeadlineError              it took longer than it was given; also a TimeoutError
    ├── UnsupportedError           the broker does not speak an api, or not a version that would do
    ├── ClosedError                the producer, consumer or admin has been closed
    ├── BufferFullError            more is waiting to be sent than may wait, and for too long
    ├── RecordTooLargeError        a record that does not fit a batch
    ├── ConsumerError              an operation that the consumer's assignment does not allow
    ├── TruncatedError             a broker sent less than one batch
    ├── SerializationError         a serializer or deserializer raised; its error is the cause
    │   └── BadRecordError         … a deserializer; `.record` is what it did not understand
    └── PartialError               of several things some failed; `.failed`, `.done`

The first three come from `ottla.protocol.errors`, which has the codes. TruncatedError and
BadRecordError are in `chunks`, PartialError is in `admin`: `ottla.client` has them all.
"""

from __future__ import annotations

from ottla.protocol.errors import ErrorCode, KafkaError, RefreshError, RetriableError, error_of

__all__ = [
    "BufferFullError",
    "ClientError",
    "ClosedError",
    "ConnectionLostError",
    "ConsumerError",
    "DeadlineError",
    "ErrorCode",
    "KafkaError",
    "RecordTooLargeError",
    "RefreshError",
    "RetriableError",
    "SerializationError",
    "UnsupportedError",
    "error_of",
]


class ClientError(Exception):
    """Something went wrong on this side of the wire."""

    #: Whether the same may succeed later.
    retriable = False


class ConnectionLostError(ClientError):
    """Nobody answered: the connection was refused or reset, or what came made no sense."""

    retriable = True


class DeadlineError(ClientError, TimeoutError):
    """It took longer than it was given."""

    retriable = True


class UnsupportedError(ClientError):
    """The broker does not speak an api, or not in a version that would do."""


class ClosedError(ClientError):
    """The producer, consumer or admin has been closed."""


class BufferFullError(ClientError):
    """More is waiting to be sent than may wait, and that for too long."""

    retriable = True


class RecordTooLargeError(ClientError):
    """A record that does not fit a batch."""


class ConsumerError(ClientError):
    """Something that the consumer's assignment does not allow."""


class SerializationError(ClientError):
    """A serializer or deserializer raised; its error is the cause of this one."""
