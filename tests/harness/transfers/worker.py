"""A worker of the transfer job in Python: `python worker.py CLIENT JOB`, the job in JSON.

It reads orders, and for each writes two records to the accounts topic: what one account pays and
what the other receives. Records and the offsets of the orders are in one transaction. Some
transactions are aborted on purpose. A worker that cannot go on ends, and is started again.

Partitions are assigned by hand, so that correctness rests on transactions alone: a new worker with
the same transactional id fences the old one, and then reads where the last transaction has ended.
The workers in other languages do the same (TransferWorker.java, kafkajs_worker.js).
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import random
import sys
from collections.abc import Iterator
from typing import Any

TIMEOUT_SECONDS = 15.0
#: A worker that hangs for this long prints where, and ends. When a broker was killed, librdkafka's
#: send_offsets_to_transaction may hang, and ignores its timeout (librdkafka issues 5456, 5511).
HANG_SECONDS = 20.0


class Job:
    """What a worker does; see `job.py`."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.bootstrap: str = fields["bootstrap"]
        self.orders: str = fields["orders"]
        self.accounts: str = fields["accounts"]
        self.group: str = fields["group"]
        self.partitions: int = fields["partitions"]
        self.batch_size: int = fields["batch_size"]
        self._abort_ratio: float = fields["abort_ratio"]

    def alive(self) -> None:
        """Report progress."""
        faulthandler.dump_traceback_later(HANG_SECONDS, exit=True)

    def aborts(self) -> bool:
        return random.random() < self._abort_ratio

    def records(self, value: bytes) -> Iterator[tuple[int, bytes]]:
        """Yield the partition and the value of both records of an order."""
        order = json.loads(value)
        for account, amount in (
            (order["from"], -order["amount"]),
            (order["to"], order["amount"]),
        ):
            record = {"order": order["order"], "account": account, "amount": amount}
            yield account % self.partitions, json.dumps(record).encode()


def run_confluent(job: Job) -> None:
    import confluent_kafka  # noqa: PLC0415  # Only the client that runs.

    producer = confluent_kafka.Producer(
        {
            "bootstrap.servers": job.bootstrap,
            "transactional.id": job.group,
            "linger.ms": 0,
            "reconnect.backoff.max.ms": 200,
        }
    )
    producer.init_transactions(TIMEOUT_SECONDS)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": job.bootstrap,
            "group.id": job.group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "reconnect.backoff.max.ms": 200,
        }
    )
    partitions = [
        confluent_kafka.TopicPartition(job.orders, index) for index in range(job.partitions)
    ]
    while True:
        positions = consumer.committed(partitions, TIMEOUT_SECONDS)
        consumer.assign(
            [
                confluent_kafka.TopicPartition(tp.topic, tp.partition, max(tp.offset, 0))
                for tp in positions
            ]
        )
        is_aborted = False
        while not is_aborted:
            job.alive()
            messages = [m for m in consumer.consume(job.batch_size, 0.2) if m.error() is None]
            if not messages:
                continue
            offsets: dict[int, int] = {}
            is_aborted = job.aborts()
            producer.begin_transaction()
            try:
                for message in messages:
                    for partition, value in job.records(message.value()):
                        producer.produce(job.accounts, value, partition=partition)
                    offsets[message.partition()] = message.offset() + 1
                producer.send_offsets_to_transaction(
                    [
                        confluent_kafka.TopicPartition(job.orders, index, offset)
                        for index, offset in offsets.items()
                    ],
                    consumer.consumer_group_metadata(),
                    TIMEOUT_SECONDS,
                )
                if not is_aborted:
                    producer.commit_transaction(TIMEOUT_SECONDS)
            except confluent_kafka.KafkaException as error:
                if not error.args[0].txn_requires_abort():
                    raise
                is_aborted = True
            if is_aborted:
                producer.abort_transaction(TIMEOUT_SECONDS)


def run_kafka_python(job: Job) -> None:
    import kafka  # noqa: PLC0415
    from kafka.structs import OffsetAndMetadata, TopicPartition  # noqa: PLC0415

    servers = job.bootstrap.split(",")
    producer = kafka.KafkaProducer(
        bootstrap_servers=servers, transactional_id=job.group, max_block_ms=TIMEOUT_SECONDS * 1000
    )
    producer.init_transactions()
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=servers,
        group_id=job.group,
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    partitions = [TopicPartition(job.orders, index) for index in range(job.partitions)]
    consumer.assign(partitions)
    while True:
        for tp in partitions:
            consumer.seek(tp, consumer.committed(tp) or 0)
        is_aborted = False
        while not is_aborted:
            job.alive()
            polled = consumer.poll(timeout_ms=200, max_records=job.batch_size)
            if not polled:
                continue
            is_aborted = job.aborts()
            producer.begin_transaction()
            offsets = {}
            sent = []
            for tp, messages in polled.items():
                for message in messages:
                    for partition, value in job.records(message.value):
                        sent.append(producer.send(job.accounts, value, partition=partition))
                offsets[tp] = OffsetAndMetadata(messages[-1].offset + 1, "", -1)
            producer.send_offsets_to_transaction(offsets, job.group)
            if is_aborted:
                producer.flush(TIMEOUT_SECONDS)
                producer.abort_transaction()
            else:
                for future in sent:
                    future.get(TIMEOUT_SECONDS)
                producer.commit_transaction()


async def run_aiokafka(job: Job) -> None:
    import aiokafka  # noqa: PLC0415

    producer = aiokafka.AIOKafkaProducer(
        bootstrap_servers=job.bootstrap, transactional_id=job.group
    )
    await producer.start()
    consumer = aiokafka.AIOKafkaConsumer(
        bootstrap_servers=job.bootstrap,
        group_id=job.group,
        enable_auto_commit=False,
        isolation_level="read_committed",
    )
    await consumer.start()
    partitions = [aiokafka.TopicPartition(job.orders, index) for index in range(job.partitions)]
    consumer.assign(partitions)
    while True:
        for tp in partitions:
            consumer.seek(tp, await consumer.committed(tp) or 0)
        is_aborted = False
        while not is_aborted:
            job.alive()
            polled = await consumer.getmany(timeout_ms=200, max_records=job.batch_size)
            if not polled:
                continue
            is_aborted = job.aborts()
            async with asyncio.timeout(TIMEOUT_SECONDS):
                await producer.begin_transaction()
                for messages in polled.values():
                    for message in messages:
                        for partition, value in job.records(message.value):
                            await producer.send_and_wait(job.accounts, value, partition=partition)
                offsets = {tp: messages[-1].offset + 1 for tp, messages in polled.items()}
                await producer.send_offsets_to_transaction(offsets, job.group)
                if is_aborted:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()


async def run_ottla(job: Job) -> None:
    from ottla.client import (  # noqa: PLC0415
        AbortableTransactionError,
        Consumer,
        DeadlineError,
        Producer,
        TopicPartition,
    )

    class AbortedError(Exception):
        pass

    async with (
        Producer(job.bootstrap, transactional_id=job.group) as producer,
        Consumer(
            job.bootstrap, group=job.group, auto_commit=None, isolation="read_committed"
        ) as consumer,
    ):
        consumer.assign([TopicPartition(job.orders, index) for index in range(job.partitions)])
        while True:
            job.alive()
            try:
                async with producer.transaction(consumer):
                    polled = await consumer.getmany(0.2, job.batch_size)
                    for record in (one for records in polled.values() for one in records):
                        for partition, value in job.records(record.value):
                            await producer.enqueue(job.accounts, value, partition=partition)
                    if job.aborts():
                        raise AbortedError
            except (AbortedError, AbortableTransactionError, DeadlineError):
                pass


def main() -> None:
    client, fields = sys.argv[1:]
    job = Job(json.loads(fields))
    job.alive()
    if client == "confluent":
        run_confluent(job)
    elif client == "kafka-python":
        run_kafka_python(job)
    elif client == "aiokafka":
        asyncio.run(run_aiokafka(job))
    else:
        asyncio.run(run_ottla(job))


if __name__ == "__main__":
    main()
