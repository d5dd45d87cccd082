"""ACLs and quotas in a cluster: they reach every broker, and brokers need CLUSTER_ACTION alone."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from harness.acls import allow, binding, connect_as
from harness.brokers import add_topic
from harness.group_requests import find
from harness.logs import a_batch
from harness.requests import create_topics_request
from harness.waiting import eventually
from harness.wire import connect, error_codes, produce_request
from ottla.broker import Broker, BrokerConfig
from ottla.broker.cluster.store.memory_store import MemoryStore, MemoryStoreServer
from ottla.client import (
    AclBinding,
    AclFilter,
    AclOperation,
    Admin,
    QuotaEntity,
    QuotaName,
    ResourceType,
)
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.errors import ErrorCode

TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


@asynccontextmanager
async def a_cluster(tmp_path, *, super_users, prepare=None, count=2, configs=lambda _id: {}):
    """Run brokers with a metadata store and an authorizer; `prepare` is called with the first."""
    server = MemoryStoreServer()
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        brokers = []

        async def stop():
            for broker in reversed(brokers):
                await broker.stop()

        stack.push_async_callback(stop)
        for broker_id in range(count):
            config = BrokerConfig.of(
                {
                    "broker.id": str(broker_id),
                    "log.dir": str(tmp_path / str(broker_id)),
                    "listeners": "PLAINTEXT://127.0.0.1:0",
                    "cluster.store": "etcd://unused:2379/test",
                    "controller.wait.ms": "5000",
                    "authorizer.class.name": "acl",
                    "super.users": super_users,
                    "default.replication.factor": "2",
                    "min.insync.replicas": "2",
                    "offsets.topic.num.partitions": "1",
                    **configs(broker_id),
                }
            )
            broker = Broker(config, store=MemoryStore(server))
            await broker.start()
            brokers.append(broker)
            if broker_id == 0 and prepare is not None:
                await prepare(broker)
        await eventually(lambda: all(len(one.cluster.alive) == count for one in brokers))
        yield brokers


async def test_acls_and_quotas_reach_every_broker(tmp_path):
    async with a_cluster(tmp_path, super_users="User:ANONYMOUS") as brokers:
        follower = next(one for one in brokers if not one.cluster.is_controller)
        reading = AclBinding(TOPIC, "orders", "User:alice", AclOperation.READ)
        alice = QuotaEntity(user="alice")
        async with Admin(follower.address) as admin:
            await admin.create_acls(reading)
            await admin.alter_client_quotas(alice, {"producer_byte_rate": 1000})
        for broker in brokers:
            async with Admin(broker.address) as admin:
                assert await admin.describe_acls() == [reading]
                assert await admin.describe_client_quotas() == {
                    alice: {"producer_byte_rate": 1000.0}
                }
            assert broker.dispatcher.quotas is not None

        async with Admin(follower.address) as admin:
            await admin.delete_acls(AclFilter())
        assert [len(broker.topics.image.acls) for broker in brokers] == [0, 0]


async def test_the_next_controller_creates_the_first_users(tmp_path):
    users = "SCRAM-SHA-256=[name=admin,password=secret]"

    def configs(broker_id):
        # The first controller is lost before it has created them.
        return {"sasl.bootstrap.users": users} if broker_id else {}

    async with a_cluster(tmp_path, super_users="User:ANONYMOUS", configs=configs) as brokers:
        first, second = brokers
        assert first.cluster.is_controller
        assert not second.topics.image.scram_credentials
        await brokers.pop(0).stop()
        await eventually(lambda: second.topics.image.scram_credentials)


async def test_the_connection_between_brokers_is_never_throttled(tmp_path):
    async with a_cluster(tmp_path, super_users="User:ANONYMOUS") as brokers:
        controller = next(one for one in brokers if one.cluster.is_controller)
        follower = next(one for one in brokers if one is not controller)
        everybody = QuotaEntity(user=QuotaName.DEFAULT)
        async with Admin(controller.address) as admin:
            limits = {"request_percentage": 1e-6, "controller_mutation_rate": 0.001}
            await admin.alter_client_quotas(everybody, limits)

        # What a client may do, and how fast, is decided by the controller.
        codes = []
        for name in ("one", "two"):
            async with connect(follower) as client:
                response = await client.request(create_topics_request(name, 3), 7)
                codes.append(response.topics[0].error_code)
                assert response.throttle_time_ms > 1000
        assert codes == [ErrorCode.NONE, ErrorCode.THROTTLING_QUOTA_EXCEEDED]

        assert controller.metrics.throttled_requests["controller_mutation_rate"] == 0
        channel = follower.controller_channel._connection
        assert channel is not None
        assert channel.is_open


async def test_brokers_need_nothing_but_cluster_action(tmp_path):
    async def let_brokers_in(broker):
        await allow(broker, binding("User:ANONYMOUS", AclOperation.CLUSTER_ACTION, CLUSTER))

    async with a_cluster(tmp_path, super_users="User:admin", prepare=let_brokers_in) as brokers:
        controller = next(one for one in brokers if one.cluster.is_controller)
        follower = next(one for one in brokers if one is not controller)
        # It is acknowledged by a follower that may fetch.
        await add_topic(controller, "orders")
        topic = controller.topics.image.topics["orders"]
        leader = brokers[controller.topics.image.leader_of(topic, 0)]
        async with connect_as(leader, "admin") as admin:
            request = produce_request(a_batch(), topic="orders", acks=-1)
            assert error_codes(await admin.request(request, 9)) == [0]
        await eventually(
            lambda: all(
                set(one.topics.image.partition_states[topic.id][0].isr) == {0, 1} for one in brokers
            )
        )
        # Auto-creation and the creation of internal topics, for clients of the follower.
        for operation, kind, name in (
            (AclOperation.DESCRIBE, TOPIC, "*"),
            (AclOperation.CREATE, TOPIC, "*"),
            (AclOperation.DESCRIBE, GROUP, "app"),
        ):
            await allow(controller, binding("User:client", operation, kind, name))
        async with connect_as(follower, "client") as client:
            (found,) = await find(client, "app")
            assert found.error_code == ErrorCode.NONE
            wanted = MetadataRequest(
                topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=True
            )
            assert (await client.request(wanted, 12)).topics[0].error_code == ErrorCode.NONE
        assert "new" in controller.topics.image.topics


@pytest.mark.parametrize("on_controller", [True, False])
async def test_nobody_gains_rights_by_forwarding(tmp_path, on_controller):
    """The controller judges the client, not the broker that forwards its request."""

    async def let_brokers_in(broker):
        await allow(broker, binding("User:ANONYMOUS", AclOperation.ALL, CLUSTER))

    async with a_cluster(
        tmp_path, super_users="User:admin;User:broker", prepare=let_brokers_in
    ) as brokers:
        target = next(one for one in brokers if one.cluster.is_controller is on_controller)
        async with connect_as(target, "eve") as client:
            response = await client.request(create_topics_request("stolen"), 7)
        assert response.topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        assert "stolen" not in target.topics.image.topics
        async with connect(target) as client:
            response = await client.request(create_topics_request("made"), 7)
        assert response.topics[0].error_code == ErrorCode.NONE
