"""`ottla perf …`: how fast a cluster is, as this client sees it."""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from . import output
from .completion import complete_topics
from .following import Bounds, between
from .produce import ACKS, ACKS_HELP, CODECS, prepare_topic
from .target import Target, connected, json_option

if TYPE_CHECKING:
    from ottla.client.consumer.consumer import Consumer
    from ottla.client.producer.producer import Producer

_topic = click.argument("topic", shell_complete=complete_topics)
_create = click.option("--create", is_flag=True, help="Make the topic if it is not there.")
_size = click.option(
    "--size", type=click.IntRange(1), default=100, show_default=True, help="Bytes of a value."
)
_acks = click.option(
    "--acks", type=click.Choice(ACKS), default="all", show_default=True, help=ACKS_HELP
)
_compression = click.option(
    "-z", "--compression", type=click.Choice(CODECS), default="none", help="The codec."
)


def _records(default: int) -> Callable[..., Any]:
    return click.option(
        "-n",
        "--records",
        type=click.IntRange(1),
        default=default,
        show_default=True,
        help="How many.",
    )


_POOL_BYTES = 1 << 20
# How long records may lie around before a rate is looked at again.
_TICK_SECONDS = 0.01
_PATIENCE_SECONDS = 30.0


@click.group()
def perf() -> None:
    """Measure how fast a cluster is."""


@perf.command("produce")
@_topic
@_records(100_000)
@_size
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Records a second, at most.")
@_acks
@_compression
@_create
@json_option
@connected
def perf_produce(target: Target, topic: str, as_json: bool, **options: Any) -> None:
    """Send records as fast as it goes, or at a rate.

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
                await _at_rate(producer, topic, _counted(values, bar), rate)
            return time.perf_counter() - started


async def _at_rate(producer: Producer, topic: str, values: Iterator[bytes], rate: float) -> None:
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
            await asyncio.sleep(_TICK_SECONDS)


def _values(count: int, size: int) -> Iterator[bytes]:
    """Give values that differ, and do not compress away to nothing."""
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
@click.option("-n", "--records", type=click.IntRange(1), help="End after so many.  [default: all]")
@json_option
@connected
def perf_consume(target: Target, topic: str, records: int | None, as_json: bool) -> None:
    """Read what is there, from the start, as fast as it goes.

    \b
        ottla perf consume bench
    """
    with target.admin() as admin:
        starts, ends = admin.beginning_offsets(topic), admin.end_offsets(topic)
    bounds: Bounds = {place: (starts[place], ends[place]) for place in ends}
    total = sum(ends[place] - starts[place] for place in ends)
    count, size, seconds = asyncio.run(_consume(target, bounds, records or total))
    _print_throughput(count, size, seconds, as_json)


async def _consume(target: Target, bounds: Bounds, most: int) -> tuple[int, int, float]:
    count = size = 0
    async with target.consumer() as consumer:
        with output.progress("reading", most) as bar:
            started = time.perf_counter()
            async for _, records in between(consumer, bounds):
                count += len(records)
                size += sum(len(one.value or b"") + len(one.key or b"") for one in records)
                bar.advance(len(records))
                if count >= most:
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


def _print_summary(facts: Mapping[str, Any], as_json: bool) -> None:
    if as_json:
        output.print_json(facts)
        return
    output.print_facts(
        {
            name.replace("_", " "): f"{value:,}" if isinstance(value, int) else value
            for name, value in facts.items()
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
    help="Records a second.",
)
@_acks
@_create
@json_option
@connected
def perf_latency(target: Target, topic: str, as_json: bool, **options: Any) -> None:
    """Measure how long records take. They are sent one by one, at a rate.

    It is measured until each is acknowledged, and until it is read again.

    \b
        ottla perf latency bench --records 2000 --rate 500
    """
    prepare_topic(target, topic, create=options["create"])
    with target.admin() as admin:
        bounds: Bounds = {place: (end, None) for place, end in admin.end_offsets(topic).items()}
    acked, read = asyncio.run(_latency(target, topic, bounds, options))
    _print_summary(
        {
            "records": options["records"],
            **_percentiles("acknowledged_ms", acked),
            **_percentiles("read_ms", read),
        },
        as_json,
    )


# Whose record it is, and which one.
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
                asyncio.timeout(count / rate + _PATIENCE_SECONDS),
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
    """Say how long each record was under way; others may write to the topic, too."""
    found: list[float] = []
    async for _, records in between(consumer, bounds):
        now = time.perf_counter()
        for record in records:
            if record.value is not None and record.value.startswith(run):
                _, number = _STAMP.unpack_from(record.value)
                found.append(now - sent[number])
                bar.advance()
        if len(found) >= len(sent):
            break
    return found


def _percentiles(name: str, seconds: list[float]) -> dict[str, float]:
    """Give what half, and nearly all, of the times are below, in milliseconds."""
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return round(ordered[min(len(ordered) - 1, int(len(ordered) * share))] * 1000, 3)

    return {
        f"{name}_p50": at(0.5),
        f"{name}_p95": at(0.95),
        f"{name}_p99": at(0.99),
        f"{name}_max": at(1.0),
    }
