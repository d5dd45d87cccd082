"""Our messages against kafka-python's own classes, for every api and version that it knows.

Both sides are given the same random values: they must write the same bytes and read each other's.
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


def test_they_know_all_apis_but_those_of_brokers_and_of_the_new_group_protocol():
    unknown = {api.name for api in APIS.values() if api.request.__name__ not in THEIRS}

    assert unknown == {
        "AllocateProducerIds",
        "ConsumerGroupHeartbeat",
        "ConsumerGroupDescribe",
    }
    assert len(CASES) > 350


def their_name(name: str, fields: Any) -> str:
    return name if name in fields else "authorized_operations"


def as_they_show_it(name: str, value: Any) -> Any:
    """No id is None to them, and operations are a set of bits, or None where it is unset."""
    if isinstance(value, UUID) and value.int == 0:
        return None
    if name == "authorized_operations":
        bits = {bit for bit in range(32) if value >> bit & 1}
        return None if bits == {31} else bits
    return value


def to_theirs(value: Any, data_class: Any, version: int) -> Any:
    """Make kafka-python's object of ours, field by field."""
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
                else as_they_show_it(name, element)
                for element in inner
            ]
        else:
            inner = as_they_show_it(name, inner)
        fields[name] = inner
    return data_class(version=version, **fields)


def assert_same(ours: Message, theirs: Any, version: int) -> None:
    for our_name, field in ours.fields.items():
        if not field.exists_in(version):
            continue
        one = getattr(ours, our_name)
        name = their_name(our_name, theirs.fields)
        other = getattr(theirs, name)
        if field.tag is not None and one == field.default and isinstance(one, Message):
            assert other is None
        elif isinstance(one, Message):
            assert_same(one, other, version)
        elif isinstance(one, list | tuple):
            assert len(one) == len(other)
            for mine, yours in zip(one, other, strict=True):
                if isinstance(mine, Message):
                    assert_same(mine, yours, version)
                else:
                    assert as_they_show_it(name, mine) == yours
        else:
            assert as_they_show_it(name, one) == other


def without_unknown_tags(value: Any) -> Any:
    """They do not write tags that they do not know."""
    if isinstance(value, Message):
        fields = {name: without_unknown_tags(getattr(value, name)) for name in value.fields}
        return type(value)(**fields)
    if isinstance(value, list | tuple):
        return [without_unknown_tags(element) for element in value]
    return value


@pytest.mark.parametrize(("message", "version"), CASES, ids=id_of)
@settings(max_examples=4)
@given(data=st.data())
def test_we_write_what_they_write_and_read_what_they_read(message, version, data):
    value = without_unknown_tags(data.draw(messages(message, version)))
    theirs = THEIRS[message.__name__]
    parts: list[bytes] = []
    parts.append(codec(message, version).encode(value, bytearray(), parts))
    wire = b"".join(parts)

    assert bytes(to_theirs(value, theirs, version).encode(version=version)) == wire
    if not (message is ApiVersionsResponse and value.error_code):  # which they read as version 0
        assert_same(value, theirs.decode(wire, version=version), version)


@pytest.mark.parametrize(("message", "version"), CASES, ids=id_of)
def test_whole_frames_are_the_same_headers_included(message, version):
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
