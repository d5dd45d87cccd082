"""Spark reads and writes topics: our source and sink, and Spark's own Kafka connector.

    python bench/spark.py [--quick] [--records N] [--connector FOLDER] [--dir FOLDER]

All read the same broker of ours, in one session with two cores, records of 100 bytes in six
partitions. Contenders take turns, and the best of their rounds counts; the first round only warms
up what a JVM has to compile.

Spark's own connector is read from jars of a version that fits pyspark, in FOLDER (SPARK_CONNECTOR
names it too): spark-sql-kafka-0-10_2.13, spark-token-provider-kafka-0-10_2.13, kafka-clients and
commons-pool2. With the first as the only dependency in a pom.xml, Maven gets them:
`mvn dependency:copy-dependencies -DoutputDirectory=FOLDER`. Without them it is left out.

- count: `count()`, for which Spark makes a row of each record, with all its columns
- aggregate: how many records and bytes there are in each partition
- value only: ours, with a schema that leaves the other columns out
- tuples: how sources in Python usually do it, one tuple for each row
- Spark's connector as it comes, and with larger fetches: as it comes, it asks the broker where the
  partition begins and ends after each 500 records, behind a fetch that may wait for half a second
- write: rows with a key and a value of 100 bytes, made by Spark, into six partitions, acks=all
- micro-batch: one record for each batch of a stream into nothing, once all is warm: how long a
  batch takes that has nothing to do
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import functions

from benchmark import command_line, print_table, progress, recording, turns
from ottla.client.blocking import Admin, Producer
from ottla.client.spark import builder, register
from ottla.client.spark.reader import BatchReader
from ottla.client.spark.source import OttlaSource
from peers import Ottla
from processes import family_cpu_seconds

PARTITIONS = 6
SIZE = 100
CHUNK = 50_000
TOPIC = "rides"
WRITTEN = "fares"


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    records: int
    written: int
    #: The first of them does not count.
    rounds: int
    batches: int


FULL = Plan(records=5_000_000, written=1_000_000, rounds=4, batches=40)
QUICK = Plan(records=500_000, written=100_000, rounds=2, batches=8)


class TupleReader(BatchReader):
    """Reads as ours does, and gives a tuple for each row."""

    def read(self, partition: Any) -> Iterator[Any]:
        """Read one range."""
        for batch in super().read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class TupleSource(OttlaSource):
    """Ours, but with tuples."""

    @classmethod
    def name(cls) -> str:
        """Give the name of the format."""
        return "ottla-tuples"

    def reader(self, schema: Any) -> TupleReader:
        """Read a batch."""
        made = super().reader(schema)
        return TupleReader(made._options, made._columns)


@dataclass(frozen=True)
class Contender:
    """A way to read."""

    name: str
    format: str
    schema: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)


OURS = Contender("ottla", "ottla")
THEIRS = [
    Contender("Spark's connector", "kafka"),
    Contender(
        "Spark's connector, larger fetches",
        "kafka",
        options={
            "kafka.max.poll.records": "50000",
            "kafka.max.partition.fetch.bytes": "4194304",
            "kafka.fetch.max.wait.ms": "10",
        },
    ),
]


def contenders_of(*, has_connector: bool) -> list[Contender]:
    """Give who takes part."""
    found = [
        OURS,
        Contender("ottla, value only", "ottla", "value BINARY"),
        Contender("ottla, tuples", "ottla-tuples"),
    ]
    return [*found, *THEIRS] if has_connector else found


def load(spark: Any, contender: Contender, bootstrap: str) -> Any:
    """Give a topic as a table, planned anew."""
    reader = (
        spark.read.format(contender.format)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", TOPIC)
        .options(**contender.options)
    )
    return (reader.schema(contender.schema) if contender.schema else reader).load()


def count(frame: Any) -> int:
    """Count rows."""
    return int(frame.count())


def aggregate(frame: Any) -> int:
    """Look at values and partitions."""
    by = ["partition"] if "partition" in frame.columns else []
    sizes = functions.sum(functions.octet_length("value"))
    found = frame.groupBy(*by).agg(sizes, functions.count("*").alias("records")).collect()
    return int(sum(row["records"] for row in found))


JOBS: dict[str, Callable[[Any], int]] = {"count": count, "aggregate": aggregate}


def fill(bootstrap: str, records: int) -> None:
    """Write what is read."""
    with Admin(bootstrap) as admin, Producer(bootstrap) as producer:
        admin.create_topic(TOPIC, partitions=PARTITIONS)
        admin.create_topic(WRITTEN, partitions=PARTITIONS)
        admin.create_topic("ticks", partitions=1)
        values = [os.urandom(SIZE // 2).hex().encode() for _ in range(CHUNK)]
        for done in range(0, records, CHUNK):
            progress(f"writing {done:,} of {records:,} records")
            producer.send_many(TOPIC, values[: records - done])


@dataclass(frozen=True)
class Cost:
    """What a job took for a million records, in seconds: of a clock, and of all cores."""

    elapsed: float
    cpu: float

    def __or__(self, other: Cost) -> Cost:
        """Give the better of each."""
        return Cost(min(self.elapsed, other.elapsed), min(self.cpu, other.cpu))


def cost_of(work: Callable[[], int], broker: Ottla, records: int) -> Cost:
    """Do something with records, all of them, and say what it took."""
    start, cpu = time.perf_counter(), family_cpu_seconds(os.getpid(), broker.pid)
    found = work()
    elapsed = time.perf_counter() - start
    cpu = family_cpu_seconds(os.getpid(), broker.pid) - cpu
    assert found == records, f"{found} of {records} records"
    millions = records / 1_000_000
    return Cost(elapsed / millions, cpu / millions)


def read_all(
    spark: Any, contenders: list[Contender], broker: Ottla, plan: Plan
) -> dict[str, dict[str, Cost]]:
    """Give the best of all rounds, by job and contender."""
    best: dict[str, dict[str, Cost]] = {job: {} for job in JOBS}
    for number, contender in turns(contenders, plan.rounds):
        for job, run in JOBS.items():
            progress(f"round {number} of {plan.rounds - 1}: {contender.name}, {job}")
            frame = load(spark, contender, broker.address)
            cost = cost_of(partial(run, frame), broker, plan.records)
            if number:
                best[job][contender.name] = best[job].get(contender.name, cost) | cost
    return best


def write_all(
    spark: Any, contenders: list[Contender], broker: Ottla, plan: Plan
) -> dict[str, Cost]:
    """Give the best of all rounds, by contender."""
    best: dict[str, Cost] = {}
    value = f"repeat('x', {SIZE})"
    with Admin(broker.address) as admin:

        def written() -> int:
            return sum(admin.end_offsets(WRITTEN).values())

        def write(contender: Contender) -> int:
            before = written()
            rows = spark.range(plan.written).selectExpr("string(id) AS key", f"{value} AS value")
            writer = rows.write.format(contender.format).mode("append")
            writer.option("kafka.bootstrap.servers", broker.address).option("topic", WRITTEN).save()
            return written() - before

        for number, contender in turns(contenders, plan.rounds):
            progress(f"round {number} of {plan.rounds - 1}: {contender.name}, write")
            cost = cost_of(partial(write, contender), broker, plan.written)
            if number:
                best[contender.name] = best.get(contender.name, cost) | cost
    return best


def micro_batches(
    spark: Any, contender: Contender, bootstrap: str, count: int, folder: Path
) -> dict[str, Any]:
    """Give how long batches of one record take, in milliseconds, and what of."""
    frame = (
        spark.readStream.format(contender.format)
        .option("kafka.bootstrap.servers", bootstrap)
        .option("subscribe", "ticks")
        .options(**contender.options)
        .load()
    )
    query = (
        frame.writeStream.format("noop")
        .option("checkpointLocation", str(folder / f"checkpoint of {contender.name}"))
        .start()
    )
    found: dict[int, Any] = {}
    with Producer(bootstrap) as producer:
        query.processAllAvailable()
        for number in range(count + 3):
            progress(f"micro-batch {number} of {count + 3}: {contender.name}")
            producer.send("ticks", b"tick")
            query.processAllAvailable()
            for one in query.recentProgress:
                if one.numInputRows:
                    found[one.batchId] = dict(one.durationMs)
    query.stop()
    # The first ones compile code.
    durations = [found[batch] for batch in sorted(found)][3:]
    parts = ("triggerExecution", "latestOffset", "addBatch", "walCommit", "commitOffsets")
    return {part: statistics.median(one.get(part, 0) for one in durations) for part in parts}


def session(jars: list[Path], folder: Path) -> Any:
    """Give a session of two cores."""
    made = (
        builder()
        .master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.memory", "2g")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(folder / "warehouse"))
    )
    if jars:
        made = made.config("spark.jars", ",".join(map(str, jars)))
    spark = register(made.getOrCreate())
    spark.sparkContext.setLogLevel("OFF")
    spark.dataSource.register(TupleSource)
    return spark


def main() -> None:
    """Measure, and print."""
    parser = command_line(__doc__, quick="a minute instead of five", files="1 GiB")
    parser.add_argument("--records", type=int, help="how many are read")
    parser.add_argument("--connector", type=Path, help="the jars of Spark's own connector")
    given = parser.parse_args()
    plan = QUICK if given.quick else FULL
    if given.records:
        plan = replace(plan, records=given.records)
    connector = given.connector or os.environ.get("SPARK_CONNECTOR")
    jars = sorted(Path(connector).glob("*.jar")) if connector else []
    if not jars:
        print(
            "without Spark's own connector: --connector names no folder with jars", file=sys.stderr
        )
    logging.getLogger("SQLQueryContextLogger").disabled = True
    with recording("spark", given) as results, tempfile.TemporaryDirectory(dir=given.dir) as name:
        folder = Path(name)
        broker = Ottla(folder / "broker")
        broker.start()
        try:
            fill(broker.address, plan.records)
            spark = session(jars, folder)
            for jar in jars:
                if jar.name.startswith("spark-sql-kafka"):
                    results["versions"] = {"Spark's connector": jar.stem.rpartition("-")[2]}
            contenders = contenders_of(has_connector=bool(jars))
            reads = read_all(spark, contenders, broker, plan)
            results["read"] = {
                "records": plan.records,
                **{
                    job: {name: asdict(cost) for name, cost in found.items()}
                    for job, found in reads.items()
                },
            }
            writes = write_all(spark, [OURS, *(THEIRS[:1] if jars else [])], broker, plan)
            results["write"] = {
                "records": plan.written,
                "best": {name: asdict(cost) for name, cost in writes.items()},
            }
            batches = results["batches"] = {
                one.name: micro_batches(spark, one, broker.address, plan.batches, folder)
                for one in [OURS, *(THEIRS if jars else [])]
            }
            spark.stop()
        finally:
            broker.stop()
        report(reads, writes, batches, plan)


def report(
    reads: dict[str, dict[str, Cost]],
    writes: dict[str, Cost],
    batches: dict[str, dict[str, Any]],
    plan: Plan,
) -> None:
    """Print tables."""
    names = [one.name for one in contenders_of(has_connector=True) if one.name in reads["count"]]
    print_table(
        f"{plan.records:,} records of {SIZE} bytes, {PARTITIONS} partitions, local[2]",
        ["", *(text for job in JOBS for text in (f"{job}: records/s", "CPU-s per million"))],
        [
            [
                name,
                *(
                    text
                    for found in reads.values()
                    for text in (
                        f"{1_000_000 / found[name].elapsed:,.0f}",
                        f"{found[name].cpu:.2f}",
                    )
                ),
            ]
            for name in names
        ],
    )
    print_table(
        f"{plan.written:,} rows with keys, written",
        ["", "records/s", "CPU-s per million"],
        [
            [name, f"{1_000_000 / cost.elapsed:,.0f}", f"{cost.cpu:.2f}"]
            for name, cost in writes.items()
        ],
    )
    parts = list(next(iter(batches.values())))
    print_table(
        "A micro-batch of one record, in milliseconds",
        ["source", *parts],
        [[name, *(f"{one[part]:,.0f}" for part in parts)] for name, one in batches.items()],
    )


if __name__ == "__main__":
    main()
