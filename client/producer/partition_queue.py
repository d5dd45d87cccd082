"""The batches of one partition: what waits, what is under way, and what to do when it fails.

Batches of a partition are written in the order in which they were begun, and none is written
twice, also when some fail. With idempotence that rests on numbers: a producer id and a sequence of
records, by which a broker knows what it has, and refuses what is not next. A batch keeps the
numbers that it was first sent with, so that it can be sent again without being written again.

    waiting ──take──▶ in flight ──succeed──▶ settled
       ▲                  │
       └──recover── failed ◀──refuse

When one of several batches in flight fails, those behind it fail too, being out of order. So the
lane is *recovering* until the last of them is answered, and then all that failed goes back to the
front of what waits. What is sent again is sent alone: a broker remembers the last five batches of
a producer, and if more could be written behind one whose answer was lost, it would be forgotten
before it is known. Most of the time batches keep their numbers, and that is all. But a batch that
was given up (refused for good, or too late) leaves a gap in the numbers, and what is behind it has
to be numbered again. That is safe for batches that are known not to be written, and

- if all are known not to be, the numbers go on where the gap is;
- otherwise under a new producer id, from 0 (KIP-360 does so with a new epoch), and those that may
  have been written are failed: sent under new numbers, they could be written a second time.

The same happens when a broker does not know the producer or its numbers any more.

Without idempotence there are no numbers, and order is kept by having one batch under way at a time.
A batch whose answer was lost may then be written twice.
"""

from __future__ import annotations

from collections import deque

from ..errors import ErrorCode, KafkaError
from .batch import Batch, ProducerIdAndEpoch

#: A broker remembers this many batches of a producer; more under way could not be told apart.
MOST_IN_FLIGHT = 5

_SEQUENCE_MASK = 0x7FFFFFFF
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)
_NOT_KNOWN = (ErrorCode.UNKNOWN_PRODUCER_ID, ErrorCode.INVALID_PRODUCER_EPOCH)
# Answers that leave it open whether the batch was written.
_UNCERTAIN = (
    ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.NETWORK_EXCEPTION,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
)


class Lane:
    """One partition, as a producer sees it. It does no I/O and knows no clock."""

    __slots__ = (
        "_is_proven",
        "_retired",
        "connection",
        "failed",
        "identity",
        "in_flight",
        "is_idempotent",
        "is_offered",
        "is_paused",
        "is_recovering",
        "must_pause",
        "open",
        "partition",
        "sequence",
        "topic",
        "tries",
        "waiting",
    )

    def __init__(self, topic: str, partition: int, *, is_idempotent: bool) -> None:
        self.topic = topic
        self.partition = partition
        self.is_idempotent = is_idempotent
        #: The batch that records are added to: the last that waits, or None.
        self.open: Batch | None = None
        self.waiting: deque[Batch] = deque()
        self.in_flight: deque[Batch] = deque()
        #: What comes back to the front of `waiting` when nothing is in flight, in order.
        self.failed: list[Batch] = []
        self.is_recovering = False
        #: How often it failed since something succeeded, and whether to wait before the next try.
        self.tries = 0
        self.must_pause = False
        #: Kept by the sender: whether it waits for a while, and whether it stands in a queue.
        self.is_paused = False
        self.is_offered = False
        #: What is in flight went there. Only of one connection it is certain that it is in order.
        self.connection: object = None
        self.identity: ProducerIdAndEpoch | None = None
        self.sequence = 0
        self._is_proven = False
        self._retired: ProducerIdAndEpoch | None = None

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"

    @property
    def needs_identity(self) -> bool:
        """Whether nothing can be sent for want of a producer id."""
        return self.is_idempotent and self.identity is None

    def identify(self, identity: ProducerIdAndEpoch) -> bool:
        """Take a producer id, unless it is the one that was given up."""
        if identity == self._retired:
            return False
        self.identity = identity
        self.sequence = 0
        self._is_proven = False
        return True

    @property
    def can_send(self) -> bool:
        """Whether `take` may be called."""
        waiting, in_flight = self.waiting, self.in_flight
        if not waiting or self.is_paused or self.is_recovering or self.needs_identity:
            return False
        head = waiting[0]
        if not head.is_due and len(waiting) == 1:
            return False
        if not in_flight:
            return True
        # A broker takes any number from a producer that it does not know. So the first batch goes
        # alone, too: with another one behind it that could be taken in its place.
        most = MOST_IN_FLIGHT if self._is_proven else 1
        last = in_flight[-1]
        is_again = head.identity is not None or last.is_again
        return len(in_flight) < most and not is_again and last.identity == self.identity

    def take(self) -> Batch:
        """Give the batch to be sent next, with its numbers. It is in flight from now on."""
        batch = self.waiting.popleft()
        if batch is self.open:
            self.open = None
        batch.is_again = batch.identity is not None
        if not batch.is_again and self.identity is not None:
            batch.identity = self.identity
            batch.sequence = self.sequence
            self.sequence = (self.sequence + batch.count) & _SEQUENCE_MASK
        self.in_flight.append(batch)
        return batch

    def succeed(self, batch: Batch, base_offset: int, append_time_ms: int) -> None:
        """Take note that a batch was written."""
        self.in_flight.remove(batch)
        self.tries = 0
        if self.is_idempotent and batch.identity == self.identity:
            self._is_proven = True
        batch.succeed(base_offset, append_time_ms)

    def refuse(self, batch: Batch, error: Exception, *, was_sent: bool = True) -> None:
        """Take note that a batch was not acknowledged."""
        self.in_flight.remove(batch)
        code = error.code if isinstance(error, KafkaError) else None
        batch.error = error
        is_retriable = bool(getattr(error, "retriable", False))
        if was_sent and (code is None or code in _UNCERTAIN):
            batch.is_uncertain = True
        if code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER and batch.identity is not None:
            # So it is not among the last five of this producer: it was not written.
            batch.is_uncertain = False
            # If all before it were written, then the broker has lost some of them.
            if not self.failed:
                batch.must_renumber = self.must_pause = True
        elif code in _NOT_KNOWN and batch.identity is not None:
            batch.must_renumber = self.must_pause = True
        elif code in _TOO_LARGE and batch.count > 1 and not batch.is_settled:
            self.is_recovering = True
            self.failed += batch.split()
            return
        elif is_retriable:
            self.must_pause = True
        else:
            batch.fail(error)
        self.is_recovering = True
        self.failed.append(batch)

    def give_up(self, batch: Batch, error: Exception) -> None:
        """Fail a batch that has not been acknowledged, wherever it is."""
        batch.fail(error)
        if batch is self.open:
            self.open = None
        if batch in self.in_flight or batch in self.failed:
            return  # the answer, or the end of the recovery, will find it settled
        if batch.identity is None:
            self.waiting.remove(batch)
        else:
            self.is_recovering = True

    def note(self, error: Exception) -> None:
        """Remember why nothing is sent, for those whom it will be too late for."""
        for batch in self.waiting:
            batch.error = error

    def recover(self) -> Exception | None:
        """Put in order what failed, once nothing is in flight.

        Give the reason if all goes on under a new producer id. It may be that a broker has lost
        records that it had acknowledged, and nobody else is told.
        """
        assert not self.in_flight
        self.waiting.extendleft(reversed(self.failed))
        self.failed.clear()
        self.is_recovering = False
        gap = next((batch for batch in self.waiting if _leaves_gap(batch)), None)
        had = self.identity
        if gap is not None:
            self._renumber(gap)
        self.waiting = deque(batch for batch in self.waiting if not batch.is_settled)
        return gap.error if gap is not None and had is not None and self.identity is None else None

    def _renumber(self, gap: Batch) -> None:
        """Let what is behind a gap be numbered again."""
        behind = list(self.waiting)
        behind = behind[behind.index(gap) :]
        # What has the numbers of another producer id is not behind this gap.
        numbered = [batch for batch in behind if batch.identity == gap.identity]
        if gap.identity == self.identity:
            if any(batch.is_uncertain or batch.must_renumber for batch in numbered):
                self._retired = self.identity
                self.identity = None
            else:
                self.sequence = gap.sequence
        for batch in numbered:
            if batch.is_settled:
                continue
            if batch.is_uncertain:
                reason = (
                    f"{self}: {batch.count} records may or may not have been written, and to send"
                    f" them again could write them twice: {batch.error}"
                )
                batch.fail(KafkaError(ErrorCode.UNKNOWN_PRODUCER_ID, reason))
            else:
                batch.forget_number()


def _leaves_gap(batch: Batch) -> bool:
    return batch.identity is not None and (batch.is_settled or batch.must_renumber)
