"""Static members: a restart causes no rebalance and no new generation."""

from __future__ import annotations

import pytest

from harness.clients.confluent import Confluent
from harness.group_members import GroupMembers, check_group, producing, settle, stored_group

PARTITIONS = 4
#: Longer than any client takes to restart.
SESSION_MS = 15_000


@pytest.mark.parametrize("client", ["confluent", "kafka-python", "aiokafka", "java"])
def test_a_static_member_that_restarts_causes_no_rebalance(broker, tmp_path, name, client):
    Confluent(broker.address).create_topic(name, PARTITIONS)
    with (
        GroupMembers(broker.address, tmp_path, name, name, assignors=["range"]) as members,
        producing(broker.address, name, PARTITIONS) as load,
    ):
        for member in ("a", "b"):
            members.start(member, client, instance=member, session_ms=SESSION_MS)
        members.wait_until_assigned(PARTITIONS)
        members.wait_until_consuming("a", "b")
        assignments = {member: set(members.events.assigned[member]) for member in ("a", "b")}
        generation = stored_group(broker.address, name).groups[-1].generation

        # One of them leads; each is killed, and stopped.
        for member, other in (("a", "b"), ("b", "a")):
            for end in (members.kill, members.stop):
                before = len(members.events.lines)
                end(member)
                members.start(member, client, instance=member, session_ms=SESSION_MS)
                members.wait_until_consuming(member, other)
                assert members.events.assigned[member] == assignments[member]
                seen = [event for who, event, _ in members.events.lines[before:] if who == other]
                assert {"assigned", "revoked", "lost"}.isdisjoint(seen)

        stored = stored_group(broker.address, name)
        assert stored.groups[-1].generation == generation
        settle(members, load=load)
        members.stop()
        check_group(members, load)


def test_a_static_member_that_stays_away_expires_with_its_session(broker, tmp_path, name):
    Confluent(broker.address).create_topic(name, PARTITIONS)
    with (
        GroupMembers(broker.address, tmp_path, name, name, assignors=["range"]) as members,
        producing(broker.address, name, PARTITIONS) as load,
    ):
        for member in ("a", "b"):
            members.start(member, "confluent", instance=member)
        members.wait_until_assigned(PARTITIONS)
        members.stop("b")
        members.wait_until_assigned(PARTITIONS)
        assert members.events.assigned["a"] == set(range(PARTITIONS))

        settle(members, load=load)
        members.stop()
        check_group(members, load)
