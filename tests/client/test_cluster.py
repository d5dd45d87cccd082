"""Cluster metadata, connections and retries."""

import asyncio
from contextlib import asynccontextmanager
from uuid import UUID

import pytest

from harness.scripted_broker import ScriptedCluster
from harness.waiting import eventually
from ottla.client.cluster import Cluster, parse_addresses
from ottla.client.config import ClientConfig, RetryConfig, TimeoutConfig
from ottla.client.errors import (
    ClosedError,
    ConnectionLostError,
    DeadlineError,
    ErrorCode,
    KafkaError,
    RefreshError,
    RetriableError,
)
from ottla.client.types import TopicPartition
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.api.metadata import MetadataRequest

QUICK = ClientConfig(
    retry=RetryConfig(backoff=0.005, max_backoff=0.02),
    timeouts=TimeoutConfig(connect=2.0, request=2.0, operation=10.0),
)


async def never(_call):
    await asyncio.sleep(3600)


@asynccontextmanager
async def a_cluster(bootstrap, config=QUICK):
    """A Cluster that is closed at the end of the test."""
    cluster = Cluster(bootstrap, config)
    try:
        yield cluster
    finally:
        await cluster.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9092", [("localhost", 9092)]),
        ("localhost", [("localhost", 9092)]),
        ("a:1, b:2", [("a", 1), ("b", 2)]),
        (["a:1", "b"], [("a", 1), ("b", 9092)]),
        ("[::1]:9093", [("::1", 9093)]),
        ("[::1]", [("::1", 9092)]),
    ],
)
def test_bootstrap_servers_are_parsed(text, expected):
    assert parse_addresses(text) == expected


@pytest.mark.parametrize("text", ["", "a:", "a:x", "a:0", "a:65536", ":9092", "a:1,,b:2", "a:-1"])
def test_invalid_addresses_are_rejected(text):
    with pytest.raises(ValueError, match="Invalid address"):
        parse_addresses(text)


async def test_leaders_are_cached():
    async with (
        ScriptedCluster(nodes=2, topics={"orders": 3}) as stage,
        a_cluster(stage.address) as cluster,
    ):
        leaders = [await cluster.leader_of(TopicPartition("orders", index)) for index in range(3)]

    assert leaders == [0, 1, 0]
    assert len(stage.requests_of(MetadataRequest)) == 1


async def test_concurrent_lookups_of_a_topic_send_one_request():
    async with ScriptedCluster() as stage, a_cluster(stage.address) as cluster:
        await asyncio.gather(*(cluster.topic("orders") for _ in range(30)))

    assert len(stage.requests_of(MetadataRequest)) == 1


async def test_invalidated_topics_are_fetched_again():
    async with ScriptedCluster(nodes=2) as stage, a_cluster(stage.address) as cluster:
        tp = TopicPartition("orders", 0)
        assert await cluster.leader_of(tp) == 0

        stage.move("orders", 0, to=1)
        assert await cluster.leader_of(tp) == 0
        cluster.invalidate(["orders"])
        assert await cluster.leader_of(tp) == 1
        stage.move("orders", 0, to=0)
        cluster.invalidate()
        assert await cluster.leader_of(tp) == 0


async def test_old_metadata_is_fetched_again():
    config = ClientConfig(metadata_max_age=0.05)
    async with ScriptedCluster() as stage, a_cluster(stage.address, config) as cluster:
        await cluster.topic("orders")
        await asyncio.sleep(0.1)
        await cluster.topic("orders")

    assert len(stage.requests_of(MetadataRequest)) == 2


async def test_a_missing_topic_is_an_error_until_it_exists():
    async with ScriptedCluster() as stage, a_cluster(stage.address) as cluster:
        with pytest.raises(RefreshError, match="topic 'new'"):
            await cluster.topic("new")

        stage.move("new", 0, to=0)

        assert len((await cluster.topic("new")).partitions) == 1


async def test_unknown_and_leaderless_partitions_are_errors():
    async with ScriptedCluster() as stage, a_cluster(stage.address) as cluster:
        with pytest.raises(KafkaError, match="orders-7: the topic has 1 partitions"):
            await cluster.leader_of(TopicPartition("orders", 7))

        stage.move("orders", 0, to=-1)
        cluster.invalidate()
        with pytest.raises(RefreshError, match="orders-0 has no leader"):
            await cluster.leader_of(TopicPartition("orders", 0))

        stage.move("orders", 0, to=0)
        assert await cluster.leader_of(TopicPartition("orders", 0)) == 0


async def test_one_reachable_bootstrap_server_is_enough():
    async with ScriptedCluster() as stage, a_cluster(["127.0.0.1:1", stage.address]) as cluster:
        assert (await cluster.topic("orders")).name == "orders"


async def test_no_reachable_bootstrap_server_raises_connection_lost():
    async with a_cluster("127.0.0.1:1,127.0.0.1:2") as cluster:
        with pytest.raises(ConnectionLostError, match=r"127.0.0.1:1: .*; .*127.0.0.1:2: "):
            await cluster.topic("orders")


async def test_a_connection_is_shared_within_a_channel():
    async with ScriptedCluster() as stage, a_cluster(stage.address) as cluster:
        await cluster.topic("orders")

        same = await asyncio.gather(*(cluster.connect(0, "fetch") for _ in range(5)))
        other = await cluster.connect(0, "produce")
        await cluster.close()

        assert len(set(same)) == 1
        assert other not in same
        assert len(stage.requests_of(ApiVersionsRequest)) == 3
        assert not other.is_open


async def test_a_lost_connection_is_reestablished():
    async with ScriptedCluster() as stage, a_cluster(stage.address) as cluster:
        await cluster.topic("orders")
        first = await cluster.connect(0)
        stage.nodes[0].disconnect_all()
        await eventually(lambda: not first.is_open)

        second = await cluster.connect(0)

    assert first is not second


async def test_an_unknown_broker_raises_connection_lost():
    async with ScriptedCluster() as stage, a_cluster(stage.address) as cluster:
        with pytest.raises(ConnectionLostError, match="Unknown broker 9"):
            await cluster.connect(9)


async def test_a_hanging_broker_is_not_used_while_another_responds():
    async with ScriptedCluster(nodes=3) as stage, a_cluster(stage.address) as cluster:
        await cluster.topic("orders")
        stage.script(ApiVersionsRequest, *[never] * 30)

        for _ in range(10):
            await cluster.refresh(["orders"])

    assert len(stage.requests_of(ApiVersionsRequest)) == 1


async def test_a_closed_cluster_raises_closed_error():
    async with ScriptedCluster() as stage, a_cluster(stage.address) as cluster:
        await cluster.topic("orders")
        await cluster.close()

        with pytest.raises(ClosedError):
            await cluster.connect(0)


async def test_close_while_connecting():
    async with ScriptedCluster() as stage, a_cluster(stage.address) as cluster:
        gate = asyncio.Event()

        async def hold(call):
            await gate.wait()
            return call.serve()

        stage.script(ApiVersionsRequest, hold)
        opening = asyncio.ensure_future(cluster.connect(-1))
        await eventually(lambda: stage.requests_of(ApiVersionsRequest))
        await cluster.close()
        gate.set()

        with pytest.raises(ClosedError):
            await opening


# Retries.


async def test_retriable_errors_are_retried():
    cluster = Cluster("127.0.0.1:1", QUICK)
    errors = [
        RetriableError(ErrorCode.REQUEST_TIMED_OUT),
        ConnectionLostError("gone"),
        RefreshError(ErrorCode.NOT_LEADER_OR_FOLLOWER),
        DeadlineError("late"),
    ]

    async def attempt():
        if errors:
            raise errors.pop(0)
        return "done"

    assert await cluster.retry(attempt) == "done"


async def test_other_errors_are_not_retried():
    cluster = Cluster("127.0.0.1:1", QUICK)
    made = []

    async def attempt():
        made.append(1)
        raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION)

    with pytest.raises(KafkaError, match="INVALID_TOPIC_EXCEPTION"):
        await cluster.retry(attempt)
    assert made == [1]


async def test_the_deadline_error_has_the_last_error():
    config = ClientConfig(retry=QUICK.retry, timeouts=TimeoutConfig(operation=0.3))
    cluster = Cluster("127.0.0.1:1", config)

    async def attempt():
        raise ConnectionLostError("nobody is there")

    with pytest.raises(DeadlineError, match=r"did not succeed within 0.3 s: nobody") as caught:
        await cluster.retry(attempt, what="asking")

    assert isinstance(caught.value.__cause__, ConnectionLostError)
    assert isinstance(caught.value, TimeoutError)


async def test_on_request_is_called_for_each_request():
    calls = []
    config = ClientConfig(on_request=lambda *what: calls.append(what))
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)
    async with ScriptedCluster() as stage, a_cluster(stage.address, config) as cluster:
        await cluster.topic("orders")
        stage.script(InitProducerIdRequest, lambda call: call.disconnect())
        with pytest.raises(ConnectionLostError):
            await cluster.send(0, request, InitProducerIdResponse)

    assert [(name, node, type(error)) for name, node, _, error in calls] == [
        ("Metadata", -1, type(None)),
        ("InitProducerId", 0, ConnectionLostError),
    ]


async def test_an_error_in_on_request_fails_no_request(caplog):
    def hook(*_what):
        raise RuntimeError("a bug of the application's")

    async with (
        ScriptedCluster() as stage,
        a_cluster(stage.address, ClientConfig(on_request=hook)) as cluster,
    ):
        assert len((await cluster.topic("orders")).partitions) == 1

    assert "on_request failed for Metadata" in caplog.text


async def test_a_cancelled_request_is_not_reported():
    calls = []
    config = ClientConfig(on_request=lambda *what: calls.append(what))
    async with ScriptedCluster() as stage, a_cluster(stage.address, config) as cluster:
        stage.script(MetadataRequest, never)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(cluster.topic("orders"), 0.05)

    assert calls == []


# The controller.

INIT = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1)


async def test_a_new_controller_is_found():
    async with ScriptedCluster(nodes=2) as stage, a_cluster(stage.nodes[1].address) as cluster:
        await cluster.send_to_controller(INIT, InitProducerIdResponse)
        stage.controller = 1
        await cluster.send_to_controller(INIT, InitProducerIdResponse)
        await cluster.close()

        assert [call.node.id for call in stage.requests_of(InitProducerIdRequest)] == [0, 1]


async def test_a_missing_controller_is_retried():
    async with ScriptedCluster() as stage, a_cluster(stage.address) as cluster:
        stage.controller = -1
        asking = asyncio.ensure_future(
            cluster.retry(lambda: cluster.send_to_controller(INIT, InitProducerIdResponse))
        )
        await asyncio.sleep(0.05)
        assert not asking.done()

        stage.controller = 0

        await asking


# One of several brokers is down or hangs.


async def test_an_unreachable_address_is_not_tried_during_its_backoff():
    # Longer than all requests below take, even on a slow machine.
    config = ClientConfig(retry=RetryConfig(backoff=2, multiplier=1), timeouts=QUICK.timeouts)
    came = []

    async def hang_up(_reader, writer):
        came.append(1)
        writer.transport.abort()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, a_cluster(f"127.0.0.1:{port}", config) as cluster:

        async def refused():
            with pytest.raises(ConnectionLostError, match=f"127.0.0.1:{port}"):
                await cluster.refresh([])

        async def is_asked_again():
            await refused()
            return len(came) > 1

        for _ in range(20):
            await refused()
        assert len(came) == 1
        await eventually(is_asked_again)


async def test_a_broker_that_stops_responding_is_used_last():
    config = ClientConfig(timeouts=TimeoutConfig(connect=1.0, request=5.0, operation=5.0))
    async with ScriptedCluster(nodes=3) as stage, a_cluster(stage.address, config) as cluster:
        await cluster.topic("orders")
        # It has the only open connection, and accepts new ones.
        hung = stage.nodes[0]

        async def hang(call):
            return await never(call) if call.node is hung else call.serve()

        stage.script(MetadataRequest, *[hang] * 9)
        stage.script(ApiVersionsRequest, *[hang] * 9)
        with pytest.raises(DeadlineError, match=r"did not respond within 1 s"):
            await cluster.refresh(["orders"])
        stage.calls.clear()
        for _ in range(5):
            await cluster.refresh(["orders"])

    assert len(stage.requests_of(MetadataRequest)) == 5
    assert hung not in [call.node for call in stage.calls]


async def test_leaderless_partitions_share_one_lookup():
    partitions = [TopicPartition("orders", number) for number in range(9)]
    async with (
        ScriptedCluster(nodes=3, topics={"orders": 9}) as stage,
        a_cluster(stage.address) as cluster,
    ):
        for tp in partitions[::3]:
            stage.move(*tp, to=-1)

        found = await cluster.leaders_of([*partitions, TopicPartition("orders", 9)])

    assert [found[tp] for tp in partitions[1::3]] == [1, 1, 1]
    assert {found[tp].code for tp in partitions[::3]} == {ErrorCode.LEADER_NOT_AVAILABLE}
    unknown = found[TopicPartition("orders", 9)]
    assert unknown.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert len(stage.requests_of(MetadataRequest)) == 1


async def test_close_fails_pending_retries():
    async with ScriptedCluster() as stage, a_cluster(stage.address) as cluster:
        await cluster.topic("orders")
        stage.script(InitProducerIdRequest, never)
        asking = asyncio.ensure_future(
            cluster.retry(lambda: cluster.send(0, INIT, InitProducerIdResponse))
        )
        await eventually(lambda: stage.requests_of(InitProducerIdRequest))
        await cluster.close()

        with pytest.raises(ClosedError):
            await asking


async def test_older_metadata_does_not_move_a_leader_back():
    epochs = {"leader": 1, "epoch": 5, "id": UUID(int=1)}

    def respond(call):
        response = call.serve()
        (topic,) = response.topics
        topic.topic_id = epochs["id"]
        topic.partitions[0].leader_id = epochs["leader"]
        topic.partitions[0].leader_epoch = epochs["epoch"]
        return response

    async with (
        ScriptedCluster(nodes=2, topics={"orders": 2}) as stage,
        a_cluster(stage.address) as cluster,
    ):
        stage.always(MetadataRequest, respond)

        async def leader() -> int:
            metadata = await cluster.refresh(["orders"])
            return metadata.topics["orders"].partitions[0].leader

        assert await leader() == 1
        epochs |= {"leader": 0, "epoch": 4}  # from a broker that lags behind
        assert await leader() == 1
        epochs |= {"leader": 0, "epoch": 6}
        assert await leader() == 0
        epochs |= {"leader": 1, "epoch": 0, "id": UUID(int=2)}  # another topic of this name
        assert await leader() == 1


async def test_a_broker_that_knows_no_leader_is_not_asked_for_ever():
    def respond(call):
        response = call.serve()
        if call.node.id == 0:  # It is cut off from the others.
            response.topics[0].partitions[0].leader_id = -1
        return response

    async with ScriptedCluster(nodes=2) as stage, a_cluster(stage.address) as cluster:
        stage.move("orders", 0, to=1)
        stage.always(MetadataRequest, respond)
        leader = await cluster.retry(lambda: cluster.leader_of(TopicPartition("orders", 0)))

    assert leader == 1
