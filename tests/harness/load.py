"""The load generator: clients that keep producing and reading while brokers fail.

The producers are idempotent, with acks=all: librdkafka, aiokafka and ottla by default. The readers
start at the beginning: librdkafka and ottla. What they sent and received is in a `History`.

    with load_on(address, topic, partitions) as load:
        load.wait_for_acks()
        ...
    load.history        # every send has been acknowledged, refused or given up
"""

from __future__ import annotations

import asyncio
import gc
import logging
import threading
import time
import warnings
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
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

from harness.history import History, Outcome, Row, Send, decoded, encoded, value_of
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

#: Per producer and partition, so that a partition without a leader does not block the others.
MAX_IN_FLIGHT = 60
#: A record that is not acknowledged within this time is given up.
TIMEOUT_SECONDS = 120
#: Error codes after which the record is certainly not written.
_REFUSALS = frozenset({ErrorCode.INVALID_TIMESTAMP, ErrorCode.MESSAGE_TOO_LARGE})

LIBRDKAFKA: dict[str, Any] = {
    "log_level": 0,
    "reconnect.backoff.ms": 20,
    "reconnect.backoff.max.ms": 200,
    "retry.backoff.ms": 20,
    "retry.backoff.max.ms": 200,
    "socket.timeout.ms": 10_000,
    "topic.metadata.refresh.interval.ms": 2000,
    "metadata.recovery.strategy": "none",
}
OTTLA = ClientConfig(
    retry=RetryConfig(backoff=0.02, max_backoff=0.2),
    timeouts=TimeoutConfig(connect=5, request=10, operation=TIMEOUT_SECONDS),
    metadata_max_age=2,
)


@contextmanager
def silenced_client_logs() -> Iterator[None]:
    """Suppress what clients log of faults that are injected on purpose."""
    loggers = [logging.getLogger(name) for name in ("aiokafka", "ottla.client", "ottla.storage")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class SendTracker:
    """The sends of one producer: acknowledgements, errors, and the longest wait for either."""

    def __init__(self, history: History, name: str, number: int, partitions: int) -> None:
        self.name = name
        self.acked = [0] * partitions
        self.errors: list[str] = []
        self._sends = history.sends[name]
        self._number = number
        self._in_flight = [0] * partitions
        self._waiting_since = [0.0] * partitions
        self._longest = [0.0] * partitions
        self._turn = number

    def next(self) -> Send | None:
        """Return the next record to send; None if every partition has the maximum in flight."""
        partitions = len(self._in_flight)
        for _ in range(partitions):
            self._turn = (self._turn + 1) % partitions
            if self._in_flight[self._turn] < MAX_IN_FLIGHT:
                break
        else:
            return None
        send = Send(self._turn, value_of(self._number, len(self._sends)))
        self._sends.append(send)
        if not self._in_flight[self._turn]:
            self._waiting_since[self._turn] = time.monotonic()
        self._in_flight[self._turn] += 1
        return send

    def ack(self, send: Send, offset: int | None) -> None:
        """Record an acknowledgement and its offset."""
        send.outcome = Outcome.ACKED
        send.offset = offset if offset is not None and offset >= 0 else None
        self.acked[send.partition] += 1
        self._answered(send)

    def abort(self, send: Send) -> None:
        """Record that the transaction of a record was aborted."""
        send.outcome = Outcome.REFUSED
        self._answered(send)

    def give_up(self, send: Send) -> None:
        """Stop waiting for a record whose transaction may have been committed."""
        self._answered(send)

    def fail(self, send: Send, error: object, *, is_refused: bool = False) -> None:
        """Record an error, and whether it implies that the record was not written."""
        send.outcome = Outcome.REFUSED if is_refused else Outcome.UNKNOWN
        self.errors.append(f"{self.name}: {send.value} in {send.partition}: {error}")
        self._answered(send)

    def longest_wait(self, partition: int) -> float:
        """Return the longest wait for a response of a partition, in seconds."""
        now = time.monotonic() - self._waiting_since[partition]
        return max(self._longest[partition], now if self._in_flight[partition] else 0.0)

    def _answered(self, send: Send) -> None:
        now, partition = time.monotonic(), send.partition
        waited = now - self._waiting_since[partition]
        self._longest[partition] = max(self._longest[partition], waited)
        self._waiting_since[partition] = now
        self._in_flight[partition] -= 1


class Worker(Protocol):
    """A client that works until it is stopped."""

    def stop(self, timeout: float) -> None:
        """Start nothing new; wait up to `timeout` seconds for responses."""

    def join(self) -> None:
        """Wait until the worker has ended."""


class ThreadWorker:
    """A blocking client, in its own thread."""

    def __init__(self, name: str, problems: list[str]) -> None:
        self._problems = problems
        self._stopping = threading.Event()
        self._timeout = 0.0
        self._thread = threading.Thread(target=self._guarded, name=name, daemon=True)

    def stop(self, timeout: float) -> None:
        self._timeout = timeout
        self._stopping.set()

    def join(self) -> None:
        self._thread.join()

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception as error:  # noqa: BLE001  # reported by Load.problems
            self._problems.append(f"{self._thread.name} ended: {error!r}")

    def _run(self) -> None:
        raise NotImplementedError


class LibrdkafkaProducer(ThreadWorker):
    """Produces with confluent-kafka."""

    def __init__(
        self, address: str, topic: str, tracker: SendTracker, pause: float, load: Load
    ) -> None:
        super().__init__(tracker.name, load.problems)
        self._tracker = tracker
        self._topic = topic
        self._pause = pause
        self._producer = ConfluentProducer(
            LIBRDKAFKA
            | {
                "bootstrap.servers": address,
                "enable.idempotence": True,
                "acks": "all",
                "linger.ms": 1,
                "batch.num.messages": 20,
                "message.timeout.ms": TIMEOUT_SECONDS * 1000,
                "request.timeout.ms": 10_000,
                "error_cb": self._on_error,
            }
        )
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.is_set():
            send = self._tracker.next()
            if send is None:
                self._producer.poll(0.005)
                continue
            self._producer.produce(
                self._topic,
                encoded(send.value),
                partition=send.partition,
                on_delivery=lambda error, message, send=send: self._on_delivery(
                    error, message, send
                ),
            )
            self._producer.poll(0)
            time.sleep(self._pause)
        self._producer.flush(self._timeout)

    def _on_delivery(self, error: ConfluentError | None, message: Message, send: Send) -> None:
        if error is None:
            self._tracker.ack(send, message.offset())
        else:
            self._tracker.fail(send, error, is_refused=error.code() in _REFUSALS)

    def _on_error(self, error: ConfluentError) -> None:
        # Brokers are expected to disappear; fatal errors are not expected.
        if error.fatal():
            self._problems.append(f"{self._tracker.name}: fatal: {error}")


class LibrdkafkaReader(ThreadWorker):
    """Consumes with confluent-kafka, from the start of every partition."""

    def __init__(self, load: Load) -> None:
        super().__init__("librdkafka reader", load.problems)
        self._rows = load.history.polls["librdkafka"]
        self._consumer = librdkafka_consumer(
            load.address, load.topic, len(load.partitions), load.isolation
        )
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                for message in self._consumer.consume(500, timeout=0.1):
                    if row := row_of(message):
                        self._rows.append(row)
        finally:
            self._consumer.close()


def librdkafka_consumer(
    address: str,
    topic: str,
    partitions: int,
    isolation: str = "read_uncommitted",
    **configs: str,
) -> ConfluentConsumer:
    """Return a consumer of all partitions from their start."""
    consumer = ConfluentConsumer(
        LIBRDKAFKA
        | {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "check.crcs": True,
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 20,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "isolation.level": isolation,
        }
        | configs
    )
    consumer.assign([ConfluentPartition(topic, number, 0) for number in range(partitions)])
    return consumer


def row_of(message: Message) -> Row | None:
    """Decode a record; None for a retriable error. Raises KafkaException for any other error."""
    error = message.error()
    if error is None:
        return message.partition(), message.offset(), decoded(message.value())
    # librdkafka retries by itself.
    if error.code() == ConfluentError._PARTITION_EOF or error.retriable():
        return None
    raise KafkaException(error)


class LoopThread:
    """An event loop in a thread, for asyncio clients."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        # Clients report the errors of their background tasks when they are used next.
        self.loop.set_exception_handler(lambda _loop, _context: None)
        self._thread = threading.Thread(target=self.loop.run_forever, name="asyncio", daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Any], timeout: float = 30) -> Any:
        """Run a coroutine on the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout)

    def close(self) -> None:
        """Cancel the tasks that clients left behind, and stop the loop."""
        self.run(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        with warnings.catch_warnings():
            # aiokafka abandons a connection attempt when it is closed.
            warnings.simplefilter("ignore", ResourceWarning)
            self.loop.close()
            gc.collect()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=5)


class TaskWorker:
    """An asyncio client, in a task."""

    def __init__(self, loop_thread: LoopThread, name: str, problems: list[str]) -> None:
        self._loop_thread = loop_thread
        self._name = name
        self._problems = problems
        self._stopping = False
        self._timeout = 0.0
        self._ended = threading.Event()

    def begin(self) -> None:
        asyncio.run_coroutine_threadsafe(self._guarded(), self._loop_thread.loop)

    def stop(self, timeout: float) -> None:
        self._timeout = timeout
        self._stopping = True

    def join(self) -> None:
        self._ended.wait()

    async def _guarded(self) -> None:
        try:
            await self._run()
        except Exception as error:  # noqa: BLE001  # reported by Load.problems
            self._problems.append(f"{self._name} ended: {error!r}")
        finally:
            self._ended.set()

    async def _run(self) -> None:
        raise NotImplementedError


class _AsyncProducer(TaskWorker):
    """A producer whose `_queue` returns an awaitable of the acknowledgement."""

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
        self._tracker = tracker
        self._pause = pause
        self._waiting: set[asyncio.Future[Any]] = set()
        self.begin()

    async def _run(self) -> None:
        await self._open()
        try:
            while not self._stopping:
                send = self._tracker.next()
                if send is not None:
                    await self._begin(send)
                await asyncio.sleep(self._pause if send is not None else 0.005)
            if self._waiting:
                await asyncio.wait(self._waiting, timeout=self._timeout)
        finally:
            with suppress(Exception):
                await asyncio.wait_for(self._close(), min(20, self._timeout))

    async def _begin(self, send: Send) -> None:
        try:
            future = asyncio.ensure_future(await self._queue(send))
        except (AioKafkaError, ClientError, KafkaError) as error:
            self._tracker.fail(send, error)
            return
        self._waiting.add(future)
        future.add_done_callback(lambda done: self._on_delivery(send, done))

    def _on_delivery(self, send: Send, future: asyncio.Future[Any]) -> None:
        self._waiting.discard(future)
        if future.cancelled():
            self._tracker.fail(send, "cancelled")
        elif error := future.exception():
            self._tracker.fail(send, error, is_refused=self._is_refusal(error))
        else:
            self._tracker.ack(send, future.result().offset)

    async def _open(self) -> None:
        pass

    async def _queue(self, send: Send) -> Any:
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError

    def _is_refusal(self, error: BaseException) -> bool:
        raise NotImplementedError


class AiokafkaProducer(_AsyncProducer):
    """Produces with aiokafka."""

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


class OttlaProducer(_AsyncProducer):
    """Produces with ottla.client."""

    async def _open(self) -> None:
        self._producer = Producer(self._address, batch=BatchConfig(linger=0.001), client=OTTLA)

    async def _queue(self, send: Send) -> Any:
        return await self._producer.enqueue(
            self._topic, encoded(send.value), partition=send.partition
        )

    async def _close(self) -> None:
        await self._producer.close()

    def _is_refusal(self, error: BaseException) -> bool:
        return isinstance(error, KafkaError) and error.code in _REFUSALS


class OttlaReader(TaskWorker):
    """Consumes with ottla.client, from the start of every partition."""

    def __init__(self, loop_thread: LoopThread, load: Load) -> None:
        super().__init__(loop_thread, "ottla reader", load.problems)
        self._load = load
        self._rows = load.history.polls["ottla"]
        self.begin()

    async def _run(self) -> None:
        async with ottla_consumer(self._load.address, self._load.isolation) as consumer:
            tps = [TopicPartition(self._load.topic, number) for number in self._load.partitions]
            consumer.assign(tps)
            consumer.seek_to_beginning(*tps)
            while not self._stopping:
                found = await consumer.getmany(timeout=0.1)
                self._rows += rows_of(found)


def ottla_consumer(address: str, isolation: str) -> Consumer:
    """Return an ottla consumer that polls often."""
    return Consumer(address, client=OTTLA, fetch=FetchConfig(max_wait=0.1), isolation=isolation)


def rows_of(found: dict[TopicPartition, list[Any]]) -> list[Row]:
    """Decode consumed records. Raises ValueError for damaged ones."""
    return [
        (tp.partition, record.offset, decoded(record.value))
        for tp, records in found.items()
        for record in records
    ]


Kinds = Mapping[str, Callable[..., Worker]]
PRODUCERS: Kinds = {
    "librdkafka": LibrdkafkaProducer,
    "aiokafka": AiokafkaProducer,
    "ottla": OttlaProducer,
}


class Load:
    """Producers and readers of one topic."""

    def __init__(
        self,
        address: str,
        topic: str,
        partitions: int,
        *,
        per_second: float = 900,
        with_readers: bool = True,
        producers: Sequence[str] = ("librdkafka", "aiokafka", "ottla"),
        kinds: Kinds = PRODUCERS,
        isolation: str = "read_uncommitted",
    ) -> None:
        self.address = address
        self.topic = topic
        self.partitions = range(partitions)
        self.isolation = isolation
        self.history = History()
        #: Why a worker ended early.
        self.problems: list[str] = []
        self._is_stopped = False
        self._loop_thread = LoopThread()
        pause = len(producers) / per_second
        self.trackers: list[SendTracker] = []
        self._producers: list[Worker] = []
        for number, client in enumerate(producers):
            name = client if producers.count(client) == 1 else f"{client} {number}"
            tracker = SendTracker(self.history, name, number, partitions)
            self.trackers.append(tracker)
            loop = () if client == "librdkafka" else (self._loop_thread,)
            self._producers.append(kinds[client](*loop, address, topic, tracker, pause, self))
        self._readers: list[Worker] = []
        if with_readers:
            self._readers = [
                LibrdkafkaReader(self),
                OttlaReader(self._loop_thread, self),
            ]

    @property
    def acked(self) -> int:
        """The number of acknowledged records."""
        return sum(sum(tracker.acked) for tracker in self.trackers)

    @property
    def errors(self) -> list[str]:
        """The errors of all producers."""
        return [error for tracker in self.trackers for error in tracker.errors]

    def acked_in(self, partitions: Collection[int]) -> int:
        """Return the number of acknowledged records in some partitions."""
        return sum(tracker.acked[number] for tracker in self.trackers for number in partitions)

    def longest_wait(self, partitions: Collection[int] | None = None) -> float:
        """Return the longest wait of a producer for a response of a partition, in seconds."""
        numbers = self.partitions if partitions is None else partitions
        return max(
            (tracker.longest_wait(number) for tracker in self.trackers for number in numbers),
            default=0.0,
        )

    def wait_for_acks(
        self, count: int = 5, partitions: Collection[int] | None = None, seconds: float = 60
    ) -> None:
        """Wait until every producer has `count` more acks in each of some partitions.

        With `partitions`, the others are expected to be unavailable, and aiokafka is not waited
        for: its `send` blocks while the batch of any partition is full. Transactions are not
        waited for either: they need all of their partitions, and their coordinator.
        """
        numbers = list(self.partitions if partitions is None else partitions)
        is_whole = len(numbers) == len(self.partitions)
        if self.isolation == "read_committed" and not is_whole:
            return
        trackers = [tracker for tracker in self.trackers if is_whole or tracker.name != "aiokafka"]
        wanted = {(b.name, n): b.acked[n] + count for b in trackers for n in numbers}
        self.wait(
            lambda: all(b.acked[n] >= wanted[b.name, n] for b in trackers for n in numbers),
            f"{count} acks for every producer in {numbers}",
            seconds,
        )

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60) -> None:
        """Wait until a condition holds. Raises AssertionError when a worker ends, or too late."""
        deadline = time.monotonic() + seconds
        while not condition():
            assert not self.problems, self.problems
            if time.monotonic() > deadline:
                raise AssertionError(f"{what}: not in {seconds} s; {self.describe()}")
            time.sleep(0.005)

    def describe(self) -> str:
        """Return acks per partition, problems and the last errors, for error messages."""
        acked = {tracker.name: tracker.acked for tracker in self.trackers}
        return f"load: acked {acked}; problems {self.problems}; errors {self.errors[-3:]}"

    def stop(self, timeout: float = TIMEOUT_SECONDS + 10) -> None:
        """Wait up to `timeout` seconds for acknowledgements, then stop producers and readers."""
        if not self._is_stopped:
            self._is_stopped = True
            _end(self._producers, timeout)
            _end(self._readers, timeout)
            self._loop_thread.close()


def _end(workers: Sequence[Worker], timeout: float) -> None:
    for worker in workers:
        worker.stop(timeout)
    for worker in workers:
        worker.join()


@contextmanager
def load_on(address: str, topic: str, partitions: int, **options: Any) -> Iterator[Load]:
    """Run load, and wait for its acknowledgements at the end."""
    load = Load(address, topic, partitions, **options)
    try:
        yield load
    except BaseException:
        print(load.describe())
        load.stop(timeout=1)
        raise
    load.stop()


def read_everything(
    address: str,
    topic: str,
    partitions: int,
    history: History,
    isolation: str = "read_uncommitted",
) -> None:
    """Read the topic from start to end with a new consumer of each kind, into the history."""
    history.last_readers = {"librdkafka, last", "ottla, last"}
    history.polls["librdkafka, last"] = _read_with_librdkafka(address, topic, partitions, isolation)
    history.polls["ottla, last"] = asyncio.run(
        _read_with_ottla(address, topic, partitions, isolation)
    )


def _read_with_librdkafka(address: str, topic: str, partitions: int, isolation: str) -> list[Row]:
    rows: list[Row] = []
    consumer = librdkafka_consumer(address, topic, partitions, isolation)
    try:
        ended: set[int] = set()
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while len(ended) < partitions:
            assert time.monotonic() < deadline, f"the end of {topic} was not reached"
            for message in consumer.consume(1000, timeout=0.1):
                if row := row_of(message):
                    rows.append(row)
                elif message.error().code() == ConfluentError._PARTITION_EOF:
                    ended.add(message.partition())
    finally:
        consumer.close()
    return rows


async def _read_with_ottla(address: str, topic: str, partitions: int, isolation: str) -> list[Row]:
    rows: list[Row] = []
    tps = [TopicPartition(topic, number) for number in range(partitions)]
    async with ottla_consumer(address, isolation) as consumer:
        consumer.assign(tps)
        consumer.seek_to_beginning(*tps)
        ends = await consumer.end_offsets(*tps)
        async with asyncio.timeout(TIMEOUT_SECONDS):
            while any([await consumer.position(tp) < ends[tp] for tp in tps]):
                rows += rows_of(await consumer.getmany(timeout=1.0))
    return rows
