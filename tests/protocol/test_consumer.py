"""What members say to each other, against what aiokafka writes and reads."""

from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

from ottla.protocol.compiler import codec
from ottla.protocol.consumer import Assignment, Subscription, TopicPartitions


def test_a_subscription_of_aiokafka_is_read_and_written():
    wire = ConsumerProtocolMemberMetadata(0, ["orders", "bills"], b"mine").encode()

    subscription, end = codec(Subscription, 0).decode(memoryview(wire), 2)

    assert subscription == Subscription(topics=["orders", "bills"], user_data=b"mine")
    assert end == len(wire)
    assert codec(Subscription, 0).encode(subscription, bytearray(wire[:2]), []) == wire


def test_an_assignment_that_we_write_is_read_by_aiokafka():
    assignment = Assignment(
        assigned_partitions=[TopicPartitions(topic="orders", partitions=[0, 2])], user_data=b""
    )

    wire = codec(Assignment, 0).encode(assignment, bytearray(2), [])

    theirs = ConsumerProtocolMemberAssignment.decode(bytes(wire))
    assert theirs.assignment == [("orders", [0, 2])]


def test_a_newer_subscription_is_read_as_far_as_it_is_known():
    newer = Subscription(
        topics=["t"],
        owned_partitions=[TopicPartitions(topic="t", partitions=[1])],
        generation_id=4,
        rack_id="r",
    )
    wire = codec(Subscription, 3).encode(newer, bytearray(), [])

    older, _ = codec(Subscription, 1).decode(memoryview(wire))

    assert older == Subscription(topics=["t"], owned_partitions=newer.owned_partitions)
