"""Fetched data, fetch buffers, delivery and positions, without a broker."""

from __future__ import annotations

from typing import Any

import pytest

from harness.consumer_stage import ABORT, COMMIT, a_marker, a_transaction
from harness.consumer_stage import batch_of as a_batch
from ottla.client.consumer.delivery import Delivery
from ottla.client.consumer.fetched_data import (
    FetchedData,
    FetchedSlice,
    TruncatedError,
    deserialize,
)
from ottla.client.consumer.positions import AssignedPartition, FetchState, Positions
from ottla.client.errors import ConsumerError, KafkaError
from ottla.client.types import EARLIEST, ConsumerRecord, TopicPartition
from ottla.protocol import batch as batches
from ottla.protocol.compression import Compression
from ottla.protocol.errors import ErrorCode

TP = TopicPartition("t", 3)


def all_of(data: FetchedData, max_records: int = 500) -> list[int]:
    offsets = []
    while (part := data.take(max_records)) is not None:
        offsets += [record.offset for record in part.records]
    return offsets


def a_record(offset: int) -> ConsumerRecord:
    return ConsumerRecord(*TP, offset, 1000, b"key", b"value", (), 7)


def test_records_carry_topic_partition_and_offset():
    part = FetchedData(TP, 0, a_batch(0, 1)).take(500)

    assert part == FetchedSlice(
        [
            ConsumerRecord("t", 3, 0, 1000, b"k0", b"v0", (), 7),
            ConsumerRecord("t", 3, 1, 1001, b"k1", b"v1", (), 7),
        ],
        2,
        7,
    )


@pytest.mark.parametrize("codec", Compression)
def test_compressed_batches_are_decoded(codec):
    assert all_of(FetchedData(TP, 0, a_batch(0, 1, 2, compression=codec))) == [0, 1, 2]


def test_records_before_the_fetch_offset_are_dropped_and_gaps_are_allowed():
    data = a_batch(0, 1) + a_batch(2, 5, 9, base_offset=2, last_offset=12) + a_batch(20)

    fetched = FetchedData(TP, 5, data)

    assert fetched.next_offset == 21
    assert all_of(fetched) == [5, 9, 20]


def test_an_empty_compacted_batch_advances_the_position():
    data = bytes(batches.build_batch([], base_offset=4, last_offset=8))

    assert FetchedData(TP, 4, data).take(500) == FetchedSlice([], 9, -1)


def test_small_batches_are_merged_and_large_ones_split():
    small = FetchedData(TP, 0, b"".join(a_batch(n) for n in range(1000)))
    large = FetchedData(TP, 0, a_batch(*range(2000), last_offset=2100))

    assert len(small.take(100).records) == 100
    parts = []
    while (part := large.take(500)) is not None:
        parts.append((len(part.records), part.next_offset))
    assert parts == [(500, 500), (500, 1000), (500, 1500), (500, 2101)]


def test_an_incomplete_last_batch_is_ignored():
    data = a_batch(0) + a_batch(1)

    fetched = FetchedData(TP, 0, data[:-1])

    assert (all_of(fetched), fetched.next_offset) == ([0], 1)
    with pytest.raises(TruncatedError, match="no complete batch"):
        FetchedData(TP, 0, data[:30])


def test_a_corrupt_batch_raises_after_the_records_before_it_and_again():
    data = bytearray(a_batch(0) + a_batch(1) + a_batch(2))
    data[-1] ^= 0xFF

    fetched = FetchedData(TP, 0, data)

    assert [record.offset for record in fetched.take(500).records] == [0, 1]
    for _ in range(2):
        with pytest.raises(KafkaError, match="t-3, batch at offset 2") as error:
            fetched.take(500)
        assert error.value.code is ErrorCode.CORRUPT_MESSAGE


def test_a_corrupt_batch_is_not_detected_without_crc_checks():
    data = bytearray(a_batch(0))
    data[-2] ^= 0x01

    (record,) = FetchedData(TP, 0, data, checks_crc=False).take(500).records
    assert record.value != b"v0"


def test_aborted_transactions_are_filtered():
    data = b"".join(
        [
            a_transaction(1, 0, 1),
            a_transaction(2, 2),
            a_batch(3),
            a_marker(1, 4, ABORT),
            a_transaction(1, 5),
            a_marker(2, 6, COMMIT),
            a_marker(1, 7, COMMIT),
        ]
    )

    assert all_of(FetchedData(TP, 0, data, [(1, 0)])) == [2, 3, 5]
    assert all_of(FetchedData(TP, 0, data)) == [0, 1, 2, 3, 5], (
        "control batches are never delivered"
    )
    assert FetchedData(TP, 0, data).next_offset == 8


def test_an_aborted_transaction_that_began_before_the_fetch_is_filtered_until_its_marker():
    data = a_transaction(1, 10) + a_marker(1, 11, ABORT) + a_transaction(1, 12)

    assert all_of(FetchedData(TP, 10, data, [(1, 3)])) == [12]


def test_deserialization_skips_nulls_and_stops_at_the_first_error():
    records = [a_record(0), a_record(1)._replace(value=None), a_record(2)._replace(value=b"\xff")]

    made, error = deserialize(records, None, bytes.decode)

    assert [record.value for record in made] == ["value", None]
    assert isinstance(error, UnicodeDecodeError)


class Delivering:
    """An assigned partition with fetched data, and its delivery."""

    def __init__(self, *batches_: bytes, value: Any = None) -> None:
        self.positions = Positions()
        (self.partition,) = self.positions.assign([TP])
        self.partition.start_at(0)
        self.drained = 0
        self.delivery = Delivery(self.positions, None, value, self._count)
        for data in batches_:
            self.fetch(data)

    def _count(self) -> None:
        self.drained += 1

    def fetch(self, data: bytes) -> None:
        self.partition.add(FetchedData(TP, self.partition.fetch_offset, data))
        self.delivery.enqueue(self.partition)

    def deliver_one_by_one(self) -> None:
        taken = self.delivery.take()
        assert taken is not None
        self.delivery.deliver_one_by_one(taken)

    def progress(self) -> tuple[int, int]:
        self.delivery.update_position()
        return self.partition.consumed, self.partition.position


def test_a_record_is_consumed_when_the_next_one_is_asked_for():
    stage = Delivering(a_batch(0, 1, 2, last_offset=5))
    stage.deliver_one_by_one()
    seen = [stage.progress()]

    for _ in range(3):
        next(stage.delivery.iterator)
        seen.append(stage.progress())
    stage.delivery.mark_consumed()
    seen.append(stage.progress())

    assert seen == [(0, 0), (0, 1), (1, 2), (2, 6), (6, 6)]


def test_undelivered_records_are_delivered_later():
    stage = Delivering(a_batch(0, 1, 2))
    stage.deliver_one_by_one()
    next(stage.delivery.iterator)

    stage.delivery.take_back([stage.partition])

    assert stage.progress() == (0, 1)
    assert list(stage.delivery.iterator) == []
    taken = stage.delivery.take()
    assert [record.offset for record in taken.records] == [1, 2]
    stage.delivery.mark_consumed()
    assert stage.partition.consumed == 1


def test_a_bad_record_stays_in_the_buffer_until_it_is_skipped():
    def understand(data: bytes) -> bytes:
        if data == b"v1":
            raise ValueError(data)
        return data

    stage = Delivering(a_batch(0, 1, 2), value=understand)

    first = stage.delivery.take()
    stage.delivery.deliver(first)
    bad = stage.delivery.take()
    again = stage.delivery.take()
    stage.delivery.skip(again)
    rest = stage.delivery.take()

    assert [record.offset for record in first.records] == [0]
    assert (bad.records[0].value, type(bad.error)) == (b"v1", ValueError)
    assert again.records == bad.records
    assert [record.offset for record in rest.records] == [2]


def test_records_are_not_deserialized_twice():
    stage = Delivering(a_batch(0, 1, 2), value=bytes.decode)
    stage.deliver_one_by_one()
    next(stage.delivery.iterator)
    stage.delivery.mark_consumed()

    taken = stage.delivery.limit(stage.delivery.take(), 1)

    assert [record.value for record in taken.records] == ["v1"]
    assert [record.value for record in stage.delivery.take().records] == ["v2"]


def test_partitions_take_turns():
    stage = Delivering(a_batch(0), a_batch(1))
    (other,) = stage.positions.assign([TopicPartition("u", 0)])
    other.start_at(0)
    other.add(FetchedData(other.tp, 0, a_batch(0)))
    stage.delivery.enqueue(other)

    topics = []
    while (taken := stage.delivery.take()) is not None:
        topics.append(taken.records[0].topic)

    assert topics == ["t", "u", "t"]
    assert stage.drained == 3
    assert stage.partition.buffer.size_bytes == 0


def test_paused_revoking_and_unassigned_partitions_deliver_nothing():
    for change in (
        lambda stage: setattr(stage.partition, "is_paused", True),
        lambda stage: setattr(stage.partition, "is_revoking", True),
        lambda stage: stage.positions.unassign([TP]),
    ):
        stage = Delivering(a_batch(0))
        change(stage)
        assert stage.delivery.take() is None


def test_partition_errors_are_raised_once():
    stage = Delivering()
    stage.partition.error = KeyError("x")
    stage.delivery.enqueue(stage.partition)

    with pytest.raises(KeyError):
        stage.delivery.take()
    assert stage.delivery.take() is None


def test_committed_records_are_consumed():
    positions = Positions()
    (partition,) = positions.assign([TP])
    partition.start_at(5)
    partition.deliver_up_to(8, leader_epoch=2)

    assert positions.offsets_to_commit(include_processing=False)[TP].offset == 5
    assert positions.offsets_to_commit(include_processing=True)[TP].offset == 8

    positions.mark_committed([(TP, 8)])

    assert not partition.is_processing
    assert positions.offsets_to_commit(include_processing=True) == {}


def test_records_being_processed_are_not_committed_after_an_early_revocation():
    positions = Positions()
    (partition,) = positions.assign([TP])
    partition.start_at(5)
    partition.deliver_up_to(8, leader_epoch=2)
    partition.revoked_while_processing = True

    assert positions.offsets_to_commit(include_processing=True)[TP].offset == 5


def test_seek_discards_the_fetch_buffer():
    partition = AssignedPartition(TP)
    partition.start_at(0)
    partition.add(FetchedData(TP, 0, a_batch(0, 1)))
    before = partition.fetch_epoch

    partition.start_at(10)

    assert (partition.fetch_offset, partition.buffer.size_bytes) == (10, 0)
    assert partition.fetch_epoch > before
    partition.await_position(FetchState.AWAIT_RESET, EARLIEST)
    assert not partition.is_fetchable


def test_the_error_names_a_partition_that_is_not_assigned():
    with pytest.raises(ConsumerError, match="t-3 is not assigned"):
        Positions()[TP]
