"""The testbed of a fault: brokers, a topic, load on it, and the verification at the end.

A row of the matrix is a function of a `Run`, which has the number of cycles, a random generator, a
folder, and the figures of the result table.

    def kill(run: Run) -> None:
        with run.testbed() as testbed:
            with testbed.load() as load:
                for _ in run.cycles():
                    load.wait_for_acks()
                    testbed.victim.kill()
                    testbed.victim.start()
            run.verify(testbed, load)
"""

from __future__ import annotations

import json
import re
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

from confluent_kafka.admin import AdminClient, NewTopic

from chaos.proxy import Proxy
from harness.bystander import RESTART_SECONDS, Bystanders, Result
from harness.checker import LOSSES, Anomaly, check, counted
from harness.daemon import HOST, Cluster, Daemon, anonymous_mib, free_port
from harness.load import Load, load_on, read_everything
from harness.transactional_load import TRANSACTIONAL, read_committed_offsets
from harness.waiting import wait_until

TOPIC = "orders"
#: What a broker logs of a bug.
BUG = re.compile(r"Traceback|\bERROR\b|\bCRITICAL\b|never retrieved")
#: How much the memory of a broker may grow, by default.
GROWTH_MIB = 32.0
#: Segments and recovery points that change often enough to be interrupted.
TOPIC_CONFIG = {"segment.bytes": "262144", "index.interval.bytes": "1024"}
CONFIGS = {
    "log.flush.offset.checkpoint.interval.ms": "200",
    "broker.session.timeout.ms": "1000",
    # So that files of deleted topics are unlinked during the run.
    "log.segment.delete.delay.ms": "0",
}
Configs = Mapping[str, str]


class FaultyDaemon(Daemon):
    """A daemon whose disk and clock can be made to fail; see faulty_broker.py."""

    program = (str(Path(__file__).with_name("faulty_broker.py")),)

    def __init__(
        self, folder: Path, *arguments: str, port: int | None = None, **environ: str
    ) -> None:
        self._faults_port = free_port()
        super().__init__(
            folder, *arguments, port=port, **environ, FAULTS_PORT=str(self._faults_port)
        )

    def _command(self, **command: Any) -> int:
        """Send a command; return how many faults have occurred since the start."""
        with socket.create_connection((HOST, self._faults_port), timeout=10) as connection:
            connection.sendall(json.dumps(command).encode() + b"\n")
            hits: int = json.loads(connection.makefile().readline())["hits"]
            return hits

    def fail(self, call: str, where: str, error: int, *, times: int | None = None) -> None:
        """Make a disk call fail for files whose path contains `where`."""
        self._command(do="fail", call=call, where=where, error=error, times=times)

    def stop_at(self, call: str, where: str, when: str = "before") -> None:
        """Make the process stop itself, with SIGSTOP, at a disk call."""
        self._command(do="stop", call=call, where=where, when=when, times=1)

    def lose_writes(self, where: str) -> None:
        """Lose what is written to a file; each open file description gets the error once."""
        self._command(do="lose", where=where)

    def stall(self, seconds: float, every: float) -> None:
        """Block the event loop, again and again."""
        self._command(do="stall", seconds=seconds, every=every)

    @property
    def hits(self) -> int:
        """How many faults have occurred since the start."""
        return self._command(do="status")

    def heal(self) -> None:
        """Remove all faults."""
        self._command(do="heal")

    def set_clock(self, shift_seconds: float, *, is_frozen: bool = False) -> None:
        """Shift the wall clock, or freeze it."""
        self._command(do="clock", shift=shift_seconds, frozen=is_frozen)


@dataclass
class Figures:
    """The result of a run: a line of the table."""

    cycles: int = 0
    acked: int = 0
    lost: int = 0
    duplicated: int = 0
    worst_seconds: float = 0.0
    #: The highest 99th percentile of a bystander, and of its control at the same time.
    bystander_p99_ms: float | None = None
    control_p99_ms: float | None = None
    #: The longest time without a success of a bystander.
    longest_silence: float | None = None
    memory_before: float | None = None
    memory_after: float | None = None
    notes: list[str] = field(default_factory=list)


class Testbed:
    """Brokers with a topic."""

    def __init__(self, run: Run, brokers: list[Daemon], address: str, partitions: int) -> None:
        self._run = run
        self.brokers = brokers
        self.address = address
        self.partitions = partitions
        #: The broker that faults are injected into.
        self.victim = run.random.choice(brokers)
        #: By partition.
        self.leaders: dict[int, Daemon] = {}
        #: On the first victim; None if the row has none.
        self.bystanders: Bystanders | None = None

    def choose_victim(self) -> Daemon:
        """Choose another victim."""
        self.victim = self._run.random.choice(self.brokers)
        return self.victim

    @property
    def led_by_victim(self) -> list[int]:
        """The partitions that the victim leads."""
        return [index for index, leader in self.leaders.items() if leader is self.victim]

    @property
    def led_by_others(self) -> list[int]:
        """The partitions that other brokers lead."""
        return [index for index, leader in self.leaders.items() if leader is not self.victim]

    @contextmanager
    def load(self, **options: Any) -> Iterator[Load]:
        """Run load. Memory is measured from here on."""
        if self._run.is_transactional:
            options |= TRANSACTIONAL
        with load_on(self.address, TOPIC, self.partitions, **options) as load:
            load.wait_for_acks()
            self._run.measure_memory(self)
            yield load

    def wait_for_acks_of_others(self, load: Load) -> None:
        """Assert that the other brokers keep serving."""
        if partitions := self.led_by_others:
            load.wait_for_acks(2, partitions, seconds=30)

    def create_topic(
        self,
        name: str = TOPIC,
        partitions: int | None = None,
        *,
        on_victim: bool = False,
        **config: str,
    ) -> None:
        """Create a topic; `retention_ms="1"` sets its config retention.ms."""
        admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})
        configs = TOPIC_CONFIG | {key.replace("_", "."): text for key, text in config.items()}
        count = partitions or self.partitions
        replicas = [[self.brokers.index(self.victim)]] * count
        placement = {"replica_assignment": replicas} if on_victim else {"replication_factor": 1}
        topic = NewTopic(name, count, config=configs, **placement)
        admin.create_topics([topic])[name].result(30)
        if name == TOPIC:
            # A broker that was slow for a moment is fenced, and leads nothing until it is back.
            wait_until(lambda: -1 not in self._leader_ids(admin).values(), "a leader for all")
            self.leaders = {
                index: self.brokers[leader] for index, leader in self._leader_ids(admin).items()
            }

    @staticmethod
    def _leader_ids(admin: AdminClient) -> dict[int, int]:
        partitions = admin.list_topics(TOPIC, timeout=30).topics[TOPIC].partitions
        return {index: partition.leader for index, partition in partitions.items()}


class Run:
    """One run of a row of the matrix."""

    def __init__(
        self,
        folder: Path,
        *,
        seed: int,
        count: int,
        brokers: int = 1,
        is_transactional: bool = False,
        shared: Any = None,
        progress: Callable[[int, int], None] = lambda _done, _of: None,
    ) -> None:
        self.folder = folder
        self.random = Random(seed)
        self.count = count
        self.brokers = brokers
        #: Whether the load of the row consists of transactions.
        self.is_transactional = is_transactional
        #: The replicated cluster that rows share; None: each starts its own.
        self.shared = shared
        self.figures = Figures()
        self._progress = progress

    def cycles(self) -> Iterator[int]:
        """Iterate over the cycles, and report progress."""
        for number in range(self.count):
            yield number
            self.done(number + 1)

    def done(self, cycles: int) -> None:
        """Set the number of cycles done so far."""
        self.figures.cycles = cycles
        self._progress(cycles, self.count)

    def note(self, text: str) -> None:
        """Add a note to the result table."""
        self.figures.notes.append(text)

    @contextmanager
    def testbed(
        self,
        configs: Configs = MappingProxyType({}),
        *,
        kind: type[Daemon] = Daemon,
        data: Path | None = None,
        with_bystander: bool = True,
        **config: str,
    ) -> Iterator[Testbed]:
        """Start brokers and create the topic; `config` has topic configs with underscores.

        `data` is the victim's data directory, if not the default. A bystander on the victim must be
        served in time after each restart; see `harness.bystander`.
        """
        cluster = Cluster(self.folder, self.brokers, *self.flags(configs), kind=kind)
        testbed = Testbed(self, cluster.brokers, cluster.bootstrap, self._partitions)
        if data is not None:
            testbed.victim.data = data
        with cluster:
            testbed.create_topic(**config)
            if with_bystander:
                with self.bystanders(testbed):
                    yield testbed
            else:
                yield testbed

    @contextmanager
    def bystanders(
        self, testbed: Testbed, restart_seconds: float = RESTART_SECONDS
    ) -> Iterator[None]:
        """Run a bystander on the victim, and assert that it is served in time after restarts."""
        broker = testbed.victim
        with Bystanders(broker, broker.folder, testbed.brokers.index(broker)) as bystanders:
            testbed.bystanders = bystanders
            yield
        result = bystanders.result()
        if self.figures.bystander_p99_ms is None:  # not measured during the attack alone
            self._add_latency(result)
        if (longest := result.check_restarts(broker.launches, restart_seconds)) > 0.0:
            self.note(f"served {longest:.2f} s after a restart")

    @contextmanager
    def undisturbed(self, testbed: Testbed) -> Iterator[None]:
        """Assert that a bystander does not notice what is done to its broker."""
        assert testbed.bystanders is not None
        began = time.monotonic()
        yield
        result = testbed.bystanders.result(began, time.monotonic())
        self._add_latency(result)
        result.check_latency()

    def _add_latency(self, result: Result) -> None:
        figures = self.figures
        if figures.bystander_p99_ms is None or result.p99 * 1000 > figures.bystander_p99_ms:
            figures.bystander_p99_ms = round(result.p99 * 1000, 1)
            figures.control_p99_ms = round(result.control_p99 * 1000, 1)
        figures.longest_silence = max(
            round(result.longest_silence, 2), figures.longest_silence or 0.0
        )

    @contextmanager
    def testbed_behind_proxies(
        self, configs: Configs = MappingProxyType({}), **config: str
    ) -> Iterator[tuple[Testbed, list[Proxy]]]:
        """Start brokers that clients and other brokers reach only through proxies."""
        cluster = _Proxied(self.folder, self.brokers, *self.flags(configs))
        with ExitStack() as stack:
            cluster.proxies = [
                stack.enter_context(Proxy(broker.port, Random(self.random.random())))
                for broker in cluster
            ]
            stack.enter_context(cluster)
            address = ",".join(f"{HOST}:{proxy.port}" for proxy in cluster.proxies)
            testbed = Testbed(self, cluster.brokers, address, self._partitions)
            testbed.create_topic(**config)
            # Not through the proxy: the broker itself must not wait for the network.
            stack.enter_context(self.bystanders(testbed))
            yield testbed, cluster.proxies

    @property
    def _partitions(self) -> int:
        """Some partitions for each broker."""
        return 3 if self.brokers == 1 else 2 * self.brokers

    def flags(self, configs: Configs) -> list[str]:
        """Return the flags of brokers with these configs."""
        pairs = [f"{name}={text}" for name, text in {**CONFIGS, **configs}.items()]
        return [flag for pair in pairs for flag in ("--set", pair)]

    def measure_memory(self, testbed: Testbed) -> None:
        """Measure the brokers' memory; the first and last values are in the table."""
        largest = max(
            (anonymous_mib(broker) for broker in testbed.brokers if broker.is_running), default=None
        )
        if largest is not None:
            if self.figures.memory_before is None:
                self.figures.memory_before = largest
            self.figures.memory_after = largest

    def verify(
        self,
        testbed: Testbed,
        load: Load,
        *,
        deleted: Container[tuple[int, int]] = (),
        growth_mib: float = GROWTH_MIB,
        may_fail: bool = False,
        may_log: bool = False,
    ) -> None:
        """Read everything and check the history, logs and memory. Raises AssertionError.

        `may_fail` allows failed sends, `may_log` errors in the brokers' logs.
        """
        self.measure_memory(testbed)
        assert not load.problems, load.problems
        self.read_everything(testbed, load)
        anomalies = check(load.history, deleted)
        self.add_figures(load, anomalies)
        assert not anomalies, describe(anomalies)
        assert may_fail or not load.errors, f"{len(load.errors)} errors: {load.errors[:3]}"
        assert load.acked > 0
        for broker in testbed.brokers:
            assert may_log or not (bugs := bugs_of(broker)), bugs
        self.verify_memory(growth_mib)

    def read_everything(self, testbed: Testbed, load: Load) -> None:
        """Read all records, and the offsets of transactions, into the history."""
        self.read_replicated(testbed.address, TOPIC, load)

    def read_replicated(self, address: str, topic: str, load: Load) -> None:
        """Read all records of a topic, and the offsets of transactions, into the history."""
        isolation = "read_uncommitted"
        if self.is_transactional:
            isolation = "read_committed"
            read_committed_offsets(load)
        read_everything(address, topic, len(load.partitions), load.history, isolation)

    def add_figures(self, load: Load, anomalies: Collection[Anomaly]) -> None:
        """Add acks and anomalies to the figures."""
        kinds = counted(anomalies)
        self.figures.acked += load.history.acked()
        self.figures.lost += sum(kinds[kind] for kind in LOSSES)
        self.figures.duplicated += kinds["duplicate"]
        self.figures.worst_seconds = max(self.figures.worst_seconds, load.longest_wait())

    def verify_memory(self, growth_mib: float = GROWTH_MIB) -> None:
        """Assert that no broker's memory has grown."""
        before, after = self.figures.memory_before, self.figures.memory_after
        if before is not None and after is not None:
            assert after - before <= growth_mib, f"grown by {after - before:.0f} MiB"


class _Proxied(Cluster):
    """Brokers that advertise the addresses of proxies."""

    proxies: list[Proxy]

    def describe(self) -> str:
        return "\n".join(
            f'[[brokers]]\nid = {number}\naddress = "{HOST}:{proxy.port}"\n'
            for number, proxy in enumerate(self.proxies)
        )


def describe(anomalies: Collection[Anomaly], limit: int = 6) -> str:
    """Return the number of anomalies of each kind, and the first few."""
    kinds: Mapping[str, int] = Counter(counted(anomalies))
    lines = [str(anomaly) for anomaly in list(anomalies)[:limit]]
    return "\n".join([", ".join(f"{count} × {kind}" for kind, count in kinds.items()), *lines])


def bugs_of(broker: Daemon, may_log: Collection[str] = ()) -> str:
    """Return the first lines of a broker's log that show a bug, without those that are expected."""
    lines = broker.log.read_text(errors="replace").splitlines()
    bugs = [
        line for line in lines if BUG.search(line) and not any(text in line for text in may_log)
    ]
    return "\n".join(bugs[:5])
