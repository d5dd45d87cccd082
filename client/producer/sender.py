"""The sender: which broker batches go to and when, and the handling of responses.

A partition queue that may have something to send is *scheduled*: it is added to the queue of the
broker that leads the partition. If the leader or the producer id is not known, it waits for that
and is scheduled again. Nothing here runs per record.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ottla.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.api.produce import (
    LAST_VERSION_WITH_TOPIC_NAMES,
    PartitionProduceResponse,
    ProduceResponse,
)
from ottla.protocol.compression import Compression
from ottla.protocol.errors import error_of

from ..cluster import Cluster, needs_metadata_refresh
from ..errors import (
    ClientError,
    ClosedError,
    ConnectionLostError,
    DeadlineError,
    ErrorCode,
    FatalTransactionError,
    KafkaError,
    RefreshError,
)
from .batch import Batch, BatchConfig, BatchState, ProducerIdAndEpoch
from .broker_queue import BrokerQueue
from .buffer_pool import BufferPool
from .partition_queue import PartitionQueue

if TYPE_CHECKING:
    from .transaction_manager import TransactionManager

logger = logging.getLogger(__name__)

_INT32_MAX = 0x7FFFFFFF
# Later versions add partitions to the transaction (transaction.version 2).
_LAST_PRODUCE_VERSION_OF_TV1 = 11


class Sender:
    """Sends the batches of a producer's partition queues."""

    def __init__(
        self,
        cluster: Cluster,
        config: BatchConfig,
        *,
        acks: int,
        compression: Compression,
        is_idempotent: bool,
    ) -> None:
        self.cluster = cluster
        self.config = config
        self.acks = acks
        self.compression = compression
        self.is_idempotent = is_idempotent
        self.pool = BufferPool(config.buffer_bytes, config.batch_bytes)
        #: By topic and partition.
        self.queues: dict[str, list[PartitionQueue]] = {}
        self._delivery_timeout = cluster.config.timeouts.operation
        self._producer: ProducerIdAndEpoch | None = None
        #: Of a transactional producer.
        self.transactions: TransactionManager | None = None
        self.max_produce_version = LAST_VERSION_WITH_TOPIC_NAMES
        self._broker_queues: dict[int, BrokerQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting_for_producer_id: set[PartitionQueue] = set()
        self._waiting_for_leader: set[PartitionQueue] = set()
        self._refresh_requested = asyncio.Event()
        self._is_refreshing = False
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._is_closed = False
        #: Why no records are accepted: a task of the producer has raised, which is a bug, or no
        #: transaction is open.
        self.failure: ClientError | None = None
        # Set when no request is in flight any more.
        self._settled: asyncio.Future[None] | None = None

    # Queues and batches.

    def queues_of(self, topic: str, count: int) -> list[PartitionQueue]:
        """Return the queues of a topic, of at least `count` partitions."""
        self._start_refreshing()
        queues = self.queues.setdefault(topic, [])
        for partition in range(len(queues), count):
            queues.append(
                PartitionQueue(
                    topic,
                    partition,
                    is_idempotent=self.is_idempotent,
                    is_transactional=self.transactions is not None,
                )
            )
        return queues

    def open_batch(self, queue: PartitionQueue) -> Batch:
        """Open a new batch of a partition. The one that was open, if any, is full."""
        loop = asyncio.get_running_loop()
        full = queue.open
        deadline = loop.time() + self._delivery_timeout
        linger = self.config.linger
        state = BatchState.LINGERING if linger else BatchState.READY
        batch = queue.open = Batch(queue, deadline, self._release, state)
        queue.waiting.append(batch)
        if linger:
            loop.call_later(linger, self.expedite, batch)
        if full is not None and full.state is BatchState.LINGERING:
            full.move_to(BatchState.READY)
        if full is not None or not linger:
            self.schedule(queue)
        if self._expiry_timer is None:
            self._expiry_timer = loop.call_at(deadline, self._expire)
        return batch

    def expedite(self, batch: Batch) -> None:
        """Send a batch without further lingering."""
        if batch.state is BatchState.LINGERING:
            batch.move_to(BatchState.READY)
        if not batch.is_done:
            self.schedule(batch.queue)

    def expedite_all(self, queues: Iterable[PartitionQueue]) -> None:
        """Send the open batches of some queues without further lingering."""
        if self.config.linger:
            for queue in queues:
                if queue.open is not None:
                    self.expedite(queue.open)

    async def flush(self) -> None:
        """Send all batches that exist now, and wait until they are done."""
        # Batches opened later have a later deadline; the halves of a split batch have the same.
        deadline = asyncio.get_running_loop().time() + self._delivery_timeout
        while batches := [batch for batch in self._unfinished() if batch.deadline <= deadline]:
            for batch in batches:
                self.expedite(batch)
            await asyncio.wait([batch.done() for batch in batches])

    def _unfinished(self) -> Iterator[Batch]:
        for queues in self.queues.values():
            for queue in queues:
                for batch in (*queue.in_flight, *queue.failed, *queue.waiting):
                    if not batch.is_done:
                        yield batch

    def _release(self, batch: Batch) -> None:
        self.pool.release(batch.buffered_bytes)
        if self.transactions is not None and batch.error is not None:
            self.transactions.fail_batch(batch)

    def _expire(self) -> None:
        """Abort batches past their deadline."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        expired: list[Batch] = []
        remaining: list[Batch] = []
        for batch in self._unfinished():
            (expired if batch.deadline <= now else remaining).append(batch)
        for batch in expired:
            reason = f"{batch.queue}: not acknowledged within {self._delivery_timeout:g} s"
            if batch.error is not None:
                reason += f": {batch.error}"
            if batch.may_be_written or batch in batch.queue.in_flight:
                reason += "; it may or may not have been written"
            error = DeadlineError(reason)
            error.__cause__ = batch.error
            batch.queue.abort(batch, error)
            self._advance(batch.queue)
        deadline = min((batch.deadline for batch in remaining), default=None)
        self._expiry_timer = None if deadline is None else loop.call_at(deadline, self._expire)

    # Transactions.

    def begin_transaction(self, version: int) -> None:
        """Accept records, and send them with the protocol of a transaction version."""
        self.failure = None
        self.max_produce_version = (
            LAST_VERSION_WITH_TOPIC_NAMES if version > 1 else _LAST_PRODUCE_VERSION_OF_TV1
        )

    def set_producer(self, producer: ProducerIdAndEpoch) -> None:
        """Use another producer id or epoch from now on. No batch is waiting or in flight."""
        if producer != self._producer:
            self._producer = producer
            for queues in self.queues.values():
                for queue in queues:
                    queue.reset_producer()

    def drop_waiting(self, queue: PartitionQueue, error: Exception) -> None:
        """Fail the batches of a queue that are not in flight."""
        for batch in (*queue.failed, *queue.waiting):
            if not batch.is_done:
                queue.abort(batch, error)
        if queue.is_recovering and not queue.in_flight:
            queue.recover()

    def drop_all_waiting(self, error: Exception) -> None:
        """Fail the batches of all queues that are not in flight."""
        for queues in self.queues.values():
            for queue in queues:
                self.drop_waiting(queue, error)

    async def settle(self) -> None:
        """Wait until no batch is in flight, whether it is still wanted or not."""
        while self._is_in_flight():
            self._settled = asyncio.get_running_loop().create_future()
            await self._settled

    def _is_in_flight(self) -> bool:
        return any(queue.in_flight for queues in self.queues.values() for queue in queues)

    def _check_settled(self) -> None:
        settled = self._settled
        if settled is not None and not settled.done() and not self._is_in_flight():
            settled.set_result(None)

    # Scheduling.

    def schedule(self, queue: PartitionQueue) -> None:
        """Add a queue to that of its leader, if it can send."""
        if queue.is_scheduled or not queue.waiting or self._is_closed:
            return
        if self.transactions is not None and not self.transactions.admits(queue):
            return
        if queue.needs_producer_id and not (self._producer and queue.set_producer(self._producer)):
            if not self._waiting_for_producer_id:
                self.start_task(self._init_producer_id(), "producer id")
            self._waiting_for_producer_id.add(queue)
        elif queue.can_send:
            leader = self._leader_of(queue)
            if leader is None:
                reason = f"{queue} has no leader"
                queue.set_error(RefreshError(ErrorCode.LEADER_NOT_AVAILABLE, reason))
                self._waiting_for_leader.add(queue)
                self.request_metadata_refresh()
            else:
                self._broker_queue(leader).add(queue)

    def request_metadata_refresh(self) -> None:
        """Refresh metadata as soon as the backoff allows."""
        self._refresh_requested.set()

    def is_led_by(self, queue: PartitionQueue, node_id: int) -> bool:
        """Whether a broker leads a partition, according to the metadata."""
        return self._leader_of(queue) == node_id

    def _leader_of(self, queue: PartitionQueue) -> int | None:
        info = self.cluster.metadata.topics.get(queue.topic)
        if info is None or info.error or queue.partition >= len(info.partitions):
            return None
        leader = info.partitions[queue.partition].leader
        return leader if leader >= 0 else None

    def _broker_queue(self, node_id: int) -> BrokerQueue:
        broker_queue = self._broker_queues.get(node_id)
        if broker_queue is None:
            broker_queue = self._broker_queues[node_id] = BrokerQueue(self, node_id)
            self.start_task(broker_queue.run(), f"broker {node_id}")
        return broker_queue

    def _advance(self, queue: PartitionQueue) -> None:
        """Recover a queue if nothing is in flight any more, and schedule it."""
        if queue.is_recovering and not queue.in_flight:
            if (reason := queue.recover()) is not None:
                logger.warning("%s continues with a new producer id: %s", queue, reason)
            if queue.needs_backoff:
                self.back_off(queue)
        self.schedule(queue)

    def back_off(self, queue: PartitionQueue) -> None:
        """Delay the next attempt, the longer the more attempts have failed."""
        queue.needs_backoff = False
        if not queue.in_backoff:
            queue.in_backoff = True
            delay = self.cluster.config.retry.delay(queue.failures, random.random())  # noqa: S311
            queue.failures += 1
            asyncio.get_running_loop().call_later(delay, self._end_backoff, queue)

    def _end_backoff(self, queue: PartitionQueue) -> None:
        queue.in_backoff = False
        self.schedule(queue)

    # Responses.

    def handle_request_error(
        self, batches: Iterable[Batch], error: Exception, *, was_sent: bool
    ) -> None:
        """Handle the failure of a whole request."""
        if needs_metadata_refresh(error):
            self.request_metadata_refresh()
        for batch in batches:
            batch.queue.handle_error(batch, error, was_sent=was_sent)
            self._advance(batch.queue)
        self._check_settled()

    def handle_response(self, batches: Sequence[Batch], response: ProduceResponse) -> None:
        """Handle the result of each batch of a request."""
        results = {
            (topic.name, partition.index): partition
            for topic in response.responses
            for partition in topic.partition_responses
        }
        for batch in batches:
            queue = batch.queue
            self._handle_result(batch, results.get((queue.topic, queue.partition)))
            self._advance(queue)
        self._check_settled()

    def _handle_result(self, batch: Batch, result: PartitionProduceResponse | None) -> None:
        queue = batch.queue
        if result is None:
            queue.handle_error(batch, ConnectionLostError(f"{queue} is missing in the response"))
        elif result.error_code == ErrorCode.NONE:
            queue.complete(batch, result.base_offset, result.log_append_time_ms)
        elif result.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            # It was written, so long ago that the broker no longer knows its offset.
            queue.complete(batch, -1, -1)
        else:
            error = error_of(result.error_code, _message(queue, result))
            assert error is not None
            if isinstance(error, RefreshError):
                self.request_metadata_refresh()
            if error.code is ErrorCode.KAFKA_STORAGE_ERROR and not queue.failures:
                # Retries may go on for minutes, and only a person can free space on a disk.
                logger.warning("Broker error, retrying: %s", error)
            queue.handle_error(batch, error)

    # Background tasks.

    def start_task(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run a background task of the producer. That it raises is a bug."""
        task = asyncio.get_running_loop().create_task(work, name=f"ottla producer: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            # Nothing would be sent any more: fail all records, now and later, and report the bug.
            self.failure = ClientError(f"The producer failed: {bug!r}")
            if self.transactions is not None:
                self.transactions.state.fail_fatally(FatalTransactionError(str(self.failure)))
            self._fail_all(self.failure)
            self.pool.close()
            task.get_loop().call_exception_handler(
                {"message": f"{task.get_name()} failed", "exception": bug, "task": task}
            )

    async def _init_producer_id(self) -> None:
        """Get a producer id for the queues that need one."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_INT32_MAX)

        async def attempt() -> ProducerIdAndEpoch:
            response = await self.cluster.send_to_any(request, InitProducerIdResponse)
            if error := error_of(response.error_code, "InitProducerId failed"):
                raise error
            return ProducerIdAndEpoch(response.producer_id, response.producer_epoch)

        try:
            self._producer = await self.cluster.retry(attempt, what="InitProducerId")
        except (KafkaError, ClientError) as error:
            queues, self._waiting_for_producer_id = self._waiting_for_producer_id, set()
            for queue in queues:
                for batch in list(queue.waiting):
                    queue.abort(batch, error)
                self._advance(queue)
            return
        queues, self._waiting_for_producer_id = self._waiting_for_producer_id, set()
        for queue in queues:
            self.schedule(queue)

    def _start_refreshing(self) -> None:
        if not self._is_refreshing:
            self._is_refreshing = True
            self.start_task(self._refresh_metadata(), "metadata")

    async def _refresh_metadata(self) -> None:
        """Refresh metadata on request, and when it is older than `metadata_max_age`."""
        config = self.cluster.config
        failures = 0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(config.metadata_max_age):
                    await self._refresh_requested.wait()
            # A topic that was deleted is created again only if there is something to write to it,
            # which is why a refresh was requested. Old metadata alone is no reason.
            is_requested = self._refresh_requested.is_set()
            self._refresh_requested.clear()
            try:
                await self.cluster.refresh(
                    list(self.queues), may_create=is_requested, after_error=is_requested
                )
                failures = 0
            except (KafkaError, ClientError) as error:
                failures += 1
                for queue in self._waiting_for_leader:
                    queue.set_error(error)
            queues, self._waiting_for_leader = self._waiting_for_leader, set()
            for queue in queues:
                if self._leader_of(queue) is None:
                    self.back_off(queue)
                else:
                    self.schedule(queue)
            # Partitions may move to brokers that have no queue yet.
            for broker_queue in list(self._broker_queues.values()):
                broker_queue.reschedule_moved()
            # The minimum interval between refreshes, whatever goes wrong.
            await asyncio.sleep(config.retry.delay(failures, random.random()))  # noqa: S311

    async def close(self) -> None:
        """Stop all tasks. Batches that are not acknowledged fail."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            if self._expiry_timer is not None:
                self._expiry_timer.cancel()
            self._fail_all(ClosedError("The producer was closed before the acknowledgement"))

    def _fail_all(self, error: Exception) -> None:
        for batch in list(self._unfinished()):
            batch.fail(error)


def _message(queue: PartitionQueue, result: PartitionProduceResponse) -> str:
    """Return a broker's error message for a batch, with the first record errors."""
    message = f"{queue}: {result.error_message or ErrorCode.of(result.error_code).message}"
    record_errors = [
        f"record {record.batch_index} of the batch: {record.batch_index_error_message}"
        for record in result.record_errors[:3]
    ]
    return "; ".join([message, *record_errors])
