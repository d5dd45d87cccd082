"""Frames of real clients and of Apache Kafka round trip through the codec.

`golden/record.py` recorded the files; its docstring describes how. Each frame must decode, and the
message must encode to the same bytes.
"""

from __future__ import annotations

import pytest

from harness.golden_frames import CLIENTS, RECORDED_FRAMES, RecordedFrame
from ottla.protocol.api.metadata import MetadataRequest
from ottla.protocol.codec import decode_request, decode_response, encode_response
from ottla.protocol.compiler import codec
from ottla.protocol.header import RequestHeader
from ottla.protocol.registry import METADATA
from ottla.protocol.schema import Buffer, Message


def parameters(direction: str) -> list[object]:
    return [
        pytest.param(
            recorded,
            id=f"{recorded.client}-{recorded.api.name}-v{recorded.version}-{direction}",
        )
        for recorded in RECORDED_FRAMES
        if recorded.direction == direction
    ]


def encode_request_again(recorded: RecordedFrame, header: RequestHeader, body: Message) -> bytes:
    """Encode a request with its original header, including tagged fields."""
    parts: list[Buffer] = []
    header_codec = codec(RequestHeader, recorded.api.request_header_version(recorded.version))
    tail = header_codec.encode(header, bytearray(), parts)
    tail = codec(recorded.api.request, recorded.version).encode(body, tail, parts)
    return b"".join([*parts, tail])


def is_all_topics_of_librdkafka(recorded: RecordedFrame, body: Message) -> bool:
    """Whether a request is the one known to be longer than its fields.

    librdkafka since 2.1 encodes "all topics" in a flexible Metadata request as a legacy length of
    0, four bytes, instead of a compact null, one byte. In version 12 a broker reads the first 0 as
    the compact null, and the others as the two flags and the empty tag section. The actual flags
    and tags remain as three trailing bytes.
    """
    librdkafka = (
        recorded.client == "confluent" and recorded.api is METADATA and recorded.version == 12
    )
    return librdkafka and isinstance(body, MetadataRequest) and body.topics is None


@pytest.mark.parametrize("recorded", parameters("request"))
def test_requests_of_clients_round_trip(recorded: RecordedFrame) -> None:
    header, body = decode_request(recorded.frame)

    frame = recorded.frame
    if is_all_topics_of_librdkafka(recorded, body):
        *flags, tags = frame[-3:]
        assert set(flags) <= {0, 1}
        assert tags == 0
        frame = frame[:-3]
    assert (header.request_api_key, header.request_api_version) == (
        recorded.api.key,
        recorded.version,
    )
    assert type(body) is recorded.api.request
    assert encode_request_again(recorded, header, body) == frame


def test_the_recorded_frames_have_the_all_topics_request_of_librdkafka() -> None:
    """The exception above is necessary."""
    requests = [recorded for recorded in RECORDED_FRAMES if recorded.direction == "request"]

    bodies = [
        body
        for recorded in requests
        if recorded.api is METADATA
        for _header, body in [decode_request(recorded.frame)]
        if is_all_topics_of_librdkafka(recorded, body)
    ]

    assert bodies
    # AllowAutoTopicCreation is among the trailing bytes: Kafka cannot see it either.
    assert all(
        body == MetadataRequest(topics=None, allow_auto_topic_creation=False) for body in bodies
    )


@pytest.mark.parametrize("recorded", parameters("response"))
def test_responses_of_kafka_round_trip(recorded: RecordedFrame) -> None:
    correlation_id, body = decode_response(recorded.api.response, recorded.version, recorded.frame)

    again = b"".join(encode_response(body, recorded.version, correlation_id))

    assert again == len(recorded.frame).to_bytes(4) + recorded.frame


def test_the_recorded_frames_are_complete() -> None:
    """The tests above would pass with fewer files, too."""
    names = {
        direction: {each.api.name for each in RECORDED_FRAMES if each.direction == direction}
        for direction in ("request", "response")
    }

    assert {recorded.client for recorded in RECORDED_FRAMES} == set(CLIENTS)
    assert len(names["request"] & names["response"]) >= 40
