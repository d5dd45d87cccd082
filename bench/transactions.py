"""Transactions compared with Apache Kafka: commits per second, CPU, and end-to-end latency.

    python bench/transactions.py [--quick] [--kafka-libs DIR] [--dir DIR] [--only PART…]

Needs Linux (/proc). confluent-kafka generates the load; broker.py --help says how to get Kafka's
jars. Contenders take turns, and the median of the rounds counts.

ottla fsyncs records and the coordinator's decisions before it responds ("fsync", the default).
Kafka never waits for the disk: compare it with "page-cache".

- commit: transactions of 1 to 100 records over 1 or 12 partitions, each producer committing one
  after another
- latency: records at a fixed rate, committed at an interval, from the produce call to a consumer
  with isolation.level=read_committed
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark import (
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
from servers import Kafka, Ottla, Server

RATE = 500
PERCENTILES = {"p50": 0.5, "p99": 0.99}

Run = dict[str, Any]

_topic_numbers = itertools.count()


@dataclass(frozen=True)
class Plan:
    """How much is measured; a trial is (records, partitions, producers)."""

    rounds: int
    warm_up_seconds: float
    trials: list[tuple[int, int, int]]
    seconds: float
    intervals: list[float]
    latency_seconds: float


FULL = Plan(
    rounds=2,
    warm_up_seconds=3.0,
    trials=[
        *((records, partitions, 1) for records in (1, 10, 100) for partitions in (1, 12)),
        (10, 12, 10),
    ],
    seconds=0.7,
    intervals=[0.01, 0.1],
    latency_seconds=2.0,
)
QUICK = Plan(
    rounds=1,
    warm_up_seconds=1.5,
    trials=[(1, 1, 1), (100, 12, 1), (10, 12, 10)],
    seconds=0.5,
    intervals=[0.01, 0.1],
    latency_seconds=1.5,
)


class Contender:
    """A running broker."""

    def __init__(self, label: str, server: Server, client: Driver) -> None:
        self.label = label
        self._server = server
        self._client = client

    def call(self, command: str, **arguments: Any) -> Any:
        """Run a command on the broker."""
        return self._client.call(command, address=self._server.address, **arguments)

    def commit(self, records: int, partitions: int, producers: int, seconds: float) -> Run:
        """Commit transactions to a new topic."""
        topic = self._create_topic(partitions)
        load = {"records": records, "producers": producers, "seconds": seconds}
        run: Run = self.call(
            "transactional_load.commit_transactions",
            pid=self._server.pid,
            topic=topic,
            partitions=partitions,
            **load,
        )
        self.call("rdkafka.delete_topic", topic=topic)
        return run

    def latency(self, interval: float, seconds: float) -> Run:
        """Return percentiles of the latency to a read_committed consumer."""
        topic = self._create_topic(1)
        load = {"rate": RATE, "interval": interval, "seconds": seconds}
        found = self.call("transactional_load.committed_latency", topic=topic, **load)
        self.call("rdkafka.delete_topic", topic=topic)
        ordered = found["consumed"]
        return {
            name: ordered[min(int(part * len(ordered)), len(ordered) - 1)]
            for name, part in PERCENTILES.items()
        }

    def _create_topic(self, partitions: int) -> str:
        topic = f"bench-{next(_topic_numbers)}"
        self.call("rdkafka.create_topic", topic=topic, partitions=partitions, config={})
        return topic


def bench_commit(plan: Plan, contenders: list[Contender]) -> list[Run]:
    """Measure commits per second and CPU per transaction."""
    results = []
    for records, partitions, producers in plan.trials:
        runs: dict[str, list[Run]] = {}
        for number, contender in turns(contenders, plan.rounds):
            progress(
                f"{records} records, {partitions} partitions, {producers} producers, "
                f"round {number + 1}: {contender.label}"
            )
            run = contender.commit(records, partitions, producers, plan.seconds)
            runs.setdefault(contender.label, []).append(run)
        rows = {label: median_throughput(found) for label, found in runs.items()}
        for row in rows.values():
            if "kafka" in rows:
                kafka = rows["kafka"]["records_per_second"]
                row["versus_kafka"] = row["records_per_second"] / kafka
        trial = {"records": records, "partitions": partitions, "producers": producers}
        results.append(trial | {"contenders": rows})
    return results


def bench_latency(plan: Plan, contenders: list[Contender]) -> list[Run]:
    """Measure the latency of committed records."""
    results = []
    for interval in plan.intervals:
        runs: dict[str, list[Run]] = {}
        for number, contender in turns(contenders, plan.rounds):
            progress(f"commit every {interval * 1e3:.0f} ms, round {number + 1}: {contender.label}")
            found = contender.latency(interval, plan.latency_seconds)
            runs.setdefault(contender.label, []).append(found)
        rows = {
            label: median_run(rounds, lambda run: float(run["p99"]))
            for label, rounds in runs.items()
        }
        results.append({"interval": interval, "contenders": rows})
    return results


PARTS: dict[str, Callable[[Plan, list[Contender]], Any]] = {
    "commit": bench_commit,
    "latency": bench_latency,
}


def main() -> None:
    """Measure all parts, or the selected ones."""
    parser = command_line(__doc__, quick="half a minute", parts=PARTS, disk="1 GiB")
    parser.add_argument("--kafka-libs", type=Path, help="directory of Apache Kafka's jars")
    options = parser.parse_args()
    libs = options.kafka_libs or os.environ.get("KAFKA_LIBS")
    libs = Path(libs).resolve() if libs else None
    plan = QUICK if options.quick else FULL
    with (
        recording("transactions", options) as results,
        data_directory(options) as directory,
        ExitStack() as stack,
    ):
        client = Driver()
        stack.callback(client.stop)
        servers: dict[str, Server] = {
            "ottla, page-cache": Ottla(directory / "cached", "--set", "log.durability=page-cache"),
            "ottla, fsync": Ottla(directory / "durable"),
        }
        results["skipped"] = {}
        if reason := Kafka.missing(libs):
            print(f"kafka is skipped: {reason}", flush=True)
            results["skipped"]["kafka"] = reason
        else:
            servers["kafka"] = Kafka(directory / "kafka", libs or Path())
        contenders = []
        for label, server in servers.items():
            progress(f"start: {label}")
            stack.callback(server.stop)
            server.start()
            contenders.append(Contender(label, server, client))
        contenders[0].call("transactional_load.set_state_durability", durability="page-cache")
        results["versions"] = {"ottla": servers["ottla, fsync"].version()}
        if "kafka" in servers:
            results["versions"]["kafka"] = servers["kafka"].version()
        for contender in contenders:
            progress(f"warm up: {contender.label}")
            contender.commit(10, 12, 10, plan.warm_up_seconds)
        run_parts("transactions", options, results, PARTS, plan, contenders)


if __name__ == "__main__":
    main()
