"""The records of `__transaction_state`, in Kafka's format, so that its tools can read them.

    key version 0      transactional id      value: the complete state of the id

A value of None is a tombstone: the id has expired. Values are written in version 1; version 0, of
Kafka before 4.0, is read too. The last producer epoch is not stored: see `TransactionMetadata`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ottla.protocol.errors import DecodeError
from ottla.protocol.schema import Array, Int8, Int16, Int32, Int64, Message, String, Versions, field

from .metadata_image import KeyValue, TopicPartition
from .records import decode_versioned, encode_versioned, version_of
from .transaction_states import STATES_BY_NUMBER, TransactionState

_KEY_VERSION = 0
_VALUE_VERSION = 1
#: No producer id, and no producer epoch.
NONE = -1


class TransactionLogKey(Message, versions=Versions(0, 0)):
    """The key of a transactional id."""

    transactional_id: str = field(String)


class PartitionsSchema(Message):
    """The partitions of one topic in a transaction."""

    topic: str = field(String)
    partition_ids: Sequence[int] = field(Array(Int32))


class TransactionLogValue(Message, versions=Versions(0, 1, 1)):
    """The value of a transactional id."""

    producer_id: int = field(Int64)
    producer_epoch: int = field(Int16)
    transaction_timeout_ms: int = field(Int32)
    transaction_status: int = field(Int8)
    transaction_partitions: Sequence[PartitionsSchema] | None = field(
        Array(PartitionsSchema), nullable=0
    )
    transaction_last_update_timestamp_ms: int = field(Int64)
    transaction_start_timestamp_ms: int = field(Int64)
    previous_producer_id: int = field(Int64, since=1, tag=0, default=NONE, ignorable=True)
    next_producer_id: int = field(Int64, since=1, tag=1, default=NONE, ignorable=True)
    client_transaction_version: int = field(Int16, since=1, tag=2, default=0, ignorable=True)
    next_producer_epoch: int = field(Int16, since=1, tag=3, default=NONE, ignorable=True)


class TransactionMetadata(NamedTuple):
    """The state of a transactional id."""

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition]
    last_update_ms: int
    #: When the latest transaction began; -1 before the first one.
    start_ms: int = NONE
    #: The epoch before the latest bump, whose holder may ask again for the current one. Not stored:
    #: after a load it is -1, and that holder is fenced.
    last_producer_epoch: int = NONE
    #: The producer id before the latest bump.
    previous_producer_id: int = NONE
    #: The producer id from Complete* on, because the epochs of the current one are exhausted.
    next_producer_id: int = NONE
    #: 2 if the producer's latest request was of transaction.version 2.
    transaction_version: int = 0


class TransactionRecord(NamedTuple):
    """The state of a transactional id; None for a tombstone."""

    transactional_id: str
    metadata: TransactionMetadata | None


def encode_transaction(record: TransactionRecord) -> KeyValue:
    """Encode a record for the log."""
    key = encode_versioned(
        TransactionLogKey(transactional_id=record.transactional_id), _KEY_VERSION
    )
    metadata = record.metadata
    if metadata is None:
        return key, None
    by_topic: dict[str, list[int]] = {}
    for topic, index in sorted(metadata.partitions):
        by_topic.setdefault(topic, []).append(index)
    partitions = [
        PartitionsSchema(topic=topic, partition_ids=indexes) for topic, indexes in by_topic.items()
    ]
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=metadata.state.number,
        transaction_partitions=(None if metadata.state is TransactionState.EMPTY else partitions),
        transaction_last_update_timestamp_ms=metadata.last_update_ms,
        transaction_start_timestamp_ms=metadata.start_ms,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        client_transaction_version=metadata.transaction_version,
    )
    return key, encode_versioned(value, _VALUE_VERSION)


def decode_transaction(key: bytes, value: bytes | None) -> TransactionRecord | None:
    """Decode a record of the log; None for a key of an unknown version. Raises DecodeError."""
    if version_of(key) != _KEY_VERSION:
        return None
    transactional_id = decode_versioned(TransactionLogKey, key).transactional_id
    if value is None:
        return TransactionRecord(transactional_id, None)
    decoded = decode_versioned(TransactionLogValue, value)
    state = STATES_BY_NUMBER.get(decoded.transaction_status)
    if state is None:
        raise DecodeError(
            f"unknown transaction status {decoded.transaction_status}", "TransactionLogValue"
        )
    return TransactionRecord(
        transactional_id,
        TransactionMetadata(
            decoded.producer_id,
            decoded.producer_epoch,
            decoded.transaction_timeout_ms,
            state,
            frozenset(
                TopicPartition(topic.topic, index)
                for topic in decoded.transaction_partitions or ()
                for index in topic.partition_ids
            ),
            decoded.transaction_last_update_timestamp_ms,
            decoded.transaction_start_timestamp_ms,
            NONE,
            decoded.previous_producer_id,
            decoded.next_producer_id,
            decoded.client_transaction_version,
        ),
    )
