"""Effects: what an event of a coordinator shard asks the broker to do, in order.

A shard does no I/O. To change durable state, an event returns `Append`. The broker appends the
records to the shard's partition, passes each one to `replay`, and calls `complete` for what
follows, usually the response. If the append fails, nothing is replayed, and `complete` gets the
error. An append may complete later: events that arrive meanwhile see the state before it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ottla.protocol.errors import ErrorCode

from .metadata_image import TopicPartition
from .records import CoordinatorRecord
from .transaction_records import TransactionRecord

if TYPE_CHECKING:
    from .consumer.records import ConsumerRecord
    from .share.records import ShareRecord


class Reply(NamedTuple):
    """Send a response to the request that `token` stands for."""

    token: Any
    response: Any


def _no_effects(_code: ErrorCode) -> list[Effect]:
    return []


class Producer(NamedTuple):
    """A producer id and its epoch."""

    id: int
    epoch: int


class Append(NamedTuple):
    """Append records and replay them, then call `complete` for more effects.

    With a `producer`, the records are part of its transaction: they are replayed as pending, and
    take effect with the commit marker of the producer. `complete` may then get
    INVALID_PRODUCER_EPOCH too: the producer has been fenced.

    `complete` gets NONE once the records are replayed. If they are not, it gets one of:
    MESSAGE_TOO_LARGE, COORDINATOR_NOT_AVAILABLE (the append failed), NOT_COORDINATOR (the shard was
    unloaded meanwhile). It changes no durable state.
    """

    records: Sequence[CoordinatorRecord | ConsumerRecord | ShareRecord | TransactionRecord]
    complete: Callable[[ErrorCode], list[Effect]] = _no_effects
    producer: Producer | None = None


class SendMarkers(NamedTuple):
    """Write the markers of a decided transaction to all of these partitions, however long it takes.

    The broker reports partitions that have their marker, or no longer exist, to
    `TransactionShard.markers_written`.
    """

    transactional_id: str
    producer: Producer
    is_commit: bool
    transaction_version: int
    partitions: frozenset[TopicPartition]


class LogMessage(NamedTuple):
    """Log an event for operators, at INFO."""

    message: str
    fields: Mapping[str, object]


class Compute(NamedTuple):
    """Call `work` in a thread: it may take long. Then call `complete` with its result.

    `work` is a pure function, and does not raise.
    """

    work: Callable[[], Any]
    complete: Callable[[Any], list[Effect]]


class Gather(NamedTuple):
    """Call `complete` once the requests that have arrived so far are events of the shard.

    Until then, events collect what they append together.
    """

    complete: Callable[[], list[Effect]]


Effect = Reply | Append | SendMarkers | LogMessage | Compute | Gather


def append_error(code: ErrorCode) -> ErrorCode:
    """Return the error code of a request whose append failed with `code`."""
    if code is ErrorCode.MESSAGE_TOO_LARGE:
        return ErrorCode.COORDINATOR_NOT_AVAILABLE
    return code
