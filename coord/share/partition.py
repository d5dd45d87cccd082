"""The records of a partition that a share group has in flight, on the leader of the partition.

    start offset                                     end offset
    │ acknowledged │ available │ acquired by A │ …  │ never delivered
    └─ ranges of consecutive offsets ────────────────┘

Everything before the start offset is done; nothing from the end offset on was delivered. Between
them each offset belongs to a range with one state and delivery count. The number of offsets in
flight is limited, so a record that nobody finishes stops the group in this partition, until its
delivery count reaches the limit.

    acquire      available → acquired: count + 1, a lock until a deadline
    acknowledge  acquired → acknowledged (accept), archived (reject, gap), available (release),
                 acquired with another deadline (renew)
    expire       acquired → available
    release      acquired → available, for all records of a member

What would become available, but was delivered as often as the limit says, is archived instead.
Each event computes the ranges that it changes, and `replay` is the only method that changes them.
It also moves the start offset over ranges that are done.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum
from typing import NamedTuple

from ottla.protocol.errors import ErrorCode

from ..errors import GroupError
from .state import RecordState, ShareState, StateBatch

_AVAILABLE, _ACQUIRED = RecordState.AVAILABLE, RecordState.ACQUIRED
_ACKNOWLEDGED, _ARCHIVED = RecordState.ACKNOWLEDGED, RecordState.ARCHIVED


class AcknowledgeType(IntEnum):
    """What a member says about a record that it has acquired."""

    GAP = 0
    """There is no record at this offset."""

    ACCEPT = 1
    RELEASE = 2
    REJECT = 3
    RENEW = 4


class InFlightRange(NamedTuple):
    """Consecutive offsets with the same state, delivery count and holder."""

    first: int
    last: int
    state: RecordState
    delivery_count: int = 0
    #: Who has acquired the records, and until when.
    member_id: str = ""
    deadline_ms: int = 0

    @property
    def size(self) -> int:
        """The number of offsets."""
        return self.last - self.first + 1


class FetchedBatch(NamedTuple):
    """The offsets of a record batch that was read from the log."""

    first: int
    last: int
    #: Whether it has records for consumers: no marker, and no aborted transaction.
    is_visible: bool = True


class AcknowledgementBatch(NamedTuple):
    """Acknowledgements of consecutive offsets: a type for each of them, or one for all."""

    first: int
    last: int
    types: Sequence[int]


class SharePartitionConfig(NamedTuple):
    """The limits of a share partition."""

    delivery_count_limit: int = 5
    lock_duration_ms: int = 30_000
    max_record_locks: int = 2_000


class SharePartition:
    """The records in flight of one share partition. `config` may be replaced at any time."""

    def __init__(
        self,
        start_offset: int,
        batches: Iterable[StateBatch] = (),
        config: SharePartitionConfig | None = None,
    ) -> None:
        self.config = config or SharePartitionConfig()
        self.start_offset = start_offset
        #: The offset after the last one that was delivered.
        self.end_offset = start_offset
        self._ranges: list[InFlightRange] = []
        # How many records were given up at the delivery limit and not reported yet.
        self._archived_count = 0
        #: A time before which no lock expires.
        self.next_deadline_ms: int | None = None
        for first, last, stored, delivery_count in batches:
            if last < self.end_offset:
                continue
            self._fill(first)
            # At the limit, it was acquired for the last time when its leader went away.
            state = self._not_above_limit(stored, delivery_count)
            self.replay(InFlightRange(max(first, self.end_offset), last, state, delivery_count))

    def __repr__(self) -> str:
        return (
            f"<SharePartition {self.start_offset} to {self.end_offset}, {len(self._ranges)} ranges>"
        )

    # Queries.

    def __iter__(self) -> Iterator[InFlightRange]:
        """Yield the ranges in flight, in the order of their offsets."""
        return iter(self._ranges)

    @property
    def in_flight(self) -> int:
        """The number of offsets from the start offset to the end offset."""
        return self.end_offset - self.start_offset

    @property
    def acquired_count(self) -> int:
        """The number of offsets that are acquired."""
        return sum(one.size for one in self._ranges if one.state is _ACQUIRED)

    def holders(self) -> set[str]:
        """Return the members that have acquired records."""
        return {one.member_id for one in self._ranges if one.state is _ACQUIRED}

    @property
    def range_count(self) -> int:
        """The number of ranges, which is what memory depends on."""
        return len(self._ranges)

    def fetch_offset(self) -> int | None:
        """Return the offset from which to read for the next acquisition.

        None if as many records are in flight as may be, and none of them is available.
        """
        for one in self._ranges:
            if one.state is _AVAILABLE:
                return one.first
        return self.end_offset if self.in_flight < self.config.max_record_locks else None

    def state_batches(self) -> tuple[StateBatch, ...]:
        """Return what is to be stored: acquired records count as available."""
        batches: list[StateBatch] = []
        for one in self._ranges:
            state = _AVAILABLE if one.state is _ACQUIRED else one.state
            last = batches[-1] if batches else None
            if last is not None and last[2:] == (state, one.delivery_count):
                batches[-1] = last._replace(last=one.last)
            else:
                batches.append(StateBatch(one.first, one.last, state, one.delivery_count))
        return tuple(batches)

    # Events.

    def acquire(
        self,
        member_id: str,
        fetch_offset: int,
        batches: Sequence[FetchedBatch],
        max_records: int,
        now_ms: int,
        *,
        is_strict: bool = False,
    ) -> list[InFlightRange]:
        """Acquire records for a member, of the batches that were read from `fetch_offset` on.

        Whole batches, so a few more than `max_records` unless it `is_strict`. Offsets without a
        record are archived.
        """
        deadline_ms = now_ms + self.config.lock_duration_ms
        # As of now: what is archived on the way makes room for the next fetch.
        limit_offset = self.start_offset + self.config.max_record_locks
        acquired: list[InFlightRange] = []
        remaining, expected = max_records, fetch_offset
        for first, last, is_visible in batches:
            if remaining <= 0 or first >= max(limit_offset, self.end_offset):
                break
            if first > expected:
                self._archive(expected, first - 1)
            expected = last + 1
            if not is_visible:
                self._archive(max(first, fetch_offset), last)
                continue
            for one in list(self._available(max(first, fetch_offset), last, limit_offset)):
                if is_strict and remaining <= 0:
                    break
                if one.delivery_count >= self.config.delivery_count_limit:
                    self._archived_count += one.size
                    self.replay(one._replace(state=_ARCHIVED))
                    continue
                count = min(one.size, remaining) if is_strict else one.size
                change = InFlightRange(
                    one.first,
                    one.first + count - 1,
                    _ACQUIRED,
                    one.delivery_count + 1,
                    member_id,
                    deadline_ms,
                )
                self.replay(change)
                remaining -= count
                _append(acquired, change)
        return acquired

    def acknowledge(
        self,
        member_id: str,
        batches: Sequence[AcknowledgementBatch],
        now_ms: int,
        *,
        may_renew: bool = False,
    ) -> Counter[AcknowledgeType]:
        """Acknowledge records of a member, all or none; return how many by type.

        Offsets before the start offset are done already, and neither change nor count.
        Raises GroupError: INVALID_REQUEST, or INVALID_RECORD_STATE if the member has not acquired
        a record.
        """
        changes: list[InFlightRange] = []
        counts: Counter[AcknowledgeType] = Counter()
        previous, given_up = -1, 0
        for batch in batches:
            if batch.first <= previous:
                raise _invalid("Acknowledgement batches overlap or are out of order")
            previous = batch.last
            for first, last, kind in _runs(batch):
                if kind is AcknowledgeType.RENEW and not may_renew:
                    raise _invalid("Acknowledgements of type RENEW require IsRenewAck")
                if last < self.start_offset:
                    continue
                changed = list(
                    self._acknowledged(member_id, max(first, self.start_offset), last, kind, now_ms)
                )
                changes += changed
                counts[kind] += sum(one.size for one in changed)
                if kind is AcknowledgeType.RELEASE:
                    given_up += sum(one.size for one in changed if one.state is _ARCHIVED)
        for change in changes:
            self.replay(change)
        self._archived_count += given_up
        return counts

    def release(self, member_id: str) -> int:
        """Make all records of a member available; return how many it had acquired."""
        return self._make_available(
            [one for one in self._ranges if one.state is _ACQUIRED and one.member_id == member_id]
        )

    def expire(self, now_ms: int) -> int:
        """Make the records available whose locks have expired; return how many there are."""
        if self.next_deadline_ms is None or now_ms < self.next_deadline_ms:
            return 0
        locked = [one for one in self._ranges if one.state is _ACQUIRED]
        self.next_deadline_ms = min(
            (one.deadline_ms for one in locked if one.deadline_ms > now_ms), default=None
        )
        return self._make_available([one for one in locked if one.deadline_ms <= now_ms])

    def move_start(self, offset: int) -> None:
        """Give up the records before an offset: they were deleted from the log."""
        if offset > self.start_offset:
            self._fill(offset)
            self.replay(InFlightRange(self.start_offset, offset - 1, _ARCHIVED))

    def truncate(self, end_offset: int) -> None:
        """Forget the records from an offset on: the log was truncated there."""
        kept = [
            one._replace(last=min(one.last, end_offset - 1))
            for one in self._ranges
            if one.first < end_offset
        ]
        self._ranges.clear()
        self.start_offset = self.end_offset = min(self.start_offset, end_offset)
        for one in kept:
            self.replay(one)

    def take_archived(self) -> int:
        """Return how many records were given up at the delivery limit since the last call."""
        count, self._archived_count = self._archived_count, 0
        return count

    # The only mutator.

    def replay(self, change: InFlightRange) -> None:
        """Apply a range: it replaces what is there, or follows the end offset."""
        assert self.start_offset <= change.first <= min(change.last, self.end_offset), change
        ranges = self._ranges
        low, high = self._index_of(change.first), self._index_of(change.last)
        new = [change]
        if low < len(ranges) and ranges[low].first < change.first:
            new.insert(0, ranges[low]._replace(last=change.first - 1))
        if high < len(ranges) and ranges[high].last > change.last:
            new.append(ranges[high]._replace(first=change.last + 1))
        # Together with the neighbours, which may be alike now.
        start, end = max(low - 1, 0), high + 2
        merged: list[InFlightRange] = []
        for one in (*ranges[start:low], *new, *ranges[high + 1 : end]):
            _append(merged, one)
        ranges[start:end] = merged
        self.end_offset = max(self.end_offset, change.last + 1)
        if change.state is _ACQUIRED and (
            self.next_deadline_ms is None or change.deadline_ms < self.next_deadline_ms
        ):
            self.next_deadline_ms = change.deadline_ms
        done = 0
        while done < len(ranges) and ranges[done].state.is_final:
            self.start_offset = ranges[done].last + 1
            done += 1
        del ranges[:done]

    # Helpers of the events.

    def _acknowledged(
        self, member_id: str, first: int, last: int, kind: AcknowledgeType, now_ms: int
    ) -> Iterator[InFlightRange]:
        if last >= self.end_offset:
            raise _invalid(f"Offsets {first} to {last} were not acquired")
        for one in self._overlapping(first, last):
            if one.state is not _ACQUIRED or one.member_id != member_id:
                raise GroupError(
                    ErrorCode.INVALID_RECORD_STATE,
                    f"Offsets {one.first} to {one.last} are not acquired by member {member_id!r}",
                )
            if kind is AcknowledgeType.RENEW:
                yield one._replace(deadline_ms=now_ms + self.config.lock_duration_ms)
            elif kind is AcknowledgeType.RELEASE:
                state = self._not_above_limit(_AVAILABLE, one.delivery_count)
                yield InFlightRange(one.first, one.last, state, one.delivery_count)
            else:
                state = _ACKNOWLEDGED if kind is AcknowledgeType.ACCEPT else _ARCHIVED
                yield InFlightRange(one.first, one.last, state, one.delivery_count)

    def _make_available(self, ranges: Sequence[InFlightRange]) -> int:
        for one in ranges:
            state = self._not_above_limit(_AVAILABLE, one.delivery_count)
            if state is _ARCHIVED:
                self._archived_count += one.size
            self.replay(InFlightRange(one.first, one.last, state, one.delivery_count))
        return sum(one.size for one in ranges)

    def _not_above_limit(self, state: RecordState, delivery_count: int) -> RecordState:
        is_above = state is _AVAILABLE and delivery_count >= self.config.delivery_count_limit
        return _ARCHIVED if is_above else state

    def _available(self, first: int, last: int, limit_offset: int) -> Iterator[InFlightRange]:
        """Yield what may be acquired of some offsets, with those that were never delivered."""
        for one in self._overlapping(first, last):
            if one.state is _AVAILABLE:
                yield one
        first, last = max(first, self.end_offset), min(last, limit_offset - 1)
        if first <= last:
            yield InFlightRange(first, last, _AVAILABLE)

    def _archive(self, first: int, last: int) -> None:
        """Archive the offsets that could be acquired, of a range that has no records."""
        for one in list(self._available(max(first, self.start_offset), last, last + 1)):
            self.replay(one._replace(state=_ARCHIVED))

    def _fill(self, end_offset: int) -> None:
        """Let ranges follow one another up to an offset: what was left out is available."""
        if end_offset > self.end_offset:
            self.replay(InFlightRange(self.end_offset, end_offset - 1, _AVAILABLE))

    def _overlapping(self, first: int, last: int) -> Iterator[InFlightRange]:
        """Yield what is in flight of some offsets, as ranges cut to them."""
        for one in self._ranges[self._index_of(max(first, self.start_offset)) :]:
            if one.first > last:
                return
            yield one._replace(first=max(one.first, first), last=min(one.last, last))

    def _index_of(self, offset: int) -> int:
        """Return the index of the range that has an offset; one past the last from the end on."""
        if offset >= self.end_offset:
            return len(self._ranges)
        return bisect_right(self._ranges, offset, key=_first) - 1


def restored(state: ShareState, config: SharePartitionConfig) -> SharePartition:
    """Return the share partition of a stored state."""
    return SharePartition(state.start_offset, state.batches, config)


def _append(ranges: list[InFlightRange], change: InFlightRange) -> None:
    """Append a range, or extend the last one by it if they are alike."""
    last = ranges[-1] if ranges else None
    if last is not None and last[2:] == change[2:] and last.last + 1 == change.first:
        ranges[-1] = last._replace(last=change.last)
    else:
        ranges.append(change)


def _runs(batch: AcknowledgementBatch) -> Iterator[tuple[int, int, AcknowledgeType]]:
    """Yield the runs of equal types of a batch: first and last offset, type."""
    first, last, types = batch
    if last < first or first < 0:
        raise _invalid(f"Invalid offsets {first} to {last}")
    if len(types) not in (1, last - first + 1):
        raise _invalid(f"{len(types)} acknowledgement types for {last - first + 1} offsets")
    if len(types) == 1:
        yield first, last, _type_of(types[0])
        return
    start = 0
    for at in range(1, len(types) + 1):
        if at == len(types) or types[at] != types[start]:
            yield first + start, first + at - 1, _type_of(types[start])
            start = at


def _type_of(value: int) -> AcknowledgeType:
    try:
        return AcknowledgeType(value)
    except ValueError:
        raise _invalid(f"Unknown acknowledgement type {value}") from None


def _invalid(message: str) -> GroupError:
    return GroupError(ErrorCode.INVALID_REQUEST, message)


def _first(one: InFlightRange) -> int:
    return one.first
