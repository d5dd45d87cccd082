"""`ottla perf …`: measure throughput and latency of a cluster."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from ottla.client.consumer.ranges import Bounds, between

from . import output
from .available import AvailablePartitions
from .completion import complete_topics
from .produce import ACKS, ACKS_HELP, CODECS, prepare_topic
from .target import Target, connected, json_option

if TYPE_CHECKING:
    from ottla.client.consumer.consumer import Consumer
    from ottla.client.producer.producer import Producer

_topic = click.argument("topic", shell_complete=complete_topics)
_create = click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
_size = click.option(
    "--size", type=click.IntRange(1), default=100, show_default=True, help="Value size in bytes."
)
_acks = click.option(
    "--acks", type=click.Choice(ACKS), default="all", show_default=True, help=ACKS_HELP
)
_compression = click.option(
    "-z", "--compression", type=click.Choice(CODECS), default="none", help="Compression codec."
)


def _records(default: int) -> Callable[..., Any]:
    return click.option(
        "-n",
        "--records",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        help="Number of records.",
    )


_POOL_BYTES = 1 << 20
# Interval at which a rate is enforced.
_TICK_SECONDS = 0.01
_TIMEOUT_SECONDS = 30.0


@click.group()
def perf() -> None:
    """Measure throughput and latency."""


@perf.command("produce")
@_topic
@_records(100_000)
@_size
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Maximum records per second.")
@_acks
@_compression
@_create
@json_option
@connected
def perf_produce(target: Target, topic: str, as_json: bool, **options: Any) -> None:
    """Send records as fast as possible, or at a fixed rate.

    \b
        ottla perf produce bench --records 1000000 --size 100 --create
    """
    prepare_topic(target, topic, create=options["create"])
    seconds = asyncio.run(_produce(target, topic, options))
    _print_throughput(options["records"], options["records"] * options["size"], seconds, as_json)


async def _produce(target: Target, topic: str, options: dict[str, Any]) -> float:
    count, rate = options["records"], options["rate"]
    values = _values(count, options["size"])
    async with target.producer(
        acks=options["acks"], compression=options["compression"]
    ) as producer:
        with output.progress("sending", count) as bar:
            started = time.perf_counter()
            if rate is None:
                await producer.send_many(topic, _counted(values, bar))
            else:
                await _at_rate(producer, topic, values, rate, bar)
            return time.perf_counter() - started


async def _at_rate(
    producer: Producer, topic: str, values: Iterator[bytes], rate: float, bar: output.Progress
) -> None:
    started, sent = time.perf_counter(), 0
    async with asyncio.TaskGroup() as tasks:
        while True:
            due = int((time.perf_counter() - started) * rate) + 1 - sent
            batch = [value for _, value in zip(range(due), values, strict=False)]
            if due and not batch:
                return
            sent += len(batch)
            if batch:
                tasks.create_task(producer.send_many(topic, batch))
                bar.advance(len(batch))
            await asyncio.sleep(_TICK_SECONDS)


def _values(count: int, size: int) -> Iterator[bytes]:
    """Yield distinct values that do not compress well."""
    pool = os.urandom(_POOL_BYTES // 2).hex().encode()
    while len(pool) < 2 * size:
        pool += pool
    last = len(pool) - size
    for number in range(count):
        start = (number * 127) % last
        yield pool[start : start + size]


def _counted(values: Iterator[bytes], bar: output.Progress) -> Iterator[bytes]:
    for number, value in enumerate(values, 1):
        yield value
        if number % 1000 == 0:
            bar.advance(1000)


@perf.command("consume")
@_topic
@click.option(
    "-n", "--records", type=click.IntRange(1), help="Exit after N records.  [default: all]"
)
@json_option
@connected
def perf_consume(target: Target, topic: str, records: int | None, as_json: bool) -> None:
    """Read all records from the start as fast as possible.

    \b
        ottla perf consume bench
    """
    with target.admin() as admin:
        described = admin.describe_topics(topic)
        available = AvailablePartitions(admin, described, described[topic].topic_partitions)
    starts, ends = available.starts, available.ends
    bounds: Bounds = {tp: (starts[tp], ends[tp]) for tp in ends}
    total = sum(ends[tp] - starts[tp] for tp in ends)
    if ends or not available.missing:
        count, size, seconds = asyncio.run(_consume(target, bounds, records or total))
        _print_throughput(count, size, seconds, as_json)
    available.check()


async def _consume(target: Target, bounds: Bounds, max_records: int) -> tuple[int, int, float]:
    count = size = 0
    async with target.consumer() as consumer:
        with output.progress("reading", max_records) as bar:
            started = time.perf_counter()
            async for _, records in between(consumer, bounds):
                count += len(records)
                size += sum(len(r.value or b"") + len(r.key or b"") for r in records)
                bar.advance(len(records))
                if count >= max_records:
                    break
            return count, size, time.perf_counter() - started


def _print_throughput(count: int, size: int, seconds: float, as_json: bool) -> None:
    _print_summary(
        {
            "records": count,
            "bytes": size,
            "seconds": round(seconds, 3),
            "records_per_second": round(count / seconds) if seconds else 0,
            "megabytes_per_second": round(size / seconds / 1e6, 3) if seconds else 0,
        },
        as_json,
    )


def _print_summary(summary: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(summary)
        return
    output.print_facts(
        {
            name.replace("_", " "): f"{value:,}" if isinstance(value, int) else value
            for name, value in summary.items()
        }
    )


@perf.command("latency")
@_topic
@_records(1000)
@_size
@click.option(
    "--rate",
    type=click.FloatRange(0, min_open=True),
    default=200,
    show_default=True,
    help="Records per second.",
)
@_acks
@_create
@json_option
@connected
def perf_latency(target: Target, topic: str, as_json: bool, **options: Any) -> None:
    """Measure the latency of single records sent at a fixed rate.

    Reports the time until each record is acknowledged, and until it is consumed.

    \b
        ottla perf latency bench --records 2000 --rate 500
    """
    prepare_topic(target, topic, create=options["create"])
    with target.admin() as admin:
        bounds: Bounds = {tp: (end, None) for tp, end in admin.end_offsets(topic).items()}
    acked, read = asyncio.run(_latency(target, topic, bounds, options))
    _print_summary(
        {
            "records": options["records"],
            **_percentiles("acknowledged_ms", acked),
            **_percentiles("read_ms", read),
        },
        as_json,
    )


# Identifies the run and the record, in the first bytes of a value.
_STAMP = struct.Struct(">16sI")


async def _latency(
    target: Target, topic: str, bounds: Bounds, options: dict[str, Any]
) -> tuple[list[float], list[float]]:
    run, count, rate = os.urandom(16), options["records"], options["rate"]
    padding = bytes(max(0, options["size"] - _STAMP.size))
    sent: list[float] = [0.0] * count
    acked: list[float] = []
    async with target.producer(acks=options["acks"]) as producer, target.consumer() as consumer:

        async def send(number: int) -> None:
            sent[number] = time.perf_counter()
            await producer.send(topic, _STAMP.pack(run, number) + padding)
            acked.append(time.perf_counter() - sent[number])

        with output.progress("measuring", count) as bar:
            async with (
                asyncio.timeout(count / rate + _TIMEOUT_SECONDS),
                asyncio.TaskGroup() as tasks,
            ):
                reading = tasks.create_task(_read_back(consumer, bounds, run, sent, bar))
                started = time.perf_counter()
                for number in range(count):
                    await asyncio.sleep(max(0.0, started + number / rate - time.perf_counter()))
                    tasks.create_task(send(number))
    return acked, reading.result()


async def _read_back(
    consumer: Consumer, bounds: Bounds, run: bytes, sent: Sequence[float], bar: output.Progress
) -> list[float]:
    """Return the latency of each record of this run; other producers may write to the topic."""
    latencies: list[float] = []
    async for _, records in between(consumer, bounds):
        now = time.perf_counter()
        for record in records:
            if record.value is not None and record.value.startswith(run):
                _, number = _STAMP.unpack_from(record.value)
                latencies.append(now - sent[number])
                bar.advance()
        if len(latencies) >= len(sent):
            break
    return latencies


def _percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    """Return percentiles in milliseconds."""
    ordered = sorted(seconds)

    def percentile(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3)

    return {
        f"{name}_p50": percentile(0.5),
        f"{name}_p95": percentile(0.95),
        f"{name}_p99": percentile(0.99),
        f"{name}_max": percentile(1.0),
    }
