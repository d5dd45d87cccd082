"""Rows 1 to 3, and 10: SIGKILL, power cuts, SIGSTOP."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from random import Random

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from chaos.matrix import row
from chaos.testbed import TOPIC, FaultyDaemon, Run, Testbed
from harness.checker import LOSSES, check, counted
from harness.daemon import Daemon
from harness.load import Load
from harness.mounts import Mounts, private_mounts

DISK_BYTES = 256 * 1024 * 1024


@row("1", "kill -9 under load", "kills", short=2, normal=60, full=500)
def kill(run: Run) -> None:
    slowest = 0.0
    with run.testbed() as testbed:
        with testbed.load() as load:
            for _ in run.cycles():
                broker = testbed.choose_victim()
                load.wait_for_acks()
                time.sleep(run.random.uniform(0.0, 0.4))
                broker.kill()
                testbed.wait_for_acks_of_others(load)
                if run.random.random() < 0.2:
                    _kill_during_start(broker, run.random.uniform(0.05, 0.4))
                started = time.monotonic()
                broker.start()
                slowest = max(slowest, time.monotonic() - started)
            load.wait_for_acks()
        run.note(f"slowest start {slowest:.2f} s")
        run.verify(testbed, load)


def _kill_during_start(broker: Daemon, after: float) -> None:
    process = broker.spawn()
    time.sleep(after)
    process.kill()
    process.wait()


@row("2", "power cut", "cuts", short=1, normal=30, full=500)
def cut_power(run: Run) -> None:
    """Acks wait for an fsync. There are no readers: unacked records that they saw may vanish."""
    _cut_power(run, "acks", with_readers=False)


@row("2f", "power cut, durability=fsync", "cuts", short=1, normal=30, full=500)
def cut_power_with_fsync(run: Run) -> None:
    """Records are not readable before the fsync, so that none vanishes after a read."""
    _cut_power(run, "fsync", with_readers=True)


def _cut_power(run: Run, durability: str, *, with_readers: bool) -> None:
    with (
        _private_disk(run) as mounts,
        run.testbed(data=mounts.path / "data", durability=durability) as testbed,
    ):
        with testbed.load(with_readers=with_readers) as load:
            for _ in run.cycles():
                load.wait_for_acks()
                time.sleep(run.random.uniform(0.0, 0.3))
                testbed.victim.pause()
                _cycle_power(testbed.victim, mounts)
            load.wait_for_acks()
        # A torn write is logged as an error.
        run.verify(testbed, load, may_log=True)


@row(
    "2c",
    "power cut, durability=page-cache: must lose",
    "cuts",
    short=1,
    normal=3,
    full=20,
    is_plain=True,
)
def cut_power_in_page_cache(run: Run) -> None:
    """The control experiment: without fsync, a power cut loses acked records."""
    # No checkpoint may fsync anything.
    configs = {"log.flush.offset.checkpoint.interval.ms": "600000"}
    folder = run.folder
    with _private_disk(run) as mounts:
        for cycle in run.cycles():
            data = mounts.path / f"data{cycle}"
            run.folder = folder / str(cycle)
            with run.testbed(
                configs, data=data, durability="page-cache", with_bystander=False
            ) as testbed:
                with testbed.load() as load:
                    load.wait_for_acks(20)
                    testbed.victim.pause()
                    # Stop first: after a loss, idempotent producers would fail.
                    load.stop(timeout=0.2)
                    _cycle_power(testbed.victim, mounts)
                run.read_everything(testbed, load)
                anomalies = check(load.history)
                run.add_figures(load, anomalies)
                lost = sum(counted(anomalies)[kind] for kind in LOSSES)
                assert lost > 0, "nothing was lost: the test proves nothing"
    run.note("loses records, as expected")


@contextmanager
def _private_disk(run: Run) -> Iterator[Mounts]:
    run.folder.mkdir(parents=True, exist_ok=True)
    with private_mounts(run.folder) as mounts:
        mounts.make_ext4(DISK_BYTES)
        yield mounts


def _cycle_power(broker: Daemon, mounts: Mounts) -> None:
    """Cut the power of a paused broker, which acked nothing after the cut, and restart it."""
    mounts.cut_power()
    broker.kill()
    mounts.unmount()
    mounts.mount_ext4()
    broker.start()


#: Where the power is cut: a name, a disk call, a part of its path, before or after the call.
POINTS = (
    ("roll: new segment created", "open", f"/{TOPIC}-", "after"),
    ("roll: before renaming the index", "rename", ".index", "before"),
    ("roll: after renaming the index", "rename", ".index", "after"),
    ("before renaming the producer snapshot", "rename", ".snapshot", "before"),
    ("before fsyncing a checkpoint", "sync", "recovery-point", "before"),
    ("before renaming a checkpoint", "rename", "recovery-point", "before"),
    ("after renaming a checkpoint", "rename", "recovery-point", "after"),
    ("DeleteRecords: before storing the log start offset", "rename", "log-start-offset", "before"),
    ("DeleteRecords: before renaming a segment", "rename", ".deleted", "before"),
    ("create: after writing the metadata record", "write", "/__cluster_metadata-0/", "after"),
    ("create: after creating the log directory", "make_directory", "/extra", "after"),
    ("delete: before renaming the log directory", "rename", "/extra", "before"),
    ("delete: after renaming the log directory", "rename", "/extra", "after"),
    ("delete: before unlinking files", "unlink", ".deleted/", "before"),
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
    run.random.shuffle(points)
    missed = 0
    # Small segments, so that every point is reached often.
    config = {"segment_bytes": "16384", "durability": "fsync"}
    with (
        _private_disk(run) as mounts,
        run.testbed(kind=FaultyDaemon, data=mounts.path / "data", **config) as testbed,
    ):
        with testbed.load() as load, _Churn(testbed, load, run.random) as churn:
            for cycle in run.cycles():
                name, call, where, when = points[cycle % len(points)]
                broker = testbed.victim
                assert isinstance(broker, FaultyDaemon)
                load.wait_for_acks()
                broker.stop_at(call, where, when)
                # If the point is not reached in time, cut the power anyway.
                if not broker.wait_until_paused(60):
                    missed += 1
                    run.note(f"not reached: {name}")
                    broker.pause()
                _cycle_power(broker, mounts)
                churn.check(name)
            load.wait_for_acks()
        assert missed <= run.count // 10, run.figures.notes
        run.verify(testbed, load, deleted=churn, may_log=True)


class _Churn:
    """Creates and deletes topics, and the oldest records, and checks what was acknowledged."""

    def __init__(self, testbed: Testbed, load: Load, random: Random) -> None:
        self._testbed = testbed
        self._load = load
        self._random = Random(random.random())
        self._admin = AdminClient(
            {"bootstrap.servers": testbed.address, "log_level": 0, "reconnect.backoff.max.ms": 100}
        )
        self._deleted_before = [0] * testbed.partitions
        #: Topics whose creation, or deletion, was acknowledged.
        self._created: set[str] = set()
        self._deleted: set[str] = set()
        self._number = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="churn", daemon=True)

    def __contains__(self, position: tuple[int, int]) -> bool:
        """Whether the record at a partition and offset may have been deleted."""
        partition, offset = position
        return offset < self._deleted_before[partition]

    def check(self, where: str) -> None:
        """Assert that topics exist, or do not, as acknowledged."""
        deadline = time.monotonic() + 20
        while problem := self._problem():
            # Brokers that were down catch up a moment later.
            assert time.monotonic() < deadline, f"{where}: {problem}"
            time.sleep(0.05)

    def _problem(self) -> str:
        with self._lock:  # no request is in flight
            listed = set(self._admin.list_topics(timeout=20).topics)
            lost, back = self._created - listed, self._deleted & listed
        orphans = [
            path.name
            for path in self._testbed.victim.data.iterdir()
            if path.name.startswith("extra") and path.name.rpartition("-")[0] not in listed
        ]
        facts = {"created and lost": lost, "deleted and back": back}
        facts["logs of unknown topics"] = set(orphans)
        return "; ".join(f"{what}: {names}" for what, names in facts.items() if names)

    def _run(self) -> None:
        while not self._stopping.wait(0.02):
            with self._lock:
                try:
                    self._change_topics()
                except KafkaException:
                    time.sleep(0.05)  # the broker is down

    def _change_topics(self) -> None:
        self._number += 1
        name = f"extra{self._number}"
        topic = NewTopic(name, 2, 1)
        self._admin.create_topics([topic], request_timeout=5)[name].result(10)
        self._created.add(name)
        if self._created and self._random.random() < 0.8:
            name = self._random.choice(sorted(self._created))
            self._created.discard(name)  # unknown until acknowledged
            self._admin.delete_topics([name], request_timeout=5)[name].result(10)
            self._deleted.add(name)
        self._delete_records()

    def _delete_records(self) -> None:
        partition = self._random.choice(self._testbed.led_by_victim)
        offset = self._load.acked_in([partition]) - 300
        if offset > self._deleted_before[partition]:
            self._deleted_before[partition] = offset
            tp = TopicPartition(TOPIC, partition, offset)
            self._admin.delete_records([tp], request_timeout=5)[tp].result(10)

    def __enter__(self) -> _Churn:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


@row("10", "SIGSTOP, then SIGCONT", "pauses", short=1, normal=12, full=50)
def pause(run: Run) -> None:
    with run.testbed() as testbed:
        with testbed.load() as load:
            for cycle in run.cycles():
                broker = testbed.choose_victim()
                load.wait_for_acks()
                broker.pause()
                testbed.wait_for_acks_of_others(load)
                # Sometimes longer than the clients' request timeout.
                time.sleep(15 if cycle % 10 == 9 else run.random.uniform(0.2, 2.0))
                broker.resume()
            load.wait_for_acks()
        run.verify(testbed, load)
