"""The batches of one partition: waiting, in flight, and the recovery after a failure.

Batches of a partition are written in the order in which they were opened, and each at most once,
even if some fail. With idempotence that rests on the producer id and the sequence, by which a
broker recognises a duplicate and rejects a batch that is out of order. A batch keeps the sequence
that it was first sent with, so that a retry is not written again.

    waiting ──take──▶ in_flight ──complete──▶ (done)
       ▲                  │
       └───recover── failed ◀──handle_error

When one of several batches in flight fails, those behind it fail too, with
OUT_OF_ORDER_SEQUENCE_NUMBER. The queue is then *recovering* until the last of them has a response,
and moves all failed batches back to the front of `waiting`. A retry is sent alone: a broker
remembers the last five batches of a producer, and if more were written behind one whose response
was lost, the broker would forget it before its result is known. Most of the time batches keep their
sequences, and that is all. But a batch that has failed for good (rejected or expired) leaves a gap
in the sequence, and the batches behind it need new ones. That is safe for batches that are known
not to be written, so

- if none of them may be written, the sequence continues at the gap;
- otherwise it starts at 0 with a new producer id (KIP-360 does so with a new epoch), and batches
  that may be written fail: with a new sequence, they could be written a second time.

The same happens if a broker no longer knows the producer or its sequence.

With transactions, a batch that fails for good fails the transaction, whose other batches are then
dropped. The next transaction has a new epoch.

Without idempotence there is no sequence, and order is kept by sending one batch at a time. A batch
whose response was lost may then be written twice.
"""

from __future__ import annotations

from collections import deque

from ..errors import ErrorCode, KafkaError
from .batch import Batch, BatchState, ProducerIdAndEpoch

#: A broker remembers this many batches of a producer, to recognise duplicates.
MAX_IN_FLIGHT = 5

_SEQUENCE_MASK = 0x7FFFFFFF
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_UNKNOWN_PRODUCER = (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH)
# Errors after which the batch may nevertheless be written.
_MAY_BE_WRITTEN = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


class PartitionQueue:
    """The batches of one partition. No I/O, no clock."""

    __slots__ = (
        "_is_producer_known",
        "_retired_producer",
        "connection",
        "failed",
        "failures",
        "in_backoff",
        "in_flight",
        "is_idempotent",
        "is_recovering",
        "is_scheduled",
        "is_transactional",
        "needs_backoff",
        "open",
        "partition",
        "producer",
        "sequence",
        "topic",
        "waiting",
    )

    def __init__(
        self, topic: str, partition: int, *, is_idempotent: bool, is_transactional: bool = False
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.is_idempotent = is_idempotent
        self.is_transactional = is_transactional
        #: The batch that records are added to: the last one of `waiting`, or None.
        self.open: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        #: Back to the front of `waiting` when nothing is in flight, in order.
        self.failed: list[Batch] = []
        self.is_recovering = False
        #: Failures since the last success, and whether to back off before the next attempt.
        self.failures = 0
        self.needs_backoff = False
        #: Set by the sender: whether it is backing off, and whether it is in a broker queue.
        self.in_backoff = False
        self.is_scheduled = False
        #: The connection of `in_flight`. Order is certain within one connection only.
        self.connection: object = None
        self.producer: ProducerIdAndEpoch | None = None
        self.sequence = 0
        # Whether a broker has acknowledged a batch of this producer id.
        self._is_producer_known = False
        self._retired_producer: ProducerIdAndEpoch | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def needs_producer_id(self) -> bool:
        """Whether nothing can be sent for lack of a producer id."""
        return self.is_idempotent and self.producer is None

    def set_producer(self, producer: ProducerIdAndEpoch) -> bool:
        """Set the producer id and epoch. Returns False for those that were retired."""
        if producer == self._retired_producer:
            return False
        self.producer = producer
        self.sequence = 0
        self._is_producer_known = False
        return True

    def reset_producer(self) -> None:
        """Forget the producer id and epoch: a transaction has ended."""
        self.producer = self._retired_producer = None

    @property
    def can_send(self) -> bool:
        """Whether `take` may be called."""
        waiting, in_flight = self.waiting, self.in_flight
        if not waiting or self.in_backoff or self.is_recovering or self.needs_producer_id:
            return False
        head = waiting[0]
        if head.state is not BatchState.READY:
            return False
        if not in_flight:
            return True
        # A broker accepts any sequence from a producer that it does not know. So the first batch
        # is sent alone: if it failed, the one behind it could be written in its place.
        limit = MAX_IN_FLIGHT if self._is_producer_known else 1
        last = in_flight[-1]
        is_retry = head.producer is not None or last.is_retry
        return len(in_flight) < limit and not is_retry and last.producer == self.producer

    def take(self) -> Batch:
        """Return the next batch to send, with its sequence, and move it to `in_flight`."""
        batch = self.waiting.popleft()
        if batch is self.open:
            self.open = None
        batch.move_to(BatchState.IN_FLIGHT)
        batch.is_retry = batch.producer is not None
        if not batch.is_retry and self.producer is not None:
            batch.producer = self.producer
            batch.sequence = self.sequence
            self.sequence = (self.sequence + batch.count) & _SEQUENCE_MASK
        self.in_flight.append(batch)
        return batch

    def complete(self, batch: Batch, base_offset: int, append_time_ms: int) -> None:
        """Complete a batch that was acknowledged."""
        self.in_flight.remove(batch)
        self.failures = 0
        if self.is_idempotent and batch.producer == self.producer:
            self._is_producer_known = True
        batch.complete(base_offset, append_time_ms)

    def handle_error(self, batch: Batch, error: Exception, *, was_sent: bool = True) -> None:
        """Split, fail or keep for a retry a batch that was not acknowledged."""
        self.in_flight.remove(batch)
        code = error.code if isinstance(error, KafkaError) else None
        batch.error = error
        is_retriable = bool(getattr(error, "retriable", False))
        if was_sent and (code is None or code in _MAY_BE_WRITTEN):
            batch.may_be_written = True
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.producer is not None:
            # It is not among the last five batches of this producer: it was not written.
            batch.may_be_written = False
            # If all batches before it were written, then the broker has lost some of them.
            if not self.failed and self.is_transactional:
                batch.fail(error)
            elif not self.failed:
                batch.needs_new_sequence = self.needs_backoff = True
        elif code in _UNKNOWN_PRODUCER and batch.producer and not self.is_transactional:
            batch.needs_new_sequence = self.needs_backoff = True
        elif code in _TOO_LARGE and batch.count > 1 and not batch.is_done:
            self.is_recovering = True
            self.failed += batch.split()
            return
        elif is_retriable:
            self.needs_backoff = True
        else:
            batch.fail(error)
        self.is_recovering = True
        # If it is done, its sequence is a gap, which `recover` looks for.
        if not batch.is_done:
            batch.move_to(BatchState.FAILED)
        self.failed.append(batch)

    def abort(self, batch: Batch, error: Exception) -> None:
        """Fail a batch that has not been acknowledged, whatever its state."""
        batch.fail(error)
        if batch is self.open:
            self.open = None
        if batch in self.in_flight or batch in self.failed:
            return  # the response, or `recover`, will find it done
        if batch.producer is None:
            self.waiting.remove(batch)
        else:
            self.is_recovering = True

    def set_error(self, error: Exception) -> None:
        """Remember why nothing is sent, for the message of batches that expire."""
        for batch in self.waiting:
            batch.error = error

    def recover(self) -> Exception | None:
        """Move failed batches back to `waiting`, once nothing is in flight.

        Returns the error if a new producer id is needed. The broker may then have lost records that
        it had acknowledged, which nothing else reports.
        """
        assert not self.in_flight
        for batch in self.failed:
            if not batch.is_done:
                batch.move_to(BatchState.READY)
        self.waiting.extendleft(reversed(self.failed))
        self.failed.clear()
        self.is_recovering = False
        gap = next((batch for batch in self.waiting if _leaves_gap(batch)), None)
        had_producer = self.producer is not None
        if gap is not None:
            self._renumber(gap)
        self.waiting = deque(batch for batch in self.waiting if not batch.is_done)
        return gap.error if gap is not None and had_producer and self.producer is None else None

    def _renumber(self, gap: Batch) -> None:
        """Reset the sequences of the batches behind a gap."""
        behind = list(self.waiting)
        behind = behind[behind.index(gap) :]
        # Batches of another producer id are not behind this gap.
        numbered = [batch for batch in behind if batch.producer == gap.producer]
        if gap.producer == self.producer:
            if any(batch.may_be_written or batch.needs_new_sequence for batch in numbered):
                self._retired_producer = self.producer
                self.producer = None
            else:
                self.sequence = gap.sequence
        for batch in numbered:
            if batch.is_done:
                continue
            if batch.may_be_written:
                reason = (
                    f"{self}: {batch.count} records may or may not have been written; not sent"
                    f" again, as that could write them twice: {batch.error}"
                )
                batch.fail(KafkaError(ErrorCode.UNKNOWN_PRODUCER_ID, reason))
            else:
                batch.reset_sequence()


def _leaves_gap(batch: Batch) -> bool:
    return batch.producer is not None and (batch.is_done or batch.needs_new_sequence)
