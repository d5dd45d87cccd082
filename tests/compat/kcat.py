"""kcat: a command line, and an old librdkafka (2.0)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence

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
    without_internal,
)
from golden.corpus import KCAT_HEADERS

# Between keys and values, and between records: bytes that no record has in this order.
_KEY_END, _RECORD_END = b"\x01\x02\x03", b"\x03\x02\x01"
_HEAD = re.compile(rb"(\d+) (-?\d+) (-?\d+) (-?\d+) ([^\n]*)\n")
# Its words for what it is told, and Kafka's numbers.
_CODES = {
    "Broker: Message size too large": 10,
    "Broker: Unknown topic or partition": 3,
    "Local: Unknown topic": 3,
    "Local: Unknown partition": 3,
    "Broker: Offset out of range": 1,
}


class Kcat(Client):
    name = "kcat"

    @staticmethod
    def missing() -> str | None:
        return None if shutil.which("kcat") else "kcat is not installed"

    def _write(self, topic: str, records: Records, wishes: Wishes) -> Sequence[int | None]:
        """Write records, with the headers that kcat puts on all of them, at its own time."""
        lines = [
            b"%b%b%b" % (record.key or b"", _KEY_END, record.value or b"") for record in records
        ]
        settings = {
            "acks": wishes.acks,
            "enable.idempotence": str(wishes.idempotent).lower(),
            "linger.ms": "20",
            "message.max.bytes": "10000000",
            "topic.metadata.propagation.max.ms": str(int(self.topic_seconds * 1000)),
        }
        headers = [
            name if value is None else f"{name}={value.decode()}" for name, value in KCAT_HEADERS
        ]
        self._run(
            *("-P", "-t", topic, "-p", str(wishes.partition), "-z", wishes.codec, "-Z"),
            *("-K", _escaped(_KEY_END), "-D", _escaped(_RECORD_END)),
            *(part for name, value in settings.items() for part in ("-X", f"{name}={value}")),
            *(part for header in headers for part in ("-H", header)),
            given=_RECORD_END.join(lines),
        )
        return [None] * len(records)

    def read(self, starts: Starts, count: int, *, max_wait_ms: int = 10) -> dict[Place, list[Row]]:
        """Read; from one partition after the other, as kcat does. If there are several, to the end.

        What it prints has the lengths in front, so that any bytes can be told apart.
        """
        limit = ("-c", str(count)) if len(starts) == 1 else ("-e",)
        found = {}
        for (topic, partition), start in starts.items():
            text = self._run(
                *("-C", "-t", topic, "-p", str(partition), *limit),
                *("-o", "beginning" if start is None else str(start)),
                *("-f", r"%o %T %K %S %h\n%k%s\n"),
                *("-X", "check.crcs=true", "-X", f"fetch.wait.max.ms={max_wait_ms}"),
                *("-X", "topic.auto.offset.reset=error"),
            )
            found[topic, partition] = _rows(text)
        return found

    def ends(self, topic: str) -> tuple[int, int]:
        start, end = self._query(topic, -2), self._query(topic, -1)
        assert start is not None
        assert end is not None
        return start, end

    def offset_at(self, topic: str, timestamp: int) -> int | None:
        found = self._query(topic, timestamp)
        return found if found is not None and found >= 0 else None

    def _query(self, topic: str, timestamp: int) -> int | None:
        text = self._run("-Q", "-t", f"{topic}:0:{timestamp}").decode()
        return int(text.split()[-1])

    def topics(self) -> dict[str, int]:
        found = self._list()["topics"]
        return without_internal({topic["topic"]: len(topic["partitions"]) for topic in found})

    def cluster(self) -> Cluster:
        found = self._list()
        brokers = [(broker["id"], broker["name"]) for broker in found["brokers"]]
        return Cluster("", found["controllerid"], brokers)

    def _list(self):
        return json.loads(self._run("-L", "-J"))

    def _run(self, *arguments: str, given: bytes = b"") -> bytes:
        command = ["kcat", "-b", self.address, *arguments]
        try:
            done = subprocess.run(
                command,
                input=given,
                capture_output=True,
                check=False,
                timeout=PATIENCE_SECONDS,
                env={"HOME": "/nonexistent"},
            )
        except subprocess.TimeoutExpired as problem:
            raise AssertionError(f"{command} does not end: {problem.stderr!r}") from None
        words = done.stderr.decode()
        if done.returncode or "Delivery failed" in words or "ERROR" in words:
            code = next((code for said, code in _CODES.items() if said in words), None)
            raise RefusedError(code, words)
        return done.stdout


def _escaped(delimiter: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in delimiter)


def _rows(text: bytes) -> list[Row]:
    rows, position = [], 0
    while position < len(text):
        head = _HEAD.match(text, position)
        assert head is not None, text[position : position + 100]
        offset, timestamp, key_length, value_length = map(int, head.groups()[:4])
        key_at = head.end()
        value_at = key_at + max(key_length, 0)
        end = value_at + max(value_length, 0)
        key = None if key_length < 0 else text[key_at:value_at]
        value = None if value_length < 0 else text[value_at:end]
        rows.append(Row(offset, timestamp, key, value, _headers(head[5])))
        position = end + 1
    return rows


def _headers(text: bytes) -> tuple[tuple[str, bytes | None], ...]:
    pairs = [pair.partition(b"=") for pair in text.split(b",") if pair]
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)
