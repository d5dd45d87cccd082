"""Clients that announce, park or name very much: memory is bounded, and others are served."""

import select
import struct
import time
from collections import Counter
from contextlib import ExitStack

import pytest

from harness.attack import MIB, create_topic, open_connections, undisturbed, unharmed
from harness.daemon import Daemon, anonymous_mib
from harness.group_requests import commit_request, find, join_request
from harness.logs import a_batch
from harness.transaction_requests import TransactionalProducer, find_coordinator
from harness.wire import (
    BlockingWireClient,
    connect,
    error_codes,
    frame_of,
    produce_request,
)
from ottla.protocol.api.describe_groups import DescribeGroupsRequest
from ottla.protocol.api.describe_producers import DescribeProducersRequest, TopicRequest
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest
from ottla.protocol.api.init_producer_id import InitProducerIdRequest
from ottla.protocol.api.join_group import JoinGroupResponse
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.api.produce import ProduceResponse
from ottla.protocol.codec import decode_response
from ottla.protocol.errors import ErrorCode

PRODUCE_KEY = 0


@pytest.fixture
def broker(tmp_path):
    with Daemon(tmp_path) as started:
        yield started


# Announced sizes.


def test_announced_sizes_do_not_block_a_bystander(broker):
    create_topic(broker, "t")
    announcement = struct.pack(">ihhi", 100 * MIB, PRODUCE_KEY, 9, 1) + bytes(8)
    request = produce_request(a_batch(value=bytes(512 * 1024)))
    with unharmed(broker, growth_mib=16), undisturbed(broker), ExitStack() as stack:
        open_connections(broker, stack, 50, announcement)
        with BlockingWireClient(broker) as bystander:
            started = time.monotonic()
            assert error_codes(bystander.request(request, 9)) == [0]
            assert time.monotonic() - started < 1


def test_partial_requests_that_fill_the_budget_do_not_block_a_bystander(tmp_path):
    limits = ("socket.request.max.bytes=16777216", "queued.max.request.bytes=33554432")
    with Daemon(tmp_path, "--set", limits[0], "--set", limits[1]) as broker:
        create_topic(broker, "t", max_message_bytes=str(16 * MIB))
        announcement = struct.pack(">ihhi", 15 * MIB, PRODUCE_KEY, 9, 1)
        with undisturbed(broker), ExitStack() as stack:
            # More than the sockets' buffers hold is not sent: it would block here.
            open_connections(broker, stack, 10, announcement + bytes(MIB))
            with BlockingWireClient(broker) as bystander:
                request = produce_request(a_batch(value=bytes(512 * 1024)))
                started = time.monotonic()
                assert error_codes(bystander.request(request, 9)) == [0]
                assert time.monotonic() - started < 1
                # A large request is received once those that stall were closed.
                request = produce_request(a_batch(value=bytes(12 * MIB)))
                assert error_codes(bystander.request(request, 9)) == [0]


def test_requests_that_send_a_few_bytes_at_a_time_do_not_block_a_bystander(tmp_path):
    """They are of the size that has a reserve, almost complete, and never quite silent."""
    limits = ("socket.request.max.bytes=4194304", "queued.max.request.bytes=16777216")
    with Daemon(tmp_path, "--set", limits[0], "--set", limits[1]) as broker:
        create_topic(broker, "t", max_message_bytes=str(4 * MIB))
        start = struct.pack(">ihhi", MIB - 100, PRODUCE_KEY, 9, 1) + bytes(MIB - 64 * 1024)
        with undisturbed(broker), ExitStack() as stack:
            clients = open_connections(broker, stack, 8, start)
            with BlockingWireClient(broker) as bystander:
                bystander.send(frame_of(produce_request(a_batch(value=bytes(512 * 1024))), 9))
                started = time.monotonic()
                while not select.select([bystander._socket], [], [], 0.2)[0]:
                    for client in list(clients):
                        try:
                            client.send(b"x")
                        except OSError:
                            clients.remove(client)
                    assert time.monotonic() - started < 15
                response = decode_response(ProduceResponse, 9, bystander.frame())[1]
                assert error_codes(response) == [0]


# Memory of groups and parked fetches.


@pytest.fixture
def small_broker(tmp_path):
    configs = ("broker.memory.max.bytes=33554432", "group.initial.rebalance.delay.ms=600000")
    with Daemon(tmp_path, "--set", configs[0], "--set", configs[1]) as started:
        create_topic(started, "t")
        with BlockingWireClient(started) as client:
            client.request(FindCoordinatorRequest(coordinator_keys=["g"]), 6)
        yield started


def test_large_joins_are_refused_above_the_memory_limit(small_broker):
    before = anonymous_mib(small_broker)
    metadata = bytes(7_900_000)
    refused = 0
    with undisturbed(small_broker), ExitStack() as stack:
        admin = stack.enter_context(BlockingWireClient(small_broker))
        for number in range(25):
            client = stack.enter_context(BlockingWireClient(small_broker))
            request = join_request(f"g{number}", instance="a", protocols={"range": metadata})
            client.send(frame_of(request, 9))
            # It is refused, or waits for other members.
            while (
                not admin.request(DescribeGroupsRequest(groups=[f"g{number}"]), 5).groups[0].members
            ):
                if select.select([client._socket], [], [], 0.01)[0]:
                    response = decode_response(JoinGroupResponse, 9, client.frame())[1]
                    assert response.error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
                    refused += 1
                    break
        assert refused == 21
        assert anonymous_mib(small_broker) - before < 100
        # Others can join.
        code = admin.request(join_request("other"), 9).error_code
        assert code == ErrorCode.MEMBER_ID_REQUIRED


def test_large_fetches_are_not_parked_above_the_memory_limit(small_broker):
    elements = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1)] * 79_000
    topics = [FetchTopic(topic="t", partitions=elements)]
    frame = frame_of(FetchRequest(max_wait_ms=600_000, min_bytes=1, topics=topics), 11)
    before = anonymous_mib(small_broker)
    with undisturbed(small_broker), ExitStack() as stack:
        clients = open_connections(small_broker, stack, 3, frame)
        # One fits. The others are answered at once.
        assert all(client.frame() for client in clients[1:])
        assert anonymous_mib(small_broker) - before < 100


def test_one_off_groups_do_not_keep_new_groups_from_joining(small_broker):
    with undisturbed(small_broker), BlockingWireClient(small_broker) as client:
        for first in range(0, 12_000, 50):
            requests = [commit_request(f"one-off-{first + i}", {("t", 0): 1}) for i in range(50)]
            client.send(b"".join(frame_of(request, 9) for request in requests))
            for _ in requests:
                client.frame()
        (topic,) = client.request(commit_request("one-more", {("t", 0): 1}), 9).topics
        assert topic.partitions[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
        assert anonymous_mib(small_broker) < 200
        code = client.request(join_request("new"), 9).error_code
        assert code == ErrorCode.MEMBER_ID_REQUIRED
        code = client.request(join_request("one-off-0"), 9).error_code
        assert code == ErrorCode.MEMBER_ID_REQUIRED


async def test_idle_producers_are_evicted_above_the_memory_limit(tmp_path):
    """Each new producer id leaves a state. The oldest are evicted, and nobody else is refused."""
    limit = 1024 * 1024
    with Daemon(tmp_path, "--set", f"broker.memory.max.bytes={limit}") as broker:
        create_topic(broker, "t", partitions=2)
        async with connect(broker) as client:
            await find_coordinator(client, "tx")
            transaction = TransactionalProducer(client, "tx")
            await transaction.init()
            assert await transaction.add(("t", 0)) == ErrorCode.NONE
            assert await transaction.produce("t") == ErrorCode.NONE
            for _ in range(40):
                for _ in range(50):
                    client.send(InitProducerIdRequest(transactional_id=None), 4)
                ids = [(await client.response()).producer_id for _ in range(50)]
                for producer_id in ids:
                    header = {"producer_epoch": 0, "base_sequence": 0, "producer_id": producer_id}
                    client.send(produce_request(a_batch(**header), a_batch(**header)), 9)
                for _ in ids:
                    assert error_codes(await client.response()) == [0, 0]

            request = DescribeProducersRequest(
                topics=[TopicRequest(name="t", partition_indexes=[0, 1])]
            )
            (topic,) = (await client.request(request)).topics
            states = [[p.producer_id for p in part.active_producers] for part in topic.partitions]
            assert 1000 < len(states[0]) + len(states[1]) < 2000
            assert set(ids) <= set(states[0]) & set(states[1])
            assert transaction.id in states[0]
            assert await transaction.produce("t") == ErrorCode.NONE
            assert await transaction.end() == ErrorCode.NONE
            # What producers use is free for others.
            await find(client, "g")
            (topic,) = (await client.request(commit_request("g", {("t", 0): 1}), 9)).topics
            assert topic.partitions[0].error_code == ErrorCode.NONE


# Auto-created topics.


def test_a_metadata_request_creates_a_bounded_number_of_topics(broker):
    names = [f"auto-{number}" for number in range(4000)]
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=True
    )
    with undisturbed(broker), BlockingWireClient(broker) as client:
        codes = Counter(topic.error_code for topic in client.request(request, 12).topics)
        assert set(codes) == {ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE}
        assert codes[ErrorCode.NONE] == 100
