"""What the application is given next, and what it has in its hands.

Records are handed out in slices: lists over which `async for` runs without coming here. Nothing is
written down for each record, then; how far the application is in a slice can be seen from the
iterator that it takes them from. Partitions take turns, a chunk each.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from operator import length_hint
from typing import NamedTuple

from ..errors import KafkaError
from ..types import ConsumerRecord, Deserializer
from .fetched_data import FetchedData, FetchedSlice, deserialize
from .positions import AssignedPartition, Positions

#: How many records are handed out before the event loop may get its turn.
SLICE_RECORDS = 500


class Taken(NamedTuple):
    """Records of a partition that are about to be given; or one that was not understood."""

    partition: AssignedPartition
    records: list[ConsumerRecord]
    next_offset: int
    bad: Exception | None = None


class Delivery:
    """The way from what was fetched to the application."""

    def __init__(
        self,
        positions: Positions,
        key: Deserializer | None,
        value: Deserializer | None,
        on_drained: Callable[[], None],
    ) -> None:
        self._positions = positions
        self._key, self._value = key, value
        self._on_drained = on_drained
        #: The records that are being handed out one by one.
        self.iterator: Iterator[ConsumerRecord] = iter(())
        self._slice = FetchedSlice([], -1)
        self._partition: AssignedPartition | None = None
        self._given: list[AssignedPartition] = []
        self._queue: deque[AssignedPartition] = deque()
        self._errors: deque[Exception] = deque()
        #: There may be something to take.
        self.arrived = asyncio.Event()
        #: The application may have nothing in its hands.
        self.is_put_down = asyncio.Event()

    def offer(self, partition: AssignedPartition) -> None:
        """Take note that there is something in a partition."""
        if not partition.is_queued and partition.has_something and partition.is_deliverable:
            partition.is_queued = True
            self._queue.append(partition)
            self.arrived.set()

    def report(self, error: Exception) -> None:
        """Let the application hear of something when it asks next."""
        self._errors.append(error)
        self.arrived.set()

    def take(self, most: int = SLICE_RECORDS) -> Taken | None:
        """Give what comes next, if there is anything. Raises what went wrong meanwhile."""
        while (partition := self._first()) is not None:
            try:
                found = partition.take(most)
            except KafkaError:
                # It may have come to harm on the way: it is fetched again.
                partition.discard()
                self._on_drained()
                raise
            if found is None:
                self._queue.rotate(-1)
                self._on_drained()
            elif found.records:
                return self._understood(partition, found)
            else:
                partition.give(found.next_offset, partition.leader_epoch)
                partition.put_down()
        self.arrived.clear()
        return None

    def take_chunk(self) -> tuple[AssignedPartition, FetchedData] | None:
        """Give what was fetched of a partition, undecoded, if there is anything."""
        while (partition := self._first()) is not None:
            chunk = partition.take_chunk()
            self._queue.rotate(-1)
            self._on_drained()
            if chunk is not None:
                return partition, chunk
            # Records of it were read one by one before: what is left is fetched again.
            partition.discard()
        self.arrived.clear()
        return None

    def hand_out(self, taken: Taken) -> None:
        """Let the application have records one by one."""
        self._partition = taken.partition
        self._slice = FetchedSlice(taken.records, taken.next_offset)
        self.iterator = iter(taken.records)

    def give(self, taken: Taken) -> None:
        """Take note that the application has records, all at once."""
        self.give_up_to(taken.partition, taken.next_offset, taken.records[-1].leader_epoch)

    def give_up_to(self, partition: AssignedPartition, next_offset: int, leader_epoch: int) -> None:
        """Take note that the application has all before an offset."""
        partition.give(next_offset, leader_epoch)
        self._given.append(partition)

    def cut(self, taken: Taken, most: int) -> Taken:
        """Give no more than so many of them; the others come next."""
        partition, records, next_offset, _bad = taken
        if len(records) <= most:
            return taken
        self._put_back(partition, records[most:], next_offset)
        return Taken(partition, records[:most], records[most - 1].offset + 1)

    def skip(self, taken: Taken) -> None:
        """Go on behind a record that was not understood, unless that was sought elsewhere."""
        partition, bad = taken.partition, taken.records[0]
        if not partition.rest or partition.rest[0].records[0] is not bad:
            return
        records, next_offset, _ = partition.rest.popleft()
        if left := records[1:]:
            partition.rest.appendleft(FetchedSlice(left, next_offset))
        self.give_up_to(partition, bad.offset + 1 if left else next_offset, bad.leader_epoch)

    def settle(self) -> None:
        """Find out how far the application is in what is handed out one by one."""
        partition, (records, next_offset, _) = self._partition, self._slice
        given = len(records) - length_hint(self.iterator)
        if partition is not None and given:
            last = records[given - 1]
            is_all = given == len(records)
            partition.give(next_offset if is_all else last.offset + 1, last.leader_epoch)
            partition.done = max(partition.done, last.offset)

    def put_down(self) -> None:
        """Take note that the application asks for more: it is done with what it has."""
        if self._partition is not None:
            self.interrupt([self._partition])
        for partition in self._given:
            partition.put_down()
        self._given.clear()
        self.is_put_down.set()

    def interrupt(self, partitions: Iterable[AssignedPartition]) -> None:
        """Take back what was not given yet, if one of these is being handed out."""
        partition = self._partition
        if partition is None or partition not in partitions:
            return
        self.settle()
        self._put_back(partition, list(self.iterator), self._slice.next_offset)
        self._given.append(partition)
        self._partition = None
        self._slice = FetchedSlice([], -1)
        self.iterator = iter(())

    def forget(self, partitions: Iterable[AssignedPartition]) -> None:
        """Take note that partitions are not this consumer's any more, or are read elsewhere."""
        self.interrupt(partitions)
        self._given = [one for one in self._given if one not in partitions]
        self.is_put_down.set()

    def _first(self) -> AssignedPartition | None:
        """Give the partition whose turn it is. Raises what went wrong meanwhile."""
        if self._errors:
            raise self._errors.popleft()
        queue = self._queue
        while queue:
            partition = queue[0]
            if (
                partition.has_something
                and partition.is_deliverable
                and self._positions.has(partition)
            ):
                if partition.error is not None:
                    error, partition.error = partition.error, None
                    self._on_drained()
                    raise error
                return partition
            queue.popleft()
            partition.is_queued = False
        return None

    def _put_back(
        self, partition: AssignedPartition, left: list[ConsumerRecord], next_offset: int
    ) -> None:
        if not left:
            return
        partition.rest.appendleft(FetchedSlice(left, next_offset, is_deserialized=True))
        if partition.is_queued:
            self._queue.remove(partition)
        partition.is_queued = True
        self._queue.appendleft(partition)
        self.arrived.set()

    def _understood(self, partition: AssignedPartition, found: FetchedSlice) -> Taken:
        if found.is_deserialized or (self._key is None and self._value is None):
            return Taken(partition, found.records, found.next_offset)
        made, error = deserialize(found.records, self._key, self._value)
        if error is None:
            return Taken(partition, made, found.next_offset)
        # The one that was not understood stays where it is until somebody has dealt with it.
        left = found.records[len(made) :]
        partition.rest.appendleft(FetchedSlice(left, found.next_offset))
        if made:
            return Taken(partition, made, left[0].offset)
        return Taken(partition, left[:1], left[0].offset + 1, error)
