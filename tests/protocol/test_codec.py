"""Requests and responses: known bytes, header versions, and errors that name the field."""

from struct import Struct

import pytest

from ottla.protocol import compiled
from ottla.protocol.api.api_versions import ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.api.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.api.heartbeat import HeartbeatResponse
from ottla.protocol.api.init_producer_id import InitProducerIdResponse
from ottla.protocol.api.metadata import MetadataRequest, MetadataResponse
from ottla.protocol.api.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.codec import decode_request, decode_response, encode_request, encode_response
from ottla.protocol.compiler import PASS_THROUGH_BYTES, Codec, codec, source
from ottla.protocol.compiler.layout import layout_of
from ottla.protocol.errors import DecodeError, UnsupportedVersionError
from ottla.protocol.registry import (
    ADD_PARTITIONS_TO_TXN,
    API_VERSIONS,
    APIS,
    FETCH,
    PRODUCE,
    SASL_HANDSHAKE,
)


def frame(text: str) -> bytes:
    return bytes.fromhex(text.replace("|", ""))


def joined(parts) -> bytes:
    """Join the parts of a frame, check its size and strip it."""
    whole = b"".join(parts)
    assert int.from_bytes(whole[:4], "big") == len(whole) - 4
    return whole[4:]


# Requests of librdkafka 2.16, and responses that it accepted.
API_VERSIONS_V3 = frame(
    "0012 0003 00000001 0007 72646b61666b61 00"
    "| 17 636f6e666c75656e742d6b61666b612d707974686f6e"
    "  16 322e31362e312d72646b61666b612d322e31362e30 00"
)
API_VERSIONS_V3_ANSWER = frame(
    "00000001 | 0000 07 0000 0000 0009 00 0001 0000 0012 00 0003 0000 0009 00 000a 0000 0002 00"
    " 0012 0000 0003 00 0016 0000 0005 00 00000000 00"
)
METADATA_V9 = frame("0003 0009 00000002 0007 72646b61666b61 00 | 02 03 7431 00 01 00 00 00")
METADATA_V9_ANSWER = frame(
    "00000002 00 | 00000000 02 00000000 0a 3132372e302e302e31 000056bb 00 00"
    " 17 6162636465666768696a6b6c6d6e6f70717273747576 00000000 02 0000 03 7431 00 02 0000 00000000"
    " 00000000 00000000 02 00000000 02 00000000 01 00 80000000 00 80000000 00"
)
INIT_PRODUCER_ID_V4 = frame(
    "0016 0004 00000002 0007 72646b61666b61 00 | 00 ffffffff ffffffffffffffff ffff 00"
)
INIT_PRODUCER_ID_V4_ANSWER = frame("00000002 00 | 00000000 0000 00000000000003e9 0000 00")
BATCH = frame(
    "0000000000000000 00000042 00000000 02 3abf352b 0000 00000000 0000018bcfe56800 0000018bcfe56800"
    " 00000000000003e9 0000 00000000 00000001 | 20 00 00 00 02 6b 0a 68656c6c6f 02 02 68 02 31"
)
PRODUCE_V9 = (
    frame("0000 0009 00000003 0007 72646b61666b61 00 | 00 ffff 00007530 02 03 7431 02 00000000 4f")
    + BATCH
    + frame("00 00 00")
)
PRODUCE_V9_ANSWER = frame(
    "00000003 00 | 02 03 7431 02 00000000 0000 0000000000000000 ffffffffffffffff 0000000000000000"
    " 01 00 00 00 00000000 00"
)


@pytest.mark.parametrize(
    "wire",
    [API_VERSIONS_V3, METADATA_V9, INIT_PRODUCER_ID_V4, PRODUCE_V9],
    ids=["ApiVersions", "Metadata", "InitProducerId", "Produce"],
)
def test_known_requests_round_trip(wire):
    header, body = decode_request(wire)

    version = header.request_api_version
    again = encode_request(body, version, header.correlation_id, header.client_id)

    assert header.client_id == "rdkafka"
    assert joined(again) == wire


@pytest.mark.parametrize(
    ("response", "version", "wire"),
    [
        (ApiVersionsResponse, 3, API_VERSIONS_V3_ANSWER),
        (MetadataResponse, 9, METADATA_V9_ANSWER),
        (InitProducerIdResponse, 4, INIT_PRODUCER_ID_V4_ANSWER),
        (ProduceResponse, 9, PRODUCE_V9_ANSWER),
    ],
    ids=["ApiVersions", "Metadata", "InitProducerId", "Produce"],
)
def test_known_responses_round_trip(response, version, wire):
    correlation_id, body = decode_response(response, version, wire)

    assert joined(encode_response(body, version, correlation_id)) == wire


def test_fields_of_known_frames():
    _, produce = decode_request(PRODUCE_V9)
    _, metadata = decode_response(MetadataResponse, 9, METADATA_V9_ANSWER)

    assert isinstance(produce, ProduceRequest)
    assert (produce.acks, produce.timeout_ms) == (-1, 30_000)
    assert produce.topic_data[0].partition_data[0].records == BATCH
    assert (metadata.brokers[0].host, metadata.brokers[0].port) == ("127.0.0.1", 22203)
    assert metadata.cluster_id == "abcdefghijklmnopqrstuv"
    assert metadata.topics[0].partitions[0].isr_nodes == (0,)


def test_records_are_slices_of_the_frame():
    received = bytearray(PRODUCE_V9)

    _, produce = decode_request(received)
    records = produce.topic_data[0].partition_data[0].records
    received[received.index(BATCH) + 16] = 99

    assert isinstance(records, memoryview)
    assert records.obj is received
    assert records[16] == 99


def test_large_byte_fields_are_passed_through_and_small_ones_are_copied():
    large, small = bytes(PASS_THROUGH_BYTES), bytes(PASS_THROUGH_BYTES - 1)
    partitions = [PartitionData(records=large), PartitionData(records=small)]
    response = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=partitions)])

    parts = encode_response(response, 11, 5)

    assert len(parts) == 3
    assert parts[1] is large
    assert decode_response(FetchResponse, 11, joined(parts)) == (5, response)


def test_trailing_bytes_of_a_request_are_ignored():
    """For all topics, librdkafka since 2.1 writes a null of four bytes instead of one."""
    wire = frame("0003 000c 00000003 0007 72646b61666b61 00 | 00 00 00 00 01 00 00")

    header, body = decode_request(wire)

    assert header.request_api_version == 12
    assert body == MetadataRequest(topics=None, allow_auto_topic_creation=False)


def test_trailing_bytes_of_a_response_are_an_error():
    with pytest.raises(DecodeError, match="HeartbeatResponse v0: at byte 6: 1 trailing bytes"):
        decode_response(HeartbeatResponse, 0, frame("00000001 | 0000 00"))


def test_unknown_tagged_fields_are_kept_and_written_back():
    wire = frame(
        "0012 0003 00000001 0002 6d65 01 07 02 beef | 02 61 02 62 02 05 01 ff 80 01 03 616263"
    )

    header, body = decode_request(wire)

    assert header.unknown_tagged_fields == [(7, b"\xbe\xef")]
    assert body.unknown_tagged_fields == [(5, b"\xff"), (128, b"abc")]
    parts = []
    tail = codec(type(header), 2).encode(header, bytearray(), parts)
    assert codec(ApiVersionsRequest, 3).encode(body, tail, parts) == wire


def test_tags_are_written_in_ascending_order():
    request = ApiVersionsRequest(unknown_tagged_fields=[(9, b"b"), (5, b"a")])

    wire = b"".join(encode_request(request, 3, 1, None))

    assert wire.endswith(bytes.fromhex("02 05 01 61 09 01 62"))


needs_compiled = pytest.mark.skipif(
    compiled.fast is None, reason="the compiled module was not built"
)


@needs_compiled
@pytest.mark.parametrize("request_type", [ProduceRequest, FetchRequest, MetadataRequest])
def test_common_messages_are_not_left_to_generated_code(request_type, monkeypatch):
    for message in (request_type, request_type.api.response):
        for version in message.versions:
            new = Codec(message, version)
            monkeypatch.setattr(Codec, "_first_encode", None)
            monkeypatch.setattr(Codec, "_first_decode", None)

            wire = new.encode(message(), bytearray(), [])

            assert new.decode(memoryview(wire)) == (message(), len(wire))


@needs_compiled
def test_messages_with_many_elements_are_left_to_generated_code():
    """No other thread runs while the compiled module decodes one."""
    topic = TopicProduceData(partition_data=[PartitionProduceData(records=b"")] * 5_000)
    request = ProduceRequest(topic_data=[topic])
    layout = layout_of(ProduceRequest.struct(9), compiled.fast.Layout)
    wire = codec(ProduceRequest, 9).encode(request, bytearray(), [])

    assert compiled.fast.encode_message(layout, request, bytearray(), [], 4096) is None
    assert compiled.fast.decode_message(layout, memoryview(wire), 0) is None
    assert codec(ProduceRequest, 9).decode(memoryview(wire)) == (request, len(wire))


def test_header_versions_depend_on_api_and_version():
    assert (PRODUCE.request_header_version(8), PRODUCE.request_header_version(9)) == (1, 2)
    assert (FETCH.response_header_version(11), FETCH.response_header_version(12)) == (0, 1)
    assert [API_VERSIONS.response_header_version(version) for version in range(5)] == [0] * 5
    assert SASL_HANDSHAKE.request_header_version(1) == 1


def test_the_client_id_may_be_null():
    header, _ = decode_request(frame("0010 0000 00000009 ffff"))

    assert header.client_id is None
    assert header.correlation_id == 9


@pytest.mark.parametrize("key_and_version", ["0012 0063", "0000 0002", "7fff 0000", "0001 ffff"])
def test_an_unsupported_api_or_version_raises_with_the_correlation_id(key_and_version):
    with pytest.raises(UnsupportedVersionError) as caught:
        decode_request(frame(f"{key_and_version} 0000002a 0000 deadbeef"))

    assert caught.value.correlation_id == 42
    assert bytes.fromhex(key_and_version.replace(" ", "")) == (
        caught.value.api_key.to_bytes(2, "big", signed=True)
        + caught.value.api_version.to_bytes(2, "big", signed=True)
    )


def test_advertised_versions_that_differ_from_the_supported_ones():
    different = [api for api in APIS.values() if api.advertised != api.versions]

    assert different == [PRODUCE, ADD_PARTITIONS_TO_TXN]
    assert (PRODUCE.advertised.first, PRODUCE.versions.first) == (0, 3)
    # Later versions are for brokers, and a client would use them.
    assert (ADD_PARTITIONS_TO_TXN.advertised.last, ADD_PARTITIONS_TO_TXN.versions.last) == (3, 5)


@pytest.mark.parametrize(
    ("wire", "message"),
    [
        ("0012 0003", "RequestHeader v1: correlation_id at byte 4: needs 4 bytes, but 0 remain"),
        ("0012 0003 00000001 0007 72", "RequestHeader v2: client_id at byte 10: length 7, but 1 "),
        (
            "000b 0001 00000001 ffff | 0001 67 00001770",
            "JoinGroupRequest v1: rebalance_timeout_ms at byte 17: needs 4 bytes, but 0 remain",
        ),
        (
            "0001 000b 00000001 ffff | ffffffff 000001f4 00000001 7fffffff 00 00000000 ffffffff"
            " 7fffffff 0001",
            "FetchRequest v11: topics at byte 39: 2147483647 elements, but 2 bytes remain",
        ),
        ("0010 0004 00000001 ffff 00 | 02 02", "ListGroupsRequest v4: states_filter.0. at byte 13"),
        ("0010 0004 00000001 ffff 00 | 02 02 ff 00", "utf-8"),
        ("0010 0004 00000001 ffff 00 | ffffffffff01", "varint longer than 5 bytes"),
        ("0010 0004 00000001 ffff 00 | 01", "unexpected end of the frame"),
        ("0010 0004 00000001 ffff 00 | 01 05 00", "5 tags, but 1 bytes remain"),
        ("0010 0004 00000001 ffff 00 | 01 01 00 09 61", "tag 0 has 9 bytes, but 1 remain"),
        ("0012 0003 00000001 ffff 00 | 00 01 00", "software_name at byte 12: length -1"),
    ],
)
def test_an_error_names_message_version_field_and_position(wire, message):
    with pytest.raises(DecodeError, match=message):
        decode_request(frame(wire))


def test_a_tagged_field_must_fill_its_payload():
    """Fetch v12 whose cluster id, tag 0, has two letters in a payload of four bytes."""
    wire = frame(
        "0001 000c 00000001 ffff 00 | ffffffff 00000000 00000000 00000000 00 00000000 00000000"
        " 01 01 01 01 00 04 03 6162 00"
    )

    with pytest.raises(DecodeError, match="cluster_id at byte 45: 1 trailing bytes in tag 0"):
        decode_request(wire)


def test_the_generated_source_is_available():
    heartbeat = codec(HeartbeatResponse, 1)

    assert "def decode(b, p, end):" in heartbeat.decode_source
    assert "def encode(m0, w, parts):" in heartbeat.encode_source
    assert codec(HeartbeatResponse, 1) is heartbeat


def test_threads_that_compile_at_the_same_time_get_the_same_struct(monkeypatch):
    other = []

    def interrupted(codes):
        if not other:
            other.append(None)
            other[0] = source.struct_of("bhbhb")
        return Struct(codes)

    monkeypatch.setattr(source, "Struct", interrupted)

    assert source.struct_of("bhbhb") is other[0]
