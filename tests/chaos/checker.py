"""Judges a history: were all acked records there, once, in one order, and did readers see all?

In the manner of the checker that Jepsen has for Kafka and its kin: it knows nothing of how a broker
works, it only compares what clients were told. An anomaly of any kind is a bug somewhere.

    lost-write            an acked record that nobody saw, though somebody saw what lies behind it
    unseen                an acked record that nobody saw, at the end of what was seen
    vanished              a record that somebody saw, acked or not, and that is not there in the end
    duplicate             one record at two offsets
    inconsistent-offsets  two records at one offset
    phantom               a record that nobody sent
    refused-read          a record whose sender was told that it is not there
    poll-skip             a reader passed over a record that is there
    nonmonotonic-poll     a reader was given an offset that it had been given, or an earlier one
    nonmonotonic-send     two records of one producer in another order than it sent them

Who reads everything in the end is the one whose eyes count: to have been seen by others before is
not enough. Offsets may have gaps as such.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Container, Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

from chaos.history import MOVED, History, Outcome, Row, Send

LOSSES = ("lost-write", "unseen")


class Anomaly(NamedTuple):
    """Something that must not be."""

    kind: str
    partition: int
    text: str

    def __str__(self) -> str:
        return f"{self.kind} in partition {self.partition}: {self.text}"


class _Partition:
    """What all clients together know of a partition: which values are at which offsets."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.values_at: dict[int, set[int]] = defaultdict(set)
        self.offsets_of: dict[int, set[int]] = defaultdict(set)
        self.seen: set[int] = set()
        #: What all who read in the end saw; what anybody saw, if nobody did.
        self.is_there: set[int] = self.seen
        #: The last offset at which something is there.
        self.last = -1
        #: All offsets at which somebody saw something; sorted, once everything is known.
        self.offsets: list[int] = []

    def place(self, value: int, offset: int) -> None:
        self.values_at[offset].add(value)
        self.offsets_of[value].add(offset)

    def between(self, first: int, last: int) -> list[int]:
        """Give the offsets between two at which somebody saw something."""
        return self.offsets[bisect_right(self.offsets, first) : bisect_left(self.offsets, last)]


def check(history: History, gone: Container[tuple[int, int]] = ()) -> list[Anomaly]:
    """Find everything that must not be.

    `gone` are places (partition, offset) whose records may be missing, since somebody deleted them.
    """
    partitions = _known(history)
    return [
        *_misplaced(partitions.values()),
        *_lost(history, partitions, gone),
        *_vanished(partitions.values(), gone),
        *_impossible(history, partitions),
        *_read_badly(history, partitions, gone),
        *_disordered(history, partitions),
    ]


def counted(anomalies: Iterable[Anomaly]) -> Counter[str]:
    """Count them by kind."""
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
                partition.place(value, offset)
                partition.seen.add(value)
    for partition in found.values():
        partition.offsets = sorted(partition.values_at)
        if history.last_readers:
            partition.is_there = set.intersection(
                *(_seen_by(history.polls[who], partition.number) for who in history.last_readers)
            )
        places = (max(partition.offsets_of[value]) for value in partition.is_there)
        partition.last = max(places, default=-1)
    for send in history.all_sends:
        partition = of(send.partition)
        if send.outcome is Outcome.ACKED and send.offset is not None:
            partition.place(send.value, send.offset)
    return found


def _seen_by(rows: Iterable[Row], partition: int) -> set[int]:
    return {value for number, offset, value in rows if number == partition and offset != MOVED}


def _misplaced(partitions: Iterable[_Partition]) -> Iterator[Anomaly]:
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
    history: History, partitions: dict[int, _Partition], gone: Container[tuple[int, int]]
) -> Iterator[Anomaly]:
    for process, sends in history.sends.items():
        for send in sends:
            partition = partitions[send.partition]
            if send.outcome is not Outcome.ACKED or send.value in partition.is_there:
                continue
            if send.offset is not None and (send.partition, send.offset) in gone:
                continue
            is_behind = send.offset is None or send.offset > partition.last
            kind = "unseen" if is_behind else "lost-write"
            text = f"{send.value}, acked to {process} at offset {send.offset}"
            yield Anomaly(kind, send.partition, text)


def _vanished(
    partitions: Iterable[_Partition], gone: Container[tuple[int, int]]
) -> Iterator[Anomaly]:
    for partition in partitions:
        for value in partition.seen - partition.is_there:
            offsets = partition.offsets_of[value]
            if any((partition.number, offset) not in gone for offset in offsets):
                yield Anomaly("vanished", partition.number, f"{value}, seen at {_some(offsets)}")


def _impossible(history: History, partitions: dict[int, _Partition]) -> Iterator[Anomaly]:
    sent = {(send.partition, send.value): send for send in history.all_sends}
    for partition in partitions.values():
        for value in partition.seen:
            send = sent.get((partition.number, value))
            offsets = _some(partition.offsets_of[value])
            if send is None:
                yield Anomaly("phantom", partition.number, f"{value} at {offsets}")
            elif send.outcome is Outcome.REFUSED:
                yield Anomaly("refused-read", partition.number, f"{value} at {offsets}")


def _read_badly(
    history: History, partitions: dict[int, _Partition], gone: Container[tuple[int, int]]
) -> Iterator[Anomaly]:
    for process, rows in history.polls.items():
        for number, steps in _by_partition(rows).items():
            for before, after in pairwise(steps):
                if MOVED in (before, after):
                    continue
                if after <= before:
                    text = f"{process} was given {before}, then {after}"
                    yield Anomaly("nonmonotonic-poll", number, text)
                    continue
                passed = partitions[number].between(before, after)
                passed = [offset for offset in passed if (number, offset) not in gone]
                if passed:
                    text = f"{process} was given {before}, then {after}; between: {_some(passed)}"
                    yield Anomaly("poll-skip", number, text)


def _by_partition(rows: Iterable[Row]) -> dict[int, list[int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for number, offset, _value in rows:
        found[number].append(offset)
    return found


def _disordered(history: History, partitions: dict[int, _Partition]) -> Iterator[Anomaly]:
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


def _some(numbers: Iterable[int], most: int = 5) -> str:
    listed = sorted(numbers)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(map(str, listed[:most])) + more
