"""Load that goes on whatever becomes of the brokers, and writes down what it is told.

Three producers, all idempotent, acks=all: librdkafka's, aiokafka's and ours. Two readers from the
start on: librdkafka's and ours. What they did is in a `History`.

    with load_on(address, topic, partitions) as load:
        load.wait_for_acks()
        ...
    load.history        # all that was sent has been answered, or given up
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import warnings
from collections.abc import Callable, Collection, Coroutine, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError as AioKafkaError
from aiokafka.errors import MessageSizeTooLargeError as AioTooLargeError
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import KafkaError as ConfluentError
from confluent_kafka import KafkaException, Message
from confluent_kafka import Producer as ConfluentProducer
from confluent_kafka import TopicPartition as ConfluentPartition

from chaos.history import History, Outcome, Row, Send, decoded, encoded, value_of
from ottla.client import (
    BatchConfig,
    ClientConfig,
    ClientError,
    Consumer,
    ErrorCode,
    FetchConfig,
    KafkaError,
    Producer,
    RetryConfig,
    TimeoutConfig,
    TopicPartition,
)

#: What a producer has under way in a partition at most: one that is away leaves room for others.
UNDER_WAY = 60
#: A record that was not acked for so long is given up.
PATIENCE_SECONDS = 120
#: Codes that say for sure that nothing was written.
_REFUSALS = frozenset({ErrorCode.INVALID_TIMESTAMP, ErrorCode.MESSAGE_TOO_LARGE})

_LIBRDKAFKA: dict[str, Any] = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 2000,
    "metadata.recovery.strategy": "none",
}
_OURS = ClientConfig(
    retry=RetryConfig(backoff=0.02, max_backoff=0.2),
    timeouts=TimeoutConfig(connect=5, request=10, operation=PATIENCE_SECONDS),
    metadata_max_age=2,
)


@contextmanager
def quiet() -> Iterator[None]:
    """Hear nothing of what is no news here: brokers that go and come, and every flipped bit."""
    loggers = [logging.getLogger(name) for name in ("aiokafka", "ottla.client", "ottla.storage")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class Book:
    """What one producer sends and is told, and how long it had to wait."""

    def __init__(self, history: History, name: str, number: int, partitions: int) -> None:
        self.name = name
        self.acked = [0] * partitions
        self.errors: list[str] = []
        self._sends = history.sends[name]
        self._number = number
        self._under_way = [0] * partitions
        self._waiting_since = [0.0] * partitions
        self._longest = [0.0] * partitions
        self._turn = number

    def next(self) -> Send | None:
        """Make up the next record; None if none can be sent now."""
        partitions = len(self._under_way)
        for _ in range(partitions):
            self._turn = (self._turn + 1) % partitions
            if self._under_way[self._turn] < UNDER_WAY:
                break
        else:
            return None
        send = Send(self._turn, value_of(self._number, len(self._sends)))
        self._sends.append(send)
        if not self._under_way[self._turn]:
            self._waiting_since[self._turn] = time.monotonic()
        self._under_way[self._turn] += 1
        return send

    def told(self, send: Send, offset: int | None) -> None:
        """Note an ack, and where it says that the record is."""
        send.outcome = Outcome.ACKED
        send.offset = offset if offset is not None and offset >= 0 else None
        self.acked[send.partition] += 1
        self._answered(send)

    def failed(self, send: Send, error: object, *, is_refused: bool = False) -> None:
        """Note that there will be no ack, and whether that means that there is no record."""
        send.outcome = Outcome.REFUSED if is_refused else Outcome.UNKNOWN
        self.errors.append(f"{self.name}: {send.value} in {send.partition}: {error}")
        self._answered(send)

    def silence(self, partition: int) -> float:
        """Give the longest time for which it waited for any answer of a partition, in seconds."""
        now = time.monotonic() - self._waiting_since[partition]
        return max(self._longest[partition], now if self._under_way[partition] else 0.0)

    def _answered(self, send: Send) -> None:
        now, partition = time.monotonic(), send.partition
        waited = now - self._waiting_since[partition]
        self._longest[partition] = max(self._longest[partition], waited)
        self._waiting_since[partition] = now
        self._under_way[partition] -= 1


class Worker(Protocol):
    """Somebody who works until he is told to stop."""

    def stop(self, patience: float) -> None:
        """Begin nothing new, and wait so long for what was begun, in seconds."""

    def join(self) -> None:
        """Wait for the end."""


class _Threaded:
    """A client that is worked with in a thread of its own."""

    def __init__(self, name: str, problems: list[str]) -> None:
        self._problems = problems
        self._stopping = threading.Event()
        self._patience = 0.0
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def stop(self, patience: float) -> None:
        self._patience = patience
        self._stopping.set()

    def join(self) -> None:
        self._thread.join()

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001  # said where somebody looks
            self._problems.append(f"{self._thread.name} ended: {error!r}")

    def _run(self) -> None:
        raise NotImplementedError


class LibrdkafkaProducer(_Threaded):
    """Sends with confluent-kafka."""

    def __init__(
        self, address: str, topic: str, book: Book, pause: float, problems: list[str]
    ) -> None:
        super().__init__(book.name, problems)
        self._book = book
        self._topic = topic
        self._pause = pause
        self._producer = ConfluentProducer(
            _LIBRDKAFKA
            | {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 20,
                "message.timeout.ms": PATIENCE_SECONDS * 1000,
                "request.timeout.ms": 10_000,
                "error_cb": self._error,
            }
        )
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            send = self._book.next()
            if send is None:
                self._producer.poll(0.005)
                continue
            self._producer.produce(
                self._topic,
                encoded(send.value),
                partition=send.partition,
                on_delivery=lambda error, message, send=send: self._told(error, message, send),
            )
            self._producer.poll(0)
            time.sleep(self._pause)
        self._producer.flush(self._patience)

    def _told(self, error: ConfluentError | None, message: Message, send: Send) -> None:
        if error is None:
            self._book.told(send, message.offset())
        else:
            self._book.failed(send, error, is_refused=error.code() in _REFUSALS)

    def _error(self, error: ConfluentError) -> None:
        # That a broker is away is no news; what is fatal is.
        if error.fatal():
            self._problems.append(f"{self._book.name}: fatal: {error}")


class LibrdkafkaReader(_Threaded):
    """Reads along with confluent-kafka, from the start of every partition."""

    def __init__(
        self, address: str, topic: str, partitions: int, rows: list[Row], problems: list[str]
    ) -> None:
        super().__init__("librdkafka's reader", problems)
        self._rows = rows
        self._consumer = librdkafka_consumer(address, topic, partitions)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                for message in self._consumer.consume(500, timeout=0.1):
                    if row := row_of(message):
                        self._rows.append(row)
        finally:
            self._consumer.close()


def librdkafka_consumer(address: str, topic: str, partitions: int) -> ConfluentConsumer:
    """Make one that reads all partitions from their start."""
    consumer = ConfluentConsumer(
        _LIBRDKAFKA
        | {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 20,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([ConfluentPartition(topic, number, 0) for number in range(partitions)])
    return consumer


def row_of(message: Message) -> Row | None:
    """Read a record; None for what is no record, and may be. Raises for what may not."""
    error = message.error()
    if error is None:
        return message.partition(), message.offset(), decoded(message.value())
    # A broker that is away is asked again by itself.
    if error.code() == ConfluentError._PARTITION_EOF or error.retriable():
        return None
    raise KafkaException(error)


class Asyncio:
    """A loop in a thread, for the clients that want one."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # A client's task that failed unheard is told by what the client does next, or not at all.
        self.loop.set_exception_handler(lambda _loop, _context: None)
        self._thread = threading.Thread(target=self.loop.run_forever, name="asyncio", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any], timeout: float = 30) -> Any:
        """Run something there, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def close(self) -> None:
        """End, with whatever clients have left behind."""
        self.run(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        with warnings.catch_warnings():
            # aiokafka may be connecting while it is closed, and forgets about that.
            warnings.simplefilter("ignore", ResourceWarning)
            self.loop.close()
            gc.collect()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)


class _Tasked:
    """A client that is worked with in a task of the loop."""

    def __init__(self, home: Asyncio, name: str, problems: list[str]) -> None:
        self._home = home
        self._name = name
        self._problems = problems
        self._stopping = False
        self._patience = 0.0
        self._ended = threading.Event()

    def begin(self) -> None:
        asyncio.run_coroutine_threadsafe(self._guarded(), self._home.loop)

    def stop(self, patience: float) -> None:
        self._patience = patience
        self._stopping = True

    def join(self) -> None:
        self._ended.wait()

    async def _guarded(self) -> None:
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001  # said where somebody looks
            self._problems.append(f"{self._name} ended: {error!r}")
        finally:
            self._ended.set()

    async def _run(self) -> None:
        raise NotImplementedError


class _AsyncProducer(_Tasked):
    """What the two asynchronous producers have in common: one queues, and is told later."""

    def __init__(
        self,
        home: Asyncio,
        address: str,
        topic: str,
        book: Book,
        pause: float,
        problems: list[str],
    ) -> None:
        super().__init__(home, book.name, problems)
        self._address = address
        self._topic = topic
        self._book = book
        self._pause = pause
        self._waiting: set[asyncio.Future[Any]] = set()
        self.begin()

    async def _run(self) -> None:
        await self._open()
        try:
            while not self._stopping:
                send = self._book.next()
                if send is not None:
                    await self._begin(send)
                await asyncio.sleep(self._pause if send is not None else 0.005)
            if self._waiting:
                await asyncio.wait(self._waiting, timeout=self._patience)
        finally:
            with suppress(Exception):
                await asyncio.wait_for(self._close(), min(20, self._patience))

    async def _begin(self, send: Send) -> None:
        try:
            future = asyncio.ensure_future(await self._queue(send))
        except (AioKafkaError, ClientError, KafkaError) as error:
            self._book.failed(send, error)
            return
        self._waiting.add(future)
        future.add_done_callback(lambda done: self._told(send, done))

    def _told(self, send: Send, future: asyncio.Future[Any]) -> None:
        self._waiting.discard(future)
        if future.cancelled():
            self._book.failed(send, "cancelled")
        elif error := future.exception():
            self._book.failed(send, error, is_refused=self._is_refusal(error))
        else:
            self._book.told(send, future.result().offset)

    async def _open(self) -> None:
        pass

    async def _queue(self, send: Send) -> Any:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError

    def _is_refusal(self, error: BaseException) -> bool:
        raise NotImplementedError


class AiokafkaProducer(_AsyncProducer):
    """Sends with aiokafka."""

    async def _open(self) -> None:
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._address,
            enable_idempotence=True,
            acks="all",
            linger_ms=2,
            retry_backoff_ms=50,
            metadata_max_age_ms=2000,
            request_timeout_ms=30_000,
        )
        await self._producer.start()

    async def _queue(self, send: Send) -> Any:
        return await self._producer.send(self._topic, encoded(send.value), partition=send.partition)

    async def _close(self) -> None:
        await self._producer.stop()

    def _is_refusal(self, error: BaseException) -> bool:
        return getattr(error, "errno", None) in _REFUSALS or isinstance(error, AioTooLargeError)


class OurProducer(_AsyncProducer):
    """Sends with ottla.client."""

    async def _open(self) -> None:
        self._producer = Producer(self._address, batch=BatchConfig(linger=0.001), client=_OURS)

    async def _queue(self, send: Send) -> Any:
        return await self._producer.enqueue(
            self._topic, encoded(send.value), partition=send.partition
        )

    async def _close(self) -> None:
        await self._producer.close()

    def _is_refusal(self, error: BaseException) -> bool:
        return isinstance(error, KafkaError) and error.code in _REFUSALS


class OurReader(_Tasked):
    """Reads along with ottla.client, from the start of every partition."""

    def __init__(
        self,
        home: Asyncio,
        address: str,
        topic: str,
        partitions: int,
        rows: list[Row],
        problems: list[str],
    ) -> None:
        super().__init__(home, "our reader", problems)
        self._address = address
        self._topic = topic
        self._partitions = partitions
        self._rows = rows
        self.begin()

    async def _run(self) -> None:
        async with our_consumer(self._address) as consumer:
            places = [TopicPartition(self._topic, number) for number in range(self._partitions)]
            consumer.assign(places)
            consumer.seek_to_beginning(*places)
            while not self._stopping:
                found = await consumer.getmany(timeout=0.1)
                self._rows += rows_of(found)


def our_consumer(address: str) -> Consumer:
    """Make one of ours."""
    return Consumer(address, client=_OURS, fetch=FetchConfig(max_wait=0.1))


def rows_of(found: dict[TopicPartition, list[Any]]) -> list[Row]:
    """Read records of ours. Raises ValueError for what nobody sent."""
    return [
        (place.partition, record.offset, decoded(record.value))
        for place, records in found.items()
        for record in records
    ]


class Load:
    """All of them together."""

    def __init__(
        self,
        address: str,
        topic: str,
        partitions: int,
        *,
        per_second: float = 900,
        with_readers: bool = True,
    ) -> None:
        self.address = address
        self.topic = topic
        self.partitions = range(partitions)
        self.history = History()
        #: What ended somebody before his time.
        self.problems: list[str] = []
        self._is_stopped = False
        self._home = Asyncio()
        names = ("librdkafka", "aiokafka", "ottla")
        self.books = [
            Book(self.history, name, number, partitions) for number, name in enumerate(names)
        ]
        pause = len(names) / per_second
        rdkafka, aio, ours = self.books
        home, problems, polls = self._home, self.problems, self.history.polls
        self._producers: list[Worker] = [
            LibrdkafkaProducer(address, topic, rdkafka, pause, problems),
            AiokafkaProducer(home, address, topic, aio, pause, problems),
            OurProducer(home, address, topic, ours, pause, problems),
        ]
        self._readers: list[Worker] = []
        if with_readers:
            self._readers = [
                LibrdkafkaReader(address, topic, partitions, polls["librdkafka"], problems),
                OurReader(home, address, topic, partitions, polls["ottla"], problems),
            ]

    @property
    def acked(self) -> int:
        """How much was acked so far."""
        return sum(sum(book.acked) for book in self.books)

    @property
    def errors(self) -> list[str]:
        """What producers were told that is no ack."""
        return [error for book in self.books for error in book.errors]

    def acked_in(self, partitions: Collection[int]) -> int:
        """How much was acked so far in some partitions."""
        return sum(book.acked[number] for book in self.books for number in partitions)

    def silence(self, partitions: Collection[int] | None = None) -> float:
        """Give the longest time that a producer had to wait for a partition, in seconds."""
        numbers = self.partitions if partitions is None else partitions
        return max((book.silence(number) for book in self.books for number in numbers), default=0.0)

    def wait_for_acks(
        self, count: int = 5, partitions: Collection[int] | None = None, seconds: float = 60
    ) -> None:
        """Wait until every producer had so many acks, from now on, in each of some partitions.

        Of some only where the others cannot be written: then aiokafka's is not waited for. It sends
        to all in turn, and its `send` waits while the batch of any one of them is full.
        """
        numbers = list(self.partitions if partitions is None else partitions)
        is_whole = len(numbers) == len(self.partitions)
        books = [book for book in self.books if is_whole or book.name != "aiokafka"]
        wanted = {(b.name, n): b.acked[n] + count for b in books for n in numbers}
        self.wait(
            lambda: all(b.acked[n] >= wanted[b.name, n] for b in books for n in numbers),
            f"{count} acks for everybody in {numbers}",
            seconds,
        )

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
        """Wait until something is so, or somebody has ended, or it takes too long."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert not self.problems, self.problems
            if time.monotonic() > deadline:
                told = {book.name: book.acked for book in self.books}
                raise AssertionError(f"{what}: not in {seconds} s; {told}; {self.errors[-3:]}")
            time.sleep(0.005)

    def stop(self, patience: float = PATIENCE_SECONDS + 10) -> None:
        """Let producers have their answers, if they come in so many seconds, and readers end."""
        if not self._is_stopped:
            self._is_stopped = True
            _end(self._producers, patience)
            _end(self._readers, patience)
            self._home.close()


def _end(workers: Sequence[Worker], patience: float) -> None:
    for worker in workers:
        worker.stop(patience)
    for worker in workers:
        worker.join()


@contextmanager
def load_on(address: str, topic: str, partitions: int, **options: Any) -> Iterator[Load]:
    """Let there be load, and wait for its answers at the end."""
    load = Load(address, topic, partitions, **options)
    try:
        yield load
    except BaseException:
        load.stop(patience=1)
        raise
    load.stop()


def read_everything(address: str, topic: str, partitions: int, history: History) -> None:
    """Read all from start to end, with clients that know nothing of what was, one of each kind."""
    theirs, ours = ("librdkafka, in the end", "ottla, in the end")
    history.last_readers = {theirs, ours}
    _read_with_librdkafka(address, topic, partitions, history.polls[theirs])
    history.polls[ours] = asyncio.run(_read_with_ours(address, topic, partitions))


def _read_with_librdkafka(address: str, topic: str, partitions: int, rows: list[Row]) -> None:
    consumer = librdkafka_consumer(address, topic, partitions)
    try:
        ended: set[int] = set()
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"the end of {topic} was not reached"
            for message in consumer.consume(1000, timeout=0.1):
                if row := row_of(message):
                    rows.append(row)
                elif message.error().code() == ConfluentError._PARTITION_EOF:
                    ended.add(message.partition())
    finally:
        consumer.close()


async def _read_with_ours(address: str, topic: str, partitions: int) -> list[Row]:
    rows: list[Row] = []
    places = [TopicPartition(topic, number) for number in range(partitions)]
    async with our_consumer(address) as consumer:
        consumer.assign(places)
        consumer.seek_to_beginning(*places)
        ends = await consumer.end_offsets(*places)
        async with asyncio.timeout(PATIENCE_SECONDS):
            while any([await consumer.position(place) < ends[place] for place in places]):
                rows += rows_of(await consumer.getmany(timeout=1.0))
    return rows
