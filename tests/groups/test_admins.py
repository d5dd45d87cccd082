"""Group administration with every client: list, describe, alter offsets, delete, remove members."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient

from harness.clients.base import RequestError
from harness.clients.confluent import Confluent
from harness.clients.registry import with_every_client
from harness.group_members import GroupMembers, producing
from ottla.protocol.errors import ErrorCode

PARTITIONS = 4
TOPIC = "watched"
BUSY = "busy"
#: Long enough for a member to be removed before its session expires.
SESSION_MS = 30_000


@pytest.fixture(scope="module")
def members(module_broker, tmp_path_factory) -> Iterator[GroupMembers]:
    """Two static members that consume."""
    address = module_broker.address
    Confluent(address).create_topic(TOPIC, PARTITIONS)
    folder = tmp_path_factory.mktemp("members")
    with (
        GroupMembers(address, folder, BUSY, TOPIC, assignors=["range"]) as members,
        producing(address, TOPIC, PARTITIONS, per_second=100),
    ):
        for member in ("a", "b"):
            members.start(member, "confluent", instance=member, session_ms=SESSION_MS)
        members.wait_until_assigned(PARTITIONS)
        members.wait_for_commits_of_all(PARTITIONS)
        yield members
        members.stop()


@pytest.fixture
def idle(clients, name) -> str:
    """A group with committed offsets and without members."""
    clients.confluent.alter_group_offsets(name, TOPIC, {0: 10, 1: 11})
    return name


@with_every_client("list_groups", "describe_group")
def test_groups_are_listed_and_described(members, client, idle):
    assert {BUSY, idle} <= client.list_groups()
    busy = client.describe_group(BUSY)
    assert (busy.state, busy.assignor) == ("Stable", "range")
    assert {name: sorted(assigned[TOPIC]) for name, assigned in busy.assignments.items()} == {
        name: sorted(members.events.assigned[name]) for name in ("a", "b")
    }
    assert client.describe_group(idle).state == "Empty"


@with_every_client("group_offsets")
def test_committed_offsets_are_listed(members, client, idle):
    assert client.group_offsets(idle, TOPIC) == {0: 10, 1: 11}
    members.events.read()
    before = dict(members.events.committed)

    offsets = client.group_offsets(BUSY, TOPIC)

    members.events.read()
    assert all(before[partition] <= offsets[partition] for partition in before)
    assert offsets.keys() == set(range(PARTITIONS))


@with_every_client("alter_group_offsets")
def test_offsets_of_an_empty_group_can_be_altered(members, client, idle):
    client.alter_group_offsets(idle, TOPIC, {1: 5, 2: 7})

    assert client.group_offsets(idle, TOPIC) == {0: 10, 1: 5, 2: 7}
    with pytest.raises(RequestError):
        client.alter_group_offsets(BUSY, TOPIC, {0: 0})
    assert client.group_offsets(BUSY, TOPIC)[0] > 0


@with_every_client("delete_group_offsets")
def test_offsets_can_be_deleted_for_topics_without_subscribers(members, client, idle):
    client.delete_group_offsets(idle, TOPIC, [1, 2])

    assert client.group_offsets(idle, TOPIC) == {0: 10}
    with pytest.raises(RequestError) as error:
        client.delete_group_offsets(BUSY, TOPIC, [0])
    assert error.value.code == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC


@with_every_client("delete_group")
def test_empty_groups_can_be_deleted(members, client, idle):
    client.delete_group(idle)

    assert idle not in client.list_groups()
    assert client.group_offsets(idle, TOPIC) == {}
    for group, code in (
        (idle, ErrorCode.GROUP_ID_NOT_FOUND),
        (BUSY, ErrorCode.NON_EMPTY_GROUP),
    ):
        with pytest.raises(RequestError) as error:
            client.delete_group(group)
        assert error.value.code == code


@with_every_client("remove_member")
def test_a_static_member_can_be_removed(broker, members, client, name, tmp_path):
    with GroupMembers(broker.address, tmp_path, name, TOPIC, assignors=["range"]) as others:
        for member in ("c", "d"):
            others.start(member, "confluent", instance=member, session_ms=SESSION_MS)
        others.wait_until_assigned(PARTITIONS)
        others.kill("c")  # its session expires much later

        client.remove_member(name, "c")

        others.wait_until_assigned(PARTITIONS)
        assert others.events.assigned["d"] == set(range(PARTITIONS))
        with pytest.raises(RequestError) as error:
            client.remove_member(name, "c")
        assert error.value.code in (ErrorCode.UNKNOWN_MEMBER_ID, -1)


def test_groups_can_be_listed_by_state_and_type(broker, members, idle):
    admin = AdminClient({"bootstrap.servers": broker.address, "log_level": 0})

    def names(**filters):
        return {group.group_id for group in admin.list_consumer_groups(**filters).result(20).valid}

    assert BUSY in names(states={ConsumerGroupState.STABLE})
    assert idle not in names(states={ConsumerGroupState.STABLE})
    assert idle in names(states={ConsumerGroupState.EMPTY})
    assert {BUSY, idle} <= names(types={ConsumerGroupType.CLASSIC})
    assert names(types={ConsumerGroupType.CONSUMER}) == set()
