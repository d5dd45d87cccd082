"""Three brokers and a real etcd: leaders and followers are killed, paused and cut off under load.

Every acked record must be there once and in order, for all readers, and the replicas must be equal
byte by byte at the end. The states in the store must follow from one another.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.checker import check
from harness.daemon import Daemon, shown_on_failure
from harness.etcd import EtcdCluster, StoreCluster
from harness.load import Load, load_on, read_everything, silenced_client_logs
from harness.replicas import isr_sizes, replica_anomalies, state_anomalies
from harness.waiting import wait_until
from ottla.client.blocking.admin import Admin

pytestmark = pytest.mark.real_time

PARTITIONS = 3
#: The shortest lease; followers lag after less than that.
LEASE_SECONDS = 2.0
CONFIGS = (
    *("--set", "broker.session.timeout.ms=2000", "--set", "controller.wait.ms=1000"),
    *("--set", "replica.lag.time.max.ms=1500", "--set", "offsets.topic.num.partitions=3"),
)


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdCluster) -> Iterator[StoreCluster]:
    with StoreCluster(tmp_path_factory.mktemp("brokers"), etcd.url, 3, *CONFIGS) as started:
        yield started


@pytest.fixture
def cluster(request: pytest.FixtureRequest, brokers: StoreCluster) -> Iterator[StoreCluster]:
    with shown_on_failure(request, brokers.brokers), silenced_client_logs():
        for broker in brokers:
            if not broker.is_running:
                broker.start()
        yield brokers


@contextmanager
def replicated_load(cluster: StoreCluster, etcd: EtcdCluster, topic: str) -> Iterator[Load]:
    """Run load on a new topic; at the end all brokers are up, and everything is checked."""
    with Admin(cluster.bootstrap) as admin:
        wait_until(lambda: len(admin.describe_cluster().brokers) == 3, "three brokers")
        admin.create_topic(topic, partitions=PARTITIONS, replication_factor=3)
    with load_on(cluster.bootstrap, topic, PARTITIONS, per_second=300) as load:
        load.wait_for_acks()
        yield load
        load.wait_for_acks()
    address = next(broker.address for broker in cluster if broker.is_running)
    wait_until(lambda: isr_sizes(address, topic) == [3] * PARTITIONS, "all replicas in sync")
    read_everything(cluster.bootstrap, topic, PARTITIONS, load.history)
    assert not check(load.history)
    assert not load.problems
    wait_until(lambda: not replica_anomalies(cluster, topic, PARTITIONS), "equal replicas")
    assert not asyncio.run(state_anomalies(etcd))


def leader_of(cluster: StoreCluster, topic: str, partition: int = 0) -> Daemon:
    address = next(broker.address for broker in cluster if broker.is_running)
    with Admin(address) as admin:
        described = admin.describe_topics(topic)[topic].partitions[partition]
        assert described.leader is not None
        return cluster[described.leader]


def wait_for_other_leader(cluster: StoreCluster, topic: str, old: Daemon) -> None:
    old_id = cluster.brokers.index(old)
    address = next(one.address for one in cluster if one.is_running and one is not old)

    def has_moved() -> bool:
        with Admin(address) as admin:
            partitions = admin.describe_topics(topic)[topic].partitions
            return all(one.leader not in (None, -1, old_id) for one in partitions)

    wait_until(has_moved, "another leader")


def test_a_leader_is_killed(cluster: StoreCluster, etcd: EtcdCluster) -> None:
    with replicated_load(cluster, etcd, "killed") as load:
        leader = leader_of(cluster, "killed")
        killed_at = time.monotonic()
        leader.kill()
        wait_for_other_leader(cluster, "killed", leader)
        print(f"another leader after {time.monotonic() - killed_at:.2f} s")
        load.wait_for_acks()
        leader.start()


def test_a_leader_is_stopped(cluster: StoreCluster, etcd: EtcdCluster) -> None:
    with replicated_load(cluster, etcd, "stopped") as load:
        leader = leader_of(cluster, "stopped")
        assert leader.stop() == 0
        load.wait_for_acks()
        assert "handed over all leaderships" in leader.log.read_text()
        leader.start()
    print(f"longest wait {load.longest_wait():.2f} s")
    assert not load.errors


def test_a_follower_is_killed_and_returns(cluster: StoreCluster, etcd: EtcdCluster) -> None:
    with replicated_load(cluster, etcd, "follower") as load:
        leader = leader_of(cluster, "follower")
        follower = next(broker for broker in cluster if broker is not leader)
        follower.kill()
        # acks=all waits until the follower has left the ISR, and goes on with two.
        load.wait_for_acks()
        wait_until(lambda: max(isr_sizes(leader.address, "follower")) == 2, "a smaller ISR")
        follower.start()


def test_a_paused_leader_is_replaced_and_wakes(cluster: StoreCluster, etcd: EtcdCluster) -> None:
    with replicated_load(cluster, etcd, "paused") as load:
        leader = leader_of(cluster, "paused")
        leader.pause()
        wait_for_other_leader(cluster, "paused", leader)
        load.wait_for_acks()
        leader.resume()


def test_a_short_pause_elects_nobody(cluster: StoreCluster, etcd: EtcdCluster) -> None:
    with replicated_load(cluster, etcd, "short") as load:
        leader = leader_of(cluster, "short")
        leader.pause()
        time.sleep(LEASE_SECONDS / 4)
        leader.resume()
        load.wait_for_acks()
        assert leader_of(cluster, "short") is leader


def test_leader_after_leader_is_killed(cluster: StoreCluster, etcd: EtcdCluster) -> None:
    with replicated_load(cluster, etcd, "many") as load:
        for _ in range(3):
            leader = leader_of(cluster, "many")
            leader.kill()
            wait_for_other_leader(cluster, "many", leader)
            load.wait_for_acks()
            leader.start()


def test_a_broker_whose_id_is_in_use_is_refused(
    cluster: StoreCluster, etcd: EtcdCluster, tmp_path: Path
) -> None:
    rival = Daemon(tmp_path / "rival", "--id", "0", "--set", f"cluster.store={etcd.url}", *CONFIGS)
    rival.launch()
    try:
        assert rival.wait() != 0
        assert "in use by another process" in rival.log.read_text()
    finally:
        rival.kill()
    assert cluster[0].is_running
