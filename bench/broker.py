"""The broker against Apache Kafka, Redis Streams and librdkafka's mock, all on this machine.

    python bench/broker.py [--quick] [--kafka-libs FOLDER] [--dir FOLDER] [--only PART…]

Needs Linux (/proc) and a confluent-kafka that has Producer.produce_batch: all the work on ottla and
Kafka is done through it. The client is a process of its own; on few cores it is often the limit,
so its CPU is in the tables too. What is not on the machine is left out, with the reason:

- redis-server is looked for on PATH.
- Kafka is started from its jars and those that they need, with java from PATH. Maven gets them:
  with org.apache.kafka:kafka_2.13 as the only dependency in a pom.xml,
  `mvn dependency:copy-dependencies -DoutputDirectory=FOLDER`. KAFKA_LIBS names the folder too.

Contenders take turns, and the best of their rounds counts. All are warmed up first, as a JVM needs.
With acks=all, ottla by default (fsync in the tables) answers when the device has the records, as
Redis does with appendfsync always. Kafka never waits for the device: its like is page-cache.

- start: from the spawn to the first answer, with an empty folder; memory when nothing happens
- throughput: produce, then consume, with librdkafka's own batching (rdkafka.py says which). Private
  memory includes what a broker has mapped of its files, which is page cache; anonymous does not.
  The mock keeps too little to be consumed, and has four partitions instead of twelve.
- sizes, partitions: the same for some of them, with records of 10 bytes to 100 KiB in 12
  partitions, and with records of 100 bytes in up to 1,000 partitions
- single: one record in each request, alone or with many on their way
- latency: of single records at a fixed rate, to the report and to the consumer, while nothing else
  happens, and while a consumer in another process replays data that the page cache has not
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from benchmark import command_line, print_table, progress, ratio, recording, turns
from contenders import Broker, Contender, Load, Run, contenders_of
from driver import Driver, DriverError
from peers import Kafka, NotStartedError, Ottla, Redis, Server
from processes import device_bytes_read, memory

KIB, MIB = 1024, 1024**2
IDLE_SECONDS = 1.0
SINGLE_SIZE = 100
SINGLE_AIM_US = 50
COLD_SIZE = 8 * KIB
RATE = 500
PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999}


class Trial(NamedTuple):
    """One load, and who is measured with it: everybody, unless some are named."""

    size: int
    partitions: int
    who: tuple[str, ...] = ()


ONE_OF_EACH = ("ottla acks=1", "ottla acks=all, fsync", "kafka acks=1", "redis appendfsync no")
BROKERS = ("ottla acks=1", "kafka acks=1")


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    starts: int
    warm_seconds: float
    rounds: int
    throughput: list[Trial]
    sizes: list[Trial]
    partitions: list[Trial]
    #: How long records are handed to the producer, and how many at most.
    seconds: float
    most_bytes: int
    most_records: int
    single_seconds: float
    latency_seconds: float
    cold_bytes: int


FULL = Plan(
    starts=3,
    warm_seconds=3.0,
    rounds=2,
    throughput=[Trial(100, 12), Trial(KIB, 12)],
    sizes=[Trial(size, 12, ONE_OF_EACH) for size in (10, 100, KIB, 10 * KIB, 100 * KIB)],
    partitions=[Trial(100, partitions, BROKERS) for partitions in (1, 10, 100, 1000)],
    seconds=1.0,
    most_bytes=256 * MIB,
    most_records=1_000_000,
    single_seconds=0.5,
    latency_seconds=4.0,
    cold_bytes=512 * MIB,
)
QUICK = Plan(
    starts=1,
    warm_seconds=1.5,
    rounds=1,
    throughput=[Trial(100, 12)],
    sizes=[Trial(size, 12, ONE_OF_EACH) for size in (100, 10 * KIB)],
    partitions=[Trial(100, partitions, BROKERS) for partitions in (1, 100)],
    seconds=0.4,
    most_bytes=128 * MIB,
    most_records=500_000,
    single_seconds=0.3,
    latency_seconds=2.0,
    cold_bytes=256 * MIB,
)


@dataclass(frozen=True)
class Bench:
    """What all parts need."""

    plan: Plan
    servers: dict[str, Server]
    contenders: list[Contender]
    client: Driver
    other_client: Driver


def megabytes(count: float) -> str:
    """Give bytes as MB."""
    return f"{count / 1e6:,.0f}"


def failed(label: str, what: str, error: DriverError) -> None:
    """Say that something could not be measured; the others go on."""
    progress("")
    print(f"{label}, {what}: failed: {error}", flush=True)


# -- start -----------------------------------------------------------------------------------------


def start_servers(
    makers: dict[str, Callable[[Path], Server]], plan: Plan, folder: Path, stack: ExitStack
) -> tuple[dict[str, Server], dict[str, Any]]:
    """Start all servers, again and again, and leave the last of each running."""
    servers: dict[str, Server] = {}
    results: dict[str, Any] = {}
    for number in range(plan.starts):
        for name in list(makers):
            progress(f"start: {name}")
            server = makers[name](folder / f"{name}-{number}")
            stack.callback(server.stop)
            try:
                server.start()
            except NotStartedError as error:
                progress("")
                print(f"{name} is left out: {error}", flush=True)
                del makers[name]
                continue
            time.sleep(IDLE_SECONDS)
            found = results.setdefault(name, {"seconds": [], "idle": []})
            found["seconds"].append(server.start_seconds)
            found["idle"].append(vars(memory(server.pid)))
            if number < plan.starts - 1:
                server.stop()
            else:
                servers[name] = server
    return servers, results


def print_starts(results: dict[str, Any]) -> None:
    """Print how long starts took, and what memory there is when nothing happens."""
    progress("")
    best = {
        name: (
            min(found["seconds"]),
            min(idle["private"] for idle in found["idle"]),
            min(idle["anonymous"] for idle in found["idle"]),
        )
        for name, found in results.items()
    }
    kafka = best.get("kafka", (None, None, None))
    print_table(
        "start with an empty folder, to the first answer; memory when idle",
        ["", "s", "of Kafka's", "private MB", "of Kafka's", "anonymous MB"],
        [
            [
                name,
                f"{seconds:.3f}",
                ratio(seconds, kafka[0], 3),
                f"{private / 1e6:,.1f}",
                ratio(private, kafka[1], 3),
                f"{anonymous / 1e6:,.1f}",
            ]
            for name, (seconds, private, anonymous) in best.items()
        ],
    )


def print_after(servers: dict[str, Server], starts: dict[str, Any]) -> None:
    """Look at the memory again, and print what is left of the work."""
    time.sleep(IDLE_SECONDS)
    table = []
    for name, server in servers.items():
        found = memory(server.pid)
        starts[name]["after"] = vars(found)
        table.append([name, f"{found.private / 1e6:,.1f}", f"{found.anonymous / 1e6:,.1f}"])
    print_table("memory when idle again", ["", "private MB", "anonymous MB"], table)


# -- throughput ------------------------------------------------------------------------------------


def warm_up(bench: Bench) -> None:
    """Have each server do some of what is measured, so that what compiles is compiled."""
    seen = set()
    for contender in bench.contenders:
        server = getattr(contender, "server", None)
        if server is None or server in seen:
            continue
        seen.add(server)
        progress(f"warm up: {server.name}")
        for size, partitions, _who in bench.plan.throughput:
            load = Load(partitions, size, bench.plan.warm_seconds, bench.plan.most_bytes // size)
            try:
                contender.throughput(bench.client, load)
                contender.single(bench.client, SINGLE_SIZE, bench.plan.warm_seconds / 2, 1)
            except DriverError as error:
                failed(contender.label, "warm-up", error)


def summary(runs: list[Run]) -> Run:
    """Give the best of some rounds."""
    fastest = max(runs, key=lambda run: run["records"] / run["seconds"])
    best = {
        "records_per_second": fastest["records"] / fastest["seconds"],
        # Of the fastest round, to see who had no more to give.
        "server_cores": fastest["server_cpu"] / fastest["seconds"],
        "client_cores": fastest["client_cpu"] / fastest["seconds"],
        "server_cpu": min(run["server_cpu"] / run["records"] for run in runs),
        "client_cpu": min(run["client_cpu"] / run["records"] for run in runs),
        "runs": runs,
    }
    if "memory" in fastest:
        best["private"] = max(run["memory"].private for run in runs)
        best["anonymous"] = max(run["memory"].anonymous for run in runs)
        for run in runs:
            run["memory"] = vars(run["memory"])
    return best


def bench_trials(bench: Bench, trials: list[Trial]) -> list[dict[str, Any]]:
    """Measure contenders with some loads, and print the tables."""
    results = []
    for size, partitions, who in trials:
        most = min(bench.plan.most_bytes // size, bench.plan.most_records)
        load = Load(partitions, size, bench.plan.seconds, most)
        runs: dict[str, dict[str, list[Run]]] = {}
        contenders = [each for each in bench.contenders if not who or each.label in who]
        for number, contender in turns(contenders, bench.plan.rounds):
            progress(f"{partitions} × {size} B, round {number + 1}: {contender.label}")
            try:
                done = contender.throughput(bench.client, load)
            except DriverError as error:
                failed(contender.label, f"{partitions} × {size} B", error)
                continue
            for verb, run in done.items():
                runs.setdefault(verb, {}).setdefault(contender.label, []).append(run)
        for verb, found in runs.items():
            best = {label: summary(rounds) for label, rounds in found.items()}
            results.append({"verb": verb, "size": size, "partitions": partitions, "best": best})
    progress("")
    for verb in ("produce", "consume"):
        for row in results:
            if row["verb"] == verb:
                print_throughput(bench, row)
    return results


def print_throughput(bench: Bench, row: dict[str, Any]) -> None:
    """Print a table: one verb, one load."""
    best, size = row["best"], row["size"]
    plural = "s" if row["partitions"] > 1 else ""
    title = f"{row['verb']}: {size:,} B, {row['partitions']} partition{plural}"
    table = []
    for contender in bench.contenders:
        found, kafka = best.get(contender.label), best.get(contender.against, {})
        if found is None:
            continue
        # The mock's CPU is in the client's.
        apart = "private" in found
        rate = found["records_per_second"]
        table.append(
            [
                contender.label,
                f"{rate / 1e3:,.0f}",
                f"{rate * size / 1e6:,.0f}",
                ratio(rate, kafka.get("records_per_second")),
                f"{found['server_cpu'] * 1e6:.2f}" if apart else "",
                ratio(found["server_cpu"], kafka.get("server_cpu")) if apart else "",
                f"{found['client_cpu'] * 1e6:.2f}",
                f"{found['server_cores']:.2f}" if apart else "",
                f"{found['client_cores']:.2f}",
                megabytes(found["private"]) if apart else "",
                megabytes(found["anonymous"]) if apart else "",
            ]
        )
    print_table(
        f"{title}; CPU s per million records",
        [
            *("", "1000/s", "MB/s", "of Kafka's", "broker CPU", "of Kafka's", "client CPU"),
            *("broker cores", "client cores", "private MB", "anonymous"),
        ],
        table,
    )


# -- single ----------------------------------------------------------------------------------------


def bench_single(bench: Bench) -> list[dict[str, Any]]:
    """Measure requests of one record, and print the tables."""
    results = []
    for on_their_way in (1, 1000):
        runs: dict[str, list[Run]] = {}
        for _, contender in turns(bench.contenders, bench.plan.rounds):
            progress(f"single, {on_their_way} on their way: {contender.label}")
            seconds = bench.plan.single_seconds
            try:
                run = contender.single(bench.client, SINGLE_SIZE, seconds, on_their_way)
            except DriverError as error:
                failed(contender.label, "single", error)
                continue
            if run is not None:
                runs.setdefault(contender.label, []).append(run)
        results.append({"on_their_way": on_their_way, "runs": runs})
        print_single(bench, on_their_way, runs)
    return results


def print_single(bench: Bench, on_their_way: int, runs: dict[str, list[Run]]) -> None:
    """Print what a request costs."""
    progress("")
    best = {
        label: {
            "rate": max(run["requests"] / run["seconds"] for run in rounds),
            "server": min(run["server_cpu"] / run["requests"] for run in rounds),
            "client": min(run["client_cpu"] / run["requests"] for run in rounds),
        }
        for label, rounds in runs.items()
    }
    print_table(
        f"one record of {SINGLE_SIZE} B in each request, {on_their_way:,} on their way",
        [
            *("", "requests/s", "of Kafka's", "broker CPU µs", "of Kafka's", "aim µs"),
            "client CPU µs",
        ],
        [
            [
                contender.label,
                f"{found['rate']:,.0f}",
                ratio(found["rate"], best.get(contender.against, {}).get("rate")),
                f"{found['server'] * 1e6:.1f}",
                ratio(found["server"], best.get(contender.against, {}).get("server")),
                f"{SINGLE_AIM_US}" if contender.label.startswith("ottla") else "",
                f"{found['client'] * 1e6:.1f}",
            ]
            for contender in bench.contenders
            if (found := best.get(contender.label))
        ],
    )


# -- latency ---------------------------------------------------------------------------------------


def bench_latency(bench: Bench) -> list[dict[str, Any]]:
    """Measure single records at a fixed rate, and print the table."""
    brokers = [
        contender
        for contender in bench.contenders
        if isinstance(contender, Broker) and contender.acks == "all"
    ]
    found: dict[tuple[str, bool], list[dict[str, Any]]] = {}
    for number, contender in turns(brokers, bench.plan.rounds):
        for replaying in (False, True):
            meanwhile = ", while cold data is read" if replaying else ""
            progress(f"latency{meanwhile}, round {number + 1}: {contender.label}")
            try:
                run = measure_latency(bench, contender, replaying=replaying)
            except DriverError as error:
                failed(contender.label, "latency", error)
                # It may still be at work.
                bench.other_client.stop()
                continue
            found.setdefault((contender.label, replaying), []).append(run)
    results = [
        {
            "label": contender.label,
            "against": contender.against,
            "cold": replaying,
            "best": min(runs, key=lambda run: run["delivered"]["p99"]),
            "runs": runs,
        }
        for contender in brokers
        for replaying in (False, True)
        if (runs := found.get((contender.label, replaying)))
    ]
    print_latency(results)
    return results


def measure_latency(bench: Bench, contender: Broker, *, replaying: bool) -> dict[str, Any]:
    """Give percentiles, with or without somebody who reads cold data."""
    seconds, server = bench.plan.latency_seconds, contender.server
    topic = contender.create_topic(bench.client, 1)
    cold = contender.create_topic(bench.client, 1) if replaying else ""
    records = bench.plan.cold_bytes // COLD_SIZE
    if replaying:
        bench.client.call(
            "rdkafka.write_cold",
            address=server.address,
            topic=cold,
            data=str(server.data),
            size=COLD_SIZE,
            records=records,
        )
        # One second more: what comes before the first record counts.
        bench.other_client.begin(
            "rdkafka.replay",
            address=server.address,
            topic=cold,
            records=records,
            seconds=seconds + 1,
        )
    device = device_bytes_read(server.pid)
    latencies = bench.client.call(
        "rdkafka.latency",
        address=server.address,
        topic=topic,
        acks=contender.acks,
        rate=RATE,
        seconds=seconds,
    )
    found: dict[str, Any] = {
        verb: {
            name: ordered[min(int(part * len(ordered)), len(ordered) - 1)]
            for name, part in PERCENTILES.items()
        }
        | {"most": ordered[-1], "count": len(ordered)}
        for verb, ordered in latencies.items()
    }
    if replaying:
        found["replay"] = bench.other_client.end()
        found["device_bytes"] = device_bytes_read(server.pid) - device
        contender.delete_topic(bench.client, cold)
    contender.delete_topic(bench.client, topic)
    return found


def print_latency(results: list[dict[str, Any]]) -> None:
    """Print the percentiles."""
    progress("")
    by_name = {(row["label"], row["cold"]): row["best"] for row in results}
    table = []
    for row in results:
        best, kafka = row["best"], by_name.get((row["against"], row["cold"]), {})
        cells = [row["label"] + (", cold reads" if row["cold"] else "")]
        for verb in ("delivered", "consumed"):
            cells += [f"{best[verb][name] * 1e3:.2f}" for name in PERCENTILES]
            cells.append(ratio(best[verb]["p99"], kafka.get(verb, {}).get("p99")))
        if row["cold"]:
            replayed = best["replay"]["records"] * COLD_SIZE
            cells.append(megabytes(replayed / best["replay"]["seconds"]))
            cells.append(ratio(best["device_bytes"], replayed))
        else:
            cells += ["", ""]
        table.append(cells)
    print_table(
        f"latency, acks=all, {RATE} records of 100 B a second, in ms",
        [
            *("", *(f"report {name}" for name in PERCENTILES), "p99 of Kafka's"),
            *(*(f"consumer {name}" for name in PERCENTILES), "p99 of Kafka's"),
            *("cold MB/s", "from the device"),
        ],
        table,
    )


# -- all -------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Bench], Any]] = {
    "throughput": lambda bench: bench_trials(bench, bench.plan.throughput),
    "sizes": lambda bench: bench_trials(bench, bench.plan.sizes),
    "partitions": lambda bench: bench_trials(bench, bench.plan.partitions),
    "single": bench_single,
    "latency": bench_latency,
}
SERVERS = ("ottla", "kafka", "redis")


def find_servers(
    wanted: list[str], libs: Path | None
) -> tuple[dict[str, Callable[[Path], Server]], dict[str, str]]:
    """Give what makes each server, and why others are left out."""
    missing = {
        "ottla": Ottla.missing(),
        "kafka": Kafka.missing(libs),
        "redis": Redis.missing(),
    }
    left_out = {name: reason for name in wanted if (reason := missing[name])}
    for name, reason in left_out.items():
        print(f"{name} is left out: {reason}", flush=True)
    makers: dict[str, Callable[[Path], Server]] = {
        "ottla": Ottla,
        "kafka": lambda folder: Kafka(folder, libs or Path()),
        "redis": Redis,
    }
    return {name: makers[name] for name in wanted if name not in left_out}, left_out


def main() -> None:
    """Measure all of it, or what was named."""
    parser = command_line(__doc__, quick="a minute instead of six", parts=PARTS, files="4 GiB")
    parser.add_argument("--kafka-libs", type=Path, help="the jars of Apache Kafka")
    parser.add_argument("--servers", choices=SERVERS, nargs="+", help="leave the others out")
    options = parser.parse_args()
    libs = options.kafka_libs or os.environ.get("KAFKA_LIBS")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 16_384), hard), hard))

    plan = QUICK if options.quick else FULL
    wanted = options.servers or list(SERVERS)
    makers, left_out = find_servers(wanted, Path(libs).resolve() if libs else None)
    with ExitStack() as stack:
        results = stack.enter_context(recording("broker", options))
        folder = tempfile.TemporaryDirectory(dir=options.dir, prefix="ottla-bench-")
        root = Path(stack.enter_context(folder))
        servers, starts = start_servers(makers, plan, root, stack)
        print_starts(starts)
        client, other_client = Driver(), Driver()
        stack.callback(client.stop)
        stack.callback(other_client.stop)
        bench = Bench(plan, servers, contenders_of(servers), client, other_client)
        versions = {name: server.version() for name, server in servers.items()}
        results |= {"start": starts, "versions": versions, "left_out": left_out}
        warm_up(bench)
        for name in options.only or PARTS:
            results[name] = PARTS[name](bench)
        print_after(servers, starts)


if __name__ == "__main__":
    main()
