"""The producer: records in, receipts out.

    async with Producer("localhost:9092") as producer:
        receipt = await producer.send("orders", b"…", key=b"user-1")

        first = await producer.enqueue("orders", b"…")     # pipelined: a future of a receipt
        await producer.send_many("orders", [b"…", b"…"])   # in bulk: no future for each
        await producer.send_arrow("orders", table)         # from Arrow: no object for each
        await producer.flush()

All of them wait while too much waits to be sent, and nothing is taken that is not accounted for: a
record's receipt is given, or fails with what went wrong. Records that one task sends to one
partition are written in the order in which it sent them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from itertools import chain
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from ottla.protocol.batch import HEADER_BYTES
from ottla.protocol.compression import Compression

from ..cluster import Cluster, TopicInfo
from ..config import ClientConfig
from ..errors import ClosedError, ErrorCode, KafkaError, RecordTooLargeError
from ..serializers import to_bytes, to_headers
from ..types import Headers, RecordMetadata, Serializer
from .batch import RECORD_OVERHEAD_BYTES, AnyFuture, Batch, BatchConfig, OffsetRange, Tally, join_to
from .partition_queue import Lane
from .partitioner import (
    ROUND_ROBIN,
    STICKY,
    Partitioner,
    next_in_turn,
    next_sticky,
    partition_of_key,
)
from .sender import Sender

if TYPE_CHECKING:
    import pyarrow as pa

__all__ = ["BatchConfig", "OffsetRange", "Producer", "ProducerRecord"]

_ACKS: dict[str | int, int] = {"all": -1, -1: -1, 1: 1, 0: 0}
_LAST_TIMESTAMP = 2**63 - 1

_HeaderPairs = tuple[tuple[str, bytes | None], ...]


class ProducerRecord(NamedTuple):
    """A record for `send_many` that is more than a value."""

    value: Any
    key: Any = None
    headers: Headers = ()
    partition: int | None = None
    #: In milliseconds; None is now.
    timestamp: int | None = None


# Without the function that a named tuple puts in front, which takes longer than to make it.
_new_record = partial(tuple.__new__, ProducerRecord)


class Many:
    """Records that one call sends, and waits for together."""

    def __init__(self) -> None:
        self.tally = Tally()
        #: Where some may wait for more.
        self.lanes: set[Lane] = set()

    @property
    def has_failed(self) -> bool:
        """Whether there is no use in queueing more."""
        return self.tally.error is not None


class Producer:
    """Sends records to topics. Everything but the addresses is by name.

    `acks` is who has to have a record before it is acknowledged: "all", 1 (the leader) or 0
    (nobody: receipts have no offset, and what is lost is lost). `idempotent` makes sure that what
    is sent again is written once; it goes with acks="all", and is on then unless it is turned off.

    `partitioner` is "sticky", "round-robin" or a function; see `partitioner.py`. `client` has the
    timeouts: what is not acknowledged within `timeouts.operation` fails with DeadlineError.
    """

    def __init__(
        self,
        bootstrap: str | Sequence[str],
        *,
        acks: Literal["all", -1, 0, 1] = "all",
        compression: Literal["none", "gzip", "snappy", "lz4", "zstd"] = "none",
        idempotent: bool | None = None,
        partitioner: Literal["sticky", "round-robin"] | Partitioner = "sticky",
        key_serializer: Serializer | None = None,
        value_serializer: Serializer | None = None,
        batch: BatchConfig | None = None,
        client: ClientConfig | None = None,
    ) -> None:
        if acks not in _ACKS:
            raise ValueError(f"acks={acks!r}: it is 'all', 1 or 0")
        if compression.upper() not in Compression.__members__:
            names = ", ".join(codec.lower() for codec in Compression.__members__)
            raise ValueError(f"compression={compression!r}: it is one of {names}")
        if not callable(partitioner) and partitioner not in (STICKY, ROUND_ROBIN):
            raise ValueError(f"partitioner={partitioner!r}: it is {STICKY!r}, {ROUND_ROBIN!r}")
        if idempotent and acks not in ("all", -1):
            raise ValueError(f"acks={acks!r} with idempotence, which needs acks='all'")
        self._config = batch or BatchConfig()
        self._largest = min(self._config.request_bytes - HEADER_BYTES, self._config.buffer_bytes)
        # Values that are bytes up to this size are sent as they are: most are.
        self._plain_bytes = -1 if value_serializer else self._largest - RECORD_OVERHEAD_BYTES
        self._key_serializer = key_serializer
        self._value_serializer = value_serializer
        self._partitioner = partitioner
        self._cluster = Cluster(bootstrap, client)
        self._sender = Sender(
            self._cluster,
            self._config,
            acks=_ACKS[acks],
            compression=Compression[compression.upper()],
            is_idempotent=acks in ("all", -1) if idempotent is None else idempotent,
        )
        self._topics: dict[str, _Topic] = {}
        # Bytes that were added since others last had a turn.
        self._in_a_row = 0
        self._is_closed = False

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self.close()

    async def send(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> RecordMetadata:
        """Send a record, and give its receipt when it is acknowledged.

        If this is cancelled, the record may or may not be written; others are not touched by it.
        """
        return await (
            await self.enqueue(
                topic, value, key=key, headers=headers, partition=partition, timestamp=timestamp
            )
        )

    async def enqueue(
        self,
        topic: str,
        value: Any = None,
        *,
        key: Any = None,
        headers: Headers = (),
        partition: int | None = None,
        timestamp: int | None = None,
    ) -> asyncio.Future[RecordMetadata]:
        """Queue a record when there is room for it, and give what will be its receipt.

        If this is cancelled, the record is not queued. If the future is cancelled, it may or may
        not be written. A failure that nobody looks at is logged by asyncio.
        """
        pairs: _HeaderPairs = ()
        if (
            type(value) is bytes
            and len(value) <= self._plain_bytes
            and key is timestamp is None
            and not headers
        ):
            size = RECORD_OVERHEAD_BYTES + len(value)
        else:
            key, value, pairs, size = self._prepare(key, value, headers, timestamp)
        known = self._topics.get(topic) or await self._learn(topic)
        future: asyncio.Future[RecordMetadata] = asyncio.Future(loop=known.loop)
        await self._queue(known, future, key, value, pairs, size, partition, timestamp)
        return future

    async def _queue(
        self,
        known: _Topic,
        future: AnyFuture,
        key: bytes | None,
        value: bytes | None,
        pairs: _HeaderPairs,
        size: int,
        partition: int | None,
        timestamp: int | None,
    ) -> None:
        """Queue a record that was prepared when there is room for it."""
        place = known.place(key, value) if partition is None else await known.check(partition)
        if self._is_closed or self._sender.failure is not None:
            self._check_open()
        if self._in_a_row > self._config.batch_bytes:
            await self._let_others_run()
        if not self._sender.room.take(size):
            await self._wait_for_room(size)
        # From here on nothing waits, and nothing fails.
        self._in_a_row += size
        batch = known.batch_for(place, size)
        stamp = time.time_ns() // 1_000_000 if timestamp is None else timestamp
        batch.add(stamp, key, value, pairs, size)
        batch.expect(future)

    async def send_many(self, topic: str, records: Iterable[Any]) -> list[OffsetRange]:
        """Send many records, and say where they are once all are acknowledged.

        Each is a value, or a `ProducerRecord`. If one cannot be sent, or is not acknowledged, those
        behind it in `records` are not sent, and its error is raised when it is known what became of
        those before it; the others of its batch have failed with it. If this is cancelled, any
        number of them may be written.
        """
        many = Many()
        return await self._send_all(many, self._queue_many(topic, records, many))

    async def send_arrow(
        self, topic: str, rows: pa.RecordBatch | pa.Table | Iterable[pa.RecordBatch]
    ) -> list[OffsetRange]:
        """Send rows as `send_many` sends records, without an object for each. It needs pyarrow.

        Their columns are taken by name: `value`, and where they are there `key`, `headers`,
        `partition` and `timestamp`. A value that is null is a tombstone; where a partition or a
        timestamp is null, it is chosen as for any record.
        """
        from ..arrow.encoder import batches_of  # noqa: PLC0415  # pyarrow need not be there

        many = Many()

        async def queue_all() -> None:
            for batch in batches_of(rows):
                if many.has_failed:
                    break
                await self._queue_arrow(topic, batch, many)

        return await self._send_all(many, queue_all())

    async def flush(self) -> None:
        """Wait until all that was sent so far is acknowledged or has failed. Nothing lingers.

        What failed is told to whoever has the receipt, not here.
        """
        await self._sender.flush()

    async def close(self) -> None:
        """Take no more, wait for what was taken as `flush` does, and close all connections.

        If this is cancelled, what has not been acknowledged fails with ClosedError.
        """
        self._is_closed = True
        self._sender.room.close()
        try:
            await self._sender.flush()
        finally:
            await self._end()

    async def _end(self) -> None:
        try:
            await self._sender.close()
        finally:
            await self._cluster.close()

    async def _send_all(self, many: Many, queueing: Coroutine[Any, Any, None]) -> list[OffsetRange]:
        try:
            await queueing
        except BaseException as error:
            self._sender.hurry_all(many.lanes)
            if isinstance(error, Exception):
                await many.tally.wait()
            raise
        return await self._finish(many)

    async def _finish(self, many: Many) -> list[OffsetRange]:
        """Wait until it is known what became of what was queued; raise what went wrong."""
        self._sender.hurry_all(many.lanes)  # there is no more to wait for
        await many.tally.wait()
        if (error := many.tally.error) is not None:
            raise error
        return _joined(many.tally.written)

    async def _queue_arrow(self, topic: str, batch: pa.RecordBatch, many: Many) -> None:
        from ..arrow.encoder import Rows  # noqa: PLC0415

        known = await self._learn(topic)
        rows, packs = Rows(batch), None
        if self._partitioner == STICKY and not (self._key_serializer or self._value_serializer):
            packs = rows.packs(
                known.count,
                now_ms=time.time_ns() // 1_000_000,
                limit=self._config.batch_bytes - HEADER_BYTES,
                largest=self._largest,
            )
        if packs is None:
            await self._queue_many(topic, map(_new_record, rows.records()), many)
            return
        tally, room = many.tally, self._sender.room
        for pack in packs:
            size = len(pack.payload)
            if self._in_a_row > self._config.batch_bytes:
                await self._let_others_run()
            if not room.take(size):
                await self._wait_for_room(size)
            if many.has_failed:
                room.give(size)
                break
            self._in_a_row += size
            known.batch_of(pack.partition).fill(pack, tally)
            tally.outstanding += pack.records

    async def _queue_many(self, topic: str, records: Iterable[Any], many: Many) -> None:
        known = await self._learn(topic)
        tally, lanes = many.tally, many.lanes
        room = self._sender.room
        limit = self._config.batch_bytes
        plain_bytes = self._plain_bytes
        has_partitioner = callable(self._partitioner)
        for record in records:
            timestamp = place = key = None
            pairs: _HeaderPairs = ()
            if type(record) is bytes and len(record) <= plain_bytes:
                value: bytes | None = record
                size = RECORD_OVERHEAD_BYTES + len(record)
                if has_partitioner:
                    place = known.place(None, record)
            elif isinstance(record, ProducerRecord):
                timestamp, partition = record.timestamp, record.partition
                key, value, pairs, size = self._prepare(
                    record.key, record.value, record.headers, timestamp
                )
                if partition is None:
                    place = known.place(key, value)
                else:
                    place = await known.check(partition)
                    self._check_open()
            else:
                key, value, pairs, size = self._prepare(None, record, (), None)
                place = known.place(key, value)
            if self._in_a_row > limit:
                await self._let_others_run()
            if not room.take(size):
                await self._wait_for_room(size)
            if tally.error is not None:
                room.give(size)
                break
            if timestamp is None:
                timestamp = time.time_ns() // 1_000_000
            self._in_a_row += size
            batch = known.batch_for(place, size)
            run = batch.run
            if run is None or run.tally is not tally:
                run = batch.begin_run(tally)
                lanes.add(batch.lane)
            batch.add(timestamp, key, value, pairs, size)
            run.count += 1
            tally.outstanding += 1

    def _prepare(
        self, key: Any, value: Any, headers: Headers, timestamp: int | None
    ) -> tuple[bytes | None, bytes | None, _HeaderPairs, int]:
        """Give a record as it will be sent, and its size. Raises what is wrong with it."""
        if key is not None and (type(key) is not bytes or self._key_serializer is not None):
            key = to_bytes(key, self._key_serializer, "key")
        if type(value) is not bytes or self._value_serializer is not None:
            value = to_bytes(value, self._value_serializer, "value")
        size = RECORD_OVERHEAD_BYTES
        if value is not None:
            size += len(value)
        if key is not None:
            size += len(key)
        pairs: _HeaderPairs = ()
        if headers:
            pairs, header_bytes = to_headers(headers)
            size += header_bytes
        if timestamp is not None and (
            type(timestamp) is not int or not 0 <= timestamp <= _LAST_TIMESTAMP
        ):
            raise ValueError(f"timestamp {timestamp}: it is a number of milliseconds since 1970")
        if size > self._largest:
            raise RecordTooLargeError(
                f"a record of {size} bytes: {self._largest} fit a request and the buffer"
            )
        return key, value, pairs, size

    async def _learn(self, topic: str) -> _Topic:
        """Give what is known of a topic, looked up if need be. Raises KafkaError, DeadlineError."""
        self._check_open()
        known = self._topics.get(topic)
        if known is None:
            await self._cluster.retry(
                lambda: self._cluster.topic(topic), what=f"looking up topic {topic!r}"
            )
            self._check_open()
            known = self._topics.setdefault(
                topic, _Topic(topic, self._cluster, self._sender, self._partitioner)
            )
        return known

    async def _let_others_run(self) -> None:
        """Let the event loop have a turn: what was queued has to be sent, too."""
        self._in_a_row = 0
        await asyncio.sleep(0)
        self._check_open()

    async def _wait_for_room(self, size: int) -> None:
        self._in_a_row = 0
        # What lingers takes the room that is waited for.
        self._sender.hurry_all(chain.from_iterable(self._sender.lanes.values()))
        await self._sender.room.wait(size, self._config.buffer_timeout)
        try:
            self._check_open()
        except ClosedError:
            self._sender.room.give(size)
            raise

    def _check_open(self) -> None:
        if self._is_closed:
            raise ClosedError("the producer has been closed")
        if self._sender.failure is not None:
            raise self._sender.failure


class _Topic:
    """The partitions of a topic, and which of them is next."""

    def __init__(
        self,
        name: str,
        cluster: Cluster,
        sender: Sender,
        partitioner: Literal["sticky", "round-robin"] | Partitioner,
    ) -> None:
        self.name = name
        self._cluster = cluster
        self._sender = sender
        self._batch_bytes = sender.config.batch_bytes
        self._custom = partitioner if callable(partitioner) else None
        self._is_sticky = partitioner == STICKY
        self._info: TopicInfo | None = None
        self._count = 0
        self._available: list[int] = []
        self._lanes: list[Lane] = []
        self._follow()
        # The lane that records without a key went to last.
        self._current = self._lanes[self._available[-1]]
        self.loop = asyncio.get_running_loop()

    @property
    def count(self) -> int:
        """How many partitions there are."""
        self._follow()
        return self._count

    def place(self, key: bytes | None, value: bytes | None) -> int | None:
        """Give the partition of a record, or None: `batch_for` says, once it can be queued."""
        if self._custom is None and key is None:
            return None
        self._follow()
        count = self._count
        if self._custom is None:
            assert key is not None
            return partition_of_key(key, count)
        partition = index(self._custom(self.name, key, value, count))
        if not 0 <= partition < count:
            raise ValueError(f"the partitioner chose {partition} of {count} partitions")
        return partition

    def batch_for(self, place: int | None, size: int) -> Batch:
        """Give the batch for a record of some size; `place` is None if it may go anywhere."""
        limit = self._batch_bytes - size
        if place is not None:
            lane = self._lanes[place]
        else:
            lane = self._current
            batch = lane.open
            if batch is not None and batch.size <= limit and self._is_sticky and not lane.tries:
                return batch
            self._follow()
            lane = self._current = self._next_after(lane)
        batch = lane.open
        if batch is None or batch.size > limit:
            return self._sender.open_batch(lane)
        return batch

    def batch_of(self, place: int | None) -> Batch:
        """Begin a batch that nothing will be added to; `place` is None if it may go anywhere."""
        self._follow()
        if place is None:
            self._current = self._next_after(self._current)
        lane = self._current if place is None else self._lanes[place]
        batch = self._sender.open_batch(lane)
        lane.open = None
        batch.is_due = True
        self._sender.offer(lane)
        return batch

    def _next_after(self, lane: Lane) -> Lane:
        """Choose where records without a key go next: not where nothing gets through for now."""
        choose = next_sticky if self._is_sticky else next_in_turn
        chosen = self._lanes[choose(lane.partition, self._available)]
        if _is_stuck(chosen):
            free = [number for number in self._available if not _is_stuck(self._lanes[number])]
            if free:
                chosen = self._lanes[choose(lane.partition, free)]
        return chosen

    async def check(self, partition: int) -> int:
        """Give a partition that there is. Raises KafkaError."""
        self._follow()
        if partition >= self._count:
            await self._cluster.refresh([self.name])  # it may be new
            self._follow()
        if not 0 <= partition < self._count:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"{self.name}-{partition}: the topic has {self._count} partitions",
            )
        return partition

    def _follow(self) -> None:
        """Take over what has been learned of the topic since."""
        info = self._cluster.metadata.topics.get(self.name)
        # What is gone may come again: until then things stay as they are.
        if info is self._info or info is None or info.error or not info.partitions:
            return
        self._info = info
        count = self._count = len(info.partitions)
        self._lanes = self._sender.lanes_of(self.name, count)
        # Partitions without a leader would keep their records waiting.
        led = [number for number, found in enumerate(info.partitions) if found.leader >= 0]
        self._available = led or list(range(count))


def _is_stuck(lane: Lane) -> bool:
    """Whether something waits that could not be sent. With nothing to lose, it is tried again."""
    return bool(lane.tries and (lane.waiting or lane.in_flight or lane.failed))


def _joined(written: list[OffsetRange]) -> list[OffsetRange]:
    """Join what lies one behind the other."""
    joined: list[OffsetRange] = []
    for part in sorted(written):
        join_to(joined, part)
    return joined
