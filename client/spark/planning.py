"""Planning: which offsets are read, by how many tasks, and how many per micro-batch.

Pure functions: what brokers know about their logs is passed in. Offsets are stored in Spark's
checkpoint as JSON, in the format of its own Kafka source: `{"topic": {"0": 23, "1": 42}}`, each the
offset of the next record to read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise

from ..types import EARLIEST, LATEST, TopicPartition
from .errors import OptionError
from .options import SplitOptions, TriggerLimits
from .values import OffsetBound

#: By partition, the offset of the next record.
Offsets = dict[TopicPartition, int]
#: Looks up offsets by timestamp, EARLIEST or LATEST; returns LATEST if no record is as recent.
LookUp = Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]]


@dataclass(frozen=True, slots=True)
class PartitionRange:
    """Offsets of one partition from `start` to `end`, exclusive."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def tp(self) -> TopicPartition:
        """The partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def size(self) -> int:
        """The number of offsets; fewer may have records."""
        return self.end - self.start


# JSON.


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """Return offsets in the format of checkpoints."""
    by_topic: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        by_topic.setdefault(topic, {})[str(partition)] = offset
    return by_topic


def from_json(by_topic: Mapping[str, Mapping[str, int]]) -> Offsets:
    """Parse offsets from a checkpoint."""
    return {
        TopicPartition(topic, int(partition)): offset
        for topic, partitions in by_topic.items()
        for partition, offset in partitions.items()
    }


# Starting and ending offsets.


def resolve_start(
    bound: OffsetBound,
    tps: Iterable[TopicPartition],
    look_up: LookUp,
    timestamp_strategy: str = "error",
) -> Offsets:
    """Return the starting offsets. Raises OptionError if `bound` does not match the partitions."""
    offsets, unmatched = _resolve(bound, tps, look_up, "starting")
    if unmatched and timestamp_strategy == "error":
        raise OptionError(
            f"No record of {_joined(unmatched)} is as recent as the starting timestamp:"
            " set startingOffsetsByTimestampStrategy=latest to start at the end"
        )
    return offsets


def resolve_end(bound: OffsetBound, tps: Iterable[TopicPartition], look_up: LookUp) -> Offsets:
    """Return the ending offsets: the log end, if the timestamp is later than all records."""
    return _resolve(bound, tps, look_up, "ending")[0]


def _resolve(
    bound: OffsetBound, tps: Iterable[TopicPartition], look_up: LookUp, which: str
) -> tuple[Offsets, set[TopicPartition]]:
    """Return the offset of each partition, and those without a record as recent as requested."""
    selected = set(tps)
    if bound.everywhere is not None:
        values = dict.fromkeys(selected, bound.everywhere)
    else:
        values = dict(bound.by_partition)
        if missing := selected - values.keys():
            raise OptionError(
                f"The {which} offsets lack {_joined(missing)}: every partition is required"
            )
        if extra := values.keys() - selected:
            raise OptionError(f"The {which} offsets name {_joined(extra)}, which is not read")
    if bound.is_timestamp:
        offsets = dict(look_up(values))
        unmatched = {tp for tp, offset in offsets.items() if offset == LATEST}
        offsets.update(look_up(dict.fromkeys(unmatched, LATEST)))
        return offsets, unmatched
    ends = {tp: offset for tp, offset in values.items() if offset < 0}
    return {**values, **(look_up(ends) if ends else {})}, set()


def _joined(tps: Iterable[TopicPartition]) -> str:
    return ", ".join(map(str, sorted(tps)))


# Streams.


def is_below_minimum(
    start: Offsets, latest: Offsets, limits: TriggerLimits, waited_ms: float
) -> bool:
    """Whether a micro-batch should wait for more records."""
    if limits.min_offsets is None or waited_ms >= limits.max_delay_ms:
        return False
    new = sum(max(0, end - start.get(tp, end)) for tp, end in latest.items())
    return new < limits.min_offsets


def rate_limited(start: Offsets, latest: Offsets, max_offsets: int) -> Offsets:
    """Limit the number of offsets, shared among partitions in proportion to their backlog.

    No partition starves: each one with a backlog gets at least one offset, as with Spark's own
    source, so that there may be a few more than `max_offsets` if there are more partitions.
    """
    backlogs = {tp: max(0, end - start.get(tp, end)) for tp, end in latest.items()}
    total = sum(backlogs.values())
    if total <= max_offsets:
        return latest
    busy = [tp for tp, backlog in backlogs.items() if backlog]
    spare, others = max(0, max_offsets - len(busy)), total - len(busy)
    shares = {tp: 1 + spare * (backlogs[tp] - 1) // max(1, others) for tp in busy}
    remaining = max_offsets - sum(shares.values())
    for tp in sorted(shares, key=lambda tp: backlogs[tp], reverse=True):
        if remaining <= 0:
            break
        extra = min(remaining, backlogs[tp] - shares[tp])
        shares[tp] += extra
        remaining -= extra
    return {tp: start[tp] + shares[tp] if tp in shares else end for tp, end in latest.items()}


def limited_to(latest: Offsets, target: Offsets) -> Offsets:
    """Limit offsets to a target that was set before; partitions not in it are not read."""
    return {tp: min(end, target[tp]) for tp, end in latest.items() if tp in target}


def without_progress(start: Offsets, latest: Offsets) -> Offsets:
    """Return the partitions of `latest`, at their offsets of `start` where it has them."""
    return {**latest, **{tp: start[tp] for tp in start.keys() & latest.keys()}}


def ranges_between(
    start: Offsets,
    end: Offsets,
    earliest: Callable[[Iterable[TopicPartition]], Offsets],
    on_loss: Callable[[str], None],
) -> list[PartitionRange]:
    """Return the ranges between two offsets of a stream.

    New partitions are read from their beginning. `on_loss` is called with what cannot be read: it
    raises, or returns to continue.
    """
    if deleted := start.keys() - end.keys():
        on_loss(f"Partitions {_joined(deleted)} were deleted before they were read to their end")
    added = end.keys() - start.keys()
    shrunk = {tp for tp in end.keys() & start.keys() if end[tp] < start[tp]}
    for tp in sorted(shrunk):
        on_loss(f"{tp} ends at offset {end[tp]}, but was read up to {start[tp]} before")
    begin = {**start, **(earliest(added | shrunk) if added or shrunk else {})}
    for tp in sorted(added):
        if begin[tp] > 0:
            on_loss(f"{tp} is new, but begins at offset {begin[tp]} instead of 0")
    return ranges_of(begin, end)


# Tasks.


def ranges_of(start: Offsets, end: Offsets) -> list[PartitionRange]:
    """Return the non-empty ranges between starting and ending offsets."""
    return [
        PartitionRange(*tp, start[tp], end[tp])
        for tp in sorted(end)
        if start.get(tp, end[tp]) < end[tp]
    ]


def split(ranges: list[PartitionRange], options: SplitOptions) -> list[PartitionRange]:
    """Split ranges to a maximum number of offsets each, and a minimum number of ranges."""
    if options.max_records is not None:
        max_records = options.max_records
        ranges = [part for one in ranges for part in _cut(one, math.ceil(one.size / max_records))]
    min_partitions = options.min_partitions
    if min_partitions is None or len(ranges) >= min_partitions:
        return ranges
    total = sum(one.size for one in ranges)
    return [
        part for one in ranges for part in _cut(one, math.ceil(min_partitions * one.size / total))
    ]


def _cut(whole: PartitionRange, parts: int) -> list[PartitionRange]:
    """Cut a range into non-empty parts of about the same size."""
    parts = min(parts, whole.size)
    edges = [whole.start + whole.size * number // parts for number in range(parts + 1)]
    return [replace(whole, start=start, end=end) for start, end in pairwise(edges)]


def earliest_of(look_up: LookUp) -> Callable[[Iterable[TopicPartition]], Offsets]:
    """Return a function that looks up the earliest offsets of partitions."""
    return lambda tps: dict(look_up(dict.fromkeys(tps, EARLIEST)))
