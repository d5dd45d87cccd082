"""The console with a cluster of 10,000 partitions: what it and a scrape of metrics cost the broker.

    python bench/console.py [--topics 1000] [--partitions 10] [--browsers 10] [--seconds 20]

First byte: each page, three times; PAUSE between them lets what the console keeps expire. Load: a
producer writes single records with acks=all for SECONDS, with no console in use and with BROWSERS
open, in turns; a browser here loads a page and then asks for what the page's script does, every two
seconds. Scrapes: the median of ten, and the CPU time of the broker for each.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.request import urlopen

from metrics import cpu_seconds
from ottla.client import Admin, Producer
from servers import Ottla, free_port

TOPIC = "topic-0000"
GROUP = "group-0"
PAGES = (
    *("/", "/topics", "/topics?sort=size&order=descending", "/topics?search=99&page=2"),
    *(f"/topics/{TOPIC}", f"/topics/{TOPIC}/records", f"/topics/{TOPIC}/configs"),
    *(f"/topics/{TOPIC}/consumers", "/brokers/0", "/groups", f"/groups/{GROUP}", "/share-groups"),
    *("/transactions", "/acls", "/users", "/quotas", "/docs"),
)
#: What browsers have open, and what those pages ask for again and again.
OPEN = (
    ("/", ("/api/v1/live/end-offsets", "/api/v1/live/size")),
    (
        "/topics",
        ("/api/v1/live/topics?" + "&".join(f"topic=topic-{one:04}" for one in range(50)),),
    ),
    (f"/topics/{TOPIC}", (f"/api/v1/live/end-offsets?topic={TOPIC}",)),
    ("/groups", (f"/api/v1/live/groups?group={GROUP}",)),
    (f"/groups/{GROUP}", (f"/api/v1/live/lag?group={GROUP}",)),
)
LIVE_SECONDS = 2.0
WRITES_PER_SECOND = 200
ROUNDS = 3
SCRAPES = 10


async def first_byte(port: int, path: str) -> float:
    """Return the milliseconds until the first byte of a response."""
    began = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    head = await reader.read(12)
    took = (time.perf_counter() - began) * 1000
    if head[9:12] != b"200":
        raise RuntimeError(f"{path}: {head!r} {await reader.read(1000)!r}")
    while await reader.read(65536):
        pass
    writer.close()
    return took


async def browse(port: int, page: str, live: tuple[str, ...]) -> None:
    """Open a page, and stay."""
    await first_byte(port, page)
    while True:
        for path in live:
            await first_byte(port, path)
        await asyncio.sleep(LIVE_SECONDS)


async def browse_all(port: int, count: int) -> None:
    """Keep pages open for ever."""
    async with asyncio.TaskGroup() as tasks:
        for one in range(count):
            tasks.create_task(browse(port, *OPEN[one % len(OPEN)]))


@contextmanager
def browsers(port: int, count: int) -> Iterator[None]:
    """Keep pages open, in a process of their own: its time is not the producer's."""
    command = [sys.executable, __file__, "--browse", str(port), "--browsers", str(count)]
    with subprocess.Popen(command) as process:
        try:
            yield
            if process.poll() is not None:
                raise RuntimeError("The browsers ended")
        finally:
            process.terminate()


async def latencies(bootstrap: str, seconds: float) -> list[float]:
    """Return the milliseconds of single acknowledged writes, at a steady rate."""
    took: list[float] = []

    async def write(producer: Producer, began: float) -> None:
        await producer.send(TOPIC, b"x" * 100, partition=0)
        took.append((time.perf_counter() - began) * 1000)

    async with Producer(bootstrap) as producer, asyncio.TaskGroup() as tasks:
        start = time.perf_counter()
        for number in range(int(seconds * WRITES_PER_SECOND)):
            # Late writes count from when they were due.
            due = start + number / WRITES_PER_SECOND
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.create_task(write(producer, due))
    return took


@contextmanager
def console(bootstrap: str) -> Iterator[int]:
    """Run a console; return its port."""
    port = free_port()
    words = ("console", "--bootstrap", bootstrap, "--port", str(port), "--until-stdin-closes")
    with subprocess.Popen(
        # As `ottla broker start --console` does.
        [sys.executable, "-m", "ottla", *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield port
        finally:
            process.terminate()


async def fill(bootstrap: str, topics: int, partitions: int) -> None:
    """Create the topics, and a group."""
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        for first in range(0, topics, 20):
            names = [f"topic-{one:04}" for one in range(first, min(first + 20, topics))]
            await asyncio.gather(*(admin.create_topic(one, partitions=partitions) for one in names))
        for number in range(1000):
            await producer.enqueue(TOPIC, b'{"number": %d}' % number)
        await producer.flush()
        described = (await admin.describe_topics(TOPIC))[TOPIC]
        await admin.alter_group_offsets(GROUP, dict.fromkeys(described.topic_partitions, 0))


def scrape(address: str) -> tuple[float, int]:
    """Return the milliseconds that a scrape takes, and its bytes."""
    began = time.perf_counter()
    with urlopen(f"http://{address}/metrics", timeout=60) as response:
        size = len(response.read())
    return (time.perf_counter() - began) * 1000, size


def measure_scrapes(broker: Ottla, address: str) -> None:
    """Print what scrapes of metrics cost."""
    scrape(address)
    before = cpu_seconds(broker.pid)
    times, sizes = zip(*(scrape(address) for _ in range(SCRAPES)), strict=True)
    cpu = (cpu_seconds(broker.pid) - before) * 1000 / SCRAPES
    took, size = statistics.median(times), sizes[0] / 1e6
    print(
        f"\na scrape: {took:.0f} ms, of which {cpu:.0f} ms of CPU time; {size:.1f} MB", flush=True
    )


def percentiles(values: list[float]) -> str:
    """Return percentiles as text."""
    cuts = statistics.quantiles(values, n=1000)
    return f"p50 {cuts[499]:7.2f}  p99 {cuts[989]:7.2f}  p99.9 {cuts[998]:7.2f} ms"


async def run(broker: Ottla, metrics: str, options: argparse.Namespace) -> None:
    """Measure, and print."""
    bootstrap = broker.address
    began = time.perf_counter()
    await fill(bootstrap, options.topics, options.partitions)
    total = options.topics * options.partitions
    print(f"{total:,} partitions, created in {time.perf_counter() - began:.0f} s")
    measure_scrapes(broker, metrics)
    with console(bootstrap) as port:
        await asyncio.sleep(options.pause)
        passes = []
        for _ in range(3):
            passes.append([await first_byte(port, path) for path in PAGES])
            await asyncio.sleep(options.pause)
        print(f"\nfirst byte in ms{'first':>30}{'second':>8}{'third time':>12}")
        for path, *times in zip(PAGES, *passes, strict=True):
            print(f"{path:<40}{times[0]:>6.0f}{times[1]:>8.0f}{times[2]:>12.0f}", flush=True)
        print(f"slowest: {max(map(max, passes)):.0f} ms")
        print("\nlatency of single writes with acks=all")
        for number in range(ROUNDS):
            alone = await latencies(bootstrap, options.seconds)
            with browsers(port, options.browsers):
                beside = await latencies(bootstrap, options.seconds)
                pages = [await first_byte(port, path) for path, _ in OPEN]
            print(f"round {number + 1}, no browser    {percentiles(alone)}")
            print(f"round {number + 1}, {options.browsers:>2} browsers   {percentiles(beside)}")
            print(f"         first bytes meanwhile {max(pages):.0f} ms at most", flush=True)


def main() -> None:
    """Start a broker, and measure."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--partitions", type=int, default=10)
    parser.add_argument("--browsers", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--pause", type=float, default=13.0, help="before each time")
    parser.add_argument("--browse", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.browse:
        asyncio.run(browse_all(options.browse, options.browsers))
    with tempfile.TemporaryDirectory() as folder, suppress(KeyboardInterrupt):
        metrics = f"127.0.0.1:{free_port()}"
        broker = Ottla(Path(folder), "--metrics", metrics)
        broker.start()
        try:
            asyncio.run(run(broker, metrics, options))
        finally:
            broker.stop()


if __name__ == "__main__":
    main()
