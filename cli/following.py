"""Reading for `ottla consume`: between offsets, the newest, and as a member of a group."""

from __future__ import annotations

import heapq
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from .filters import Filter

if TYPE_CHECKING:
    from ottla.client.consumer.consumer import Consumer
    from ottla.client.types import ConsumerRecord, TopicPartition

    from .output import Progress

#: From which offset to which, the latter not included; None: for ever.
Bounds = Mapping["TopicPartition", tuple[int, int | None]]

_MOST_RECORDS = 2000
# Records may be missing at an end, where a log is compacted: then only the position tells that it
# has been reached, and somebody has to look.
_LOOK_SECONDS = 0.2


class Printer:
    """Prints the records that are wanted, as many as are wanted."""

    def __init__(
        self, write: Callable[[ConsumerRecord], bytes], wanted: Filter, most: int | None
    ) -> None:
        self._write = write
        self._wanted = wanted
        self._left = most
        self._stdout = sys.stdout.buffer

    @property
    def is_done(self) -> bool:
        """Whether there are enough."""
        return self._left == 0

    @property
    def most(self) -> int:
        """How many records it is worth to ask for."""
        return _MOST_RECORDS if self._left is None else min(_MOST_RECORDS, self._left)

    def print(self, records: Iterable[ConsumerRecord]) -> None:
        """Print records, at once: somebody may be waiting for them."""
        for record in records:
            if self.is_done:
                break
            if self._wanted.takes(record):
                self._stdout.write(self._write(record))
                if self._left is not None:
                    self._left -= 1
        self._stdout.flush()


async def between(
    consumer: Consumer, bounds: Bounds
) -> AsyncIterator[tuple[TopicPartition, list[ConsumerRecord]]]:
    """Give what is between offsets, a list of one partition's at a time."""
    left = {place for place, (start, stop) in bounds.items() if stop is None or start < stop}
    consumer.assign(left)
    for place in left:
        consumer.seek(place, bounds[place][0])
    while left:
        found = await consumer.getmany(_LOOK_SECONDS, _MOST_RECORDS)
        for place, records in found.items():
            stop = bounds[place][1]
            yield place, [one for one in records if stop is None or one.offset < stop]
        reached = {
            place
            for place in left
            if (stop := bounds[place][1]) is not None and await consumer.position(place) >= stop
        }
        if reached:
            left -= reached
            consumer.assign(left)


async def consume_between(
    consumer: Consumer, bounds: Bounds, printer: Printer, bar: Progress | None = None
) -> None:
    """Print what is between offsets."""
    async for _, records in between(consumer, bounds):
        printer.print(records)
        if bar is not None:
            bar.advance(len(records))
        if printer.is_done:
            return


async def print_last(consumer: Consumer, bounds: Bounds, count: int, printer: Printer) -> None:
    """Print the newest records of all partitions together, the oldest of them first."""
    newest: list[tuple[int, TopicPartition, int, ConsumerRecord]] = []
    async for place, records in between(consumer, bounds):
        for record in records:
            entry = (record.timestamp, place, record.offset, record)
            if len(newest) < count:
                heapq.heappush(newest, entry)
            else:
                heapq.heappushpop(newest, entry)
    printer.print(record for *_, record in sorted(newest))


async def consume_as_member(
    consumer: Consumer, printer: Printer, bar: Progress, *, is_endless: bool
) -> None:
    """Print what a group gives to this member; no more is taken than is printed."""
    from ottla.client.errors import ConsumerError

    while not printer.is_done:
        found = await consumer.getmany(_LOOK_SECONDS, printer.most)
        for records in found.values():
            printer.print(records)
            bar.advance(len(records))
        if found or is_endless or not consumer.assignment:
            continue
        with suppress(ConsumerError):  # a partition has just gone to another member
            if not any((await consumer.lag()).values()):
                return
