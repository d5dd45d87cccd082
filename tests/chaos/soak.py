"""The soak test: hours of load with faults; nothing is lost, memory and descriptors do not grow.

A broker behind an unreliable network, with producers and readers of three clients, a group whose
members are killed, topics that are created and deleted, a compacted topic, one with retention, and
hostile clients. The broker is killed often in the first tenth of the time. After that it runs on,
and its resources are sampled every few seconds: the test fails if they grow. Of several brokers the
first is sampled, and the others are killed all the time.
"""

from __future__ import annotations

import csv
import math
import os
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

from chaos.network import degrade
from chaos.proxy import Proxy
from chaos.runner import SEED, random_seed
from chaos.testbed import Run, Testbed, bugs_of
from harness.attack import FALSE_LENGTHS, append, mutated, open_connections
from harness.daemon import Daemon, anonymous_mib, open_files, process_stat
from harness.golden_frames import RECORDED_FRAMES
from harness.group_members import BROKER_CONFIGS, GroupMembers, check_group, producing, settle
from harness.load import Load, silenced_client_logs
from harness.wire import BlockingWireClient, frame_of, framed
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic

GROUP_TOPIC = "jobs"
GROUP_PARTITIONS = 4
#: Allowed growth since the second quarter.
MEMORY_MIB = 4.0
DESCRIPTORS = 24
SAMPLE_SECONDS = 5.0
CONFIGS = BROKER_CONFIGS | {
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "log.retention.check.interval.ms": "1000",
    "log.cleaner.backoff.ms": "1000",
    "connections.progress.timeout.ms": "5000",
    # Requests of hostile clients must not create topics, which would stay.
    "auto.create.topics.enable": "false",
}
#: APIs that change no state, corrupt or not.
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
#: Recorded requests, of every version that a client uses.
FRAMES = [
    line.frame
    for line in RECORDED_FRAMES
    if line.direction == "request" and line.api.name in HARMLESS
]
#: Topics that are kept have one segment: open files of more segments would look like growth.
ONE_SEGMENT = str(1 << 30)
#: Prefix of topics that are created and deleted.
EXTRA = "extra-"


@dataclass
class Sample:
    """The resources of the broker at a moment."""

    seconds: float
    memory_mib: float
    descriptors: int
    threads: int
    cpu_seconds: float
    acked: int
    starts: int


@dataclass
class Fault:
    """A fault that is injected at an interval."""

    name: str
    every_seconds: float
    act: Callable[[], None]
    ends: float = math.inf
    due: float = 0.0
    times: int = 0


class Soak:
    """One soak test."""

    def __init__(
        self, folder: Path, seconds: float, *, seed: int, per_second: float, brokers: int
    ) -> None:
        self.samples: list[Sample] = []
        self.faults: list[Fault] = []
        self.starts = 1
        self._folder = folder
        self._seconds = seconds
        self._random = Random(seed)
        self._per_second = per_second
        self._run = Run(folder, seed=seed, count=0, brokers=brokers)
        self._number = 0
        self._members = ["a", "b"]

    @silenced_client_logs()
    def run(self, report: Callable[[Sample], None]) -> None:
        """Run the test. Raises AssertionError."""
        with self._run.testbed_behind_proxies(CONFIGS, segment_bytes=ONE_SEGMENT) as (
            testbed,
            proxies,
        ):
            self._create_topics(testbed)
            with (
                GroupMembers(
                    testbed.address, self._folder, "g", GROUP_TOPIC, assignors=["range"]
                ) as members,
                producing(testbed.address, GROUP_TOPIC, GROUP_PARTITIONS, per_second=10) as load,
            ):
                with testbed.load(per_second=self._per_second) as orders:
                    for name, client in zip(self._members, ("confluent", "aiokafka"), strict=True):
                        members.start(name, client)
                    self._inject_faults(testbed, proxies, orders, members, report)
                    orders.wait_for_acks()
                settle(members, load=load)
                members.stop()
                check_group(members, load)
            self._run.verify(testbed, orders, may_fail=False)
            assert not bugs_of(testbed.victim)
        self.verify_trends()

    def _create_topics(self, testbed: Testbed) -> None:
        testbed.create_topic(GROUP_TOPIC, GROUP_PARTITIONS, segment_bytes=ONE_SEGMENT)
        testbed.victim = testbed.brokers[0]
        testbed.create_topic(
            "trimmed", 1, on_victim=True, segment_bytes="65536", retention_bytes="262144"
        )
        testbed.create_topic(
            "compacted",
            1,
            on_victim=True,
            cleanup_policy="compact",
            segment_bytes="65536",
            min_cleanable_dirty_ratio="0.1",
        )

    def _inject_faults(
        self,
        testbed: Testbed,
        proxies: list[Proxy],
        load: Load,
        members: GroupMembers,
        report: Callable[[Sample], None],
    ) -> None:
        broker, *others = testbed.brokers
        testbed.victim = broker
        started = time.monotonic()
        kills_end = started + self._seconds / 10
        admin = AdminClient({"bootstrap.servers": testbed.address, "log_level": 0})

        def kill() -> None:
            victim = self._random.choice(others or [broker])
            victim.kill()
            victim.start()
            if victim is broker:
                self.starts += 1
                self._use_all_codecs(broker)

        def pause() -> None:
            victim = self._random.choice(testbed.brokers)
            victim.pause()
            time.sleep(self._random.uniform(0.2, 1.0))
            victim.resume()

        def partition_network() -> None:
            proxy = self._random.choice(proxies)
            proxy.is_cut = True
            time.sleep(self._random.uniform(0.2, 3.0))
            proxy.is_cut = False

        def reset_connections() -> None:
            degrade(proxies, delay_seconds=0.05, reset_within_bytes=20_000)
            time.sleep(2)
            degrade(proxies, delay_seconds=0.0, reset_within_bytes=None)

        def kill_member() -> None:
            members.kill(self._members.pop(0))
            self._number += 1
            self._members.append(f"m{self._number}")
            client = self._random.choice(["confluent", "aiokafka", "kafka-python"])
            members.start(self._members[-1], client)

        def create_and_delete_topic() -> None:
            self._number += 1
            name = f"{EXTRA}{self._number}"
            try:
                admin.create_topics([NewTopic(name, 6, 1)], request_timeout=5)[name].result(10)
                # Also those whose deletion failed before: each has open files and memory.
                known = [name for name in admin.list_topics(timeout=5).topics if EXTRA in name]
                for deleted in admin.delete_topics(known, request_timeout=5).values():
                    deleted.result(10)
            except KafkaException:
                pass  # the network is partitioned

        def roll_segments() -> None:
            append(broker, os.urandom(20_000), times=5, topic="trimmed")
            append(broker, os.urandom(2_000), times=20, topic="compacted")

        def attack() -> None:
            self._attack(testbed)

        self.faults = [
            Fault("kill -9", 30 if others else 10, kill, ends=math.inf if others else kills_end),
            Fault("SIGSTOP", 60, pause),
            Fault("network partition", 45, partition_network),
            Fault("resets", 30, reset_connections),
            Fault("member killed", 60, kill_member),
            Fault("topic created and deleted", 5, create_and_delete_topic),
            Fault("segments rolled", 2, roll_segments),
            Fault("attack", 10, attack),
        ]
        self._use_all_codecs(broker)
        for fault in self.faults:
            fault.due = started + self._random.uniform(0, fault.every_seconds)
        next_sample = started
        while (now := time.monotonic()) < started + self._seconds:
            if now >= next_sample:
                next_sample = now + SAMPLE_SECONDS
                self.samples.append(self._sample(broker, now - started, load))
                report(self.samples[-1])
            for fault in self.faults:
                if fault.due <= now < fault.ends:
                    fault.act()
                    fault.times += 1
                    fault.due = time.monotonic() + fault.every_seconds
            for running in testbed.brokers:
                assert running.is_running, running.log_tail()
            assert not load.problems, load.problems
            time.sleep(0.1)

    def _use_all_codecs(self, broker: Daemon) -> None:
        """Send every recorded request: the broker compiles codecs on first use.

        Their memory is not released, and would look like growth later.
        """
        for frame in FRAMES:
            with BlockingWireClient(broker) as connection:
                connection.send(framed(frame))
                connection.frame()

    def _attack(self, testbed: Testbed) -> None:
        """Send corrupt requests and false sizes, open connections, and fetch without reading."""
        broker = testbed.victim
        with ExitStack() as stack:
            for frame in self._random.sample(FRAMES, 10):
                for connection in open_connections(
                    broker, stack, 1, mutated(framed(frame), self._random)
                ):
                    connection.read_to_end()
            open_connections(broker, stack, 3, self._random.choice(FALSE_LENGTHS) + bytes(10))
            open_connections(broker, stack, 50)
            wanted = [FetchPartition(partition_max_bytes=1 << 20)]
            fetch = FetchRequest(topics=[FetchTopic(topic="trimmed", partitions=wanted)])
            open_connections(broker, stack, 5, frame_of(fetch, 12) * 20)
            with BlockingWireClient(broker) as connection:
                assert connection.request(ApiVersionsRequest(), 2).error_code == 0

    def _sample(self, broker: Daemon, seconds: float, load: Load) -> Sample:
        stat = process_stat(broker)
        ticks = int(stat[11]) + int(stat[12])
        return Sample(
            round(seconds, 1),
            round(anonymous_mib(broker), 2),
            len(open_files(broker)),
            int(stat[17]),
            ticks / os.sysconf("SC_CLK_TCK"),
            load.acked,
            self.starts,
        )

    def verify_trends(self) -> None:
        """Assert that resources did not grow."""
        for name, before, after, limit in self.trends():
            grown = after - before
            assert grown <= limit, f"{name}: {before:.1f}, then {after:.1f}: grown by {grown:.1f}"

    def trends(self) -> Iterator[tuple[str, float, float, float]]:
        """Yield the medians of the second and last quarter after the last start, and the limit."""
        life = [sample for sample in self.samples if sample.starts == self.starts]
        quarter = len(life) // 4
        assert quarter, "the run is too short"
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
        """The figures of the load."""
        return self._run.figures


@click.command()
@click.option("--minutes", default=60.0, show_default=True, help="Duration.")
@click.option("--seed", type=int, envvar=SEED, help=f"Random seed, or {SEED}. [default: random]")
@click.option("--per-second", default=60.0, show_default=True, help="Records per second.")
@click.option("--brokers", default=1, show_default=True, help="Number of brokers.")
@click.option("--out", type=Path, default=Path("soak.csv"), show_default=True)
@click.option("--dir", "base", type=Path, help="Working directory. [default: a temporary one]")
def soak(
    minutes: float, seed: int | None, per_second: float, brokers: int, out: Path, base: Path | None
) -> None:
    """Run a broker under load with faults, and check that its resources do not grow.

    \b
        make soak SOAK="--minutes 60 --out soak.csv"

    Writes a sample every five seconds. Fails if memory or descriptors grow, or if a record is
    lost.
    """
    folder = Path(tempfile.mkdtemp(prefix="ottla-soak-", dir=base))
    seed = random_seed() if seed is None else seed
    work = Soak(folder, minutes * 60, seed=seed, per_second=per_second, brokers=brokers)
    console = Console(width=None if sys.stdout.isatty() else 140)
    console.print(f"seed {seed}")
    names = [field.name for field in fields(Sample)]
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(names)

        def report(sample: Sample) -> None:
            writer.writerow([getattr(sample, name) for name in names])
            file.flush()
            if len(work.samples) % round(60 / SAMPLE_SECONDS) == 1:
                console.print(
                    f"{sample.seconds / 60:5.1f} min  {sample.memory_mib:6.1f} MiB"
                    f"  {sample.descriptors} descriptors  {sample.threads} threads"
                    f"  {sample.acked:,} acked  {sample.starts} starts",
                    highlight=False,
                )

        work.run(report)
    figures = work.figures
    summary = f"{figures.acked:,} acked, {figures.lost} lost, {figures.duplicated} duplicated"
    table = Table(title=f"{minutes:g} minutes: {summary}")
    for name in ("", "second quarter", "last quarter", "allowed growth"):
        table.add_column(name, justify="right" if name else "left")
    for name, before, after, limit in work.trends():
        table.add_row(name, f"{before:.1f}", f"{after:.1f}", f"{limit:g}")
    console.print(table)
    injected = ", ".join(f"{fault.times} × {fault.name}" for fault in work.faults)
    console.print(f"{injected}; longest wait for an ack {work.figures.worst_seconds:.1f} s")
    console.print(f"samples are in {out}; logs and data are in {folder}")
