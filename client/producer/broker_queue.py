"""The partition queues that can send to one broker, and its Produce requests in flight.

A task takes one batch of each queue, encodes them, and sends them as one request, while fewer than
five requests are in flight. Responses arrive by callback.
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
from .partition_queue import MAX_IN_FLIGHT, PartitionQueue

if TYPE_CHECKING:
    from .sender import Sender

_CHANNEL = "produce"
_NO_ACKS = 0
# The share of the request timeout that the broker may wait for acks.
_BROKER_TIMEOUT_SHARE = 0.8
# Compressing this much takes about a millisecond; more is done in a thread. Snappy compresses in
# many small blocks, and is faster here than in a thread that acquires the GIL after each of them.
_BYTES_PER_MILLISECOND = {
    Compression.GZIP: 20_000,
    Compression.LZ4: 500_000,
    Compression.ZSTD: 250_000,
}


class BrokerQueue:
    """The partition queues that can send to one broker."""

    def __init__(self, sender: Sender, node_id: int) -> None:
        self._sender = sender
        self._node_id = node_id
        self._queues: deque[PartitionQueue] = deque()
        self._in_flight = 0
        self._may_send = asyncio.Event()
        # By the clock of the event loop, from throttle_time_ms.
        self._throttled_until = 0.0

    def add(self, queue: PartitionQueue) -> None:
        """Add a partition queue that can send."""
        queue.is_scheduled = True
        self._queues.append(queue)
        if self._in_flight < MAX_IN_FLIGHT:
            self._may_send.set()

    async def run(self) -> None:
        """Send requests until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await self._may_send.wait()
            if (throttle := self._throttled_until - loop.time()) > 0:
                await asyncio.sleep(throttle)
            while self._queues and self._in_flight < MAX_IN_FLIGHT:
                try:
                    connection = await self._sender.cluster.connect(self._node_id, _CHANNEL)
                except (KafkaError, ClientError) as error:
                    self._back_off(error)
                    break
                if batches := self._collect(connection):
                    await self._send(connection, batches)
            self._may_send.clear()

    def reschedule_moved(self) -> None:
        """Schedule queues with another leader by now. This broker may not be reachable."""
        for _ in range(len(self._queues)):
            queue = self._queues.popleft()
            if self._sender.is_led_by(queue, self._node_id):
                self._queues.append(queue)
            else:
                queue.is_scheduled = False
                self._sender.schedule(queue)

    def _back_off(self, error: Exception) -> None:
        """Have all queues back off: there is no connection."""
        self._sender.request_metadata_refresh()
        while self._queues:
            queue = self._queues.popleft()
            queue.is_scheduled = False
            queue.set_error(error)
            self._sender.back_off(queue)

    def _collect(self, connection: BrokerConnection) -> list[Batch]:
        """Take one batch of each queue that can send, up to the size of a request."""
        batches: list[Batch] = []
        free_bytes = self._sender.config.request_bytes
        for _ in range(len(self._queues)):
            queue = self._queues.popleft()
            queue.is_scheduled = False
            if not queue.can_send or not self._sender.is_led_by(queue, self._node_id):
                # Something has changed. It may need a producer id, or another broker.
                self._sender.schedule(queue)
                continue
            if queue.in_flight and queue.connection is not connection:
                continue  # scheduled again by the response on the other connection
            if batches and queue.waiting[0].size > free_bytes:
                self.add(queue)
                break
            queue.connection = connection
            batch = queue.take()
            free_bytes -= batch.size
            batches.append(batch)
            if queue.can_send:
                self.add(queue)
        return batches

    async def _send(self, connection: BrokerConnection, batches: list[Batch]) -> None:
        sender = self._sender
        try:
            await self._encode(batches)
            version = connection.version_for(PRODUCE, sender.max_produce_version)
            request = self._request(batches)
            started = time.perf_counter()
            if sender.acks == _NO_ACKS:
                await connection.send_oneway(version, request)
                self._complete_unacknowledged(batches, started)
                return
            future = connection.send_nowait(version, request, ProduceResponse)
        except (KafkaError, ClientError) as error:
            sender.handle_request_error(batches, error, was_sent=False)
            return
        except asyncio.CancelledError:
            closed = ClosedError("The producer was closed")
            sender.handle_request_error(batches, closed, was_sent=False)
            raise
        self._in_flight += 1
        future.add_done_callback(lambda done: self._on_response(batches, done, started))

    async def _encode(self, batches: list[Batch]) -> None:
        codec = self._sender.compression
        limit = _BYTES_PER_MILLISECOND.get(codec)
        slow = []
        for batch in batches:
            if batch.encoded is not None:
                continue  # a retry
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
            data = PartitionProduceData(index=batch.queue.partition, records=batch.encoded)
            topics.setdefault(batch.queue.topic, []).append(data)
        timeout = sender.cluster.config.timeouts.request * _BROKER_TIMEOUT_SHARE
        transactions = sender.transactions
        return ProduceRequest(
            transactional_id=None if transactions is None else transactions.transactional_id,
            acks=sender.acks,
            timeout_ms=int(timeout * 1000),
            topic_data=[
                TopicProduceData(name=name, partition_data=data) for name, data in topics.items()
            ],
        )

    def _complete_unacknowledged(self, batches: list[Batch], started: float) -> None:
        for batch in batches:
            batch.queue.complete(batch, -1, -1)
            self._sender.schedule(batch.queue)
        self._sender.cluster.report(PRODUCE, self._node_id, started, None)

    def _on_response(
        self, batches: list[Batch], future: asyncio.Future[ProduceResponse], started: float
    ) -> None:
        self._in_flight -= 1
        error = future.exception()
        assert error is None or isinstance(error, Exception)
        if error is None:
            response = future.result()
            if response.throttle_time_ms > 0:
                now = asyncio.get_running_loop().time()
                self._throttled_until = now + response.throttle_time_ms / 1000
            self._sender.handle_response(batches, response)
        else:
            self._sender.handle_request_error(batches, error, was_sent=True)
        if self._queues:
            self._may_send.set()
        self._sender.cluster.report(PRODUCE, self._node_id, started, error)
