"""Which segments retention.ms and retention.bytes allow to delete.

Pure functions of segment summaries, config and time; the log deletes.

A segment is as old as its newest record, which is the largest timestamp of its records. With
CreateTime that is the producer's clock: a record from the future keeps its segment, and all
segments after it, until that time has passed, and a log filled with very old records may be deleted
at once. message.timestamp.after.max.ms and retention.bytes limit the former; LogAppendTime prevents
both. A segment whose records have no timestamps, or were not validated, is as old as its last
append. The broker's clock matters too: if it jumps ahead, so does retention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .config import LogConfig


class SegmentSummary(NamedTuple):
    """What retention needs to know of a segment; `newest_record_ms` is -1 if it is unknown."""

    base_offset: int
    size: int
    newest_record_ms: int


def count_deletable(segments: Sequence[SegmentSummary], config: LogConfig, now_ms: int) -> int:
    """Return how many segments, from the oldest on, may be deleted. The last one is active.

    A segment may be deleted if all its records are older than retention.ms, or if the log has at
    least retention.bytes without it. The first segment that stays keeps all after it: a log has no
    holes. The active segment counts for the size and always stays; see `should_roll_for_retention`.
    """
    if not config.deletes:
        return 0
    remaining_bytes = sum(segment.size for segment in segments)
    count = 0
    for segment in segments[:-1]:
        bytes_without = remaining_bytes - segment.size
        is_surplus = 0 <= config.retention_bytes <= bytes_without
        # Compaction may leave an empty segment, which has no age.
        is_empty = config.retention_ms >= 0 and segment.size == 0
        if not (is_surplus or is_empty or _is_expired(segment, config, now_ms)):
            break
        remaining_bytes = bytes_without
        count += 1
    return count


def should_roll_for_retention(active: SegmentSummary, config: LogConfig, now_ms: int) -> bool:
    """Whether the active segment is entirely older than retention.ms.

    An idle log would otherwise keep its last records forever: after the roll, `count_deletable`
    includes the old segment.
    """
    return config.deletes and active.size > 0 and _is_expired(active, config, now_ms)


def _is_expired(segment: SegmentSummary, config: LogConfig, now_ms: int) -> bool:
    """Whether the newest record is older than retention.ms; False if its time is unknown."""
    if config.retention_ms < 0:
        return False
    return 0 <= segment.newest_record_ms < now_ms - config.retention_ms
