"""Transactional producers for `load`: records become visible in transactions, or never.

Each transaction writes records to several partitions, and commits an offset in a group of its
producer. A fifth of them abort. Records of a committed transaction count as acked, those of an
aborted one as refused; a producer that cannot tell starts anew with its transactional id, which
ends the transaction one way or the other.

    with load_on(address, topic, partitions, **TRANSACTIONAL) as load:
        ...
    read_committed_offsets(load)
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

from aiokafka import AIOKafkaProducer
from aiokafka import TopicPartition as AioPartition
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import KafkaException, Message
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition

from harness.history import History, Send, Transaction, encoded
from harness.load import (
    LIBRDKAFKA,
    OTTLA,
    TIMEOUT_SECONDS,
    Load,
    LoopThread,
    SendTracker,
    TaskWorker,
    ThreadWorker,
)
from ottla.client import AbortableTransactionError, BatchConfig, Producer, TopicPartition

#: Of a transaction.
MAX_RECORDS = 6
ABORTED = 0.2
#: Longer than any fault, so that an open transaction is not aborted by its coordinator.
TRANSACTION_SECONDS = 60
CALL_SECONDS = 5
OFFSETS_SECONDS = 15


class _Transactions:
    """The transactions of one producer."""

    def __init__(self, topic: str, tracker: SendTracker, history: History) -> None:
        self.id = f"{topic}-{tracker.name}"
        self._tracker = tracker
        self._history = history
        self._random = Random(tracker.name)
        self._count = 0

    def next(self) -> Transaction:
        """Return the next transaction."""
        self._count += 1
        records = range(self._random.randint(1, MAX_RECORDS))
        sends = [send for _ in records if (send := self._tracker.next()) is not None]
        transaction = Transaction(self._tracker.name, self._count, sends)
        self._history.transactions.append(transaction)
        return transaction

    def is_to_abort(self) -> bool:
        """Whether to abort the current transaction."""
        return self._random.random() < ABORTED

    def committed(self, transaction: Transaction) -> None:
        """Record a commit."""
        for send in transaction.sends:
            self._tracker.ack(send, send.offset)

    def aborted(self, transaction: Transaction) -> None:
        """Record an abort."""
        for send in transaction.sends:
            self._tracker.abort(send)

    def unknown(self, transaction: Transaction) -> None:
        """Record that the outcome is not known. Faults explain it, so that it is no error."""
        for send in transaction.sends:
            self._tracker.give_up(send)


class TransactionalLibrdkafka(ThreadWorker):
    """Produces with confluent-kafka."""

    def __init__(
        self,
        address: str,
        topic: str,
        tracker: SendTracker,
        pause: float,
        load: Load,
    ) -> None:
        super().__init__(tracker.name, load.problems)
        self._address = address
        self._topic = topic
        self._pause = pause
        self._transactions = _Transactions(topic, tracker, load.history)
        # Only for the group's metadata; it never joins.
        self._consumer = ConfluentConsumer(
            LIBRDKAFKA | {"bootstrap.servers": address, "group.id": self._transactions.id}
        )
        self._thread.start()

    def _run(self) -> None:
        producer = self._open()
        while not self._stopping.is_set():
            transaction = self._transactions.next()
            try:
                self._play(producer, transaction)
            except KafkaException as error:
                is_stuck = (
                    error.args[0].retriable() or error.args[0].code() == ConfluentError._STATE
                )
                if not error.args[0].fatal() and not is_stuck:
                    raise
                self._transactions.unknown(transaction)
                producer = self._open()
            time.sleep(self._pause * len(transaction.sends))
        self._consumer.close()

    def _open(self) -> ConfluentProducer:
        producer = ConfluentProducer(
            LIBRDKAFKA
            | {
                "bootstrap.servers": self._address,
                "transactional.id": self._transactions.id,
                "transaction.timeout.ms": TRANSACTION_SECONDS * 1000,
                "linger.ms": 0,
                "request.timeout.ms": 10_000,
            }
        )
        self._call(producer.init_transactions)
        return producer

    def _play(self, producer: ConfluentProducer, transaction: Transaction) -> None:
        try:
            producer.begin_transaction()
            for send in transaction.sends:
                producer.produce(
                    self._topic,
                    encoded(send.value),
                    partition=send.partition,
                    on_delivery=_note_offset(send),
                )
            offset = ConfluentPartition(self._topic, 0, transaction.offset)
            metadata = self._consumer.consumer_group_metadata()
            # librdkafka may wait for ever here (its issue 5456).
            self._call(
                lambda t: producer.send_offsets_to_transaction([offset], metadata, t),
                seconds=OFFSETS_SECONDS,
            )
            if not self._transactions.is_to_abort():
                self._call(producer.commit_transaction)
                self._transactions.committed(transaction)
                return
        except KafkaException as error:
            if not error.args[0].txn_requires_abort():
                raise
        self._call(producer.abort_transaction)
        self._transactions.aborted(transaction)

    @staticmethod
    def _call(function: Callable[[float], Any], seconds: float = TIMEOUT_SECONDS) -> None:
        """Call a transactional function again and again, as librdkafka asks for."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                function(CALL_SECONDS)
            except KafkaException as error:
                if not error.args[0].retriable() or time.monotonic() > deadline:
                    raise
            else:
                return


def _note_offset(send: Send) -> Callable[[ConfluentError | None, Message], None]:
    def on_delivery(error: ConfluentError | None, message: Message) -> None:
        if error is None and message.offset() >= 0:
            send.offset = message.offset()

    return on_delivery


class _AsyncTransactional(TaskWorker):
    """An asyncio producer, which is started anew after an error that leaves the outcome open."""

    def __init__(
        self,
        loop_thread: LoopThread,
        address: str,
        topic: str,
        tracker: SendTracker,
        pause: float,
        load: Load,
    ) -> None:
        super().__init__(loop_thread, tracker.name, load.problems)
        self._address = address
        self._topic = topic
        self._pause = pause
        self._transactions = _Transactions(topic, tracker, load.history)
        self.begin()

    async def _run(self) -> None:
        producer: Any = None
        while not self._stopping:
            transaction = self._transactions.next()
            try:
                producer = producer or await self._open()
                await self._play(producer, transaction)
            except Exception:  # noqa: BLE001  # whatever a fault makes of it
                self._transactions.unknown(transaction)
                producer = await self._discard(producer)
            await asyncio.sleep(self._pause * len(transaction.sends))
        if producer is not None:
            await self._discard(producer)

    async def _open(self) -> Any:
        raise NotImplementedError

    async def _play(self, producer: Any, transaction: Transaction) -> None:
        raise NotImplementedError

    async def _discard(self, producer: Any) -> None:
        raise NotImplementedError


class TransactionalAiokafka(_AsyncTransactional):
    """Produces with aiokafka."""

    async def _open(self) -> AIOKafkaProducer:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._address,
            transactional_id=self._transactions.id,
            transaction_timeout_ms=TRANSACTION_SECONDS * 1000,
            retry_backoff_ms=50,
            metadata_max_age_ms=2000,
            request_timeout_ms=10_000,
        )
        try:
            await asyncio.wait_for(producer.start(), 2 * CALL_SECONDS)
        except BaseException:
            await self._discard(producer)
            raise
        return producer

    async def _play(self, producer: AIOKafkaProducer, transaction: Transaction) -> None:
        async with asyncio.timeout(TRANSACTION_SECONDS):
            await producer.begin_transaction()
            waiting = [
                await producer.send(self._topic, encoded(send.value), partition=send.partition)
                for send in transaction.sends
            ]
            for send, sent in zip(transaction.sends, await asyncio.gather(*waiting), strict=True):
                send.offset = sent.offset
            offsets = {AioPartition(self._topic, 0): transaction.offset}
            await producer.send_offsets_to_transaction(offsets, self._transactions.id)
            if self._transactions.is_to_abort():
                await producer.abort_transaction()
                self._transactions.aborted(transaction)
            else:
                await producer.commit_transaction()
                self._transactions.committed(transaction)

    async def _discard(self, producer: AIOKafkaProducer | None) -> None:
        with suppress(Exception):
            if producer is not None:
                await asyncio.wait_for(producer.stop(), CALL_SECONDS)


class TransactionalOttla(_AsyncTransactional):
    """Produces with ottla.client."""

    async def _open(self) -> Producer:
        return Producer(
            self._address,
            transactional_id=self._transactions.id,
            transaction_timeout=TRANSACTION_SECONDS,
            batch=BatchConfig(linger=0),
            client=OTTLA,
        )

    async def _play(self, producer: Producer, transaction: Transaction) -> None:
        try:
            await producer.begin_transaction()
            waiting = [
                await producer.enqueue(self._topic, encoded(send.value), partition=send.partition)
                for send in transaction.sends
            ]
            offsets = {TopicPartition(self._topic, 0): transaction.offset}
            await producer.commit_offsets(offsets, self._transactions.id)
            for send, sent in zip(transaction.sends, await asyncio.gather(*waiting), strict=True):
                send.offset = sent.offset
            if not self._transactions.is_to_abort():
                await producer.commit_transaction()
                self._transactions.committed(transaction)
                return
        except AbortableTransactionError:
            pass
        await producer.abort_transaction()
        self._transactions.aborted(transaction)

    async def _discard(self, producer: Producer | None) -> None:
        with suppress(Exception):
            if producer is not None:
                await producer.close()


#: Options of `load_on`.
TRANSACTIONAL: dict[str, Any] = {
    "kinds": {
        "librdkafka": TransactionalLibrdkafka,
        "aiokafka": TransactionalAiokafka,
        "ottla": TransactionalOttla,
    },
    "isolation": "read_committed",
}


def read_committed_offsets(load: Load) -> None:
    """Read the offsets that the transactions have committed, into the history."""
    for tracker in load.trackers:
        config = {"bootstrap.servers": load.address, "group.id": f"{load.topic}-{tracker.name}"}
        consumer = ConfluentConsumer(LIBRDKAFKA | config | {"isolation.level": "read_committed"})
        try:
            (found,) = consumer.committed([ConfluentPartition(load.topic, 0)], TIMEOUT_SECONDS)
        finally:
            consumer.close()
        load.history.committed[tracker.name] = max(found.offset, 0)
