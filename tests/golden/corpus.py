"""The records that every client produced for the golden files, in every codec it supports.

`batches/<client>-<codec>.bin` has the batch that the client sent; `expected(client)` returns the
records that it must decode to. Run as a script, it prints the records as JSON, for clients that are
not in Python.
"""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import dataclass, replace

#: The codecs that each client can compress with.
CODECS = {
    "aiokafka": ("none", "gzip", "snappy", "lz4", "zstd"),
    "confluent": ("none", "gzip", "snappy", "lz4", "zstd"),
    "java": ("none", "gzip", "snappy", "lz4", "zstd"),
    "kafkajs": ("none", "gzip"),
    "kafka-python": ("none", "gzip", "snappy", "lz4", "zstd"),
    "kcat": ("none", "gzip", "snappy", "lz4", "zstd"),
}

#: Prefix of the topics, followed by the codec. The records go to each topic in one batch.
TOPIC_PREFIX = "corpus-"

#: kcat sends the same headers with every record. A name without a value is null.
KCAT_HEADERS = (("source", b"kcat"), ("nothing", None))

_START = 1_700_000_000_000
_DAY = 86_400_000


@dataclass(frozen=True)
class Record:
    """A record to produce, and to expect in the batch. Without a timestamp, the client sets one."""

    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    timestamp: int | None = None


def _plain(number: int) -> Record:
    value = f"record {number}: the quick brown fox jumps over the lazy dog".encode()
    return Record(f"key-{number % 5}".encode(), value, (), _START + 7 * number)


#: No record has neither key nor value: not every client would send that. Equal header names are
#: adjacent: kafkajs takes headers as an object, which groups values by name.
RECORDS = (
    *(_plain(number) for number in range(8)),
    Record(None, b"no key", (), _START + 60),
    Record(b"no value", None, (), _START + 61),
    Record(b"", b"empty key", (), _START + 62),
    Record(b"empty value", b"", (), _START + 63),
    Record("schlüssel".encode(), "grüße, 世界, 🎈".encode(), (), _START + 64),
    Record(b"binary", bytes(range(256)), (), _START + 65),
    Record(b"long", b"0123456789" * 60, (), _START + 66),
    Record(b"one header", b"value", (("name", b"value"),), _START + 67),
    Record(
        b"many headers",
        b"value",
        (
            ("twice", b"first"),
            ("twice", b"second"),
            ("empty", b""),
            ("null", None),
            ("binary", b"\x00\xff\x80"),
            ("größe", "größe".encode()),
        ),
        _START + 68,
    ),
    Record(b"before the first", b"value", (), _START - 1_000),
    Record(b"a day later", b"value", (), _START + _DAY),
    Record(None, b"the last one", (("end", b"1"),), _START + 70),
)


def expected(client: str) -> tuple[Record, ...]:
    """Return the records as the client is able to send them."""
    if client in ("kafkajs", "kafka-python"):
        return tuple(_without_null_headers(record) for record in RECORDS)
    if client == "kcat":
        return tuple(_as_kcat_sends(record) for record in RECORDS if _fits_a_line(record))
    return RECORDS


def kcat_input() -> bytes:
    """Return the input with which kcat (`-K <tab> -Z`) sends `expected("kcat")`."""
    return b"".join(
        b"%b\t%b\n" % (record.key or b"", record.value or b"") for record in expected("kcat")
    )


def _without_null_headers(record: Record) -> Record:
    # kafkajs fails on null header values, and kafka-python requires bytes: they send empty ones.
    return replace(record, headers=tuple((name, value or b"") for name, value in record.headers))


def _fits_a_line(record: Record) -> bool:
    content = (record.key or b"") + (record.value or b"")
    return not any(byte in content for byte in b"\t\n\x00")


def _as_kcat_sends(record: Record) -> Record:
    # kcat cannot tell empty from null, and has no option for timestamps.
    return Record(record.key or None, record.value or None, KCAT_HEADERS, None)


def _text(content: bytes | None) -> str | None:
    return None if content is None else base64.b64encode(content).decode()


def as_json() -> str:
    """Return the records as JSON, with bytes in base 64."""
    records = [
        {
            "key": _text(record.key),
            "value": _text(record.value),
            "headers": [[name, _text(value)] for name, value in record.headers],
            "timestamp": record.timestamp,
        }
        for record in RECORDS
    ]
    return json.dumps({"topicPrefix": TOPIC_PREFIX, "records": records})


if __name__ == "__main__":
    sys.stdout.write(as_json())
