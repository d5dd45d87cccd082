"""kcat: a command line tool with an old librdkafka (2.0)."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Sequence

from golden.corpus import KCAT_HEADERS
from harness.clients.base import (
    TIMEOUT_SECONDS,
    Client,
    ClusterDescription,
    ConsumedRecord,
    Partition,
    ProduceOptions,
    Records,
    RequestError,
    StartOffsets,
    without_internal,
)

# Separators of keys and values, and of records: byte sequences that no record contains.
_KEY_END, _RECORD_END = b"\x01\x02\x03", b"\x03\x02\x01"
_HEAD = re.compile(rb"(\d+) (-?\d+) (-?\d+) (-?\d+) ([^\n]*)\n")
# Its error messages, and Kafka's error codes.
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

    def _produce(
        self, topic: str, records: Records, options: ProduceOptions
    ) -> Sequence[int | None]:
        """Produce records with kcat's own timestamps, and with KCAT_HEADERS on all of them."""
        lines = [
            b"%b%b%b" % (record.key or b"", _KEY_END, record.value or b"") for record in records
        ]
        settings = {
            "acks": options.acks,
            "enable.idempotence": str(options.idempotent).lower(),
            "linger.ms": "20",
            "message.max.bytes": "10000000",
            "topic.metadata.propagation.max.ms": str(int(self.topic_timeout_seconds * 1000)),
        }
        headers = [
            name if value is None else f"{name}={value.decode()}" for name, value in KCAT_HEADERS
        ]
        self._run(
            *("-P", "-t", topic, "-p", str(options.partition), "-z", options.codec, "-Z"),
            *("-K", _escaped(_KEY_END), "-D", _escaped(_RECORD_END)),
            *(part for name, value in settings.items() for part in ("-X", f"{name}={value}")),
            *(part for header in headers for part in ("-H", header)),
            stdin=_RECORD_END.join(lines),
        )
        return [None] * len(records)

    def consume(
        self, starts: StartOffsets, count: int, *, max_wait_ms: int = 10
    ) -> dict[Partition, list[ConsumedRecord]]:
        """Consume one partition after the other; to the end, if there are several.

        The output format starts with the lengths, so that keys and values may have any bytes.
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

    def watermarks(self, topic: str) -> tuple[int, int]:
        start, end = self._query(topic, -2), self._query(topic, -1)
        assert start is not None
        assert end is not None
        return start, end

    def offset_for_time(self, topic: str, timestamp: int) -> int | None:
        found = self._query(topic, timestamp)
        return found if found is not None and found >= 0 else None

    def _query(self, topic: str, timestamp: int) -> int | None:
        text = self._run("-Q", "-t", f"{topic}:0:{timestamp}").decode()
        return int(text.split()[-1])

    def topics(self) -> dict[str, int]:
        found = self._list()["topics"]
        return without_internal({topic["topic"]: len(topic["partitions"]) for topic in found})

    def cluster(self) -> ClusterDescription:
        found = self._list()
        brokers = [(broker["id"], broker["name"]) for broker in found["brokers"]]
        return ClusterDescription("", found["controllerid"], brokers)

    def _list(self):
        return json.loads(self._run("-L", "-J"))

    def _run(self, *arguments: str, stdin: bytes = b"") -> bytes:
        command = ["kcat", "-b", self.address, *arguments]
        try:
            done = subprocess.run(
                command,
                input=stdin,
                capture_output=True,
                check=False,
                timeout=TIMEOUT_SECONDS,
                env={"HOME": "/nonexistent"},
            )
        except subprocess.TimeoutExpired as error:
            raise AssertionError(f"{command} does not end: {error.stderr!r}") from None
        errors = done.stderr.decode()
        if done.returncode or "Delivery failed" in errors or "ERROR" in errors:
            code = next((code for text, code in _CODES.items() if text in errors), None)
            raise RequestError(code, errors)
        return done.stdout


def _escaped(delimiter: bytes) -> str:
    return "".join(f"\\x{byte:02x}" for byte in delimiter)


def _rows(text: bytes) -> list[ConsumedRecord]:
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
        rows.append(ConsumedRecord(offset, timestamp, key, value, _headers(head[5])))
        position = end + 1
    return rows


def _headers(text: bytes) -> tuple[tuple[str, bytes | None], ...]:
    pairs = [pair.partition(b"=") for pair in text.split(b",") if pair]
    return tuple((name.decode(), None if value == b"NULL" else value) for name, _, value in pairs)
