"""A group of real members: processes of other people's clients, and the journal that they share.

with Company(broker.address, folder, "g", "t", assignors=["range"]) as company:
    company.start("a", "confluent")
    company.wait_until_reading("a")
    company.kill("a")

`check` reads the journal: what was delivered to whom, and whether anything was committed that was
not delivered before.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    ConsumerGroupTopicPartitions,
    KafkaError,
    Message,
    Producer,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec

from ottla.coord.records import (
    GroupMetadataKey,
    GroupMetadataValue,
    OffsetCommitKey,
    decode_group,
    decode_key,
    decode_offset,
)

_HERE = Path(__file__).parent
#: Longer than anything takes, unless something is wrong.
PATIENCE_SECONDS = 40
#: A member is missed when it was silent for so long.
SESSION_MS = 2000
HEARTBEAT_MS = 200
#: And is left behind if it does not join again in this time.
REBALANCE_MS = 6000
#: What a broker must be told to let members be so impatient.
BROKER = (
    *("--set", "group.min.session.timeout.ms=100"),
    *("--set", "group.initial.rebalance.delay.ms=100"),
)
CLIENTS = ("confluent", "kafka-python", "aiokafka", "kafkajs", "java")

OFFSETS = "__consumer_offsets"
#: A partition, and an offset in it.
Place = tuple[int, int]


def assignor_of(client: str) -> str:
    """Give an assignor that a client has."""
    return "RoundRobinAssigner" if client == "kafkajs" else "range"


def missing(client: str) -> str | None:
    """Say what of a client is not installed here."""
    if client == "kafkajs":
        if not shutil.which("node"):
            return "node is not installed"
        if not node_modules():
            return "neither TEST_NODE_MODULES nor NODE_PATH names a folder with kafkajs in it"
    if client == "java":
        if not (shutil.which("java") and shutil.which("javac")):
            return "java is not installed"
        if not java_libs().is_dir():
            return "TEST_KAFKA_LIBS does not name the folder with the jars of Apache Kafka"
    return None


def node_modules() -> str:
    folders = [os.environ.get(name, "") for name in ("TEST_NODE_MODULES", "NODE_PATH")]
    return next((name for name in folders if name and Path(name, "kafkajs").is_dir()), "")


def java_libs() -> Path:
    return Path(os.environ.get("TEST_KAFKA_LIBS") or "/nowhere")


@cache
def _java_classes() -> str:
    """Compile the member that is in Java, once for all of them."""
    folder = tempfile.mkdtemp(prefix="ottla-test-member-")
    command = ["javac", "-cp", f"{java_libs()}/*", "-d", folder, str(_HERE / "Member.java")]
    subprocess.run(command, check=True)
    return folder


def remove_java_classes() -> None:
    if _java_classes.cache_info().currsize:
        shutil.rmtree(_java_classes())
        _java_classes.cache_clear()


def _command(client: str) -> list[str]:
    if client == "kafkajs":
        return ["node", str(_HERE / "member.js")]
    if client == "java":
        path = f"{java_libs()}/*:{_java_classes()}"
        quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto", "-Xmx128m")
        return ["java", *quick, "-cp", path, "Member"]
    return [sys.executable, str(_HERE / f"member_{client.replace('-', '_')}.py")]


class EventLog:
    """What the members of a group said, in order."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.path.touch()
        #: Who said it, the verb, and the rest.
        self.lines: list[tuple[str, str, list[str]]] = []
        #: What was delivered, and as what; how far each partition was without a gap.
        self.got: dict[Place, str] = {}
        self.front: dict[int, int] = defaultdict(int)
        #: What each has: partitions that it was assigned, and how many records it got.
        self.assigned: dict[str, set[int]] = defaultdict(set)
        self.count: dict[str, int] = defaultdict(int)
        #: What was committed, and acked.
        self.committed: dict[int, int] = defaultdict(int)
        self.commits = 0
        self.problems: list[str] = []
        self._file = path.open()

    def read(self) -> None:
        """Take in what is new."""
        while True:
            start = self._file.tell()
            line = self._file.readline()
            if not line.endswith("\n"):
                self._file.seek(start)
                return
            who, verb, *words = line.split()
            self.lines.append((who, verb, words))
            self._take(who, verb, words)

    def _take(self, who: str, verb: str, words: list[str]) -> None:
        match verb:
            case "got":
                partition, offset = int(words[0]), int(words[1])
                before = self.got.setdefault((partition, offset), words[2])
                if before != words[2]:
                    self.problems.append(f"{who} {words}, and before it was {before}")
                self.count[who] += 1
                while (partition, self.front[partition]) in self.got:
                    self.front[partition] += 1
            case "committing":
                partition, offset = int(words[0]), int(words[1])
                if offset > self.front[partition]:
                    self.problems.append(
                        f"{who} commits {offset} of {partition},"
                        f" and nobody was given {self.front[partition]}"
                    )
            case "committed":
                partition, offset = int(words[0]), int(words[1])
                self.committed[partition] = max(self.committed[partition], offset)
                self.commits += 1
            case "assigned":
                self.assigned[who] |= _numbers(words)
            case "revoked" | "lost":
                # kafkajs does not say which: all.
                self.assigned[who] -= _numbers(words) if words else self.assigned[who]
            case "ends":
                self.assigned[who].clear()
            case "crashed":
                if words[1:] == ["false"]:
                    self.problems.append(f"{who} gave up: {words}")

    def close(self) -> None:
        self._file.close()


def _numbers(words: list[str]) -> set[int]:
    return {int(number) for number in words[0].split(",")} if words and words[0] else set()


class Company:
    """The members of a group, by name."""

    def __init__(
        self, address: str, folder: Path, group: str, topic: str, *, assignors: Sequence[str]
    ) -> None:
        self.address = address
        self.group = group
        self.topic = topic
        self.assignors = assignors
        self.folder = folder / group
        self.folder.mkdir(parents=True)
        self.events = EventLog(self.folder / "journal")
        self._processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(
        self,
        name: str,
        client: str,
        *,
        instance: str | None = None,
        assignors: Sequence[str] | None = None,
        session_ms: int = SESSION_MS,
    ) -> None:
        """Let somebody join."""
        if reason := missing(client):
            pytest.skip(reason)
        settings = {
            "name": name,
            "bootstrap": self.address,
            "group": self.group,
            "topic": self.topic,
            "journal": str(self.events.path),
            "assignors": list(assignors or self.assignors),
            "instance": instance,
            "session_ms": session_ms,
            "heartbeat_ms": HEARTBEAT_MS,
            "rebalance_ms": REBALANCE_MS,
        }
        # Who is started again is somebody new to whoever waits for it.
        self.events.read()
        self.events.assigned[name].clear()
        self.events.count[name] = 0
        environ = {"NODE_PATH": node_modules()} if client == "kafkajs" else {}
        with (self.folder / f"{name}.log").open("ab") as errors:
            self._processes[name] = subprocess.Popen(
                [*_command(client), json.dumps(settings)],
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                env=os.environ | environ,
            )

    def kill(self, name: str) -> None:
        """End somebody in the middle of whatever it does."""
        process = self._processes.pop(name)
        process.kill()
        process.wait()
        self.events.read()
        self.events.assigned[name].clear()

    @contextmanager
    def frozen(self, name: str) -> Iterator[None]:
        """Let somebody do nothing for a while, as if its machine slept."""
        self._processes[name].send_signal(signal.SIGSTOP)
        yield
        self.events.read()
        # What it thinks it has; when it wakes up it will say what it has.
        self.events.assigned[name].clear()
        self._processes[name].send_signal(signal.SIGCONT)

    def stop(self, *names: str) -> None:
        """Let some leave as one should, or all."""
        names = names or tuple(self._processes)
        for name in names:
            self._processes[name].terminate()
        for name in names:
            process = self._processes.pop(name)
            try:
                code = process.wait(PATIENCE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                raise AssertionError(f"{name} does not end:\n{self.words_of(name)}") from None
            assert code in (0, 128 + signal.SIGTERM), f"{name}: {code}:\n{self.words_of(name)}"
        self.events.read()

    def words_of(self, name: str, lines: int = 30) -> str:
        """Give the end of what a member wrote to its error output."""
        text = (self.folder / f"{name}.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        """Wait until something is so; the journal is read before each look."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            self.events.read()
            if condition():
                return
            for name, process in self._processes.items():
                assert process.poll() is None, f"{name} ended by itself:\n{self.words_of(name)}"
            if time.monotonic() > deadline:
                raise AssertionError(f"{self.group}: {what}: not in time\n{self.story()}")
            time.sleep(0.02)

    def wait_until_reading(self, *names: str) -> None:
        """Wait until each of these got something from now on, in what it was assigned."""
        names = names or tuple(self._processes)
        self.events.read()
        before = {name: self.events.count[name] for name in names}
        self.wait(
            f"{', '.join(names)} reading",
            lambda: all(self.events.count[name] > before[name] for name in names),
        )

    def wait_until_shared(self, partitions: int) -> None:
        """Wait until each of those who are there has partitions, and each partition is of one."""
        names = list(self._processes)

        def is_shared() -> bool:
            owned = [self.events.assigned[name] for name in names]
            return all(owned) and sorted(p for one in owned for p in one) == list(range(partitions))

        self.wait("every partition at one member", is_shared)

    def wait_until_commits_of_all(self, partitions: int, *, but: str) -> None:
        """Wait until others than this one have committed of every partition, from now on."""
        self.events.read()
        start = len(self.events.lines)

        def is_so() -> bool:
            lines = self.events.lines[start:]
            done = {words[0] for who, verb, words in lines if verb == "committed" and who != but}
            return len(done) == partitions

        self.wait(f"commits of all partitions by others than {but}", is_so)

    def wait_until_commits(self, count: int) -> None:
        """Wait for so many commits more."""
        self.events.read()
        wanted = self.events.commits + count
        self.wait(f"{count} commits", lambda: self.events.commits >= wanted)

    def story(self) -> str:
        """Give what a person who looks for a reason wants to see."""
        kept = [
            " ".join((who, verb, *words))
            for who, verb, words in self.events.lines
            if verb not in ("got", "committing", "committed")
        ]
        parts = ["--- journal, without what was delivered and committed", *kept[-60:]]
        parts += [f"counts {dict(self.events.count)}, fronts {dict(self.events.front)}"]
        for path in sorted(self.folder.glob("*.log")):
            parts += [f"--- {path.name}", self.words_of(path.stem, 15)]
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
            print(self.story())


class Producing:
    """A producer that goes on, whatever becomes of the broker, until it is told to stop."""

    def __init__(self, address: str, topic: str, partitions: int, *, per_second: int = 300) -> None:
        self.acked: dict[Place, str] = {}
        self.problems: list[str] = []
        self._topic = topic
        self._partitions = partitions
        self._pause = partitions / per_second
        self._stopping = threading.Event()
        self._producer = Producer(
            {
                "bootstrap.servers": address,
                "acks": "all",
                "enable.idempotence": True,
                "linger.ms": 5,
                "reconnect.backoff.ms": 20,
                "reconnect.backoff.max.ms": 100,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "log_level": 0,
            }
        )
        self._thread = threading.Thread(target=self._run, name="producer")
        self._thread.start()

    def stop(self) -> None:
        """Send no more, and wait for all acks."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        number = 0
        while not self._stopping.wait(self._pause):
            number += 1
            for partition in range(self._partitions):
                self._producer.produce(
                    self._topic,
                    f"{partition}:{number}",
                    partition=partition,
                    on_delivery=self._told,
                )
            self._producer.poll(0)
        missing_acks = self._producer.flush(PATIENCE_SECONDS)
        if missing_acks:
            self.problems.append(f"{missing_acks} were never acked")

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self.problems.append(f"{message.value()!r}: {error}")
        else:
            self.acked[message.partition(), message.offset()] = message.value().decode()


@contextmanager
def producing(address: str, topic: str, partitions: int, **how: Any) -> Iterator[Producing]:
    producer = Producing(address, topic, partitions, **how)
    try:
        yield producer
    finally:
        producer.stop()


def settle(company: Company, producer: Producing) -> None:
    """Wait until all that was acked has been delivered, and committed: until the lag is 0."""
    producer.stop()
    assert producer.problems == []
    company.wait("everything delivered", lambda: company.events.got.keys() >= producer.acked.keys())
    admin = admin_of(company.address)
    company.wait("a lag of 0", lambda: lag_of(admin, company.group, company.topic) == 0)


def check(company: Company, producer: Producing) -> None:
    """Hold what members said against what was written."""
    journal = company.events
    journal.read()
    assert journal.problems == [], company.story()
    assert journal.got == producer.acked, company.story()
    kept = kept_of(company.address, company.group)
    for partition, offsets in kept.commits.items():
        assert offsets == sorted(offsets), f"the commits of {partition} went back: {offsets}"
        assert offsets[-1] >= journal.committed[partition], "a commit that was acked is gone"
    generations = [group.generation for group in kept.groups]
    assert generations == sorted(generations), f"generations went back: {generations}"


class Kept:
    """What the broker has written down of a group, in the order in which it did."""

    def __init__(self) -> None:
        self.commits: dict[int, list[int]] = defaultdict(list)
        self.groups: list[GroupMetadataValue] = []


def kept_of(address: str, group: str) -> Kept:
    """Read the topic of offsets as any tool would, and give what there is of a group."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "nobody",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 50,
            "log_level": 0,
        }
    )
    kept = Kept()
    try:
        topic = consumer.list_topics(OFFSETS, PATIENCE_SECONDS).topics[OFFSETS]
        places = [TopicPartition(OFFSETS, number, OFFSET_BEGINNING) for number in topic.partitions]
        # As it is now: members go on.
        ends = {
            place.partition: consumer.get_watermark_offsets(place, PATIENCE_SECONDS)[1]
            for place in places
        }
        consumer.assign(places)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while ends:
            assert time.monotonic() < deadline, f"the end of {OFFSETS} was not reached: {ends}"
            for message in consumer.consume(1000, timeout=0.05):
                if message.error() is None:
                    _keep(kept, group, message.key(), message.value())
                is_end = message.error() and message.error().code() == KafkaError._PARTITION_EOF
                if is_end or message.offset() + 1 >= ends.get(message.partition(), 0):
                    ends.pop(message.partition(), None)
    finally:
        consumer.close()
    return kept


def _keep(kept: Kept, group: str, key: bytes, value: bytes | None) -> None:
    found = decode_key(key)
    if value is None or found is None or found.group != group:
        return
    if isinstance(found, OffsetCommitKey):
        kept.commits[found.partition].append(decode_offset(value).offset)
    elif isinstance(found, GroupMetadataKey):
        kept.groups.append(decode_group(value))


def admin_of(address: str) -> AdminClient:
    return AdminClient(
        {
            "bootstrap.servers": address,
            "log_level": 0,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
        }
    )


def create_topic(address: str, topic: str, partitions: int) -> None:
    admin = admin_of(address)
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(PATIENCE_SECONDS)


def committed_of(admin: AdminClient, group: str) -> dict[int, int]:
    """Give how far a group has come in each partition of the one topic that it reads."""
    asked = ConsumerGroupTopicPartitions(group)
    found = admin.list_consumer_group_offsets([asked])[group].result(PATIENCE_SECONDS)
    return {place.partition: place.offset for place in found.topic_partitions}


def lag_of(admin: AdminClient, group: str, topic: str) -> int:
    committed = committed_of(admin, group)
    count = len(admin.list_topics(topic, PATIENCE_SECONDS).topics[topic].partitions)
    asked = {TopicPartition(topic, at): OffsetSpec.latest() for at in range(count)}
    ends = {
        place.partition: future.result(PATIENCE_SECONDS).offset
        for place, future in admin.list_offsets(asked).items()
    }
    return sum(end - committed.get(at, 0) for at, end in ends.items())
