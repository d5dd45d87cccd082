"""A consumer group of real clients: one process per member, and the event log that they share.

with GroupMembers(broker.address, folder, "g", "t", assignors=["range"]) as members:
    members.start("a", "confluent")
    members.wait_until_consuming("a")
    members.kill("a")

`check_group` verifies from the event log that every record was delivered, and that no offset was
committed before the records below it were delivered.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache, partial
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from harness.clients.agents import JAVA, Java, Kafkajs
from harness.clients.base import kafka_libs, node_modules
from harness.clients.confluent import Confluent
from harness.load import Load, load_on
from ottla.coord.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    decode_group,
    decode_key,
    decode_offset,
)

MEMBERS = Path(__file__).parent / "members"
#: Longer than anything takes on a busy machine; a test that waits this long hangs.
TIMEOUT_SECONDS = 40
SESSION_MS = 2000
HEARTBEAT_MS = 200
REBALANCE_MS = 6000
#: Broker configs that allow such short timeouts.
BROKER_CONFIGS = {
    "group.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "100",
    "group.consumer.min.session.timeout.ms": "100",
    "group.consumer.session.timeout.ms": str(2 * SESSION_MS),
    "group.consumer.min.heartbeat.interval.ms": "100",
    "group.consumer.heartbeat.interval.ms": "500",
}
BROKER_FLAGS = tuple(
    flag for name, value in BROKER_CONFIGS.items() for flag in ("--set", f"{name}={value}")
)
CLIENTS = ("confluent", "kafka-python", "aiokafka", "kafkajs", "java")
OFFSETS_TOPIC = "__consumer_offsets"


def assignor_of(client: str) -> str:
    """Return an assignor that a client has."""
    return "RoundRobinAssigner" if client == "kafkajs" else "range"


def missing(client: str) -> str | None:
    """Return why a client is not available here; None: it is."""
    agent = {"kafkajs": Kafkajs, "java": Java}.get(client)
    return agent.missing() if agent else None


@cache
def _java_classes() -> str:
    """Compile the Java members, once per session."""
    folder = tempfile.mkdtemp(prefix="ottla-test-member-")
    sources = map(str, MEMBERS.glob("*.java"))
    subprocess.run(["javac", "-cp", f"{kafka_libs()}/*", "-d", folder, *sources], check=True)
    return folder


def remove_java_classes() -> None:
    if _java_classes.cache_info().currsize:
        shutil.rmtree(_java_classes())
        _java_classes.cache_clear()


def java_command(program: str) -> list[str]:
    """Return the command of a Java member."""
    path = f"{kafka_libs()}/*:{_java_classes()}"
    return [*JAVA, "-Xshare:auto", "-Xmx128m", "-cp", path, program]


def _command(client: str) -> list[str]:
    if client == "kafkajs":
        return ["node", str(MEMBERS / "member.js")]
    if client == "java":
        return java_command("Member")
    return [sys.executable, str(MEMBERS / "member.py"), client]


class EventLog:
    """The events of all members of a group, in order; members/member.py lists them."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.touch()
        #: Member, event, arguments.
        self.lines: list[tuple[str, str, list[str]]] = []
        #: Received records by partition and offset.
        self.received: dict[tuple[int, int], str] = {}
        #: By partition: the first offset that was not received.
        self.first_missing: dict[int, int] = defaultdict(int)
        #: By member: its assigned partitions, and how many records it received.
        self.assigned: dict[str, set[int]] = defaultdict(set)
        self.count: dict[str, int] = defaultdict(int)
        #: Acknowledged commits.
        self.committed: dict[int, int] = defaultdict(int)
        self.commits = 0
        self.problems: list[str] = []
        self._file = path.open()

    def read(self) -> None:
        """Read and apply new events."""
        while True:
            start = self._file.tell()
            line = self._file.readline()
            if not line.endswith("\n"):
                self._file.seek(start)
                return
            member, event, *arguments = line.split()
            self.lines.append((member, event, arguments))
            self._apply(member, event, arguments)

    def _apply(self, member: str, event: str, arguments: list[str]) -> None:
        match event:
            case "received":
                partition, offset = int(arguments[0]), int(arguments[1])
                before = self.received.setdefault((partition, offset), arguments[2])
                if before != arguments[2]:
                    self.problems.append(f"{member} received {arguments}, before it was {before}")
                self.count[member] += 1
                while (partition, self.first_missing[partition]) in self.received:
                    self.first_missing[partition] += 1
            case "committing":
                partition, offset = int(arguments[0]), int(arguments[1])
                if offset > self.first_missing[partition]:
                    self.problems.append(
                        f"{member} commits {offset} of partition {partition},"
                        f" but nobody received {self.first_missing[partition]}"
                    )
            case "committed":
                partition, offset = int(arguments[0]), int(arguments[1])
                self.committed[partition] = max(self.committed[partition], offset)
                self.commits += 1
            case "assigned":
                self.assigned[member] |= _partitions(arguments)
            case "revoked" | "lost":
                # kafkajs does not say which: all of them.
                self.assigned[member] -= (
                    _partitions(arguments) if arguments else self.assigned[member]
                )
            case "left":
                self.assigned[member].clear()
            case "crashed":
                if arguments[1:] == ["false"]:
                    self.problems.append(f"{member} gave up: {arguments}")

    def close(self) -> None:
        self._file.close()


def _partitions(arguments: list[str]) -> set[int]:
    numbers = arguments[0].split(",") if arguments and arguments[0] else []
    return {int(number) for number in numbers}


class GroupMembers:
    """The members of a group, by name."""

    event_log: type[EventLog] = EventLog

    def __init__(
        self, address: str, folder: Path, group: str, topic: str, *, assignors: Sequence[str]
    ) -> None:
        self.address = address
        self.group = group
        self.topic = topic
        self.assignors = assignors
        self.folder = folder / group
        self.folder.mkdir(parents=True)
        self.events = self.event_log(self.folder / "events")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        # The members in each process.
        self._names: dict[str, list[str]] = {}

    @property
    def _members(self) -> list[str]:
        return [name for process in self._processes for name in self._names[process]]

    def start(
        self,
        name: str,
        client: str,
        *,
        instance: str | None = None,
        assignors: Sequence[str] | None = None,
        session_ms: int = SESSION_MS,
        protocol: str = "classic",
        regex: str | None = None,
        count: int = 1,
    ) -> None:
        """Start a member, or one process with several: a-0, a-1 and so on."""
        if reason := missing(client):
            pytest.skip(reason)
        config = {
            "name": name,
            "bootstrap": self.address,
            "group": self.group,
            "topic": self.topic,
            "events": str(self.events.path),
            "assignors": list(assignors or self.assignors),
            "instance": instance,
            "session_ms": session_ms,
            "heartbeat_ms": HEARTBEAT_MS,
            "rebalance_ms": REBALANCE_MS,
            "protocol": protocol,
            "regex": regex,
            "count": count,
        }
        self._names[name] = [name] if count == 1 else [f"{name}-{n}" for n in range(count)]
        environ = {"NODE_PATH": node_modules() or ""} if client == "kafkajs" else {}
        self._spawn(name, [*_command(client), json.dumps(config)], environ)

    def _spawn(self, name: str, command: Sequence[str], environ: Mapping[str, str]) -> None:
        # A member that is restarted starts from nothing.
        self._names.setdefault(name, [name])
        self.events.read()
        self.events.assigned[name].clear()
        self.events.count[name] = 0
        with (self.folder / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=os.environ | environ,
            )

    def kill(self, name: str) -> None:
        """Kill a member with SIGKILL."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        self.events.read()
        for member in self._names[name]:
            self.events.assigned[member].clear()

    @contextmanager
    def paused(self, name: str) -> Iterator[None]:
        """Stop a member with SIGSTOP; continue it at the end."""
        self._processes[name].send_signal(signal.SIGSTOP)
        yield
        self.events.read()
        # Forget its old assignment: it logs the next one after it has rejoined.
        self.events.assigned[name].clear()
        self._processes[name].send_signal(signal.SIGCONT)

    def stop(self, *names: str) -> None:
        """Let some members leave the group with SIGTERM, or all."""
        names = names or tuple(self._processes)
        for name in names:
            self._processes[name].terminate()
        for name in names:
            process = self._processes.pop(name)
            try:
                code = process.wait(TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise AssertionError(f"{name} does not end:\n{self.log_of(name)}") from None
            assert code in (0, 128 + signal.SIGTERM), f"{name}: {code}:\n{self.log_of(name)}"
        self.events.read()

    def log_of(self, name: str, lines: int = 30) -> str:
        """Return the end of a member's stderr."""
        text = (self.folder / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until a condition holds; new events are read before each check."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            self.events.read()
            if condition():
                return
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} ended by itself:\n{self.log_of(name)}"
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.group}: {what}: not in time\n{self.describe()}")
            time.sleep(0.02)

    def wait_until_consuming(self, *names: str) -> None:
        """Wait until each of some members, or of all, receives more records."""
        names = names or tuple(self._members)
        self.events.read()
        before = {name: self.events.count[name] for name in names}
        self.wait(
            f"{', '.join(names)} consume",
            lambda: all(self.events.count[name] > before[name] for name in names),
        )

    def wait_until_assigned(self, partitions: int) -> None:
        """Wait until every partition is assigned to one member, and every member has some."""
        names = self._members

        def is_assigned() -> bool:
            assigned = [self.events.assigned[name] for name in names]
            every = sorted(partition for share in assigned for partition in share)
            return all(assigned) and every == list(range(partitions))

        self.wait("every partition assigned to one member", is_assigned)

    def wait_for_commits_of_all(self, partitions: int, *, without: str | None = None) -> None:
        """Wait for a new commit in every partition, by other members than one."""
        self.events.read()
        start = len(self.events.lines)

        def is_committed() -> bool:
            committed = {
                arguments[0]
                for member, event, arguments in self.events.lines[start:]
                if event == "committed" and member != without
            }
            return len(committed) == partitions

        self.wait("commits in every partition", is_committed)

    def wait_for_commits(self, count: int) -> None:
        """Wait for `count` more commits."""
        self.events.read()
        target = self.events.commits + count
        self.wait(f"{count} commits", lambda: self.events.commits >= target)

    def describe(self) -> str:
        """Return rebalance events, counts and the members' logs, for error messages."""
        rebalances = [
            " ".join((member, event, *arguments))
            for member, event, arguments in self.events.lines
            if event not in ("received", "committing", "committed")
        ]
        parts = ["--- events, without records and commits", *rebalances[-60:]]
        parts += [f"{dict(self.events.count)}; missing from {dict(self.events.first_missing)}"]
        for path in sorted(self.folder.glob("*.log")):
            parts += [f"--- {path.name}", self.log_of(path.stem, 15)]
        return "\n".join(parts)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for process in self._processes.values():
            process.kill()
        for process in self._processes.values():
            process.wait()
        self.events.read()
        self.events.close()
        if error is not None:
            print(self.describe())


def producing(
    address: str, topic: str, partitions: int, *, per_second: float = 300
) -> AbstractContextManager[Load]:
    """Produce with librdkafka, whatever happens to the broker."""
    return load_on(
        address,
        topic,
        partitions,
        per_second=per_second,
        producers=["librdkafka"],
        with_readers=False,
    )


def settle(*groups: GroupMembers, load: Load) -> None:
    """Stop producing, and wait until every record is delivered to and committed by each group."""
    # Members do not retry a commit that fails during a rebalance: let rebalances end first.
    for members in groups:
        members.wait_for_commits_of_all(len(load.partitions))
    load.stop()
    assert load.problems == []
    assert load.errors == []
    acked = load.history.acked_records().keys()
    for members in groups:
        client, events = Confluent(members.address), members.events
        members.wait(
            "every record delivered", lambda events=events: events.received.keys() >= acked
        )
        lag = partial(client.lag, members.group, members.topic)
        members.wait("a lag of 0", lambda lag=lag: lag() == 0)


def check_group(members: GroupMembers, load: Load) -> None:
    """Compare the members' events with what was produced, and with what the broker stored."""
    events = members.events
    events.read()
    assert events.problems == [], members.describe()
    assert events.received == load.history.acked_records(), members.describe()
    stored = stored_group(members.address, members.group)
    for partition, offsets in stored.commits.items():
        assert offsets == sorted(offsets), f"commits of {partition} went back: {offsets}"
        assert offsets[-1] >= events.committed[partition], "an acknowledged commit is lost"
    generations = [group.generation for group in stored.groups]
    assert generations == sorted(generations), f"generations went back: {generations}"


class StoredGroup:
    """The records of a group in __consumer_offsets, in order."""

    def __init__(self) -> None:
        self.commits: dict[int, list[int]] = defaultdict(list)
        self.groups: list[GroupMetadataValue] = []

    def add(self, group: str, key: bytes, value: bytes | None) -> None:
        decoded = decode_key(key)
        if value is None or decoded is None or decoded.group != group:
            return
        if isinstance(decoded, OffsetCommitKey):
            self.commits[decoded.partition].append(decode_offset(value).offset)
        elif isinstance(decoded, GroupMetadataKey):
            self.groups.append(decode_group(value))


def stored_group(address: str, group: str) -> StoredGroup:
    """Consume __consumer_offsets up to its current end."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    stored = StoredGroup()
    try:
        topic = consumer.list_topics(OFFSETS_TOPIC, TIMEOUT_SECONDS).topics[OFFSETS_TOPIC]
        partitions = [
            TopicPartition(OFFSETS_TOPIC, index, OFFSET_BEGINNING) for index in topic.partitions
        ]
        # Members keep committing.
        ends = {
            partition.partition: consumer.get_watermark_offsets(partition, TIMEOUT_SECONDS)[1]
            for partition in partitions
        }
        consumer.assign(partitions)
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while ends:
            assert time.monotonic() < deadline, f"{OFFSETS_TOPIC}: end not reached: {ends}"
            for message in consumer.consume(1000, timeout=0.05):
                if message.error() is None:
                    stored.add(group, message.key(), message.value())
                is_end = message.error() and message.error().code() == KafkaError._PARTITION_EOF
                if is_end or message.offset() + 1 >= ends.get(message.partition(), 0):
                    ends.pop(message.partition(), None)
    finally:
        consumer.close()
    return stored
