"""Share groups of Java's share consumer and of the SDK's, while members and brokers are killed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.daemon import Daemon, shown_on_failure
from harness.etcd import EtcdCluster, StoreCluster
from harness.group_members import producing
from harness.share_group import ShareMembers
from harness.share_stage import SHARE_CONFIGS, a_topic_and_group
from harness.waiting import wait_until
from ottla.client import Consumer, TopicPartition
from ottla.client.blocking import Admin, Producer

pytestmark = pytest.mark.real_time

PARTITIONS = 2
DELIVERY_LIMIT = 10
FLAGS = tuple(
    word for name, value in SHARE_CONFIGS.items() for word in ("--set", f"{name}={value}")
)
MEMBERS = {
    "ottla": {"a": ("ottla", "implicit"), "b": ("ottla", "explicit"), "c": ("ottla", "explicit")},
    "java": {"a": ("java", "implicit"), "b": ("java", "explicit"), "c": ("ottla", "explicit")},
}


def prepare(address: str) -> tuple[str, str]:
    """Create a topic, and a group that reads committed records from the start."""
    return asyncio.run(
        a_topic_and_group(
            address,
            PARTITIONS,
            share_isolation_level="read_committed",
            share_delivery_count_limit=str(DELIVERY_LIMIT),
        )
    )


def fill(address: str, topic: str, transactions: int) -> None:
    """Produce transactions of ten records; each third is aborted."""
    with Producer(address, transactional_id=topic) as producer:
        for number in range(transactions):
            producer.begin_transaction()
            if number % 3 == 2:
                producer.send_many(topic, [b"aborted"] * 10)
                producer.abort_transaction()
            else:
                producer.send_many(topic, [b"%d-%d" % (number, one) for one in range(10)])
                producer.commit_transaction()


async def committed_values(address: str, topic: str) -> dict[tuple[int, int], str]:
    """Return the committed records by partition and offset."""
    values: dict[tuple[int, int], str] = {}
    async with Consumer(address, topic, isolation="read_committed") as consumer:
        while sum((await consumer.lag(*partitions_of(topic))).values()):
            for records in (await consumer.getmany(timeout=0.1)).values():
                for one in records:
                    values[one.partition, one.offset] = one.value.decode()
    return values


def partitions_of(topic: str) -> list[TopicPartition]:
    return [TopicPartition(topic, index) for index in range(PARTITIONS)]


def wait_until_done(members: ShareMembers, topic: str) -> None:
    """Wait until the group has nothing to read."""
    partitions = partitions_of(topic)
    with Admin(members.address) as admin:

        def is_done() -> bool:
            offsets = admin.list_share_group_offsets(members.group)
            return all(tp in offsets and offsets[tp].lag == 0 for tp in partitions)

        members.wait("a lag of 0", is_done)


@pytest.mark.parametrize("clients", MEMBERS)
def test_records_are_processed_once_while_members_and_the_broker_are_killed(
    tmp_path: Path, request: pytest.FixtureRequest, clients: str
) -> None:
    with Daemon(tmp_path, *FLAGS) as broker, shown_on_failure(request, [broker]):

        def restart(_group: str) -> None:
            broker.kill()
            broker.start()

        kill_and_check(broker.address, tmp_path / "members", clients, "abc", restart)


@pytest.mark.parametrize("clients", MEMBERS)
def test_records_are_processed_once_through_failovers(
    tmp_path: Path, request: pytest.FixtureRequest, clients: str
) -> None:
    """The coordinator of the group and leader of some partitions is killed, and comes back."""
    configs = (
        *("--set", "broker.session.timeout.ms=2000", "--set", "controller.wait.ms=1000"),
        *("--set", "offsets.topic.num.partitions=1", *FLAGS),
    )
    with (
        EtcdCluster(tmp_path / "etcd") as etcd,
        StoreCluster(tmp_path, etcd.url, 3, *configs) as cluster,
        shown_on_failure(request, cluster.brokers),
    ):

        def fail_over(group: str) -> None:
            with Admin(cluster.bootstrap) as admin:
                coordinator = admin.describe_share_groups(group)[group].coordinator
                cluster[coordinator].kill()
                wait_until(lambda: not is_alive(admin, coordinator), "fenced")
            cluster[coordinator].start()

        kill_and_check(cluster.bootstrap, tmp_path / "members", clients, "b", fail_over)


def is_alive(admin: Admin, broker_id: int) -> bool:
    return any(one.is_alive for one in admin.describe_cluster().brokers if one.id == broker_id)


def kill_and_check(
    address: str, folder: Path, clients: str, victims: str, kill_broker: Callable[[str], None]
) -> None:
    topic, group = prepare(address)
    fill(address, topic, 30)
    with (
        ShareMembers(address, folder, group, topic) as members,
        producing(address, topic, PARTITIONS) as load,
    ):
        for name, (client, mode) in MEMBERS[clients].items():
            members.join(name, client, mode)
        # Its records return when their locks end.
        members.join("stalled", clients, "stalled")
        members.wait_until_consuming()
        for name in victims:
            members.kill(name)
            members.join(name, *MEMBERS[clients][name])
            kill_broker(group)
            members.wait_until_consuming("a", "b", "c")
        load.stop()
        wait_until_done(members, topic)
        members.stop()
        members.check(asyncio.run(committed_values(address, topic)), DELIVERY_LIMIT)
