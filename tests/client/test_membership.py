"""Group members: coordinator errors, the embedded protocol, groups shared with other clients."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka.coordinator.assignors import range as aiokafka_range
from aiokafka.coordinator.assignors import roundrobin as aiokafka_roundrobin
from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)
from kafka import KafkaConsumer
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

from harness.consumer_stage import QUICK, a_consumer, a_quick_broker, fill
from harness.logs import a_batch
from ottla.broker import Broker
from ottla.client.consumer.assignors import Member
from ottla.client.consumer.config import GroupConfig
from ottla.client.consumer.consumer_protocol import (
    decode_assignment,
    decode_member,
    encode_assignment,
    encode_subscription,
)
from ottla.client.consumer.coordinator_errors import ErrorAction, action_for
from ottla.client.types import TopicPartition
from ottla.protocol.api.join_group import JoinGroupResponseMember
from ottla.protocol.errors import DecodeError, ErrorCode

A0, A2, B1 = TopicPartition("a", 0), TopicPartition("a", 2), TopicPartition("b", 1)


@pytest.mark.parametrize(
    ("code", "action"),
    [
        (ErrorCode.NONE, ErrorAction.NONE),
        (ErrorCode.REBALANCE_IN_PROGRESS, ErrorAction.REJOIN),
        (ErrorCode.MEMBER_ID_REQUIRED, ErrorAction.REJOIN),
        (ErrorCode.ILLEGAL_GENERATION, ErrorAction.RESET_GENERATION),
        (ErrorCode.UNKNOWN_MEMBER_ID, ErrorAction.RESET_MEMBER_ID),
        (ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, ErrorAction.RETRY),
        (ErrorCode.NOT_COORDINATOR, ErrorAction.FIND_COORDINATOR),
        (ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorAction.FIND_COORDINATOR),
        (ErrorCode.FENCED_INSTANCE_ID, ErrorAction.FAIL),
        (ErrorCode.GROUP_AUTHORIZATION_FAILED, ErrorAction.FAIL),
        (ErrorCode.INCONSISTENT_GROUP_PROTOCOL, ErrorAction.FAIL),
        (9999, ErrorAction.FAIL),
    ],
)
def test_error_codes_of_the_coordinator_map_to_actions(code, action):
    assert action_for(code) is action


@pytest.mark.parametrize(
    ("configs", "message"),
    [
        ({"session_timeout": 0}, "Invalid session_timeout 0: must be positive"),
        ({"heartbeat_interval": 50}, "Invalid heartbeat_interval 50: must be shorter"),
        ({"rebalance_timeout": -1}, "Invalid rebalance_timeout -1: must be positive"),
        ({"processing_timeout": -1}, "Invalid processing_timeout -1: must not be negative"),
    ],
)
def test_invalid_group_configs_are_rejected(configs, message):
    with pytest.raises(ValueError, match=message):
        GroupConfig(**configs)


def test_revoking_leaves_time_for_the_rest_of_a_rebalance():
    assert GroupConfig(rebalance_timeout=10).revoke_timeout == 8
    assert GroupConfig().revoke_timeout == 30


# The embedded consumer protocol.


def member(metadata: bytes) -> Member:
    return decode_member(
        JoinGroupResponseMember(member_id="m", group_instance_id="i", metadata=metadata)
    )


def test_a_subscription_is_decoded_by_aiokafka_and_by_us():
    encoded = encode_subscription(["a", "b"], [], -1, with_user_data=False)

    theirs = ConsumerProtocolMemberMetadata.decode(encoded)
    assert list(theirs.subscription) == ["a", "b"]
    assert member(encoded) == Member("m", frozenset({"a", "b"}), "i", frozenset(), -1)


def test_owned_partitions_are_encoded_with_their_generation():
    encoded = encode_subscription(["a"], [A2, B1, A0], 7, with_user_data=True)

    assert member(encoded) == Member("m", frozenset({"a"}), "i", frozenset({A0, A2, B1}), 7)


def test_subscriptions_of_older_clients_are_decoded():
    encoded = ConsumerProtocolMemberMetadata(0, ["a"], b"whatever").encode()

    assert member(encoded) == Member("m", frozenset({"a"}), "i", frozenset(), -1)


@pytest.mark.parametrize("data", [b"", b"\x00", b"\x00\x01\xff", b"\xff\xff", b"\x00\x02" * 9])
def test_an_invalid_subscription_counts_as_empty(data):
    assert member(data).topics == frozenset()


def test_assignments_are_decoded_by_aiokafka_and_by_us():
    encoded = encode_assignment([A2, B1, A0])

    theirs = ConsumerProtocolMemberAssignment.decode(encoded)
    assert [(topic, list(some)) for topic, some in theirs.assignment] == [("a", [0, 2]), ("b", [1])]
    assert decode_assignment(encoded) == {A0, A2, B1}
    assert decode_assignment(b"") == frozenset()
    with pytest.raises(DecodeError):
        decode_assignment(b"\x00")


# Groups shared with other clients.


class Other:
    """A member of another client in its own thread: its assignment, and how many records it got."""

    def __init__(self) -> None:
        self.assigned: frozenset[int] = frozenset()
        self.records: list[tuple[int, int]] = []
        self.stop = threading.Event()
        self.is_alive: Callable[[], bool] = lambda: True


def confluent(address: str, assignor: str, other: Other) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "g",
            "partition.assignment.strategy": assignor,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": 2000,
            "heartbeat.interval.ms": 50,
            "fetch.wait.max.ms": 50,
        }
    )
    consumer.subscribe(["t"])
    while not other.stop.is_set():
        message = consumer.poll(0.05)
        if message is not None and not message.error():
            other.records.append((message.partition(), message.offset()))
        other.assigned = frozenset(tp.partition for tp in consumer.assignment())
    consumer.close()


def kafka_python(address: str, assignor: str, other: Other) -> None:
    assignors = {
        "range": RangePartitionAssignor,
        "roundrobin": RoundRobinPartitionAssignor,
        "cooperative-sticky": CooperativeStickyAssignor,
    }
    consumer = KafkaConsumer(
        "t",
        bootstrap_servers=address,
        group_id="g",
        partition_assignment_strategy=[assignors[assignor]],
        auto_offset_reset="earliest",
        session_timeout_ms=2000,
        heartbeat_interval_ms=50,
        fetch_max_wait_ms=50,
        max_poll_interval_ms=10_000,
    )
    # As leader it may assign a topic whose metadata it does not have yet, and stop at that.
    while not consumer.partitions_for_topic("t"):
        time.sleep(0.01)
    while not other.stop.is_set():
        for records in consumer.poll(50).values():
            other.records += [(record.partition, record.offset) for record in records]
        other.assigned = frozenset(tp.partition for tp in consumer.assignment())
    consumer.close()


def aiokafka(address: str, assignor: str, other: Other) -> None:
    assignors = {
        "range": aiokafka_range.RangePartitionAssignor,
        "roundrobin": aiokafka_roundrobin.RoundRobinPartitionAssignor,
    }

    async def run() -> None:
        consumer = AIOKafkaConsumer(
            "t",
            bootstrap_servers=address,
            group_id="g",
            partition_assignment_strategy=(assignors[assignor],),
            auto_offset_reset="earliest",
            session_timeout_ms=2000,
            rebalance_timeout_ms=10_000,
            heartbeat_interval_ms=50,
            fetch_max_wait_ms=50,
        )
        await consumer.start()
        while not other.stop.is_set():
            for records in (await consumer.getmany(timeout_ms=50)).values():
                other.records += [(record.partition, record.offset) for record in records]
            other.assigned = frozenset(tp.partition for tp in consumer.assignment())
        await consumer.stop()

    asyncio.run(run())


@contextmanager
def joined(
    run: Callable[[str, str, Other], None], broker: Broker, assignor: str
) -> Iterator[Other]:
    other = Other()
    thread = threading.Thread(target=run, args=(broker.address, assignor, other), daemon=True)
    other.is_alive = thread.is_alive
    thread.start()
    try:
        yield other
    finally:
        other.stop.set()
        # Sockets that it does not close are not what is tested.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


async def waited(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


# The first member is the leader, and assigns the partitions.
MIXES = [
    (confluent, "range", "we"),
    (confluent, "roundrobin", "they"),
    (confluent, "cooperative-sticky", "we"),
    (confluent, "cooperative-sticky", "they"),
    (kafka_python, "range", "they"),
    (kafka_python, "roundrobin", "we"),
    (kafka_python, "cooperative-sticky", "we"),
    (kafka_python, "cooperative-sticky", "they"),
    (aiokafka, "range", "we"),
    (aiokafka, "range", "they"),
    (aiokafka, "roundrobin", "we"),
    (aiokafka, "roundrobin", "they"),
]


@pytest.mark.parametrize(("client", "assignor", "first_member"), MIXES)
async def test_a_group_is_shared_with_other_clients(tmp_path, client, assignor, first_member):
    async with a_quick_broker(tmp_path, {"t": 4}) as broker:
        for number in range(4):
            await fill(broker, TopicPartition("t", number), a_batch(25))
        ours: list[tuple[int, int]] = []

        async def read(consumer: Any) -> None:
            async for record in consumer:
                ours.append((record.partition, record.offset))  # noqa: PERF401

        consumer = a_consumer(broker, "t", group="g", assignors=[assignor], group_config=QUICK)
        with joined(client, broker, assignor) as other:
            if first_member == "they":
                await waited(lambda: len(other.assigned) == 4)
            await consumer.start()
            reading = asyncio.create_task(read(consumer))

            def shared() -> bool:
                mine = {tp.partition for tp in consumer.assignment}
                both = len(mine) == len(other.assigned) == 2
                return both and mine | other.assigned == set(range(4))

            await waited(shared)
            for number in range(4):
                await fill(broker, TopicPartition("t", number), a_batch(25))
            await waited(lambda: len({*ours, *other.records}) == 200)
            other.stop.set()
            await waited(lambda: len(consumer.assignment) == 4)
            await consumer.close()
            await reading
            await waited(lambda: not other.is_alive())

    assert {*ours, *other.records} == {(number, at) for number in range(4) for at in range(50)}
