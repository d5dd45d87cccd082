"""A metadata store that is lost with its data is made from the brokers' copies of it.

And a static cluster becomes a replicated one: `ottla cluster restore` and `migrate`. A data
directory that is put back from an older copy counts as one that has lost records.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from harness.command import Command
from harness.daemon import Cluster, Daemon, shown_on_failure
from harness.etcd import EtcdCluster, StoreCluster
from harness.replicas import isr_sizes, replica_anomalies
from harness.waiting import wait_until
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.client.types import TopicPartition

pytestmark = pytest.mark.real_time

FEW_PARTITIONS = ("--set", "offsets.topic.num.partitions=3")
SESSION = (
    *("--set", "broker.session.timeout.ms=2000", "--set", "controller.wait.ms=500"),
    *("--set", "controlled.shutdown.max.wait.ms=500"),
    *FEW_PARTITIONS,
)
TOPIC = "orders"
PARTITIONS = 3


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path / "etcd") as started:
        yield started


@pytest.fixture
def run(tmp_path: Path) -> Command:
    return Command("127.0.0.1:1", str(tmp_path))


def produce(cluster: Cluster, first: int, count: int) -> None:
    with Producer(cluster.bootstrap) as producer:
        for number in range(first, first + count):
            producer.enqueue(TOPIC, b"%d" % number, partition=number % PARTITIONS)
        producer.flush()


def read_all(cluster: Cluster) -> list[int]:
    """Return all records of the topic, sorted."""
    with Admin(cluster.bootstrap) as admin:
        total = sum(admin.end_offsets(TOPIC).values())
    with Consumer(cluster.bootstrap, TOPIC) as consumer:
        return sorted(int(record.value or b"") for record in islice(consumer, total))


def commit(cluster: Cluster) -> None:
    with Admin(cluster.bootstrap) as admin:
        admin.alter_group_offsets("readers", {TopicPartition(TOPIC, 0): 7})


def committed(cluster: Cluster) -> int:
    with Admin(cluster.bootstrap) as admin:
        return admin.list_group_offsets("readers")[TopicPartition(TOPIC, 0)].offset


def topic_ids(cluster: Cluster) -> dict[str, object]:
    with Admin(cluster.bootstrap) as admin:
        return {topic.name: topic.id for topic in admin.list_topics(internal=True)}


def wait_until_in_sync(cluster: Cluster) -> None:
    wait_until(lambda: isr_sizes(cluster[0].address, TOPIC) == [3] * PARTITIONS, "ISRs of three")


def replace(etcd: EtcdCluster, copy: Path | None = None) -> None:
    """Lose the data of etcd; with `copy`, to have it as it was earlier."""
    (member,) = etcd
    member.kill()
    member.wipe()
    if copy is not None:
        shutil.copytree(copy, member.data)
    etcd.start()


def test_a_lost_store_is_restored(
    request: pytest.FixtureRequest, tmp_path: Path, etcd: EtcdCluster, run: Command
) -> None:
    store = ("--store", etcd.url)
    with (
        StoreCluster(tmp_path, etcd.url, 3, *SESSION) as cluster,
        shown_on_failure(request, cluster.brokers),
    ):
        directories = [str(broker.data) for broker in cluster]
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS, configs={"retention.ms": "-1"})
        produce(cluster, 0, 300)
        commit(cluster)
        ids = topic_ids(cluster)
        assert "is in use: stop the broker first" in run.fails(
            1, "cluster", "restore", *directories, *store
        )

        cluster.kill()
        replace(etcd)
        first, *others = directories
        assert "metadata of broker 0 is missing" in run.fails(
            1, "cluster", "restore", *others, *store
        )
        assert "confirm with --yes" in run.run("cluster", "restore", *directories, *store).stderr
        exported = str(tmp_path / "metadata-0.json")
        run("cluster", "export-metadata", first, exported)
        sources = [exported, *others]
        plan = run.json("cluster", "restore", *sources, *store, "--dry-run")
        assert (plan["topics"], plan["waiting"], plan["doubtful"]) == (len(ids), [], [])
        run("cluster", "restore", *sources, *store, "--yes")
        assert f"--overwrite {etcd.url.rpartition('/')[2]} removes them" in run.fails(
            1, "cluster", "restore", *sources, *store, "--yes"
        )

        cluster.start()
        wait_until_in_sync(cluster)
        assert read_all(cluster) == list(range(300))
        assert committed(cluster) == 7
        assert topic_ids(cluster) == ids
        produce(cluster, 300, 60)
        wait_until_in_sync(cluster)
        etcd[0].kill()
        snapshot = shutil.copytree(etcd[0].data, tmp_path / "snapshot")
        etcd.start()

        # Back from a snapshot that is older than what the brokers know.
        produce(cluster, 360, 60)
        with Admin(cluster.bootstrap) as admin:
            for number in range(9):
                admin.alter_topic_configs(TOPIC, {"retention.ms": f"360000{number}"})
        cluster.kill()
        replace(etcd, snapshot)
        cluster.start()
        wait_until(
            lambda: "make a new one: ottla cluster restore" in cluster[0].log.read_text(),
            "a broker that refuses the store",
        )
        cluster.kill()
        wait_until(
            lambda: not run.run("cluster", "restore", *directories, *store).stderr.count("Stop"),
            "registrations that end",
        )
        run("cluster", "restore", *directories, *store, "--overwrite", "test", "--yes")
        cluster.start()
        wait_until_in_sync(cluster)
        assert read_all(cluster) == list(range(420))
        assert retention_ms(cluster) == "3600008"
        produce(cluster, 420, 60)
        cluster.stop()
        assert replica_anomalies(cluster, TOPIC, PARTITIONS) == []


def retention_ms(cluster: Cluster) -> str | None:
    with Admin(cluster.bootstrap) as admin:
        return admin.describe_topic_configs(TOPIC)[TOPIC]["retention.ms"].value


def test_a_static_cluster_becomes_a_replicated_one(
    request: pytest.FixtureRequest, tmp_path: Path, etcd: EtcdCluster, run: Command
) -> None:
    with Cluster(tmp_path, 3, *FEW_PARTITIONS) as static, shown_on_failure(request, static.brokers):
        with Admin(static.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        produce(static, 0, 300)
        commit(static)
        ids = topic_ids(static)
        static.stop()
    replicated = StoreCluster(tmp_path, etcd.url, 3, *SESSION)
    with shown_on_failure(request, replicated.brokers):
        try:
            refused = replicated[0]
            refused.launch()
            wait_until(lambda: "run ottla cluster migrate" in refused.log.read_text(), "a refusal")
            refused.kill()
            directories = [str(broker.data) for broker in replicated]
            run("cluster", "migrate", *directories, "--store", etcd.url, "--yes")
            replicated.start()
            assert read_all(replicated) == list(range(300))
            assert (topic_ids(replicated), committed(replicated)) == (ids, 7)
            on_brokers = Command(replicated.bootstrap, str(tmp_path))
            plan = tmp_path / "plan.json"
            plan.write_text(
                on_brokers("cluster", "reassign", "plan", "--internal", "--replication-factor", "3")
            )
            on_brokers("cluster", "reassign", "execute", str(plan))
            wait_until_in_sync(replicated)
            produce(replicated, 300, 60)
            replicated[0].kill()
            assert read_all(replicated) == list(range(360))
            assert committed(replicated) == 7
            replicated[0].start()
            wait_until_in_sync(replicated)
            replicated.stop()
            assert replica_anomalies(replicated, TOPIC, PARTITIONS) == []
        finally:
            replicated.kill()


def test_an_older_copy_of_a_data_directory_is_noticed(
    request: pytest.FixtureRequest, tmp_path: Path, etcd: EtcdCluster
) -> None:
    with (
        StoreCluster(tmp_path, etcd.url, 2, *SESSION) as cluster,
        shown_on_failure(request, cluster.brokers),
    ):
        kept, old = cluster
        wait_until(lambda: len(alive(kept)) == 2, "two brokers")
        with Admin(cluster.bootstrap) as admin:
            admin.create_topic(TOPIC, partitions=PARTITIONS)
        produce(cluster, 0, 30)
        assert old.stop() == 0
        copy = shutil.copytree(old.data, tmp_path / "copy")
        old.start()
        wait_until(lambda: isr_sizes(kept.address, TOPIC) == [2] * PARTITIONS, "two in sync")
        produce(cluster, 30, 30)
        # The last one in sync, and it would lead alone.
        assert kept.stop() == old.stop() == 0
        log = old.log.read_text()
        shutil.rmtree(old.data)
        shutil.copytree(copy, old.data)
        old.start()
        assert "the data directory is an older copy" in old.log.read_text().removeprefix(log)
        kept.start()
        wait_until(lambda: isr_sizes(kept.address, TOPIC) == [2] * PARTITIONS, "two in sync")
        assert read_all(cluster) == list(range(60))
        # Once is enough.
        old.restart()
        assert old.log.read_text().count("the data directory is an older copy") == 1


def alive(broker: Daemon) -> list[int]:
    with Admin(broker.address) as admin:
        return [one.id for one in admin.describe_cluster().brokers if one.is_alive]
