"""Reading for `ottla consume`: offset ranges, the newest records, and as a group member."""

from __future__ import annotations

import heapq
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, cast

from ottla.client.consumer.ranges import Bounds, between

from .record_filter import Filter

if TYPE_CHECKING:
    from ottla.client.consumer.consumer import Consumer
    from ottla.client.share.consumer import ShareConsumer
    from ottla.client.types import ConsumerRecord, ShareRecord, TopicPartition

    from .output import Progress

_MAX_RECORDS = 2000
_POLL_SECONDS = 0.2


class Printer:
    """Prints records that match a filter, up to a maximum."""

    def __init__(
        self,
        write: Callable[[ConsumerRecord], bytes],
        record_filter: Filter,
        max_records: int | None,
    ) -> None:
        self._write = write
        self._filter = record_filter
        self._remaining = max_records
        self._stdout = sys.stdout.buffer

    @property
    def is_done(self) -> bool:
        """Whether the maximum was printed."""
        return self._remaining == 0

    @property
    def max_records(self) -> int:
        """Maximum number of records to poll for."""
        return _MAX_RECORDS if self._remaining is None else min(_MAX_RECORDS, self._remaining)

    def print(self, records: Iterable[ConsumerRecord]) -> None:
        """Print records and flush: a reader may be waiting."""
        for record in records:
            if self.is_done:
                break
            if self._filter.matches(record):
                self._stdout.write(self._write(record))
                if self._remaining is not None:
                    self._remaining -= 1
        self._stdout.flush()


async def consume_between(
    consumer: Consumer, bounds: Bounds, printer: Printer, bar: Progress | None = None
) -> None:
    """Print the records within bounds."""
    async for _, records in between(consumer, bounds):
        printer.print(records)
        if bar is not None:
            bar.advance(len(records))
        if printer.is_done:
            return


async def print_last(
    consumer: Consumer,
    bounds: Mapping[TopicPartition, tuple[int, int]],
    earliest: Mapping[TopicPartition, int],
    count: int,
    printer: Printer,
) -> None:
    """Print the newest records over all partitions, oldest first.

    Offsets may be those of transaction markers, or of records that were compacted or aborted: then
    twice as many offsets are read before those that were, and so on.
    """
    newest: list[tuple[int, TopicPartition, int, ConsumerRecord]] = []
    found: Counter[TopicPartition] = Counter()
    while bounds:
        async for tp, records in between(consumer, bounds):
            found[tp] += len(records)
            for record in records:
                entry = (record.timestamp, tp, record.offset, record)
                if len(newest) < count:
                    heapq.heappush(newest, entry)
                else:
                    heapq.heappushpop(newest, entry)
        bounds = {
            tp: (max(earliest[tp], start - 2 * (end - start)), start)
            for tp, (start, end) in bounds.items()
            if found[tp] < count and start > earliest[tp]
        }
    printer.print(record for *_, record in sorted(newest))


async def consume_as_member(
    consumer: Consumer, printer: Printer, bar: Progress, *, is_endless: bool
) -> None:
    """Print the records assigned to this member, consuming no more than are printed."""
    from ottla.client.errors import ConsumerError

    while not printer.is_done:
        polled = await consumer.getmany(_POLL_SECONDS, printer.max_records)
        for records in polled.values():
            printer.print(records)
            bar.advance(len(records))
        if polled or is_endless or not consumer.assignment:
            continue
        with suppress(ConsumerError):  # a partition was just reassigned
            if not any((await consumer.lag()).values()):
                return


async def consume_as_share_member(
    consumer: ShareConsumer,
    printer: Printer,
    bar: Progress,
    acknowledge: Callable[[ShareRecord], object],
    *,
    is_endless: bool,
) -> None:
    """Print the records that this member acquires, and acknowledge each after it is printed."""
    while not printer.is_done:
        polled = await consumer.getmany(_POLL_SECONDS, printer.max_records)
        for records in polled.values():
            # They have all fields of other records.
            printer.print(cast("list[ConsumerRecord]", records))
            bar.advance(len(records))
            for record in records:
                acknowledge(record)
        if polled:
            await consumer.commit()
        elif not is_endless and consumer.lock_duration is not None:
            return
