"""The figures of docs/benchmarks.md: which results each one shows, as tables and as plots.

A figure shows one part of one script's results. They were measured in one run, so whatever stands
side by side can be compared. The scripts print the same tables to the terminal.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from operator import getitem
from typing import Any, NamedTuple

Row = Mapping[str, Any]
Points = Sequence[tuple[float, float]]

#: A percentile as one in N, which spreads the tail evenly over a logarithmic axis.
PERCENTILES = {"p50": 2, "p90": 10, "p99": 100, "p99.9": 1000}


def compact(value: float) -> str:
    """Format a number with three digits and a suffix."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def byte_size(value: float) -> str:
    """Format a number of bytes."""
    for limit, suffix in ((1024**2, "MiB"), (1024, "KiB")):
        if value >= limit:
            return f"{value / limit:.3g} {suffix}"
    return f"{value:.0f} B"


class Bars(NamedTuple):
    """A panel of horizontal bars, one for each label."""

    title: str
    unit: str
    values: Mapping[str, float]


class Lines(NamedTuple):
    """A panel of lines, one for each label; both axes are logarithmic."""

    title: str
    unit: str
    x_label: str
    values: Mapping[str, Points]
    x_format: Callable[[float], str] = compact


class Table(NamedTuple):
    """A table; the first column is left-aligned, the others right-aligned."""

    header: list[str]
    rows: list[list[str]]


class Column(NamedTuple):
    """A column of a table: where a row has its value ("delivered/p99"), and how to format it."""

    header: str
    path: str
    scale: float = 1
    spec: str = ",.0f"

    def number(self, row: Row) -> float | None:
        """Return the scaled value, or None if it was not measured."""
        try:
            value = reduce(getitem, self.path.split("/"), row)  # type: ignore[arg-type]
        except KeyError:
            return None
        return None if value is None else float(value) * self.scale  # type: ignore[arg-type]

    def text(self, row: Row) -> str:
        """Return the formatted value."""
        if not self.spec:
            return str(row[self.path])
        number = self.number(row)
        return "" if number is None else format(number, self.spec)


def table(corner: str, rows: Iterable[tuple[str, Row]], *columns: Column) -> Table:
    """Return a table with a label and these columns in each row."""
    return Table(
        [corner, *(column.header for column in columns)],
        [[label, *(column.text(row) for column in columns)] for label, row in rows],
    )


def matrix(corner: str, trials: Mapping[str, Mapping[str, Row]], column: Column) -> Table:
    """Return a table of one value, with a column for each trial and a row for each contender."""
    labels = dict.fromkeys(label for rows in trials.values() for label in rows)
    return Table(
        [corner, *trials],
        [
            [label, *(column.text(rows.get(label, {})) for rows in trials.values())]
            for label in labels
        ],
    )


def bars(title: str, rows: Mapping[str, Row], column: Column) -> Bars:
    """Return a panel with a bar for each contender that has the value."""
    numbers = {label: column.number(row) for label, row in rows.items()}
    values = {label: value for label, value in numbers.items() if value is not None}
    return Bars(title, column.header, values)


def lines(
    title: str,
    x_label: str,
    rows: Sequence[tuple[float, Mapping[str, Row]]],
    column: Column,
    x_format: Callable[[float], str] = compact,
) -> Lines:
    """Return a panel with a line for each contender over the x values of the rows."""
    values: dict[str, list[tuple[float, float]]] = {}
    for x, contenders in rows:
        for label, row in contenders.items():
            if (y := column.number(row)) is not None:
                values.setdefault(label, []).append((x, y))
    return Lines(title, column.header, x_label, values, x_format)


def column_lines(
    title: str, x_label: str, rows: Sequence[Row], x: str, *columns: Column, **options: Any
) -> Lines:
    """Return a panel with a line for each column, named after it, in the unit of the first."""
    values = {
        column.header.partition(",")[0]: [(row[x], column.number(row) or 0.0) for row in rows]
        for column in columns
    }
    return Lines(title, columns[0].header.rpartition(", ")[2], x_label, values, **options)


Drawing = Iterator[Bars | Lines | Table]


class Figure(NamedTuple):
    """A figure: its title, the part of a script's results it shows, its caption, how to draw it."""

    title: str
    bench: str
    part: str
    caption: str
    draw: Callable[[Any], Drawing]

    @property
    def plot(self) -> str:
        """The file name of the plot."""
        return re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-") + ".svg"


Draw = Callable[[Any], Drawing]


@dataclass(frozen=True)
class Section:
    """Figures under one heading."""

    title: str
    text: str
    figures: list[Figure] = field(default_factory=list)

    def figure(self, title: str, source: str, caption: str) -> Callable[[Draw], Draw]:
        """Add a figure; `source` is a script and a part of its results."""

        def add(draw: Draw) -> Draw:
            self.figures.append(Figure(title, *source.split("/"), caption, draw))
            return draw

        return add


# -- broker ----------------------------------------------------------------------------------------

BROKER = Section(
    "Broker compared with Apache Kafka, Redis Streams and librdkafka's mock cluster",
    "The client is librdkafka (confluent-kafka) for ottla and Kafka, and a pipelined connection "
    "for Redis. It shares the cores with the broker and is often the bottleneck. With acks=all, "
    "ottla fsyncs before it acknowledges (the default, `fsync`); Kafka never waits for the disk, "
    "so compare it with `page-cache`. The mock cluster runs inside the client process and shows "
    "the limit of the client.",
)

RATE = Column("records/s", "records_per_second")
SPREAD = Column("spread", "spread", spec=".0%")
VERSUS_KAFKA = Column("× Kafka", "versus_kafka", 1, ".2f")
MEGABYTES = Column("MB/s", "bytes_per_second", 1e-6)
BROKER_CPU = Column("broker CPU, s per million records", "server_cpu", 1e6, ".2f")
CLIENT_CPU = Column("client CPU, s per million records", "client_cpu", 1e6, ".2f")
BROKER_CORES = Column("broker cores", "server_cores", 1, ".2f")
CLIENT_CORES = Column("client cores", "client_cores", 1, ".2f")
BROKER_MEMORY = Column("broker memory, MB", "anonymous", 1e-6)


@BROKER.figure(
    "Throughput",
    "broker/throughput",
    "12 partitions, librdkafka's default batching. Broker memory is anonymous memory.",
)
def draw_throughput(trials: list[Row]) -> Drawing:
    for trial in _smallest_records(trials):
        yield bars(f"{trial['operation']}, {byte_size(trial['size'])}", trial["contenders"], RATE)
    for trial in trials:
        title = f"{trial['operation']}, {byte_size(trial['size'])}"
        columns = (
            *(RATE, SPREAD, VERSUS_KAFKA, MEGABYTES),
            *(BROKER_MEMORY, BROKER_CORES, CLIENT_CORES),
        )
        yield table(title, trial["contenders"].items(), *columns)


@BROKER.figure(
    "Broker CPU per million records",
    "broker/throughput",
    "From the same runs: user and system time of all threads of the broker.",
)
def draw_cpu(trials: list[Row]) -> Drawing:
    columns = {
        f"{trial['operation']}, {byte_size(trial['size'])}": {
            label: row for label, row in trial["contenders"].items() if "server_cpu" in row
        }
        for trial in trials
    }
    for trial in _smallest_records(trials):
        title = f"{trial['operation']}, {byte_size(trial['size'])}"
        yield bars(title, columns[title], BROKER_CPU)
    yield matrix(BROKER_CPU.header, columns, BROKER_CPU)


def _smallest_records(trials: list[Row]) -> list[Row]:
    smallest = min(trial["size"] for trial in trials)
    return [trial for trial in trials if trial["size"] == smallest]


def _by_operation(trials: list[Row]) -> Iterator[tuple[str, list[Row]]]:
    for operation in ("produce", "consume"):
        if found := [trial for trial in trials if trial["operation"] == operation]:
            yield operation, found


@BROKER.figure(
    "Throughput by record size",
    "broker/sizes",
    "The broker handles batches, never single records: small records cost the client.",
)
def draw_sizes(trials: list[Row]) -> Drawing:
    for operation, found in _by_operation(trials):
        rows = [(trial["size"], trial["contenders"]) for trial in found]
        yield lines(operation, "record size", rows, MEGABYTES, byte_size)
    for operation, found in _by_operation(trials):
        columns = {byte_size(trial["size"]): trial["contenders"] for trial in found}
        yield matrix(f"{operation}, records/s", columns, RATE)


@BROKER.figure(
    "CPU and memory by number of partitions",
    "broker/partitions",
    "Records of 100 bytes. More partitions mean smaller batches and larger requests.",
)
def draw_partitions(trials: list[Row]) -> Drawing:
    for operation, found in _by_operation(trials):
        rows = [(trial["partitions"], trial["contenders"]) for trial in found]
        yield lines(operation, "partitions", rows, BROKER_CPU)
    rows = [
        (f"{label}, {trial['operation']}", row | {"partitions": trial["partitions"]})
        for trial in trials
        for label, row in trial["contenders"].items()
    ]
    yield table("", rows, Column("partitions", "partitions"), RATE, BROKER_CPU, BROKER_MEMORY)


@BROKER.figure(
    "Single-record requests",
    "broker/single",
    "The worst case: no cost is shared between records. The target for ottla is 50 µs of CPU "
    "per request; see [small requests](decisions/0001-small-requests.md).",
)
def draw_single(trials: list[Row]) -> Drawing:
    cpu = Column("broker CPU, µs per request", "server_cpu", 1e6, ".1f")
    for trial in trials:
        yield bars(f"{trial['in_flight']:,} in flight", trial["contenders"], cpu)
    for trial in trials:
        columns = (
            *(Column("requests/s", "requests_per_second"), SPREAD, VERSUS_KAFKA, cpu),
            Column("client CPU, µs per request", "client_cpu", 1e6, ".1f"),
        )
        yield table(f"{trial['in_flight']:,} in flight", trial["contenders"].items(), *columns)


def draw_latency(rows: list[Row], *, cold: bool) -> Drawing:
    ends = {"delivered": "produce to acknowledgement", "consumed": "produce to consumer"}
    names = {one_in: name for name, one_in in PERCENTILES.items()}
    rows = [row for row in rows if row["cold"] == cold]
    for end, title in ends.items():
        values = {
            row["label"]: [(at, row["median"][end][name] * 1e3) for name, at in PERCENTILES.items()]
            for row in rows
        }
        yield Lines(title, "ms", "percentile", values, lambda at: names[round(at)])
    for end, title in ends.items():
        columns = [
            Column(name, f"median/{end}/{name}", 1e3, ".2f") for name in (*PERCENTILES, "max")
        ]
        records = Column("records", f"median/{end}/count")
        yield table(f"{title}, ms", ((row["label"], row) for row in rows), *columns, records)


BROKER.figure("Latency", "broker/latency", "500 records a second, one per request, acks=all.")(
    partial(draw_latency, cold=False)
)
BROKER.figure(
    "Latency during cold reads",
    "broker/latency",
    "The same load while another consumer reads data that is not in the page cache.",
)(partial(draw_latency, cold=True))


@BROKER.figure(
    "Startup time and idle memory",
    "broker/start",
    "From the spawn of the process to its first response, with an empty data directory.",
)
def draw_start(servers: Mapping[str, Row]) -> Drawing:
    columns = {
        "startup": Column("seconds", "seconds", 1, ".3f"),
        "idle memory": Column("MB", "private", 1e-6, ",.1f"),
    }
    for title, column in columns.items():
        yield bars(title, servers, column)
    seconds, memory = columns.values()
    yield table(
        "",
        servers.items(),
        seconds._replace(header="startup, s"),
        memory._replace(header="private memory, MB"),
    )


# -- log -------------------------------------------------------------------------------------------

LOG = Section(
    "Partition log",
    "Everything runs in page-cache mode with a warm cache: nothing waits for the disk.",
)


@LOG.figure(
    "Append compared with pwrite",
    "log/append",
    "`Log.append` validates the CRC, assigns offsets and maintains the indexes.",
)
def draw_append(rows: list[Row]) -> Drawing:
    titles = {"log": "Log.append", "pwrite": "pwrite", "crc+pwrite": "CRC + pwrite"}
    times = [Column(f"{title}, µs", f"seconds/{key}", 1e6, ".1f") for key, title in titles.items()]
    yield column_lines("time per append", "batch size", rows, "size", *times, x_format=byte_size)
    rates = {
        title: [(row["size"], row["size"] / row["seconds"][key] / 1e6) for row in rows]
        for key, title in titles.items()
    }
    yield Lines("throughput", "MB/s", "batch size", rates, byte_size)
    ratio = Column("pwrite / Log.append", "ratio", 1, ".2f")
    target = Column("target", "target", 1, ".2f")
    yield table("batch", ((byte_size(row["size"]), row) for row in rows), *times, ratio, target)


@LOG.figure(
    "Append, read and roll by log length",
    "log/growth",
    "Batches of 1 KiB in small segments. A long log must not cost more than a short one.",
)
def draw_growth(rows: list[Row]) -> Drawing:
    columns = [
        Column(f"{operation}, µs", f"seconds/{operation}", 1e6, ",.1f")
        for operation in ("append", "read", "roll")
    ]
    yield column_lines("time per operation", "batches in the log", rows, "batches", *columns)
    labelled = ((f"{row['batches']:,}", row) for row in rows)
    yield table("batches", labelled, Column("segments", "segments"), *columns)


@LOG.figure(
    "Startup time by number of partitions", "log/load", "Each partition has one batch of 1 KiB."
)
def draw_load(rows: list[Row]) -> Drawing:
    rows = [
        row
        | {"each_seconds": row["seconds"] / row["logs"], "each_bytes": row["bytes"] / row["logs"]}
        for row in rows
    ]
    seconds = Column("ottla, seconds", "seconds", 1, ".3f")
    memory = Column("ottla, MB", "bytes", 1e-6, ".1f")
    yield column_lines("startup after a clean shutdown", "partitions", rows, "logs", seconds)
    yield column_lines("additional memory", "partitions", rows, "logs", memory)
    yield table(
        "partitions",
        ((f"{row['logs']:,}", row) for row in rows),
        seconds._replace(header="seconds"),
        Column("µs per partition", "each_seconds", 1e6),
        memory._replace(header="additional MB"),
        Column("KB per partition", "each_bytes", 1e-3, ".1f"),
    )


@LOG.figure("Reads", "log/read", "A fetch sends the slices that it reads.")
def draw_reads(results: Row) -> Drawing:
    rate, size = results["sequential"], results["sequential"]["bytes"]
    rows = {
        "Log.read": {"rate": size / rate["seconds"]["log"]},
        "slices of one mmap": {"rate": size / rate["seconds"]["bare"]},
    }
    yield table("1 MiB slices, read and sent", rows.items(), Column("MB/s", "rate", 1e-6))
    calls = {name: {"seconds": seconds} for name, seconds in results["call_seconds"].items()}
    column = Column("µs", "seconds", 1e6, ".1f")
    yield table("one Log.read, at varying offsets", calls.items(), column)


@LOG.figure("Crash recovery", "log/recovery", "Batches of 16 KiB.")
def draw_recovery(results: Row) -> Drawing:
    seconds, size = results["seconds"], results["bytes"]
    rows = {
        "recovery of a log": {"rate": size / seconds["log"]},
        "CRC over the same reads": {"rate": size / seconds["bare"]},
    }
    yield table("scan", rows.items(), Column("MB/s", "rate", 1e-6))


# -- clients ---------------------------------------------------------------------------------------

CLIENTS = Section(
    "Client libraries",
    "All clients use one ottla broker: six partitions, values of 100 bytes, acks=all and "
    "idempotence where supported. Each run is a new process. Topics use `durability=page-cache`.",
)


@CLIENTS.figure(
    "Consume",
    "client/consume",
    "From the assignment to the last record. The client reads the length of each value.",
)
@CLIENTS.figure(
    "Produce",
    "client/produce",
    "Until the last acknowledgement has been checked: one per record, or one for all "
    "(send_many, send_arrow).",
)
def draw_clients(trials: list[Row]) -> Drawing:
    plain = trials[0]["contenders"]
    yield bars("throughput", plain, RATE)
    yield bars("client CPU", plain, CLIENT_CPU)
    memory = Column("client memory, MB", "anonymous", 1e-6)
    for trial in trials:
        title = f"{trial['operation']}{trial['load']}"
        columns = (RATE, SPREAD, CLIENT_CPU, BROKER_CPU, memory)
        yield table(title, trial["contenders"].items(), *columns)


@CLIENTS.figure(
    "Import time and memory of clients", "client/imports", "Including all dependencies."
)
def draw_imports(rows: Mapping[str, Row]) -> Drawing:
    yield table("import", rows.items(), Column("ms", "ms"), Column("MB", "mb", 1, ".1f"))


# -- Spark -----------------------------------------------------------------------------------------

SPARK = Section(
    "Spark",
    "One session with two cores reads records of 100 bytes from six partitions of an ottla broker.",
)

SPARK_CPU = Column("CPU, s per million records", "cpu", 1, ".2f")


def _with_rate(costs: Mapping[str, Row]) -> dict[str, Row]:
    return {
        name: {**cost, "records_per_second": 1e6 / cost["elapsed"]} for name, cost in costs.items()
    }


@SPARK.figure(
    "Batch read",
    "spark/read",
    "The ottla source returns Arrow batches; `tuples` is the usual way for a Python data "
    "source. With its default configs, Spark's connector polls 500 records at a time and "
    "requests the partition's offsets after each poll. CPU is the sum of Spark, its workers and "
    "the broker.",
)
def draw_spark_reads(results: Row) -> Drawing:
    jobs = {job: _with_rate(results[job]) for job in ("count", "aggregate")}
    names = sorted(jobs["count"], key=lambda name: results["count"][name]["elapsed"])
    for job, costs in jobs.items():
        yield bars(job, {name: costs[name] for name in names}, RATE)
    columns = [
        column._replace(path=f"{job}/{column.path}", header=f"{job}: {column.header}")
        for job in jobs
        for column in (RATE, SPREAD, SPARK_CPU)
    ]
    rows = [(name, {job: costs[name] for job, costs in jobs.items()}) for name in names]
    yield table(f"{results['records']:,} records", rows, *columns)


@SPARK.figure(
    "Batch write",
    "spark/write",
    "Rows with a key and a value of 100 bytes, generated by Spark; acks=all. The exactly-once sink "
    "writes in transactions.",
)
def draw_spark_writes(results: Row) -> Drawing:
    rows = _with_rate(results["contenders"])
    yield bars("write", rows, RATE)
    yield table(f"{results['records']:,} keyed rows", rows.items(), RATE, SPREAD, SPARK_CPU)


@SPARK.figure(
    "Micro-batch overhead",
    "spark/batches",
    "One record per micro-batch: its fixed cost. The sink is noop, or a topic.",
)
def draw_micro_batches(results: Mapping[str, Row]) -> Drawing:
    yield bars("micro-batch of one record", results, Column("ms", "triggerExecution"))
    phases = next(iter(results.values()))
    yield table("ms", results.items(), *(Column(phase, phase) for phase in phases))


# -- consumer groups -------------------------------------------------------------------------------

GROUPS = Section(
    "Consumer groups",
    "Requests of members are encoded in advance and sent over plain sockets, so that the broker "
    "is the bottleneck.",
)


@GROUPS.figure(
    "Rebalance time by group size",
    "groups/rebalance",
    "From the last JoinGroup request until every member has its assignment.",
)
def draw_rebalance(results: Mapping[str, Row]) -> Drawing:
    rows = [
        {"members": int(count), "cpu_each": row["cpu_seconds"] / int(count), **row}
        for count, row in results.items()
    ]
    best = Column("best, ms", "best_seconds", 1e3, ",.1f")
    yield column_lines("rebalance", "members", rows, "members", best._replace(header="ottla, ms"))
    cpu = Column("ottla, µs per member", "cpu_each", 1e6)
    yield column_lines("broker CPU", "members", rows, "members", cpu)
    yield table(
        "members",
        ((f"{row['members']:,}", row) for row in rows),
        best,
        Column("median, ms", "median_seconds", 1e3, ",.1f"),
        Column("broker CPU, ms", "cpu_seconds", 1e3, ",.1f"),
    )


@GROUPS.figure(
    "Rebalances by protocol",
    "groups/protocols",
    "A member is replaced by a new one; members send each request as soon as the previous one is "
    "answered, without the intervals of heartbeats.",
)
def draw_protocols(rows: list[Row]) -> Drawing:
    yield table(
        "group",
        ((f"{row['members']:,} members, {row['server']}, {row['protocol']}", row) for row in rows),
        Column("best, ms", "best_seconds", 1e3, ",.1f"),
        Column("worst, ms", "worst_seconds", 1e3, ",.1f"),
        Column("broker CPU, ms", "cpu_seconds", 1e3, ",.1f"),
    )


@GROUPS.figure("Offset commits", "groups/commit", "16 concurrent members.")
def draw_commits(rows: list[Row]) -> Drawing:
    yield table(
        "durability",
        ((row["durability"], row) for row in rows),
        Column("partitions per commit", "partitions"),
        Column("in flight per member", "in_flight"),
        Column("commits/s", "commits_per_second"),
        Column("offsets/s", "offsets_per_second"),
        Column("broker CPU, µs per commit", "cpu_seconds", 1e6),
    )


@GROUPS.figure(
    "Broker startup after many offset commits",
    "groups/start",
    "1,000 groups with ten partitions each. Compaction has removed old commits.",
)
def draw_group_start(rows: list[Row]) -> Drawing:
    yield table(
        "offset commits",
        ((f"{row['commits']:,}", row) for row in rows),
        Column("shutdown", "shutdown", spec=""),
        Column("MB on disk", "bytes", 1e-6, ",.1f"),
        Column("records read", "records"),
        Column("first response, ms", "response_seconds", 1e3),
        Column("first group loaded, ms", "first_group_seconds", 1e3),
        Column("all groups loaded, ms", "all_groups_seconds", 1e3),
    )


# -- transactions ----------------------------------------------------------------------------------

TRANSACTIONS = Section(
    "Transactions",
    "The load of confluent-kafka, 100-byte records. Kafka never waits for the disk: compare it "
    "with page-cache.",
)


@TRANSACTIONS.figure(
    "Committed transactions",
    "transactions/commit",
    "Each producer commits one transaction after another.",
)
def draw_transactions(results: list[Row]) -> Drawing:
    rows = [
        (f"{trial['records']} / {trial['partitions']} / {trial['producers']}, {label}", row)
        for trial in results
        for label, row in trial["contenders"].items()
    ]
    yield table(
        "records / partitions / producers",
        rows,
        Column("transactions/s", "records_per_second"),
        SPREAD,
        Column("× Kafka", "versus_kafka", spec=".2f"),
        Column("broker CPU, µs", "server_cpu", 1e6),
        Column("client CPU, µs", "client_cpu", 1e6),
    )


@TRANSACTIONS.figure(
    "Latency of committed records",
    "transactions/latency",
    "From the produce call to a read_committed consumer, 500 records/s.",
)
def draw_transaction_latency(results: list[Row]) -> Drawing:
    yield table(
        "commit interval",
        [
            (f"{trial['interval'] * 1e3:.0f} ms, {label}", row)
            for trial in results
            for label, row in trial["contenders"].items()
        ],
        Column("p50, ms", "p50", 1e3, ",.1f"),
        Column("p99, ms", "p99", 1e3, ",.1f"),
    )


# -- security --------------------------------------------------------------------------------------

SECURITY = Section(
    "Security",
    "TLS 1.3 with an ECDSA certificate. Clients are confluent-kafka, and blocking sockets for "
    "connections. Records are in the page cache when they are acknowledged, with Kafka too.",
)


@SECURITY.figure(
    "Throughput over TLS", "security/tls", "100-byte records in 12 partitions, acks=1."
)
def draw_tls(results: list[Row]) -> Drawing:
    for row in results:
        yield bars(row["operation"], row["contenders"], RATE)
    for row in results:
        columns = (RATE, VERSUS_KAFKA, SPREAD, BROKER_CPU, BROKER_CORES, CLIENT_CORES)
        yield table(row["operation"], row["contenders"].items(), *columns)


@SECURITY.figure(
    "Cost of the authorizer",
    "security/authorizer",
    "One record per request in plain text, the median of the rounds; the spread is that of CPU.",
)
def draw_authorizer(results: Row) -> Drawing:
    yield table(
        "broker",
        results.items(),
        Column("requests/s", "requests_per_second"),
        Column("broker CPU, µs per request", "server_cpu", 1e6, ".2f"),
        Column("best, µs", "best_cpu", 1e6, ".2f"),
        SPREAD,
    )


@SECURITY.figure(
    "Connection set-up",
    "security/connections",
    "Connect, TLS handshake, SCRAM-SHA-256, and close, in eight threads of the client.",
)
def draw_secure_connections(results: list[Row]) -> Drawing:
    rows = [(label, row) for trial in results for label, row in trial["contenders"].items()]
    yield table(
        "listener",
        rows,
        Column("connections/s", "records_per_second"),
        VERSUS_KAFKA,
        SPREAD,
        Column("broker CPU, µs", "server_cpu", 1e6),
        Column("client CPU, µs", "client_cpu", 1e6),
    )


@SECURITY.figure(
    "ACL checks",
    "security/checks",
    "A decision is remembered until ACLs change. Half of the ACLs are prefixed.",
)
def draw_checks(results: list[Row]) -> Drawing:
    yield table(
        "ACLs",
        [(f"{row['acls']:,}", row) for row in results],
        Column("remembered, ns", "remembered", 1e9),
        Column("decided, ns", "decided", 1e9),
    )


# -- cluster ---------------------------------------------------------------------------------------

CLUSTER = Section(
    "Cluster",
    "Three brokers compared with one. Brokers and client share the cores of one machine: the "
    "figures show the overhead of a cluster, not its scaling.",
)


@CLUSTER.figure(
    "One broker compared with three",
    "cluster/throughput",
    "librdkafka sends each batch to the leader of its partition. With three brokers, requests "
    "are smaller and there are more of them.",
)
def draw_cluster_throughput(trials: list[Row]) -> Drawing:
    cpu = BROKER_CPU._replace(header="CPU of all brokers, s per million records")
    for trial in trials:
        if trial["acks"] == trials[0]["acks"]:
            title = f"{trial['operation']}, {trial['partitions']} partitions"
            yield bars(
                title, trial["contenders"], cpu._replace(header="CPU, s per million records")
            )
    for trial in trials:
        title = f"{trial['operation']}, {trial['partitions']} partitions, acks={trial['acks']}"
        yield table(
            title, trial["contenders"].items(), RATE, SPREAD, cpu, BROKER_CORES, CLIENT_CORES
        )


@CLUSTER.figure(
    "Topic creation",
    "cluster/create",
    "Every broker is polled for the topic from the moment the request is sent.",
)
def draw_create(rows: list[Row]) -> Drawing:
    yield table(
        "request sent to",
        ((f"{row['label']}, {row['target']}", row) for row in rows),
        Column("partitions", "partitions"),
        Column("response p50, ms", "response/p50", 1e3, ".1f"),
        Column("response p95, ms", "response/p95", 1e3, ".1f"),
        Column("on all brokers p50, ms", "visible/p50", 1e3, ".1f"),
        Column("on all brokers p95, ms", "visible/p95", 1e3, ".1f"),
    )


@CLUSTER.figure(
    "Metadata requests by number of partitions",
    "cluster/metadata",
    "Three brokers, topics of 100 partitions each; medians.",
)
def draw_metadata(rows: list[Row]) -> Drawing:
    everything = Column("all topics, ms", "all/p50", 1e3, ".1f")
    single = Column("one topic, ms", "one/p50", 1e3, ".2f")
    cpu = Column("broker CPU, ms", "cpu_seconds", 1e3, ".1f")
    columns = (everything, single, cpu)
    yield column_lines("Metadata response", "partitions", rows, "partitions", *columns)
    yield table(
        "partitions",
        ((f"{row['partitions']:,}", row) for row in rows),
        Column("bytes", "bytes"),
        everything,
        cpu,
        Column("delay of another client, ms", "delay/p50", 1e3, ".1f"),
        single,
        Column("librdkafka list_topics, ms", "list_seconds", 1e3, ".1f"),
    )


# -- scale -----------------------------------------------------------------------------------------

SCALE = Section(
    "Scale",
    "One broker with default configs. Requests are encoded in advance and sent over plain sockets.",
)


@SCALE.figure(
    "Many partitions",
    "scale/partitions",
    "Topics of 100 partitions with one record in each partition. Startup is from the spawn to the "
    "first response: after a clean stop, and after kill -9 with appends to one partition in a "
    "hundred.",
)
def draw_partitions_of_broker(rows: list[Row]) -> Drawing:
    yield table(
        "partitions",
        ((f"{row['partitions']:,}", row) for row in rows),
        Column("creation, µs per partition", "create_seconds", 1e6),
        Column("stop, s", "stop_seconds", 1, ",.2f"),
        *(
            Column(f"start{name}, s ({each})", f"{path}/{each}", 1, ",.2f")
            for name, path in (("", "clean_start"), (" after kill -9", "kill_start"))
            for each in ("median", "max")
        ),
        Column("B per partition, opened", "opened_bytes"),
        Column("B per partition, filled", "filled_bytes"),
        Column("idle, cores", "idle_cores", 1, ".3f"),
    )
    yield table(
        "broker CPU",
        ((f"{row['partitions']:,}", row) for row in rows),
        Column("Metadata, ms", "metadata/cpu_seconds", 1e3, ",.2f"),
        Column("produce to one, µs", "produce_one", 1e6, ",.1f"),
        Column("to all in turn, µs", "produce_all", 1e6, ",.1f"),
        Column("fetch from one, µs", "fetch_one", 1e6, ",.1f"),
        Column("from all in turn, µs", "fetch_all", 1e6, ",.1f"),
    )


@SCALE.figure(
    "Many group members",
    "scale/groups",
    "Ten members per group, a heartbeat of each every three seconds.",
)
def draw_heartbeats(rows: list[Row]) -> Drawing:
    yield table(
        "groups",
        ((f"{row['groups']:,}", row) for row in rows),
        Column("members", "members"),
        Column("heartbeats/s", "heartbeats_per_second"),
        Column("broker CPU, cores", "cores", 1, ".3f"),
        Column("µs per heartbeat", "cpu", 1e6, ".1f"),
        Column("B per member", "member_bytes"),
    )


@SCALE.figure(
    "Many connections",
    "scale/connections",
    "Idle connections; a Metadata request without topics on one more connection.",
)
def draw_connections(rows: list[Row]) -> Drawing:
    yield table(
        "connections",
        ((f"{row['connections']:,}", row) for row in rows),
        Column("opening one, µs of CPU", "open_cpu", 1e6),
        Column("B per connection", "connection_bytes"),
        Column("idle, cores", "idle_cores", 1, ".3f"),
        Column("request, µs of CPU", "request_cpu", 1e6, ".1f"),
    )


# -- replication -----------------------------------------------------------------------------------

REPLICATION = Section(
    "Replication compared with Apache Kafka",
    "Three brokers each on one machine, three replicas, `min.insync.replicas=2`, acks=all; neither "
    "waits for the disk. CPU and memory are the sum of all brokers, and of etcd's three members.",
)


@REPLICATION.figure(
    "Replicated throughput",
    "replication/throughput",
    "12 partitions, librdkafka's default batching. Brokers and client share the cores.",
)
def draw_replicated_throughput(trials: list[Row]) -> Drawing:
    cpu = BROKER_CPU._replace(header="CPU of all brokers, s per million records")
    for trial in _smallest_records(trials):
        yield bars(f"{trial['operation']}, {byte_size(trial['size'])}", trial["contenders"], RATE)
    for trial in trials:
        yield table(
            f"{trial['operation']}, {byte_size(trial['size'])}",
            trial["contenders"].items(),
            *(RATE, SPREAD, VERSUS_KAFKA, MEGABYTES, cpu),
            Column("CPU × Kafka", "cpu_versus_kafka", 1, ".2f"),
            *(BROKER_CORES, CLIENT_CORES),
        )


@REPLICATION.figure(
    "Latency of replicated records",
    "replication/latency",
    "Single records at a fixed rate, from the produce call.",
)
def draw_replicated_latency(rows: list[Row]) -> Drawing:
    yield table(
        f"{rows[0]['rate']} records/s" if rows else "",
        ((row["label"], row["median"]) for row in rows),
        *(
            Column(f"{name} {percentile}, ms", f"{end}/{percentile}", 1e3, ",.1f")
            for end, name in (("delivered", "acknowledged"), ("consumed", "consumed"))
            for percentile in ("p50", "p99", "p99.9")
        ),
    )


@REPLICATION.figure(
    "Failover",
    "replication/failover",
    "The longest time without an ack of the partitions that the broker led, from the signal on: "
    "the first of them to go on, and the last; the worst round.",
)
def draw_failover(rows: list[Row]) -> Drawing:
    yield table(
        "",
        ((f"{row['signal']}, {row['label']}", row["worst"]) for row in rows),
        Column("partitions", "partitions"),
        Column("first, s", "first", 1, ",.2f"),
        Column("last, s", "last", 1, ",.2f"),
    )


@REPLICATION.figure(
    "Catch-up of a follower",
    "replication/catch-up",
    "1 KiB records in 12 partitions, from the first response of the broker until all replicas are "
    "in sync.",
)
def draw_catch_up(rows: list[Row]) -> Drawing:
    yield table(
        "",
        ((row["label"], row) for row in rows),
        Column("MB missed", "bytes", 1e-6),
        Column("start, s", "start_seconds", 1, ",.2f"),
        Column("catch-up, s", "seconds", 1, ",.2f"),
        MEGABYTES,
    )


@REPLICATION.figure(
    "Replicated partitions without load",
    "replication/partitions",
    "Topics of 100 partitions, created one after another; three replicas each.",
)
def draw_idle_partitions(rows: list[Row]) -> Drawing:
    yield table(
        "",
        ((row["label"], row) for row in rows),
        Column("partitions", "partitions"),
        Column("creation, s", "create_seconds", 1, ",.1f"),
        Column("idle CPU of all brokers, cores", "idle_cores", 1, ",.3f"),
        Column("memory of all brokers, MB", "anonymous", 1e-6),
        Column("librdkafka list_topics, ms", "list_seconds", 1e3, ",.0f"),
    )


# -- wire protocol ---------------------------------------------------------------------------------

WIRE = Section(
    "Wire protocol",
    "The codecs alone, without sockets and files.",
)


@WIRE.figure(
    "Record batches",
    "records/shapes",
    "Encoded to bytes, decoded to objects and to Arrow, with CRC validation; 1,000 records per "
    "batch, or one.",
)
def draw_records(rows: list[Row]) -> Drawing:
    names = {"compiled": "ottla", "python": "ottla, pure Python", "aiokafka": "aiokafka"}
    for row in rows:
        if row["shape"] == rows[0]["shape"]:
            values = {name: row[key] for key, name in names.items()}
            yield Bars(f"{row['task']}, {row['shape']}", "records/s", values)
    columns = [Column(name, key) for key, name in names.items()]
    task = Column("", "task", spec="")
    yield table("records/s", ((row["shape"], row) for row in rows), task, *columns)


@WIRE.figure(
    "Requests and responses",
    "codec/messages",
    "Topics × partitions, with 16 KiB of records per partition. The hand-written codec is plain "
    "struct code that returns tuples; construct interprets the schemas that the compiled codecs "
    "are generated from.",
)
def draw_messages(rows: list[Row]) -> Drawing:
    names = {"hand": "hand-written", "compiled": "compiled", "construct": "construct"}
    columns = [Column(name, key, 1e6, ",.1f") for key, name in names.items()]
    labelled = ((row["message"], {**row, "ratio": row["compiled"] / row["hand"]}) for row in rows)
    ratio = Column("compiled / hand-written", "ratio", 1, ".2f")
    operation = Column("", "operation", spec="")
    yield table("µs per message", labelled, operation, *columns, ratio)


WIRE.figure(
    "Import time of ottla.protocol",
    "imports/imports",
    "In addition to its dependencies. Each codec is compiled on first use.",
)(draw_imports)

SECTIONS = (
    *(
        BROKER,
        LOG,
        CLIENTS,
        SPARK,
        GROUPS,
        TRANSACTIONS,
        SECURITY,
        CLUSTER,
        SCALE,
        REPLICATION,
        WIRE,
    ),
)


def tables(bench: str, part: str, results: Any) -> Iterator[tuple[str, Table]]:
    """Yield the tables of all figures that show a part, each with the title of its figure."""
    for shown in (each for section in SECTIONS for each in section.figures):
        if (shown.bench, shown.part) == (bench, part):
            for drawing in shown.draw(results):
                if isinstance(drawing, Table) and drawing.rows:
                    yield shown.title, drawing
