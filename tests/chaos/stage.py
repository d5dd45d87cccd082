"""What a fault meets: brokers, a topic, load on it, and somebody who judges in the end.

A row of the matrix is a function that is given a `Run`: how often to do it, chance, a folder, and
where to write down what it found.

    def kill(run: Run) -> None:
        with run.stage() as stage:
            with stage.load() as load:
                for _ in run.cycles():
                    load.wait_for_acks()
                    stage.victim.kill()
                    stage.victim.start()
            run.judge(stage, load)
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from types import MappingProxyType
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from chaos.proxy import Proxy
from harness.checker import LOSSES, Anomaly, check, counted
from harness.daemon import HOST, Cluster, Daemon, free_port
from harness.load import Load, load_on, read_everything

TOPIC = "orders"
#: What nobody may log: a bug that came up, whoever caught it.
BUG = re.compile(r"Traceback|\bERROR\b|\bCRITICAL\b|never retrieved")
#: How much more memory a broker may have in the end, unless a row says otherwise.
GROWTH_MIB = 32.0
#: Segments and recovery points come and go often enough to be caught at it.
TOPIC_CONFIG = {"segment.bytes": "262144", "index.interval.bytes": "1024"}
SETTINGS = {
    "log.flush.offset.checkpoint.interval.ms": "200",
    "broker.session.timeout.ms": "1000",
}
Settings = Mapping[str, str]


class Frail(Daemon):
    """The daemon on a disk and with a clock that do as they are told; see frail.py."""

    program = (str(Path(__file__).with_name("frail.py")),)

    def __init__(
        self, folder: Path, *arguments: str, port: int | None = None, **environ: str
    ) -> None:
        self._orders = free_port()
        super().__init__(folder, *arguments, port=port, **environ, FRAIL_PORT=str(self._orders))

    def order(self, **order: Any) -> int:
        """Give an order, and hear how often one was met so far."""
        with socket.create_connection((HOST, self._orders), timeout=10) as connection:
            connection.sendall(json.dumps(order).encode() + b"\n")
            hits: int = json.loads(connection.makefile().readline())["hits"]
            return hits

    def fail(self, call: str, where: str, error: int, *, times: int | None = None) -> None:
        """Let a call to the disk fail, for files with this in their path."""
        self.order(do="fail", call=call, where=where, error=error, times=times)

    def stop_at(self, call: str, where: str, when: str = "before") -> None:
        """Let the process stop at a call to the disk."""
        self.order(do="stop", call=call, where=where, when=when, times=1)

    @property
    def hits(self) -> int:
        """How often an order was met since it was started."""
        return self.order(do="look")

    def heal(self) -> None:
        """Let nothing fail any more."""
        self.order(do="heal")

    def set_clock(self, shift_seconds: float, *, is_frozen: bool = False) -> None:
        """Let the time of day be another one from now on, or stand still."""
        self.order(do="clock", shift=shift_seconds, frozen=is_frozen)


@dataclass
class Figures:
    """What came of a run: a line of the table."""

    cycles: int = 0
    acked: int = 0
    lost: int = 0
    duplicated: int = 0
    worst_seconds: float = 0.0
    memory_before: float | None = None
    memory_after: float | None = None
    notes: list[str] = field(default_factory=list)


class Stage:
    """Brokers with a topic on them."""

    def __init__(self, run: Run, brokers: list[Daemon], address: str, partitions: int) -> None:
        self._run = run
        self.brokers = brokers
        self.address = address
        self.partitions = partitions
        #: The one that things happen to.
        self.victim = run.chance.choice(brokers)
        #: By partition.
        self.owners: dict[int, Daemon] = {}

    def choose(self) -> Daemon:
        """Let it be somebody else's turn."""
        self.victim = self._run.chance.choice(self.brokers)
        return self.victim

    @property
    def owned(self) -> list[int]:
        """The partitions of the one that things happen to."""
        return [number for number, owner in self.owners.items() if owner is self.victim]

    @property
    def others(self) -> list[int]:
        """The partitions of all others."""
        return [number for number, owner in self.owners.items() if owner is not self.victim]

    @contextmanager
    def load(self, **options: Any) -> Iterator[Load]:
        """Let there be load; from here on memory counts."""
        with load_on(self.address, TOPIC, self.partitions, **options) as load:
            load.wait_for_acks()
            self._run.note_memory(self)
            yield load

    def others_serve(self, load: Load) -> None:
        """See that those whose turn it is not go on, whatever happens to the one."""
        if others := self.others:
            load.wait_for_acks(2, others, seconds=30)

    def create_topic(
        self,
        name: str = TOPIC,
        partitions: int | None = None,
        *,
        on_victim: bool = False,
        **config: str,
    ) -> None:
        """Make a topic; its settings are said with underscores."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        settings = TOPIC_CONFIG | {key.replace("_", "."): text for key, text in config.items()}
        count = partitions or self.partitions
        owner = [[self.brokers.index(self.victim)]] * count
        how = {"replica_assignment": owner} if on_victim else {"replication_factor": 1}
        topic = NewTopic(name, count, config=settings, **how)
        admin.create_topics([topic])[name].result(30)
        if name == TOPIC:
            # A broker that was slow for a moment is taken to be down, and leads nothing meanwhile.
            deadline = time.monotonic() + 30
            while -1 in (leaders := self._leaders(admin)).values():
                assert time.monotonic() < deadline, f"nobody leads some of {leaders}"
                time.sleep(0.05)
            self.owners = {number: self.brokers[leader] for number, leader in leaders.items()}

    @staticmethod
    def _leaders(admin: AdminClient) -> dict[int, int]:
        partitions = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
        return {number: found.leader for number, found in partitions.items()}


class Run:
    """One row of the matrix, being run."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        count: int,
        brokers: int = 1,
        progress: Callable[[int, int], None] = lambda _done, _of: None,
    ) -> None:
        self.folder = folder
        self.chance = Random(seed)
        self.count = count
        self.brokers = brokers
        self.figures = Figures()
        self._progress = progress

    def cycles(self) -> Iterator[int]:
        """Count what is done again and again."""
        for number in range(self.count):
            yield number
            self.done(number + 1)

    def done(self, cycles: int) -> None:
        """Note how often it was done so far."""
        self.figures.cycles = cycles
        self._progress(cycles, self.count)

    def note(self, text: str) -> None:
        """Write down something for whoever reads the table."""
        self.figures.notes.append(text)

    @contextmanager
    def stage(
        self,
        settings: Settings = MappingProxyType({}),
        *,
        kind: type[Daemon] = Daemon,
        data: Path | None = None,
        **config: str,
    ) -> Iterator[Stage]:
        """Start brokers and make the topic. Settings of the topic are said with underscores.

        `data` is where the victim has its data, if not where brokers usually have.
        """
        cluster = Cluster(self.folder, self.brokers, *self._flags(settings), kind=kind)
        stage = Stage(self, cluster.brokers, cluster.bootstrap, self._partitions)
        if data is not None:
            stage.victim.data = data
        with cluster:
            stage.create_topic(**config)
            yield stage

    @contextmanager
    def stage_behind_proxies(
        self, settings: Settings = MappingProxyType({}), **config: str
    ) -> Iterator[tuple[Stage, list[Proxy]]]:
        """Start brokers that everybody reaches through proxies only, one another too."""
        cluster = _Proxied(self.folder, self.brokers, *self._flags(settings))
        with ExitStack() as stack:
            cluster.proxies = [
                stack.enter_context(Proxy(broker.port, self.chance)) for broker in cluster
            ]
            stack.enter_context(cluster)
            address = ",".join(f"{HOST}:{proxy.port}" for proxy in cluster.proxies)
            stage = Stage(self, cluster.brokers, address, self._partitions)
            stage.create_topic(**config)
            yield stage, cluster.proxies

    @property
    def _partitions(self) -> int:
        """Some for each broker."""
        return 3 if self.brokers == 1 else 2 * self.brokers

    def _flags(self, settings: Settings) -> list[str]:
        pairs = [f"{name}={text}" for name, text in {**SETTINGS, **settings}.items()]
        return [flag for pair in pairs for flag in ("--set", pair)]

    def note_memory(self, stage: Stage) -> None:
        """Look at the brokers' memory: the first time, and the last time, are in the table."""
        found = max(
            (memory_mib(broker.pid) for broker in stage.brokers if broker.is_running), default=None
        )
        if found is not None:
            if self.figures.memory_before is None:
                self.figures.memory_before = found
            self.figures.memory_after = found

    def judge(
        self,
        stage: Stage,
        load: Load,
        *,
        deleted: Container[tuple[int, int]] = (),
        growth_mib: float = GROWTH_MIB,
        may_fail: bool = False,
        may_log: bool = False,
    ) -> None:
        """Read everything, and see that all is as it should be. Raises AssertionError.

        What may fail is single sends. What may be logged are errors: the disk's, if there are any.
        """
        self.note_memory(stage)
        assert not load.problems, load.problems
        read_everything(stage.address, TOPIC, stage.partitions, load.history)
        anomalies = check(load.history, deleted)
        self.take(load, anomalies)
        assert not anomalies, tell(anomalies)
        assert may_fail or not load.errors, f"{len(load.errors)} errors: {load.errors[:3]}"
        assert load.acked > 0
        for broker in stage.brokers:
            assert may_log or not (bugs := bugs_of(broker)), bugs
        self.judge_memory(growth_mib)

    def take(self, load: Load, anomalies: Collection[Anomaly]) -> None:
        """Put what was counted into the table."""
        kinds = counted(anomalies)
        self.figures.acked += load.history.acked()
        self.figures.lost += sum(kinds[kind] for kind in LOSSES)
        self.figures.duplicated += kinds["duplicate"]
        self.figures.worst_seconds = max(self.figures.worst_seconds, load.longest_wait())

    def judge_memory(self, growth_mib: float = GROWTH_MIB) -> None:
        """See that no broker has grown."""
        before, after = self.figures.memory_before, self.figures.memory_after
        if before is not None and after is not None:
            assert after - before <= growth_mib, f"grown by {after - before:.0f} MiB"


class _Proxied(Cluster):
    """Brokers whose addresses, as all are told, are those of proxies."""

    proxies: list[Proxy]

    def describe(self) -> str:
        return "\n".join(
            f'[[brokers]]\nid = {number}\naddress = "{HOST}:{proxy.port}"\n'
            for number, proxy in enumerate(self.proxies)
        )


def tell(anomalies: Collection[Anomaly], most: int = 6) -> str:
    """Say what is wrong, shortly."""
    kinds: Mapping[str, int] = Counter(counted(anomalies))
    lines = [str(anomaly) for anomaly in list(anomalies)[:most]]
    return "\n".join([", ".join(f"{count} × {kind}" for kind, count in kinds.items()), *lines])


def bugs_of(broker: Daemon) -> str:
    """Give what a broker logged that nobody may log, if anything."""
    found = [
        line for line in broker.log.read_text(errors="replace").splitlines() if BUG.search(line)
    ]
    return "\n".join(found[:5])


def memory_mib(pid: int) -> float:
    """Give the memory that is a process's own, in MiB; what is mapped is the page cache's."""
    path = Path(f"/proc/{pid}/smaps_rollup")
    if not path.exists():
        pytest.skip("a look at the memory of another process needs Linux")
    for line in path.read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"{path} does not say")


def descriptors(pid: int) -> int:
    """Count the files and sockets that a process has open."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def wait_until_stopped(pid: int, seconds: float = 30) -> bool:
    """Wait until a process stands still; whether it does."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T":
            return True
        time.sleep(0.002)
    return False


def freeze(pid: int) -> None:
    """Let a process stand still, and wait until it does."""
    os.kill(pid, signal.SIGSTOP)
    assert wait_until_stopped(pid)
