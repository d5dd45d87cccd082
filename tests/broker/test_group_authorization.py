"""What clients learn of topics by groups: those of others, and those with a regular expression.

The clients may do everything with groups, but not with the topic "hidden". That the APIs of groups
need rights for the group is in test_authorization.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from harness.acls import allow, an_authorized_broker, binding, connect_as, revoke_all
from harness.authorization_rows import codes_of
from harness.brokers import partition_of
from harness.group_requests import find
from harness.logs import NOW, a_batch
from harness.share_members import ACCEPT, ShareMember
from harness.waiting import eventually
from harness.wire import WireClient
from ottla.broker import Broker
from ottla.protocol.acls import AclOperation, ResourceType
from ottla.protocol.api.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
)
from ottla.protocol.api.consumer_group_describe import ConsumerGroupDescribeRequest
from ottla.protocol.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    TopicPartitions,
)
from ottla.protocol.api.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
)
from ottla.protocol.api.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsRequestTopic,
)
from ottla.protocol.api.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Message

DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED
CLIENT = "User:client"
READ_HIDDEN = binding(CLIENT, AclOperation.READ, ResourceType.TOPIC, "hidden")
GROUPS = binding(CLIENT, AclOperation.ALL, ResourceType.GROUP, "*")


@asynccontextmanager
async def a_world(path: Path) -> AsyncIterator[tuple[Broker, WireClient, WireClient]]:
    """Run a broker with the topics open and hidden; yield it, the administrator and the client."""
    async with (
        an_authorized_broker(path, offsets_topic_num_partitions=1) as broker,
        connect_as(broker, "admin") as admin,
        connect_as(broker, "client") as client,
    ):
        for name in ("open", "hidden"):
            await broker.controller.create_topics([broker.controller.plan_topic(name, 1, {})])
            partition_of(broker, name, 0).append(a_batch(), NOW)
        await allow(broker, GROUPS, binding(CLIENT, AclOperation.ALL, ResourceType.TOPIC, "open"))
        await find(admin, "g")
        await eventually(lambda: not broker.groups.is_loading)
        yield broker, admin, client


def topic_id(broker: Broker, name: str) -> UUID:
    return broker.topics.image.topics[name].id


class Consumer:
    """A member of group g in the consumer protocol."""

    def __init__(self, client: WireClient, member_id: str) -> None:
        self.client = client
        self.member_id = member_id
        self.epoch = 0
        self.assigned: list[UUID] = []

    async def beat(self, owned: Sequence[UUID] | None = None, **fields: Any) -> None:
        partitions = (
            None
            if owned is None
            else [TopicPartitions(topic_id=one, partitions=[0]) for one in owned]
        )
        response = await self.client.request(
            ConsumerGroupHeartbeatRequest(
                group_id="g",
                member_id=self.member_id,
                member_epoch=self.epoch,
                rebalance_timeout_ms=60_000 if owned is not None else -1,
                topic_partitions=partitions,
                **fields,
            )
        )
        assert response.error_code == 0, response
        self.epoch = response.member_epoch
        if response.assignment is not None:
            self.assigned = [one.topic_id for one in response.assignment.topic_partitions]


async def test_a_regular_expression_matches_what_the_client_may_see(tmp_path: Path) -> None:
    async with a_world(tmp_path) as (broker, _admin, client):
        consumer = Consumer(client, "m" * 22)
        await consumer.beat([], subscribed_topic_regex=".*")

        async def is_assigned() -> bool:
            await consumer.beat()
            return bool(consumer.assigned)

        await eventually(is_assigned)
        assert consumer.assigned == [topic_id(broker, "open")]


async def test_a_group_is_described_to_those_who_may_see_its_topics(tmp_path: Path) -> None:
    """Also while a member still has partitions of topics that it does not subscribe to any more."""
    async with a_world(tmp_path) as (broker, admin, client):
        ids = [topic_id(broker, name) for name in ("open", "hidden")]

        async def described() -> set[int]:
            response = await client.request(ConsumerGroupDescribeRequest(group_ids=["g"]))
            assert ("hidden" in repr(response)) == (0 in codes_of(response))
            return codes_of(response)

        consumer = Consumer(admin, "m" * 22)
        await consumer.beat([], subscribed_topic_names=["open", "hidden"])

        async def is_assigned() -> bool:
            await consumer.beat()
            return sorted(consumer.assigned) == sorted(ids)

        await eventually(is_assigned)
        assert await described() == {DENIED}
        await consumer.beat(ids, subscribed_topic_names=["open"])
        assert await described() == {DENIED}
        await allow(broker, READ_HIDDEN)
        assert await described() == {ErrorCode.NONE}


def _offsets_requests(topic: str) -> list[Message]:
    partition = AlterShareGroupOffsetsRequestPartition(partition_index=0, start_offset=0)
    altered = AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[partition])
    asked = DescribeShareGroupOffsetsRequestTopic(topic_name=topic, partitions=[0])
    group = DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=[asked])
    deleted = DeleteShareGroupOffsetsRequestTopic(topic_name=topic)
    return [
        AlterShareGroupOffsetsRequest(group_id="g", topics=[altered]),
        DescribeShareGroupOffsetsRequest(groups=[group]),
        DeleteShareGroupOffsetsRequest(group_id="g", topics=[deleted]),
    ]


async def test_offsets_of_share_groups(tmp_path: Path) -> None:
    async with a_world(tmp_path) as (broker, admin, client):
        for name in ("open", "hidden"):
            assert codes_of(await admin.request(_offsets_requests(name)[0])) == {0}
        everything = DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareGroupOffsetsRequestGroup(group_id="g", topics=None)]
        )
        assert "hidden" not in repr(await client.request(everything))

        pairs = zip(_offsets_requests("hidden"), _offsets_requests("absent"), strict=True)
        for hidden, absent in pairs:
            response = await client.request(hidden)
            assert DENIED in codes_of(response), response
            assert repr(response).replace("hidden", "absent") == repr(await client.request(absent))
        assert "hidden" in repr(await admin.request(everything)), "nothing was deleted"

        await allow(broker, READ_HIDDEN)
        for request in _offsets_requests("hidden"):
            assert codes_of(await client.request(request)) == {0}


async def test_records_of_share_groups(tmp_path: Path) -> None:
    """A right that is revoked ends fetching, acknowledging, and the description of the group."""
    async with a_world(tmp_path) as (broker, admin, client):
        assert codes_of(await admin.request(_offsets_requests("hidden")[0])) == {0}
        await allow(broker, READ_HIDDEN)
        member = ShareMember(client, topic_id(broker, "hidden"), "m" * 22)
        await member.beat("hidden", epoch=0)
        assert await member.acquire() == [(0, 0, 1)]
        described = ShareGroupDescribeRequest(group_ids=["g"])
        assert "hidden" in repr(await client.request(described))

        await revoke_all(broker)
        await allow(broker, GROUPS)

        partition_of(broker, "hidden", 0).append(a_batch(), NOW)
        denied = DENIED.name
        assert await member.acknowledge((0, 0, 0, [ACCEPT])) == {0: denied}
        got = await member.fetch(0, acks=[(0, 0, 0, [ACCEPT])])
        assert (got[0].error, got[0].acknowledge_error, got[0].values) == (denied, denied, [])
        response = await client.request(described)
        assert codes_of(response) == {DENIED}
        assert "hidden" not in repr(response)
