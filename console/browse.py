"""Reads of records: a page of them, the newest ones, all for an export, and live tails.

A page reads forward from a position in each partition, until it has enough records that match, has
reached the ends that the partitions had when it began, or has used up its time, bytes or records.
Its cursor says where the next page begins. The newest records are found by reading the last offsets
of each partition; their cursor, which begins with "-", says where older ones end.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Literal

from ottla.client import ConsumerRecord, TopicPartition
from ottla.client.consumer.ranges import between

from .cluster_client import ClusterClient
from .problems import Problem
from .record_filter import RecordFilter

Isolation = Literal["read_uncommitted", "read_committed"]

_CURSOR = re.compile(r"-?[0-9]{1,10}:[0-9]{1,19}(,[0-9]{1,10}:[0-9]{1,19})*")
#: What fits a URL: a topic of more than some thousand partitions has no next page.
MAX_CURSOR_CHARACTERS = 60_000
_OLDER = "-"
_MAX_OFFSET = 2**63 - 1
_MAX_MILLISECONDS = 2**62
#: What ended a query.
Stop = Literal["limit", "end", "time", "bytes", "records"]


@dataclass(frozen=True, slots=True)
class Start:
    """Where a query starts: the newest records, the first ones, an offset, or a time."""

    kind: Literal["newest", "start", "offset", "time"]
    number: int = 0

    @classmethod
    def parse(cls, text: str) -> Start:
        """Parse newest, start, an offset, ISO 8601 or @MILLISECONDS. Raises Problem."""
        if text in ("newest", "start"):
            return cls(text)  # type: ignore[arg-type]
        if re.fullmatch("[0-9]{1,19}", text) and int(text) <= _MAX_OFFSET:
            return cls("offset", int(text))
        if re.fullmatch("@[0-9]{1,18}", text):
            return cls("time", int(text[1:]))
        try:
            moment = datetime.fromisoformat(text)
            # Without a zone: UTC, as everything that the console shows.
            moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
            number = int(moment.timestamp() * 1000)
        except (ValueError, OverflowError):
            number = -1
        if not 0 <= number < _MAX_MILLISECONDS:
            raise Problem(
                422,
                f"Invalid start {text!r}: use newest, start, an offset, an ISO 8601 time, or"
                " @MILLISECONDS",
            )
        return cls("time", number)


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to read."""

    topic: str
    #: None: all partitions.
    partition: int | None = None
    start: Start = Start("newest")
    #: Replaces `start`: where the page before ended.
    cursor: str | None = None
    limit: int = 50
    isolation: Isolation = "read_uncommitted"

    @property
    def is_backward(self) -> bool:
        """Whether it reads the newest records, or those before them."""
        if self.cursor is not None:
            return self.cursor.startswith(_OLDER)
        return self.start.kind == "newest"


@dataclass(slots=True)
class Found:
    """The records of a page, and how it ended."""

    records: list[ConsumerRecord] = field(default_factory=list)
    scanned: int = 0
    scanned_bytes: int = 0
    stop: Stop = "end"
    cursor: str | None = None


class Reader:
    """Reads records, with a bound on how many queries run at a time."""

    def __init__(self, client: ClusterClient, queries: asyncio.Semaphore) -> None:
        self._client = client
        self._limits = client.config.limits
        self._queries = queries

    async def page(self, query: Query, record_filter: RecordFilter) -> Found:
        """Return a page of records. Raises Problem."""
        found = Found()
        async with self._slot():
            ranges, starts = await self._ranges(query, record_filter)
            if query.is_backward:
                await self._read(query, ranges, record_filter, found, self._limits.scanned_records)
                _keep_newest(found, query.limit, ranges, starts)
            else:
                await self._read(query, ranges, record_filter, found, query.limit)
        if found.cursor is not None and len(found.cursor) > MAX_CURSOR_CHARACTERS:
            found.cursor = None
        return found

    async def _read(
        self,
        query: Query,
        ranges: Mapping[TopicPartition, tuple[int, int]],
        record_filter: RecordFilter,
        found: Found,
        limit: int,
    ) -> None:
        """Add matching records to `found`, and say where it stopped."""
        next_offsets = {tp: start for tp, (start, end) in ranges.items() if start < end}
        try:
            async with (
                asyncio.timeout(self._limits.query_seconds),
                self._client.consumer(query.isolation) as consumer,
                aclosing(between(consumer, ranges)) as batches,
            ):
                async for tp, records in batches:
                    await self._add(records, record_filter, found, limit, next_offsets)
                    if len(found.records) >= limit:
                        found.stop = "limit"
                        break
                    if found.scanned_bytes >= self._limits.scanned_bytes:
                        found.stop = "bytes"
                        break
                    if found.scanned >= self._limits.scanned_records:
                        found.stop = "records"
                        break
                    if next_offsets.get(tp, 0) >= ranges[tp][1]:
                        next_offsets.pop(tp, None)
                else:
                    next_offsets.clear()
        except TimeoutError:
            found.stop = "time"
        remaining = {tp: at for tp, at in next_offsets.items() if at < ranges[tp][1]}
        if remaining:
            found.cursor = _cursor(remaining)
        elif found.stop != "limit" or len(found.records) <= limit:
            found.stop = "end"

    async def _add(
        self,
        records: Sequence[ConsumerRecord],
        record_filter: RecordFilter,
        found: Found,
        limit: int,
        next_offsets: dict[TopicPartition, int],
    ) -> None:
        """Add those of a batch that match, in slices, so that not much more than needed is read."""
        size = 1 if limit == 1 else 200
        for first in range(0, len(records), size):
            part = records[first : first + size]
            matching = await record_filter.select(part)
            room = limit - len(found.records)
            if len(matching) > room:
                matching = matching[:room]
                part = [one for one in part if one.offset <= matching[-1].offset]
            found.records += matching
            found.scanned += len(part)
            found.scanned_bytes += sum(map(size_of, part))
            last = part[-1]
            next_offsets[TopicPartition(last.topic, last.partition)] = last.offset + 1
            if (
                len(found.records) >= limit
                or found.scanned_bytes >= self._limits.scanned_bytes
                or found.scanned >= self._limits.scanned_records
            ):
                return

    async def export(
        self, query: Query, record_filter: RecordFilter
    ) -> AsyncGenerator[list[ConsumerRecord], None]:
        """Yield lists of records, up to the limits of exports."""
        async with self._slot():
            ranges, _ = await self._ranges(query, record_filter)
            remaining = query.limit
            async with (
                self._client.consumer(query.isolation) as consumer,
                aclosing(between(consumer, ranges)) as batches,
            ):
                deadline = asyncio.get_running_loop().time() + self._limits.export_seconds
                async for _, records in batches:
                    for first in range(0, len(records), 200):
                        matching = await record_filter.select(records[first : first + 200])
                        yield matching[:remaining]
                        remaining -= len(matching)
                        if remaining <= 0 or asyncio.get_running_loop().time() > deadline:
                            return

    async def tail(
        self, query: Query, record_filter: RecordFilter
    ) -> AsyncGenerator[list[ConsumerRecord], None]:
        """Yield new records as they are written, and an empty list when there are none."""
        tps = await self._partitions(query)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._limits.tail_seconds
        async with self._client.consumer(query.isolation) as consumer:
            consumer.assign(tps)
            consumer.seek_to_end(*tps)
            await asyncio.gather(*map(consumer.position, tps))
            yield []
            while loop.time() < deadline:
                polled = await consumer.getmany(1.0, 200)
                records = [one for some in polled.values() for one in some]
                yield await record_filter.select(records)

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        if self._queries.locked():
            raise Problem(429, "Too many queries at a time; try again")
        async with self._queries:
            yield

    async def _partitions(self, query: Query) -> list[TopicPartition]:
        described = await self._client.admin.describe_topics(query.topic)
        partitions = described[query.topic].partitions
        chosen = [
            TopicPartition(query.topic, one.partition)
            for one in partitions
            if query.partition in (None, one.partition)
        ]
        if not chosen:
            raise Problem(404, f"Topic {query.topic!r} has no partition {query.partition}")
        return chosen

    async def _ranges(
        self, query: Query, record_filter: RecordFilter
    ) -> tuple[dict[TopicPartition, tuple[int, int]], dict[TopicPartition, int]]:
        """Return the offsets to read in each partition, and its first; none without a leader."""
        tps = await self._partitions(query)
        available = {
            tp: (start, end)
            for tp, (start, end) in (await self._client.offsets(tps)).items()
            if start is not None and end is not None
        }
        if not available:
            raise Problem(503, f"No partition of topic {query.topic!r} has a leader")
        firsts = {tp: start for tp, (start, _) in available.items()}
        if query.is_backward:
            return self._backward_ranges(query, record_filter, available), firsts
        if query.cursor is not None:
            starts = _parse_cursor(query.cursor, query.topic)
        elif query.start.kind == "offset":
            starts = dict.fromkeys(available, query.start.number)
        elif query.start.kind == "time":
            times = dict.fromkeys(available, query.start.number)
            by_time = await self._client.admin.offsets_for_times(times)
            starts = {
                tp: available[tp][1] if found is None else found.offset
                for tp, found in by_time.items()
            }
        else:
            starts = firsts
        ranges = {
            tp: (min(max(starts[tp], start), end), end)
            for tp, (start, end) in available.items()
            if tp in starts
        }
        return ranges, firsts

    def _backward_ranges(
        self,
        query: Query,
        record_filter: RecordFilter,
        available: Mapping[TopicPartition, tuple[int, int]],
    ) -> dict[TopicPartition, tuple[int, int]]:
        """Return the last offsets of each partition, or those before a cursor."""
        ends = {tp: end for tp, (_, end) in available.items()}
        if query.cursor is not None:
            ends = _parse_cursor(query.cursor, query.topic)
        # A filter may match few of the last records.
        each = self._limits.scanned_records // 10 // len(available)
        count = max(query.limit, each) if record_filter.is_selective else query.limit
        ranges = {}
        for tp, (start, end) in available.items():
            if tp in ends:
                before = min(max(ends[tp], start), end)
                ranges[tp] = (max(before - count, start), before)
        return ranges


def _keep_newest(
    found: Found,
    limit: int,
    ranges: Mapping[TopicPartition, tuple[int, int]],
    firsts: Mapping[TopicPartition, int],
) -> None:
    """Keep the newest records; the cursor then says where older ones end.

    Of each partition the last ones are kept, also if their timestamps are not in order.
    """
    by_partition: dict[TopicPartition, list[ConsumerRecord]] = {tp: [] for tp in ranges}
    for one in found.records:
        by_partition[TopicPartition(one.topic, one.partition)].append(one)
    newest_first = heapq.merge(
        *(reversed(some) for some in by_partition.values()),
        key=lambda one: (-one.timestamp, -one.partition),
    )
    kept = list(islice(newest_first, limit))
    is_complete = found.stop == "end"
    if len(kept) < len(found.records):
        found.stop = "limit"
    found.records = kept[::-1]
    found.cursor = None
    if is_complete:
        counts = Counter(one.partition for one in kept)
        ends = {}
        for tp, some in by_partition.items():
            dropped = some[: len(some) - counts[tp.partition]]
            ends[tp] = dropped[-1].offset + 1 if dropped else ranges[tp][0]
        older = {tp: end for tp, end in ends.items() if end > firsts[tp]}
        found.cursor = f"{_OLDER}{_cursor(older)}" if older else None


def _cursor(offsets: Mapping[TopicPartition, int]) -> str:
    return ",".join(f"{tp.partition}:{at}" for tp, at in sorted(offsets.items()))


def _parse_cursor(text: str, topic: str) -> dict[TopicPartition, int]:
    if len(text) > MAX_CURSOR_CHARACTERS or not _CURSOR.fullmatch(text):
        raise Problem(422, "Invalid cursor: use the one of the page before")
    pairs = (pair.split(":") for pair in text.removeprefix(_OLDER).split(","))
    return {
        TopicPartition(topic, int(partition)): min(int(offset), _MAX_OFFSET)
        for partition, offset in pairs
    }


def size_of(record: ConsumerRecord) -> int:
    """Return the bytes of a record's key, value and headers."""
    headers = sum(len(name) + len(value or b"") for name, value in record.headers)
    return len(record.key or b"") + len(record.value or b"") + headers
