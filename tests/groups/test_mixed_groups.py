"""Different clients in one group, with an assignor that all of them have."""

from __future__ import annotations

import pytest

from harness.clients.confluent import Confluent
from harness.group_members import GroupMembers, check_group, missing, producing, settle

PARTITIONS = 8


@pytest.mark.parametrize(
    ("assignor", "clients"),
    [
        ("range", ["confluent", "kafka-python", "aiokafka", "java"]),
        # kafkajs has it under another name; member.js renames it.
        ("roundrobin", ["aiokafka", "confluent", "kafka-python", "kafkajs"]),
        ("cooperative-sticky", ["kafka-python", "confluent", "java"]),
    ],
)
def test_different_clients_share_a_group(broker, tmp_path, name, assignor, clients):
    Confluent(broker.address).create_topic(name, PARTITIONS)
    installed = [client for client in clients if missing(client) is None]
    with (
        GroupMembers(broker.address, tmp_path, name, name, assignors=[assignor]) as members,
        producing(broker.address, name, PARTITIONS) as load,
    ):
        for client in installed:
            members.start(client, client)
        members.wait_until_assigned(PARTITIONS)
        members.wait_until_consuming()

        # The first member leads; afterwards another client has to.
        members.kill(installed[0])
        members.wait_until_assigned(PARTITIONS)
        members.start("again", installed[0])
        members.wait_until_consuming()

        settle(members, load=load)
        members.stop()
        check_group(members, load)


def test_a_member_without_a_common_assignor_is_rejected_without_a_rebalance(broker, tmp_path, name):
    Confluent(broker.address).create_topic(name, PARTITIONS)
    with (
        GroupMembers(broker.address, tmp_path, name, name, assignors=["range"]) as members,
        producing(broker.address, name, PARTITIONS) as load,
    ):
        # Long sessions: nobody may expire while another process starts.
        members.start("a", "confluent", session_ms=15_000)
        members.start("b", "kafka-python", session_ms=15_000)
        members.wait_until_assigned(PARTITIONS)
        before = len(members.events.lines)

        with GroupMembers(
            broker.address, tmp_path / "other", name, name, assignors=["roundrobin"]
        ) as other:
            other.start("c", "aiokafka")
            other.wait("an error", lambda: "InconsistentGroupProtocol" in other.log_of("c"))
            assert not other.events.received

        members.wait_until_consuming("a", "b")
        moved = [line for line in members.events.lines[before:] if line[1] == "revoked"]
        assert moved == []
        settle(members, load=load)
        members.stop()
        check_group(members, load)
