"""Serializers, deserializers and headers."""

import pytest

from ottla.client.errors import SerializationError
from ottla.client.serializers import (
    deserialize_json,
    deserialize_str,
    serialize_bytes,
    serialize_json,
    serialize_str,
    to_bytes,
    to_headers,
)


@pytest.mark.parametrize(
    ("serialize", "deserialize", "value", "data"),
    [
        (serialize_bytes, bytes, b"\x00\xff", b"\x00\xff"),
        (serialize_str, deserialize_str, "grüß", "grüß".encode()),
        (serialize_json, deserialize_json, {"a": [1, None, "ä"]}, '{"a":[1,null,"ä"]}'.encode()),
    ],
    ids=["bytes", "str", "json"],
)
def test_serialized_values_are_deserialized(serialize, deserialize, value, data):
    assert serialize(value) == data
    assert deserialize(data) == value


@pytest.mark.parametrize(
    ("serialize", "value", "kind"),
    [
        (serialize_bytes, "text", TypeError),
        (serialize_str, b"bytes", TypeError),
        (serialize_str, "\ud800", UnicodeEncodeError),
        (serialize_json, {1, 2}, TypeError),
        (serialize_json, float("nan"), ValueError),
    ],
)
def test_the_error_of_a_serializer_is_the_cause(serialize, value, kind):
    with pytest.raises(SerializationError, match="The value serializer raised") as caught:
        to_bytes(value, serialize, "value")

    assert isinstance(caught.value.__cause__, kind)


def test_without_a_serializer_only_bytes_are_accepted():
    with pytest.raises(SerializationError, match=r"The key is str.*set key_serializer"):
        to_bytes("text", None, "key")


def test_a_serializer_must_return_bytes():
    with pytest.raises(SerializationError, match="The value serializer returned int"):
        to_bytes("text", len, "value")


def test_none_is_not_serialized():
    assert to_bytes(None, serialize_json, "value") is None


def test_a_serializer_may_return_none():
    assert to_bytes("gone", lambda _: None, "value") is None


@pytest.mark.parametrize("kind", [bytearray, memoryview])
def test_mutable_buffers_are_copied(kind):
    source = bytearray(b"before")

    taken = to_bytes(kind(source), None, "value")
    source[:] = b"after!"

    assert taken == b"before"


def test_headers_may_be_a_mapping_or_pairs():
    pairs = (("trace", b"1"), ("none", None))

    assert to_headers(dict(pairs))[0] == pairs
    assert to_headers(list(pairs))[0] == pairs
    assert to_headers([("twice", b"1"), ("twice", bytearray(b"2"))])[0] == (
        ("twice", b"1"),
        ("twice", b"2"),
    )


@pytest.mark.parametrize(
    "headers",
    [{"a": "text"}, {b"a": b""}, {1: b""}, ["a"], [("a",)], {"\ud800": b""}, [3]],
    ids=ascii,
)
def test_invalid_headers_are_rejected(headers):
    with pytest.raises(SerializationError, match="Invalid headers: expected pairs"):
        to_headers(headers)
