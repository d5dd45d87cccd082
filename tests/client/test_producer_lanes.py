"""The batches of one partition: which may be sent, and with which numbers when some have failed."""

import pytest

from ottla.client.errors import ConnectionLostError, DeadlineError, ErrorCode, error_of
from ottla.client.producer.batch import Batch, ProducerIdAndEpoch
from ottla.client.producer.partition_queue import Lane

FIRST, SECOND = ProducerIdAndEpoch(1, 0), ProducerIdAndEpoch(2, 0)
NOT_LEADER = error_of(ErrorCode.NOT_LEADER_OR_FOLLOWER)
INVALID = error_of(ErrorCode.INVALID_RECORD)
OUT_OF_ORDER = error_of(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
LOST = ConnectionLostError("gone")
LATE = DeadlineError("late")


def a_lane(batches, *, is_idempotent=True, is_proven=True):
    """A lane with batches of ten records that wait, all under the first producer id."""
    lane = Lane("orders", 0, is_idempotent=is_idempotent)
    if is_idempotent:
        lane.identify(FIRST)
    if is_proven:
        add(lane)
        lane.succeed(lane.take(), 0, -1)
    return lane, [add(lane) for _ in range(batches)]


def add(lane):
    batch = Batch(lane, 0.0, lambda _batch: None)
    for _ in range(10):
        batch.add(0, None, b"x", (), 40)
    batch.is_due = True
    lane.waiting.append(batch)
    return batch


def take_all(lane):
    taken = []
    while lane.can_send:
        taken.append(lane.take())
    return taken


def numbers(batches):
    return [(batch.identity, batch.sequence) for batch in batches]


def test_five_are_under_way_and_numbered_one_behind_the_other():
    lane, batches = a_lane(7)

    taken = take_all(lane)

    assert taken == batches[:5]
    assert [batch.sequence for batch in taken] == [10, 20, 30, 40, 50]


@pytest.mark.parametrize("settings", [{"is_idempotent": False}, {"is_proven": False}], ids=str)
def test_one_is_under_way_where_order_could_not_be_kept_otherwise(settings):
    lane, batches = a_lane(3, **settings)

    assert take_all(lane) == batches[:1]
    lane.succeed(batches[0], 0, -1)
    assert len(take_all(lane)) == (1 if "is_idempotent" in settings else 2)


def test_nothing_is_sent_until_all_that_is_under_way_is_answered():
    lane, (a, b, c, d) = a_lane(4)
    for _ in range(3):
        lane.take()

    lane.refuse(a, NOT_LEADER)
    assert not lane.can_send
    lane.refuse(b, OUT_OF_ORDER)
    assert not lane.can_send
    lane.refuse(c, OUT_OF_ORDER)
    lane.recover()

    assert lane.must_pause
    assert list(lane.waiting) == [a, b, c, d]
    assert numbers([a, b, c, d]) == [(FIRST, 10), (FIRST, 20), (FIRST, 30), (None, -1)]


def test_what_is_sent_again_goes_alone():
    lane, (a, b, c, d) = a_lane(4)
    for batch in (lane.take(), lane.take()):
        lane.refuse(batch, LOST)
    lane.recover()

    assert take_all(lane) == [a]
    lane.succeed(a, 0, -1)
    assert take_all(lane) == [b]
    lane.succeed(b, 0, -1)
    assert take_all(lane) == [c, d]


def test_numbers_go_on_where_a_batch_was_refused():
    lane, (a, b, c) = a_lane(3)
    take_all(lane)
    lane.succeed(a, 0, -1)
    lane.refuse(b, INVALID)
    lane.refuse(c, OUT_OF_ORDER)

    assert lane.recover() is None

    assert b.is_settled
    assert lane.take() is c
    assert numbers([c]) == [(FIRST, 20)]


def test_what_is_before_a_gap_keeps_its_numbers():
    lane, (a, b, c) = a_lane(3)
    take_all(lane)
    lane.refuse(a, LOST)
    lane.refuse(b, INVALID)
    lane.refuse(c, OUT_OF_ORDER)
    lane.recover()

    assert list(lane.waiting) == [a, c]
    assert numbers([a]) == [(FIRST, 10)]
    lane.take()
    lane.succeed(a, 0, -1)
    lane.take()
    assert numbers([c]) == [(FIRST, 20)]


def test_what_may_have_been_written_behind_a_gap_fails_and_the_rest_gets_a_new_id():
    lane, (a, b, c, d) = a_lane(4)
    for _ in range(3):
        lane.take()
    lane.refuse(a, INVALID)
    lane.refuse(b, LOST)
    lane.refuse(c, OUT_OF_ORDER)

    assert lane.recover() is INVALID

    assert b.is_settled
    assert list(lane.waiting) == [c, d]
    assert lane.needs_identity
    assert not lane.can_send
    assert not lane.identify(FIRST), "it was given up"
    assert lane.identify(SECOND)
    lane.take()
    assert numbers([c]) == [(SECOND, 0)]
    assert not lane.can_send, "the new id has to be known first"


def test_old_numbers_go_before_new_ones_and_never_together():
    lane, (a, b, c) = a_lane(3)
    take_all(lane)
    lane.refuse(a, LOST)
    lane.refuse(b, error_of(ErrorCode.UNKNOWN_SERVER_ERROR))
    lane.refuse(c, OUT_OF_ORDER)
    lane.recover()
    lane.identify(SECOND)

    assert take_all(lane) == [a]
    lane.succeed(a, 0, -1)
    assert take_all(lane) == [c]
    assert numbers([a, c]) == [(FIRST, 10), (SECOND, 0)]


def test_out_of_order_without_reason_means_that_records_were_lost():
    lane, (a, b) = a_lane(2)
    take_all(lane)
    lane.refuse(a, OUT_OF_ORDER)
    lane.refuse(b, OUT_OF_ORDER)

    assert lane.recover() is OUT_OF_ORDER

    assert list(lane.waiting) == [a, b]
    assert numbers([a, b]) == [(None, -1)] * 2
    assert lane.needs_identity


def test_a_batch_that_is_given_up_before_it_was_sent_leaves_nothing():
    lane, (a, b, c) = a_lane(3)
    lane.give_up(b, LATE)

    assert list(lane.waiting) == [a, c]
    assert not lane.is_recovering


def test_a_batch_that_is_given_up_while_it_waits_to_be_sent_again_leaves_a_gap():
    lane, (a, b, c) = a_lane(3)
    take_all(lane)
    for batch in (a, b, c):
        lane.refuse(batch, NOT_LEADER)
    lane.recover()
    lane.give_up(b, LATE)

    assert lane.is_recovering
    lane.recover()
    assert numbers(lane.waiting) == [(FIRST, 10), (None, -1)]
    assert (lane.identity, lane.sequence) == (FIRST, 20)


def test_a_batch_that_is_given_up_under_way_may_still_succeed():
    lane, (a, b) = a_lane(2)
    take_all(lane)
    lane.give_up(a, LATE)
    assert a.is_settled
    lane.succeed(a, 0, -1)
    lane.succeed(b, 10, -1)

    assert not lane.is_recovering
    assert lane.identity == FIRST


def test_a_batch_that_is_split_takes_the_numbers_of_the_whole():
    lane, (a, b) = a_lane(2)
    take_all(lane)
    lane.refuse(a, error_of(ErrorCode.MESSAGE_TOO_LARGE))
    lane.refuse(b, OUT_OF_ORDER)
    lane.recover()

    assert numbers(lane.waiting) == [(FIRST, 10), (FIRST, 15), (FIRST, 20)]
    assert [batch.count for batch in lane.waiting] == [5, 5, 10]
    assert not lane.must_pause


def test_without_numbers_a_batch_that_was_given_up_is_simply_gone():
    lane, (a, b) = a_lane(2, is_idempotent=False)
    lane.take()
    lane.give_up(a, LATE)
    lane.refuse(a, LOST)
    lane.recover()

    assert list(lane.waiting) == [b]
    assert lane.can_send is True
