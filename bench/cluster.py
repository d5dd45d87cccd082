"""A cluster of three brokers compared with a single broker, on one machine.

    python bench/cluster.py [--quick] [--dir DIR] [--only PART…]

Needs Linux (/proc) and a confluent-kafka with Producer.produce_batch.

- throughput: produce, then consume, through librdkafka, which sends each batch to the leader of its
  partition. Brokers and client share the cores: with few cores, three brokers are not faster than
  one, and the figures show their overhead. CPU is the sum of all brokers.
- create: a CreateTopics request is sent to the controller or to another broker, while every broker
  is polled for the topic until it has leaders for all partitions. The response is sent when all
  live brokers have the topic, so that a client that received it finds the topic on any broker.
- metadata: requests for all topics and for one topic, over a connection of its own. The delay of
  another client is the time of a small request sent right behind a large one: the broker handles
  one request at a time. The time of librdkafka's list_topics includes its connection.
"""

from __future__ import annotations

import itertools
import select
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark import (
    command_line,
    data_directory,
    median_throughput,
    progress,
    recording,
    run_parts,
    turns,
)
from driver import Driver
from metrics import cpu_seconds
from ottla.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.errors import ErrorCode
from servers import Ottla
from wire import Connection, connections, frame

CLUSTER_SIZE = 3
RECORD_BYTES = 100
TOPIC_PARTITIONS = 100
CREATE_TIMEOUT_MS = 60_000
TOPIC_NAMES = (f"topic-{number}" for number in itertools.count())


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    partitions: Sequence[int]
    acks: Sequence[str]
    seconds: float
    max_records: int
    creations: int
    #: Topics of a hundred partitions each.
    topics: Sequence[int]
    metadata_requests: int


FULL = Plan(
    rounds=3,
    partitions=[6, 60],
    acks=["1", "all"],
    seconds=1.0,
    max_records=1_000_000,
    creations=40,
    topics=[1, 10, 100],
    metadata_requests=25,
)
QUICK = Plan(
    rounds=1,
    partitions=[6],
    acks=["1"],
    seconds=0.4,
    max_records=500_000,
    creations=10,
    topics=[10],
    metadata_requests=5,
)


class Cluster:
    """One or several brokers with a cluster file."""

    def __init__(self, directory: Path, count: int) -> None:
        self._file = directory / "cluster.toml"
        self.brokers = [
            Ottla(directory / str(number), "--cluster", str(self._file), broker_id=number)
            for number in range(count)
        ]
        self.label = "1 broker" if count == 1 else f"{count} brokers"
        self.bootstrap = ",".join(broker.address for broker in self.brokers)
        self.ports = [broker.port for broker in self.brokers]

    def start(self) -> None:
        """Write the cluster file, and start all brokers."""
        self._file.parent.mkdir(parents=True)
        self._file.write_text(
            "\n".join(
                f'[[brokers]]\nid = {number}\naddress = "{broker.address}"\n'
                for number, broker in enumerate(self.brokers)
            )
        )
        for broker in self.brokers:
            broker.start()

    def stop(self) -> None:
        """Stop all brokers, the controller last."""
        for broker in reversed(self.brokers):
            broker.stop()


@contextmanager
def clusters(directory: Path, *counts: int) -> Iterator[list[Cluster]]:
    """Run clusters with these numbers of brokers."""
    with ExitStack() as stack:
        started = []
        for count in counts:
            name = f"{next(TOPIC_NAMES)}-{count}"
            started.append(Cluster(directory / name, count))
            stack.callback(started[-1].stop)
            started[-1].start()
        yield started


# -- throughput ------------------------------------------------------------------------------------


def bench_throughput(plan: Plan, driver: Driver, directory: Path) -> list[dict[str, Any]]:
    """Measure one broker and several with each load."""
    results = []
    with clusters(directory, 1, CLUSTER_SIZE) as contenders:
        for cluster in contenders:
            progress(f"warm up: {cluster.label}")
            run_load(driver, cluster, plan, plan.partitions[0], plan.acks[0])
        for partitions, acks in itertools.product(plan.partitions, plan.acks):
            runs: dict[str, dict[str, list[dict[str, Any]]]] = {"produce": {}, "consume": {}}
            for number, cluster in turns(contenders, plan.rounds):
                progress(f"{partitions} partitions, acks={acks}: {cluster.label}, {number + 1}")
                for operation, run in run_load(driver, cluster, plan, partitions, acks).items():
                    runs[operation].setdefault(cluster.label, []).append(run)
            for operation, found in runs.items():
                rows = {label: median_throughput(rounds) for label, rounds in found.items()}
                load = {"operation": operation, "partitions": partitions, "acks": acks}
                results.append(load | {"contenders": rows})
    return results


def run_load(
    driver: Driver, cluster: Cluster, plan: Plan, partitions: int, acks: str
) -> dict[str, dict[str, Any]]:
    """Produce to a new topic, and consume it."""
    topic = {"address": cluster.bootstrap, "topic": next(TOPIC_NAMES)}
    pids = [broker.pid for broker in cluster.brokers]
    load = {**topic, "partitions": partitions}
    driver.call("rdkafka.create_topic", **load, config={})
    limits = {"size": RECORD_BYTES, "seconds": plan.seconds, "max_records": plan.max_records}
    produced = driver.call("rdkafka.produce", **load, **limits, pid=pids, acks=acks)
    consumed = driver.call("rdkafka.consume", **load, pid=pids, records=produced["records"])
    driver.call("rdkafka.delete_topic", **topic)
    return {"produce": produced, "consume": consumed}


# -- topic creation --------------------------------------------------------------------------------


def bench_create(plan: Plan, _driver: Driver, directory: Path) -> list[dict[str, Any]]:
    """Measure how long a new topic takes to reach all brokers."""
    results = []
    with clusters(directory, 1, CLUSTER_SIZE) as contenders:
        for cluster in contenders:
            targets = ["controller", "another broker"][: len(cluster.brokers)]
            for (number, target), partitions in itertools.product(enumerate(targets), (1, 60)):
                progress(f"create: {cluster.label}, {partitions} partitions, {target}")
                with connections(cluster.ports[number], *cluster.ports) as (sender, *pollers):
                    times = [create(sender, pollers, partitions) for _ in range(plan.creations)]
                response, visible = map(summary, zip(*times, strict=True))
                row = {"label": cluster.label, "target": target, "partitions": partitions}
                results.append(row | {"response": response, "visible": visible})
    return results


def create(sender: Connection, pollers: Sequence[Connection], count: int) -> tuple[float, float]:
    """Create a topic; return the seconds to the response, and until all brokers have it."""
    name = next(TOPIC_NAMES)
    topic = CreatableTopic(name=name, num_partitions=count, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=CREATE_TIMEOUT_MS)
    metadata = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    response, visible, waiting = 0.0, 0.0, list(pollers)
    start = time.perf_counter()
    sender.socket.sendall(frame(request))
    while waiting or not response:
        if not response and select.select([sender.socket], [], [], 0 if waiting else None)[0]:
            assert list(sender.receive())
            response = time.perf_counter() - start
        for poller in list(waiting):
            (found,) = poller.request(metadata).topics
            if found.error_code == ErrorCode.NONE:
                assert len(found.partitions) == count
                assert all(partition.leader_id >= 0 for partition in found.partitions)
                waiting.remove(poller)
                visible = time.perf_counter() - start
    return response, visible


def summary(seconds: Iterable[float]) -> dict[str, float]:
    """Return the median and the 95th percentile."""
    found = sorted(seconds)
    return {"p50": statistics.median(found), "p95": found[int(len(found) * 0.95)]}


# -- metadata --------------------------------------------------------------------------------------


def bench_metadata(plan: Plan, driver: Driver, directory: Path) -> list[dict[str, Any]]:
    """Measure Metadata requests with many partitions."""
    results: list[dict[str, Any]] = []
    with clusters(directory, CLUSTER_SIZE) as (cluster,):
        created = 0
        for topics in plan.topics:
            partitions = topics * TOPIC_PARTITIONS
            progress(f"metadata: {partitions:,} partitions")
            with connections(cluster.ports[0]) as (controller,):
                for _ in range(topics - created):
                    create(controller, [], TOPIC_PARTITIONS)
            created = topics
            row = request_metadata(cluster.brokers[-1], plan.metadata_requests)
            listings = [
                driver.call("rdkafka.list_topics", address=cluster.bootstrap)
                for _ in range(plan.metadata_requests)
            ]
            assert listings[0]["partitions"] == partitions
            row["list_seconds"] = min(listing["seconds"] for listing in listings)
            results.append({"partitions": partitions, **row})
    return results


def request_metadata(broker: Ottla, times: int) -> dict[str, Any]:
    """Request all topics, one topic, and nothing right behind a request for all topics."""
    everything = frame(MetadataRequest(topics=None))
    nothing = frame(MetadataRequest(topics=[]))
    with connections(broker.port, broker.port) as (connection, other):
        found = connection.request(MetadataRequest(topics=None)).topics
        assert all(partition.leader_id >= 0 for topic in found for partition in topic.partitions)
        topic = frame(MetadataRequest(topics=[MetadataRequestTopic(name=found[0].name)]))
        before = cpu_seconds(broker.pid)
        complete = [timed(lambda: connection.exchange(everything)) for _ in range(times)]
        cpu = (cpu_seconds(broker.pid) - before) / times
        delays = []
        for _ in range(times):
            connection.socket.sendall(everything)
            delays.append(timed(lambda: other.exchange(nothing)))
            while not list(connection.receive()):
                pass
        return {
            "bytes": len(connection.exchange(everything)),
            "all": summary(complete),
            "cpu_seconds": cpu,
            "delay": summary(delays),
            "one": summary(timed(lambda: connection.exchange(topic)) for _ in range(times)),
        }


def timed(function: Callable[[], object]) -> float:
    """Return the seconds of a call."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


# -- all -------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Plan, Driver, Path], Any]] = {
    "throughput": bench_throughput,
    "create": bench_create,
    "metadata": bench_metadata,
}


def main() -> None:
    """Measure all parts, or the selected ones."""
    quick = "twenty seconds instead of a minute and a half"
    options = command_line(__doc__, quick=quick, parts=PARTS, disk="2 GiB").parse_args()
    plan, driver = QUICK if options.quick else FULL, Driver()
    try:
        with recording("cluster", options) as results, data_directory(options) as directory:
            run_parts("cluster", options, results, PARTS, plan, driver, directory)
    finally:
        driver.stop()


if __name__ == "__main__":
    main()
