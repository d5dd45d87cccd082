"""The consumer protocol, checked against the encoder and decoder of aiokafka."""

from aiokafka.coordinator.protocol import (
    ConsumerProtocolMemberAssignment,
    ConsumerProtocolMemberMetadata,
)

from ottla.protocol.compiler import codec
from ottla.protocol.consumer import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)


def test_a_subscription_encoded_by_aiokafka_round_trips():
    wire = ConsumerProtocolMemberMetadata(0, ["orders", "bills"], b"mine").encode()

    subscription, end = codec(ConsumerProtocolSubscription, 0).decode(memoryview(wire), 2)

    assert subscription == ConsumerProtocolSubscription(
        topics=["orders", "bills"], user_data=b"mine"
    )
    assert end == len(wire)
    assert (
        codec(ConsumerProtocolSubscription, 0).encode(subscription, bytearray(wire[:2]), []) == wire
    )


def test_aiokafka_decodes_our_assignment():
    assignment = ConsumerProtocolAssignment(
        assigned_partitions=[TopicPartitions(topic="orders", partitions=[0, 2])], user_data=b""
    )

    wire = codec(ConsumerProtocolAssignment, 0).encode(assignment, bytearray(2), [])

    theirs = ConsumerProtocolMemberAssignment.decode(bytes(wire))
    assert theirs.assignment == [("orders", [0, 2])]


def test_a_newer_subscription_decodes_as_an_older_version():
    newer = ConsumerProtocolSubscription(
        topics=["t"],
        owned_partitions=[TopicPartitions(topic="t", partitions=[1])],
        generation_id=4,
        rack_id="r",
    )
    wire = codec(ConsumerProtocolSubscription, 3).encode(newer, bytearray(), [])

    older, _ = codec(ConsumerProtocolSubscription, 1).decode(memoryview(wire))

    assert older == ConsumerProtocolSubscription(
        topics=["t"], owned_partitions=newer.owned_partitions
    )
