"""Clients that are not in Python: a process that reads lines of JSON, and answers with others.

    {"do": "ends", "topic": "t"}    {"done": [0, 7]}    {"refused": 3, "message": "…"}

Bytes are in base 64.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from compat.clients import (
    PATIENCE_SECONDS,
    Client,
    Cluster,
    Place,
    Records,
    RefusedError,
    Row,
    Starts,
    Wishes,
    folder_from,
    without_internal,
)

_HERE = Path(__file__).parent


class Pipe:
    """Such a process. It is slow to start, and serves clients of any broker."""

    def __init__(self, command: Sequence[str], environ: Mapping[str, str]) -> None:
        self._command = command
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **environ},
        )

    def ask(self, question: Mapping[str, Any]) -> Any:
        """Give the answer. Raises RefusedError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            words = self._errors.read().decode(errors="replace")[-3000:]
            raise AssertionError(f"{self._command[0]} ended:\n{words}")
        answer = json.loads(line)
        if "done" not in answer:
            raise RefusedError(answer["refused"], answer["message"])
        return answer["done"]

    def close(self) -> None:
        """End it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()


class Agent(Client):
    """A client that has such a process."""

    def __init__(self, address: str, pipe: Pipe) -> None:
        super().__init__(address)
        self._pipe = pipe

    @staticmethod
    def start() -> Pipe:
        """Start the process."""
        raise NotImplementedError

    def _ask(self, verb: str, **arguments: Any) -> Any:
        return self._pipe.ask({"do": verb, "bootstrap": self.address, **arguments})

    def close(self) -> None:
        self._ask("leave")

    def _write(self, topic: str, records: Records, wishes: Wishes) -> Sequence[int | None]:
        rows = [
            {
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [[name, _text(value)] for name, value in record.headers],
                "timestamp": record.timestamp,
            }
            for record in records
        ]
        offsets: list[int] = self._ask("write", topic=topic, records=rows, **wishes._asdict())
        return offsets

    def read(self, starts: Starts, count: int, *, max_wait_ms: int = 100) -> dict[Place, list[Row]]:
        wanted = [
            {"topic": topic, "partition": partition, "start": start}
            for (topic, partition), start in starts.items()
        ]
        found: dict[Place, list[Row]] = {place: [] for place in starts}
        answer = self._ask(
            "read",
            starts=wanted,
            count=count,
            maxWaitMs=max_wait_ms,
            patienceMs=PATIENCE_SECONDS * 1000,
        )
        for row in answer:
            headers = tuple((name, _bytes(value)) for name, value in row["headers"])
            found[row["topic"], row["partition"]].append(
                Row(
                    row["offset"],
                    row["timestamp"],
                    _bytes(row["key"]),
                    _bytes(row["value"]),
                    headers,
                )
            )
        return found

    def ends(self, topic: str) -> tuple[int, int]:
        start, end = self._ask("ends", topic=topic)
        return start, end

    def offset_at(self, topic: str, timestamp: int) -> int | None:
        return self._ask("offsetAt", topic=topic, timestamp=timestamp)

    def topics(self) -> dict[str, int]:
        return without_internal(self._ask("topics"))

    def cluster(self) -> Cluster:
        found = self._ask("cluster")
        brokers = [(node_id, address) for node_id, address in found["brokers"]]
        return Cluster(found["id"], found["controller"], brokers)

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        self._ask("createTopic", topic=topic, partitions=partitions, configs=dict(configs or {}))

    def delete_topic(self, topic: str) -> None:
        self._ask("deleteTopic", topic=topic)

    def add_partitions(self, topic: str, total: int) -> None:
        self._ask("addPartitions", topic=topic, total=total)

    def configs(self, topic: str) -> dict[str, str]:
        return self._ask("configs", topic=topic)

    def alter_configs(self, topic: str, changes: Mapping[str, str]) -> None:
        self._ask("alterConfigs", topic=topic, changes=dict(changes))

    def delete_records(self, topic: str, offset: int) -> int:
        return self._ask("deleteRecords", topic=topic, offset=offset)


class Java(Agent):
    """Apache Kafka's own client. TEST_KAFKA_LIBS names the folder of its jars."""

    name = "java"

    def youngest(self, topic: str) -> int:
        return self._ask("youngest", topic=topic)

    @staticmethod
    def missing() -> str | None:
        if not (shutil.which("java") and shutil.which("javac")):
            return "java is not installed"
        if folder_from("TEST_KAFKA_LIBS") is None:
            return "TEST_KAFKA_LIBS does not name the folder with the jars of Apache Kafka"
        return None

    @staticmethod
    def start() -> Pipe:
        jars = f"{folder_from('TEST_KAFKA_LIBS')}/*"
        quick = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
        return Pipe(["java", *quick, "-cp", jars, str(_HERE / "JavaAgent.java")], {})


class Kafkajs(Agent):
    """kafkajs. TEST_NODE_MODULES, or NODE_PATH, names the folder where it is."""

    name = "kafkajs"
    reads = frozenset({"none", "gzip"})
    gives_the_end_for_a_later_time = True
    alters_configs_as_a_whole = True

    @staticmethod
    def missing() -> str | None:
        if not shutil.which("node"):
            return "node is not installed"
        if _folder_of_kafkajs() is None:
            return "neither TEST_NODE_MODULES nor NODE_PATH names a folder with kafkajs in it"
        return None

    @staticmethod
    def start() -> Pipe:
        environ = {"NODE_PATH": _folder_of_kafkajs() or "", "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        return Pipe(["node", str(_HERE / "kafkajs_agent.js")], environ)


def _folder_of_kafkajs() -> str | None:
    for variable in ("TEST_NODE_MODULES", "NODE_PATH"):
        folder = folder_from(variable)
        if folder and (Path(folder) / "kafkajs").is_dir():
            return folder
    return None


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
