"""Groups of the consumer protocol (KIP-848), with Java and librdkafka.

`TEST_ASSIGNORS=all pytest tests/groups` runs everything with both.
"""

from __future__ import annotations

import asyncio
import os

import pytest

from harness.clients.confluent import Confluent
from harness.daemon import Daemon, shown_on_failure
from harness.etcd import EtcdCluster, StoreCluster
from harness.group_members import BROKER_FLAGS, GroupMembers, check_group, producing, settle
from harness.waiting import wait_until
from harness.wire import connect
from ottla.client.blocking import Admin
from ottla.protocol.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.errors import ErrorCode

PARTITIONS = 6
GROUP_RESOURCE = 32
ALL = os.environ.get("TEST_ASSIGNORS") == "all"
CLIENTS = ("confluent", "java")
#: Where the broker's part is the same for both.
SOME_CLIENTS = CLIENTS if ALL else ("confluent",)
UPGRADES = [("confluent", "range"), ("java", "cooperative-sticky")]
ALL_UPGRADES = [*UPGRADES, ("confluent", "cooperative-sticky"), ("java", "range")]


async def set_session_timeout(address: str, group: str, timeout_ms: int) -> None:
    """Alter the config of a group."""
    config = AlterableConfig(
        name="consumer.session.timeout.ms", config_operation=0, value=str(timeout_ms)
    )
    resource = AlterConfigsResource(
        resource_type=GROUP_RESOURCE, resource_name=group, configs=[config]
    )
    async with connect(address) as client:
        response = await client.request(IncrementalAlterConfigsRequest(resources=[resource]))
    assert response.responses[0].error_code == ErrorCode.NONE


@pytest.mark.parametrize("client", CLIENTS)
def test_every_record_is_delivered_while_members_come_and_go(broker, tmp_path, name, client):
    Confluent(broker.address).create_topic(name, PARTITIONS)
    with (
        GroupMembers(broker.address, tmp_path, name, name, assignors=["range"]) as members,
        producing(broker.address, name, PARTITIONS) as load,
    ):
        members.start("a", client, protocol="consumer")
        members.start("b", client, protocol="consumer", regex=f"^{name}$")
        members.wait_until_assigned(PARTITIONS)
        members.wait_until_consuming("a", "b")
        members.start("c", client, protocol="consumer")
        members.wait_until_consuming("a", "b", "c")

        members.kill("a")
        members.wait_until_assigned(PARTITIONS)
        members.stop("b")
        members.wait_until_assigned(PARTITIONS)
        assert members.events.assigned["c"] == set(range(PARTITIONS))

        settle(members, load=load)
        members.stop()
        check_group(members, load)


@pytest.mark.parametrize("client", SOME_CLIENTS)
def test_a_static_member_that_restarts_causes_no_rebalance(broker, tmp_path, name, client):
    Confluent(broker.address).create_topic(name, PARTITIONS)
    with (
        GroupMembers(broker.address, tmp_path, name, name, assignors=["range"]) as members,
        producing(broker.address, name, PARTITIONS) as load,
    ):
        # Longer than any client takes to restart.
        asyncio.run(set_session_timeout(broker.address, name, 30_000))
        for member in ("a", "b"):
            members.start(member, client, instance=member, protocol="consumer")
        members.wait_until_assigned(PARTITIONS)
        members.wait_until_consuming("a", "b")
        assigned = {member: set(members.events.assigned[member]) for member in ("a", "b")}
        before = len(members.events.lines)

        members.stop("a")
        members.start("a", client, instance="a", protocol="consumer")
        members.wait_until_consuming("a", "b")

        assert members.events.assigned["a"] == assigned["a"]
        seen = {
            event for who, event, words in members.events.lines[before:] if who == "b" and words
        }
        assert not seen & {"assigned", "revoked", "lost"}
        settle(members, load=load)
        members.stop()
        check_group(members, load)


@pytest.mark.parametrize(("client", "assignor"), ALL_UPGRADES if ALL else UPGRADES)
def test_a_live_group_is_upgraded_and_downgraded(broker, tmp_path, name, client, assignor):
    """Members restart one by one, first with the consumer protocol, then without it."""
    Confluent(broker.address).create_topic(name, PARTITIONS)
    with (
        GroupMembers(broker.address, tmp_path, name, name, assignors=[assignor]) as members,
        producing(broker.address, name, PARTITIONS) as load,
    ):
        for member in ("a", "b"):
            members.start(member, client)
        members.wait_until_assigned(PARTITIONS)
        for protocol in ("consumer", "classic"):
            for member in ("a", "b"):
                members.stop(member)
                members.start(member, client, protocol=protocol)
                members.wait_until_assigned(PARTITIONS)
                members.wait_until_consuming("a", "b")

        settle(members, load=load)
        members.stop()
        check_group(members, load)


@pytest.mark.parametrize("client", SOME_CLIENTS)
def test_the_coordinator_is_killed_in_each_phase_of_a_rebalance(tmp_path, request, client):
    with Daemon(tmp_path, *BROKER_FLAGS) as broker, shown_on_failure(request, [broker]):
        Confluent(broker.address).create_topic("t", PARTITIONS)
        with (
            GroupMembers(broker.address, tmp_path, "g", "t", assignors=["range"]) as members,
            producing(broker.address, "t", PARTITIONS) as load,
        ):
            # When the first members have just joined,
            members.start("a", client, protocol="consumer")
            members.wait("a joins", lambda: "joined" in broker.log_tail())
            broker.kill()
            broker.start()
            members.start("b", client, protocol="consumer")
            members.wait_until_assigned(PARTITIONS)
            # when one has been told to revoke,
            revoked = len(members.events.lines)
            members.start("c", client, protocol="consumer")
            members.wait(
                "a revocation",
                lambda: any(
                    event == "revoked" for _who, event, _ in members.events.lines[revoked:]
                ),
            )
            broker.kill()
            broker.start()
            members.wait_until_assigned(PARTITIONS)
            # and when the group is stable.
            broker.kill()
            broker.start()
            members.wait_until_consuming("a", "b", "c")
            members.wait_until_assigned(PARTITIONS)

            settle(members, load=load)
            members.stop()
            check_group(members, load)


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_fifty_members_of_which_half_are_killed(broker, tmp_path, name, protocol):
    partitions = 60
    Confluent(broker.address).create_topic(name, partitions)
    with (
        GroupMembers(broker.address, tmp_path, name, name, assignors=["range"]) as members,
        producing(broker.address, name, partitions) as load,
    ):
        members.start("a", "confluent", protocol=protocol, count=25)
        members.start("b", "confluent", protocol=protocol, count=25)
        members.wait_until_assigned(partitions)
        members.kill("a")
        members.wait_until_assigned(partitions)
        settle(members, load=load)
        members.stop()
        check_group(members, load)


def test_commits_do_not_go_back_when_the_coordinator_fails_over(tmp_path, request):
    """It is killed while members consume, and while another one joins."""
    configs = (
        *("--set", "broker.session.timeout.ms=2000", "--set", "controller.wait.ms=1000"),
        *("--set", "offsets.topic.num.partitions=1", *BROKER_FLAGS),
    )
    with (
        EtcdCluster(tmp_path / "etcd") as etcd,
        StoreCluster(tmp_path, etcd.url, 3, *configs) as cluster,
        shown_on_failure(request, cluster.brokers),
    ):
        address = cluster.bootstrap
        with Admin(address) as admin:
            admin.create_topic("t", partitions=PARTITIONS)

            def fail_over() -> None:
                coordinator = admin.describe_groups("g")["g"].coordinator
                cluster[coordinator].kill()
                wait_until(
                    lambda: all(
                        one.id != coordinator or not one.is_alive
                        for one in admin.describe_cluster().brokers
                    ),
                    "fenced",
                )
                cluster[coordinator].start()

            with (
                GroupMembers(address, tmp_path, "g", "t", assignors=["range"]) as members,
                producing(address, "t", PARTITIONS) as load,
            ):
                for member in ("a", "b"):
                    members.start(member, "confluent", protocol="consumer")
                members.wait_until_assigned(PARTITIONS)
                members.wait_until_consuming()
                fail_over()
                members.wait_until_consuming()
                members.start("c", "confluent", protocol="consumer")
                fail_over()
                members.wait_until_assigned(PARTITIONS)
                members.wait_until_consuming()
                settle(members, load=load)
                members.stop()
                check_group(members, load)
