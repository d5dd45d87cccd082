"""The result of `send_many` and `send_arrow`: offset ranges instead of a future per record."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .partition_queue import PartitionQueue


class OffsetRange(NamedTuple):
    """Consecutive records of one `send_many` or `send_arrow` in a partition."""

    topic: str
    partition: int
    #: -1 if the broker did not return it (acks=0).
    base_offset: int
    record_count: int


class BulkSend:
    """The records of one call, which are awaited together."""

    __slots__ = ("_done", "_ranges", "error", "pending", "queues")

    def __init__(self) -> None:
        #: Records that are neither acknowledged nor failed.
        self.pending = 0
        #: The first error. No more records are added after it.
        self.error: Exception | None = None
        #: Queues whose open batch may linger with records of this call.
        self.queues: set[PartitionQueue] = set()
        self._ranges: list[OffsetRange] = []
        self._done: asyncio.Future[None] | None = None

    async def wait(self) -> None:
        """Wait until no record is pending."""
        if self.pending:
            self._done = asyncio.get_running_loop().create_future()
            await self._done

    def complete(self, acknowledged: OffsetRange) -> None:
        """Record that consecutive records were acknowledged."""
        _append(self._ranges, acknowledged)
        self._settle(acknowledged.record_count)

    def fail(self, record_count: int, error: Exception) -> None:
        """Record that some records failed."""
        self.error = self.error or error
        self._settle(record_count)

    def ranges(self) -> list[OffsetRange]:
        """Return what was acknowledged, with adjacent ranges merged."""
        return merge(sorted(self._ranges))

    def _settle(self, record_count: int) -> None:
        self.pending -= record_count
        if not self.pending and self._done is not None and not self._done.done():
            self._done.set_result(None)


class BulkRun:
    """Consecutive records of a batch that belong to one `BulkSend`."""

    __slots__ = ("bulk", "count", "first")

    def __init__(self, bulk: BulkSend, first: int, count: int = 0) -> None:
        self.bulk = bulk
        self.first = first
        self.count = count


def merge(ranges: Iterable[OffsetRange]) -> list[OffsetRange]:
    """Merge adjacent ranges of a sorted sequence."""
    merged: list[OffsetRange] = []
    for item in ranges:
        _append(merged, item)
    return merged


def _append(ranges: list[OffsetRange], item: OffsetRange) -> None:
    """Append a range, or extend the last one if `item` follows it."""
    last = ranges[-1] if ranges else None
    if (
        last is not None
        and last.partition == item.partition
        and item.base_offset in (-1, last.base_offset + last.record_count)
    ):
        ranges[-1] = last._replace(record_count=last.record_count + item.record_count)
    else:
        ranges.append(item)
