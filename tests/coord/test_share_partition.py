"""Share partitions: every event in every state, and a machine against a simple model."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from ottla.coord.errors import GroupError
from ottla.coord.share.partition import (
    AcknowledgementBatch,
    AcknowledgeType,
    FetchedBatch,
    SharePartition,
    SharePartitionConfig,
)
from ottla.coord.share.state import RecordState, StateBatch
from ottla.protocol.errors import ErrorCode

CONFIG = SharePartitionConfig(delivery_count_limit=2, lock_duration_ms=1000, max_record_locks=10)
ACCEPT, RELEASE, REJECT, GAP, RENEW = (
    AcknowledgeType[name] for name in ("ACCEPT", "RELEASE", "REJECT", "GAP", "RENEW")
)


def acquire(partition, member="a", count=3, now=0, *, strict=False, batches=None):
    offset = partition.fetch_offset()
    if offset is None:
        return []
    batches = batches or [FetchedBatch(offset, offset + count - 1)]
    acquired = partition.acquire(member, offset, batches, count, now, is_strict=strict)
    return [(one.first, one.last, one.delivery_count) for one in acquired]


def acknowledge(partition, first, last, *types, member="a", now=0, may_renew=True):
    batch = AcknowledgementBatch(first, last, types)
    return partition.acknowledge(member, [batch], now, may_renew=may_renew)


def shown(partition):
    return [
        f"{one.first}-{one.last} {one.state.name.lower()} {one.delivery_count}".strip()
        for one in partition
    ]


def in_state(state: str) -> SharePartition:
    """A partition whose record 1 is in a state; 0 and 2 are acquired by another member."""
    partition = SharePartition(0, config=CONFIG)
    acquire(partition, "x", 1)
    acquire(partition, "a", 1)
    acquire(partition, "x", 1)
    if state == "acknowledged":
        acknowledge(partition, 1, 1, ACCEPT)
    elif state == "archived":
        acknowledge(partition, 1, 1, REJECT)
    elif state in ("available", "acquired by x", "acquired at the limit"):
        acknowledge(partition, 1, 1, RELEASE)
        if state != "available":
            acquire(partition, "x" if "x" in state else "a", 1)
    return partition


#: What becomes of the record: a state, or the error of the event.
EVENTS = {
    "accept": lambda p: acknowledge(p, 1, 1, ACCEPT),
    "release": lambda p: acknowledge(p, 1, 1, RELEASE),
    "reject": lambda p: acknowledge(p, 1, 1, REJECT),
    "gap": lambda p: acknowledge(p, 1, 1, GAP),
    "renew": lambda p: acknowledge(p, 1, 1, RENEW, now=600),
    "acquire": lambda p: acquire(p, "a", 1, batches=[FetchedBatch(1, 1)]),
    "expire": lambda p: p.expire(1000),
    "close": lambda p: p.release("a"),
    "restart": lambda p: p.__init__(p.start_offset, p.state_batches(), CONFIG),
}
_REFUSED = "INVALID_RECORD_STATE"
_ALL_REFUSED = dict.fromkeys(("accept", "release", "reject", "gap", "renew"), _REFUSED)
OUTCOMES = {
    "acquired": {
        "accept": "acknowledged 1",
        "release": "available 1",
        "reject": "archived 1",
        "gap": "archived 1",
        "renew": "acquired 1",
        "acquire": "acquired 1",
        "expire": "available 1",
        "close": "available 1",
        "restart": "available 1",
    },
    "acquired at the limit": {
        "accept": "acknowledged 2",
        "release": "archived 2",
        "reject": "archived 2",
        "gap": "archived 2",
        "renew": "acquired 2",
        "acquire": "acquired 2",
        "expire": "archived 2",
        "close": "archived 2",
        "restart": "archived 2",
    },
    "acquired by x": _ALL_REFUSED
    | {"acquire": "acquired 2", "expire": "archived 2", "close": "acquired 2"}
    | {"restart": "archived 2"},
    "available": _ALL_REFUSED
    | {"acquire": "acquired 2"}
    | dict.fromkeys(("expire", "close", "restart"), "available 1"),
    "acknowledged": _ALL_REFUSED
    | dict.fromkeys(("acquire", "expire", "close", "restart"), "acknowledged 1"),
    "archived": _ALL_REFUSED
    | dict.fromkeys(("acquire", "expire", "close", "restart"), "archived 1"),
}


@pytest.mark.parametrize("state", OUTCOMES)
@pytest.mark.parametrize("event", EVENTS)
def test_every_event_in_every_state(state, event):
    partition = in_state(state)
    before = shown(partition)
    expected = OUTCOMES[state][event]

    if expected == _REFUSED:
        with pytest.raises(GroupError) as raised:
            EVENTS[event](partition)
        assert raised.value.code is ErrorCode.INVALID_RECORD_STATE
        assert shown(partition) == before
        return
    EVENTS[event](partition)

    found = next(one for one in partition if one.first <= 1 <= one.last)
    assert f"{found.state.name.lower()} {found.delivery_count}" == expected


def test_the_start_offset_moves_over_records_that_are_done():
    partition = SharePartition(5, config=CONFIG)
    assert acquire(partition, count=4) == [(5, 8, 1)]
    acknowledge(partition, 6, 7, ACCEPT, REJECT)
    assert partition.start_offset == 5
    acknowledge(partition, 5, 5, ACCEPT)
    assert (partition.start_offset, partition.end_offset) == (8, 9)
    acknowledge(partition, 3, 4, ACCEPT), "below the start offset: ignored"
    acknowledge(partition, 8, 8, ACCEPT)
    assert (partition.start_offset, partition.in_flight, partition.range_count) == (9, 0, 0)


def test_records_in_flight_are_limited():
    partition = SharePartition(0, config=CONFIG)
    assert acquire(partition, count=50) == [(0, 9, 1)]
    assert partition.fetch_offset() is None
    acknowledge(partition, 4, 4, RELEASE)
    assert partition.fetch_offset() == 4
    assert acquire(partition, "b", batches=[FetchedBatch(0, 49)]) == [(4, 4, 2)]
    acknowledge(partition, 0, 3, ACCEPT)
    assert acquire(partition, "b", batches=[FetchedBatch(0, 49)]) == [(10, 13, 1)]


def test_whole_batches_are_acquired_unless_the_limit_is_strict():
    batches = [FetchedBatch(0, 3), FetchedBatch(4, 6), FetchedBatch(7, 9)]
    assert acquire(SharePartition(0, config=CONFIG), count=5, batches=batches) == [(0, 6, 1)]
    partition = SharePartition(0, config=CONFIG)
    assert acquire(partition, count=5, batches=batches, strict=True) == [(0, 4, 1)]
    assert partition.fetch_offset() == 5


def test_offsets_without_records_are_archived():
    partition = SharePartition(0, config=CONFIG)
    batches = [FetchedBatch(2, 3), FetchedBatch(4, 4, is_visible=False), FetchedBatch(6, 7)]
    assert acquire(partition, count=9, batches=batches) == [(2, 3, 1), (6, 7, 1)]
    assert partition.start_offset == 2
    acknowledge(partition, 2, 3, ACCEPT)
    assert partition.start_offset == 6
    partition = SharePartition(0, config=CONFIG)
    assert acquire(partition, batches=[FetchedBatch(0, 3, is_visible=False)]) == []
    assert partition.fetch_offset() == partition.start_offset == 4


@pytest.mark.parametrize(
    "batches",
    [
        [AcknowledgementBatch(1, 0, [1])],
        [AcknowledgementBatch(0, 1, [1]), AcknowledgementBatch(1, 2, [1])],
        [AcknowledgementBatch(2, 2, [1]), AcknowledgementBatch(0, 0, [1])],
        [AcknowledgementBatch(0, 2, [1, 1])],
        [AcknowledgementBatch(0, 2, [])],
        [AcknowledgementBatch(0, 2, [5])],
        [AcknowledgementBatch(0, 2, [4])],
        [AcknowledgementBatch(0, 3, [1])],
        [AcknowledgementBatch(-1, 0, [1])],
    ],
    ids=str,
)
def test_invalid_acknowledgements_change_nothing(batches):
    partition = SharePartition(0, config=CONFIG)
    acquire(partition)
    with pytest.raises(GroupError) as raised:
        partition.acknowledge("a", batches, 0)
    assert raised.value.code is ErrorCode.INVALID_REQUEST
    assert shown(partition) == ["0-2 acquired 1"]


def test_a_renewed_lock_starts_anew():
    partition = SharePartition(0, config=CONFIG)
    acquire(partition)
    acknowledge(partition, 0, 0, RENEW, now=900)
    assert partition.next_deadline_ms == 1000
    assert partition.expire(1000) == 2
    assert partition.next_deadline_ms == 1900
    assert shown(partition) == ["0-0 acquired 1", "1-2 available 1"]


def test_deleted_and_truncated_records_are_given_up():
    partition = SharePartition(0, config=CONFIG)
    acquire(partition, count=6)
    partition.move_start(4)
    assert (partition.start_offset, shown(partition)) == (4, ["4-5 acquired 1"])
    partition.truncate(5)
    assert (partition.end_offset, shown(partition)) == (5, ["4-4 acquired 1"])
    partition.move_start(100)
    assert (partition.start_offset, partition.end_offset, shown(partition)) == (100, 100, [])
    partition.truncate(50)
    assert (partition.start_offset, partition.fetch_offset()) == (50, 50)


def test_stored_batches_with_holes_are_filled():
    batches = [
        StateBatch(2, 3, RecordState.AVAILABLE, 1),
        StateBatch(4, 5, RecordState.ACKNOWLEDGED, 1),
    ]
    partition = SharePartition(1, batches, CONFIG)
    assert shown(partition) == ["1-1 available 0", "2-3 available 1", "4-5 acknowledged 1"]


class Machine(RuleBasedStateMachine):
    """Members, crashes and time, against a model with one entry per record."""

    def __init__(self):
        super().__init__()
        self.partition = SharePartition(0, config=CONFIG)
        self.now = 0
        self.delivered: Counter[int] = Counter()
        self.holders: dict[int, tuple[str, int]] = {}
        self.accepted: set[int] = set()
        self.rejected: set[int] = set()
        #: What was stored before the last answer: it is what a crash leaves.
        self.stored = (0, ())

    def store(self):
        self.stored = (self.partition.start_offset, self.partition.state_batches())

    @rule(
        member=st.sampled_from("abc"),
        count=st.integers(1, 6),
        strict=st.booleans(),
        sizes=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    )
    def acquire(self, member, count, strict, sizes):
        offset = self.partition.fetch_offset()
        if offset is None:
            assert self.partition.in_flight >= CONFIG.max_record_locks
            return
        batches, first = [], max(offset - 1, 0)
        for size in sizes:
            batches.append(FetchedBatch(first, first + size - 1))
            first += size
        acquired = self.partition.acquire(
            member, offset, batches, count, self.now, is_strict=strict
        )
        if batches[-1].last >= offset:
            assert acquired, "there was a record to acquire"
        self.store()
        for one in acquired:
            for at in range(one.first, one.last + 1):
                assert at not in self.holders
                assert at not in self.accepted | self.rejected
                self.delivered[at] += 1
                assert self.delivered[at] == one.delivery_count <= CONFIG.delivery_count_limit
                self.holders[at] = member, self.now + CONFIG.lock_duration_ms
        if strict:
            assert sum(one.size for one in acquired) <= count

    @precondition(lambda self: self.holders)
    @rule(data=st.data(), member=st.sampled_from("abc"))
    def acknowledge(self, data, member):
        first = data.draw(st.sampled_from(sorted(self.holders)))
        kinds = data.draw(st.lists(st.sampled_from(AcknowledgeType), min_size=1, max_size=4))
        last = first + len(kinds) - 1
        mine = {at for at, (holder, _due) in self.holders.items() if holder == member}
        may = set(range(first, last + 1)) <= mine
        before = list(self.partition)
        try:
            acknowledge(self.partition, first, last, *kinds, member=member, now=self.now)
        except GroupError:
            assert not may
            assert list(self.partition) == before
            return
        assert may
        self.store()
        for at, kind in enumerate(kinds, start=first):
            if kind is RENEW:
                self.holders[at] = member, self.now + CONFIG.lock_duration_ms
                continue
            del self.holders[at]
            if kind is ACCEPT:
                self.accepted.add(at)
            elif kind is not RELEASE:
                self.rejected.add(at)

    @rule(member=st.sampled_from("abc"))
    def close(self, member):
        held = {at for at, (holder, _due) in self.holders.items() if holder == member}
        assert self.partition.release(member) == len(held)
        for at in held:
            del self.holders[at]

    @rule(ms=st.sampled_from([1, 500, 600, 1000]))
    def wait(self, ms):
        self.now += ms
        due = {at for at, (_holder, due) in self.holders.items() if due <= self.now}
        assert self.partition.expire(self.now) == len(due)
        for at in due:
            del self.holders[at]

    @rule()
    def crash(self):
        start, batches = self.stored
        self.partition = SharePartition(start, batches, CONFIG)
        self.holders.clear()

    @rule(offset=st.integers(0, 30))
    def delete_records(self, offset):
        self.partition.move_start(offset)
        for at in [at for at in self.holders if at < offset]:
            del self.holders[at]
        self.rejected.update(at for at in range(offset) if at not in self.accepted)
        self.store()

    @invariant()
    def nothing_is_lost(self):
        partition = self.partition
        at = partition.start_offset
        for one in partition:
            assert (one.first, one.last >= one.first) == (at, True), "ranges follow one another"
            at = one.last + 1
        assert at == partition.end_offset
        ranges = list(partition)
        assert all(a[2:] != b[2:] for a, b in itertools.pairwise(ranges))
        assert partition.acquired_count == len(self.holders)
        done = set(range(partition.start_offset))
        for one in ranges:
            offsets = set(range(one.first, one.last + 1))
            if one.state is RecordState.AVAILABLE:
                assert one.delivery_count < CONFIG.delivery_count_limit
                assert not offsets & (self.accepted | self.rejected)
            elif one.state.is_final:
                done |= offsets
            else:
                assert offsets <= set(self.holders)
        for at in done - self.accepted - self.rejected:
            assert self.delivered[at] == CONFIG.delivery_count_limit, f"{at} was skipped"
        if self.holders:
            due_ms = min(due for _holder, due in self.holders.values())
            assert partition.next_deadline_ms is not None
            assert partition.next_deadline_ms <= due_ms


TestMachine = Machine.TestCase
TestMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
