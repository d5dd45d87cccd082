"""The records of `__consumer_offsets` have Kafka's format, byte for byte, and survive a round trip.

The hex was written by Kafka 4.3's own classes (GroupCoordinatorRecordSerde).
"""

from uuid import UUID

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ottla.coord.config import ClassicGroupConfig
from ottla.coord.deadlines import Deadlines
from ottla.coord.group import Group
from ottla.coord.member import Member
from ottla.coord.metadata_image import TopicPartition
from ottla.coord.records import (
    CommittedOffset,
    GroupMetadataKey,
    GroupMetadataValue,
    GroupRecord,
    OffsetCommitKey,
    OffsetRecord,
    decode_group,
    decode_key,
    decode_offset,
    decode_record,
    encode_record,
)
from ottla.coord.states import GroupState
from ottla.protocol.errors import DecodeError

TIME_MS = 1_700_000_000_123

OFFSET_KEY = "0001 0007 62696c6c696e67 0006 6f7264657273 00000007"
GROUP_KEY = "0002 0007 62696c6c696e67"
UNKNOWN_KEY = "0003 0007 62696c6c696e67"

OFFSET_VALUES = {
    0: "0000 000000000000002a          0004 6ec3a965 0000018bcfe5687b",
    1: "0001 000000000000002a          0004 6ec3a965 0000018bcfe5687b 0000018bcfe58f0f",
    2: "0002 000000000000002a          0004 6ec3a965 0000018bcfe5687b",
    3: "0003 000000000000002a 00000003 0004 6ec3a965 0000018bcfe5687b",
}

ANNA = "0006 616e6e612d31 {instance} 0004 616e6e61 0009 2f31302e302e302e31"
BERT = "0006 626572742d32 {instance} 0004 62657274 0009 2f31302e302e302e32"
ANNAS_BYTES = "00000003 000102 00000002 0908"
BERTS_BYTES = "00000000 00000000"
#: Protocol type, generation, protocol, leader.
GROUP = "0008 636f6e73756d6572 00000005 0005 72616e6765 0006 616e6e612d31"

GROUP_VALUES = {
    0: f"0000 {GROUP} 00000002"
    f" {ANNA.format(instance='')} 00002710 {ANNAS_BYTES}"
    f" {BERT.format(instance='')} 0000afc8 {BERTS_BYTES}",
    1: f"0001 {GROUP} 00000002"
    f" {ANNA.format(instance='')} 0000ea60 00002710 {ANNAS_BYTES}"
    f" {BERT.format(instance='')} 000493e0 0000afc8 {BERTS_BYTES}",
    2: f"0002 {GROUP} 0000018bcfe5687b 00000002"
    f" {ANNA.format(instance='')} 0000ea60 00002710 {ANNAS_BYTES}"
    f" {BERT.format(instance='')} 000493e0 0000afc8 {BERTS_BYTES}",
    3: f"0003 {GROUP} 0000018bcfe5687b 00000002"
    f" {ANNA.format(instance='ffff')} 0000ea60 00002710 {ANNAS_BYTES}"
    f" {BERT.format(instance='0001 62')} 000493e0 0000afc8 {BERTS_BYTES}",
}
EMPTY_GROUP_VALUE = "0003 0008 636f6e73756d6572 00000006 ffff ffff 0000018bcfe5687b 00000000"

#: Versions that are not supported: one that Kafka does not have yet, and a flexible one.
NEWER_OFFSET_VALUE = "0005 000000000000002a 00000003 05 6ec3a965 0000018bcfe5687b 00"
NEWER_GROUP_VALUE = "0004 09 636f6e73756d6572 00000005 00 00 0000018bcfe5687b 01 00"

COMMITTED = CommittedOffset(42, 3, "née", TIME_MS)


def a_member(name: str, **changes) -> Member:
    traits = {
        "id": name,
        "instance_id": None,
        "client_id": name.partition("-")[0],
        "client_host": "/10.0.0.1",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocols": (("range", b"\0\1\2"), ("sticky", b"not chosen")),
        "assignment": b"\x09\x08",
    }
    return Member(**traits | changes)


BERT_2 = {
    "instance_id": "b",
    "client_host": "/10.0.0.2",
    "session_timeout_ms": 45_000,
    "rebalance_timeout_ms": 300_000,
    "protocols": (("range", b""),),
    "assignment": b"",
}


def a_group(
    *members: Member, generation: int = 5, protocol: str | None = "range", time_ms: int = TIME_MS
) -> GroupRecord:
    metadata = GroupMetadataValue(
        protocol_type="consumer",
        generation=generation,
        protocol=protocol,
        leader=members[0].id if members else None,
        current_state_timestamp=time_ms,
        members=[member.to_record(protocol, member.assignment) for member in members],
    )
    return GroupRecord("billing", metadata)


def members_of(value: GroupMetadataValue) -> list[Member]:
    return [Member.from_record(member, value.protocol) for member in value.members]


def test_a_commit_is_encoded_as_by_kafka():
    key, value = encode_record(OffsetRecord("billing", TopicPartition("orders", 7), COMMITTED))

    assert key == bytes.fromhex(OFFSET_KEY)
    assert value == bytes.fromhex(OFFSET_VALUES[3])


def test_a_group_is_encoded_as_by_kafka():
    key, value = encode_record(a_group(a_member("anna-1"), a_member("bert-2", **BERT_2)))

    assert key == bytes.fromhex(GROUP_KEY)
    assert value == bytes.fromhex(GROUP_VALUES[3])


def test_an_empty_group_is_encoded_as_by_kafka():
    _key, value = encode_record(a_group(generation=6, protocol=None))

    assert value == bytes.fromhex(EMPTY_GROUP_VALUE)


def test_a_tombstone_has_a_key_and_no_value():
    offset = OffsetRecord("billing", TopicPartition("orders", 7), None)
    group = GroupRecord("billing", None)

    assert encode_record(offset) == (bytes.fromhex(OFFSET_KEY), None)
    assert encode_record(group) == (bytes.fromhex(GROUP_KEY), None)
    assert decode_record(*encode_record(offset)) == offset
    assert decode_record(*encode_record(group)) == group


def test_keys_are_decoded_by_their_version():
    assert decode_key(bytes.fromhex(OFFSET_KEY)) == OffsetCommitKey(
        group="billing", topic="orders", partition=7
    )
    assert decode_key(bytes.fromhex(GROUP_KEY)) == GroupMetadataKey(group="billing")
    assert decode_key(bytes.fromhex(UNKNOWN_KEY)) is None


@pytest.mark.parametrize("version", OFFSET_VALUES)
def test_commits_of_all_older_versions_are_decoded(version):
    committed = decode_offset(bytes.fromhex(OFFSET_VALUES[version]))

    assert committed == COMMITTED._replace(leader_epoch=3 if version == 3 else -1)


def test_a_commit_with_a_topic_id_is_encoded_as_by_kafka():
    committed = COMMITTED._replace(topic_id=UUID(int=7))

    _key, value = encode_record(OffsetRecord("g", TopicPartition("t", 0), committed))

    header = "0004 000000000000002a 00000003 05 6ec3a965 0000018bcfe5687b"
    assert value == bytes.fromhex(f"{header} 01 00 10 {UUID(int=7).hex}")
    assert decode_offset(value) == committed


@pytest.mark.parametrize("version", GROUP_VALUES)
def test_groups_of_all_older_versions_are_decoded(version):
    value = decode_group(bytes.fromhex(GROUP_VALUES[version]))

    assert (value.protocol_type, value.generation) == ("consumer", 5)
    assert (value.protocol, value.leader) == ("range", "anna-1")
    assert value.current_state_timestamp == (TIME_MS if version >= 2 else -1)
    anna, bert = members_of(value)
    assert (anna.id, anna.instance_id) == ("anna-1", None)
    assert (anna.client_id, anna.client_host) == ("anna", "/10.0.0.1")
    assert (anna.session_timeout_ms, bert.session_timeout_ms) == (10_000, 45_000)
    assert (anna.protocols, anna.assignment) == ((("range", b"\0\1\2"),), b"\x09\x08")
    assert bert.instance_id == ("b" if version == 3 else None)
    if version >= 1:
        assert (anna.rebalance_timeout_ms, bert.rebalance_timeout_ms) == (60_000, 300_000)


def test_in_version_0_the_session_timeout_is_also_the_rebalance_timeout():
    anna, bert = members_of(decode_group(bytes.fromhex(GROUP_VALUES[0])))

    assert (anna.rebalance_timeout_ms, bert.rebalance_timeout_ms) == (10_000, 45_000)


def test_a_member_is_restored_with_the_chosen_protocol_only():
    record = a_group(a_member("anna-1"), a_member("bert-2", **BERT_2))
    group = Group("billing", ClassicGroupConfig(), Deadlines())

    group.restore(decode_record(*encode_record(record)).metadata)

    assert (group.state, group.generation) == (GroupState.STABLE, 5)
    assert (group.leader, group.protocol) == ("anna-1", "range")
    assert group.members["anna-1"].protocols == (("range", b"\0\1\2"),)
    assert encode_record(a_group(*group.members.values())) == encode_record(record)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
INT32, INT64 = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
TIMEOUT = st.integers(0, 2**31 - 1)
MEMBERS = st.builds(
    Member,
    id=TEXT,
    instance_id=st.none() | TEXT,
    client_id=TEXT,
    client_host=TEXT,
    session_timeout_ms=TIMEOUT,
    rebalance_timeout_ms=TIMEOUT,
    protocols=st.tuples(st.tuples(st.just("range"), st.binary(max_size=12))),
    assignment=st.binary(max_size=12),
)


@given(TEXT, TEXT, INT32, st.builds(CommittedOffset, INT64, INT32, TEXT, INT64))
def test_any_commit_survives_a_round_trip(group, topic, partition, committed):
    record = OffsetRecord(group, TopicPartition(topic, partition), committed)

    assert decode_record(*encode_record(record)) == record


@given(st.lists(MEMBERS, max_size=4, unique_by=lambda member: member.id), INT32, INT64)
def test_any_group_survives_a_round_trip(members, generation, time_ms):
    key, value = encode_record(a_group(*members, generation=generation, time_ms=time_ms))

    decoded = decode_group(value)

    assert (decoded.generation, decoded.current_state_timestamp) == (generation, time_ms)
    again = a_group(*members_of(decoded), generation=generation, time_ms=time_ms)
    assert encode_record(again) == (key, value)


DECODERS = [decode_key, decode_offset, decode_group]
VALID_BYTES = [
    bytes.fromhex(text)
    for text in (
        OFFSET_KEY,
        GROUP_KEY,
        EMPTY_GROUP_VALUE,
        *OFFSET_VALUES.values(),
        *GROUP_VALUES.values(),
    )
]


@pytest.mark.parametrize("decode", DECODERS)
@given(data=st.binary(max_size=40))
@example(data=b"")
@example(data=b"\0")
@example(data=b"\0\1")
@example(data=b"\xff\xff")
def test_any_bytes_are_decoded_or_refused(decode, data):
    decode_or_refuse(decode, data)


@pytest.mark.parametrize("decode", DECODERS)
@pytest.mark.parametrize("valid", VALID_BYTES, ids=range(len(VALID_BYTES)))
def test_valid_bytes_that_are_truncated_or_changed_are_decoded_or_refused(decode, valid):
    for position in range(len(valid)):
        decode_or_refuse(decode, valid[:position])
        for byte in (0x00, 0x7F, 0x80, 0xFF):
            decode_or_refuse(decode, valid[:position] + bytes([byte]) + valid[position + 1 :])


def decode_or_refuse(decode, data: bytes) -> None:
    try:
        decoded = decode(data)
    except DecodeError:
        return
    if decode is decode_group:
        members_of(decoded)


@pytest.mark.parametrize(
    ("decode", "data"),
    [
        (decode_key, ""),
        (decode_key, "00"),
        (decode_key, "0001"),
        (decode_key, "0002 0007 6269"),
        (decode_offset, ""),
        (decode_offset, NEWER_OFFSET_VALUE),
        (decode_group, "ffff"),
        (decode_group, NEWER_GROUP_VALUE),
    ],
)
def test_invalid_bytes_are_refused(decode, data):
    with pytest.raises(DecodeError):
        decode(bytes.fromhex(data))
