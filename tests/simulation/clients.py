"""Clients of a simulated cluster: they send real requests, and note what they are told.

A client that gets no answer tries again on another connection, so that brokers see requests twice.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random
from typing import Any

from harness.group_requests import assignment, subscription
from ottla.client.config import ClientConfig, TimeoutConfig
from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientError
from ottla.protocol.api import (
    create_topics,
    delete_topics,
    find_coordinator,
    heartbeat,
    init_producer_id,
    join_group,
    leave_group,
    offset_commit,
    offset_fetch,
    produce,
    sync_group,
)
from ottla.protocol.batch import build_batch
from ottla.protocol.compiler import codec
from ottla.protocol.consumer import ConsumerProtocolAssignment
from ottla.protocol.errors import ErrorCode, KafkaError

from .checks import History, TopicPartition

_CONFIG = ClientConfig(client_id="sim", timeouts=TimeoutConfig(connect=2.0, request=4.0))
_ERRORS = (ClientError, KafkaError, OSError)
SESSION_MS = 6000


class Client:
    """Connections to brokers, by id."""

    def __init__(self, broker_ids: list[int], history: History, random: Random) -> None:
        self.broker_ids = broker_ids
        self.history = history
        self.random = random
        self._connections: dict[int, BrokerConnection] = {}

    async def send(self, broker_id: int, request: Any, response: Any, timeout: float = 4.0) -> Any:
        connection = self._connections.get(broker_id)
        if connection is None or not connection.is_open:
            connection = await BrokerConnection.open(f"10.0.0.{broker_id}", 9092, _CONFIG)
            self._connections[broker_id] = connection
        return await connection.send(request, response, timeout=timeout)

    def any_broker(self) -> int:
        return self.random.choice(self.broker_ids)


class Admin(Client):
    """Creates and deletes topics, produces to them, and starts idempotent producers."""

    count = 0

    async def run(self) -> None:
        while True:
            with suppress(*_ERRORS):
                action = self.random.choices(
                    (self.create, self.delete, self.produce, self.init_producer), (4, 1, 3, 3)
                )[0]
                await action()
            await asyncio.sleep(self.random.random())

    async def create(self, name: str | None = None) -> bool:
        """Create a topic; return whether that was acknowledged."""
        if name is None:
            self.count += 1
            name = f"t{self.count}"
        topic = create_topics.CreatableTopic(name=name, num_partitions=3, replication_factor=1)
        response = await self.send(
            self.any_broker(),
            create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=1000),
            create_topics.CreateTopicsResponse,
            8.0,
        )
        (result,) = response.topics
        if result.error_code == 0:
            self.history.topics[name] = result.topic_id
        return result.error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)

    async def delete(self) -> None:
        names = [name for name in self.history.topics if name != "t"]
        if not names:
            return
        name = self.random.choice(names)
        self.history.deletion_requested.add(name)
        del self.history.topics[name]
        await self.send(
            self.any_broker(),
            delete_topics.DeleteTopicsRequest(
                topics=[delete_topics.DeleteTopicState(name=name)], timeout_ms=1000
            ),
            delete_topics.DeleteTopicsResponse,
            8.0,
        )

    async def produce(self) -> None:
        if not self.history.topics:
            return
        name = self.random.choice(list(self.history.topics))
        records = build_batch([(0, 1_800_000_000_000, None, b"value", ())])
        partitions = [
            produce.PartitionProduceData(index=index, records=records) for index in range(3)
        ]
        await self.send(
            self.any_broker(),
            produce.ProduceRequest(
                acks=-1,
                timeout_ms=2000,
                topic_data=[produce.TopicProduceData(name=name, partition_data=partitions)],
            ),
            produce.ProduceResponse,
        )

    async def init_producer(self) -> None:
        broker_id = self.any_broker()
        response = await self.send(
            broker_id,
            init_producer_id.InitProducerIdRequest(transactional_id=None),
            init_producer_id.InitProducerIdResponse,
        )
        if response.error_code == 0:
            self.history.assigned_producer_id(response.producer_id, broker_id)


class Member(Client):
    """A member of a group: joins, syncs, sends heartbeats, and commits rising offsets."""

    def __init__(self, group: str, *args: Any) -> None:
        super().__init__(*args)
        self.group = group
        self.member_id = ""
        self.coordinator = 0
        self.is_stable = False

    async def run(self) -> None:
        while True:
            self.is_stable = False
            try:
                await self._find_coordinator()
                while await self._take_part():
                    pass
            except _ERRORS:
                pass
            await asyncio.sleep(0.1 + self.random.random() * 0.5)

    async def _find_coordinator(self) -> None:
        response = await self.send(
            self.any_broker(),
            find_coordinator.FindCoordinatorRequest(coordinator_keys=[self.group]),
            find_coordinator.FindCoordinatorResponse,
        )
        (found,) = response.coordinators
        if found.error_code:
            raise KafkaError(ErrorCode(found.error_code))
        self.coordinator = found.node_id

    async def _call(self, request: Any, response: Any, timeout: float = 4.0) -> Any:
        return await self.send(self.coordinator, request, response, timeout)

    async def _take_part(self) -> bool:
        """Join a generation, and take part in it until it ends; return whether to join again."""
        protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=subscription("t"))
        joined = await self._call(
            join_group.JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=8000,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[protocol],
            ),
            join_group.JoinGroupResponse,
            15.0,
        )
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return True
        if joined.error_code == ErrorCode.UNKNOWN_MEMBER_ID:
            self.member_id = ""
            return True
        if joined.error_code:
            return False
        self.member_id = joined.member_id
        assignments = []
        if joined.leader == self.member_id:
            ids = sorted(member.member_id for member in joined.members)
            for number, member_id in enumerate(ids):
                parts = [index for index in range(3) if index % len(ids) == number]
                assignments.append(
                    sync_group.SyncGroupRequestAssignment(
                        member_id=member_id, assignment=assignment(t=parts)
                    )
                )
        synced = await self._call(
            sync_group.SyncGroupRequest(
                group_id=self.group,
                generation_id=joined.generation_id,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=assignments,
            ),
            sync_group.SyncGroupResponse,
            15.0,
        )
        if synced.error_code:
            return bool(synced.error_code == ErrorCode.REBALANCE_IN_PROGRESS)
        partitions = _partitions(synced.assignment)
        self.history.assigned(self.group, joined.generation_id, self.member_id, partitions)
        return await self._consume(joined.generation_id, partitions)

    async def _consume(self, generation: int, partitions: list[TopicPartition]) -> bool:
        positions = {tp: await self._committed(tp) for tp in partitions}
        self.is_stable = True
        while True:
            for tp, position in list(positions.items()):
                positions[tp] = position + 1
                code = await self._commit(generation, tp, position + 1)
                if code not in (ErrorCode.NONE, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION):
                    return False
            beat = await self._call(
                heartbeat.HeartbeatRequest(
                    group_id=self.group, generation_id=generation, member_id=self.member_id
                ),
                heartbeat.HeartbeatResponse,
            )
            if beat.error_code:
                return bool(beat.error_code == ErrorCode.REBALANCE_IN_PROGRESS)
            if self.random.random() < 0.03:
                await self._leave()
                return False
            await asyncio.sleep(0.5 + self.random.random())

    async def _committed(self, tp: TopicPartition) -> int:
        at_least = self.history.committed.get((self.group, tp), -1)
        topic = offset_fetch.OffsetFetchRequestTopics(name=tp[0], partition_indexes=[tp[1]])
        group = offset_fetch.OffsetFetchRequestGroup(group_id=self.group, topics=[topic])
        response = await self._call(
            offset_fetch.OffsetFetchRequest(groups=[group]), offset_fetch.OffsetFetchResponse
        )
        (result,) = response.groups
        if result.error_code:
            raise KafkaError(ErrorCode(result.error_code))
        offset: int = result.topics[0].partitions[0].committed_offset
        self.history.fetched_offset(self.group, tp, offset, at_least)
        return offset

    async def _commit(self, generation: int, tp: TopicPartition, offset: int) -> int:
        self.history.commit_requested(self.group, tp, offset)
        partition = offset_commit.OffsetCommitRequestPartition(
            partition_index=tp[1], committed_offset=offset
        )
        response = await self._call(
            offset_commit.OffsetCommitRequest(
                group_id=self.group,
                generation_id_or_member_epoch=generation,
                member_id=self.member_id,
                topics=[offset_commit.OffsetCommitRequestTopic(name=tp[0], partitions=[partition])],
            ),
            offset_commit.OffsetCommitResponse,
        )
        code: int = response.topics[0].partitions[0].error_code
        if code == 0:
            self.history.commit_acked(self.group, tp, offset)
        return code

    async def _leave(self) -> None:
        leaving = leave_group.MemberIdentity(member_id=self.member_id)
        self.member_id = ""
        await self._call(
            leave_group.LeaveGroupRequest(group_id=self.group, members=[leaving]),
            leave_group.LeaveGroupResponse,
        )


def _partitions(data: bytes) -> list[TopicPartition]:
    if not data:
        return []
    decoded, _end = codec(ConsumerProtocolAssignment, 0).decode(memoryview(data), 2)
    return [
        (topic.topic, index) for topic in decoded.assigned_partitions for index in topic.partitions
    ]
