"""The batches of one partition: which may be sent, and their sequences after failures."""

import pytest

from ottla.client.errors import ConnectionLostError, DeadlineError, ErrorCode, error_of
from ottla.client.producer.batch import Batch, BatchState, ProducerIdAndEpoch
from ottla.client.producer.partition_queue import PartitionQueue

FIRST, SECOND = ProducerIdAndEpoch(1, 0), ProducerIdAndEpoch(2, 0)
NOT_LEADER = error_of(ErrorCode.NOT_LEADER_OR_FOLLOWER)
INVALID = error_of(ErrorCode.INVALID_RECORD)
OUT_OF_ORDER = error_of(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
LOST = ConnectionLostError("gone")
LATE = DeadlineError("late")


def a_queue(batches, *, is_idempotent=True, is_known=True):
    """Return a queue with waiting batches of ten records, all with the first producer id."""
    queue = PartitionQueue("orders", 0, is_idempotent=is_idempotent)
    if is_idempotent:
        queue.set_producer(FIRST)
    if is_known:
        add(queue)
        queue.complete(queue.take(), 0, -1)
    return queue, [add(queue) for _ in range(batches)]


def add(queue):
    batch = Batch(queue, 0.0, lambda _batch: None, BatchState.READY)
    for _ in range(10):
        batch.add(0, None, b"x", (), 40)
    queue.waiting.append(batch)
    return batch


def take_all(queue):
    taken = []
    while queue.can_send:
        taken.append(queue.take())
    return taken


def sequences(batches):
    return [(batch.producer, batch.sequence) for batch in batches]


def test_five_batches_in_flight_have_consecutive_sequences():
    queue, batches = a_queue(7)

    taken = take_all(queue)

    assert taken == batches[:5]
    assert [batch.sequence for batch in taken] == [10, 20, 30, 40, 50]


@pytest.mark.parametrize("configs", [{"is_idempotent": False}, {"is_known": False}], ids=str)
def test_one_batch_is_in_flight_where_order_could_not_be_kept_otherwise(configs):
    queue, batches = a_queue(3, **configs)

    assert take_all(queue) == batches[:1]
    queue.complete(batches[0], 0, -1)
    assert len(take_all(queue)) == (1 if "is_idempotent" in configs else 2)


def test_after_an_error_nothing_is_sent_until_all_in_flight_have_a_response():
    queue, (a, b, c, d) = a_queue(4)
    for _ in range(3):
        queue.take()

    queue.handle_error(a, NOT_LEADER)
    assert not queue.can_send
    queue.handle_error(b, OUT_OF_ORDER)
    assert not queue.can_send
    queue.handle_error(c, OUT_OF_ORDER)
    queue.recover()

    assert queue.needs_backoff
    assert list(queue.waiting) == [a, b, c, d]
    assert sequences([a, b, c, d]) == [(FIRST, 10), (FIRST, 20), (FIRST, 30), (None, -1)]


def test_a_retry_is_sent_alone():
    queue, (a, b, c, d) = a_queue(4)
    for batch in (queue.take(), queue.take()):
        queue.handle_error(batch, LOST)
    queue.recover()

    assert take_all(queue) == [a]
    queue.complete(a, 0, -1)
    assert take_all(queue) == [b]
    queue.complete(b, 0, -1)
    assert take_all(queue) == [c, d]


def test_the_sequence_continues_at_a_rejected_batch():
    queue, (a, b, c) = a_queue(3)
    take_all(queue)
    queue.complete(a, 0, -1)
    queue.handle_error(b, INVALID)
    queue.handle_error(c, OUT_OF_ORDER)

    assert queue.recover() is None

    assert b.is_done
    assert queue.take() is c
    assert sequences([c]) == [(FIRST, 20)]


def test_batches_before_a_gap_keep_their_sequence():
    queue, (a, b, c) = a_queue(3)
    take_all(queue)
    queue.handle_error(a, LOST)
    queue.handle_error(b, INVALID)
    queue.handle_error(c, OUT_OF_ORDER)
    queue.recover()

    assert list(queue.waiting) == [a, c]
    assert sequences([a]) == [(FIRST, 10)]
    queue.take()
    queue.complete(a, 0, -1)
    queue.take()
    assert sequences([c]) == [(FIRST, 20)]


def test_batches_behind_a_gap_that_may_be_written_fail_and_others_get_a_new_producer_id():
    queue, (a, b, c, d) = a_queue(4)
    for _ in range(3):
        queue.take()
    queue.handle_error(a, INVALID)
    queue.handle_error(b, LOST)
    queue.handle_error(c, OUT_OF_ORDER)

    assert queue.recover() is INVALID

    assert b.is_done
    assert list(queue.waiting) == [c, d]
    assert queue.needs_producer_id
    assert not queue.can_send
    assert not queue.set_producer(FIRST), "it was retired"
    assert queue.set_producer(SECOND)
    queue.take()
    assert sequences([c]) == [(SECOND, 0)]
    assert not queue.can_send, "the broker has to know the new id first"


def test_old_sequences_are_sent_before_new_ones_and_never_together():
    queue, (a, b, c) = a_queue(3)
    take_all(queue)
    queue.handle_error(a, LOST)
    queue.handle_error(b, error_of(ErrorCode.UNKNOWN_SERVER_ERROR))
    queue.handle_error(c, OUT_OF_ORDER)
    queue.recover()
    queue.set_producer(SECOND)

    assert take_all(queue) == [a]
    queue.complete(a, 0, -1)
    assert take_all(queue) == [c]
    assert sequences([a, c]) == [(FIRST, 10), (SECOND, 0)]


def test_an_unexplained_out_of_order_error_means_the_broker_lost_records():
    queue, (a, b) = a_queue(2)
    take_all(queue)
    queue.handle_error(a, OUT_OF_ORDER)
    queue.handle_error(b, OUT_OF_ORDER)

    assert queue.recover() is OUT_OF_ORDER

    assert list(queue.waiting) == [a, b]
    assert sequences([a, b]) == [(None, -1)] * 2
    assert queue.needs_producer_id


def test_a_batch_aborted_before_it_was_sent_leaves_no_gap():
    queue, (a, b, c) = a_queue(3)
    queue.abort(b, LATE)

    assert list(queue.waiting) == [a, c]
    assert not queue.is_recovering


def test_a_batch_aborted_while_it_waits_for_a_retry_leaves_a_gap():
    queue, (a, b, c) = a_queue(3)
    take_all(queue)
    for batch in (a, b, c):
        queue.handle_error(batch, NOT_LEADER)
    queue.recover()
    queue.abort(b, LATE)

    assert queue.is_recovering
    queue.recover()
    assert sequences(queue.waiting) == [(FIRST, 10), (None, -1)]
    assert (queue.producer, queue.sequence) == (FIRST, 20)


def test_a_batch_aborted_in_flight_may_still_be_acknowledged():
    queue, (a, b) = a_queue(2)
    take_all(queue)
    queue.abort(a, LATE)
    assert a.is_done
    queue.complete(a, 0, -1)
    queue.complete(b, 10, -1)

    assert not queue.is_recovering
    assert queue.producer == FIRST


def test_a_split_batch_keeps_its_sequence():
    queue, (a, b) = a_queue(2)
    take_all(queue)
    queue.handle_error(a, error_of(ErrorCode.MESSAGE_TOO_LARGE))
    queue.handle_error(b, OUT_OF_ORDER)
    queue.recover()

    assert sequences(queue.waiting) == [(FIRST, 10), (FIRST, 15), (FIRST, 20)]
    assert [batch.count for batch in queue.waiting] == [5, 5, 10]
    assert not queue.needs_backoff


def test_without_idempotence_an_aborted_batch_leaves_no_gap():
    queue, (a, b) = a_queue(2, is_idempotent=False)
    queue.take()
    queue.abort(a, LATE)
    queue.handle_error(a, LOST)
    queue.recover()

    assert list(queue.waiting) == [b]
    assert queue.can_send is True
