"""Delivery of fetched records to the application.

Records are delivered in slices: lists that `async for` iterates without calling this module. No
bookkeeping is done per record, therefore; how far the application has come within a slice is read
off the iterator (its length hint). Partitions take turns, one fetched data each.
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

#: Records that are delivered before the event loop may get its turn.
SLICE_RECORDS = 500


class ReadyRecords(NamedTuple):
    """Records to deliver; with an `error`, the one record that could not be deserialized."""

    partition: AssignedPartition
    records: list[ConsumerRecord]
    next_offset: int
    #: Of what is before `next_offset`.
    leader_epoch: int
    error: Exception | None = None


class Delivery:
    """Takes records from fetch buffers, and tracks what the application has."""

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
        #: The records that are delivered one by one, and whose they are.
        self.iterator: Iterator[ConsumerRecord] = iter(())
        self._slice = FetchedSlice([], -1)
        self._iterated: AssignedPartition | None = None
        #: Partitions of which records are being processed.
        self._processing: list[AssignedPartition] = []
        self._queue: deque[AssignedPartition] = deque()
        self._errors: deque[Exception] = deque()
        #: There may be something to take.
        self.arrived = asyncio.Event()
        #: The application may have nothing left to process.
        self.processing_ended = asyncio.Event()

    def enqueue(self, partition: AssignedPartition) -> None:
        """Queue a partition that has records or an error to deliver."""
        if not partition.is_queued and partition.has_something and partition.is_deliverable:
            partition.is_queued = True
            self._queue.append(partition)
            self.arrived.set()

    def report(self, error: Exception) -> None:
        """Raise an error to the application the next time it asks."""
        self._errors.append(error)
        self.arrived.set()

    def take(self, max_records: int = SLICE_RECORDS) -> ReadyRecords | None:
        """Return the next records, if there are any. Raises errors that were reported."""
        while (partition := self._next_partition()) is not None:
            try:
                taken = partition.buffer.take(max_records)
            except KafkaError:
                # The batch may be corrupt in memory only: fetch it again.
                partition.discard()
                self._on_drained()
                raise
            if taken is None:
                self._queue.rotate(-1)
                self._on_drained()
            elif taken.records:
                return self._deserialized(partition, taken)
            else:
                partition.deliver_up_to(taken.next_offset, taken.leader_epoch)
                partition.mark_consumed()
        self.arrived.clear()
        return None

    def take_fetched(self) -> tuple[AssignedPartition, FetchedData] | None:
        """Return the next fetched data, undecoded, if there is any."""
        while (partition := self._next_partition()) is not None:
            data = partition.buffer.take_fetched()
            self._queue.rotate(-1)
            self._on_drained()
            if data is not None:
                return partition, data
            # Some of its records were delivered one by one: fetch the others again.
            partition.discard()
        self.arrived.clear()
        return None

    def deliver_one_by_one(self, ready: ReadyRecords) -> None:
        """Deliver records through `iterator`."""
        self._iterated = ready.partition
        self._slice = FetchedSlice(ready.records, ready.next_offset, ready.leader_epoch)
        self.iterator = iter(ready.records)

    def deliver(self, ready: ReadyRecords) -> None:
        """Record that the application was given these records, all at once."""
        self.deliver_up_to(ready.partition, ready.next_offset, ready.leader_epoch)

    def deliver_up_to(
        self, partition: AssignedPartition, next_offset: int, leader_epoch: int
    ) -> None:
        """Record that the application was given everything before an offset."""
        partition.deliver_up_to(next_offset, leader_epoch)
        partition.has_uncommitted = True
        self._processing.append(partition)

    def limit(self, ready: ReadyRecords, max_records: int) -> ReadyRecords:
        """Return no more than `max_records`; the others come next."""
        partition, records, next_offset, leader_epoch, _error = ready
        if len(records) <= max_records:
            return ready
        self._put_back(partition, FetchedSlice(records[max_records:], next_offset, leader_epoch))
        last = records[max_records - 1]
        return ReadyRecords(partition, records[:max_records], last.offset + 1, last.leader_epoch)

    def skip(self, ready: ReadyRecords) -> None:
        """Continue after a record that could not be deserialized, unless there was a seek."""
        partition, record = ready.partition, ready.records[0]
        next_offset = partition.buffer.skip(record)
        if next_offset is not None:
            self.deliver_up_to(partition, next_offset, record.leader_epoch)

    def update_position(self) -> None:
        """Update the position of the partition that is iterated from its iterator.

        All that was taken from the iterator, except the last record, is consumed.
        """
        partition, (records, next_offset, leader_epoch, _) = self._iterated, self._slice
        delivered = len(records) - length_hint(self.iterator)
        if partition is not None and delivered:
            last = records[delivered - 1]
            if delivered == len(records):
                partition.deliver_up_to(next_offset, leader_epoch)
            else:
                partition.deliver_up_to(last.offset + 1, last.leader_epoch)
            partition.consumed = max(partition.consumed, last.offset)
            partition.has_uncommitted = True

    def mark_consumed(self) -> None:
        """Mark all that was delivered as consumed: the application asks for more."""
        if self._iterated is not None:
            self.take_back([self._iterated])
        for partition in self._processing:
            partition.mark_consumed()
        self._processing.clear()
        self.processing_ended.set()

    def take_back(self, partitions: Iterable[AssignedPartition]) -> None:
        """Stop iterating, if it is over one of these; its undelivered records are put back."""
        partition = self._iterated
        if partition is None or partition not in partitions:
            return
        self.update_position()
        self._put_back(partition, self._slice._replace(records=list(self.iterator)))
        self._processing.append(partition)
        self._iterated = None
        self._slice = FetchedSlice([], -1)
        self.iterator = iter(())

    def forget(self, partitions: Iterable[AssignedPartition]) -> None:
        """Forget what was delivered of partitions that are revoked, or whose position changes."""
        self.take_back(partitions)
        self._processing = [one for one in self._processing if one not in partitions]
        self.processing_ended.set()

    def _next_partition(self) -> AssignedPartition | None:
        """Return the partition whose turn it is. Raises errors that were reported."""
        if self._errors:
            raise self._errors.popleft()
        queue = self._queue
        while queue:
            partition = queue[0]
            if (
                partition.has_something
                and partition.is_deliverable
                and self._positions.is_current(partition)
            ):
                if partition.error is not None:
                    error, partition.error = partition.error, None
                    self._on_drained()
                    raise error
                return partition
            queue.popleft()
            partition.is_queued = False
        return None

    def _put_back(self, partition: AssignedPartition, undelivered: FetchedSlice) -> None:
        if not undelivered.records:
            return
        partition.buffer.put_back(undelivered._replace(is_deserialized=True))
        if partition.is_queued:
            self._queue.remove(partition)
        partition.is_queued = True
        self._queue.appendleft(partition)
        self.arrived.set()

    def _deserialized(self, partition: AssignedPartition, taken: FetchedSlice) -> ReadyRecords:
        if taken.is_deserialized or (self._key is None and self._value is None):
            return ReadyRecords(partition, taken.records, taken.next_offset, taken.leader_epoch)
        records, error = deserialize(taken.records, self._key, self._value)
        if error is None:
            return ReadyRecords(partition, records, taken.next_offset, taken.leader_epoch)
        # The record that failed stays in the buffer until it has been handled: see `skip`.
        undelivered = taken.records[len(records) :]
        partition.buffer.put_back(taken._replace(records=undelivered))
        bad = undelivered[0]
        if records:
            return ReadyRecords(partition, records, bad.offset, records[-1].leader_epoch)
        return ReadyRecords(partition, [bad], bad.offset + 1, bad.leader_epoch, error)
