"""Rows 1 to 3, and 10: brokers that die, lose power, or stand still."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from chaos.matrix import row
from chaos.stage import TOPIC, Frail, Run, Stage, freeze, wait_until_stopped
from crash.mounts import Mounts, private_mounts
from harness.checker import LOSSES, check, counted
from harness.daemon import Daemon
from harness.load import Load, read_everything

DISK_BYTES = 256 * 1024 * 1024


@row("1", "kill -9 under load", "kills", short=4, normal=60, full=500)
def kill(run: Run) -> None:
    slowest = 0.0
    with run.stage() as stage:
        with stage.load() as load:
            for _ in run.cycles():
                broker = stage.choose()
                load.wait_for_acks()
                time.sleep(run.chance.uniform(0.0, 0.4))
                broker.kill()
                stage.others_serve(load)
                if run.chance.random() < 0.2:
                    _kill_while_it_starts(broker, run.chance.uniform(0.05, 0.4))
                started = time.monotonic()
                broker.start()
                slowest = max(slowest, time.monotonic() - started)
            load.wait_for_acks()
        run.note(f"slowest start {slowest:.2f} s")
        run.judge(stage, load)


def _kill_while_it_starts(broker: Daemon, after: float) -> None:
    process = broker.spawn()
    time.sleep(after)
    process.kill()
    process.wait()


@row("2", "power cut", "cuts", short=2, normal=30, full=500)
def cut_power(run: Run) -> None:
    """Acks wait for the device. Readers do not: what they see, and is not acked, may go again."""
    _cut_power(run, "acks", with_readers=False)


@row("2f", "power cut, durability=fsync", "cuts", short=2, normal=30, full=500)
def cut_power_with_fsync(run: Run) -> None:
    """Not even somebody who read what was not acked yet has seen something that is then gone."""
    _cut_power(run, "fsync", with_readers=True)


def _cut_power(run: Run, durability: str, *, with_readers: bool) -> None:
    with (
        _on_a_disk_of_its_own(run) as mounts,
        run.stage(data=mounts.path / "data", durability=durability) as stage,
    ):
        with stage.load(with_readers=with_readers) as load:
            for _ in run.cycles():
                load.wait_for_acks()
                time.sleep(run.chance.uniform(0.0, 0.3))
                freeze(stage.victim.pid)
                _power_goes_and_comes(stage.victim, mounts)
            load.wait_for_acks()
        # What was half written is told as an error.
        run.judge(stage, load, may_log=True)


@row("2c", "power cut, acks from the page cache: must lose", "cuts", short=1, normal=3, full=20)
def cut_power_in_page_cache(run: Run) -> None:
    """The control: what the row before does not lose is lost where nobody waits for the device."""
    # Nothing may reach the device by chance.
    settings = {"log.flush.offset.checkpoint.interval.ms": "600000"}
    folder = run.folder
    with _on_a_disk_of_its_own(run) as mounts:
        for cycle in run.cycles():
            data = mounts.path / f"data{cycle}"
            run.folder = folder / str(cycle)
            with run.stage(settings, data=data, durability="page-cache") as stage:
                with stage.load() as load:
                    load.wait_for_acks(20)
                    freeze(stage.victim.pid)
                    # What was lost would be missed: a producer's next would be out of order.
                    load.stop(timeout=0.2)
                    _power_goes_and_comes(stage.victim, mounts)
                read_everything(stage.address, TOPIC, stage.partitions, load.history)
                anomalies = check(load.history)
                run.take(load, anomalies)
                lost = sum(counted(anomalies)[kind] for kind in LOSSES)
                assert lost > 0, "nothing was lost: this test cannot tell"
    run.note("loses, as it must")


@contextmanager
def _on_a_disk_of_its_own(run: Run) -> Iterator[Mounts]:
    run.folder.mkdir(parents=True, exist_ok=True)
    with private_mounts(run.folder) as mounts:
        mounts.make_ext4(DISK_BYTES)
        yield mounts


def _power_goes_and_comes(broker: Daemon, mounts: Mounts) -> None:
    """Cut the power of a broker that stands still: whatever it acked, it acked before."""
    mounts.cut_power()
    broker.kill()
    mounts.unmount()
    mounts.mount_ext4()
    broker.start()


#: A name, a call to the disk and what is in its path: where the power goes.
POINTS = (
    ("a segment is rolled: its successor is made", "open", f"/{TOPIC}-", "after"),
    ("a segment is rolled: its index is put in place", "rename", ".index", "before"),
    ("a segment is rolled: its index is in place", "rename", ".index", "after"),
    ("producers are written down", "rename", ".snapshot", "before"),
    ("a checkpoint is written", "sync", "recovery-point", "before"),
    ("a checkpoint is put in place", "rename", "recovery-point", "before"),
    ("a checkpoint is in place", "rename", "recovery-point", "after"),
    ("records are deleted", "rename", "log-start-offset", "before"),
    ("records are deleted: a segment goes", "rename", ".deleted", "before"),
    ("a topic is created: its record is written", "write", "/__cluster_metadata-0/", "after"),
    ("a topic is created: its log is made", "make_directory", "/extra", "after"),
    ("a topic is deleted: its log is renamed", "rename", "/extra", "before"),
    ("a topic is deleted: its log was renamed", "rename", "/extra", "after"),
    ("a topic is deleted: its files go", "unlink", ".deleted/", "before"),
)


@row(
    "3",
    "power cut in a roll, checkpoint, create, delete",
    "cuts",
    short=3,
    normal=56,
    full=1400,
)
def cut_power_at_a_point(run: Run) -> None:
    points = list(POINTS)
    run.chance.shuffle(points)
    missed = 0
    # Small segments: what is to be met comes often.
    config = {"segment_bytes": "16384", "durability": "fsync"}
    with (
        _on_a_disk_of_its_own(run) as mounts,
        run.stage(kind=Frail, data=mounts.path / "data", **config) as stage,
    ):
        with stage.load() as load, _Churn(stage, load, run.chance) as churn:
            for cycle in run.cycles():
                name, call, where, when = points[cycle % len(points)]
                broker = stage.victim
                assert isinstance(broker, Frail)
                load.wait_for_acks()
                broker.stop_at(call, where, when)
                # Where it is not met in time, the power goes anyway.
                if not wait_until_stopped(broker.pid, seconds=60):
                    missed += 1
                    run.note(f"not met: {name}")
                    freeze(broker.pid)
                _power_goes_and_comes(broker, mounts)
                churn.check(name)
            load.wait_for_acks()
        assert missed <= run.count // 10, run.figures.notes
        run.judge(stage, load, deleted=churn, may_log=True)


class _Churn:
    """Somebody who creates and deletes topics, and the oldest records, and knows what is so now."""

    def __init__(self, stage: Stage, load: Load, chance: Random) -> None:
        self._stage = stage
        self._load = load
        self._chance = Random(chance.random())
        self._admin = AdminClient(
            {"bootstrap.servers": stage.address, "log_level": 0, "reconnect.backoff.max.ms": 100}
        )
        self._deleted_before = [0] * stage.partitions
        #: Topics that are there, are not there, and of which one cannot know.
        self._there: set[str] = set()
        self._gone: set[str] = set()
        self._number = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="churn", daemon=True)

    def __contains__(self, place: tuple[int, int]) -> bool:
        """Whether somebody wanted the record at a place to be deleted."""
        return place[1] < self._deleted_before[place[0]]

    def check(self, where: str) -> None:
        """See that topics are there, or not, as was acked."""
        deadline = time.monotonic() + 20
        while problem := self._problem():
            # Brokers that were down hear of what happened meanwhile, a moment later.
            assert time.monotonic() < deadline, f"{where}: {problem}"
            time.sleep(0.05)

    def _problem(self) -> str:
        with self._lock:  # it is not in the middle of anything
            listed = set(self._admin.list_topics(timeout=20).topics)
            lost, back = self._there - listed, self._gone & listed
        orphans = [
            path.name
            for path in self._stage.victim.data.iterdir()
            if path.name.startswith("extra") and path.name.rpartition("-")[0] not in listed
        ]
        facts = {"created, acked and lost": lost, "deleted, acked and back": back}
        facts["logs of topics that are not there"] = set(orphans)
        return "; ".join(f"{what}: {names}" for what, names in facts.items() if names)

    def _run(self) -> None:
        while not self._stopping.wait(0.02):
            with self._lock:
                try:
                    self._do_something()
                except KafkaException:
                    time.sleep(0.05)  # the broker is away, or will be

    def _do_something(self) -> None:
        self._number += 1
        name = f"extra{self._number}"
        topic = NewTopic(name, 2, 1)
        self._admin.create_topics([topic], request_timeout=5)[name].result(10)
        self._there.add(name)
        if self._there and self._chance.random() < 0.8:
            name = self._chance.choice(sorted(self._there))
            self._there.discard(name)  # whatever comes of it
            self._admin.delete_topics([name], request_timeout=5)[name].result(10)
            self._gone.add(name)
        self._delete_records()

    def _delete_records(self) -> None:
        partition = self._chance.choice(self._stage.owned)
        offset = self._load.acked_in([partition]) - 300
        if offset > self._deleted_before[partition]:
            self._deleted_before[partition] = offset
            place = TopicPartition(TOPIC, partition, offset)
            self._admin.delete_records([place], request_timeout=5)[place].result(10)

    def __enter__(self) -> _Churn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


@row("10", "SIGSTOP, then SIGCONT", "pauses", short=2, normal=12, full=50)
def pause(run: Run) -> None:
    with run.stage() as stage:
        with stage.load() as load:
            for cycle in run.cycles():
                broker = stage.choose()
                load.wait_for_acks()
                freeze(broker.pid)
                stage.others_serve(load)
                # Now and then for longer than clients wait for an answer.
                time.sleep(15 if cycle % 10 == 9 else run.chance.uniform(0.2, 2.0))
                os.kill(broker.pid, signal.SIGCONT)
            load.wait_for_acks()
        run.judge(stage, load)
