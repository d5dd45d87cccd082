"""Which segments are old enough, or too many, to be deleted.

Pure: it is given what there is to know of the segments and the time, and answers with a number.
Deleting is the log's business.

A segment is as old as the youngest record in it, by the record's timestamp. In a topic of
CreateTime that is the producer's own clock: a record from the future keeps its segment, and all
behind it, until that time has come, and a log filled with records of long ago may go at once.
message.timestamp.after.max.ms and retention.bytes are there against the first; LogAppendTime is
against both. The broker's own clock counts too: where it jumps ahead, so does retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .config import LogConfig


class SegmentSummary(NamedTuple):
    """What retention has to know of a segment. A largest timestamp of -1 is not known."""

    base_offset: int
    size: int
    max_timestamp: int


def expired(segments: Sequence[SegmentSummary], config: LogConfig, now_ms: int) -> int:
    """Say how many segments, from the oldest on, may be deleted; the last one is the active one.

    A segment goes if all its records are older than retention.ms, or if the log has retention.bytes
    without it. The first one that stays keeps all behind it: a log has no holes. The active segment
    counts for the size and always stays; see `should_roll_for_retention`.
    """
    if not config.deletes:
        return 0
    kept_bytes = sum(segment.size for segment in segments)
    count = 0
    for segment in segments[:-1]:
        without_it = kept_bytes - segment.size
        is_surplus = 0 <= config.retention_bytes <= without_it
        # An empty one, as compaction may leave behind, has no age and is in nobody's way.
        is_old = config.retention_ms >= 0 and segment.size == 0
        if not (is_surplus or is_old or _is_past(segment, config, now_ms)):
            break
        kept_bytes = without_it
        count += 1
    return count


def should_roll_for_retention(active: SegmentSummary, config: LogConfig, now_ms: int) -> bool:
    """Whether all of the active segment is older than retention.ms.

    A log to which nobody writes would keep its last records for ever: once a new segment has been
    rolled, `expired` lets the old one go.
    """
    return config.deletes and active.size > 0 and _is_past(active, config, now_ms)


def _is_past(segment: SegmentSummary, config: LogConfig, now_ms: int) -> bool:
    """Whether the youngest record is past retention.ms; where its time is unknown, it is not."""
    if config.retention_ms < 0:
        return False
    return 0 <= segment.max_timestamp < now_ms - config.retention_ms
