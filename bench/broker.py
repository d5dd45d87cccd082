"""The broker compared with Apache Kafka, Redis Streams and librdkafka's mock cluster.

    python bench/broker.py [--quick] [--kafka-libs DIR] [--dir DIR] [--only PART…]

Needs Linux (/proc) and a confluent-kafka with Producer.produce_batch, which generates the load for
ottla and Kafka. The client is a separate process; with few cores it is often the bottleneck, so its
CPU is in the tables too. Servers that are not installed are skipped, with the reason:

- redis-server must be on PATH.
- Kafka runs from its jars and their dependencies, with java from PATH. To download them with Maven,
  make org.apache.kafka:kafka_2.13 the only dependency of a pom.xml and run
  `mvn dependency:copy-dependencies -DoutputDirectory=DIR`. KAFKA_LIBS is the default of the option.

Contenders take turns, and the median of the rounds counts. All servers are warmed up first, which
a JVM needs. With acks=all, ottla fsyncs before it responds ("fsync", the default), like Redis with
appendfsync always. Kafka never waits for the disk: compare it with "page-cache".

- start: from the spawn to the first response, with an empty data directory; memory when idle
- throughput: produce, then consume, with librdkafka's default batching (see rdkafka.py). The mock
  cluster keeps too little to be consumed, and has four partitions instead of twelve.
- sizes, partitions: the same for some contenders, with records of 10 bytes to 100 KiB in 12
  partitions, and with records of 100 bytes in up to 1,000 partitions
- single: one record per request, with one or many requests in flight
- latency: single records at a fixed rate, to the delivery report and to the consumer; without other
  load, and while a consumer in another process reads data that is not in the page cache
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

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
    show,
    spread_of,
    turns,
)
from driver import Driver, DriverError
from metrics import memory, peak_memory
from servers import Kafka, Ottla, Redis, Server, ServerError

IDLE_SECONDS = 1.0
SINGLE_SIZE = 100
COLD_SIZE = 8 * KIB
RATE = 500
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}

Run = dict[str, Any]

_topic_numbers = itertools.count()


class Trial(NamedTuple):
    """A load, and the contenders measured with it: all, unless some are named."""

    size: int
    partitions: int
    labels: tuple[str, ...] = ()


ONE_OF_EACH = ("ottla acks=1", "ottla acks=all, fsync", "kafka acks=1", "redis appendfsync no")
BROKERS = ("ottla acks=1", "kafka acks=1")


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    starts: int
    warm_up_seconds: float
    rounds: int
    throughput: list[Trial]
    sizes: list[Trial]
    partitions: list[Trial]
    #: Limits of one produce run.
    seconds: float
    max_bytes: int
    max_records: int
    single_seconds: float
    latency_seconds: float
    cold_bytes: int


FULL = Plan(
    starts=3,
    warm_up_seconds=3.0,
    rounds=3,
    throughput=[Trial(100, 12), Trial(KIB, 12)],
    sizes=[Trial(size, 12, ONE_OF_EACH) for size in (10, 100, KIB, 10 * KIB, 100 * KIB)],
    partitions=[Trial(100, partitions, BROKERS) for partitions in (1, 10, 100, 1000)],
    seconds=0.6,
    max_bytes=256 * MIB,
    max_records=1_000_000,
    single_seconds=0.4,
    latency_seconds=3.0,
    cold_bytes=512 * MIB,
)
QUICK = Plan(
    starts=1,
    warm_up_seconds=1.5,
    rounds=1,
    throughput=[Trial(100, 12)],
    sizes=[Trial(size, 12, ONE_OF_EACH) for size in (100, 10 * KIB)],
    partitions=[Trial(100, partitions, BROKERS) for partitions in (1, 100)],
    seconds=0.4,
    max_bytes=128 * MIB,
    max_records=500_000,
    single_seconds=0.3,
    latency_seconds=2.0,
    cold_bytes=256 * MIB,
)


@dataclass(frozen=True)
class Contender:
    """A server with a durability config; `module` generates its load in the client process.

    Kafka does not fsync before it responds, whatever acks is. So each contender that does stands
    beside one of the same server that does not. `baseline` is the contender of Kafka with the same
    guarantee.
    """

    label: str
    baseline: str
    server: Server
    module: str = "rdkafka"
    acks: str = "1"
    config: dict[str, str] = field(default_factory=dict)

    def call(self, driver: Driver, command: str, **arguments: Any) -> Any:
        """Run a command on the server."""
        return driver.call(f"{self.module}.{command}", address=self.server.address, **arguments)

    def create_topic(self, driver: Driver, partitions: int) -> str:
        """Create a topic, and return its name."""
        topic = f"bench-{next(_topic_numbers)}"
        self.call(driver, "create_topic", topic=topic, partitions=partitions, config=self.config)
        return topic

    def throughput(self, driver: Driver, trial: Trial, seconds: float, max_records: int) -> Run:
        """Produce to a new topic, and consume it."""
        topic, pid = self.create_topic(driver, trial.partitions), self.server.pid
        common = {"pid": pid, "topic": topic, "partitions": trial.partitions}
        limits = {"size": trial.size, "seconds": seconds, "max_records": max_records}
        with peak_memory(pid) as produce_memory:
            produced = self.call(driver, "produce", **common, **limits, acks=self.acks)
        with peak_memory(pid) as consume_memory:
            consumed = self.call(driver, "consume", **common, records=produced["records"])
        self.call(driver, "delete_topic", topic=topic)
        return {
            "produce": produced | {"memory": produce_memory},
            "consume": consumed | {"memory": consume_memory},
        }

    def single(self, driver: Driver, seconds: float, in_flight: int) -> Run | None:
        """Produce one record per request."""
        topic = self.create_topic(driver, 1)
        limits = {"size": SINGLE_SIZE, "seconds": seconds, "in_flight": in_flight}
        pid = self.server.pid
        run: Run = self.call(driver, "single", pid=pid, topic=topic, acks=self.acks, **limits)
        self.call(driver, "delete_topic", topic=topic)
        return run


class MockCluster(Contender):
    """librdkafka's mock cluster, which costs almost nothing: it shows the limit of the client."""

    def throughput(self, driver: Driver, trial: Trial, seconds: float, max_records: int) -> Run:
        """Produce only: the mock cluster does not keep enough to be consumed."""
        limits = {"seconds": seconds, "max_records": max_records, "acks": self.acks}
        arguments = {"partitions": trial.partitions, "size": trial.size, **limits}
        return {"produce": driver.call("rdkafka.produce_to_mock", **arguments)}

    def single(self, driver: Driver, seconds: float, in_flight: int) -> None:
        """Do nothing: its CPU cannot be told from the client's."""


def contenders_of(servers: dict[str, Server]) -> list[Contender]:
    """Return all contenders of the running servers."""
    found: list[Contender] = []
    if ottla := servers.get("ottla"):
        durable, cached = {"durability": "acks"}, {"durability": "page-cache"}
        found += [
            Contender("ottla acks=1", "kafka acks=1", ottla),
            Contender(
                "ottla acks=all, page-cache", "kafka acks=all", ottla, acks="all", config=cached
            ),
            Contender("ottla acks=all, fsync", "kafka acks=all", ottla, acks="all", config=durable),
        ]
    if kafka := servers.get("kafka"):
        found += [
            Contender("kafka acks=1", "kafka acks=1", kafka),
            Contender("kafka acks=all", "kafka acks=all", kafka, acks="all"),
        ]
    if redis := servers.get("redis"):
        found += [
            Contender(
                f"redis appendfsync {policy}",
                baseline,
                redis,
                "redis_streams",
                config={"appendfsync": policy},
            )
            for policy, baseline in (("no", "kafka acks=1"), ("always", "kafka acks=all"))
        ]
    return [*found, MockCluster("mock, in the client", "kafka acks=1", Server(Path()))]


@dataclass(frozen=True)
class Bench:
    """What all parts need."""

    plan: Plan
    contenders: list[Contender]
    client: Driver
    cold_reader: Driver


def report_failure(label: str, part: str, error: DriverError) -> None:
    """Print that a measurement failed; the others continue."""
    progress("")
    print(f"{label}, {part}: failed: {error}", flush=True)


def compare(rows: dict[str, Run], contenders: list[Contender], rate: str) -> dict[str, Run]:
    """Add to each contender its rate relative to its baseline."""
    for contender in contenders:
        row, kafka = rows.get(contender.label), rows.get(contender.baseline)
        if row and kafka:
            row["versus_kafka"] = row[rate] / kafka[rate]
    return rows


# -- start -----------------------------------------------------------------------------------------


def start_servers(
    makers: dict[str, Callable[[Path], Server]], plan: Plan, directory: Path, stack: ExitStack
) -> tuple[dict[str, Server], dict[str, Run]]:
    """Start all servers several times, and leave the last one of each running."""
    servers: dict[str, Server] = {}
    results: dict[str, Run] = {}
    for number in range(plan.starts):
        for name in list(makers):
            progress(f"start: {name}")
            server = makers[name](directory / f"{name}-{number}")
            stack.callback(server.stop)
            try:
                server.start()
            except ServerError as error:
                progress("")
                print(f"{name} is skipped: {error}", flush=True)
                del makers[name]
                continue
            time.sleep(IDLE_SECONDS)
            run = {"seconds": server.start_seconds, **memory(server.pid)}
            best = results.setdefault(name, run)
            results[name] = {key: min(value, best[key]) for key, value in run.items()}
            if number < plan.starts - 1:
                server.stop()
            else:
                servers[name] = server
    return servers, results


# -- throughput ------------------------------------------------------------------------------------


def warm_up(bench: Bench) -> None:
    """Put some of the measured load on each server, so that JIT compilers have done their work."""
    plan = bench.plan
    warm = set()
    for contender in bench.contenders:
        if contender.server in warm or isinstance(contender, MockCluster):
            continue
        warm.add(contender.server)
        progress(f"warm up: {contender.label}")
        for trial in plan.throughput:
            max_records = plan.max_bytes // trial.size
            try:
                contender.throughput(bench.client, trial, plan.warm_up_seconds, max_records)
                contender.single(bench.client, plan.warm_up_seconds / 2, 1)
            except DriverError as error:
                report_failure(contender.label, "warm-up", error)


def bench_trials(bench: Bench, trials: list[Trial]) -> list[Run]:
    """Measure contenders with each load."""
    plan, results = bench.plan, []
    for trial in trials:
        load = f"{trial.partitions} × {trial.size} B"
        max_records = min(plan.max_bytes // trial.size, plan.max_records)
        labels = trial.labels
        contenders = [each for each in bench.contenders if not labels or each.label in labels]
        runs: dict[str, dict[str, list[Run]]] = {}
        for number, contender in turns(contenders, plan.rounds):
            progress(f"{load}, round {number + 1}: {contender.label}")
            try:
                done = contender.throughput(bench.client, trial, plan.seconds, max_records)
            except DriverError as error:
                report_failure(contender.label, load, error)
                continue
            for operation, run in done.items():
                runs.setdefault(operation, {}).setdefault(contender.label, []).append(run)
        for operation, found in runs.items():
            rows = {label: median_throughput(rounds) for label, rounds in found.items()}
            for row in rows.values():
                row["bytes_per_second"] = row["records_per_second"] * trial.size
            compare(rows, contenders, "records_per_second")
            size = {"size": trial.size, "partitions": trial.partitions}
            results.append({"operation": operation, **size, "contenders": rows})
    return results


# -- single records --------------------------------------------------------------------------------


def bench_single(bench: Bench) -> list[Run]:
    """Measure requests with one record."""
    results = []
    for in_flight in (1, 1000):
        runs: dict[str, list[Run]] = {}
        for _, contender in turns(bench.contenders, bench.plan.rounds):
            progress(f"single, {in_flight} in flight: {contender.label}")
            try:
                run = contender.single(bench.client, bench.plan.single_seconds, in_flight)
            except DriverError as error:
                report_failure(contender.label, "single", error)
                continue
            if run is not None:
                runs.setdefault(contender.label, []).append(run)
        rows = {
            label: {
                "requests_per_second": median(run["requests"] / run["seconds"] for run in rounds),
                "spread": spread_of([run["requests"] / run["seconds"] for run in rounds]),
                "server_cpu": median(run["server_cpu"] / run["requests"] for run in rounds),
                "client_cpu": median(run["client_cpu"] / run["requests"] for run in rounds),
            }
            for label, rounds in runs.items()
        }
        compare(rows, bench.contenders, "requests_per_second")
        results.append({"in_flight": in_flight, "contenders": rows})
    return results


# -- latency ---------------------------------------------------------------------------------------


def bench_latency(bench: Bench) -> list[Run]:
    """Measure single records at a fixed rate."""
    brokers = [contender for contender in bench.contenders if contender.acks == "all"]
    runs: dict[tuple[str, bool], list[Run]] = {}
    for number, contender in turns(brokers, bench.plan.rounds):
        for cold in (False, True):
            reads = ", during cold reads" if cold else ""
            progress(f"latency{reads}, round {number + 1}: {contender.label}")
            try:
                run = measure_latency(bench, contender, cold=cold)
            except DriverError as error:
                report_failure(contender.label, "latency", error)
                bench.cold_reader.stop()  # it may still be reading
                continue
            runs.setdefault((contender.label, cold), []).append(run)
    return [
        {
            "label": label,
            "cold": cold,
            "median": median_run(found, lambda run: float(run["delivered"]["p99"])),
            "runs": found,
        }
        for (label, cold), found in sorted(
            runs.items(), key=lambda item: [each.label for each in brokers].index(item[0][0])
        )
    ]


def measure_latency(bench: Bench, contender: Contender, *, cold: bool) -> Run:
    """Return percentiles, with or without a concurrent consumer of cold data."""
    seconds = bench.plan.latency_seconds
    topics = [contender.create_topic(bench.client, 1) for _ in range(2 if cold else 1)]
    if cold:
        records = bench.plan.cold_bytes // COLD_SIZE
        data = {"data": str(contender.server.data), "size": COLD_SIZE, "records": records}
        contender.call(bench.client, "write_cold", topic=topics[1], **data)
        # One second more, for the warm-up of the latency run.
        bench.cold_reader.begin(
            "rdkafka.replay",
            address=contender.server.address,
            topic=topics[1],
            records=records,
            seconds=seconds + 1,
        )
    load = {"acks": contender.acks, "rate": RATE, "seconds": seconds}
    latencies = contender.call(bench.client, "latency", topic=topics[0], **load)
    if cold:
        bench.cold_reader.end()
    for topic in topics:
        contender.call(bench.client, "delete_topic", topic=topic)
    return {
        end: {
            name: ordered[min(int(part * len(ordered)), len(ordered) - 1)]
            for name, part in PERCENTILES.items()
        }
        | {"max": ordered[-1], "count": len(ordered)}
        for end, ordered in latencies.items()
    }


# -- all -------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Bench], Any]] = {
    "throughput": lambda bench: bench_trials(bench, bench.plan.throughput),
    "sizes": lambda bench: bench_trials(bench, bench.plan.sizes),
    "partitions": lambda bench: bench_trials(bench, bench.plan.partitions),
    "single": bench_single,
    "latency": bench_latency,
}
SERVERS = ("ottla", "kafka", "redis")


def main() -> None:
    """Measure all parts, or the selected ones."""
    parser = command_line(__doc__, quick="one minute instead of six", parts=PARTS, disk="4 GiB")
    parser.add_argument("--kafka-libs", type=Path, help="directory of Apache Kafka's jars")
    parser.add_argument("--servers", choices=SERVERS, nargs="+", help="run only these servers")
    options = parser.parse_args()
    libs = options.kafka_libs or os.environ.get("KAFKA_LIBS")
    libs = Path(libs).resolve() if libs else None

    plan = QUICK if options.quick else FULL
    makers: dict[str, Callable[[Path], Server]] = {
        "ottla": Ottla,
        "kafka": lambda directory: Kafka(directory, libs or Path()),
        "redis": Redis,
    }
    missing = {"kafka": Kafka.missing(libs), "redis": Redis.missing()}
    names = options.servers or SERVERS
    skipped = {name: reason for name in names if (reason := missing.get(name))}
    for name, reason in skipped.items():
        print(f"{name} is skipped: {reason}", flush=True)
    with (
        recording("broker", options) as results,
        data_directory(options) as directory,
        ExitStack() as stack,
    ):
        makers = {name: makers[name] for name in names if name not in skipped}
        servers, results["start"] = start_servers(makers, plan, directory, stack)
        show("broker", "start", results["start"])
        results["versions"] = {name: server.version() for name, server in servers.items()}
        results["skipped"] = skipped
        drivers = Driver(), Driver()
        for driver in drivers:
            stack.callback(driver.stop)
        bench = Bench(plan, contenders_of(servers), *drivers)
        warm_up(bench)
        run_parts("broker", options, results, PARTS, bench)


if __name__ == "__main__":
    main()
