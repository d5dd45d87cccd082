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
    add_partitions_to_txn,
    create_topics,
    delete_topics,
    describe_transactions,
    end_txn,
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

_CONFIG = ClientConfig(client_id="sim", timeouts=TimeoutConfig(connect=1.0, request=2.0))
CLIENT_ERRORS = (ClientError, KafkaError, OSError)
#: Sessions are short, so that some expire within the few seconds of a run.
SESSION_MS = 1200
_REBALANCE_MS = 1500
#: The topic that groups consume, and its partitions.
TOPIC = "t"
PARTITIONS = 2


class Client:
    """Connections to brokers, by id."""

    def __init__(self, broker_ids: list[int], history: History, random: Random) -> None:
        self.broker_ids = broker_ids
        self.history = history
        self.random = random
        self._connections: dict[int, BrokerConnection] = {}

    async def send(
        self,
        broker_id: int,
        request: Any,
        response: Any,
        timeout: float = 2.0,
        max_version: int | None = None,
    ) -> Any:
        connection = self._connections.get(broker_id)
        if connection is None or not connection.is_open:
            connection = await BrokerConnection.open(f"10.0.0.{broker_id}", 9092, _CONFIG)
            self._connections[broker_id] = connection
        return await connection.send(request, response, timeout=timeout, max_version=max_version)

    def any_broker(self) -> int:
        return self.random.choice(self.broker_ids)

    async def find_coordinator(self, key: str, key_type: int) -> int:
        response = await self.send(
            self.any_broker(),
            find_coordinator.FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key]),
            find_coordinator.FindCoordinatorResponse,
        )
        (found,) = response.coordinators
        if found.error_code:
            raise KafkaError(ErrorCode(found.error_code))
        node_id: int = found.node_id
        return node_id


class Admin(Client):
    """Creates and deletes topics, produces to them, and starts idempotent producers."""

    count = 0
    replication_factor = 1

    async def run(self) -> None:
        while True:
            with suppress(*CLIENT_ERRORS):
                action = self.random.choices(
                    (self.create, self.delete, self.produce, self.init_producer), (4, 1, 3, 3)
                )[0]
                await action()
            await asyncio.sleep(self.random.random() * 0.8)

    async def create(self, name: str | None = None) -> bool:
        """Create a topic; return whether that was acknowledged."""
        if name is None:
            self.count += 1
            name = f"t{self.count}"
        topic = create_topics.CreatableTopic(
            name=name,
            num_partitions=PARTITIONS,
            replication_factor=self.replication_factor,
        )
        response = await self.send(
            self.any_broker(),
            create_topics.CreateTopicsRequest(topics=[topic], timeout_ms=1000),
            create_topics.CreateTopicsResponse,
            3.0,
        )
        (result,) = response.topics
        if result.error_code == 0:
            self.history.topics[name] = result.topic_id
        return result.error_code in (0, ErrorCode.TOPIC_ALREADY_EXISTS)

    async def delete(self) -> None:
        names = [name for name in self.history.topics if name != TOPIC]
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
            3.0,
        )

    async def produce(self) -> None:
        if not self.history.topics:
            return
        name = self.random.choice(list(self.history.topics))
        records = build_batch([(0, 1_800_000_000_000, None, b"value", ())])
        partitions = [
            produce.PartitionProduceData(index=index, records=records)
            for index in range(PARTITIONS)
        ]
        await self.send(
            self.any_broker(),
            produce.ProduceRequest(
                acks=-1,
                timeout_ms=1000,
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
                self.coordinator = await self.find_coordinator(self.group, 0)
                while await self._take_part():
                    await asyncio.sleep(0.02)
            except CLIENT_ERRORS:
                pass
            await asyncio.sleep(0.05 + self.random.random() * 0.2)

    async def _call(self, request: Any, response: Any, **options: Any) -> Any:
        return await self.send(self.coordinator, request, response, **options)

    async def _take_part(self) -> bool:
        """Join a generation, and take part in it until it ends; return whether to join again."""
        protocol = join_group.JoinGroupRequestProtocol(name="range", metadata=subscription(TOPIC))
        joined = await self._call(
            join_group.JoinGroupRequest(
                group_id=self.group,
                session_timeout_ms=SESSION_MS,
                rebalance_timeout_ms=_REBALANCE_MS,
                member_id=self.member_id,
                protocol_type="consumer",
                protocols=[protocol],
            ),
            join_group.JoinGroupResponse,
            timeout=4.0,
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
                parts = [index for index in range(PARTITIONS) if index % len(ids) == number]
                assignments.append(
                    sync_group.SyncGroupRequestAssignment(
                        member_id=member_id, assignment=assignment(**{TOPIC: parts})
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
            timeout=4.0,
        )
        if synced.error_code:
            await asyncio.sleep(0.1 + self.random.random() * 0.2)  # The disk may have failed.
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
            if self.random.random() < 0.05:
                await self._leave()
                return False
            await asyncio.sleep(0.2 + self.random.random() * 0.6)

    async def _committed(self, tp: TopicPartition) -> int:
        at_least = self.history.committed.get((self.group, tp), -1)
        topic = offset_fetch.OffsetFetchRequestTopics(name=tp[0], partition_indexes=[tp[1]])
        group = offset_fetch.OffsetFetchRequestGroup(group_id=self.group, topics=[topic])
        response = await self._call(
            offset_fetch.OffsetFetchRequest(groups=[group]),
            offset_fetch.OffsetFetchResponse,
            max_version=offset_fetch.LAST_VERSION_WITH_TOPIC_NAMES,
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
            max_version=offset_commit.LAST_VERSION_WITH_TOPIC_NAMES,
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


class Transactor(Client):
    """A transactional producer: begins transactions, and commits or aborts them."""

    def __init__(self, transactional_id: str, *args: Any) -> None:
        super().__init__(*args)
        self.transactional_id = transactional_id
        self.coordinator = 0
        self._producer = (-1, -1)

    async def run(self) -> None:
        while True:
            with suppress(*CLIENT_ERRORS):
                self.coordinator = await self.find_coordinator(self.transactional_id, 1)
                await self._describe()
                await self._initialize()
                while await self._transact():
                    await asyncio.sleep(self.random.random() * 0.6)
            await asyncio.sleep(0.05 + self.random.random() * 0.2)

    async def _initialize(self) -> None:
        response = await self.send(
            self.coordinator,
            init_producer_id.InitProducerIdRequest(
                transactional_id=self.transactional_id, transaction_timeout_ms=60_000
            ),
            init_producer_id.InitProducerIdResponse,
        )
        if response.error_code:
            raise KafkaError(ErrorCode(response.error_code))
        self._producer = (response.producer_id, response.producer_epoch)
        self.history.initialized_producer(self.transactional_id, *self._producer)

    async def _transact(self) -> bool:
        """Run a transaction to its end; return whether another one may follow."""
        await self._describe()
        producer_id, epoch = self._producer
        self.history.began(self.transactional_id)
        partition = self.random.randrange(PARTITIONS)
        topic = add_partitions_to_txn.AddPartitionsToTxnTopic(name=TOPIC, partitions=[partition])
        added = await self.send(
            self.coordinator,
            add_partitions_to_txn.AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=self.transactional_id,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=[topic],
            ),
            add_partitions_to_txn.AddPartitionsToTxnResponse,
            max_version=3,
        )
        (result,) = added.results_by_topic_v3_and_below
        code = result.results_by_partition[0].partition_error_code
        if code:
            return bool(code == ErrorCode.CONCURRENT_TRANSACTIONS)
        is_commit = self.random.random() < 0.7
        # Since version 5 the epoch rises with each transaction.
        version = self.random.choice((4, 5))
        if not await self._end(version, epoch, is_commit=is_commit):
            return False
        if self.random.random() < 0.3:
            # As a duplicate of the request, or as a producer that has changed its mind.
            await self._end(version, epoch, is_commit=self.random.random() < 0.5)
        return True

    async def _end(self, version: int, epoch: int, *, is_commit: bool) -> bool:
        response = await self.send(
            self.coordinator,
            end_txn.EndTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self._producer[0],
                producer_epoch=epoch,
                committed=is_commit,
            ),
            end_txn.EndTxnResponse,
            max_version=version,
        )
        if response.error_code:
            return False
        if version > 4:
            self._producer = (response.producer_id, response.producer_epoch)
        self.history.decided(self.transactional_id, *self._producer, is_commit=is_commit)
        return True

    async def _describe(self) -> None:
        """Check that the last decision still stands."""
        response = await self.send(
            self.coordinator,
            describe_transactions.DescribeTransactionsRequest(
                transactional_ids=[self.transactional_id]
            ),
            describe_transactions.DescribeTransactionsResponse,
        )
        (found,) = response.transaction_states
        if not found.error_code:
            self.history.described(
                self.transactional_id,
                found.producer_id,
                found.producer_epoch,
                found.transaction_state,
            )


def _partitions(data: bytes) -> list[TopicPartition]:
    if not data:
        return []
    decoded, _end = codec(ConsumerProtocolAssignment, 0).decode(memoryview(data), 2)
    return [
        (topic.topic, index) for topic in decoded.assigned_partitions for index in topic.partitions
    ]
