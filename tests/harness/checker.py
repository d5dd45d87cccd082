"""Checks a history: every acked record exists once, in one order, and readers received all of them.

Modelled on Jepsen's Kafka checker: it knows nothing of the broker, and only compares what clients
sent and received. Any anomaly is a bug.

    lost-write            an acked record that nobody received, before the end of what was received
    unseen                an acked record that nobody received, after the end of what was received
    vanished              a record that was received, acked or not, and is missing at the end
    duplicate             one record at two offsets
    inconsistent-offsets  two records at one offset
    phantom               a record that nobody sent
    refused-read          a record that was received although its send was refused
    poll-skip             a reader skipped an existing record
    nonmonotonic-poll     a reader received an offset again, or an earlier one
    nonmonotonic-send     two records of one producer in another order than they were sent

Readers of transactions are read_committed. Records of an aborted transaction count as refused, and
those of a committed one as acked. Two more:

    torn-transaction      some records of a transaction exist, and others do not
    offset-mismatch       the committed offset of a producer is not that of its last transaction

Records count as existing if the last readers received them; earlier readers are not enough. Offsets
may have gaps.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from harness.history import MOVED, History, Outcome, Row, Send, Transaction

LOSSES = ("lost-write", "unseen")


class Anomaly(NamedTuple):
    """A violation."""

    kind: str
    partition: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind} in partition {self.partition}: {self.text}"


class _Partition:
    """What all clients know of a partition: which values are at which offsets."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.values_at: dict[int, set[int]] = defaultdict(set)
        self.offsets_of: dict[int, set[int]] = defaultdict(set)
        self.seen: set[int] = set()
        #: What all last readers received; without last readers, what any reader received.
        self.existing: set[int] = self.seen
        #: The last offset of an existing record.
        self.last = -1
        #: All offsets that were received, sorted once everything is known.
        self.offsets: list[int] = []

    def add(self, value: int, offset: int) -> None:
        self.values_at[offset].add(value)
        self.offsets_of[value].add(offset)

    def between(self, first: int, last: int) -> list[int]:
        """Return the received offsets between two offsets."""
        return self.offsets[bisect_right(self.offsets, first) : bisect_left(self.offsets, last)]


def check(history: History, deleted: Container[tuple[int, int]] = ()) -> list[Anomaly]:
    """Return all anomalies.

    `deleted` contains (partition, offset) of records that may be missing because they were deleted.
    """
    partitions = _known(history)
    return [
        *_offset_conflicts(partitions.values()),
        *_lost(history, partitions, deleted),
        *_vanished(partitions.values(), deleted),
        *_unexpected(history, partitions),
        *_poll_order(history, partitions, deleted),
        *_send_order(history, partitions),
        *_torn(history, partitions, deleted),
        *_offset_mismatches(history, partitions),
    ]


def counted(anomalies: Iterable[Anomaly]) -> Counter[str]:
    """Return the number of anomalies of each kind."""
    return Counter(anomaly.kind for anomaly in anomalies)


def _known(history: History) -> dict[int, _Partition]:
    found: dict[int, _Partition] = {}

    def of(number: int) -> _Partition:
        if number not in found:
            found[number] = _Partition(number)
        return found[number]

    for rows in history.polls.values():
        for number, offset, value in rows:
            if offset != MOVED:
                partition = of(number)
                partition.add(value, offset)
                partition.seen.add(value)
    for partition in found.values():
        partition.offsets = sorted(partition.values_at)
        if history.last_readers:
            partition.existing = set.intersection(
                *(_seen_by(history.polls[who], partition.number) for who in history.last_readers)
            )
        last_offsets = (max(partition.offsets_of[value]) for value in partition.existing)
        partition.last = max(last_offsets, default=-1)
    for send in history.all_sends:
        partition = of(send.partition)
        if send.outcome is Outcome.ACKED and send.offset is not None:
            partition.add(send.value, send.offset)
    return found


def _seen_by(rows: Iterable[Row], partition: int) -> set[int]:
    return {value for number, offset, value in rows if number == partition and offset != MOVED}


def _offset_conflicts(partitions: Iterable[_Partition]) -> Iterator[Anomaly]:
    for partition in partitions:
        for offset, values in partition.values_at.items():
            if len(values) > 1:
                text = f"{_some(values)} at offset {offset}"
                yield Anomaly("inconsistent-offsets", partition.number, text)
        for value, offsets in partition.offsets_of.items():
            if len(offsets) > 1:
                text = f"{value} at offsets {_some(offsets)}"
                yield Anomaly("duplicate", partition.number, text)


def _lost(
    history: History, partitions: dict[int, _Partition], deleted: Container[tuple[int, int]]
) -> Iterator[Anomaly]:
    for process, sends in history.sends.items():
        for send in sends:
            partition = partitions[send.partition]
            if send.outcome is not Outcome.ACKED or send.value in partition.existing:
                continue
            if send.offset is not None and (send.partition, send.offset) in deleted:
                continue
            is_after_end = send.offset is None or send.offset > partition.last
            kind = "unseen" if is_after_end else "lost-write"
            text = f"{send.value}, acked to {process} at offset {send.offset}"
            yield Anomaly(kind, send.partition, text)


def _vanished(
    partitions: Iterable[_Partition], deleted: Container[tuple[int, int]]
) -> Iterator[Anomaly]:
    for partition in partitions:
        for value in partition.seen - partition.existing:
            offsets = partition.offsets_of[value]
            if any((partition.number, offset) not in deleted for offset in offsets):
                yield Anomaly("vanished", partition.number, f"{value}, seen at {_some(offsets)}")


def _unexpected(history: History, partitions: dict[int, _Partition]) -> Iterator[Anomaly]:
    sent = {(send.partition, send.value): send for send in history.all_sends}
    for partition in partitions.values():
        for value in partition.seen:
            send = sent.get((partition.number, value))
            offsets = _some(partition.offsets_of[value])
            if send is None:
                yield Anomaly("phantom", partition.number, f"{value} at {offsets}")
            elif send.outcome is Outcome.REFUSED:
                yield Anomaly("refused-read", partition.number, f"{value} at {offsets}")


def _poll_order(
    history: History, partitions: dict[int, _Partition], deleted: Container[tuple[int, int]]
) -> Iterator[Anomaly]:
    for process, rows in history.polls.items():
        for number, steps in _by_partition(rows).items():
            for before, after in pairwise(steps):
                if MOVED in (before, after):
                    continue
                if after <= before:
                    text = f"{process} received {before}, then {after}"
                    yield Anomaly("nonmonotonic-poll", number, text)
                    continue
                passed = partitions[number].between(before, after)
                passed = [offset for offset in passed if (number, offset) not in deleted]
                if passed:
                    text = f"{process} received {before}, then {after}; between: {_some(passed)}"
                    yield Anomaly("poll-skip", number, text)


def _by_partition(rows: Iterable[Row]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for number, offset, _value in rows:
        found[number].append(offset)
    return found


def _send_order(history: History, partitions: dict[int, _Partition]) -> Iterator[Anomaly]:
    for process, sends in history.sends.items():
        last: dict[int, tuple[int, Send]] = {}
        for send in sends:
            offsets = partitions[send.partition].offsets_of.get(send.value)
            if not offsets:
                continue
            offset = min(offsets)
            before, earlier = last.get(send.partition, (-1, send))
            if offset < before:
                text = (
                    f"{process} sent {earlier.value} first: {before}, then {send.value}: {offset}"
                )
                yield Anomaly("nonmonotonic-send", send.partition, text)
            last[send.partition] = offset, send


def _torn(
    history: History, partitions: dict[int, _Partition], deleted: Container[tuple[int, int]]
) -> Iterator[Anomaly]:
    for transaction in history.transactions:
        sends = [
            send
            for send in transaction.sends
            if send.offset is None or (send.partition, send.offset) not in deleted
        ]
        exist = [send.value in partitions[send.partition].existing for send in sends]
        if any(exist) and not all(exist):
            missing = sends[exist.index(False)]
            text = f"{_name(transaction)}: {exist.count(False)} of {len(sends)} records are missing"
            yield Anomaly("torn-transaction", missing.partition, text)


def _offset_mismatches(history: History, partitions: dict[int, _Partition]) -> Iterator[Anomaly]:
    """Compare offsets with data; one existing record of a transaction is enough here."""
    last: dict[str, Transaction] = {}
    for transaction in history.transactions:
        if any(send.value in partitions[send.partition].existing for send in transaction.sends):
            last[transaction.producer] = transaction
    for producer, offset in history.committed.items():
        expected = last[producer].offset if producer in last else 0
        if offset != expected:
            text = f"{producer} committed offset {offset}, its last transaction {expected}"
            yield Anomaly("offset-mismatch", 0, text)


def _name(transaction: Transaction) -> str:
    return f"transaction {transaction.offset} of {transaction.producer}"


def _some(numbers: Iterable[int], limit: int = 5) -> str:
    listed = sorted(numbers)
    more = f" and {len(listed) - limit} more" if len(listed) > limit else ""
    return ", ".join(map(str, listed[:limit])) + more
