"""The load that every client runs, its configs, and the loops that several clients share.

Loops call bound methods and partials of a library directly, so that nothing is added per record.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterable, Awaitable, Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import wraps
from itertools import chain, islice
from typing import Any, TypeVar

from metrics import Meter

T = TypeVar("T")
Run = dict[str, Any]

KIB, MIB = 1024, 1024**2
VALUE_BYTES = 100
LINGER_MS = 5
BATCH_BYTES = 64 * KIB
BUFFER_BYTES = 64 * MIB
FETCH_BYTES = 50 * MIB
PARTITION_FETCH_BYTES = MIB
#: Records per poll, where a client has such a limit.
MAX_POLL_RECORDS = 500
#: Futures that are kept; then the older half is awaited.
MAX_PENDING = 20_000
#: Concurrent tasks, each waiting for the acknowledgement of its record.
TASKS = 1_000
TIMEOUT_SECONDS = 60
#: Distinct values; they repeat further apart than the window of a codec.
DISTINCT_VALUES = 1_000
#: The first record connects the producer and is not measured.
FIRST_VALUE = b"first"


def distinct_records() -> list[tuple[bytes | None, bytes]]:
    """Return keys and values, which resemble the orders of a shop."""
    pairs: list[tuple[bytes | None, bytes]] = []
    for n in range(DISTINCT_VALUES):
        text = b'{"order":%08d,"item":"%s","count":%d,"price":%d.%02d,"paid":true,"shop":"' % (
            n * 7919,
            (b"tea", b"milk", b"coffee", b"sugar")[n * 31 % 4],
            n * 17 % 9 + 1,
            n * 13 % 90 + 10,
            n * 37 % 100,
        )
        pairs.append((b"%08d" % n, text.ljust(VALUE_BYTES - 2, b"x") + b'"}'))
    return pairs


@dataclass(frozen=True)
class Workload:
    """Records to produce until time or records are used up, or to consume completely."""

    address: str
    #: Of the broker.
    pid: int
    topic: str
    partitions: int
    codec: str
    keyed: bool
    seconds: float
    records: int

    @property
    def compression(self) -> str | None:
        """The codec, or None."""
        return None if self.codec == "none" else self.codec

    def values(self) -> Iterator[bytes]:
        """Yield values alone."""
        return self._repeat([value for _key, value in distinct_records()])

    def pairs(self) -> Iterator[tuple[bytes | None, bytes]]:
        """Yield keys, or None, and values."""
        if self.keyed:
            return self._repeat(distinct_records())
        return self._repeat([(None, value) for _key, value in distinct_records()])

    def _repeat(self, block: list[T]) -> Iterator[T]:
        def blocks() -> Iterator[list[T]]:
            end, remaining = time.perf_counter() + self.seconds, self.records
            while time.perf_counter() < end and remaining > 0:
                remaining -= len(block)
                yield block

        return chain.from_iterable(blocks())


def command(run: Callable[[Workload], Any]) -> Callable[..., Run]:
    """Make a function, or a coroutine function, a command of the driver."""

    @wraps(run)
    def call(**arguments: Any) -> Run:
        result = run(Workload(**arguments))
        return asyncio.run(result) if inspect.iscoroutine(result) else result

    return call


# -- produce ---------------------------------------------------------------------------------------


async def enqueue_async(load: Workload, enqueue: Callable[..., Awaitable[Any]]) -> Run:
    """Enqueue each record, and check the offset of each future."""
    records, meter, count = load.pairs(), Meter(load.pid), 0
    pending: list[Awaitable[Any]] = []
    for key, value in records:
        pending.append(await enqueue(value, key=key))
        if len(pending) == MAX_PENDING:
            for future in pending[: MAX_PENDING // 2]:
                count += (await future).offset >= 0
            del pending[: MAX_PENDING // 2]
    for future in pending:
        count += (await future).offset >= 0
    return meter.stop(count)


def enqueue_sync(load: Workload, enqueue: Callable[..., Any], wait: Callable[[Any], Any]) -> Run:
    """Enqueue each record, and check the offset of each future, for which `wait` waits."""
    records, meter, count = load.pairs(), Meter(load.pid), 0
    pending: list[Any] = []
    for key, value in records:
        pending.append(enqueue(value, key=key))
        if len(pending) == MAX_PENDING:
            for future in pending[: MAX_PENDING // 2]:
                count += wait(future).offset >= 0
            del pending[: MAX_PENDING // 2]
    for future in pending:
        count += wait(future).offset >= 0
    return meter.stop(count)


async def send_in_tasks(load: Workload, send: Callable[..., Awaitable[Any]]) -> Run:
    """Send each record in a task of its own, which waits for the acknowledgement."""
    records, meter, count = load.pairs(), Meter(load.pid), 0
    while pairs := list(islice(records, TASKS)):
        sent = await asyncio.gather(*(send(value, key=key) for key, value in pairs))
        count += sum(metadata.offset >= 0 for metadata in sent)
    return meter.stop(count)


# -- consume ---------------------------------------------------------------------------------------


async def read_async(load: Workload, meter: Meter, records: AsyncIterable[Any]) -> Run:
    """Read one record at a time."""
    count = size = 0
    async for record in records:
        size += len(record.value)
        count += 1
        if count == load.records:
            break
    return meter.stop(count) | {"bytes": size}


def read_sync(load: Workload, meter: Meter, records: Iterable[Any]) -> Run:
    """Read one record at a time."""
    count = size = 0
    for record in records:
        size += len(record.value)
        count += 1
        if count == load.records:
            break
    return meter.stop(count) | {"bytes": size}
