"""Our messages and those of kafka-python, in every API and version that it supports.

For the same random values, both must encode the same bytes, and decode each other's.
"""

import importlib
import pkgutil
from typing import Any
from uuid import UUID

import kafka.protocol
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.strategies import id_of, messages
from ottla.protocol.api.api_versions import ApiVersionsResponse
from ottla.protocol.codec import decode_response, encode_request, encode_response
from ottla.protocol.compiler import codec
from ottla.protocol.registry import APIS
from ottla.protocol.schema import Message


def known_classes() -> dict[str, Any]:
    classes: dict[str, Any] = {}
    for module in pkgutil.walk_packages(kafka.protocol.__path__, "kafka.protocol."):
        if ".old" not in module.name and "generate" not in module.name:
            classes.update(vars(importlib.import_module(module.name)))
    return classes


THEIRS = known_classes()
CASES = [
    (message, version)
    for api in APIS.values()
    for message in (api.request, api.response)
    if message.__name__ in THEIRS
    for version in api.versions
    if version <= THEIRS[message.__name__].max_version
]


def test_kafka_python_has_all_apis_but_those_of_brokers_and_of_newer_groups():
    missing = {api.name for api in APIS.values() if api.request.__name__ not in THEIRS}

    assert missing == {
        "AllocateProducerIds",
        "AlterShareGroupOffsets",
        "BrokerHeartbeat",
        "BrokerRegistration",
        "ConsumerGroupHeartbeat",
        "ConsumerGroupDescribe",
        "DeleteShareGroupOffsets",
        "DeleteShareGroupState",
        "DescribeShareGroupOffsets",
        "Envelope",
        "InitializeShareGroupState",
        "ReadShareGroupState",
        "ReadShareGroupStateSummary",
        "ShareAcknowledge",
        "ShareFetch",
        "ShareGroupDescribe",
        "ShareGroupHeartbeat",
        "UnregisterBroker",
        "WriteShareGroupState",
    }
    assert len(CASES) > 350


def their_name(name: str, fields: Any) -> str:
    return name if name in fields else "authorized_operations"


def to_their_value(name: str, value: Any) -> Any:
    """Convert a value: the nil UUID is None, and operations are a set of bits, or None if unset."""
    if isinstance(value, UUID) and value.int == 0:
        return None
    if name == "authorized_operations":
        bits = {bit for bit in range(32) if value >> bit & 1}
        return None if bits == {31} else bits
    return value


def to_theirs(value: Any, data_class: Any, version: int) -> Any:
    """Convert our message to one of kafka-python."""
    fields = {}
    for ours, field in value.fields.items():
        inner = getattr(value, ours)
        if not field.exists_in(version) or (field.tag is not None and inner == field.default):
            continue
        name = their_name(ours, data_class._struct.fields)
        their_field = data_class._struct.fields[name]
        if isinstance(inner, Message):
            inner = to_theirs(inner, their_field.data_class, version)
        elif isinstance(inner, list | tuple):
            inner = [
                to_theirs(element, their_field.data_class, version)
                if isinstance(element, Message)
                else to_their_value(name, element)
                for element in inner
            ]
        else:
            inner = to_their_value(name, inner)
        fields[name] = inner
    return data_class(version=version, **fields)


def assert_same(ours: Message, theirs: Any, version: int) -> None:
    for our_name, field in ours.fields.items():
        if not field.exists_in(version):
            continue
        our_value = getattr(ours, our_name)
        name = their_name(our_name, theirs.fields)
        their_value = getattr(theirs, name)
        is_message = isinstance(our_value, Message)
        if field.tag is not None and our_value == field.default and is_message:
            assert their_value is None
        elif is_message:
            assert_same(our_value, their_value, version)
        elif isinstance(our_value, list | tuple):
            assert len(our_value) == len(their_value)
            for our_element, their_element in zip(our_value, their_value, strict=True):
                if isinstance(our_element, Message):
                    assert_same(our_element, their_element, version)
                else:
                    assert to_their_value(name, our_element) == their_element
        else:
            assert to_their_value(name, our_value) == their_value


def without_unknown_tags(value: Any) -> Any:
    """Remove unknown tagged fields, which kafka-python does not encode."""
    if isinstance(value, Message):
        fields = {name: without_unknown_tags(getattr(value, name)) for name in value.fields}
        return type(value)(**fields)
    if isinstance(value, list | tuple):
        return [without_unknown_tags(element) for element in value]
    return value


@pytest.mark.parametrize(("message", "version"), CASES, ids=id_of)
@settings(max_examples=4)
@given(data=st.data())
def test_both_encode_the_same_bytes_and_decode_them(message, version, data):
    value = without_unknown_tags(data.draw(messages(message, version)))
    theirs = THEIRS[message.__name__]
    parts: list[bytes] = []
    parts.append(codec(message, version).encode(value, bytearray(), parts))
    wire = b"".join(parts)

    assert bytes(to_theirs(value, theirs, version).encode(version=version)) == wire
    # kafka-python decodes ApiVersions responses with an error as version 0.
    if not (message is ApiVersionsResponse and value.error_code):
        assert_same(value, theirs.decode(wire, version=version), version)


@pytest.mark.parametrize(("message", "version"), CASES, ids=id_of)
def test_frames_are_the_same_including_headers(message, version):
    value = message()
    theirs = to_theirs(value, THEIRS[message.__name__], version)
    theirs.API_VERSION = version
    theirs.with_header(correlation_id=77, client_id="someone")

    frame = bytes(theirs.encode(header=True, framed=True))

    if message is message.api.request:
        assert b"".join(encode_request(value, version, 77, "someone")) == frame
    else:
        assert b"".join(encode_response(value, version, 77)) == frame
        assert decode_response(message, version, frame[4:]) == (77, value)
