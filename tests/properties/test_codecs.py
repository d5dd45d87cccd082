"""Every message and version: both codecs equal the constructs, and reject invalid bytes.

The compiled codec leaves rare messages to the generated one; each is tested by itself, too.
"""

import tracemalloc
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.strategies import ALL_MESSAGES, id_of, messages
from ottla.protocol import compiled as compiled_module
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from ottla.protocol.compiler import Codec, codec
from ottla.protocol.errors import DecodeError
from ottla.protocol.header import ResponseHeader
from ottla.protocol.primitives import ConstructError
from ottla.protocol.schema import Array, FrozenArray, Message, Struct

EVERY = pytest.mark.parametrize(("message", "version"), ALL_MESSAGES, ids=id_of)


def encoded(compiled: Codec[Message], value: Message) -> bytes:
    parts: list[bytes] = []
    parts.append(compiled.encode(value, bytearray(), parts))
    return b"".join(parts)


@contextmanager
def pure_python():
    """Use the generated codec, as without the compiled module."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compiled_module, "fast", None)
        yield


def is_same(value, other):
    """Whether two decoded values are equal, and of the same types."""
    if type(value) is not type(other):
        return False
    if isinstance(value, Message):
        names = [*value.fields, "unknown_tagged_fields"]
        return all(is_same(getattr(value, name), getattr(other, name)) for name in names)
    if isinstance(value, list | tuple):
        return len(value) == len(other) and all(map(is_same, value, other))
    if isinstance(value, float):
        return repr(value) == repr(other)  # NaN is not equal to itself.
    return value == other


@EVERY
@given(data=st.data())
def test_codecs_equal_the_construct_and_round_trip(message, version, data):
    value = data.draw(messages(message, version))
    compiled, reference = codec(message, version), message.struct(version)

    wire = encoded(compiled, value)

    assert wire == reference.build(value)
    decoded = compiled.decode(memoryview(wire))
    assert decoded == (value, len(wire))
    assert reference.parse(wire) == value
    frozen = with_frozen_arrays(value)
    assert encoded(compiled, frozen) == encoded(compiled, frozen) == wire
    with pure_python():
        assert encoded(compiled, value) == wire
        assert is_same(compiled.decode(memoryview(wire)), decoded)


def with_frozen_arrays(value: Message) -> Message:
    """A copy of a message whose arrays of messages are frozen."""
    fields = {}
    for name in value.fields:
        content = getattr(value, name)
        if isinstance(content, list) and content and isinstance(content[0], Message):
            content = FrozenArray(map(with_frozen_arrays, content))
        elif isinstance(content, Message):
            content = with_frozen_arrays(content)
        fields[name] = content
    return type(value)(**fields, unknown_tagged_fields=value.unknown_tagged_fields)


@EVERY
@given(data=st.data())
def test_corrupt_bytes_are_rejected_or_decoded_as_the_construct_does(message, version, data):
    value = data.draw(messages(message, version))
    compiled, reference = codec(message, version), message.struct(version)
    wire = encoded(compiled, value)

    for _ in range(6):
        corrupt = bytearray(wire[: data.draw(st.integers(0, len(wire)))])
        for _ in range(data.draw(st.integers(0, 2)) if corrupt else 0):
            corrupt[data.draw(st.integers(0, len(corrupt) - 1))] = data.draw(st.integers(0, 255))

        outcome = outcome_of_compiled(compiled, corrupt)
        assert outcome == outcome_of_construct(reference, corrupt)
        with pure_python():
            assert is_same(outcome_of_compiled(compiled, corrupt), outcome)


def outcome_of_compiled(compiled, wire):
    try:
        return compiled.decode(memoryview(wire))[0]
    except DecodeError as error:
        assert error.message == compiled.message.__name__
        assert error.version == compiled.version
        assert 0 <= error.position <= len(wire)
        return "rejected"


def outcome_of_construct(reference, wire):
    try:
        return reference.parse(bytes(wire))
    except ConstructError:
        return "rejected"


@EVERY
def test_every_truncated_message_is_rejected(message, version):
    value = crowded(message, version, elements=2)
    compiled = codec(message, version)
    wire = encoded(compiled, value)

    for cut in range(len(wire)):
        with pytest.raises(DecodeError):
            compiled.decode(memoryview(wire)[:cut])


@EVERY
@pytest.mark.exhaustive
def test_false_lengths_and_counts_allocate_nothing(message, version):
    compiled = codec(message, version)
    wire = encoded(compiled, crowded(message, version, elements=2))
    # Generates the Python code, which reports errors.
    outcome_of_compiled(compiled, wire[:-1])
    false_lengths = [b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff\x07", b"\x7f\xff", b"\xff\xff\xff\xfe"]
    corrupt = [
        wire[:position] + length + wire[position + len(length) :]
        for position in range(len(wire))
        for length in false_lengths
    ]

    limit = 64 * len(wire) + 64 * 1024
    # Other threads of the test process allocate, too: what the codec does, it does again.
    assert any(peak_bytes_of_decoding(compiled, corrupt) < limit for _ in range(2))


def peak_bytes_of_decoding(compiled, wires):
    tracemalloc.start()
    for wire in wires:
        outcome_of_compiled(compiled, wire)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


NEWEST = pytest.mark.parametrize(
    ("message", "version"),
    [
        (message, version)
        for message, version in ALL_MESSAGES
        if version == message.versions.last
        and any(
            isinstance(field.type, Array) and isinstance(field.type.element, Struct)
            for field in message.fields.values()
        )
    ],
    ids=id_of,
)


@NEWEST
def test_memory_for_arrays_of_empty_elements_is_bounded(message, version):
    """The worst case: arrays of structs whose fields are all empty."""
    compiled = codec(message, version)
    arrays = sum(isinstance(field.type, Array) for field in message.fields.values())
    wire = memoryview(encoded(compiled, crowded(message, version, elements=500, nested=0)))

    tracemalloc.start()
    compiled.decode(wire)
    allocated, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    # A third of a kilobyte per element is 22 MiB for FREE_ELEMENTS.
    assert allocated < 340 * 500 * arrays + 16 * 1024


@NEWEST
def test_more_elements_than_the_size_of_the_message_allows_are_rejected(message, version):
    compiled = codec(message, version)
    few, more = (len(encoded(compiled, crowded(message, version, n, nested=0))) for n in (10, 60))
    if more == few or (more - few) / 50 > 8:
        return  # No array in this version, or elements of this size are within the limit.

    wire = encoded(compiled, crowded(message, version, elements=150_000, nested=0))

    with pytest.raises(DecodeError, match="more elements are too many in"):
        compiled.decode(memoryview(wire))


def test_the_element_limit_is_for_the_whole_message():
    """Tags and elements of nested arrays count, too."""
    tags = bytes.fromhex("00000000 80f104") + bytes.fromhex("64 00") * 80_000

    with pytest.raises(DecodeError, match="are too many"):
        codec(ResponseHeader, 1).decode(memoryview(tags))

    topic = ListOffsetsTopic(partitions=[ListOffsetsPartition()] * 300)
    request = ListOffsetsRequest(topics=[topic] * 300)
    assert decoded(request, 6) == request  # 90,300 elements, within the limit

    group = OffsetFetchRequestGroup(topics=[OffsetFetchRequestTopics()] * 300)
    request = OffsetFetchRequest(groups=[group] * 300)
    with pytest.raises(DecodeError, match=r"groups\[2\d\d\]\.topics .* are too many"):
        decoded(request, 8)


def decoded(value, version):
    compiled = codec(type(value), version)
    return compiled.decode(memoryview(encoded(compiled, value)))[0]


def crowded(message, version, elements, nested=2):
    """A message whose arrays have `elements` elements, with all other fields empty."""
    values = {}
    for name, field in message.fields.items():
        if field.exists_in(version) and isinstance(field.type, Array):
            element = field.type.element
            inner = getattr(element, "message", None)
            value = element.zero if inner is None else crowded(inner, version, nested, nested)
            values[name] = [value] * elements
        elif field.exists_in(version) and field.default is None and not field.nullable_in(version):
            values[name] = field.type.zero
    return message(**values)
