"""Message declarations: attributes, defaults, versions, and what may be dropped."""

import pytest

from ottla.protocol.api.fetch import FetchRequest, FetchResponse, LeaderIdAndEpoch, PartitionData
from ottla.protocol.api.heartbeat import HeartbeatRequest
from ottla.protocol.api.metadata import MetadataRequest
from ottla.protocol.compiler import codec
from ottla.protocol.errors import EncodeError
from ottla.protocol.registry import APIS
from ottla.protocol.schema import Array, Message, Struct


def test_a_message_has_attributes_with_the_defaults_of_kafka():
    request = FetchRequest(max_wait_ms=500)

    assert request.max_wait_ms == 500
    assert request.max_bytes == 2**31 - 1
    assert request.replica_id == -1
    assert request.cluster_id is None
    assert list(request.topics) == []


def test_unknown_fields_are_rejected():
    with pytest.raises(TypeError, match="topicz"):
        FetchRequest(topicz=[])
    with pytest.raises(TypeError, match="positional"):
        FetchRequest(500)
    with pytest.raises(AttributeError):
        FetchRequest().topicz = []


def test_messages_are_equal_by_value_with_lists_and_tuples():
    assert HeartbeatRequest(group_id="g") == HeartbeatRequest(group_id="g")
    assert HeartbeatRequest(group_id="g") != HeartbeatRequest(group_id="h")
    assert FetchRequest(topics=[]) == FetchRequest(topics=())
    assert PartitionData(records=memoryview(b"abc")) == PartitionData(records=b"abc")
    assert HeartbeatRequest() != FetchRequest()
    with pytest.raises(TypeError):
        hash(HeartbeatRequest())


def test_repr_shows_fields_that_differ_from_their_default():
    message = PartitionData(partition_index=3, current_leader=LeaderIdAndEpoch(leader_id=1))

    assert repr(message) == (
        "PartitionData(partition_index=3, current_leader=LeaderIdAndEpoch(leader_id=1))"
    )
    assert "unknown_tagged_fields" in repr(HeartbeatRequest(unknown_tagged_fields=[(7, b"x")]))


def test_an_unsupported_version_is_rejected():
    with pytest.raises(ValueError, match="FetchRequest has no version 19: supported are 4-18"):
        FetchRequest.struct(19)
    with pytest.raises(ValueError, match="PartitionData has no version"):
        PartitionData.struct(4)


def encode(message, version):
    parts = []
    parts.append(codec(type(message), version).encode(message, bytearray(), parts))
    return b"".join(parts)


def test_a_value_of_a_field_that_the_version_lacks_is_an_error():
    request = HeartbeatRequest(group_id="g", group_instance_id="i")

    with pytest.raises(EncodeError) as caught:
        encode(request, 2)

    assert caught.value.field == "group_instance_id"
    assert str(caught.value) == (
        "HeartbeatRequest v2: group_instance_id: does not exist in this version, but is 'i'"
    )


def test_ignorable_fields_are_dropped_in_versions_without_them():
    assert encode(FetchRequest(rack_id="r"), 10) == encode(FetchRequest(), 10)
    assert encode(FetchRequest(rack_id="r"), 11) != encode(FetchRequest(), 11)


def test_values_that_would_be_dropped_are_detected_in_nested_messages_and_tags():
    partition = PartitionData(current_leader=LeaderIdAndEpoch(leader_id=1))
    response = FetchResponse(responses=[FetchResponse.fields["responses"].type.element.message()])
    topic = type(response.responses[0])(topic="t", partitions=[partition])

    with pytest.raises(EncodeError, match=r"responses\[\]\.partitions\[\]\.current_leader"):
        encode(FetchResponse(responses=[topic]), 11)
    with pytest.raises(EncodeError, match="tagged fields do not exist in this version"):
        encode(HeartbeatRequest(unknown_tagged_fields=[(9, b"")]), 3)


def test_null_is_rejected_in_versions_where_the_field_is_not_nullable():
    with pytest.raises(EncodeError, match="MetadataRequest v0: topics"):
        encode(MetadataRequest(topics=None), 0)

    assert encode(MetadataRequest(topics=None), 1) == b"\xff\xff\xff\xff"


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (FetchRequest(max_wait_ms=2**31), "max_wait_ms"),
        (FetchRequest(min_bytes="many"), "min_bytes"),
        (FetchRequest(rack_id=7), "rack_id"),
        (FetchRequest(rack_id="\ud800"), "rack_id"),
        (FetchRequest(rack_id="x" * 40_000), "rack_id"),
        (FetchRequest(topics=[None]), r"topics\[\]"),
    ],
)
def test_an_invalid_value_is_an_error_that_names_the_field(request_, field):
    with pytest.raises(EncodeError, match=f"FetchRequest v11: {field}"):
        encode(request_, 11)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_declarations_are_consistent(api):
    for message in (api.request, api.response):
        assert message.api is api
        assert message.versions == api.versions
        assert message.__module__ == f"ottla.protocol.api.{api.module_name}"
        check_fields(message, api.versions)


def check_fields(message: type[Message], versions):
    for name, field in message.fields.items():
        assert versions.first <= field.since or field.since == 0, name
        assert field.since <= versions.last, name
        assert field.until is None or field.since <= field.until < versions.last, name
        assert field.nullable is None or field.nullable >= field.since, name
        assert field.tag is None or versions.is_flexible(max(field.since, versions.first)), name
        assert field.default is not None or field.nullable is not None, name
        field_type = field.type.element if isinstance(field.type, Array) else field.type
        if isinstance(field_type, Struct):
            check_fields(field_type.message, versions)
