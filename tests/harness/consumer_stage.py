"""Fixtures for consumer tests: brokers, records, configs with short timeouts, scripted brokers.

ScriptedBrokers brokers serve batches that a test lays out, in real bytes over real sockets: aborted
transactions, corrupt batches and moving leaders, which a real broker would not produce on demand.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewPartitions

from harness.brokers import a_broker
from harness.scripted_broker import Call, ScriptedCluster
from harness.waiting import eventually
from harness.wire import connect, produce_request, produce_results
from ottla.broker import Broker
from ottla.client.config import ClientConfig, RetryConfig, TimeoutConfig
from ottla.client.consumer.config import FetchConfig, GroupConfig
from ottla.client.consumer.consumer import Consumer
from ottla.client.types import ConsumerRecord, OffsetAndMetadata, TopicPartition
from ottla.protocol import batch as batches
from ottla.protocol.api.fetch import (
    AbortedTransaction,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.api.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.api.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)
from ottla.protocol.batch import split_batches
from ottla.protocol.schema import Message

#: A wait that takes this long has failed.
PATIENCE = 20.0
#: Short session timeouts, frequent heartbeats.
QUICK = GroupConfig(session_timeout=2.0, heartbeat_interval=0.05, rebalance_timeout=10.0)
BRISK = FetchConfig(max_wait=0.1)
CLIENT = ClientConfig(
    retry=RetryConfig(backoff=0.01, max_backoff=0.1),
    timeouts=TimeoutConfig(connect=2, request=5, operation=10),
)

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


def a_consumer(bootstrap: Broker | str, *topics: str, **arguments: Any) -> Consumer:
    """A consumer with short timeouts."""
    address = bootstrap if isinstance(bootstrap, str) else bootstrap.address
    defaults = {"fetch": BRISK, "group_config": QUICK, "client": CLIENT}
    return Consumer(address, *topics, **{**defaults, **arguments})


@asynccontextmanager
async def a_quick_broker(
    path: Path, topics: dict[str, int] | None = None, /, **configs: Any
) -> AsyncIterator[Broker]:
    """A broker that allows short session timeouts and rebalances at once."""
    groups = {
        "group_min_session_timeout_ms": 100,
        "group_consumer_min_session_timeout_ms": 100,
        "group_consumer_session_timeout_ms": 30_000,
        "group_consumer_min_heartbeat_interval_ms": 20,
        "group_consumer_heartbeat_interval_ms": 50,
        "group_consumer_assignment_interval_ms": 0,
        "group_initial_rebalance_delay_ms": 20,
        "offsets_topic_num_partitions": 1,
    }
    async with a_broker(path, topics or {"t": 2}, **{**groups, **configs}) as broker:
        yield broker


async def fill(broker: Broker | str, tp: TopicPartition, *batches: bytearray) -> None:
    """Append batches to a partition."""
    async with connect(broker) as client:
        for batch in batches:
            request = produce_request(batch, topic=tp.topic, partition=tp.partition, acks=-1)
            (result,) = produce_results(await client.request(request, 9))
            assert result.error_code == 0


async def add_partitions(broker: Broker, topic: str, count: int) -> None:
    """Increase the number of partitions of a topic."""
    admin = AdminClient({"bootstrap.servers": broker.address})
    (future,) = admin.create_partitions([NewPartitions(topic, count)]).values()
    await asyncio.to_thread(future.result, PATIENCE)


async def take(consumer: Consumer, count: int) -> list[ConsumerRecord]:
    """Read `count` records."""
    records = []
    async with asyncio.timeout(PATIENCE):
        while len(records) < count:
            records.append(await anext(consumer))
    return records


async def drain(consumer: Consumer, min_count: int, quiet: float = 0.3) -> list[ConsumerRecord]:
    """Read at least `min_count` records, and then until none arrives for `quiet` seconds."""
    records = await take(consumer, min_count)
    while (record := await consumer.getone(quiet)) is not None:
        records.append(record)
    return records


async def commit_of(consumer: Consumer, tp: TopicPartition, min_offset: int) -> OffsetAndMetadata:
    """Wait until the committed offset is at least `min_offset`, and a while; return it."""

    async def committed() -> OffsetAndMetadata | None:
        return (await consumer.committed(tp))[tp]

    async def is_committed() -> bool:
        offset = await committed()
        return offset is not None and offset.offset >= min_offset

    await eventually(is_committed, PATIENCE)
    await asyncio.sleep(0.15)
    last = await committed()
    assert last is not None
    return last


def offsets_of(records: list[ConsumerRecord], partition: int | None = None) -> list[int]:
    return [one.offset for one in records if partition is None or one.partition == partition]


# Batches laid out by hand.

ABORT, COMMIT = 0, 1


def batch_of(*offsets: int, leader_epoch: int = 7, **header: Any) -> bytes:
    """A batch with records at these offsets."""
    records = [batches.Record(n, 1000 + n, b"k%d" % n, b"v%d" % n, ()) for n in offsets]
    return bytes(batches.build_batch(records, leader_epoch=leader_epoch, **header))


def a_transaction(producer: int, *offsets: int) -> bytes:
    """A transactional batch."""
    return batch_of(
        *offsets, producer_id=producer, producer_epoch=0, base_sequence=0, transactional=True
    )


def a_marker(producer: int, offset: int, kind: int) -> bytes:
    """A control batch that commits or aborts a transaction."""
    record = batches.Record(offset, 0, bytes([0, 0, 0, kind]), b"\0" * 6)
    return bytes(
        batches.build_batch(
            [record], producer_id=producer, producer_epoch=0, transactional=True, control=True
        )
    )


class ScriptedBrokers(ScriptedCluster):
    """Brokers that serve Metadata, ListOffsets and Fetch from batches that a test lays out."""

    def __init__(self, nodes: int = 1) -> None:
        super().__init__(nodes)
        self.served = {"ApiVersions", "Fetch", "ListOffsets", "Metadata"}
        self.logs: dict[TopicPartition, bytearray] = {T0: bytearray()}
        self.leaders = {}
        self.epochs: dict[TopicPartition, int] = {}
        self.aborted: dict[TopicPartition, list[tuple[int, int]]] = {}
        self.last_stable: dict[TopicPartition, int] = {}
        #: The leaders in Metadata responses, if these are stale.
        self.metadata_leaders: dict[TopicPartition, int] | None = None
        #: The leader epochs of the logs, with their end offsets, for OffsetForLeaderEpoch.
        self.epoch_ends: dict[TopicPartition, list[tuple[int, int]]] = {}
        #: May return a response instead of the regular one.
        self.on_fetch: Callable[[int, FetchRequest], FetchResponse | None] = lambda *_: None
        #: Brokers that receive requests and do not respond.
        self.hung: set[int] = set()
        #: Brokers that respond to fetches late: when the event is set, with what they had before.
        self.slow: dict[int, asyncio.Event] = {}

    async def stop(self, node: int) -> None:
        """Stop a broker."""
        await self.nodes[node].stop()

    async def start(self, node: int) -> None:
        """Restart a broker on its port."""
        await self.nodes[node].start()

    @property
    def requests(self) -> list[tuple[int, Message]]:
        """All requests, with the broker that received them."""
        return [(call.node.id, call.request) for call in self.calls]

    def fetches(self, node: int | None = None) -> list[FetchRequest]:
        return [
            request
            for at, request in self.requests
            if isinstance(request, FetchRequest) and node in (None, at)
        ]

    def serve(self, call: Call) -> Any:
        """Return the regular response to a request."""
        if call.node.id in self.hung:
            return None
        if isinstance(call.request, ListOffsetsRequest):
            return self._list_offsets(call.request)
        if isinstance(call.request, FetchRequest):
            return self._long_poll(call.node.id, call.request)
        if isinstance(call.request, OffsetForLeaderEpochRequest):
            return self._epoch_ends(call.node.id, call.request)
        return super().serve(call)

    async def _long_poll(self, node: int, request: FetchRequest) -> FetchResponse:
        response = self.on_fetch(node, request) or self.fetch(node, request)
        if node in self.slow:
            await self.slow[node].wait()
        if not any(
            data.records or data.error_code
            for topic in response.responses
            for data in topic.partitions
        ):
            await asyncio.sleep(request.max_wait_ms / 1000)
        return response

    def metadata(self, _request: MetadataRequest) -> MetadataResponse:
        """Return all partitions, with their epochs."""
        leaders = self.leaders if self.metadata_leaders is None else self.metadata_leaders
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node.id, host="127.0.0.1", port=node.port)
                for node in self.nodes
            ],
            controller_id=0,
            topics=[
                MetadataResponseTopic(
                    error_code=0,
                    name="t",
                    partitions=[
                        MetadataResponsePartition(
                            error_code=0,
                            partition_index=tp.partition,
                            leader_id=leaders.get(tp, 0),
                            leader_epoch=self.epochs.get(tp, 0),
                            replica_nodes=[0],
                            isr_nodes=[0],
                        )
                        for tp in self.logs
                    ],
                )
            ],
        )

    def _list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=one.partition_index,
                            error_code=0,
                            offset=0
                            if one.timestamp == -2
                            else self.end(TopicPartition(topic.name, one.partition_index)),
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _epoch_ends(
        self, node: int, request: OffsetForLeaderEpochRequest
    ) -> OffsetForLeaderEpochResponse:
        return OffsetForLeaderEpochResponse(
            topics=[
                OffsetForLeaderTopicResult(
                    topic=topic.topic,
                    partitions=[
                        self._epoch_end(node, TopicPartition(topic.topic, one.partition), one)
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _epoch_end(
        self, node: int, tp: TopicPartition, requested: OffsetForLeaderPartition
    ) -> EpochEndOffset:
        code = 0
        if self.leaders.get(tp, 0) != node:
            code = 6
        elif requested.current_leader_epoch < self.epochs.get(tp, 0):
            code = 74
        found = [one for one in self.epoch_ends.get(tp, []) if one[0] <= requested.leader_epoch]
        epoch, end_offset = found[-1] if found and not code else (-1, -1)
        return EpochEndOffset(
            error_code=code, partition=tp.partition, leader_epoch=epoch, end_offset=end_offset
        )

    def end(self, tp: TopicPartition) -> int:
        return max((batch.next_offset for batch in split_batches(self.logs[tp])), default=0)

    def fetch(self, node: int, request: FetchRequest) -> FetchResponse:
        """Return the regular response."""
        return FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic=topic.topic,
                    partitions=[
                        self._fetched(
                            node, request, TopicPartition(topic.topic, one.partition), one
                        )
                        for one in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _fetched(
        self, node: int, request: FetchRequest, tp: TopicPartition, requested: Any
    ) -> PartitionData:
        if self.leaders.get(tp, 0) != node:
            return partition_error(tp.partition, 6)
        if requested.current_leader_epoch < self.epochs.get(tp, 0):
            return partition_error(tp.partition, 74)
        end = self.end(tp)
        stable = self.last_stable.get(tp, end)
        if not 0 <= requested.fetch_offset <= end:
            return partition_error(tp.partition, 1)
        records = b"".join(
            bytes(batch.view)
            for batch in split_batches(self.logs[tp])
            if batch.next_offset > requested.fetch_offset
            and (not request.isolation_level or batch.base_offset < stable)
        )
        return PartitionData(
            partition_index=tp.partition,
            error_code=0,
            high_watermark=end,
            last_stable_offset=stable,
            log_start_offset=0,
            aborted_transactions=[
                AbortedTransaction(producer_id=producer, first_offset=first)
                for producer, first in self.aborted.get(tp, [])
            ]
            if request.isolation_level
            else None,
            records=records,
        )


def partition_error(partition: int, code: int) -> PartitionData:
    return PartitionData(
        partition_index=partition,
        error_code=code,
        high_watermark=-1,
        aborted_transactions=None,
        records=b"",
    )
