"""Records of `__transaction_state`: bytes that Apache Kafka 4.3 wrote, and damaged ones."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coord.metadata_image import TopicPartition
from ottla.coord.transaction_records import (
    TransactionMetadata,
    TransactionRecord,
    decode_transaction,
    encode_transaction,
)
from ottla.coord.transaction_states import TransactionState
from ottla.protocol.errors import DecodeError

State = TransactionState

KEY = "0000 0003 766563"
OFFSETS = frozenset({TopicPartition("__consumer_offsets", 1)})
TOPIC = "5f5f636f6e73756d65725f6f666673657473"
START = 0x1A1ECD8D1CA
#: The life of a transactional id in transaction.version 2, with group offsets only.
LIFE = [
    (
        "0001 0000000000000008 0000 0000ea60 00 00 000001a1ecd8d193 ffffffffffffffff"
        " 01 00 08 0000000000000008",
        TransactionMetadata(
            8, 0, 60_000, State.EMPTY, frozenset(), 0x1A1ECD8D193, previous_producer_id=8
        ),
    ),
    (
        f"0001 0000000000000008 0000 0000ea60 01 02 13 {TOPIC} 02 00000001 00"
        " 000001a1ecd8d1ca 000001a1ecd8d1ca 02 00 08 0000000000000008 02 02 0002",
        TransactionMetadata(8, 0, 60_000, State.ONGOING, OFFSETS, START, START, -1, 8, -1, 2),
    ),
    (
        f"0001 0000000000000008 0001 0000ea60 02 02 13 {TOPIC} 02 00000001 00"
        " 000001a1ecd8d1d3 000001a1ecd8d1ca 02 00 08 0000000000000008 02 02 0002",
        TransactionMetadata(
            8, 1, 60_000, State.PREPARE_COMMIT, OFFSETS, 0x1A1ECD8D1D3, START, -1, 8, -1, 2
        ),
    ),
    (
        "0001 0000000000000008 0001 0000ea60 04 01 000001a1ecd8d1d5 000001a1ecd8d1ca"
        " 02 00 08 0000000000000008 02 02 0002",
        TransactionMetadata(
            8, 1, 60_000, State.COMPLETE_COMMIT, frozenset(), 0x1A1ECD8D1D5, START, -1, 8, -1, 2
        ),
    ),
]


@pytest.mark.parametrize(("value", "metadata"), LIFE, ids=[m.state.label for _, m in LIFE])
def test_the_bytes_are_those_of_kafka(value, metadata):
    record = TransactionRecord("vec", metadata)
    encoded = bytes.fromhex(KEY), bytes.fromhex(value)

    assert encode_transaction(record) == encoded
    assert decode_transaction(*encoded) == record


def test_a_value_of_version_0_is_read():
    value = bytes.fromhex(
        "0000 0000000000000008 0003 0000ea60 01 00000001 0001 74 00000002 00000000 00000005"
        " 000001a1ecd8d1ca 000001a1ecd8d1ca"
    )

    record = decode_transaction(bytes.fromhex(KEY), value)

    partitions = frozenset({TopicPartition("t", 0), TopicPartition("t", 5)})
    assert record == TransactionRecord(
        "vec", TransactionMetadata(8, 3, 60_000, State.ONGOING, partitions, START, START)
    )


def test_a_tombstone():
    record = TransactionRecord("vec", None)

    assert encode_transaction(record) == (bytes.fromhex(KEY), None)
    assert decode_transaction(bytes.fromhex(KEY), None) == record


def test_an_unknown_key_version_is_skipped():
    assert decode_transaction(bytes.fromhex("0007 0003 766563"), b"anything") is None


@pytest.mark.parametrize("value", ["", "0009", "0001 00", LIFE[0][0].replace("ea60 00", "ea60 0f")])
def test_a_damaged_value_raises(value):
    with pytest.raises(DecodeError):
        decode_transaction(bytes.fromhex(KEY), bytes.fromhex(value))


@given(
    st.builds(
        TransactionMetadata,
        st.integers(0, 2**62),
        st.integers(0, 32_767),
        st.integers(1, 900_000),
        st.sampled_from([state for state in State if state is not State.EMPTY]),
        st.frozensets(st.builds(TopicPartition, st.sampled_from(["a", "b"]), st.integers(0, 99))),
        st.integers(0, 2**50),
        st.integers(-1, 2**50),
        st.just(-1),
        st.integers(-1, 2**62),
        st.integers(-1, 2**62),
        st.sampled_from([0, 2]),
    )
)
def test_every_record_is_decoded_as_it_was_encoded(metadata):
    record = TransactionRecord("some id", metadata)

    assert decode_transaction(*encode_transaction(record)) == record
