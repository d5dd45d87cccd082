"""The ottla client compared with aiokafka, kafka-python and confluent-kafka, on one ottla broker.

    python bench/client.py [--quick] [--dir DIR] [--codecs CODEC…] [--only PART…]

Needs Linux (/proc). Every run is a new process with a topic of 6 partitions and values of 100
bytes. Contenders take turns, and the median of the rounds counts; the spread is how far they are
apart. CPU is that of all threads, memory is the peak of anonymous memory.

All have the same configs, as far as they support them (clients/workload.py): acks=all and
idempotence, 5 ms of linger (none for tasks, which each wait for their record), batches of 64 KiB,
fetches of 1 MiB per partition, CRC checks, no group. Topics use durability=page-cache, so that the
disk is not measured. Async clients run on asyncio's own event loop.

- produce: from the first record until the last acknowledgement has been checked: per record, or
  for all (send_many, send_arrow). Then the values on the broker are compared with those sent.
- consume: from the assignment to the last record; the length of each value is read. Topics are
  filled by the ottla producer, and larger for faster contenders.
- imports: in a process that does nothing else
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from benchmark import (
    command_line,
    data_directory,
    median_throughput,
    progress,
    recording,
    run_parts,
    turns,
)
from clients.workload import FIRST_VALUE, distinct_records
from driver import Driver
from imports import measure
from metrics import peak_memory
from ottla.client import TopicPartition
from ottla.client.blocking import Admin, Consumer
from servers import Ottla

PARTITIONS = 6

Run = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    #: Duration of a produce run; a consume run takes up to twice as long.
    seconds: float
    #: Sizes of the consumed topics, in records: faster contenders read larger ones.
    sizes: tuple[int, ...]
    import_runs: int
    #: Whether only plain records are measured.
    is_plain: bool = False


@dataclass(frozen=True)
class Load:
    """The kind of records; `name` is the end of a table's title."""

    name: str
    codec: str = "none"
    keyed: bool = False


PLAIN = Load("")
KEYED = Load(", keys of 8 bytes", keyed=True)
CODECS = ("gzip", "snappy", "lz4", "zstd")
FULL = Plan(3, 0.4, (50_000, 250_000, 1_000_000), 5)
QUICK = Plan(1, 0.1, (20_000, 100_000), 1, is_plain=True)


@dataclass(frozen=True)
class Contender:
    """A way to use a library; `command` is its function in clients/."""

    label: str
    command: str
    #: Whether it is also measured with keys and compression.
    all_loads: bool = False


PRODUCERS = (
    Contender("ottla send_many", "ottla_client.send_many", all_loads=True),
    Contender("ottla send_arrow", "ottla_arrow.send_arrow", all_loads=True),
    Contender("ottla enqueue", "ottla_client.enqueue", all_loads=True),
    Contender("ottla send, 1,000 tasks", "ottla_client.send"),
    Contender("ottla blocking send_many", "ottla_client.blocking_send_many"),
    Contender("ottla blocking enqueue", "ottla_client.blocking_enqueue"),
    Contender("aiokafka send", "aiokafka_client.send", all_loads=True),
    Contender("aiokafka send_and_wait, 1,000 tasks", "aiokafka_client.send_and_wait"),
    Contender("kafka-python send", "kafka_python_client.send", all_loads=True),
    Contender("confluent-kafka produce", "confluent_client.produce", all_loads=True),
)
CONSUMERS = (
    Contender("ottla async for", "ottla_client.records", all_loads=True),
    Contender("ottla batches", "ottla_client.batches", all_loads=True),
    Contender("ottla arrow_batches", "ottla_arrow.arrow_batches", all_loads=True),
    Contender("ottla blocking for", "ottla_client.blocking_records"),
    Contender("aiokafka async for", "aiokafka_client.records"),
    Contender("aiokafka getmany(500)", "aiokafka_client.getmany", all_loads=True),
    Contender("kafka-python for", "kafka_python_client.records"),
    Contender("kafka-python poll(500)", "kafka_python_client.poll", all_loads=True),
    Contender("confluent-kafka poll", "confluent_client.poll"),
    Contender("confluent-kafka consume(500)", "confluent_client.consume", all_loads=True),
)
IMPORTS = {
    "ottla Producer": "from ottla.client import Producer",
    "ottla Producer, Consumer, Admin": "from ottla.client import Admin, Consumer, Producer",
    "… and Arrow": "from ottla.client import Admin, Consumer, Producer\n"
    "import ottla.client.arrow.stream",
    "pyarrow alone": "import pyarrow",
    "aiokafka": "import aiokafka, aiokafka.admin",
    "kafka-python": "import kafka",
    "confluent-kafka": "import confluent_kafka, confluent_kafka.admin",
}


class Bench:
    """The broker, and runs of contenders on it."""

    def __init__(self, plan: Plan, server: Ottla, admin: Admin, codecs: Sequence[str]) -> None:
        self.plan = plan
        compressed = [Load(f", {codec}", codec) for codec in codecs]
        self.produce_loads = [PLAIN] if plan.is_plain else [PLAIN, KEYED, *compressed]
        self.consume_loads = [PLAIN] if plan.is_plain else [PLAIN, *compressed]
        self._server = server
        self._admin = admin
        self._numbers = itertools.count()

    @contextmanager
    def topic(self) -> Iterator[str]:
        """Create a topic, and delete it afterwards."""
        name = f"bench-{next(self._numbers)}"
        self._admin.create_topic(name, partitions=PARTITIONS, configs={"durability": "page-cache"})
        try:
            yield name
        finally:
            self._admin.delete_topics(name)

    def run(self, contender: Contender, load: Load, topic: str, **limits: Any) -> Run:
        """Run a contender in a new process."""
        driver = Driver()
        try:
            driver.begin(
                f"clients.{contender.command}",
                address=self._server.address,
                pid=self._server.pid,
                topic=topic,
                partitions=PARTITIONS,
                codec=load.codec,
                keyed=load.keyed,
                **limits,
            )
            with peak_memory(driver.pid) as memory:
                run: Run = driver.end()
            return run | {"memory": memory}
        finally:
            driver.stop()

    def check_produced(self, topic: str, records: int) -> None:
        """Check that the topic contains each value as often as it was sent."""
        remaining = sum(self._admin.end_offsets(topic).values())
        assert remaining == records + 1, f"{remaining} of {records + 1} records were written"
        values = []
        with Consumer(self._server.address) as consumer:
            consumer.assign([TopicPartition(topic, number) for number in range(PARTITIONS)])
            for table in consumer.arrow_batches():
                values.append(table.column("value"))
                remaining -= table.num_rows
                if not remaining:
                    break
        found = pa.chunked_array(values).value_counts()
        counts = {pair["values"]: pair["counts"] for pair in found.to_pylist()}
        assert counts.pop(FIRST_VALUE) == 1
        distinct = distinct_records()
        expected = {value: records // len(distinct) for _key, value in distinct}
        assert counts == expected, f"{topic} has other values than were sent"

    def consume(self, contender: Contender, load: Load, topic: str, size: int) -> Run:
        """Consume a topic, and check that everything arrived."""
        run = self.run(contender, load, topic, seconds=0, records=size + 1)
        distinct = distinct_records()
        value_bytes = sum(len(value) for _key, value in distinct) * size // len(distinct)
        actual, expected = (
            (run["records"], run["bytes"]),
            (size + 1, value_bytes + len(FIRST_VALUE)),
        )
        assert actual == expected, f"{contender.label} read {actual} of {expected}"
        return run


def measured(contenders: tuple[Contender, ...], load: Load) -> list[Contender]:
    """Return the contenders that are measured with a load."""
    return [each for each in contenders if load is PLAIN or each.all_loads]


def bench_produce(bench: Bench) -> list[Run]:
    """Measure the producers."""
    results = []
    for load in bench.produce_loads:
        runs: dict[str, list[Run]] = {}
        for number, contender in turns(measured(PRODUCERS, load), bench.plan.rounds):
            progress(f"produce{load.name}, round {number + 1}: {contender.label}")
            with bench.topic() as topic:
                limits = {"seconds": bench.plan.seconds, "records": sys.maxsize}
                run = bench.run(contender, load, topic, **limits)
                bench.check_produced(topic, run["records"])
            runs.setdefault(contender.label, []).append(run)
        results.append(summary("produce", load, PRODUCERS, runs))
    return results


def bench_consume(bench: Bench) -> list[Run]:
    """Measure the consumers."""
    results = []
    sizes: dict[str, int] = {}
    for load in bench.consume_loads:
        with ExitStack() as stack:
            topics = {}
            for size in bench.plan.sizes:
                progress(f"consume{load.name}: filling a topic with {size:,} records")
                topic = stack.enter_context(bench.topic())
                bench.run(PRODUCERS[0], load, topic, seconds=sys.maxsize, records=size)
                bench.check_produced(topic, size)
                topics[size] = topic
            smallest = min(topics)
            runs: dict[str, list[Run]] = {}
            for number, contender in turns(measured(CONSUMERS, load), bench.plan.rounds):
                progress(f"consume{load.name}, round {number + 1}: {contender.label}")
                label = contender.label
                if label not in sizes:
                    # Estimate its speed.
                    run = bench.consume(contender, load, topics[smallest], smallest)
                    limit = 2 * bench.plan.seconds * run["records"] / run["seconds"]
                    sizes[label] = max(size for size in topics if size <= max(limit, smallest))
                size = sizes[label]
                runs.setdefault(label, []).append(
                    bench.consume(contender, load, topics[size], size)
                )
            results.append(summary("consume", load, CONSUMERS, runs))
    return results


def summary(
    operation: str, load: Load, contenders: tuple[Contender, ...], runs: dict[str, list[Run]]
) -> Run:
    """Return the median of the rounds of each contender."""
    rows = {
        each.label: median_throughput(runs[each.label]) for each in contenders if each.label in runs
    }
    return {"operation": operation, "load": load.name, "contenders": rows}


def bench_imports(bench: Bench) -> dict[str, Run]:
    """Measure imports."""
    results = {}
    for name, steps in IMPORTS.items():
        progress(f"import: {name}")
        results[name] = measure("", steps, bench.plan.import_runs)
    return results


PARTS: dict[str, Callable[[Bench], Any]] = {
    "produce": bench_produce,
    "consume": bench_consume,
    "imports": bench_imports,
}


def main() -> None:
    """Measure all parts, or the selected ones."""
    quick = "half a minute instead of three"
    parser = command_line(__doc__, quick=quick, parts=PARTS, disk="1 GiB")
    parser.add_argument("--codecs", nargs="+", choices=CODECS, default=["lz4"])
    options = parser.parse_args()
    with ExitStack() as stack:
        results = stack.enter_context(recording("client", options))
        server = Ottla(stack.enter_context(data_directory(options)) / "ottla")
        stack.callback(server.stop)
        server.start()
        admin = stack.enter_context(Admin(server.address))
        bench = Bench(QUICK if options.quick else FULL, server, admin, options.codecs)
        run_parts("client", options, results, PARTS, bench)


if __name__ == "__main__":
    main()
