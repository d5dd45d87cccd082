"""A share partition, as this consumer sees it: what it has acquired, and what it acknowledges.

An offset that was acquired has a lock: until the lock ends, no other consumer gets the record. What
becomes of it:

    acquired ──▶ buffered ──▶ delivered ──▶ pending ──▶ in flight ──▶ done
                     └──── released ────────────▲                      (or failed: redelivered)

Offsets without a record for the application (control batches, compacted ones) are pending at once.
No I/O.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.api.share_acknowledge import AcknowledgementBatch
from ottla.protocol.api.share_fetch import AcquiredRecords
from ottla.protocol.errors import KafkaError

from ..consumer.fetched_data import FetchedData
from ..types import AcknowledgeType, ConsumerRecord, ShareRecord, TopicPartition

_GAP = 0
#: Records that are delivered at once.
SLICE_RECORDS = 500
# Locks that have ended are forgotten when there are this many.
_MAX_ENDED_LOCKS = 10_000
_offset_of = attrgetter("offset")


class AcquiredSlice(NamedTuple):
    """Consecutive records that were delivered equally often."""

    records: list[ConsumerRecord]
    delivery_count: int
    #: When their locks end, unless they are renewed.
    lock_end: float


class SharePartition:
    """What this consumer has acquired of a partition. Times are those of the event loop."""

    def __init__(self, tp: TopicPartition, topic_id: UUID) -> None:
        self.tp = tp
        self.topic_id = topic_id
        #: The leader of the records below; -1: none yet.
        self.leader = -1
        self.is_assigned = True
        #: Whether the leader has to be looked up.
        self.has_stale_leader = False
        self.failures = 0
        self.retry_at = 0.0
        #: To raise to the application.
        self.error: Exception | None = None
        self.is_queued = False
        self.buffer: deque[AcquiredSlice] = deque()
        #: The end of the lock of each offset that is acquired.
        self.locks: dict[int, float] = {}
        #: Acknowledgements to send, and those that were sent.
        self.pending: dict[int, int] = {}
        self.in_flight: dict[int, int] = {}
        #: Records as they were before deserialization, if they may be needed.
        self.raw: dict[int, ConsumerRecord] = {}
        #: Offsets that go to the dead letter topic first.
        self.dead: set[int] = set()
        #: Offsets whose locks the application wants to be renewed.
        self.renewals: set[int] = set()

    def __repr__(self) -> str:
        return f"<SharePartition {self.tp}, {len(self.locks)} acquired>"

    @property
    def id(self) -> tuple[UUID, int]:
        """Topic id and partition index, as responses name it."""
        return self.topic_id, self.tp.partition

    @property
    def buffered(self) -> int:
        """The number of records that are not delivered yet."""
        return sum(len(one.records) for one in self.buffer)

    @property
    def has_something(self) -> bool:
        """Whether there are records to deliver, or an error."""
        return bool(self.buffer) or self.error is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is acquired, and nothing to be acknowledged."""
        return not self.locks and not self.pending and not self.in_flight

    # Acquire.

    def add(
        self,
        data: bytes | bytearray | memoryview,
        acquired: Sequence[AcquiredRecords],
        now: float,
        lock_seconds: float,
        *,
        checks_crc: bool = True,
    ) -> KafkaError | None:
        """Buffer the acquired records of a fetch; return the error of a corrupt batch, if any."""
        if not acquired:
            return None
        lock_end = now + lock_seconds
        if len(self.locks) > _MAX_ENDED_LOCKS:
            self.locks = {offset: end for offset, end in self.locks.items() if end > now}
            self.raw = {offset: one for offset, one in self.raw.items() if offset in self.locks}
        fetched, error = _decode(self.tp, data, acquired[0].first_offset, checks_crc=checks_crc)
        readable = fetched[-1].offset + 1 if error is not None and fetched else None
        for one in acquired:
            offsets = range(one.first_offset, one.last_offset + 1)
            self.locks.update(dict.fromkeys(offsets, lock_end))
            first = bisect_left(fetched, one.first_offset, key=_offset_of)
            last = bisect_right(fetched, one.last_offset, key=_offset_of)
            records = fetched[first:last]
            for start in range(0, len(records), SLICE_RECORDS):
                part = records[start : start + SLICE_RECORDS]
                self.buffer.append(AcquiredSlice(part, one.delivery_count, lock_end))
            if len(records) < len(offsets):
                gaps = set(offsets).difference(map(_offset_of, records))
                if error is None:
                    self.pending.update(dict.fromkeys(gaps, _GAP))
                else:
                    # The batch may be corrupt in memory only: have it delivered again.
                    for offset in gaps:
                        is_readable = readable is not None and offset < readable
                        self.pending[offset] = _GAP if is_readable else AcknowledgeType.RELEASE
        return error

    def drop_lost(self, acquired: Iterable[AcquiredRecords]) -> list[int]:
        """Drop what is pending for records that are acquired anew; return their offsets.

        Their locks were lost: the acknowledgements are not those of the new deliveries.
        """
        pending = self.pending
        if not pending:
            return []
        lost = [
            offset
            for one in acquired
            for offset in range(one.first_offset, one.last_offset + 1)
            if offset in pending
        ]
        for offset in lost:
            del pending[offset]
        return lost

    def take(self, now: float) -> AcquiredSlice | None:
        """Return the next records whose lock has not ended, if there are any."""
        while self.buffer:
            taken = self.buffer.popleft()
            if taken.lock_end > now:
                return taken
            locks = self.locks
            records = [one for one in taken.records if locks.get(one.offset, 0.0) > now]
            if records:
                return taken._replace(records=records)
        return None

    def put_back(self, undelivered: AcquiredSlice) -> None:
        """Buffer records again that were taken."""
        if undelivered.records:
            self.buffer.appendleft(undelivered)

    def is_held(self, offset: int, now: float) -> bool:
        """Whether the record is acquired, and not acknowledged yet for good."""
        return self.is_locked(offset, now) and offset not in self.dead

    # Acknowledge.

    def acknowledge(self, offset: int, kind: AcknowledgeType) -> None:
        """Acknowledge a record that is held; a later acknowledgement replaces one not sent."""
        self.pending[offset] = kind

    def acknowledge_rest(
        self, records: Iterable[ConsumerRecord | ShareRecord], kind: AcknowledgeType
    ) -> None:
        """Acknowledge those of the records that are not acknowledged."""
        locks, pending, in_flight, dead = self.locks, self.pending, self.in_flight, self.dead
        for record in records:
            offset = record.offset
            if offset in locks and offset not in in_flight and offset not in dead:
                pending.setdefault(offset, kind)

    def release_buffer(self) -> None:
        """Release what was not delivered."""
        while self.buffer:
            self.acknowledge_rest(self.buffer.popleft().records, AcknowledgeType.RELEASE)

    def take_pending(self, now: float) -> tuple[list[AcknowledgementBatch], list[int]]:
        """Return the acknowledgements to send, and the offsets for which it is too late."""
        locks = self.locks
        late = [offset for offset in self.pending if locks.get(offset, 0.0) <= now]
        for offset in late:
            del self.pending[offset]
            locks.pop(offset, None)
        self.in_flight, self.pending = self.pending, {}
        return acknowledgement_batches(self.in_flight), late

    def finish(self) -> list[int]:
        """Forget what was in flight: the leader has answered. Return the offsets."""
        offsets = sorted(self.in_flight)
        for offset in offsets:
            self.locks.pop(offset, None)
            self.raw.pop(offset, None)
        self.in_flight = {}
        return offsets

    def send_again(self, now: float, margin: float) -> list[int]:
        """Have those acknowledgements sent again whose lock lasts for the margin, if not all do.

        One acknowledgement that is too late fails the others of its request. Return the offsets
        that are given up.
        """
        lasting = {
            offset: kind
            for offset, kind in self.in_flight.items()
            if self.locks.get(offset, 0.0) > now + margin
        }
        if len(lasting) == len(self.in_flight):
            lasting = {}
        given_up = [offset for offset in self.in_flight if offset not in lasting]
        self.in_flight = {offset: self.in_flight[offset] for offset in given_up}
        given_up = self.finish()
        self.pending = {**lasting, **self.pending}
        return given_up

    def lose(self) -> list[int]:
        """Forget everything: the leader has released it. Return what was not acknowledged."""
        offsets = sorted({*self.pending, *self.in_flight})
        for state in (
            self.buffer,
            self.locks,
            self.pending,
            self.in_flight,
            self.dead,
            self.renewals,
        ):
            state.clear()
        return offsets

    # Renew.

    def locks_to_renew(self, before: float, now: float) -> list[int]:
        """Return the offsets whose locks are to be renewed: also buffered ones that end soon."""
        locks = self.locks
        buffered = {
            record.offset
            for one in self.buffer
            if one.lock_end <= before
            for record in one.records
            if now < locks.get(record.offset, 0.0) <= before
        }
        held = {one for one in self.renewals | self.dead if self.is_locked(one, now)}
        dead = {one for one in self.dead & held if locks[one] <= before}
        return sorted(buffered | (self.renewals & held) | dead)

    def is_locked(self, offset: int, now: float) -> bool:
        """Whether the record is acquired, and no acknowledgement of it is on the way."""
        return self.locks.get(offset, 0.0) > now and offset not in self.in_flight

    def renew(self, offsets: Collection[int], lock_end: float) -> None:
        """Note that the locks of offsets were renewed."""
        for offset in offsets:
            if offset in self.locks:
                self.locks[offset] = lock_end


def acknowledgement_batches(kinds: dict[int, int]) -> list[AcknowledgementBatch]:
    """Return acknowledgements as runs of consecutive offsets with one type."""
    batches: list[AcknowledgementBatch] = []
    first = last = kind = -1
    for offset in sorted(kinds):
        if offset == last + 1 and kinds[offset] == kind:
            last = offset
            continue
        if kind >= 0:
            batches.append(_batch(first, last, kind))
        first = last = offset
        kind = kinds[offset]
    if kind >= 0:
        batches.append(_batch(first, last, kind))
    return batches


def _batch(first: int, last: int, kind: int) -> AcknowledgementBatch:
    return AcknowledgementBatch(first_offset=first, last_offset=last, acknowledge_types=[int(kind)])


def _decode(
    tp: TopicPartition,
    data: bytes | bytearray | memoryview,
    first_offset: int,
    *,
    checks_crc: bool,
) -> tuple[list[ConsumerRecord], KafkaError | None]:
    """Return the records up to the first corrupt batch, and the error of that."""
    records: list[ConsumerRecord] = []
    fetched = FetchedData(tp, first_offset, data, checks_crc=checks_crc)
    try:
        while (taken := fetched.take(SLICE_RECORDS)) is not None:
            records += taken.records
    except KafkaError as error:
        return records, error
    return records, None
