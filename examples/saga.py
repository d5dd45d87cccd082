"""A saga: an order is paid, or cancelled; and its customer hears of it, once.

    orders ──▶ payment ──▶ payments ──┬──▶ notification ──▶ notifications
                  │                   └──▶ order ─────────▶ cancellations
                  └──▶ dead-letters

Each service is a consumer group that reads a topic and answers in another. What it teaches:

- Commits after processing: a service commits when it has the receipts of its answers. Whatever
  kills it, nothing is lost: what it had in hand comes again, to whoever has the partition next.
- Answering once what may come twice: who is given a partition first reads what was answered there.
- Compensation: nothing is atomic over services. A refused payment is an event like any other, and
  the order service undoes the order because of it.
- Poison pills: what is not understood goes to a topic of dead letters, and the stream goes on.
- Static members: a service that was killed takes its own place again, without a rebalance.

    python examples/saga.py
    python examples/saga.py --orders 0      # finish what a run has left that was killed
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple
from uuid import uuid4

import click

from ottla.client import (
    Admin,
    ClientError,
    Consumer,
    ConsumerRecord,
    ErrorCode,
    KafkaError,
    Producer,
    TopicPartition,
)
from ottla.client.serializers import deserialize_json, serialize_json

PARTITIONS = 3
CREDIT = 80


class Event(NamedTuple):
    """What happened to an order."""

    order: str
    what: str
    amount: int


def decode_event(data: bytes) -> Event:
    """Read an event. What is none raises, and that makes the record a bad one."""
    return Event(**deserialize_json(data))


def pay(order: Event) -> str:
    """Take the money, if there is enough."""
    return "paid" if order.amount <= CREDIT else "refused"


def notify(payment: Event) -> str:
    """Tell the customer."""
    return "on its way" if payment.what == "paid" else "too expensive"


def undo(payment: Event) -> str | None:
    """Compensate for an order that was not paid."""
    return "cancelled" if payment.what == "refused" else None


class Service(NamedTuple):
    """A group that answers the events of one topic in another; or leaves them without an answer."""

    group: str
    reads: str
    writes: str
    answer: Callable[[Event], str | None]


async def serve(service: Service, bootstrap: str, producer: Producer, dead_letters: str) -> None:
    """Answer events until cancelled. Answers go to the partition that has the number of theirs."""
    answered: dict[int, set[bytes]] = {}

    async def remember(places: frozenset[TopicPartition]) -> None:
        for _topic, partition in places:
            own = TopicPartition(service.writes, partition)
            answered[partition] = {record.key async for record in read_to_end(bootstrap, own)}

    async def bury(record: ConsumerRecord, error: Exception) -> None:
        place = f"{record.topic}-{record.partition} at offset {record.offset}"
        headers = {"from": place.encode(), "error": repr(error).encode()}
        await producer.send(dead_letters, record.value, key=record.key, headers=headers)
        click.echo(f"{service.group}: {place} is buried: {error!r}")

    async with Consumer(
        bootstrap,
        service.reads,
        group=service.group,
        instance_id=f"{service.group}-1",
        auto_commit=None,
        value_deserializer=decode_event,
        on_bad_record=bury,
        on_assigned=remember,
    ) as consumer:
        while True:
            receipts = []
            for (_topic, partition), records in (await consumer.getmany(0.2, 20)).items():
                for record in records:
                    what = service.answer(record.value)
                    if what is None or record.key in answered[partition]:
                        continue
                    answered[partition].add(record.key)
                    data = serialize_json(record.value._replace(what=what)._asdict())
                    receipts.append(
                        await producer.enqueue(
                            service.writes, data, key=record.key, partition=partition
                        )
                    )
                    click.echo(f"{service.group}: order {record.value.order}: {what}")
            await asyncio.gather(*receipts)
            await consumer.commit()  # even if nothing came: what was buried is done with, too


async def read_to_end(bootstrap: str, place: TopicPartition) -> AsyncIterator[ConsumerRecord]:
    """Give all records that a partition has now."""
    async with Consumer(bootstrap) as consumer:
        consumer.assign([place])
        end = (await consumer.end_offsets())[place]
        while await consumer.position(place) < end:
            for record in (await consumer.getmany(1.0)).get(place, []):
                yield record


async def place_orders(producer: Producer, topic: str, count: int) -> None:
    """Order things, some of them too expensive; one record of twenty is nonsense."""
    for number in range(count):
        order = Event(uuid4().hex[:8], "placed", 10 * (number % 10 + 1))
        data = b"{nonsense" if number % 20 == 10 else serialize_json(order._asdict())
        await producer.enqueue(topic, data, key=order.order.encode())
    await producer.flush()


async def is_settled(admin: Admin, services: list[Service]) -> bool:
    """Whether all have committed all that they read; asked in the order in which events flow."""
    for service in services:
        committed = await admin.list_group_offsets(service.group)
        for place, end in (await admin.end_offsets(service.reads)).items():
            if end and (place not in committed or committed[place].offset < end):
                return False
    return True


async def run(bootstrap: str, prefix: str, orders: int) -> None:
    """Place orders, and run the services until all orders are settled, earlier ones included."""
    names = ("orders", "payments", "notifications", "cancellations", "dead-letters")
    topics = [f"{prefix}.{name}" for name in names]
    placed, paid, notified, cancelled, dead_letters = topics
    services = [
        Service(f"{prefix}.payment", placed, paid, pay),
        Service(f"{prefix}.notification", paid, notified, notify),
        Service(f"{prefix}.order", paid, cancelled, undo),
    ]
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        for topic in topics:
            try:
                await admin.create_topic(topic, partitions=PARTITIONS)
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
        async with asyncio.TaskGroup() as tasks:
            work = [serve(service, bootstrap, producer, dead_letters) for service in services]
            running = [tasks.create_task(one) for one in work]
            await place_orders(producer, placed, orders)
            while not await is_settled(admin, services):
                await asyncio.sleep(0.1)
            for task in running:
                task.cancel()
        for topic in topics:
            click.echo(f"{sum((await admin.end_offsets(topic)).values()):6} {topic}")


@click.command(help=(__doc__ or "").replace("\n\n", "\n\n\b\n"))
@click.option("--bootstrap", default="localhost:9092", show_default=True, help="A broker.")
@click.option("--prefix", default="saga", show_default=True, help="Of topics and groups.")
@click.option("--orders", default=20, show_default=True, help="How many are placed.")
@click.option("--seconds", default=60.0, show_default=True, help="When to give up.")
def main(bootstrap: str, prefix: str, orders: int, seconds: float) -> None:
    """Run it."""
    try:
        asyncio.run(asyncio.wait_for(run(bootstrap, prefix, orders), seconds))
    except* (ClientError, KafkaError, TimeoutError) as errors:
        reason = str(errors.exceptions[0]) or f"not settled in {seconds:g} s"
        raise click.ClickException(reason) from None


if __name__ == "__main__":
    main()
