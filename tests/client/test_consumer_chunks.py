"""From fetched bytes to records, and how far the application is: without a broker."""

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
from ottla.client.consumer.positions import AssignedPartition, Phase, Positions
from ottla.client.errors import ConsumerError, KafkaError
from ottla.client.types import EARLIEST, ConsumerRecord, TopicPartition
from ottla.protocol import batch as batches
from ottla.protocol.compression import Compression
from ottla.protocol.errors import ErrorCode

PLACE = TopicPartition("t", 3)


def all_of(chunk: FetchedData, most: int = 500) -> list[int]:
    found = []
    while (part := chunk.take(most)) is not None:
        found += [record.offset for record in part.records]
    return found


def in_place(offset: int) -> ConsumerRecord:
    return ConsumerRecord(*PLACE, offset, 1000, b"key", b"value", (), 7)


def test_a_record_says_where_it_is():
    part = FetchedData(PLACE, 0, a_batch(0, 1)).take(500)

    assert part == FetchedSlice(
        [
            ConsumerRecord("t", 3, 0, 1000, b"k0", b"v0", (), 7),
            ConsumerRecord("t", 3, 1, 1001, b"k1", b"v1", (), 7),
        ],
        2,
    )


@pytest.mark.parametrize("codec", Compression)
def test_what_was_compressed_is_read(codec):
    assert all_of(FetchedData(PLACE, 0, a_batch(0, 1, 2, compression=codec))) == [0, 1, 2]


def test_records_before_the_offset_are_dropped_and_gaps_are_tolerated():
    data = a_batch(0, 1) + a_batch(2, 5, 9, base_offset=2, last_offset=12) + a_batch(20)

    chunk = FetchedData(PLACE, 5, data)

    assert chunk.next_offset == 21
    assert all_of(chunk) == [5, 9, 20]


def test_a_batch_of_which_compaction_left_nothing_moves_the_position():
    data = bytes(batches.build_batch([], base_offset=4, last_offset=8))

    assert FetchedData(PLACE, 4, data).take(500) == FetchedSlice([], 9)


def test_small_batches_are_put_together_and_large_ones_cut():
    small = FetchedData(PLACE, 0, b"".join(a_batch(n) for n in range(1000)))
    large = FetchedData(PLACE, 0, a_batch(*range(2000), last_offset=2100))

    assert len(small.take(100).records) == 100
    parts = []
    while (part := large.take(500)) is not None:
        parts.append((len(part.records), part.next_offset))
    assert parts == [(500, 500), (500, 1000), (500, 1500), (500, 2101)]


def test_a_batch_that_was_cut_off_is_left_out():
    data = a_batch(0) + a_batch(1)

    chunk = FetchedData(PLACE, 0, data[:-1])

    assert (all_of(chunk), chunk.next_offset) == ([0], 1)
    with pytest.raises(TruncatedError, match="no whole batch"):
        FetchedData(PLACE, 0, data[:30])


def test_damage_is_told_after_what_came_before_it_and_time_and_again():
    data = bytearray(a_batch(0) + a_batch(1) + a_batch(2))
    data[-1] ^= 0xFF

    chunk = FetchedData(PLACE, 0, data)

    assert [record.offset for record in chunk.take(500).records] == [0, 1]
    for _ in range(2):
        with pytest.raises(KafkaError, match="t-3, batch at offset 2") as error:
            chunk.take(500)
        assert error.value.code is ErrorCode.CORRUPT_MESSAGE


def test_damage_goes_unnoticed_where_nobody_checks():
    data = bytearray(a_batch(0))
    data[-2] ^= 0x01

    (record,) = FetchedData(PLACE, 0, data, checks_crc=False).take(500).records
    assert record.value != b"v0"


def test_transactions_that_were_aborted_are_left_out():
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

    assert all_of(FetchedData(PLACE, 0, data, [(1, 0)])) == [2, 3, 5]
    assert all_of(FetchedData(PLACE, 0, data)) == [0, 1, 2, 3, 5], "markers are for nobody"
    assert FetchedData(PLACE, 0, data).next_offset == 8


def test_a_transaction_that_began_before_the_fetch_is_left_out_until_its_marker():
    data = a_transaction(1, 10) + a_marker(1, 11, ABORT) + a_transaction(1, 12)

    assert all_of(FetchedData(PLACE, 10, data, [(1, 3)])) == [12]


def test_deserializers_see_what_is_there_and_stop_at_what_they_do_not_understand():
    records = [in_place(0), in_place(1)._replace(value=None), in_place(2)._replace(value=b"\xff")]

    made, error = deserialize(records, None, bytes.decode)

    assert [record.value for record in made] == ["value", None]
    assert isinstance(error, UnicodeDecodeError)


class Shelf:
    """A partition with records, and the way from it to the application."""

    def __init__(self, *batches_: bytes, value: Any = None) -> None:
        self.positions = Positions()
        (self.partition,) = self.positions.assign([PLACE])
        self.partition.start_at(0)
        self.drained = 0
        self.delivery = Delivery(self.positions, None, value, self._count)
        for data in batches_:
            self.add(data)

    def _count(self) -> None:
        self.drained += 1

    def add(self, data: bytes) -> None:
        self.partition.add(FetchedData(PLACE, self.partition.fetch_offset, data))
        self.delivery.offer(self.partition)

    def hand_out(self) -> None:
        taken = self.delivery.take()
        assert taken is not None
        self.delivery.hand_out(taken)

    def where(self) -> tuple[int, int]:
        self.delivery.settle()
        return self.partition.done, self.partition.position


def test_a_record_is_done_with_when_the_next_one_is_asked_for():
    shelf = Shelf(a_batch(0, 1, 2, last_offset=5))
    shelf.hand_out()
    seen = [shelf.where()]

    for _ in range(3):
        next(shelf.delivery.iterator)
        seen.append(shelf.where())
    shelf.delivery.put_down()
    seen.append(shelf.where())

    assert seen == [(0, 0), (0, 1), (1, 2), (2, 6), (6, 6)]


def test_what_was_not_given_is_given_later():
    shelf = Shelf(a_batch(0, 1, 2))
    shelf.hand_out()
    next(shelf.delivery.iterator)

    shelf.delivery.interrupt([shelf.partition])

    assert shelf.where() == (0, 1)
    assert list(shelf.delivery.iterator) == []
    taken = shelf.delivery.take()
    assert [record.offset for record in taken.records] == [1, 2]
    shelf.delivery.put_down()
    assert shelf.partition.done == 1


def test_a_record_that_is_not_understood_stays_until_it_is_dealt_with():
    def understand(data: bytes) -> bytes:
        if data == b"v1":
            raise ValueError(data)
        return data

    shelf = Shelf(a_batch(0, 1, 2), value=understand)

    first = shelf.delivery.take()
    shelf.delivery.give(first)
    bad = shelf.delivery.take()
    again = shelf.delivery.take()
    shelf.delivery.skip(again)
    rest = shelf.delivery.take()

    assert [record.offset for record in first.records] == [0]
    assert (bad.records[0].value, type(bad.bad)) == (b"v1", ValueError)
    assert again.records == bad.records
    assert [record.offset for record in rest.records] == [2]


def test_what_was_understood_is_not_deserialized_twice():
    shelf = Shelf(a_batch(0, 1, 2), value=bytes.decode)
    shelf.hand_out()
    next(shelf.delivery.iterator)
    shelf.delivery.put_down()

    taken = shelf.delivery.cut(shelf.delivery.take(), 1)

    assert [record.value for record in taken.records] == ["v1"]
    assert [record.value for record in shelf.delivery.take().records] == ["v2"]


def test_partitions_take_turns():
    shelf = Shelf(a_batch(0), a_batch(1))
    (other,) = shelf.positions.assign([TopicPartition("u", 0)])
    other.start_at(0)
    other.add(FetchedData(other.place, 0, a_batch(0)))
    shelf.delivery.offer(other)

    topics = []
    while (taken := shelf.delivery.take()) is not None:
        topics.append(taken.records[0].topic)

    assert topics == ["t", "u", "t"]
    assert shelf.drained == 3
    assert shelf.partition.buffered_bytes == 0


def test_nothing_is_given_of_what_is_paused_held_or_gone():
    for change in (
        lambda shelf: setattr(shelf.partition, "is_paused", True),
        lambda shelf: setattr(shelf.partition, "is_held", True),
        lambda shelf: shelf.positions.drop([PLACE]),
    ):
        shelf = Shelf(a_batch(0))
        change(shelf)
        assert shelf.delivery.take() is None


def test_errors_are_told_once():
    shelf = Shelf()
    shelf.partition.error = KeyError("x")
    shelf.delivery.offer(shelf.partition)

    with pytest.raises(KeyError):
        shelf.delivery.take()
    assert shelf.delivery.take() is None


def test_what_is_committed_is_done_with():
    positions = Positions()
    (partition,) = positions.assign([PLACE])
    partition.start_at(5)
    partition.give(8, leader_epoch=2)

    assert positions.to_commit(with_hands=False)[PLACE].offset == 5
    assert positions.to_commit(with_hands=True)[PLACE].offset == 8

    positions.took_commit([(PLACE, 8)])

    assert not partition.is_in_hand
    assert positions.to_commit(with_hands=True) == {}


def test_a_partition_that_could_not_wait_is_committed_without_what_is_in_hand():
    positions = Positions()
    (partition,) = positions.assign([PLACE])
    partition.start_at(5)
    partition.give(8, leader_epoch=2)
    partition.is_torn = True

    assert positions.to_commit(with_hands=True)[PLACE].offset == 5


def test_seeking_forgets_what_was_fetched():
    partition = AssignedPartition(PLACE)
    partition.start_at(0)
    partition.add(FetchedData(PLACE, 0, a_batch(0, 1)))
    before = partition.incarnation

    partition.start_at(10)

    assert (partition.fetch_offset, partition.buffered_bytes) == (10, 0)
    assert partition.incarnation > before
    partition.look_up(Phase.RESET, EARLIEST)
    assert not partition.is_fetchable


def test_a_partition_that_is_not_assigned_is_named():
    with pytest.raises(ConsumerError, match="t-3 is not assigned"):
        Positions()[PLACE]
