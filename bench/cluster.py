"""A cluster of three brokers beside one broker, all on this machine.

    python bench/cluster.py [--quick] [--dir FOLDER] [--only PART…]

Needs Linux (/proc) and a confluent-kafka that has Producer.produce_batch.

- throughput: produce, then consume, through librdkafka, which sends what a partition gets to its
  owner. Brokers and client share the cores: where there are few, three brokers are not faster than
  one, and what can be seen is what they cost. CPU is that of all brokers together.
- create: a topic is created, by way of the controller or of another broker, while every broker is
  asked for it again and again, until it has all of its leaders. The answer comes when all brokers
  that are up have the topic, so that whoever got it finds the topic wherever it asks next.
- metadata: all that there is, and one topic of it, asked for over a connection of its own. `waits`
  is what another client's small request takes that comes just behind: the broker does one thing
  after the other. The answer of librdkafka is what a tool waits for, with its connection.
"""

from __future__ import annotations

import itertools
import select
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmark import command_line, print_table, progress, ratio, recording, turns
from driver import Driver
from ottla.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.errors import ErrorCode
from peers import Ottla
from processes import cpu_seconds
from wire import Connection, frame

MANY = 3
SIZE = 100
CREATE_TIMEOUT_MS = 60_000
NAMES = (f"topic-{number}" for number in itertools.count())


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    partitions: Sequence[int]
    acks: Sequence[str]
    seconds: float
    most: int
    creations: int
    #: Topics of a hundred partitions each.
    topics: Sequence[int]
    answers: int


FULL = Plan(
    rounds=3,
    partitions=[6, 60],
    acks=["1", "all"],
    seconds=1.0,
    most=1_000_000,
    creations=40,
    topics=[1, 10, 100],
    answers=25,
)
QUICK = Plan(
    rounds=1,
    partitions=[6],
    acks=["1"],
    seconds=0.4,
    most=500_000,
    creations=10,
    topics=[10],
    answers=5,
)


class Member(Ottla):
    """A broker of a cluster."""

    def __init__(self, folder: Path, number: int, file: Path) -> None:
        super().__init__(folder)
        self._arguments = ("--id", str(number), "--cluster", str(file))

    def command(self) -> list[str]:
        """Give the command line."""
        return [*super().command(), *self._arguments]


class Cluster:
    """Brokers, one or several."""

    def __init__(self, folder: Path, count: int) -> None:
        self._file = folder / "cluster.toml"
        self.brokers = [Member(folder / str(number), number, self._file) for number in range(count)]

    @property
    def label(self) -> str:
        """How many there are."""
        return "1 broker" if len(self.brokers) == 1 else f"{len(self.brokers)} brokers"

    @property
    def address(self) -> str:
        """The bootstrap address."""
        return ",".join(broker.address for broker in self.brokers)

    @property
    def pids(self) -> list[int]:
        """The processes."""
        return [broker.pid for broker in self.brokers]

    def start(self) -> None:
        """Start all of them."""
        self._file.parent.mkdir(parents=True)
        lines = (
            f'[[brokers]]\nid = {number}\naddress = "{broker.address}"\n'
            for number, broker in enumerate(self.brokers)
        )
        self._file.write_text("\n".join(lines))
        for broker in self.brokers:
            broker.start()

    def stop(self) -> None:
        """Stop all of them, those that follow first."""
        for broker in reversed(self.brokers):
            broker.stop()

    @contextmanager
    def connections(self) -> Iterator[list[Connection]]:
        """Give a connection to each."""
        made = [Connection(broker.port) for broker in self.brokers]
        try:
            yield made
        finally:
            for connection in made:
                connection.close()


@contextmanager
def clusters(counts: Iterable[int], directory: Path | None) -> Iterator[list[Cluster]]:
    """Run clusters of so many brokers each."""
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(dir=directory, prefix="ottla-bench-")
        root = Path(stack.enter_context(folder))
        made = []
        for count in counts:
            made.append(Cluster(root / f"of-{count}", count))
            stack.callback(made[-1].stop)
            made[-1].start()
        yield made


# -- throughput ------------------------------------------------------------------------------------


def bench_throughput(plan: Plan, directory: Path | None) -> Any:
    """Measure one broker and several with all loads, and print the tables."""
    driver = Driver()
    results = []
    try:
        with clusters((1, MANY), directory) as contenders:
            for cluster in contenders:
                progress(f"warm up: {cluster.label}")
                run_load(driver, cluster, plan, plan.partitions[0], plan.acks[0])
            for partitions, acks in itertools.product(plan.partitions, plan.acks):
                runs: dict[str, dict[str, list[dict[str, Any]]]] = {"produce": {}, "consume": {}}
                for number, cluster in turns(contenders, plan.rounds):
                    progress(f"{partitions} partitions, acks={acks}: {cluster.label}, {number + 1}")
                    for verb, run in run_load(driver, cluster, plan, partitions, acks).items():
                        runs[verb].setdefault(cluster.label, []).append(run)
                results += [
                    {"verb": verb, "partitions": partitions, "acks": acks, "best": best_of(found)}
                    for verb, found in runs.items()
                ]
    finally:
        driver.stop()
    progress("")
    for row in results:
        print_throughput(row)
    return results


def run_load(
    driver: Driver, cluster: Cluster, plan: Plan, partitions: int, acks: str
) -> dict[str, dict[str, Any]]:
    """Produce and consume a topic of its own."""
    topic = next(NAMES)
    where: dict[str, Any] = {"address": cluster.address, "topic": topic, "partitions": partitions}
    driver.call("rdkafka.create_topic", **where, config={})
    where["pid"] = cluster.pids
    limits = {"size": SIZE, "seconds": plan.seconds, "most": plan.most}
    produced = driver.call("rdkafka.produce", **where, **limits, acks=acks)
    consumed = driver.call("rdkafka.consume", **where, records=produced["records"])
    driver.call("rdkafka.delete_topic", address=cluster.address, topic=topic)
    return {"produce": produced, "consume": consumed}


def best_of(found: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, float]]:
    """Give the best of the rounds of each."""
    best = {}
    for label, runs in found.items():
        fastest = max(runs, key=lambda run: run["records"] / run["seconds"])
        best[label] = {
            "records_per_second": fastest["records"] / fastest["seconds"],
            "server_cores": fastest["server_cpu"] / fastest["seconds"],
            "client_cores": fastest["client_cpu"] / fastest["seconds"],
            "server_cpu": min(run["server_cpu"] / run["records"] for run in runs),
        }
    return best


def print_throughput(row: dict[str, Any]) -> None:
    """Print a table: one verb, one load."""
    title = f"{row['verb']}: {SIZE} B, {row['partitions']} partitions, acks={row['acks']}"
    single = row["best"]["1 broker"]
    print_table(
        f"{title}; CPU s per million records",
        ["", "1000/s", "of one's", "brokers' CPU", "of one's", "brokers' cores", "client's cores"],
        [
            [
                label,
                f"{found['records_per_second'] / 1e3:,.0f}",
                ratio(found["records_per_second"], single["records_per_second"]),
                f"{found['server_cpu'] * 1e6:.2f}",
                ratio(found["server_cpu"], single["server_cpu"]),
                f"{found['server_cores']:.2f}",
                f"{found['client_cores']:.2f}",
            ]
            for label, found in row["best"].items()
        ],
    )


# -- create ----------------------------------------------------------------------------------------


def bench_create(plan: Plan, directory: Path | None) -> Any:
    """Measure how soon topics are everywhere, and print the table."""
    results = []
    with clusters((1, MANY), directory) as contenders:
        for cluster in contenders:
            ways = {"the controller": 0}
            if len(cluster.brokers) > 1:
                ways["another broker"] = 1
            for (way, number), partitions in itertools.product(ways.items(), (1, 60)):
                progress(f"create: {cluster.label}, {partitions} partitions, by {way}")
                with cluster.connections() as watchers, cluster.connections() as askers:
                    found = [
                        create(askers[number], watchers, partitions) for _ in range(plan.creations)
                    ]
                results.append(
                    {
                        "label": cluster.label,
                        "way": way,
                        "partitions": partitions,
                        "answered": summary(answered for answered, _seen in found),
                        "seen": summary(seen for _answered, seen in found),
                    }
                )
    progress("")
    print_table(
        f"creation of a topic, ms, {plan.creations} of each; seen: by all brokers, with leaders",
        ["", "partitions", "answered p50", "p95", "seen p50", "p95", "most"],
        [
            [
                f"{row['label']}, by {row['way']}",
                f"{row['partitions']}",
                *(f"{row['answered'][name] * 1e3:.1f}" for name in ("p50", "p95")),
                *(f"{row['seen'][name] * 1e3:.1f}" for name in ("p50", "p95", "most")),
            ]
            for row in results
        ],
    )
    return results


def create(asker: Connection, watchers: Sequence[Connection], count: int) -> tuple[float, float]:
    """Create a topic; give the seconds to the answer, and until all brokers have it."""
    name = next(NAMES)
    topic = CreatableTopic(name=name, num_partitions=count, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=CREATE_TIMEOUT_MS)
    question = MetadataRequest(
        topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False
    )
    answered, seen, waiting = 0.0, 0.0, list(watchers)
    start = time.perf_counter()
    asker.socket.sendall(frame(request))
    while waiting or not answered:
        if not answered and select.select([asker.socket], [], [], 0 if waiting else None)[0]:
            assert list(asker.receive())
            answered = time.perf_counter() - start
        for watcher in list(waiting):
            (found,) = watcher.ask(question).topics
            if found.error_code == ErrorCode.NONE:
                assert len(found.partitions) == count
                assert all(one.leader_id >= 0 for one in found.partitions)
                waiting.remove(watcher)
                seen = time.perf_counter() - start
    return answered, seen


def summary(seconds: Iterable[float]) -> dict[str, float]:
    """Give what most took, and the longest."""
    found = sorted(seconds)
    return {
        "p50": statistics.median(found),
        "p95": found[int(len(found) * 0.95)],
        "most": found[-1],
    }


# -- metadata --------------------------------------------------------------------------------------


def bench_metadata(plan: Plan, directory: Path | None) -> Any:
    """Measure answers with many partitions, and print the table."""
    results = []
    driver = Driver()
    try:
        with clusters((MANY,), directory) as (cluster,):
            made = 0
            for topics in plan.topics:
                progress(f"metadata: {topics * 100:,} partitions")
                start = time.perf_counter()
                with cluster.connections() as (controller, *_others):
                    for _ in range(topics - made):
                        create(controller, [], 100)
                seconds = (time.perf_counter() - start) / max(topics - made, 1)
                made = topics
                row = describe(cluster, plan.answers)
                listed = [
                    driver.call("rdkafka.list_topics", address=cluster.address)
                    for _ in range(plan.answers)
                ]
                assert listed[0]["partitions"] == topics * 100
                row["listed_seconds"] = min(each["seconds"] for each in listed)
                results.append({"partitions": topics * 100, "create_seconds": seconds, **row})
    finally:
        driver.stop()
    progress("")
    print_table(
        f"metadata of {MANY} brokers, topics of 100 partitions, ms",
        [
            *("partitions", "bytes", "answer p50", "p95", "CPU", "another waits p50", "p95"),
            *("one topic p50", "librdkafka's list"),
        ],
        [
            [
                f"{row['partitions']:,}",
                f"{row['bytes']:,}",
                *(f"{row['all'][name] * 1e3:.1f}" for name in ("p50", "p95")),
                f"{row['cpu_seconds'] * 1e3:.1f}",
                *(f"{row['waits'][name] * 1e3:.1f}" for name in ("p50", "p95")),
                f"{row['one']['p50'] * 1e3:.2f}",
                f"{row['listed_seconds'] * 1e3:.1f}",
            ]
            for row in results
        ],
    )
    return results


def describe(cluster: Cluster, times: int) -> dict[str, Any]:
    """Ask the last broker for everything, for one topic, and for nothing just behind."""
    everything = frame(MetadataRequest(topics=None))
    nothing = frame(MetadataRequest(topics=[]))
    pid = cluster.brokers[-1].pid
    with cluster.connections() as (*_, one), cluster.connections() as (*_, other):
        answer = one.ask(MetadataRequest(topics=None))
        assert all(each.leader_id >= 0 for topic in answer.topics for each in topic.partitions)
        topic = frame(MetadataRequest(topics=[MetadataRequestTopic(name=answer.topics[0].name)]))
        before = cpu_seconds(pid)
        complete = [timed(lambda: one.exchange(everything)) for _ in range(times)]
        used = (cpu_seconds(pid) - before) / times
        waits = []
        for _ in range(times):
            one.socket.sendall(everything)
            waits.append(timed(lambda: other.exchange(nothing)))
            while not list(one.receive()):
                pass
        return {
            "bytes": len(one.exchange(everything)),
            "all": summary(complete),
            "cpu_seconds": used,
            "waits": summary(waits),
            "one": summary(timed(lambda: one.exchange(topic)) for _ in range(times)),
        }


def timed(work: Callable[[], object]) -> float:
    """Give the seconds that something takes."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


# -- all -------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Plan, Path | None], Any]] = {
    "throughput": bench_throughput,
    "create": bench_create,
    "metadata": bench_metadata,
}


def main() -> None:
    """Measure all of it, or what was named."""
    quick = "twenty seconds instead of a minute and a half"
    parser = command_line(__doc__, quick=quick, parts=PARTS, files="2 GiB")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    with recording("cluster", options) as results:
        for name in options.only or PARTS:
            results[name] = PARTS[name](plan, options.dir)


if __name__ == "__main__":
    main()
