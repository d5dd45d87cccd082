"""Batches on their way: which broker they go to, when, and what becomes of them.

A partition that may have something to send is *offered*: it is put into the outbox of the broker
that leads it, or waits for metadata or for a producer id, and is offered again when those are
there. Nothing here runs for each record.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any

from ottla.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.api.produce import (
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
    KafkaError,
    RefreshError,
)
from .batch import Batch, BatchConfig, ProducerIdAndEpoch, Room
from .broker_queue import Outbox
from .partition_queue import Lane

logger = logging.getLogger(__name__)

_INT32_MAX = 0x7FFFFFFF


class Sender:
    """Sends what is in the lanes of a producer."""

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
        self.room = Room(config.buffer_bytes)
        self.lanes: dict[str, list[Lane]] = {}
        self._seconds = cluster.config.timeouts.operation
        self._identity: ProducerIdAndEpoch | None = None
        self._outboxes: dict[int, Outbox] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        # Lanes that wait for a producer id, and those that wait for a leader.
        self._nameless: set[Lane] = set()
        self._homeless: set[Lane] = set()
        self._is_stale = asyncio.Event()
        self._is_watching = False
        self._expiry: asyncio.TimerHandle | None = None
        self._is_closed = False
        #: A bug of ours, after which nothing can be sent.
        self.failure: ClientError | None = None

    # Lanes and batches.

    def lanes_of(self, topic: str, count: int) -> list[Lane]:
        """Give the lanes of a topic, for at least so many partitions."""
        self._watch()
        lanes = self.lanes.setdefault(topic, [])
        for partition in range(len(lanes), count):
            lanes.append(Lane(topic, partition, is_idempotent=self.is_idempotent))
        return lanes

    def open_batch(self, lane: Lane) -> Batch:
        """Begin a new batch, behind the one that is open, which is full then."""
        loop = asyncio.get_running_loop()
        full = lane.open
        deadline = loop.time() + self._seconds
        batch = lane.open = Batch(lane, deadline, self._release)
        lane.waiting.append(batch)
        linger = self.config.linger
        if linger:
            loop.call_later(linger, self.hurry, batch)
        if full is not None:
            full.is_due = True
        batch.is_due = not linger
        if full is not None or not linger:
            self.offer(lane)
        if self._expiry is None:
            self._expiry = loop.call_at(deadline, self._expire)
        return batch

    def hurry(self, batch: Batch) -> None:
        """Let a batch be sent though it is not full."""
        batch.is_due = True
        if not batch.is_settled:
            self.offer(batch.lane)

    def hurry_all(self, lanes: Iterable[Lane]) -> None:
        """Let nothing linger in these."""
        if self.config.linger:
            for lane in lanes:
                if lane.open is not None:
                    self.hurry(lane.open)

    async def flush(self) -> None:
        """Send all that waits now, and wait until it is settled."""
        # What is opened later has a later deadline; the halves of what is split have the same.
        deadline = asyncio.get_running_loop().time() + self._seconds
        while batches := [batch for batch in self._unsettled() if batch.deadline <= deadline]:
            for batch in batches:
                self.hurry(batch)
            await asyncio.wait([batch.settled() for batch in batches])

    def _unsettled(self) -> Iterator[Batch]:
        for lanes in self.lanes.values():
            for lane in lanes:
                for batch in (*lane.in_flight, *lane.failed, *lane.waiting):
                    if not batch.is_settled:
                        yield batch

    def _release(self, batch: Batch) -> None:
        self.room.give(batch.charge)

    def _expire(self) -> None:
        """Give up what has waited for too long."""
        loop = asyncio.get_running_loop()
        now = loop.time()
        late: list[Batch] = []
        later: list[Batch] = []
        for batch in self._unsettled():
            (late if batch.deadline <= now else later).append(batch)
        for batch in late:
            reason = f"{batch.lane}: not acknowledged in {self._seconds:g} s"
            if batch.error is not None:
                reason += f": {batch.error}"
            if batch.is_uncertain or batch in batch.lane.in_flight:
                reason += "; it may or may not have been written"
            error = DeadlineError(reason)
            error.__cause__ = batch.error
            batch.lane.give_up(batch, error)
            self._go_on(batch.lane)
        deadline = min((batch.deadline for batch in later), default=None)
        self._expiry = None if deadline is None else loop.call_at(deadline, self._expire)

    # Who may send, and where to.

    def offer(self, lane: Lane) -> None:
        """Let a lane send, if it has something to send."""
        if lane.is_offered or not lane.waiting or self._is_closed:
            return
        if lane.needs_identity and not (self._identity and lane.identify(self._identity)):
            if not self._nameless:
                self._start(self._identify(), "producer id")
            self._nameless.add(lane)
        elif lane.can_send:
            leader = self._leader_of(lane)
            if leader is None:
                lane.note(RefreshError(ErrorCode.LEADER_NOT_AVAILABLE, f"{lane} has no leader"))
                self._homeless.add(lane)
                self.refresh()
            else:
                self._outbox(leader).offer(lane)

    def refresh(self) -> None:
        """Look metadata up again, soon."""
        self._is_stale.set()

    def is_led_by(self, lane: Lane, node_id: int) -> bool:
        """Whether a broker leads a partition, as far as we know."""
        return self._leader_of(lane) == node_id

    def _leader_of(self, lane: Lane) -> int | None:
        info = self.cluster.metadata.topics.get(lane.topic)
        if info is None or info.error or lane.partition >= len(info.partitions):
            return None
        leader = info.partitions[lane.partition].leader
        return leader if leader >= 0 else None

    def _outbox(self, node_id: int) -> Outbox:
        outbox = self._outboxes.get(node_id)
        if outbox is None:
            outbox = self._outboxes[node_id] = Outbox(self, node_id)
            self._start(outbox.run(), f"broker {node_id}")
        return outbox

    def _go_on(self, lane: Lane) -> None:
        """See what a lane may do, now that something about it has changed."""
        if lane.is_recovering and not lane.in_flight:
            if (reason := lane.recover()) is not None:
                logger.warning("%s goes on under a new producer id: %s", lane, reason)
            if lane.must_pause:
                self.pause(lane)
        self.offer(lane)

    def pause(self, lane: Lane) -> None:
        """Let a lane wait before it tries again, the longer the more often it has failed."""
        lane.must_pause = False
        if not lane.is_paused:
            lane.is_paused = True
            seconds = self.cluster.config.retry.delay(lane.tries, random.random())  # noqa: S311
            lane.tries += 1
            asyncio.get_running_loop().call_later(seconds, self._resume, lane)

    def _resume(self, lane: Lane) -> None:
        lane.is_paused = False
        self.offer(lane)

    # What becomes of a request.

    def refuse(self, batches: Iterable[Batch], error: Exception, *, was_sent: bool) -> None:
        """Take note that a whole request has failed."""
        if needs_metadata_refresh(error):
            self.refresh()
        for batch in batches:
            batch.lane.refuse(batch, error, was_sent=was_sent)
            self._go_on(batch.lane)

    def take_answer(self, batches: Sequence[Batch], answer: ProduceResponse) -> None:
        """Take note of what a broker says of each batch of a request."""
        told = {
            (topic.name, partition.index): partition
            for topic in answer.responses
            for partition in topic.partition_responses
        }
        for batch in batches:
            lane = batch.lane
            self._take_result(batch, told.get((lane.topic, lane.partition)))
            self._go_on(lane)

    def _take_result(self, batch: Batch, result: PartitionProduceResponse | None) -> None:
        lane = batch.lane
        if result is None:
            lane.refuse(batch, ConnectionLostError(f"{lane} was left out of the answer"))
        elif result.error_code == ErrorCode.NONE:
            lane.succeed(batch, result.base_offset, result.log_append_time_ms)
        elif result.error_code == ErrorCode.DUPLICATE_SEQUENCE_NUMBER:
            # It was written, so long ago that the broker cannot say where.
            lane.succeed(batch, -1, -1)
        else:
            error = error_of(result.error_code, _detail_of(lane, result))
            assert error is not None
            if isinstance(error, RefreshError):
                self.refresh()
            lane.refuse(batch, error)

    # What runs beside.

    def _start(self, work: Coroutine[Any, Any, None], what: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"ottla producer: {what}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (bug := task.exception()) is not None:
            # Nothing would be sent any more. Whoever waits or comes is told, and it is not hidden.
            self.failure = ClientError(f"the producer has failed: {bug!r}")
            self._fail_all(self.failure)
            self.room.close()
            task.get_loop().call_exception_handler(
                {"message": f"{task.get_name()} has failed", "exception": bug, "task": task}
            )

    async def _identify(self) -> None:
        """Get a producer id for the lanes that need one."""
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=_INT32_MAX)

        async def attempt() -> ProducerIdAndEpoch:
            answer = await self.cluster.send_to_any(request, InitProducerIdResponse)
            if error := error_of(answer.error_code, "cannot get a producer id"):
                raise error
            return ProducerIdAndEpoch(answer.producer_id, answer.producer_epoch)

        try:
            self._identity = await self.cluster.retry(attempt, what="getting a producer id")
        except (KafkaError, ClientError) as error:
            lanes, self._nameless = self._nameless, set()
            for lane in lanes:
                for batch in list(lane.waiting):
                    lane.give_up(batch, error)
                self._go_on(lane)
            return
        lanes, self._nameless = self._nameless, set()
        for lane in lanes:
            self.offer(lane)

    def _watch(self) -> None:
        if not self._is_watching:
            self._is_watching = True
            self._start(self._keep_fresh(), "metadata")

    async def _keep_fresh(self) -> None:
        """Look metadata up when something is wrong with them, or they are old."""
        config = self.cluster.config
        failures = 0
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(config.metadata_max_age):
                    await self._is_stale.wait()
            # A topic that was deleted is made again for what is to be written to it: then something
            # is wrong. That metadata are old is no reason.
            may_create = self._is_stale.is_set()
            self._is_stale.clear()
            try:
                await self.cluster.refresh(list(self.lanes), may_create=may_create)
                failures = 0
            except (KafkaError, ClientError) as error:
                failures += 1
                for lane in self._homeless:
                    lane.note(error)
            lanes, self._homeless = self._homeless, set()
            for lane in lanes:
                if self._leader_of(lane) is None:
                    self.pause(lane)
                else:
                    self.offer(lane)
            for outbox in self._outboxes.values():
                outbox.let_go()
            # However much goes wrong, it is not asked for more often than this.
            await asyncio.sleep(config.retry.delay(failures, random.random()))  # noqa: S311

    async def close(self) -> None:
        """Stop. What has not been acknowledged fails."""
        self._is_closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:
            if self._expiry is not None:
                self._expiry.cancel()
            self._fail_all(ClosedError("the producer was closed before this was acknowledged"))

    def _fail_all(self, error: Exception) -> None:
        for batch in list(self._unsettled()):
            batch.fail(error)


def _detail_of(lane: Lane, result: PartitionProduceResponse) -> str:
    """Say what a broker has to say about a batch that it refused."""
    detail = f"{lane}: {result.error_message or ErrorCode.of(result.error_code).message}"
    wrong = [
        f"record {record.batch_index} of its batch: {record.batch_index_error_message}"
        for record in result.record_errors[:3]
    ]
    return "; ".join([detail, *wrong])
