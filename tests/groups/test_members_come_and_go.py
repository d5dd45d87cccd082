"""Members join, are killed and leave under load: every record is delivered.

`TEST_ASSIGNORS=all pytest tests/groups` runs it with every assignor of every client.
"""

from __future__ import annotations

import os

import pytest

from harness.clients.confluent import Confluent
from harness.group_members import CLIENTS, GroupMembers, assignor_of, check_group, producing, settle

PARTITIONS = 6
ALL_ASSIGNORS = os.environ.get("TEST_ASSIGNORS") == "all"
#: An eager assignor of each client, and a cooperative one where it has one.
SOME = [
    ("confluent", "range"),
    ("confluent", "cooperative-sticky"),
    ("kafka-python", "range"),
    ("kafka-python", "cooperative-sticky"),
    ("aiokafka", "roundrobin"),
    ("kafkajs", "RoundRobinAssigner"),
    ("java", "range"),
    ("java", "cooperative-sticky"),
]
ALL = [
    *SOME,
    ("confluent", "roundrobin"),
    ("kafka-python", "roundrobin"),
    ("kafka-python", "sticky"),
    ("aiokafka", "range"),
    ("aiokafka", "sticky"),
    ("java", "roundrobin"),
    ("java", "sticky"),
]


@pytest.mark.parametrize(("client", "assignor"), ALL if ALL_ASSIGNORS else SOME)
def test_every_record_is_delivered_while_members_come_and_go(
    broker, tmp_path, name, client, assignor
):
    Confluent(broker.address).create_topic(name, PARTITIONS)
    with (
        GroupMembers(broker.address, tmp_path, name, name, assignors=[assignor]) as members,
        producing(broker.address, name, PARTITIONS) as load,
    ):
        members.start("a", client)
        members.start("b", client)
        members.wait_until_consuming("a", "b")
        members.start("c", client)
        members.wait_until_consuming("c")

        members.kill("a")
        members.start("d", client)
        members.wait_until_consuming("b", "c", "d")
        members.stop("b")
        members.wait_until_assigned(PARTITIONS)
        members.wait_until_consuming("c", "d")

        settle(members, load=load)
        members.stop()
        check_group(members, load)


@pytest.mark.parametrize("client", CLIENTS)
def test_a_member_that_wakes_after_its_session_cannot_move_commits_back(
    broker, tmp_path, name, client
):
    Confluent(broker.address).create_topic(name, PARTITIONS)
    with (
        GroupMembers(
            broker.address, tmp_path, name, name, assignors=[assignor_of(client)]
        ) as members,
        producing(broker.address, name, PARTITIONS) as load,
    ):
        members.start("a", client)
        members.start("b", client)
        members.wait_until_assigned(PARTITIONS)
        members.wait_until_consuming("a", "b")

        with members.paused("a"):
            # Its session expires; its partitions are consumed from its last commits.
            members.wait_for_commits_of_all(PARTITIONS, without="a")
        # It continues with records that it received before.
        members.wait_until_assigned(PARTITIONS)
        members.wait_until_consuming("a", "b")

        settle(members, load=load)
        members.stop()
        check_group(members, load)
