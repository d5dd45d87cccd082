"""Compaction: of each key the last record stays, and no offset ever changes.

A pass has three steps. `plan` and `commit` belong to the log's thread; `rewrite`, which is all of
the work, reads files through descriptors of its own and may be called in another:

    plan     sealed segments that are on the device and old enough, if enough of them is dirty:
             not seen by a pass before. `compacted-offset`, a file, says where dirt begins
    rewrite  reads the keys of the dirty part into a map, key → last offset, until it is full; then
             writes each segment that has something to lose again, as `….cleaned` files
    commit   puts them in place, the oldest segment first

What is kept of a tombstone, a record without a value, is its batch's delete horizon: the first pass
that sees it sets it to delete.retention.ms from now, and one after that time drops the tombstone.

A crash during `commit` leaves old segments behind new ones. Nothing is lost by that: a record goes
only if the log has a later one of its key, and that one is in both. Nothing comes back either: a
tombstone goes only after all that is older than it has gone, durably.

Records of an aborted transaction replace nothing, and a pass ends before one that is still open.
"""

from __future__ import annotations

import logging
from itertools import pairwise

from ottla.protocol.configdef import LONG_MAX

from .cleaner import (
    CLEANED,
    MAX_KEYS,
    CleanedSegment,
    CleanerStats,
    CompactionPlan,
    RewrittenLog,
    remove_cleaned,
    rewrite,
)
from .config import LogConfig
from .disk import NO_ROOM, read_json
from .log import COMPACTED_FILE, Log
from .segment import Segment

logger = logging.getLogger(__name__)


def compact(
    log: Log, now_ms: int, *, max_keys: int = MAX_KEYS, bytes_per_second: int | None = None
) -> CleanerStats | None:
    """Make a pass over a log in one go, if it is worth it; None if it is not."""
    planned = plan(log, now_ms)
    if planned is None:
        return None
    rewritten = rewrite(planned, max_keys=max_keys, bytes_per_second=bytes_per_second)
    return commit(log, rewritten)


def plan(log: Log, now_ms: int) -> CompactionPlan | None:
    """Say what a pass would look at; None if it is not worth it.

    An active segment that has been waiting for max.compaction.lag.ms is rolled, for the next one.
    """
    config = log.config
    if not config.compacts or log.offline_reason is not None:
        return None
    late = now_ms - config.max_compaction_lag_ms
    if config.max_compaction_lag_ms < LONG_MAX and _oldest(log.active_segment) < late:
        log.roll()
    dirty_offset = _read_dirty_offset(log)
    segments: list[Segment] = []
    dirty: list[tuple[Segment, int]] = []
    for segment, following in pairwise(log.segments):
        end_offset = following.base_offset
        if end_offset > log.recovery_point or segment.flushed_size < segment.size:
            break
        if end_offset > dirty_offset:
            if _is_too_young(segment, config, now_ms):
                break
            dirty.append((segment, _position_of(segment, dirty_offset)))
        segments.append(segment)
    dirty_bytes = sum(segment.size - position for segment, position in dirty)
    if not dirty_bytes:
        return None
    is_enough = dirty_bytes / sum(s.size for s in segments) >= config.min_cleanable_dirty_ratio
    if not is_enough and (
        config.max_compaction_lag_ms == LONG_MAX
        or min(_oldest(segment, position) for segment, position in dirty) >= late
    ):
        return None
    return CompactionPlan(
        files=log.files,
        config=config,
        now_ms=now_ms,
        segments=tuple(segments),
        dirty=tuple(dirty),
        dirty_bytes=dirty_bytes,
        dirty_offset=dirty_offset,
        end_offset=log.segments[len(segments)].base_offset,
        last_offsets={state.producer_id: state.last_offset for state in log.producer_states},
    )


def commit(log: Log, rewritten: RewrittenLog) -> CleanerStats | None:
    """Put rewritten segments in place; None if the log has changed too much meanwhile.

    Raises OSError, and the log is offline then unless there was merely no room.
    """
    while commit_next_segment(log, rewritten):
        pass
    return None if rewritten.is_abandoned else rewritten.stats


def commit_next_segment(log: Log, rewritten: RewrittenLog) -> bool:
    """Do one segment's part of `commit`; say whether there is more to do.

    Each waits twice for the device, so an event loop may want to do other things in between.
    """
    if log.offline_reason is not None or rewritten.guard not in log.segments[:-1]:
        # It was truncated, or all of it deleted: what was to replace a record may be gone.
        remove_cleaned(log.disk, rewritten.plan.segments)
        rewritten.is_abandoned = True
        return False
    try:
        if rewritten.cleaned:
            _put_in_place(log, rewritten, rewritten.cleaned.popleft())
            return True
    except OSError as error:
        log.fail(error)
        raise
    if rewritten.stats.dirty_offset > rewritten.plan.dirty_offset:
        _save_dirty_offset(log, rewritten.stats.dirty_offset)
    return False


def _save_dirty_offset(log: Log, offset: int) -> None:
    try:
        log.disk.replace_file(log.directory / COMPACTED_FILE, str(offset).encode())
    except OSError as error:
        # Where there is merely no room, the next pass has more work, and no harm is done.
        if error.errno not in NO_ROOM:
            log.fail(error)
        raise


def _oldest(segment: Segment, position: int = 0) -> int:
    """Give the time of a segment's first batch from a position on, which stands for its oldest."""
    batch = next(segment.batches(position), None)
    return LONG_MAX if batch is None or batch.max_timestamp < 0 else batch.max_timestamp


def _is_too_young(segment: Segment, config: LogConfig, now_ms: int) -> bool:
    # Without a lag, timestamps do not matter: a producer's clock may be ahead.
    lag = config.min_compaction_lag_ms
    return lag > 0 and segment.max_timestamp > now_ms - lag


def _position_of(segment: Segment, offset: int) -> int:
    if offset <= segment.base_offset:
        return 0
    batch = segment.find(offset)
    return segment.size if batch is None else batch.position


def _read_dirty_offset(opened: Log) -> int:
    """Read where the dirty part begins. If in doubt all of it is: that is more work, no harm."""
    try:
        found = read_json(opened.directory / COMPACTED_FILE)
    except ValueError:
        found = -1
    if found is None:
        return 0
    if not isinstance(found, int) or not 0 <= found <= opened.end_offset:
        logger.warning("%s: %s is damaged", opened.directory.name, COMPACTED_FILE)
        return 0
    return found


def _put_in_place(log: Log, rewritten: RewrittenLog, cleaned: CleanedSegment) -> None:
    segment, stats = cleaned.segment, rewritten.stats
    if segment not in log.segments:
        remove_cleaned(log.disk, [segment])  # deleted by retention
        return
    if cleaned.is_void and segment is not log.segments[0]:
        new = _remove(log, segment)
        stats.segments_removed += 1
        stats.bytes_after -= cleaned.size
    elif cleaned.has_changed:
        new = _replace(log, segment)
    else:
        return
    if segment is rewritten.guard:
        rewritten.guard = new


def _replace(log: Log, old: Segment) -> Segment:
    """Put the new files of a segment in the place of the old ones.

    At any moment the log is one or the other. It has no index while that might be of the other.
    """
    disk = log.disk
    old.drop()  # a sync of it that is under way in another thread may fail now
    try:
        for suffix in (".index", ".timeindex"):
            disk.unlink(old.path(suffix))
        disk.sync_directory(log.directory)
        disk.rename(old.path(".log" + CLEANED), old.path(".log"))
        disk.sync_directory(log.directory)
        for suffix in (".index", ".timeindex"):
            disk.rename(old.path(suffix + CLEANED), old.path(suffix))
    finally:
        # Whatever failed: positions in the old file may mean nothing in the one that is there now.
        new = Segment(log.directory, old.base_offset, log.files)
        size = new.path(".log").stat().st_size
        new.load(size, old.next_offset, log.config.index_interval_bytes)
        log.swap([old], new)
    return new


def _remove(log: Log, segment: Segment) -> Segment:
    """Remove a segment of which nothing is left; the one before it stands for its offsets too."""
    before = log.segments[log.segments.index(segment) - 1]
    log.swap([before, segment], before)
    segment.drop()
    remove_cleaned(log.disk, [segment])
    for suffix in (".index", ".timeindex", ".log"):
        log.disk.unlink(segment.path(suffix))
    log.disk.sync_directory(log.directory)
    return before
