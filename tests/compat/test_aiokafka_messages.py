"""aiokafka decodes our responses, in every version that it supports."""

import importlib
import pkgutil
from typing import Any

import aiokafka.protocol
import pytest
from aiokafka.protocol.struct import Struct
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.strategies import id_of, messages
from ottla.protocol.compiler import codec
from ottla.protocol.registry import APIS
from ottla.protocol.schema import Message


def known_responses() -> dict[tuple[int, int], Any]:
    responses = {}
    for module in pkgutil.iter_modules(aiokafka.protocol.__path__, "aiokafka.protocol."):
        for name, value in vars(importlib.import_module(module.name)).items():
            if "Response_v" in name and isinstance(value, type) and issubclass(value, Struct):
                responses[value.API_KEY, value.API_VERSION] = value
    return responses


THEIRS = known_responses()
# Bugs of aiokafka: DescribeGroupsResponse_v3 has the fields of version 2, and
# DescribeAclsResponse_v2 is not flexible.
INCORRECT = {(15, 3), (29, 2)}
CASES = [
    (api.response, version)
    for api in APIS.values()
    for version in api.versions
    if (api.key, version) in THEIRS and (api.key, version) not in INCORRECT
]


def in_order(value: Any, version: int) -> Any:
    """Return a message as aiokafka does: values in the order of fields, without tagged fields."""
    if isinstance(value, Message):
        return tuple(
            in_order(getattr(value, name), version)
            for name, field in value.fields.items()
            if field.exists_in(version) and field.tag is None
        )
    if isinstance(value, list | tuple):
        return [in_order(element, version) for element in value]
    return value


def without_tags(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(without_tags(element) for element in value if not isinstance(element, dict))
    return [without_tags(element) for element in value] if isinstance(value, list) else value


def test_enough_responses_are_compared():
    assert len(CASES) > 60


@pytest.mark.parametrize(("message", "version"), CASES, ids=id_of)
@settings(max_examples=5)
@given(data=st.data())
def test_aiokafka_decodes_our_responses(message, version, data):
    value = data.draw(messages(message, version))
    theirs = THEIRS[message.api.key, version]
    parts: list[bytes] = []
    parts.append(codec(message, version).encode(value, bytearray(), parts))

    decoded = theirs.decode(b"".join(parts))

    values = tuple(getattr(decoded, name) for name in theirs.SCHEMA.names)
    assert without_tags(values) == in_order(value, version)
