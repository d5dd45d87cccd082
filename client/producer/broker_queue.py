"""What goes to one broker: partitions that can send, in a queue, and the requests under way.

A task takes what is due of all that queue, one batch of each, encodes them, and sends them as one
request, while there are fewer than five under way. Answers come by callback.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING

from ottla.protocol.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.compression import Compression
from ottla.protocol.registry import PRODUCE

from ..connection import BrokerConnection
from ..errors import ClientError, ClosedError, KafkaError
from .batch import Batch
from .partition_queue import MOST_IN_FLIGHT, Lane

if TYPE_CHECKING:
    from .sender import Sender

_CHANNEL = "produce"
_NO_ACKS = 0
# What a broker may take of the time that its answer is waited for.
_BROKERS_SHARE = 0.8
# Compressing so much takes about a millisecond; more than that is done in a thread. Snappy, which
# comes in many small blocks, is quicker here than in a thread that has to ask for the interpreter
# after each of them.
_BYTES_PER_MILLISECOND = {
    Compression.GZIP: 20_000,
    Compression.LZ4: 500_000,
    Compression.ZSTD: 250_000,
}


class Outbox:
    """What goes to one broker."""

    def __init__(self, sender: Sender, node_id: int) -> None:
        self._sender = sender
        self._id = node_id
        self._queue: deque[Lane] = deque()
        self._in_flight = 0
        self._may_send = asyncio.Event()
        # By the clock of the event loop: a broker may ask to be left in peace for a while.
        self._throttled_until = 0.0

    def offer(self, lane: Lane) -> None:
        """Queue a lane that can send."""
        lane.is_offered = True
        self._queue.append(lane)
        if self._in_flight < MOST_IN_FLIGHT:
            self._may_send.set()

    async def run(self) -> None:
        """Send what is offered, as long as there is a producer."""
        loop = asyncio.get_running_loop()
        while True:
            await self._may_send.wait()
            if (rest := self._throttled_until - loop.time()) > 0:
                await asyncio.sleep(rest)
            while self._queue and self._in_flight < MOST_IN_FLIGHT:
                try:
                    connection = await self._sender.cluster.connect(self._id, _CHANNEL)
                except (KafkaError, ClientError) as error:
                    self._put_off(error)
                    break
                if batches := self._collect(connection):
                    await self._send(connection, batches)
            self._may_send.clear()

    def let_go(self) -> None:
        """Offer lanes that another broker leads by now. There may be no connection to this one."""
        for _ in range(len(self._queue)):
            lane = self._queue.popleft()
            if self._sender.is_led_by(lane, self._id):
                self._queue.append(lane)
            else:
                lane.is_offered = False
                self._sender.offer(lane)

    def _put_off(self, error: Exception) -> None:
        """Let all lanes wait: there is no connection."""
        self._sender.refresh()
        while self._queue:
            lane = self._queue.popleft()
            lane.is_offered = False
            lane.note(error)
            self._sender.pause(lane)

    def _collect(self, connection: BrokerConnection) -> list[Batch]:
        """Take one batch of each lane that can send, as many as a request has room for."""
        batches: list[Batch] = []
        room = self._sender.config.request_bytes
        for _ in range(len(self._queue)):
            lane = self._queue.popleft()
            lane.is_offered = False
            if not lane.can_send or not self._sender.is_led_by(lane, self._id):
                # Something has happened since. It may need a producer id, or another broker.
                self._sender.offer(lane)
                continue
            if lane.in_flight and lane.connection is not connection:
                continue  # it will be offered again when that has been answered
            if batches and lane.waiting[0].size > room:
                self.offer(lane)
                break
            lane.connection = connection
            batch = lane.take()
            room -= batch.size
            batches.append(batch)
            if lane.can_send:
                self.offer(lane)
        return batches

    async def _send(self, connection: BrokerConnection, batches: list[Batch]) -> None:
        sender = self._sender
        try:
            await self._encode(batches)
            version = connection.version_for(PRODUCE)
            request = self._request(batches)
            started = time.perf_counter()
            if sender.acks == _NO_ACKS:
                await connection.send_oneway(version, request)
                self._sent_and_forgotten(batches, started)
                return
            future = connection.send_nowait(version, request, ProduceResponse)
        except (KafkaError, ClientError) as error:
            sender.refuse(batches, error, was_sent=False)
            return
        except asyncio.CancelledError:
            sender.refuse(batches, ClosedError("the producer was closed"), was_sent=False)
            raise
        self._in_flight += 1
        future.add_done_callback(lambda done: self._answered(batches, done, started))

    async def _encode(self, batches: list[Batch]) -> None:
        codec = self._sender.compression
        limit = _BYTES_PER_MILLISECOND.get(codec)
        slow = []
        for batch in batches:
            if batch.wire is not None:
                continue  # it is sent again
            if limit is not None and batch.size > limit:
                slow.append(asyncio.to_thread(batch.encode, codec))
            else:
                batch.encode(codec)
        if slow:
            await asyncio.gather(*slow)

    def _request(self, batches: list[Batch]) -> ProduceRequest:
        sender = self._sender
        topics: dict[str, list[PartitionProduceData]] = {}
        for batch in batches:
            data = PartitionProduceData(index=batch.lane.partition, records=batch.wire)
            topics.setdefault(batch.lane.topic, []).append(data)
        return ProduceRequest(
            acks=sender.acks,
            timeout_ms=int(sender.cluster.config.timeouts.request * _BROKERS_SHARE * 1000),
            topic_data=[
                TopicProduceData(name=name, partition_data=data) for name, data in topics.items()
            ],
        )

    def _sent_and_forgotten(self, batches: list[Batch], started: float) -> None:
        for batch in batches:
            batch.lane.succeed(batch, -1, -1)
            self._sender.offer(batch.lane)
        self._sender.cluster.report(PRODUCE, self._id, started, None)

    def _answered(
        self, batches: list[Batch], future: asyncio.Future[ProduceResponse], started: float
    ) -> None:
        self._in_flight -= 1
        error = future.exception()
        assert error is None or isinstance(error, Exception)
        if error is None:
            answer = future.result()
            if answer.throttle_time_ms > 0:
                now = asyncio.get_running_loop().time()
                self._throttled_until = now + answer.throttle_time_ms / 1000
            self._sender.take_answer(batches, answer)
        else:
            self._sender.refuse(batches, error, was_sent=True)
        if self._queue:
            self._may_send.set()
        self._sender.cluster.report(PRODUCE, self._id, started, error)
