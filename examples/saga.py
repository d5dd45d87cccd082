"""Saga: an order is paid or cancelled, and its customer is notified once.

    orders ──▶ payment ──▶ payments ──┬──▶ notification ──▶ notifications
                  │                   └──▶ order ─────────▶ cancellations
                  └──▶ dead-letters

Each service is a consumer group that reads one topic and writes its responses to another. It
demonstrates:

- Exactly once: the responses of a service and the offsets of what it has read are one transaction.
  If it is killed, the next one with its transactional id aborts what was open, and processes the
  same records again; nobody has seen the responses.
- Compensation: there is no transaction across services. A rejected payment is an event like any
  other, and the order service cancels the order because of it.
- Poison pills: records that cannot be decoded go to a dead-letter topic, in the same transaction,
  and processing continues.
- Static membership: a restarted service gets its partitions back without a rebalance.

    python examples/saga.py
    python examples/saga.py --orders 0      # finish the orders of a run that was killed
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import NamedTuple
from uuid import uuid4

import click

from ottla.client import (
    AbortableTransactionError,
    Admin,
    ClientError,
    Consumer,
    ConsumerRecord,
    DeadlineError,
    ErrorCode,
    KafkaError,
    Producer,
    TopicPartition,
)
from ottla.client.serializers import deserialize_json, serialize_json

PARTITIONS = 3
CREDIT = 80


class Event(NamedTuple):
    """A change of an order's status."""

    order: str
    status: str
    amount: int


def decode_event(data: bytes) -> Event:
    """Decode an event; an exception makes the record a bad record."""
    return Event(**deserialize_json(data))


def pay(order: Event) -> str:
    """Accept the payment if the credit suffices."""
    return "paid" if order.amount <= CREDIT else "rejected"


def notify(payment: Event) -> str:
    """Notify the customer."""
    return "on its way" if payment.status == "paid" else "too expensive"


def cancel(payment: Event) -> str | None:
    """Cancel an order whose payment was rejected."""
    return "cancelled" if payment.status == "rejected" else None


class Service(NamedTuple):
    """A consumer group that may respond to each event of one topic in another topic."""

    group: str
    reads: str
    writes: str
    respond: Callable[[Event], str | None]


async def serve(service: Service, bootstrap: str, dead_letters: str) -> None:
    """Respond to events until cancelled; a response goes to the same partition number."""

    async def send_to_dead_letters(record: ConsumerRecord, error: Exception) -> None:
        source = f"{record.topic}-{record.partition} at offset {record.offset}"
        headers = {"from": source.encode(), "error": repr(error).encode()}
        await producer.enqueue(dead_letters, record.value, key=record.key, headers=headers)
        click.echo(f"{service.group}: sent {source} to dead letters: {error!r}")

    async with (
        Producer(bootstrap, transactional_id=f"{service.group}-1") as producer,
        Consumer(
            bootstrap,
            service.reads,
            group=service.group,
            instance_id=f"{service.group}-1",
            auto_commit=None,
            isolation="read_committed",
            value_deserializer=decode_event,
            on_bad_record=send_to_dead_letters,
        ) as consumer,
    ):
        while True:
            try:
                # Responses, dead letters and the offsets of what was read: all, or none of them.
                async with producer.transaction(consumer):
                    polled = await consumer.getmany(0.2, 20)
                    await respond(service, polled, producer)
            except (AbortableTransactionError, DeadlineError) as error:
                click.echo(f"{service.group}: once more: {error}")


async def respond(
    service: Service, polled: Mapping[TopicPartition, list[ConsumerRecord]], producer: Producer
) -> None:
    """Respond to events."""
    for tp, records in polled.items():
        for record in records:
            status = service.respond(record.value)
            if status is not None:
                data = serialize_json(record.value._replace(status=status)._asdict())
                await producer.enqueue(service.writes, data, key=record.key, partition=tp.partition)
                click.echo(f"{service.group}: order {record.value.order}: {status}")


async def count_records(bootstrap: str, topic: str) -> int:
    """Count the committed records of a topic: offsets include the markers of transactions."""
    async with Consumer(bootstrap, topic, isolation="read_committed") as consumer:
        count = 0
        while any((await consumer.lag()).values()):
            count += sum(map(len, (await consumer.getmany(0.2)).values()))
        return count


async def place_orders(producer: Producer, topic: str, count: int) -> None:
    """Place orders; some are too expensive, and one record in twenty cannot be decoded."""
    for number in range(count):
        order = Event(uuid4().hex[:8], "placed", 10 * (number % 10 + 1))
        data = b"{nonsense" if number % 20 == 10 else serialize_json(order._asdict())
        await producer.enqueue(topic, data, key=order.order.encode())
    await producer.flush()


async def is_settled(admin: Admin, services: list[Service]) -> bool:
    """Whether all services have committed their topics; checked in the order events flow."""
    for service in services:
        committed = await admin.list_group_offsets(service.group)
        ends = await admin.end_offsets(service.reads, isolation="read_committed")
        for tp, end in ends.items():
            if end and (tp not in committed or committed[tp].offset < end):
                return False
    return True


async def run(bootstrap: str, prefix: str, orders: int) -> None:
    """Place orders, and run the services until all orders, also earlier ones, are settled."""
    names = ("orders", "payments", "notifications", "cancellations", "dead-letters")
    topics = [f"{prefix}.{name}" for name in names]
    placed, paid, notified, cancelled, dead_letters = topics
    services = [
        Service(f"{prefix}.payment", placed, paid, pay),
        Service(f"{prefix}.notification", paid, notified, notify),
        Service(f"{prefix}.order", paid, cancelled, cancel),
    ]
    async with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        for topic in topics:
            try:
                await admin.create_topic(topic, partitions=PARTITIONS)
            except KafkaError as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                    raise
        async with asyncio.TaskGroup() as tasks:
            running = [
                tasks.create_task(serve(service, bootstrap, dead_letters)) for service in services
            ]
            await place_orders(producer, placed, orders)
            while not await is_settled(admin, services):
                await asyncio.sleep(0.1)
            for task in running:
                task.cancel()
        for topic in topics:
            click.echo(f"{await count_records(bootstrap, topic):6} {topic}")


@click.command(help=(__doc__ or "").replace("\n\n", "\n\n\b\n"))
@click.option("--bootstrap", default="localhost:9092", show_default=True, help="Bootstrap servers.")
@click.option("--prefix", default="saga", show_default=True, help="Prefix of topics and groups.")
@click.option("--orders", default=20, show_default=True, help="Number of orders to place.")
@click.option("--seconds", default=60.0, show_default=True, help="Timeout.")
def main(bootstrap: str, prefix: str, orders: int, seconds: float) -> None:
    """Run the saga."""
    try:
        asyncio.run(asyncio.wait_for(run(bootstrap, prefix, orders), seconds))
    except* (ClientError, KafkaError, TimeoutError) as errors:
        reason = str(errors.exceptions[0]) or f"not settled in {seconds:g} s"
        raise click.ClickException(reason) from None


if __name__ == "__main__":
    main()
