"""Which offsets are read, by how many tasks, and how many at a time.

All of it is pure: what brokers know of their logs comes in as an argument. Offsets go into Spark's
checkpoint as JSON, in the form that its own Kafka source has there:
`{"topic": {"0": 23, "1": 42}}`, each the offset of the next record to be read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from ..types import EARLIEST, LATEST, TopicPartition
from .errors import OptionError
from .options import Limits, Splitting
from .values import Bound

#: By partition, the offset of the next record.
Offsets = dict[TopicPartition, int]
#: Gives the offsets of times, EARLIEST or LATEST; LATEST where nothing is as young.
LookUp = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]]


@dataclass(frozen=True, slots=True)
class Range:
    """Records of one partition, from `start` up to `end`, which is not included."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def place(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """How many offsets there are; fewer may have records."""
        return self.end - self.start


# JSON.


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Give offsets in the form that is kept in checkpoints."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(found: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Read offsets from a checkpoint."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, some in found.items()
        for partition, offset in some.items()
    }


# Where to start and to end.


def resolve_start(
    bound: Bound, places: Iterable[TopicPartition], look_up: LookUp, late_start: str = "error"
) -> Offsets:
    """Give the offsets to start at. Raises OptionError for partitions that do not match."""
    found, unmatched = _resolve(bound, places, look_up, "starting")
    if unmatched and late_start == "error":
        names = ", ".join(map(str, sorted(unmatched)))
        raise OptionError(
            f"no record of {names} is as young as the starting timestamp;"
            " with startingOffsetsByTimestampStrategy=latest reading starts at the end"
        )
    return found


def resolve_end(bound: Bound, places: Iterable[TopicPartition], look_up: LookUp) -> Offsets:
    """Give the offsets to end at; where a time is later than all records, that is the end."""
    return _resolve(bound, places, look_up, "ending")[0]


def _resolve(
    bound: Bound, places: Iterable[TopicPartition], look_up: LookUp, which: str
) -> tuple[Offsets, set[TopicPartition]]:
    """Give the offset of each partition, and those where no record is as young as asked for."""
    wanted = set(places)
    if bound.everywhere is not None:
        asked = dict.fromkeys(wanted, bound.everywhere)
    else:
        asked = dict(bound.by_place)
        if missing := wanted - asked.keys():
            names = ", ".join(map(str, sorted(missing)))
            raise OptionError(f"the {which} offsets say nothing of {names}: all are needed")
        if extra := asked.keys() - wanted:
            names = ", ".join(map(str, sorted(extra)))
            raise OptionError(f"the {which} offsets speak of {names}, which are not read")
    if bound.is_time:
        found = dict(look_up(asked))
        unmatched = {place for place, offset in found.items() if offset == LATEST}
        found.update(look_up(dict.fromkeys(unmatched, LATEST)))
        return found, unmatched
    ends = {place: offset for place, offset in asked.items() if offset < 0}
    return {**asked, **(look_up(ends) if ends else {})}, set()


# Streams.


def is_too_little(start: Offsets, latest: Offsets, limits: Limits, waited_ms: float) -> bool:
    """Whether a micro-batch should wait for more records."""
    if limits.min_offsets is None or waited_ms >= limits.max_delay_ms:
        return False
    new = sum(max(0, end - start.get(place, end)) for place, end in latest.items())
    return new < limits.min_offsets


def rate_limited(start: Offsets, latest: Offsets, most: int) -> Offsets:
    """Take at most so many offsets, of each partition in proportion to what it has.

    Nobody starves: a partition that has something gives at least one, as with Spark's own source,
    so that there may be a few more where there are more partitions than offsets to take.
    """
    sizes = {place: max(0, end - start.get(place, end)) for place, end in latest.items()}
    total = sum(sizes.values())
    if total <= most:
        return latest
    busy = [place for place, size in sizes.items() if size]
    spare, wanted = max(0, most - len(busy)), total - len(busy)
    shares = {place: 1 + spare * (sizes[place] - 1) // max(1, wanted) for place in busy}
    left = most - sum(shares.values())
    for place in sorted(shares, key=lambda one: sizes[one], reverse=True):
        if left <= 0:
            break
        extra = min(left, sizes[place] - shares[place])
        shares[place] += extra
        left -= extra
    return {
        place: start[place] + shares[place] if place in shares else end
        for place, end in latest.items()
    }


def capped(latest: Offsets, target: Offsets) -> Offsets:
    """Go no further than a target that was set before; what is not in it is not read."""
    return {place: min(end, target[place]) for place, end in latest.items() if place in target}


def kept(start: Offsets, latest: Offsets) -> Offsets:
    """Stay where we are in partitions that have nothing new."""
    return {**latest, **{place: start[place] for place in start.keys() & latest.keys()}}


def ranges_between(
    start: Offsets,
    end: Offsets,
    earliest: Callable[[Iterable[TopicPartition]], Offsets],
    on_loss: Callable[[str], None],
) -> list[Range]:
    """Give what is to be read between two offsets of a stream.

    Partitions that are new since the start are read from their beginning. `on_loss` is told of
    what cannot be read: it raises, or goes on.
    """
    if gone := start.keys() - end.keys():
        names = ", ".join(map(str, sorted(gone)))
        on_loss(f"Partitions {names} are gone, with what was not read of them")
    fresh = end.keys() - start.keys()
    shrunk = {place for place in end.keys() & start.keys() if end[place] < start[place]}
    for place in sorted(shrunk):
        on_loss(f"{place} ends at offset {end[place]}, and was read up to {start[place]} before")
    begin = {**start, **(earliest(fresh | shrunk) if fresh or shrunk else {})}
    for place in sorted(fresh):
        if begin[place] > 0:
            on_loss(f"{place} is new, and begins at offset {begin[place]} instead of 0")
    return ranges_of(begin, end)


# Tasks.


def ranges_of(start: Offsets, end: Offsets) -> list[Range]:
    """Give a range for each partition that has something between its start and its end."""
    return [
        Range(*place, start[place], end[place])
        for place in sorted(end)
        if start.get(place, end[place]) < end[place]
    ]


def split(ranges: list[Range], splitting: Splitting) -> list[Range]:
    """Share ranges out: no more than so many offsets each, and at least so many ranges."""
    if splitting.max_records is not None:
        most = splitting.max_records
        ranges = [part for one in ranges for part in _cut(one, math.ceil(one.size / most))]
    least = splitting.min_partitions
    if least is None or len(ranges) >= least:
        return ranges
    total = sum(one.size for one in ranges)
    return [part for one in ranges for part in _cut(one, math.ceil(least * one.size / total))]


def _cut(whole: Range, parts: int) -> list[Range]:
    """Cut a range into so many, all about as large; each has something."""
    parts = min(parts, whole.size)
    edges = [whole.start + whole.size * number // parts for number in range(parts + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(edges)]


def earliest_of(look_up: LookUp) -> Callable[[Iterable[TopicPartition]], Offsets]:
    """Give what looks up where partitions begin."""
    return lambda places: dict(look_up(dict.fromkeys(places, EARLIEST)))
