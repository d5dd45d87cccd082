"""Hours of mixed load with faults: nothing is lost, and memory and descriptors stay flat.

A broker behind a bad network, with producers and readers of three clients, a group whose members
are killed, topics that come and go, a topic that is compacted and one that is trimmed, and people
who mean no good. It is killed often in the first tenth of the time. From then on it lives, and what
it holds is looked at every few seconds: it fails if that is more in the end than early on. Of
several brokers the first is looked at, and it is the others that are killed, all the time.
"""

from __future__ import annotations

import csv
import math
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, fields
from pathlib import Path
from random import Random
from typing import Any

import click
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, NewTopic
from rich.console import Console
from rich.table import Table

from chaos.network import make_bad
from chaos.proxy import Proxy
from chaos.stage import Run, Stage, bugs_of, descriptors, freeze, memory_mib
from harness.daemon import Daemon
from harness.group_members import BROKER_CONFIGS, GroupMembers, check_group, producing, settle
from harness.load import Load, silenced_client_logs
from harness.wire import BlockingWireClient, frame_of, framed
from hostile.attack import FALSE_LENGTHS, append, mutated, open_connections
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from test_golden import RECORDED_FRAMES

GROUP_TOPIC = "jobs"
GROUP_PARTITIONS = 4
#: So much more than after the first quarter is still flat.
MEMORY_MIB = 4.0
DESCRIPTORS = 24
SAMPLE_SECONDS = 5.0
SETTINGS = BROKER_CONFIGS | {
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "log.retention.check.interval.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
    "connections.progress.timeout.ms": "5000",
    # What somebody sends who means no good is not to become a topic: that would be there to stay.
    "auto.create.topics.enable": "false",
}
#: Requests that leave nothing behind, damaged or not.
HARMLESS = (
    "ApiVersions",
    "Fetch",
    "FindCoordinator",
    "Heartbeat",
    "ListOffsets",
    "Metadata",
    "OffsetFetch",
    "SyncGroup",
    "DescribeGroups",
    "DescribeConfigs",
    "LeaveGroup",
)
#: Some of each version that a client was seen to use.
FRAMES = [
    line.frame
    for line in RECORDED_FRAMES
    if line.direction == "request" and line.api.name in HARMLESS
]
#: What is kept for long stays in one file: each that is added is kept open, up to a limit.
ONE_SEGMENT = str(1 << 30)
#: How topics begin that come and go.
EXTRA = "extra-"


@dataclass
class Sample:
    """What the broker holds at a moment."""

    seconds: float
    memory_mib: float
    descriptors: int
    threads: int
    cpu_seconds: float
    acked: int
    starts: int


@dataclass
class Gremlin:
    """Something that goes wrong now and then."""

    name: str
    every_seconds: float
    act: Callable[[], None]
    ends: float = math.inf
    due: float = 0.0
    times: int = 0


class Soak:
    """All of it, for so many seconds."""

    def __init__(
        self, folder: Path, seconds: float, *, seed: int, per_second: float, brokers: int
    ) -> None:
        self.samples: list[Sample] = []
        self.gremlins: list[Gremlin] = []
        self.starts = 1
        self._folder = folder
        self._seconds = seconds
        self._chance = Random(seed)
        self._per_second = per_second
        self._run = Run(folder, seed=seed, count=0, brokers=brokers)
        self._number = 0
        self._members = ["a", "b"]

    @silenced_client_logs()
    def run(self, tell: Callable[[Sample], None]) -> None:
        """Do it. Raises AssertionError if something is not as it should be."""
        with self._run.stage_behind_proxies(SETTINGS, segment_bytes=ONE_SEGMENT) as (
            stage,
            proxies,
        ):
            self._make_topics(stage)
            with (
                GroupMembers(
                    stage.address, self._folder, "g", GROUP_TOPIC, assignors=["range"]
                ) as members,
                producing(stage.address, GROUP_TOPIC, GROUP_PARTITIONS, per_second=10) as load,
            ):
                with stage.load(per_second=self._per_second) as orders:
                    for name, client in zip(self._members, ("confluent", "aiokafka"), strict=True):
                        members.start(name, client)
                    self._go_on(stage, proxies, orders, members, tell)
                    orders.wait_for_acks()
                settle(members, load=load)
                members.stop()
                check_group(members, load)
            self._run.judge(stage, orders, may_fail=False)
            assert not bugs_of(stage.victim)
        self.judge()

    def _make_topics(self, stage: Stage) -> None:
        stage.create_topic(GROUP_TOPIC, GROUP_PARTITIONS, segment_bytes=ONE_SEGMENT)
        stage.victim = stage.brokers[0]
        stage.create_topic(
            "trimmed", 1, on_victim=True, segment_bytes="65536", retention_bytes="262144"
        )
        stage.create_topic(
            "compacted",
            1,
            on_victim=True,
            cleanup_policy="compact",
            segment_bytes="65536",
            min_cleanable_dirty_ratio="0.1",
        )

    def _go_on(
        self,
        stage: Stage,
        proxies: list[Proxy],
        load: Load,
        members: GroupMembers,
        tell: Callable[[Sample], None],
    ) -> None:
        broker, *others = stage.brokers
        stage.victim = broker
        started = time.monotonic()
        rough = started + self._seconds / 10
        admin = AdminClient({"bootstrap.servers": stage.address, "log_level": 0})

        def kill() -> None:
            victim = self._chance.choice(others or [broker])
            victim.kill()
            victim.start()
            if victim is broker:
                self.starts += 1
                self._use_all_codecs(broker)

        def stand_still() -> None:
            victim = self._chance.choice(stage.brokers)
            freeze(victim.pid)
            time.sleep(self._chance.uniform(0.2, 1.0))
            os.kill(victim.pid, signal.SIGCONT)

        def cut_off() -> None:
            proxy = self._chance.choice(proxies)
            proxy.is_cut = True
            time.sleep(self._chance.uniform(0.2, 3.0))
            proxy.is_cut = False

        def slow_down() -> None:
            make_bad(proxies, delay_seconds=0.05, reset_within_bytes=20_000)
            time.sleep(2)
            make_bad(proxies, delay_seconds=0.0, reset_within_bytes=None)

        def lose_a_member() -> None:
            members.kill(self._members.pop(0))
            self._number += 1
            self._members.append(f"m{self._number}")
            client = self._chance.choice(["confluent", "aiokafka", "kafka-python"])
            members.start(self._members[-1], client)

        def make_and_delete_a_topic() -> None:
            self._number += 1
            name = f"{EXTRA}{self._number}"
            try:
                admin.create_topics([NewTopic(name, 6, 1)], request_timeout=5)[name].result(10)
                # With those that had to stay when it was cut off: each holds files, and memory.
                known = [name for name in admin.list_topics(timeout=5).topics if EXTRA in name]
                for deleted in admin.delete_topics(known, request_timeout=5).values():
                    deleted.result(10)
            except KafkaException:
                pass  # it was cut off

        def write() -> None:
            append(broker, os.urandom(20_000), times=5, topic="trimmed")
            append(broker, os.urandom(2_000), times=20, topic="compacted")

        def attack() -> None:
            self._attack(stage)

        self.gremlins = [
            Gremlin("kill -9", 30 if others else 10, kill, ends=math.inf if others else rough),
            Gremlin("SIGSTOP", 60, stand_still),
            Gremlin("cut off", 45, cut_off),
            Gremlin("resets", 30, slow_down),
            Gremlin("member killed", 60, lose_a_member),
            Gremlin("topic made and deleted", 5, make_and_delete_a_topic),
            Gremlin("segments rolled", 2, write),
            Gremlin("attack", 10, attack),
        ]
        self._use_all_codecs(broker)
        for gremlin in self.gremlins:
            gremlin.due = started + self._chance.uniform(0, gremlin.every_seconds)
        next_sample = started
        while (now := time.monotonic()) < started + self._seconds:
            if now >= next_sample:
                next_sample = now + SAMPLE_SECONDS
                self.samples.append(self._look(broker.pid, now - started, load))
                tell(self.samples[-1])
            for gremlin in self.gremlins:
                if gremlin.due <= now < gremlin.ends:
                    gremlin.act()
                    gremlin.times += 1
                    gremlin.due = time.monotonic() + gremlin.every_seconds
            for one in stage.brokers:
                assert one.is_running, one.last_words()
            assert not load.problems, load.problems
            time.sleep(0.1)

    def _use_all_codecs(self, broker: Daemon) -> None:
        """Have each request answered once: a broker compiles a codec when it is first needed.

        That is memory which stays, and is not to come bit by bit, by chance, later on.
        """
        for frame in FRAMES:
            with BlockingWireClient(broker) as connection:
                connection.send(framed(frame))
                connection.frame()

    def _attack(self, stage: Stage) -> None:
        """Damaged requests, lies about sizes, crowds that leave, and somebody who does not read."""
        broker = stage.victim
        with ExitStack() as stack:
            for frame in self._chance.sample(FRAMES, 10):
                for connection in open_connections(
                    broker, stack, 1, mutated(framed(frame), self._chance)
                ):
                    connection.read_to_end()
            open_connections(broker, stack, 3, self._chance.choice(FALSE_LENGTHS) + bytes(10))
            open_connections(broker, stack, 50)
            wanted = [FetchPartition(partition_max_bytes=1 << 20)]
            fetch = FetchRequest(topics=[FetchTopic(topic="trimmed", partitions=wanted)])
            open_connections(broker, stack, 5, frame_of(fetch, 12) * 20)
            with BlockingWireClient(broker) as connection:
                assert connection.request(ApiVersionsRequest(), 3).error_code == 0

    def _look(self, pid: int, seconds: float, load: Load) -> Sample:
        stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks = int(stat[11]) + int(stat[12])
        return Sample(
            round(seconds, 1),
            round(memory_mib(pid), 2),
            descriptors(pid),
            int(stat[17]),
            ticks / os.sysconf("SC_CLK_TCK"),
            load.acked,
            self.starts,
        )

    def judge(self) -> None:
        """Compare what it held after the first quarter with the end."""
        for name, before, after, limit in self.trends():
            grown = after - before
            assert grown <= limit, f"{name}: {before:.1f}, then {after:.1f}: grown by {grown:.1f}"

    def trends(self) -> Iterator[tuple[str, float, float, float]]:
        """Give medians of the second and of the last quarter of the long life, and a limit."""
        life = [sample for sample in self.samples if sample.starts == self.starts]
        quarter = len(life) // 4
        assert quarter, "too short to tell"
        early, late = life[quarter : 2 * quarter], life[-quarter:]
        for name, limit in (
            ("memory_mib", MEMORY_MIB),
            ("descriptors", DESCRIPTORS),
            ("threads", 2),
        ):
            before, after = (
                statistics.median(getattr(sample, name) for sample in part)
                for part in (early, late)
            )
            yield name, before, after, limit

    @property
    def figures(self) -> Any:
        """What clients saw."""
        return self._run.figures


@click.command()
@click.option("--minutes", default=60.0, show_default=True, help="How long.")
@click.option("--seed", default=1, show_default=True, help="Where chance begins.")
@click.option("--per-second", default=60.0, show_default=True, help="Records a second.")
@click.option("--brokers", default=1, show_default=True, help="How many brokers there are.")
@click.option("--out", type=Path, default=Path("soak.csv"), show_default=True)
@click.option("--dir", "base", type=Path, help="Where to work. [default: a temporary folder]")
def soak(
    minutes: float, seed: int, per_second: float, brokers: int, out: Path, base: Path | None
) -> None:
    """Let a broker live with load and faults for long, and see that it stays flat.

    \b
        make soak SOAK="--minutes 60 --out soak.csv"

    What it holds is written down every five seconds. Fails if memory or descriptors grow, or if
    anything is lost.
    """
    folder = Path(tempfile.mkdtemp(prefix="ottla-soak-", dir=base))
    work = Soak(folder, minutes * 60, seed=seed, per_second=per_second, brokers=brokers)
    console = Console(width=None if sys.stdout.isatty() else 140)
    names = [field.name for field in fields(Sample)]
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)

        def tell(sample: Sample) -> None:
            writer.writerow([getattr(sample, name) for name in names])
            file.flush()
            if len(work.samples) % round(60 / SAMPLE_SECONDS) == 1:
                console.print(
                    f"{sample.seconds / 60:5.1f} min  {sample.memory_mib:6.1f} MiB"
                    f"  {sample.descriptors} descriptors  {sample.threads} threads"
                    f"  {sample.acked:,} acked  {sample.starts} starts",
                    highlight=False,
                )

        work.run(tell)
    found = work.figures
    told = f"{found.acked:,} acked, {found.lost} lost, {found.duplicated} duplicated"
    table = Table(title=f"{minutes:g} minutes: {told}")
    for name in ("", "second quarter", "last quarter", "may grow by"):
        table.add_column(name, justify="right" if name else "left")
    for name, before, after, limit in work.trends():
        table.add_row(name, f"{before:.1f}", f"{after:.1f}", f"{limit:g}")
    console.print(table)
    told = ", ".join(f"{gremlin.times} × {gremlin.name}" for gremlin in work.gremlins)
    console.print(f"{told}; longest wait for an ack {work.figures.worst_seconds:.1f} s")
    console.print(f"the time series is in {out}; the broker's log and data are in {folder}")
