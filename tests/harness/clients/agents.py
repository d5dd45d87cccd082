"""Clients in other languages: an agent process reads requests as lines of JSON and answers each.

    {"method": "watermarks", "bootstrap": "127.0.0.1:9092", "topic": "t"}
    {"result": [0, 7]}    or    {"error": 3, "message": "…"}

Bytes are in base 64. JavaAgent.java and kafkajs_agent.js are the other ends.
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

from harness.clients.base import (
    TIMEOUT_SECONDS,
    Client,
    ClusterDescription,
    ConsumedRecord,
    GroupDescription,
    Partition,
    ProduceOptions,
    Records,
    RequestError,
    StartOffsets,
    kafka_libs,
    node_modules,
    without_internal,
)

_HERE = Path(__file__).parent
#: A JVM that starts fast, for programs that run for seconds.
JAVA = ("java", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")


class AgentProcess:
    """An agent. It starts slowly, and serves clients of any broker."""

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

    def call(self, request: Mapping[str, Any]) -> Any:
        """Send a request and return its result. Raises RequestError."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            errors = self._errors.read().decode(errors="replace")[-3000:]
            raise AssertionError(f"{self._command[0]} ended:\n{errors}")
        response = json.loads(line)
        if "result" not in response:
            raise RequestError(response["error"], response["message"])
        return response["result"]

    def close(self) -> None:
        """End the process."""
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
    """A client in an agent process."""

    def __init__(self, address: str, process: AgentProcess) -> None:
        super().__init__(address)
        self._process = process

    @staticmethod
    def start() -> AgentProcess:
        """Start the process."""
        raise NotImplementedError

    def _call(self, method: str, **arguments: Any) -> Any:
        return self._process.call({"method": method, "bootstrap": self.address, **arguments})

    def close(self) -> None:
        self._call("close")

    def _produce(
        self, topic: str, records: Records, options: ProduceOptions
    ) -> Sequence[int | None]:
        rows = [
            {
                "key": _text(record.key),
                "value": _text(record.value),
                "headers": [[name, _text(value)] for name, value in record.headers],
                "timestamp": record.timestamp,
            }
            for record in records
        ]
        offsets: list[int] = self._call("produce", topic=topic, records=rows, **options._asdict())
        return offsets

    def consume(
        self, starts: StartOffsets, count: int, *, max_wait_ms: int = 100
    ) -> dict[Partition, list[ConsumedRecord]]:
        rows = self._call(
            "consume",
            starts=[
                {"topic": topic, "partition": partition, "start": start}
                for (topic, partition), start in starts.items()
            ],
            count=count,
            maxWaitMs=max_wait_ms,
            timeoutMs=TIMEOUT_SECONDS * 1000,
        )
        consumed: dict[Partition, list[ConsumedRecord]] = {partition: [] for partition in starts}
        for row in rows:
            record = ConsumedRecord(
                row["offset"],
                row["timestamp"],
                _bytes(row["key"]),
                _bytes(row["value"]),
                tuple((name, _bytes(value)) for name, value in row["headers"]),
            )
            consumed[row["topic"], row["partition"]].append(record)
        return consumed

    def watermarks(self, topic: str) -> tuple[int, int]:
        low, high = self._call("watermarks", topic=topic)
        return low, high

    def offset_for_time(self, topic: str, timestamp: int) -> int | None:
        return self._call("offsetForTime", topic=topic, timestamp=timestamp)

    def topics(self) -> dict[str, int]:
        return without_internal(self._call("topics"))

    def cluster(self) -> ClusterDescription:
        cluster = self._call("cluster")
        brokers = [(node_id, address) for node_id, address in cluster["brokers"]]
        return ClusterDescription(cluster["id"], cluster["controller"], brokers)

    def create_topic(
        self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        self._call("createTopic", topic=topic, partitions=partitions, configs=dict(configs or {}))

    def delete_topic(self, topic: str) -> None:
        self._call("deleteTopic", topic=topic)

    def create_partitions(self, topic: str, total: int) -> None:
        self._call("createPartitions", topic=topic, total=total)

    def configs(self, topic: str) -> dict[str, str]:
        return self._call("configs", topic=topic)

    def alter_configs(self, topic: str, changes: Mapping[str, str]) -> None:
        self._call("alterConfigs", topic=topic, changes=dict(changes))

    def delete_records(self, topic: str, offset: int) -> int:
        return self._call("deleteRecords", topic=topic, offset=offset)

    def list_groups(self) -> set[str]:
        return set(self._call("listGroups"))

    def describe_group(self, group: str) -> GroupDescription:
        return GroupDescription(**self._call("describeGroup", group=group))

    def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        return dict(self._call("groupOffsets", group=group, topic=topic))

    def alter_group_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self._call("alterGroupOffsets", group=group, topic=topic, offsets=[*offsets.items()])

    def delete_group(self, group: str) -> None:
        self._call("deleteGroup", group=group)


class Java(Agent):
    """Apache Kafka's own client. TEST_KAFKA_LIBS names the folder of its jars."""

    name = "java"

    def max_timestamp_offset(self, topic: str) -> int:
        return self._call("maxTimestampOffset", topic=topic)

    def delete_group_offsets(self, group: str, topic: str, partitions: Sequence[int]) -> None:
        self._call("deleteGroupOffsets", group=group, topic=topic, partitions=list(partitions))

    def remove_member(self, group: str, instance_id: str) -> None:
        self._call("removeMember", group=group, instance=instance_id)

    @staticmethod
    def missing() -> str | None:
        if not (shutil.which("java") and shutil.which("javac")):
            return "java is not installed"
        if kafka_libs() is None:
            return "TEST_KAFKA_LIBS does not name the folder of Apache Kafka's jars"
        return None

    @staticmethod
    def start() -> AgentProcess:
        return AgentProcess([*JAVA, "-cp", f"{kafka_libs()}/*", str(_HERE / "JavaAgent.java")], {})


class Kafkajs(Agent):
    """kafkajs. TEST_NODE_MODULES or NODE_PATH names the folder that has it."""

    name = "kafkajs"
    readable_codecs = frozenset({"none", "gzip"})
    returns_end_for_later_time = True
    replaces_all_configs = True

    @staticmethod
    def missing() -> str | None:
        if not shutil.which("node"):
            return "node is not installed"
        if node_modules() is None:
            return "neither TEST_NODE_MODULES nor NODE_PATH names a folder with kafkajs in it"
        return None

    @staticmethod
    def start() -> AgentProcess:
        environ = {"NODE_PATH": node_modules() or "", "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        return AgentProcess(["node", str(_HERE / "kafkajs_agent.js")], environ)


def _text(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _bytes(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)
