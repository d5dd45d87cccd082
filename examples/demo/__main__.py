"""Demo: three brokers, a producer, a consumer group and a Spark job, for a minute.

    make demo
    python examples/demo --seconds 10 --no-spark

Guests order coffee. A producer sends the orders to a topic whose partitions are spread over three
brokers, three baristas read them as members of a consumer group, and Spark counts them by coffee.
The throughput of each is shown meanwhile. At the end all orders are counted: each one must have
been read by the group and be part of Spark's counts. All data is deleted.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import click
import spark_job
from environment import brokers, temporary_directory
from screen import REFRESH_SECONDS, Counter, Screen

from ottla.client import Admin, Consumer, Producer, ProducerRecord

ORDERS, TOTALS, GROUP = "orders", "totals", "baristas"
BROKERS, PARTITIONS = 3, 6
COFFEES = (b"espresso", b"cappuccino", b"flat white", b"ristretto", b"mocha", b"cortado")
BARISTAS = ("Ann", "Bob", "Cleo")
TICK_SECONDS = 0.05
#: Time for all readers to catch up.
CATCH_UP_SECONDS = 60.0
#: How long Spark may take for its first batch.
FIRST_BATCH_SECONDS = 300.0


class Orders:
    """The orders sent so far, and those read by the group."""

    def __init__(self) -> None:
        self.sent = Counter("producer")
        self.baristas = [Counter(name) for name in BARISTAS]
        # The next offset of each partition; records that are read again do not count.
        self.next_offsets = dict.fromkeys(range(PARTITIONS), 0)
        self.missing = 0
        coffees = random.choices(COFFEES, weights=range(len(COFFEES), 0, -1), k=1000)
        self._pool = [
            ProducerRecord(coffee, key=b"guest-%d" % number)
            for number, coffee in enumerate(coffees)
        ]

    async def send(self, bootstrap: str, rate: float, seconds: float) -> None:
        """Send orders at a fixed rate."""
        before, start = self.sent.total, time.monotonic()
        async with Producer(bootstrap) as producer:
            while (elapsed := time.monotonic() - start) < seconds:
                sent_at = time.monotonic()
                await self.send_some(producer, before + int(elapsed * rate) - self.sent.total)
                latency = time.monotonic() - sent_at
                self.sent.remark = f"acknowledged after {latency * 1000:.0f} ms"
                await asyncio.sleep(TICK_SECONDS)

    async def send_some(self, producer: Producer, count: int) -> None:
        """Send random orders, and wait until they are acknowledged."""
        await producer.send_many(ORDERS, random.choices(self._pool, k=count))
        self.sent.total += count

    async def read(self, bootstrap: str, counter: Counter) -> None:
        """Read orders as a member of the group."""
        async with Consumer(bootstrap, ORDERS, group=GROUP) as consumer:
            async for records in consumer.batches():
                partition, first = records[0].partition, records[0].offset
                self.missing += max(0, first - self.next_offsets[partition])
                self.next_offsets[partition] = max(
                    self.next_offsets[partition], records[-1].offset + 1
                )
                counter.total += len(records)
                assigned = " ".join(str(tp.partition) for tp in sorted(consumer.assignment))
                counter.remark = f"partitions {assigned}"

    @property
    def is_read(self) -> bool:
        """Whether the group has read all orders."""
        return sum(self.next_offsets.values()) >= self.sent.total


async def watch_brokers(bootstrap: str, counters: list[Counter]) -> None:
    """Count the records of the partitions that each broker leads."""
    async with Admin(bootstrap) as admin:
        while True:
            partitions = (await admin.describe_topics(ORDERS))[ORDERS].partitions
            ends = await admin.end_offsets(ORDERS)
            for broker, counter in enumerate(counters):
                led = {each.partition for each in partitions if each.leader == broker}
                counter.total = sum(end for tp, end in ends.items() if tp.partition in led)
                counter.remark = f"leads partitions {' '.join(map(str, sorted(led)))}"
            await asyncio.sleep(REFRESH_SECONDS)


async def warm_up(bootstrap: str, orders: Orders, query: spark_job.Query, counter: Counter) -> None:
    """Wait until Spark has counted one order: its first batch compiles code."""
    async with Producer(bootstrap) as producer:
        await orders.send_some(producer, 1)
    async with asyncio.timeout(FIRST_BATCH_SECONDS):
        while not counter.total:
            await asyncio.sleep(REFRESH_SECONDS)
            await asyncio.to_thread(query.update, counter)


async def watch_spark(
    query: spark_job.Query, counter: Counter, sending: asyncio.Task[None]
) -> None:
    """Count the records that Spark has read, until it has read all."""
    finishing: asyncio.Task[None] | None = None
    while finishing is None or not finishing.done():
        await asyncio.to_thread(query.update, counter)
        await asyncio.sleep(REFRESH_SECONDS)
        if sending.done() and finishing is None:
            finishing = asyncio.create_task(asyncio.to_thread(query.finish))
    await finishing
    await asyncio.to_thread(query.update, counter)


async def last_totals(bootstrap: str) -> dict[str, int]:
    """Return Spark's last count of each coffee."""
    totals: dict[str, int] = {}
    async with Admin(bootstrap) as admin, Consumer(bootstrap, TOTALS) as consumer:
        remaining = sum((await admin.end_offsets(TOTALS)).values())
        while remaining > 0:
            for records in (await consumer.getmany(5.0)).values():
                totals |= {record.key.decode(): int(record.value) for record in records}
                remaining -= len(records)
    return totals


async def run(seconds: float, rate: float, with_spark: bool, directory: Path) -> list[str]:
    """Run the demo, and return the errors found at the end."""
    async with AsyncExitStack() as stack:
        click.echo("Starting three brokers …")
        addresses = stack.enter_context(brokers(directory, BROKERS))
        bootstrap = ",".join(addresses)
        await create_topics(bootstrap, len(addresses))
        # Spark reads all that has arrived since its last batch at once.
        orders, spark = Orders(), Counter("Spark", window_seconds=10.0)
        query = None
        if with_spark:
            click.echo("Starting Spark, which takes a while …")
            try:
                query = await stack.enter_async_context(
                    spark_job.running(bootstrap, ORDERS, TOTALS, directory)
                )
            except (ImportError, RuntimeError) as error:
                raise click.ClickException(f"{error}; use --no-spark to run without it") from None
            await warm_up(bootstrap, orders, query, spark)
        leaders = [Counter(f"broker {number}") for number in range(len(addresses))]
        counters = [orders.sent, *leaders, *orders.baristas, *([spark] if query else [])]
        screen = Screen(counters, seconds)
        with screen.shown():
            async with asyncio.TaskGroup() as tasks:
                background = [
                    tasks.create_task(orders.read(bootstrap, barista))
                    for barista in orders.baristas
                ]
                background.append(tasks.create_task(watch_brokers(bootstrap, leaders)))
                sending = tasks.create_task(orders.send(bootstrap, rate, seconds))
                awaited = [sending]
                if query is not None:
                    awaited.append(tasks.create_task(watch_spark(query, spark, sending)))
                while not (all(task.done() for task in awaited) and orders.is_read):
                    screen.draw()
                    await asyncio.sleep(REFRESH_SECONDS)
                    if screen.elapsed > seconds + CATCH_UP_SECONDS:
                        break
                screen.draw()
                for task in (*background, *awaited):
                    task.cancel()
        totals = await last_totals(bootstrap) if query else None
    return summary(orders, spark, totals)


async def create_topics(bootstrap: str, broker_count: int) -> None:
    """Wait for all brokers, and create the topics."""
    async with Admin(bootstrap) as admin:
        while len((await admin.describe_cluster()).brokers) < broker_count:
            await asyncio.sleep(0.05)
        await admin.create_topic(ORDERS, partitions=PARTITIONS)
        await admin.create_topic(TOTALS, partitions=1)


def summary(orders: Orders, spark: Counter, totals: dict[str, int] | None) -> list[str]:
    """Print the counts, and return the errors."""
    sent, read = orders.sent.total, sum(orders.next_offsets.values())
    repeated = sum(barista.total for barista in orders.baristas) - read
    errors = []
    click.echo(f"\n{sent:,} orders sent")
    click.echo(f"{read:,} read by the group, {repeated:,} of them twice")
    if read != sent or orders.missing:
        errors.append(f"the group read {read:,} of {sent:,} orders and missed {orders.missing:,}")
    if totals is not None:
        ranking = sorted(totals.items(), key=lambda item: item[1], reverse=True)
        coffees = ", ".join(f"{count:,} {coffee}" for coffee, count in ranking)
        click.echo(f"{spark.total:,} read by Spark: {coffees}")
        if sum(totals.values()) != sent:
            errors.append(f"Spark counted {sum(totals.values()):,} of {sent:,} orders")
    return errors


@click.command(help=__doc__)
@click.option("--seconds", default=60.0, show_default=True, help="How long to send orders.")
@click.option("--rate", default=10_000.0, show_default=True, help="Orders per second.")
@click.option("--spark/--no-spark", default=True, show_default=True, help="Run the Spark job.")
def main(seconds: float, rate: float, spark: bool) -> None:
    """Run the demo."""
    # The brokers stop before all clients are closed; warnings about that would hide the summary.
    logging.getLogger("ottla.client").setLevel(logging.ERROR)
    with temporary_directory() as directory:
        errors = asyncio.run(run(seconds, rate, spark, directory))
    for error in errors:
        click.echo(f"Error: {error}", err=True)
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
