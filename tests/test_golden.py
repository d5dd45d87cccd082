"""The codec against bytes that it had no part in: frames of real clients and of Apache Kafka.

`golden/record.py` made the files; its docstring says how to make them again. Each frame must
decode, and what comes of it must encode to the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from ottla.protocol.api.metadata import MetadataRequest
from ottla.protocol.codec import decode_request, decode_response, encode_response
from ottla.protocol.compiler import codec
from ottla.protocol.header import RequestHeader
from ottla.protocol.registry import APIS, METADATA, Api
from ottla.protocol.schema import Buffer, Message

GOLDEN = Path(__file__).parent / "golden"
CLIENTS = ("aiokafka", "confluent", "java", "kafka-python", "kafkajs", "kcat")
BY_NAME = {api.name: api for api in APIS.values()}


@dataclass(frozen=True)
class Line:
    """One recorded frame."""

    client: str
    api: Api
    version: int
    direction: str
    frame: bytes


def read(client: str) -> list[Line]:
    lines = []
    for text in (GOLDEN / f"{client}.txt").read_text().splitlines():
        name, version, direction, frame = text.split(" ")
        lines.append(Line(client, BY_NAME[name], int(version), direction, bytes.fromhex(frame)))
    return lines


LINES = [line for client in CLIENTS for line in read(client)]


def parameters(direction: str) -> list[object]:
    return [
        pytest.param(line, id=f"{line.client}-{line.api.name}-v{line.version}-{direction}")
        for line in LINES
        if line.direction == direction
    ]


def encode_request_again(line: Line, header: RequestHeader, body: Message) -> bytes:
    """Encode a request with the header that it came with, tags and all."""
    parts: list[Buffer] = []
    header_codec = codec(RequestHeader, line.api.request_header_version(line.version))
    tail = header_codec.encode(header, bytearray(), parts)
    tail = codec(line.api.request, line.version).encode(body, tail, parts)
    return b"".join([*parts, tail])


def asks_for_all_topics_as_librdkafka_does(line: Line, body: Message) -> bool:
    """Whether a request is the one that is known to be longer than its fields.

    librdkafka since 2.1 writes "all topics" of a flexible Metadata request as the four bytes of a
    legacy null, or rather of a legacy 0, where one byte belongs. In version 12 a broker takes the
    first 0 for the compact null that was meant, the others for the two flags and the end of the
    tags. The flags and tags that were meant are left over: three bytes.
    """
    librdkafka = line.client == "confluent" and line.api is METADATA and line.version == 12
    return librdkafka and isinstance(body, MetadataRequest) and body.topics is None


@pytest.mark.parametrize("line", parameters("request"))
def test_request_of_a_client_comes_back(line: Line) -> None:
    header, body = decode_request(line.frame)

    frame = line.frame
    if asks_for_all_topics_as_librdkafka_does(line, body):
        *flags, tags = frame[-3:]
        assert set(flags) <= {0, 1}
        assert tags == 0
        frame = frame[:-3]
    assert (header.request_api_key, header.request_api_version) == (line.api.key, line.version)
    assert type(body) is line.api.request
    assert encode_request_again(line, header, body) == frame


def test_all_topics_of_librdkafka_are_in_the_files() -> None:
    """The exception above is for something that happens."""
    frames = [line for line in LINES if line.api is METADATA and line.direction == "request"]

    odd = [
        body
        for line in frames
        for _header, body in [decode_request(line.frame)]
        if asks_for_all_topics_as_librdkafka_does(line, body)
    ]

    assert odd
    # Nobody can see from this that topics may be created: Kafka cannot either.
    assert all(
        body == MetadataRequest(topics=None, allow_auto_topic_creation=False) for body in odd
    )


@pytest.mark.parametrize("line", parameters("response"))
def test_response_of_kafka_comes_back(line: Line) -> None:
    correlation_id, body = decode_response(line.api.response, line.version, line.frame)

    again = b"".join(encode_response(body, line.version, correlation_id))

    assert again == len(line.frame).to_bytes(4) + line.frame


def test_nothing_got_lost() -> None:
    """A parametrised test over fewer files would pass just as well."""
    requests = {line.api.name for line in LINES if line.direction == "request"}
    responses = {line.api.name for line in LINES if line.direction == "response"}

    assert {line.client for line in LINES} == set(CLIENTS)
    assert len(requests & responses) >= 40
