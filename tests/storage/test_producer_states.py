"""Producer states: which batches are appended, duplicates, or rejected."""

import struct

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.batch import Record, RecordBatch, build_batch
from ottla.storage.errors import InvalidProducerEpochError, OutOfOrderSequenceError
from ottla.storage.producer_memory import ProducerMemory
from ottla.storage.producer_states import ProducerState, ProducerStates

NOW = 1_700_000_000_000
LAST_SEQUENCE = 2**31 - 1
DAY_MS = 24 * 60 * 60 * 1000


def a_batch(first=0, count=1, *, producer_id=7, epoch=0, timestamp=NOW):
    rows = [Record(index, timestamp, None, b"v") for index in range(count)]
    return RecordBatch(
        build_batch(rows, producer_id=producer_id, producer_epoch=epoch, base_sequence=first)
    )


def a_marker(*, producer_id=7, epoch=0, timestamp=NOW):
    row = Record(0, timestamp, b"\0\0\0\1", b"\0\0\0\0\0\0")
    return RecordBatch(
        build_batch(
            [row],
            producer_id=producer_id,
            producer_epoch=epoch,
            transactional=True,
            control=True,
        )
    )


def a_transactional_batch(*, producer_id):
    row = Record(0, NOW, None, b"v")
    return RecordBatch(
        build_batch(
            [row], producer_id=producer_id, producer_epoch=0, base_sequence=0, transactional=True
        )
    )


def a_batch_without_a_producer():
    return RecordBatch(build_batch([Record(0, NOW, None, b"v")]))


def states_after(*batches, max_producers=100):
    """Append batches from offset 100 on, each at the time of its record timestamp."""
    states, offset = ProducerStates(max_producers), 100
    for batch in batches:
        assert states.check(batch) is None
        states.update(batch, offset, batch.max_timestamp)
        offset += batch.last_offset_delta + 1
    return states


def producer_ids(states):
    return [state.producer_id for state in states]


def test_a_batch_with_the_next_sequence_is_appended():
    states = states_after(a_batch(0, 3))

    assert states.check(a_batch(3, 2)) is None


def test_a_sequence_gap_is_rejected_with_the_expected_sequence():
    states = states_after(a_batch(0, 3))

    with pytest.raises(OutOfOrderSequenceError) as caught:
        states.check(a_batch(4))
    assert str(caught.value) == "Producer 7, epoch 0: expected sequence 3, got 4"


def test_a_duplicate_batch_returns_its_original_offset():
    states = states_after(a_batch(0, 3), a_batch(3, 2))

    assert states.check(a_batch(0, 3)) == 100
    assert states.check(a_batch(3, 2)) == 103


def test_the_last_five_batches_are_duplicates_and_the_sixth_is_out_of_order():
    states = states_after(*[a_batch(first) for first in range(6)])

    assert [states.check(a_batch(first)) for first in range(1, 6)] == [101, 102, 103, 104, 105]
    with pytest.raises(OutOfOrderSequenceError, match="expected sequence 6, got 0"):
        states.check(a_batch(0))


def test_a_duplicate_matches_both_the_first_and_the_last_sequence():
    states = states_after(a_batch(0, 3), a_batch(3, 2))

    for other in (a_batch(0, 2), a_batch(0, 4), a_batch(1, 2)):
        with pytest.raises(OutOfOrderSequenceError):
            states.check(other)


def test_check_does_not_change_state():
    states = states_after(a_batch(0))
    before = states.snapshot().encode()

    states.check(a_batch(1))
    states.check(a_batch(0))
    states.check(a_batch(0, epoch=1))
    states.check(a_batch(0, producer_id=8))

    assert states.snapshot().encode() == before


@pytest.mark.parametrize("first", [0, 1, 5000, LAST_SEQUENCE])
def test_an_unknown_producer_may_start_with_any_sequence(first):
    states = states_after(a_batch(first))

    assert states.check(a_batch(first)) == 100
    assert states.check(a_batch((first + 1) % 2**31)) is None


def test_producers_have_independent_sequences():
    states = states_after(a_batch(0, 4), a_batch(70, producer_id=8))

    assert states.check(a_batch(4)) is None
    assert states.check(a_batch(71, producer_id=8)) is None
    with pytest.raises(OutOfOrderSequenceError, match="Producer 8"):
        states.check(a_batch(4, producer_id=8))


def test_batches_without_a_producer_id_are_appended_and_not_remembered():
    states = states_after(a_batch_without_a_producer(), a_batch_without_a_producer())

    assert len(states) == 0


def test_sequences_wrap_around_to_zero():
    states = states_after(a_batch(LAST_SEQUENCE - 1, 2))

    assert states.check(a_batch(0)) is None
    with pytest.raises(OutOfOrderSequenceError, match="expected sequence 0, got 1"):
        states.check(a_batch(1))


def test_a_batch_may_span_the_wraparound():
    across = a_batch(LAST_SEQUENCE, 3)
    states = states_after(across)

    assert across.last_sequence == 1
    assert states.check(a_batch(LAST_SEQUENCE, 3)) == 100
    assert states.check(a_batch(2)) is None
    assert [state.last_offset for state in states] == [102]


def test_a_new_epoch_starts_at_sequence_zero():
    states = states_after(a_batch(0, 5))

    with pytest.raises(OutOfOrderSequenceError) as caught:
        states.check(a_batch(5, epoch=1))
    assert str(caught.value) == "Producer 7, epoch 1: expected sequence 0, got 5"
    assert states.check(a_batch(0, epoch=1)) is None


def test_the_same_sequence_in_another_epoch_is_not_a_duplicate():
    states = states_after(a_batch(0), a_batch(0, epoch=1))

    assert states.check(a_batch(0, epoch=1)) == 101
    assert states.check(a_batch(0, epoch=2)) is None


def test_a_stale_epoch_is_fenced_even_for_a_known_batch():
    states = states_after(a_batch(0), a_batch(0, epoch=3))

    with pytest.raises(InvalidProducerEpochError) as caught:
        states.check(a_batch(0))
    assert str(caught.value) == "Producer 7 has epoch 0, older than 3"


def test_a_transaction_marker_does_not_advance_sequences():
    states = states_after(a_batch(0, 2), a_marker(), a_batch(2))

    assert states.check(a_batch(0, 2)) == 100
    assert states.check(a_batch(3)) is None


def test_a_marker_of_a_new_epoch_fences_the_old_epoch():
    states = states_after(a_batch(0, 2), a_marker(epoch=1))

    assert list(states) == [ProducerState(7, 1, -1, NOW, 102, 0, -1)]
    for stale in (a_batch(2), a_marker()):
        with pytest.raises(InvalidProducerEpochError):
            states.check(stale)
    with pytest.raises(OutOfOrderSequenceError):
        states.check(a_batch(2, epoch=1))
    assert states.check(a_batch(0, epoch=1)) is None


def test_a_producer_known_only_by_a_marker_may_continue_with_any_sequence():
    states = states_after(a_marker(epoch=4))

    assert states.check(a_batch(12, epoch=4)) is None
    with pytest.raises(InvalidProducerEpochError):
        states.check(a_batch(12, epoch=3))


def test_replaying_a_log_accepts_gaps():
    states = ProducerStates()
    for first, offset in ((3, 10), (9, 16)):
        states.update(a_batch(first, 2), offset, NOW)

    assert states.check(a_batch(3, 2)) == 10
    assert states.check(a_batch(11)) is None


def test_iteration_yields_the_state_of_each_producer():
    states = states_after(
        a_batch(0, 3, timestamp=NOW), a_batch(8, 2, producer_id=9, epoch=2, timestamp=NOW + 5)
    )

    assert list(states) == [
        ProducerState(
            producer_id=7,
            epoch=0,
            last_sequence=2,
            last_append_ms=NOW,
            last_offset=102,
            coordinator_epoch=-1,
            txn_start_offset=-1,
        ),
        ProducerState(9, 2, 9, NOW + 5, 104, -1, -1),
    ]


def test_producers_expire_by_the_time_of_their_last_append():
    states = ProducerStates()
    states.update(a_batch(0, timestamp=NOW + DAY_MS), 0, NOW)
    states.update(a_batch(0, producer_id=8), 1, NOW)
    states.update(a_batch(1, producer_id=8, timestamp=NOW - 2 * DAY_MS), 2, NOW + 1)

    states.expire(NOW + DAY_MS - 1, DAY_MS)
    assert producer_ids(states) == [7, 8]

    states.expire(NOW + DAY_MS, DAY_MS)
    assert producer_ids(states) == [8]
    assert states.check(a_batch(55)) is None


def an_old_snapshot(version):
    """Return a snapshot of two producers, as versions 1 and 2 have it."""
    body = struct.pack(">I", 2)
    for producer_id, time, offset in ((7, 5, 100), (8, 6, 101)):
        body += struct.pack(">qhiqqB", producer_id, 0, 1, time, offset, 1)
        body += struct.pack(">iiqq", 0, 0, offset, time)
    return struct.pack(">BI", version, crc32c(body)) + body


def test_a_snapshot_with_record_timestamps_counts_as_written_by_active_producers():
    restored = ProducerStates.restore(an_old_snapshot(1), NOW)

    assert [state.last_append_ms for state in restored] == [NOW, NOW]
    assert restored.check(a_batch(0)) == 100


def test_a_snapshot_without_transactions_has_none_open():
    restored = ProducerStates.restore(an_old_snapshot(2), NOW)

    assert list(restored) == [
        ProducerState(7, 0, 0, 5, 100, -1, -1),
        ProducerState(8, 0, 0, 6, 101, -1, -1),
    ]
    assert restored.first_open_offset is None


def test_the_least_recently_used_producer_is_forgotten_at_the_limit():
    states = states_after(
        a_batch(0, producer_id=1),
        a_batch(0, producer_id=2),
        a_batch(1, producer_id=1),
        a_batch(0, producer_id=3),
        max_producers=2,
    )

    assert producer_ids(states) == [1, 3]


def test_max_producers_must_be_positive():
    with pytest.raises(ValueError, match="Invalid max_producers 0"):
        ProducerStates(0)


def states_of_all_kinds():
    return states_after(
        *[a_batch(first, 2) for first in range(0, 14, 2)],
        a_batch(LAST_SEQUENCE, 3, producer_id=2**62, epoch=32767, timestamp=-1),
        a_batch(0, producer_id=8),
        a_marker(producer_id=8, epoch=1),
        a_marker(producer_id=9),
        a_batch(14, timestamp=NOW + 1),
    )


def test_a_snapshot_restores_all_states():
    states = states_of_all_kinds()

    restored = ProducerStates.restore(states.snapshot().encode(), NOW)

    assert list(restored) == list(states)
    assert restored.snapshot().encode() == states.snapshot().encode()
    assert restored.check(a_batch(12, 2)) == 112
    assert restored.check(a_batch(15)) is None
    assert restored.check(a_batch(70, producer_id=9)) is None
    with pytest.raises(OutOfOrderSequenceError, match="expected sequence 0, got 1"):
        restored.check(a_batch(1, producer_id=8, epoch=1))


def test_an_empty_snapshot_restores_no_states():
    assert len(ProducerStates.restore(ProducerStates().snapshot().encode(), NOW)) == 0


def test_restore_keeps_the_order_of_use_and_the_limit():
    states = states_after(
        *[a_batch(0, producer_id=n) for n in (5, 1, 3)], a_batch(1, producer_id=5)
    )

    assert producer_ids(
        ProducerStates.restore(states.snapshot().encode(), NOW, max_producers=2)
    ) == [3, 5]


def test_any_flipped_bit_of_a_snapshot_is_detected():
    snapshot = states_of_all_kinds().snapshot().encode()

    for position in range(len(snapshot)):
        for bit in range(8):
            damaged = bytearray(snapshot)
            damaged[position] ^= 1 << bit
            with pytest.raises(ValueError, match="Producer snapshot"):
                ProducerStates.restore(bytes(damaged), NOW)


def test_a_truncated_or_extended_snapshot_is_detected():
    snapshot = states_of_all_kinds().snapshot().encode()

    for damaged in (*(snapshot[:size] for size in range(len(snapshot))), snapshot + b"\0"):
        with pytest.raises(ValueError, match="Producer snapshot"):
            ProducerStates.restore(damaged, NOW)


@pytest.mark.parametrize(("count", "reason"), [(2, "ends early"), (0, "followed by 67 bytes")])
def test_a_snapshot_with_a_valid_crc_and_a_wrong_count_is_rejected(count, reason):
    snapshot = bytearray(states_after(a_batch(0)).snapshot().encode())
    snapshot[5:9] = count.to_bytes(4, "big")
    snapshot[1:5] = crc32c(snapshot[5:]).to_bytes(4, "big")

    with pytest.raises(ValueError, match=reason):
        ProducerStates.restore(bytes(snapshot), NOW)


class Producer:
    """A client with up to five batches in flight, counted from the oldest unacknowledged one.

    The network delivers any batch it has ever seen, in any order and any number of times.
    """

    def __init__(self, first, sizes):
        self.states, self.log = ProducerStates(), []
        self.sizes, self.sent, self.acknowledged = sizes, [], set()
        self.next_sequence = first

    def send(self):
        unacknowledged = set(range(len(self.sent))) - self.acknowledged
        oldest = min(unacknowledged, default=len(self.sent))
        if len(self.sent) < len(self.sizes) and len(self.sent) - oldest < 5:
            size = self.sizes[len(self.sent)]
            self.sent.append(a_batch(self.next_sequence, size))
            self.next_sequence = (self.next_sequence + size) % 2**31

    def deliver(self, number, *, acknowledge):
        batch, appended = self.sent[number], [earlier for earlier, _ in self.log]
        try:
            offset = self.states.check(batch)
        except OutOfOrderSequenceError:
            assert number not in appended[-5:], "a known batch was rejected"
            assert number != len(appended), "the next batch was rejected"
            return
        if offset is None:
            assert number == len(appended), f"batch {number} was appended after {appended}"
            offset = sum(self.sizes[:number])
            self.states.update(batch, offset, NOW)
            self.log.append((number, offset))
        assert (number, offset) in self.log
        if acknowledge:
            self.acknowledged.add(number)

    def restart_broker(self):
        self.states = ProducerStates.restore(self.states.snapshot().encode(), NOW)


@given(
    first=st.sampled_from([0, 1000, LAST_SEQUENCE - 7, LAST_SEQUENCE]),
    sizes=st.lists(st.integers(1, 4), min_size=1, max_size=20),
    steps=st.lists(
        st.one_of(
            st.just("send"),
            st.tuples(st.integers(1, 8), st.booleans()),
            st.just("restart"),
        ),
        max_size=120,
    ),
)
@settings(max_examples=150)
def test_retries_in_any_order_append_each_batch_once_and_in_order(first, sizes, steps):
    producer = Producer(first, sizes)
    # An unknown producer may start with any sequence, so the first batch is sent alone.
    producer.send()
    producer.deliver(0, acknowledge=False)
    for step in steps:
        if step == "send":
            producer.send()
        elif step == "restart":
            producer.restart_broker()
        else:
            back, acknowledge = step
            producer.deliver(max(len(producer.sent) - back, 0), acknowledge=acknowledge)

    for _ in sizes:
        for number in range(len(producer.sent)):
            producer.deliver(number, acknowledge=True)
        producer.send()
    producer.deliver(len(producer.sent) - 1, acknowledge=True)

    assert [number for number, _ in producer.log] == list(range(len(sizes)))
    assert producer.acknowledged == set(range(len(sizes)))


# The memory of all logs.


def test_the_oldest_idle_producers_of_all_logs_are_evicted():
    memory = ProducerMemory()
    first = states_after(*(a_batch(producer_id=n, timestamp=NOW + 2 * n) for n in range(4)))
    second = states_after(*(a_batch(producer_id=n, timestamp=NOW + 2 * n + 1) for n in range(4)))
    first.count_in(memory)
    second.count_in(memory)
    one = memory.size_bytes // 8

    assert memory.evict(3 * one) == 3 * one
    assert (producer_ids(first), producer_ids(second)) == ([2, 3], [1, 2, 3])
    assert memory.evict(100 * one) == 5 * one
    assert (memory.size_bytes, len(first), len(second), memory.logs) == (0, 0, 0, {})


def test_a_producer_with_an_open_transaction_is_not_evicted():
    memory = ProducerMemory()
    states = states_after(a_transactional_batch(producer_id=1), a_batch(producer_id=2))
    states.count_in(memory)

    memory.evict(2**31)
    assert producer_ids(states) == [1]
    memory.evict(2**31)
    assert producer_ids(states) == [1]


def test_the_memory_follows_every_change():
    memory = ProducerMemory()
    states = ProducerStates(max_producers=3)
    states.count_in(memory)
    for number in range(40):
        producer_id, epoch = number % 5, number // 20
        states.update(a_batch(number, producer_id=producer_id, epoch=epoch), number, NOW)
        restored = ProducerStates.restore(states.snapshot().encode(), NOW)
        assert memory.size_bytes == states.size_bytes == restored.size_bytes
    states.expire(NOW + DAY_MS, DAY_MS)
    assert memory.size_bytes == states.size_bytes == 0


def test_growth_is_reported_when_the_new_producer_is_not_the_oldest():
    memory = ProducerMemory()
    states = ProducerStates()
    states.count_in(memory)
    memory.on_growth = lambda: len(states) > 2 and memory.evict(1)

    for number in range(5):
        states.update(a_batch(producer_id=number), number, NOW + number)

    assert producer_ids(states) == [3, 4]
