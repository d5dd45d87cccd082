"""Kill drivers, executors, Python workers and brokers under an exactly-once query; check its rows.

    make spark-kills KILLS="--kills 50 --brokers 3 --master local-cluster[2,1,1024] --seed 5"

A query copies one topic to another in small micro-batches. At each kill point one process gets
SIGKILL: at a random time, or just after rows or a commit record appeared, to hit the moments that
matter. A driver that is gone is started again. In the end each row must be in the output once, as a
consumer with isolation level read_committed sees it.
"""

from __future__ import annotations

import math
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click
import confluent_kafka

from harness.daemon import Cluster
from ottla.client import ErrorCode, KafkaError
from ottla.client.blocking import Admin, Producer

DRIVER = Path(__file__).with_name("exactly_once_driver.py")
SOURCE_PARTITIONS = 3
#: Rows that are added when the query has none left.
ROWS = 300
TIMEOUT_SECONDS = 300.0

_EXECUTOR = "CoarseGrainedExecutorBackend"
_WORKER = "pyspark"


@dataclass
class Figures:
    """What happened."""

    rows: int = 0
    starts: int = 0
    #: Drivers that ended by themselves.
    failures: int = 0
    kills: Counter[str] = field(default_factory=Counter)


class KillRun:
    """A query, its brokers, and what is killed."""

    def __init__(
        self, brokers: Cluster, folder: Path, *, seed: int, master: str = "local[2,4]"
    ) -> None:
        self.brokers = brokers
        self.folder = folder
        self.master = master
        self.random = random.Random(seed)
        self.figures = Figures()
        self.log = folder / "driver.log"
        self.source, self.target = f"{folder.name}-in", f"{folder.name}-out"
        self.progress = f"{folder.name}-progress"
        self._driver: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)
        with Admin(brokers.bootstrap) as admin:
            admin.create_topic(self.source, partitions=SOURCE_PARTITIONS)
            admin.create_topic(self.target, partitions=SOURCE_PARTITIONS)
        self.add_rows()

    def run(
        self,
        kills: int,
        victims: tuple[str, ...],
        timeouts_ms: tuple[int, ...],
        seconds: float = math.inf,
    ) -> None:
        """Kill something `kills` times, each time after the query has made progress."""
        deadline = time.monotonic() + seconds
        try:
            for number in range(kills):
                if time.monotonic() > deadline:
                    break
                victim = victims[number % len(victims)]
                moment = self.random.choice(("any time", "rows", "commit"))
                self.start_driver(timeouts_ms)
                self.wait_for_change(self.progress)
                self.wait_for(moment)
                self.kill(victim)
                self.report(f"{number + 1} of {kills}: {victim}, {moment}")
                self.figures.kills[f"{victim}, {moment}"] += 1
        except BaseException:
            self.stop_driver()
            raise

    def finish(self, timeouts_ms: tuple[int, ...]) -> None:
        """Let a driver write the rest, and stop it."""
        deadline = time.monotonic() + 4 * TIMEOUT_SECONDS
        try:
            while len(self.output()) < self.figures.rows:
                self.start_driver(timeouts_ms)
                assert time.monotonic() < deadline, self.tail()
                time.sleep(1)
        finally:
            self.stop_driver()

    def check(self) -> None:
        """Check that each row is in the output once."""
        counts = Counter(self.output())
        missing = [row for row in range(self.figures.rows) if row not in counts]
        repeated = {row: count for row, count in counts.items() if count > 1}
        assert not missing, f"{len(missing)} rows are missing: {missing[:10]}"
        assert not repeated, f"{len(repeated)} rows are there more than once: {repeated}"
        assert len(counts) == self.figures.rows

    def report(self, event: str) -> None:
        """Write an event to the log, between the lines of the drivers."""
        with self.log.open("a") as log:
            log.write(f"{time.strftime('%H:%M:%S')} killed {event}\n")

    # The driver.

    def start_driver(self, timeouts_ms: tuple[int, ...]) -> None:
        """Start a driver unless one runs."""
        if self._driver is not None and self._driver.poll() is None:
            return
        if self._driver is not None:
            self.figures.failures += 1
            assert self.figures.failures <= 5 + sum(self.figures.kills.values()), self.tail()
            self.stop_driver()
        timeout_ms = self.random.choice(timeouts_ms)
        command = [sys.executable, str(DRIVER), self.brokers.bootstrap, self.source, self.target]
        with self.log.open("ab") as log:
            self._driver = subprocess.Popen(
                [*command, str(self.folder), self.master, str(timeout_ms)],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                # The tests' own packages are not for Spark's workers.
                env={name: text for name, text in os.environ.items() if name != "PYTHONPATH"},
            )
        self.figures.starts += 1

    def stop_driver(self) -> None:
        """Kill the driver, and what it has started."""
        if self._driver is None:
            return
        # Python workers are in process groups of their own, but in the same session.
        for pid in processes_of(self._driver.pid):
            kill(pid)
        self._driver.wait()
        self._driver = None

    def kill(self, victim: str) -> None:
        """Kill a process with SIGKILL."""
        assert self._driver is not None
        if victim == "broker":
            broker = self.random.choice(self.brokers.brokers)
            broker.kill()
            broker.start()
        elif victim == "driver":
            self.stop_driver()
        else:
            name = _EXECUTOR if victim == "executor" else _WORKER
            pids = processes_of(self._driver.pid, name)
            if pids:
                kill(self.random.choice(pids))

    # Moments.

    def wait_for(self, moment: str) -> None:
        """Wait until a moment of the query."""
        if moment == "any time":
            time.sleep(self.random.uniform(0, 1.5))
            return
        self.wait_for_change(self.target if moment == "rows" else self.progress)
        time.sleep(self.random.uniform(0, 0.03))

    def wait_for_change(self, topic: str) -> None:
        """Wait until a topic has more records. Adds rows if the query has none left."""
        with Admin(self.brokers.bootstrap) as admin:
            before = end_of(admin, topic)
            deadline = time.monotonic() + TIMEOUT_SECONDS
            quiet_at = time.monotonic() + 3
            while end_of(admin, topic) <= before:
                assert time.monotonic() < deadline, self.tail()
                if time.monotonic() > quiet_at:
                    quiet_at = time.monotonic() + 10
                    self.add_rows()
                if self._driver is not None and self._driver.poll() is not None:
                    return  # the next driver goes on
                time.sleep(0.005)

    # Rows.

    def add_rows(self) -> None:
        """Add rows to the source: consecutive numbers."""
        first = self.figures.rows
        with Producer(self.brokers.bootstrap) as producer:
            producer.send_many(self.source, [b"%d" % row for row in range(first, first + ROWS)])
        self.figures.rows += ROWS

    def output(self) -> list[int]:
        """Return the rows that another client reads, up to the last stable offsets."""
        return read_committed(self.brokers.bootstrap, self.target)

    def tail(self) -> str:
        """Return the end of the driver's log."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-60:])

    def count_in_log(self, text: str) -> int:
        """Return how often a text is in the logs of all drivers."""
        return self.log.read_text(errors="replace").count(text)


def end_of(admin: Admin, topic: str) -> int:
    """Return the sum of the end offsets; 0 if there is no such topic yet."""
    try:
        return sum(admin.end_offsets(topic).values())
    except KafkaError as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            raise
        return 0


def processes_of(session: int, name: str = "") -> list[int]:
    """Return the processes of a session whose command contains a name."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            command = (folder / "cmdline").read_text()
        except OSError:
            continue  # it has ended
        if int(stat[3]) == session and name in command:
            found.append(int(folder.name))
    return found


def kill(pid: int) -> None:
    """Kill a process that may have ended."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def read_committed(bootstrap: str, topic: str, isolation: str = "read_committed") -> list[int]:
    """Return the values of a topic as librdkafka reads them, up to the current end."""
    config: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "checker",
        "isolation.level": isolation,
        "enable.auto.commit": False,
        "enable.partition.eof": True,
    }
    consumer = confluent_kafka.Consumer(config)
    try:
        count = len(consumer.list_topics(topic, timeout=30).topics[topic].partitions)
        start = confluent_kafka.OFFSET_BEGINNING
        consumer.assign(
            [confluent_kafka.TopicPartition(topic, number, start) for number in range(count)]
        )
        values: list[int] = []
        ended: set[int] = set()
        while len(ended) < count:
            message = consumer.poll(60)
            assert message is not None, f"{topic} has no end"
            if message.error() is None:
                values.append(int(message.value()))
            elif message.error().code() == confluent_kafka.KafkaError._PARTITION_EOF:
                ended.add(message.partition())
        return values
    finally:
        consumer.close()


@click.command()
@click.option("--kills", default=50, show_default=True)
@click.option("--minutes", default=60.0, show_default=True, help="No more kills after that.")
@click.option("--brokers", default=1, show_default=True)
@click.option("--master", default="local-cluster[2,1,1024]", show_default=True)
@click.option("--seed", type=int, help="Random by default.")
def main(kills: int, minutes: float, brokers: int, master: str, seed: int | None) -> None:
    """Kill processes of an exactly-once query at random points."""
    seed = random.SystemRandom().randrange(2**32) if seed is None else seed
    click.echo(f"seed {seed}")
    victims = ["worker", "driver", "worker", "broker", "worker"]
    if master.startswith("local-cluster"):
        victims[2] = "executor"
    # Some drivers have transactions that time out before the next driver has started.
    timeouts_ms = (3000, 60_000)
    folder = Path(tempfile.mkdtemp(prefix="kills-"))
    interval = "transaction.abort.timed.out.transaction.cleanup.interval.ms=500"
    started = time.monotonic()
    with Cluster(folder, brokers, "--set", interval) as cluster:
        run = KillRun(cluster, folder / "query", seed=seed, master=master)
        _report(run, lambda: run.run(kills, tuple(victims), timeouts_ms, minutes * 60))
        _report(run, lambda: run.finish(timeouts_ms))
        run.check()
    figures = run.figures
    for name, count in sorted(figures.kills.items()):
        click.echo(f"{count:4} kills: {name}")
    click.echo(
        f"{sum(figures.kills.values())} kills, {figures.starts} drivers,"
        f" {run.count_in_log('the query has failed')} failed queries,"
        f" {run.count_in_log('copying their rows')} batches with copied rows,"
        f" {figures.rows} rows, each once, in {time.monotonic() - started:.0f} s; log {run.log}"
    )


def _report(run: KillRun, work: Callable[[], None]) -> None:
    try:
        work()
    except BaseException:
        click.echo(f"{run.figures}; log {run.log}")
        raise


if __name__ == "__main__":
    main()
