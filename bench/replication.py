"""Replication compared with Apache Kafka: three brokers each, three replicas, on one machine.

    python bench/replication.py [--quick] [--kafka-libs DIR] [--dir DIR] [--only PART…]

Needs Linux (/proc), an etcd, and a confluent-kafka with Producer.produce_batch; broker.py says how
to get Kafka's jars. Topics have replication factor 3 and min.insync.replicas=2, producers use
acks=all, and neither side waits for the disk: a record is acknowledged when all in-sync replicas
have it in memory. All processes share the cores of one machine. CPU is the sum of all brokers, and
of etcd.

- throughput: produce, then consume; contenders take turns, and the median of the rounds counts
- latency: single records at a fixed rate, from the produce call to the delivery report and to the
  consumer
- failover: an idempotent producer sends to all partitions while one broker is killed (SIGKILL) or
  stopped (SIGTERM): the longest silence of the partitions that it led, from the signal on
- catch-up: a follower is stopped, misses records, and starts again: the time from its first
  response until all partitions have three in-sync replicas
- partitions: many partitions without load: their creation, idle CPU, and metadata
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark import (
    KIB,
    MIB,
    command_line,
    data_directory,
    median_run,
    median_throughput,
    progress,
    recording,
    run_parts,
    turns,
)
from driver import Driver
from metrics import cpu_seconds, memory
from replicated_clusters import BROKERS, Etcd, ReplicatedCluster, kafka_cluster, ottla_cluster
from servers import Kafka

PARTITIONS = 12
TOPIC_CONFIG = {"min.insync.replicas": "2"}
CATCH_UP_SIZE = KIB
#: Topics of many partitions have so many each.
TOPIC_PARTITIONS = 100
PERCENTILES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999}
SETTLE_SECONDS = 1.0

Run = dict[str, Any]

_topic_numbers = itertools.count()


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    warm_up_seconds: float
    sizes: list[int]
    seconds: float
    max_bytes: int
    latency_rate: int
    latency_seconds: float
    failovers: int
    failover_seconds: float
    catch_up_bytes: int
    partitions: int
    idle_seconds: float


FULL = Plan(
    rounds=3,
    warm_up_seconds=3.0,
    sizes=[100, KIB],
    seconds=2.0,
    max_bytes=512 * MIB,
    latency_rate=500,
    latency_seconds=4.0,
    failovers=2,
    failover_seconds=2.0,
    catch_up_bytes=256 * MIB,
    partitions=10_000,
    idle_seconds=10.0,
)
QUICK = Plan(
    rounds=1,
    warm_up_seconds=1.0,
    sizes=[100],
    seconds=0.7,
    max_bytes=128 * MIB,
    latency_rate=200,
    latency_seconds=1.0,
    failovers=1,
    failover_seconds=1.0,
    catch_up_bytes=32 * MIB,
    partitions=500,
    idle_seconds=2.0,
)


class Contender:
    """A running cluster, and the client process."""

    def __init__(self, cluster: ReplicatedCluster, client: Driver) -> None:
        self.cluster = cluster
        self.label = cluster.label
        self.client = client

    def call(self, command: str, **arguments: Any) -> Any:
        """Run a command on the cluster."""
        return self.client.call(command, address=self.cluster.bootstrap, **arguments)

    def create_topic(self, partitions: int) -> str:
        """Create a topic with three replicas that are in sync, and return its name."""
        topic = f"bench-{next(_topic_numbers)}"
        self.call(
            "rdkafka.create_topic",
            topic=topic,
            partitions=partitions,
            config=TOPIC_CONFIG,
            replication_factor=BROKERS,
        )
        self.wait_for_isrs(topic, BROKERS)
        return topic

    def delete_topic(self, topic: str) -> None:
        """Delete a topic to free its disk space."""
        self.call("rdkafka.delete_topic", topic=topic)

    def wait_for_isrs(self, topic: str, count: int) -> float:
        """Wait until all partitions have so many in-sync replicas; return the time."""
        at: float = self.call("failover_load.wait_for_isrs", topic=topic, count=count)
        return at

    def cpu_seconds(self) -> float:
        """Return the CPU time of all processes."""
        return sum(map(cpu_seconds, self.cluster.pids))

    def throughput(self, size: int, seconds: float, max_bytes: int) -> dict[str, Run]:
        """Produce to a new topic, and consume it."""
        topic = self.create_topic(PARTITIONS)
        load = {"topic": topic, "pid": self.cluster.pids, "partitions": PARTITIONS}
        limits = {"size": size, "seconds": seconds, "max_records": max_bytes // size}
        produced = self.call("rdkafka.produce", **load, **limits, acks="all")
        consumed = self.call("rdkafka.consume", **load, records=produced["records"])
        self.delete_topic(topic)
        return {"produce": produced, "consume": consumed}


# -- throughput ------------------------------------------------------------------------------------


def bench_throughput(plan: Plan, contenders: list[Contender]) -> list[Run]:
    """Measure the rate and CPU of producing and consuming."""
    results = []
    for size in plan.sizes:
        runs: dict[str, dict[str, list[Run]]] = {}
        for number, contender in turns(contenders, plan.rounds):
            progress(f"{size} B, round {number + 1}: {contender.label}")
            done = contender.throughput(size, plan.seconds, plan.max_bytes)
            for operation, run in done.items():
                runs.setdefault(operation, {}).setdefault(contender.label, []).append(run)
        for operation, found in runs.items():
            rows = {label: median_throughput(rounds) for label, rounds in found.items()}
            for row in rows.values():
                row["bytes_per_second"] = row["records_per_second"] * size
                if "kafka" in rows:
                    kafka = rows["kafka"]
                    row["versus_kafka"] = row["records_per_second"] / kafka["records_per_second"]
                    row["cpu_versus_kafka"] = row["server_cpu"] / kafka["server_cpu"]
            results.append({"operation": operation, "size": size, "contenders": rows})
    return results


# -- latency ---------------------------------------------------------------------------------------


def bench_latency(plan: Plan, contenders: list[Contender]) -> list[Run]:
    """Measure single records at a fixed rate."""
    runs: dict[str, list[Run]] = {}
    for number, contender in turns(contenders, plan.rounds):
        progress(f"latency, round {number + 1}: {contender.label}")
        topic = contender.create_topic(1)
        load = {"acks": "all", "rate": plan.latency_rate, "seconds": plan.latency_seconds}
        found = contender.call("rdkafka.latency", topic=topic, **load)
        contender.delete_topic(topic)
        run = {
            end: {
                name: ordered[min(int(part * len(ordered)), len(ordered) - 1)]
                for name, part in PERCENTILES.items()
            }
            for end, ordered in found.items()
        }
        runs.setdefault(contender.label, []).append(run)
    return [
        {
            "label": label,
            "rate": plan.latency_rate,
            "median": median_run(found, lambda run: float(run["delivered"]["p99"])),
            "runs": found,
        }
        for label, found in runs.items()
    ]


# -- failover --------------------------------------------------------------------------------------

SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM}
FAILOVER_RATE = 50


def bench_failover(plan: Plan, contenders: list[Contender]) -> list[Run]:
    """Kill and stop leaders under load."""
    results = []
    for name, number in SIGNALS.items():
        runs: dict[str, list[Run]] = {}
        for attempt, contender in turns(contenders, plan.failovers):
            progress(f"{name}, {attempt + 1}: {contender.label}")
            run = fail_over(contender, number, plan.failover_seconds)
            runs.setdefault(contender.label, []).append(run)
        for label, found in runs.items():
            # The worst round counts: a client has to live with it.
            worst = max(found, key=lambda run: float(run["last"]))
            results.append({"signal": name, "label": label, "worst": worst, "runs": found})
    return results


def fail_over(contender: Contender, number: signal.Signals, seconds: float) -> Run:
    """End the leader of a partition under load, and start it again."""
    topic = contender.create_topic(PARTITIONS)
    replicas = contender.call("failover_load.replicas_of", topic=topic)
    broker_id = replicas[0]["leader"]
    broker = contender.cluster.brokers[broker_id]
    load = contender.call(
        "failover_load.produce_through_failover",
        topic=topic,
        partitions=PARTITIONS,
        rate=FAILOVER_RATE,
        pid=broker.pid,
        signal=number,
        seconds=seconds,
    )
    broker.end()
    broker.start()
    contender.wait_for_isrs(topic, BROKERS)
    contender.delete_topic(topic)
    assert not load["failed"], f"{load['failed']} of {load['records']} records were not delivered"
    affected = [
        longest_silence(load["acknowledged"][index], load["signalled_at"])
        for index, partition in enumerate(replicas)
        if partition["leader"] == broker_id
    ]
    return {"first": min(affected), "last": max(affected), "partitions": len(affected)}


def longest_silence(acknowledged: list[float], since: float) -> float:
    """Return the seconds of the longest time without an ack after `since`."""
    return max(
        after - max(before, since)
        for before, after in itertools.pairwise(acknowledged)
        if after > since
    )


# -- catch-up --------------------------------------------------------------------------------------


def bench_catch_up(plan: Plan, contenders: list[Contender]) -> list[Run]:
    """Measure how fast a follower gets what it has missed."""
    results = []
    for contender in contenders:
        progress(f"catch-up: {contender.label}")
        topic, broker = contender.create_topic(PARTITIONS), contender.cluster.brokers[-1]
        broker.end()
        contender.wait_for_isrs(topic, BROKERS - 1)
        produced = contender.call(
            "rdkafka.produce",
            topic=topic,
            pid=None,
            partitions=PARTITIONS,
            size=CATCH_UP_SIZE,
            acks="all",
            seconds=60.0,
            max_records=plan.catch_up_bytes // CATCH_UP_SIZE,
        )
        # Until there are three in-sync replicas, so that no poll is missed.
        contender.client.begin(
            "failover_load.wait_for_isrs",
            address=contender.cluster.bootstrap,
            topic=topic,
            count=BROKERS,
        )
        broker.start()
        started_at = time.monotonic()
        seconds = contender.client.end() - started_at
        size_bytes = produced["records"] * CATCH_UP_SIZE
        results.append(
            {
                "label": contender.label,
                "bytes": size_bytes,
                "start_seconds": broker.start_seconds,
                "seconds": seconds,
                "bytes_per_second": size_bytes / max(seconds, 0.001),
            }
        )
        contender.delete_topic(topic)
    return results


# -- partitions ------------------------------------------------------------------------------------


def bench_partitions(plan: Plan, contenders: list[Contender]) -> list[Run]:
    """Measure many partitions without load."""
    results = []
    for contender in contenders:
        progress(f"{plan.partitions:,} partitions: {contender.label}")
        started_at = time.monotonic()
        topics = [
            contender.create_topic(TOPIC_PARTITIONS)
            for _ in range(plan.partitions // TOPIC_PARTITIONS)
        ]
        created_seconds = time.monotonic() - started_at
        listings = [contender.call("rdkafka.list_topics") for _ in range(3)]
        time.sleep(SETTLE_SECONDS)
        before, begun_at = contender.cpu_seconds(), time.monotonic()
        time.sleep(plan.idle_seconds)
        idle = (contender.cpu_seconds() - before) / (time.monotonic() - begun_at)
        results.append(
            {
                "label": contender.label,
                "partitions": plan.partitions,
                "create_seconds": created_seconds,
                "list_seconds": min(listing["seconds"] for listing in listings),
                "idle_cores": idle,
                "anonymous": sum(memory(pid)["anonymous"] for pid in contender.cluster.pids),
            }
        )
        for topic in topics:
            contender.delete_topic(topic)
    return results


# -- all -------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Plan, list[Contender]], Any]] = {
    "throughput": bench_throughput,
    "latency": bench_latency,
    "failover": bench_failover,
    "catch-up": bench_catch_up,
    "partitions": bench_partitions,
}
CLUSTERS = ("ottla", "kafka")


def main() -> None:
    """Measure all parts, or the selected ones."""
    quick = "two minutes instead of eight"
    parser = command_line(__doc__, quick=quick, parts=PARTS, disk="8 GiB")
    parser.add_argument("--kafka-libs", type=Path, help="directory of Apache Kafka's jars")
    parser.add_argument("--clusters", choices=CLUSTERS, nargs="+", help="run only these clusters")
    options = parser.parse_args()
    libs = options.kafka_libs or os.environ.get("KAFKA_LIBS")
    libs = Path(libs).resolve() if libs else None
    plan = QUICK if options.quick else FULL
    makers: dict[str, Callable[[Path], ReplicatedCluster]] = {
        "ottla": ottla_cluster,
        "kafka": lambda directory: kafka_cluster(directory, libs or Path()),
    }
    missing = {"ottla": Etcd.missing(), "kafka": Kafka.missing(libs)}
    names = options.clusters or CLUSTERS
    skipped = {name: reason for name in names if (reason := missing[name])}
    for name, reason in skipped.items():
        print(f"{name} is skipped: {reason}", flush=True)
    with (
        recording("replication", options) as results,
        data_directory(options) as directory,
        ExitStack() as stack,
    ):
        client = Driver()
        stack.callback(client.stop)
        contenders, versions = [], {}
        for name in names:
            if name in skipped:
                continue
            progress(f"start: {name}")
            cluster = makers[name](directory / name)
            stack.callback(cluster.stop)
            cluster.start()
            contenders.append(Contender(cluster, client))
            versions |= cluster.versions()
        results |= {"skipped": skipped, "versions": versions}
        for contender in contenders:
            progress(f"warm up: {contender.label}")
            for size in plan.sizes:
                contender.throughput(size, plan.warm_up_seconds, plan.max_bytes)
        run_parts("replication", options, results, PARTS, plan, contenders)


if __name__ == "__main__":
    main()
