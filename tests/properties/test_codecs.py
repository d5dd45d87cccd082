"""For every message and version: compiled equals construct, and nonsense is refused."""

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.protocol.compiler import Codec, codec
from ottla.protocol.errors import DecodeError
from ottla.protocol.primitives import ConstructError
from ottla.protocol.schema import Array, Message
from strategies import ALL_MESSAGES, id_of, messages

pytestmark = pytest.mark.parametrize(("message", "version"), ALL_MESSAGES, ids=id_of)


def encoded(compiled: Codec[Message], value: Message) -> bytes:
    parts: list[bytes] = []
    parts.append(compiled.encode(value, bytearray(), parts))
    return b"".join(parts)


@given(data=st.data())
def test_compiled_equals_construct_and_comes_back(message, version, data):
    value = data.draw(messages(message, version))
    compiled, reference = codec(message, version), message.struct(version)

    wire = encoded(compiled, value)

    assert wire == reference.build(value)
    assert compiled.decode(memoryview(wire)) == (value, len(wire))
    assert reference.parse(wire) == value


@given(data=st.data())
def test_damaged_bytes_are_refused_or_read_as_construct_reads_them(message, version, data):
    value = data.draw(messages(message, version))
    compiled, reference = codec(message, version), message.struct(version)
    wire = encoded(compiled, value)

    for _ in range(6):
        damaged = bytearray(wire[: data.draw(st.integers(0, len(wire)))])
        for _ in range(data.draw(st.integers(0, 2)) if damaged else 0):
            damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))

        assert outcome_of_compiled(compiled, damaged) == outcome_of_construct(reference, damaged)


def outcome_of_compiled(compiled, wire):
    try:
        return compiled.decode(memoryview(wire))[0]
    except DecodeError as error:
        assert error.message == compiled.message.__name__
        assert error.version == compiled.version
        assert 0 <= error.position <= len(wire)
        return "refused"


def outcome_of_construct(reference, wire):
    try:
        return reference.parse(bytes(wire))
    except ConstructError:
        return "refused"


def test_every_prefix_is_refused(message, version):
    value = crowded(message, version, elements=2)
    compiled = codec(message, version)
    wire = encoded(compiled, value)

    for cut in range(len(wire)):
        with pytest.raises(DecodeError):
            compiled.decode(memoryview(wire)[:cut])


def test_false_lengths_and_counts_allocate_nothing(message, version):
    compiled = codec(message, version)
    wire = encoded(compiled, crowded(message, version, elements=2))
    lies = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x7f\xff", b"\xff\xff\xff\xfe"]
    damaged = [
        wire[:position] + lie + wire[position + len(lie) :]
        for position in range(len(wire))
        for lie in lies
    ]

    tracemalloc.start()
    for attempt in damaged:
        outcome_of_compiled(compiled, attempt)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 64 * len(wire) + 64 * 1024


def test_a_crowd_of_smallest_elements_takes_a_bounded_multiple_of_its_bytes(message, version):
    """The worst that a peer can do: arrays of structs in which everything is empty."""
    compiled = codec(message, version)
    wire = memoryview(encoded(compiled, crowded(message, version, elements=300, nested=0)))

    tracemalloc.start()
    decoded = compiled.decode(wire)
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert decoded
    assert allocated < 96 * len(wire) + 16 * 1024


def crowded(message, version, elements, nested=2):
    """A message whose arrays have so many elements, and all else is as small as can be."""
    values = {}
    for name, field in message.fields.items():
        if field.exists_in(version) and isinstance(field.kind, Array):
            element = field.kind.element
            inner = getattr(element, "message", None)
            one = element.zero if inner is None else crowded(inner, version, nested, nested)
            values[name] = [one] * elements
        elif field.exists_in(version) and field.default is None and not field.nullable_in(version):
            values[name] = field.kind.zero
    return message(**values)
