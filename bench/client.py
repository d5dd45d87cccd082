"""Our SDK against aiokafka, kafka-python and confluent-kafka, all on one broker of ours.

    python bench/client.py [--quick] [--dir FOLDER] [--only PART…]

Needs Linux (/proc). Every run is a fresh process with a topic of 6 partitions and values of 100
bytes. Contenders take turns, the best of their rounds counts, and "spread" is how much slower the
worst was. CPU is that of all threads, and memory is what was anonymous at most.

All have the same settings, as far as they have them (clients/job.py): acks=all and idempotence,
5 ms of lingering, batches of 64 KiB, fetches of 1 MiB a partition, CRCs checked, no group. Topics
are not synced before an ack, so that the device is not what is measured. The asynchronous ones
run on asyncio's own loop.

- produce: from the first record until the last receipt has been looked at, as the way has it: for
  each record, or for all (send_many, send_arrow). Then the broker is asked whether it has each of
  them.
- consume: from the assignment to the last record; the length of each value is looked at. Topics
  are filled by our producer, and larger for those who read faster.
- import: of a process that does nothing else
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmark import command_line, print_table, progress, recording, turns
from clients.job import block
from driver import Driver
from imports import measure
from ottla.client import TopicPartition
from ottla.client.blocking import Admin, Consumer
from peers import Ottla
from processes import MemoryWatch

PARTITIONS = 6
FIRST = b"first"

Run = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    #: How long records are produced; and half of how long they are consumed, at most.
    seconds: float
    #: Records of the topics that are consumed: those who read faster read a larger one.
    sizes: tuple[int, ...]
    import_runs: int
    #: Whether there are other loads than the plain one.
    is_full: bool


FULL = Plan(rounds=3, seconds=0.4, sizes=(50_000, 250_000, 1_000_000), import_runs=5, is_full=True)
QUICK = Plan(rounds=1, seconds=0.1, sizes=(20_000, 100_000), import_runs=1, is_full=False)


@dataclass(frozen=True)
class Load:
    """What the records are like."""

    name: str
    codec: str = "none"
    keyed: bool = False


PLAIN = Load("")
KEYED = Load(", keys of 8 bytes", keyed=True)
LZ4 = Load(", lz4", codec="lz4")


@dataclass(frozen=True)
class Contender:
    """A library, and a way to use it."""

    library: str
    way: str
    command: str
    #: Whether it is measured with keys and compression, too.
    is_main: bool = False

    @property
    def label(self) -> str:
        """How it is called in the tables."""
        return f"{self.library} {self.way}"


PRODUCERS = (
    Contender("ottla", "send_many", "sdk.send_many", is_main=True),
    Contender("ottla", "send_arrow", "arrow.send_arrow", is_main=True),
    Contender("ottla", "enqueue", "sdk.enqueue", is_main=True),
    Contender("ottla", "send, 1,000 tasks", "sdk.send"),
    Contender("ottla", "blocking send_many", "sdk.blocking_send_many"),
    Contender("ottla", "blocking enqueue", "sdk.blocking_enqueue"),
    Contender("aiokafka", "send", "aio.produce", is_main=True),
    Contender("aiokafka", "send_and_wait, 1,000 tasks", "aio.produce_and_wait"),
    Contender("kafka-python", "send", "kafka_python.produce", is_main=True),
    Contender("confluent-kafka", "produce", "confluent.produce", is_main=True),
)
CONSUMERS = (
    Contender("ottla", "async for", "sdk.records", is_main=True),
    Contender("ottla", "batches", "sdk.batches", is_main=True),
    Contender("ottla", "arrow_batches", "arrow.arrow_batches", is_main=True),
    Contender("ottla", "blocking for", "sdk.blocking_records"),
    Contender("aiokafka", "async for", "aio.records"),
    Contender("aiokafka", "getmany(500)", "aio.getmany", is_main=True),
    Contender("kafka-python", "for", "kafka_python.records"),
    Contender("kafka-python", "poll(500)", "kafka_python.poll", is_main=True),
    Contender("confluent-kafka", "poll", "confluent.poll"),
    Contender("confluent-kafka", "consume(500)", "confluent.consume", is_main=True),
)
#: Ways that do the same for a program: a receipt for each record, or none; lists, or one by one.
PAIRS = (
    ("produce", "ottla send_many", "confluent-kafka produce"),
    ("produce", "ottla send_arrow", "confluent-kafka produce"),
    ("produce", "ottla enqueue", "aiokafka send"),
    ("produce", "ottla enqueue", "kafka-python send"),
    ("produce", "ottla enqueue", "confluent-kafka produce"),
    ("produce", "ottla send, 1,000 tasks", "aiokafka send_and_wait, 1,000 tasks"),
    ("produce", "ottla blocking enqueue", "kafka-python send"),
    ("consume", "ottla async for", "aiokafka async for"),
    ("consume", "ottla batches", "aiokafka getmany(500)"),
    ("consume", "ottla blocking for", "kafka-python for"),
    ("consume", "ottla batches", "kafka-python poll(500)"),
    ("consume", "ottla batches", "confluent-kafka consume(500)"),
    ("consume", "ottla arrow_batches", "confluent-kafka consume(500)"),
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
    """The broker, and what is done with it."""

    def __init__(self, plan: Plan, server: Ottla, admin: Admin) -> None:
        self.plan = plan
        self._server = server
        self._admin = admin
        self._numbers = itertools.count()

    @contextmanager
    def topic(self) -> Iterator[str]:
        """Make a topic, and delete it, which makes room on the disk."""
        name = f"bench-{next(self._numbers)}"
        self._admin.create_topic(name, partitions=PARTITIONS, configs={"durability": "page-cache"})
        try:
            yield name
        finally:
            self._admin.delete_topics(name)

    def run(self, contender: Contender, load: Load, topic: str, **limits: Any) -> Run:
        """Let a contender do its work in a process of its own."""
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
            with MemoryWatch(driver.pid) as watch:
                run = driver.end()
            return run | {"anonymous": watch.peak.anonymous}
        finally:
            driver.stop()

    def check_produced(self, topic: str, records: int) -> None:
        """See to it that each value is there, as often as it was sent."""
        places = [TopicPartition(topic, number) for number in range(PARTITIONS)]
        there = sum(self._admin.end_offsets(topic).values())
        assert there == records + 1, f"{there} records of {records + 1} are there"
        values = []
        with Consumer(self._server.address) as consumer:
            consumer.assign(places)
            for table in consumer.arrow_batches():
                values.append(table.column("value"))
                there -= table.num_rows
                if not there:
                    break
        found = pa.chunked_array(values).value_counts()
        counts = {pair["values"]: pair["counts"] for pair in found.to_pylist()}
        assert counts.pop(FIRST) == 1
        expected = {value: records // len(block()) for _key, value in block()}
        assert counts == expected, f"{topic}: other values are there than were sent"


def measured(contenders: tuple[Contender, ...], load: Load) -> list[Contender]:
    """Give those that are measured with a load."""
    return [each for each in contenders if load is PLAIN or each.is_main]


def bench_produce(bench: Bench) -> list[dict[str, Any]]:
    """Measure all that produce."""
    results = []
    for load in (PLAIN, KEYED, LZ4) if bench.plan.is_full else (PLAIN,):
        runs: dict[str, list[Run]] = {}
        for number, contender in turns(measured(PRODUCERS, load), bench.plan.rounds):
            progress(f"produce{load.name}, round {number + 1}: {contender.label}")
            with bench.topic() as topic:
                run = bench.run(
                    contender, load, topic, seconds=bench.plan.seconds, records=sys.maxsize
                )
                bench.check_produced(topic, run["records"])
            runs.setdefault(contender.label, []).append(run)
        results.append(summary("produce", load, PRODUCERS, runs))
    return results


def bench_consume(bench: Bench) -> list[dict[str, Any]]:
    """Measure all that consume."""
    results = []
    sizes: dict[str, int] = {}
    for load in (PLAIN, LZ4) if bench.plan.is_full else (PLAIN,):
        with ExitStack() as stack:
            topics = {}
            for size in bench.plan.sizes:
                progress(f"consume{load.name}: filling a topic with {size:,} records")
                topic = stack.enter_context(bench.topic())
                bench.run(PRODUCERS[0], load, topic, seconds=sys.maxsize, records=size)
                bench.check_produced(topic, size)
                topics[size] = topic
            runs: dict[str, list[Run]] = {}
            for number, contender in turns(measured(CONSUMERS, load), bench.plan.rounds):
                progress(f"consume{load.name}, round {number + 1}: {contender.label}")
                label, small = contender.label, min(topics)
                if label not in sizes:
                    # How fast is it, about?
                    run = consume(bench, contender, load, topics[small], small)
                    most = 2 * bench.plan.seconds * run["records"] / run["seconds"]
                    sizes[label] = max(size for size in topics if size <= max(most, small))
                size = sizes[label]
                run = consume(bench, contender, load, topics[size], size)
                runs.setdefault(label, []).append(run)
            results.append(summary("consume", load, CONSUMERS, runs))
    return results


def consume(bench: Bench, contender: Contender, load: Load, topic: str, size: int) -> Run:
    """Consume a topic, and see to it that everything came."""
    run = bench.run(contender, load, topic, seconds=0, records=size + 1)
    expected = sum(len(value) for _key, value in block()) * size // len(block()) + len(FIRST)
    came = run["records"], run["bytes"]
    assert came == (size + 1, expected), f"{contender.label}: {came} of {size + 1, expected}"
    return run


def summary(
    verb: str, load: Load, contenders: tuple[Contender, ...], runs: dict[str, list[Run]]
) -> dict[str, Any]:
    """Give the best of the rounds, and print it."""
    best = {}
    for label in (each.label for each in contenders if each.label in runs):
        rates = [run["records"] / run["seconds"] for run in runs[label]]
        best[label] = {
            "records_per_second": max(rates),
            "spread": 1 - min(rates) / max(rates),
            "client_cpu": min(run["client_cpu"] / run["records"] for run in runs[label]),
            "server_cpu": min(run["server_cpu"] / run["records"] for run in runs[label]),
            "anonymous": max(run["anonymous"] for run in runs[label]),
            "runs": runs[label],
        }
    progress("")
    print_table(
        f"{verb}{load.name}; CPU µs per record",
        ["", "1000/s", "spread", "client CPU", "broker CPU", "anonymous MB"],
        [
            [
                label,
                f"{row['records_per_second'] / 1e3:,.0f}",
                f"{row['spread']:.0%}",
                f"{row['client_cpu'] * 1e6:.2f}",
                f"{row['server_cpu'] * 1e6:.2f}",
                f"{row['anonymous'] / 1e6:,.0f}",
            ]
            for label, row in best.items()
        ],
    )
    return {"verb": verb, "load": load.name, "best": best}


def compare(results: list[dict[str, Any]]) -> None:
    """Compare like with like, and print it."""
    table = []
    for result in results:
        best = result["best"]
        for verb, ours, theirs in PAIRS:
            if verb == result["verb"] and ours in best and theirs in best:
                a, b = best[ours], best[theirs]
                table.append(
                    [
                        f"{ours} / {theirs}{result['load']}",
                        f"{a['records_per_second'] / b['records_per_second']:.2f}×",
                        f"{a['client_cpu'] / b['client_cpu']:.2f}×",
                    ]
                )
    print_table("like with like", ["", "speed", "client CPU"], table)


def bench_imports(bench: Bench) -> dict[str, Any]:
    """Measure what imports cost."""
    results = {}
    for name, steps in IMPORTS.items():
        progress(f"import: {name}")
        results[name] = measure("", steps, bench.plan.import_runs)
    progress("")
    print_table(
        "import, with all that it needs",
        ["", "ms", "MB"],
        [[name, f"{ms:.0f}", f"{mb:.1f}"] for name, (ms, mb) in results.items()],
    )
    return {name: {"ms": ms, "mb": mb} for name, (ms, mb) in results.items()}


PARTS: dict[str, Callable[[Bench], Any]] = {
    "produce": bench_produce,
    "consume": bench_consume,
    "imports": bench_imports,
}


def main() -> None:
    """Measure all of it, or what was named."""
    quick = "half a minute instead of three"
    options = command_line(__doc__, quick=quick, parts=PARTS, files="1 GiB").parse_args()
    plan = QUICK if options.quick else FULL
    with ExitStack() as stack:
        results = stack.enter_context(recording("client", options))
        folder = tempfile.TemporaryDirectory(dir=options.dir, prefix="ottla-bench-")
        server = Ottla(Path(stack.enter_context(folder)) / "ottla")
        stack.callback(server.stop)
        server.start()
        bench = Bench(plan, server, stack.enter_context(Admin(server.address)))
        for name in options.only or PARTS:
            results[name] = PARTS[name](bench)
        compare([row for name in ("produce", "consume") for row in results.get(name, [])])


if __name__ == "__main__":
    main()
