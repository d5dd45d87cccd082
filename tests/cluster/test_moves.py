"""Partitions are moved under load, with kills: four brokers and a real etcd.

By `ottla cluster reassign`, `elect` and `drain`, and by Apache Kafka's own tools. Every acked
record must be there once and in order, the replicas equal, and nothing left on the old brokers.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chaos.store_view import StoreView
from harness.apache_kafka import ApacheKafka
from harness.checker import check
from harness.clients.agents import JAVA
from harness.clients.base import kafka_libs
from harness.command import Command
from harness.daemon import shown_on_failure
from harness.etcd import EtcdCluster, StoreCluster
from harness.load import Load, load_on, read_everything, silenced_client_logs
from harness.replicas import log_bytes
from harness.waiting import wait_until
from ottla.client import TopicPartition
from ottla.client.admin import NewTopic
from ottla.client.blocking.admin import Admin

pytestmark = pytest.mark.real_time

PARTITIONS = 2
BROKERS = 4
CONFIGS = (
    *("--set", "broker.session.timeout.ms=2000", "--set", "controller.wait.ms=1000"),
    *("--set", "replica.lag.time.max.ms=1500", "--set", "offsets.topic.num.partitions=1"),
)
TOOL_SECONDS = 120


@pytest.fixture(scope="module")
def etcd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdCluster]:
    with EtcdCluster(tmp_path_factory.mktemp("etcd")) as started:
        yield started


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory, etcd: EtcdCluster) -> Iterator[StoreCluster]:
    folder = tmp_path_factory.mktemp("brokers")
    with StoreCluster(folder, etcd.url, BROKERS, *CONFIGS) as started:
        yield started


@pytest.fixture
def cluster(request: pytest.FixtureRequest, brokers: StoreCluster) -> Iterator[StoreCluster]:
    with shown_on_failure(request, brokers.brokers), silenced_client_logs():
        for broker in brokers:
            if not broker.is_running:
                broker.start()
        with Admin(brokers.bootstrap) as admin:
            wait_until(
                lambda: sum(one.is_alive for one in admin.describe_cluster().brokers) == BROKERS,
                "four brokers",
            )
        yield brokers


@pytest.fixture
def run(cluster: StoreCluster, tmp_path: Path) -> Command:
    return Command(cluster.bootstrap, str(tmp_path))


@contextmanager
def load_on_brokers(
    cluster: StoreCluster, etcd: EtcdCluster, topic: str, replicas: list[int]
) -> Iterator[Load]:
    """Run load on a topic with these replicas; check everything at the end."""
    create(cluster, topic, [replicas, replicas[::-1]])
    with load_on(cluster.bootstrap, topic, PARTITIONS, per_second=200) as load:
        load.wait_for_acks()
        yield load
        load.wait_for_acks()
    wait_until(lambda: all_in_sync(cluster, topic), "all replicas in sync")
    read_everything(cluster.bootstrap, topic, PARTITIONS, load.history)
    assert not check(load.history)
    assert not load.problems
    wait_until(lambda: has_equal_replicas(cluster, topic), "equal replicas")
    # Another test elects a leader that is not in sync, on purpose.
    assert not [one for one in StoreView(etcd).anomalies() if "is_recovering=True" not in one]


def create(cluster: StoreCluster, topic: str, assignment: list[list[int]]) -> None:
    # With two replicas, one has to suffice while the other is down.
    configs = {"min.insync.replicas": "1"}
    with Admin(cluster.bootstrap) as admin:
        admin.create_topics(NewTopic(topic, assignment=assignment, configs=configs))


def replicas_of(cluster: StoreCluster, topic: str) -> list[tuple[int, ...]]:
    address = next(broker.address for broker in cluster if broker.is_running)
    with Admin(address) as admin:
        return [one.replicas for one in admin.describe_topics(topic)[topic].partitions]


def is_offline(address: str, topic: str) -> bool:
    with Admin(address) as admin:
        return admin.describe_topics(topic)[topic].partitions[0].is_offline


def all_in_sync(cluster: StoreCluster, topic: str) -> bool:
    with Admin(cluster.bootstrap) as admin:
        partitions = admin.describe_topics(topic)[topic].partitions
        return all(set(one.isr) == set(one.replicas) for one in partitions)


def has_equal_replicas(cluster: StoreCluster, topic: str) -> bool:
    """Whether the replicas have the same bytes, and no other broker has any."""
    for index, replicas in enumerate(replicas_of(cluster, topic)):
        folders = {number: one.data / f"{topic}-{index}" for number, one in enumerate(cluster)}
        if {number for number, folder in folders.items() if folder.exists()} != set(replicas):
            return False
        logs = {log_bytes(folders[number]) for number in replicas}
        if len(logs) != 1 or logs == {b""}:
            return False
    return True


def plan_file(folder: Path, topic: str, replicas: list[list[int]]) -> str:
    partitions = [
        {"topic": topic, "partition": index, "replicas": some}
        for index, some in enumerate(replicas)
    ]
    path = folder / "plan.json"
    path.write_text(json.dumps({"version": 1, "partitions": partitions}))
    return str(path)


def test_partitions_move_under_load_with_a_kill(
    cluster: StoreCluster, etcd: EtcdCluster, run: Command, tmp_path: Path
) -> None:
    with load_on_brokers(cluster, etcd, "moving", [0, 1]) as load:
        plan = plan_file(tmp_path, "moving", [[2, 3], [3, 2]])
        throttled = ("--throttle", "80000000", "--no-wait")
        text = run("cluster", "reassign", "execute", plan, *throttled)
        assert text == "moving 2 partitions; watch: ottla cluster reassign list\n"
        assert throttles(cluster, "moving") == {"80000000", "0:0,0:1,1:1,1:0", "0:2,0:3,1:3,1:2"}
        cluster[2].kill()
        load.wait_for_acks()
        cluster[2].start()
        wait_until(lambda: run.json("cluster", "reassign", "list") == [], "complete")
        assert {one["state"] for one in run.json("cluster", "reassign", "verify", plan)} == {
            "complete"
        }
        load.wait_for_acks()
        back = plan_file(tmp_path, "moving", [[0, 1], [1, 0]])
        assert run.run("cluster", "reassign", "verify", back).exit_code == 1
        cluster[3].kill()
        cluster[3].start()
        executed = run("cluster", "reassign", "execute", back, "--throttle", "90000000")
        assert executed == "moved 2 partitions\n"
        assert throttles(cluster, "moving") == set()
    assert replicas_of(cluster, "moving") == [(0, 1), (1, 0)]


def test_the_controller_is_killed_while_partitions_move(
    cluster: StoreCluster, etcd: EtcdCluster, run: Command, tmp_path: Path
) -> None:
    controller = cluster.brokers.index(cluster.controller())
    first, second, third = (number for number in range(BROKERS) if number != controller)
    with load_on_brokers(cluster, etcd, "controlled", [controller, first]) as load:
        plan = plan_file(tmp_path, "controlled", [[second, third], [third, second]])
        run("cluster", "reassign", "execute", plan, "--no-wait")
        cluster[controller].kill()
        others = Command(cluster[first].address, str(tmp_path))
        wait_until(
            lambda: others.run("cluster", "reassign", "verify", plan).exit_code == 0, "complete"
        )
        load.wait_for_acks()
        cluster[controller].start()


def test_a_move_is_cancelled(cluster: StoreCluster, tmp_path: Path) -> None:
    controller = cluster.brokers.index(cluster.controller())
    run = Command(cluster[controller].address, str(tmp_path))
    first, second, new = (number for number in range(BROKERS) if number != controller)
    create(cluster, "cancelled", [[first, second], [second, first]])
    plan = plan_file(tmp_path, "cancelled", [[first, new], [new, second]])
    # It cannot copy anything.
    cluster[new].pause()
    try:
        run("cluster", "reassign", "execute", plan, "--no-wait")
        assert run("cluster", "reassign", "cancel", plan) == "cancelled 2 reassignments\n"
    finally:
        cluster[new].resume()
    assert [set(some) for some in replicas_of(cluster, "cancelled")] == [{first, second}] * 2
    wait_until(lambda: all_in_sync(cluster, "cancelled"), "in sync")
    assert run("cluster", "reassign", "cancel", "--all") == "cancelled 0 reassignments\n"


def test_a_factor_is_raised_by_a_plan(cluster: StoreCluster, run: Command, tmp_path: Path) -> None:
    create(cluster, "raised", [[0], [1]])
    plan = tmp_path / "plan.json"
    plan.write_text(run("cluster", "reassign", "plan", "raised", "--replication-factor", "3"))
    assert run("cluster", "reassign", "execute", str(plan)) == "moved 2 partitions\n"
    assert [len(some) for some in replicas_of(cluster, "raised")] == [3, 3]
    wait_until(lambda: all_in_sync(cluster, "raised"), "in sync")


def test_leaders_return_on_request(cluster: StoreCluster, run: Command) -> None:
    create(cluster, "elected", [[0, 1], [1, 0]])
    assert cluster[0].stop() == 0
    assert "is not alive" in Command(
        cluster[1].address, run.environ["XDG_CONFIG_HOME"] or ""
    ).fails(7, "cluster", "elect", "elected:0")
    cluster[0].start()
    wait_until(lambda: all_in_sync(cluster, "elected"), "in sync")
    assert run("cluster", "elect", "elected") == "elected:0 is led by broker 0\n"
    assert run("cluster", "elect", "elected:0") == "no election was needed\n"


def test_an_unclean_election_on_request(cluster: StoreCluster, run: Command) -> None:
    create(cluster, "unclean", [[0, 1]])
    with Admin(cluster.bootstrap) as admin:
        cluster[1].kill()
        wait_until(
            lambda: admin.describe_topics("unclean")["unclean"].partitions[0].isr == (0,), "shrunk"
        )
        run_on_2 = Command(cluster[2].address, run.environ["XDG_CONFIG_HOME"] or "")
        cluster[0].kill()
        wait_until(lambda: is_offline(cluster[2].address, "unclean"), "no leader")
        run_on_2.fails(7, "cluster", "elect", "unclean:0", "--unclean", "--yes")
        cluster[1].start()
        wait_until(
            lambda: (
                run_on_2.run("cluster", "elect", "unclean", "--unclean", "--yes").stdout
                == "unclean:0 is led by broker 1\n"
            ),
            "another leader",
        )
    assert "Usage" not in run_on_2.fails(2, "cluster", "elect", "--unclean", "--yes")


def test_a_broker_is_drained(cluster: StoreCluster, run: Command) -> None:
    create(cluster, "drained", [[3, 0], [0, 3]])
    plan = json.loads(run("cluster", "drain", "3", "--dry-run"))
    assert {one["topic"] for one in plan["partitions"]} >= {"drained"}
    assert run("cluster", "drain", "3", "--yes").startswith("moved ")
    rows = run.json("cluster", "describe")["brokers"]
    assert [(one["replicas"], one["partitions_led"]) for one in rows if one["broker"] == 3] == [
        (0, 0)
    ]
    assert run("cluster", "drain", "3", "--yes") == "nothing to move\n"
    assert "Broker 9 is not alive" in run.fails(5, "cluster", "drain", "9", "--yes")


def test_the_members_of_the_store_are_described(
    cluster: StoreCluster, etcd: EtcdCluster, run: Command
) -> None:
    found = run.json("cluster", "describe")
    assert found["metadata_store"] == etcd.url
    (member,) = found["store_members"]
    assert (member["address"], member["state"]) == (etcd[0].address, "healthy")
    assert member["is_leader"]
    assert member["version"].startswith("3.")
    assert member["db_size_bytes"] > 0
    assert etcd[0].address in run("cluster", "describe")


def throttles(cluster: StoreCluster, topic: str) -> set[str | None]:
    """Return the rates and lists of throttles that are set."""
    with Admin(cluster.bootstrap) as admin:
        configs = list(admin.describe_topic_configs(topic)[topic].values())
        for of_broker in admin.describe_broker_configs(*range(BROKERS)).values():
            configs += of_broker.values()
    return {
        config.value
        for config in configs
        if "replication.throttled" in config.name and not config.is_default
    }


@pytest.fixture
def kafka_tool(cluster: StoreCluster) -> Callable[..., str]:
    if reason := ApacheKafka.missing():
        pytest.skip(reason)

    def call(tool: str, *arguments: str) -> str:
        done = subprocess.run(
            [
                *(*JAVA, "-Xmx256m", "-cp", f"{kafka_libs()}/*", tool),
                *("--bootstrap-server", cluster.bootstrap, *arguments),
            ],
            capture_output=True,
            text=True,
            timeout=TOOL_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return call


def test_kafkas_own_tools(
    cluster: StoreCluster, kafka_tool: Callable[..., str], run: Command, tmp_path: Path
) -> None:
    reassign = "org.apache.kafka.tools.reassign.ReassignPartitionsCommand"
    create(cluster, "tools", [[0, 1], [1, 0]])
    topics = tmp_path / "topics.json"
    topics.write_text(json.dumps({"version": 1, "topics": [{"topic": "tools"}]}))
    generated = kafka_tool(
        reassign, "--generate", "--topics-to-move-json-file", str(topics), "--broker-list", "2,3"
    )
    proposed = generated.rpartition("Proposed partition reassignment configuration\n")[2]
    plan = tmp_path / "plan.json"
    plan.write_text(proposed)
    kafka_tool(
        *(reassign, "--execute", "--reassignment-json-file", str(plan)),
        *("--throttle", "50000000"),
    )
    assert throttles(cluster, "tools") == {"50000000", "0:0,0:1,1:0,1:1", "0:2,0:3,1:2,1:3"}
    verify = ("cluster", "reassign", "verify", str(plan), "--preserve-throttles")
    wait_until(lambda: run.run(*verify).exit_code == 0, "moved")
    verified = kafka_tool(reassign, "--verify", "--reassignment-json-file", str(plan))
    assert throttles(cluster, "tools") == set()
    assert verified.count("is completed") == 2
    assert "No partition reassignments found" in kafka_tool(reassign, "--list")
    with Admin(cluster.bootstrap) as admin:
        leader = admin.describe_topics("tools")["tools"].partitions[0].replicas[0]
    assert cluster[leader].stop() == 0
    cluster[leader].start()
    wait_until(lambda: all_in_sync(cluster, "tools"), "in sync")
    elected = kafka_tool(
        "org.apache.kafka.tools.LeaderElectionCommand",
        *("--election-type", "preferred", "--topic", "tools", "--partition", "0"),
    )
    assert "Successfully completed leader election (PREFERRED)" in elected
    with Admin(cluster.bootstrap) as admin:
        assert admin.describe_topics("tools")["tools"].partitions[0].leader == leader
        assert TopicPartition("tools", 0) not in admin.list_partition_reassignments()
