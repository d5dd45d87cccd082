"""Three brokers, a producer, a consumer group and a Spark job, in one terminal, for a minute.

    make demo
    python examples/demo --seconds 10 --no-spark

Guests order coffee. A producer sends the orders to a topic whose partitions are shared out among
three brokers, three baristas read them as members of a group, and Spark counts them by what was
ordered. What happens is shown meanwhile, with the rates of the moment. At the end everything is
counted: each order must have been read by the group, and be in Spark's counts. Nothing is left
behind.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import click
import job
import quiet
from brokers import brokers
from queries import Query
from rates import Count
from screen import LIVELY_SECONDS, Screen

from ottla.client import Admin, Consumer, Producer, ProducerRecord

ORDERS, TOTALS, GROUP = "orders", "totals", "baristas"
BROKERS, PARTITIONS = 3, 6
COFFEES = (b"espresso", b"cappuccino", b"flat white", b"ristretto", b"mocha", b"cortado")
BARISTAS = ("Ann", "Bob", "Cleo")
TICK_SECONDS = 0.05
#: How long it may take until everybody has read what there is.
PATIENCE_SECONDS = 60.0
#: How long Spark may take for its first order.
SPARK_SECONDS = 300.0


class Orders:
    """The orders that were sent, and those that the group has read."""

    def __init__(self) -> None:
        self.sent = Count("producer")
        self.baristas = [Count(name) for name in BARISTAS]
        # By partition, the offset up to which all is read; what is read again does not count.
        self.done = dict.fromkeys(range(PARTITIONS), 0)
        self.missing = 0
        coffees = random.choices(COFFEES, weights=range(len(COFFEES), 0, -1), k=1000)
        self._pool = [
            ProducerRecord(coffee, key=b"guest-%d" % number)
            for number, coffee in enumerate(coffees)
        ]

    async def send(self, bootstrap: str, rate: float, seconds: float) -> None:
        """Send orders at a rate."""
        before, began = self.sent.total, time.monotonic()
        async with Producer(bootstrap) as producer:
            while (elapsed := time.monotonic() - began) < seconds:
                asked = time.monotonic()
                await self.send_some(producer, before + int(elapsed * rate) - self.sent.total)
                took = time.monotonic() - asked
                self.sent.remark = f"acked by the device after {took * 1000:.0f} ms"
                await asyncio.sleep(TICK_SECONDS)

    async def send_some(self, producer: Producer, count: int) -> None:
        """Send so many orders, and wait until they are acked."""
        await producer.send_many(ORDERS, random.choices(self._pool, k=count))
        self.sent.total += count

    async def read(self, bootstrap: str, count: Count) -> None:
        """Read orders as one of the group."""
        async with Consumer(bootstrap, ORDERS, group=GROUP) as consumer:
            async for records in consumer.batches():
                place, first = records[0].partition, records[0].offset
                self.missing += max(0, first - self.done[place])
                self.done[place] = max(self.done[place], records[-1].offset + 1)
                count.total += len(records)
                mine = " ".join(str(one.partition) for one in sorted(consumer.assignment))
                count.remark = f"has partitions {mine}"

    @property
    def is_read(self) -> bool:
        """Whether the group has read all."""
        return sum(self.done.values()) >= self.sent.total


async def watch_brokers(bootstrap: str, counts: list[Count]) -> None:
    """Count what each broker has."""
    async with Admin(bootstrap) as admin:
        while True:
            owners = (await admin.describe_topics(ORDERS))[ORDERS].partitions
            ends = await admin.end_offsets(ORDERS)
            for number, count in enumerate(counts):
                own = {one.partition for one in owners if one.leader == number}
                count.total = sum(end for place, end in ends.items() if place.partition in own)
                count.remark = f"owns partitions {' '.join(map(str, sorted(own)))}"
            await asyncio.sleep(LIVELY_SECONDS)


async def warm_up(bootstrap: str, orders: Orders, query: Query, count: Count) -> None:
    """Let Spark count one order first: for that it compiles what it needs for all others."""
    async with Producer(bootstrap) as producer:
        await orders.send_some(producer, 1)
    async with asyncio.timeout(SPARK_SECONDS):
        while not count.total:
            await asyncio.sleep(LIVELY_SECONDS)
            await asyncio.to_thread(query.look, count)


async def watch_spark(query: Query, count: Count, sending: asyncio.Task[None]) -> None:
    """Count what Spark has read, until all has been sent and it has all of that."""
    finishing: asyncio.Task[None] | None = None
    while finishing is None or not finishing.done():
        await asyncio.to_thread(query.look, count)
        await asyncio.sleep(LIVELY_SECONDS)
        if sending.done() and finishing is None:
            finishing = asyncio.create_task(asyncio.to_thread(query.finish))
    await finishing
    await asyncio.to_thread(query.look, count)


async def last_totals(bootstrap: str) -> dict[str, int]:
    """Read Spark's counts: of each coffee, the last one."""
    found: dict[str, int] = {}
    async with Admin(bootstrap) as admin, Consumer(bootstrap, TOTALS) as consumer:
        left = sum((await admin.end_offsets(TOTALS)).values())
        while left > 0:
            records = [one for some in (await consumer.getmany(5.0)).values() for one in some]
            found |= {record.key.decode(): int(record.value) for record in records}
            left -= len(records)
    return found


async def run(seconds: float, rate: float, with_spark: bool, folder: Path) -> list[str]:
    """Run everything; give what is wrong in the end."""
    async with AsyncExitStack() as stack:
        click.echo("starting three brokers …")
        addresses = stack.enter_context(brokers(folder, BROKERS))
        bootstrap = ",".join(addresses)
        await make_topics(bootstrap, len(addresses))
        # Spark takes what has come since its last batch all at once.
        orders, spark = Orders(), Count("Spark", window_seconds=10.0)
        query = None
        if with_spark:
            click.echo("starting Spark, which takes a while …")
            try:
                query = await stack.enter_async_context(
                    job.running(bootstrap, ORDERS, TOTALS, folder)
                )
            except (ImportError, RuntimeError) as error:
                raise click.ClickException(f"{error}; or do without it: --no-spark") from None
            await warm_up(bootstrap, orders, query, spark)
        owners = [Count(f"broker {number}") for number in range(len(addresses))]
        shown = [orders.sent, *owners, *orders.baristas, *([spark] if query else [])]
        screen = Screen(shown, seconds)
        with screen.shown():
            async with asyncio.TaskGroup() as tasks:
                others = [tasks.create_task(orders.read(bootstrap, one)) for one in orders.baristas]
                others.append(tasks.create_task(watch_brokers(bootstrap, owners)))
                sending = tasks.create_task(orders.send(bootstrap, rate, seconds))
                awaited = [sending]
                if query is not None:
                    awaited.append(tasks.create_task(watch_spark(query, spark, sending)))
                while not (all(task.done() for task in awaited) and orders.is_read):
                    screen.draw()
                    await asyncio.sleep(LIVELY_SECONDS)
                    if screen.elapsed > seconds + PATIENCE_SECONDS:
                        break
                screen.draw()
                for task in (*others, *awaited):
                    task.cancel()
        totals = await last_totals(bootstrap) if query else None
    return summary(orders, spark, totals)


async def make_topics(bootstrap: str, brokers: int) -> None:
    """Wait until all brokers are there, and make the topics."""
    async with Admin(bootstrap) as admin:
        while len((await admin.describe_cluster()).brokers) < brokers:
            await asyncio.sleep(0.05)
        await admin.create_topic(ORDERS, partitions=PARTITIONS)
        await admin.create_topic(TOTALS, partitions=1)


def summary(orders: Orders, spark: Count, totals: dict[str, int] | None) -> list[str]:
    """Say what came of it, and give what is wrong."""
    sent, done = orders.sent.total, sum(orders.done.values())
    again = sum(one.total for one in orders.baristas) - done
    wrong = []
    click.echo(f"\n{sent:,} orders were sent")
    click.echo(f"{done:,} were read by the group, {again:,} of them twice")
    if done != sent or orders.missing:
        wrong.append(f"the group has read {done:,} of {sent:,}, and missed {orders.missing:,}")
    if totals is not None:
        best = sorted(totals.items(), key=lambda one: one[1], reverse=True)
        coffees = ", ".join(f"{count:,} {coffee}" for coffee, count in best)
        click.echo(f"{spark.total:,} were read by Spark: {coffees}")
        if sum(totals.values()) != sent:
            wrong.append(f"Spark has counted {sum(totals.values()):,} of {sent:,}")
    return wrong


@click.command(help=__doc__)
@click.option("--seconds", default=60.0, show_default=True, help="How long orders are sent.")
@click.option("--rate", default=10_000.0, show_default=True, help="Orders in a second.")
@click.option("--spark/--no-spark", default=True, show_default=True, help="With the Spark job.")
def main(seconds: float, rate: float, spark: bool) -> None:
    """Run the demo."""
    with quiet.folder() as folder:
        wrong = asyncio.run(run(seconds, rate, spark, folder))
    for reason in wrong:
        click.echo(f"error: {reason}", err=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
