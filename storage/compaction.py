"""Compaction: of each key the last record stays, and no offset ever changes.

A pass has three steps. `plan` and the commit belong to the log's thread; `cleaner.rewrite`, which
does the work, reads files through descriptors of its own and may run in another thread:

    plan     selects sealed segments that are durable and old enough, if enough of them is dirty,
             that is, not seen by an earlier pass. The file `compacted-offset` has the first dirty
             offset
    rewrite  reads the keys of the dirty section into a map, key → last offset, until the map is
             full; then rewrites each segment that has something to lose to `….cleaned` files
    commit   puts them in place, oldest segment first

A tombstone, a record without a value, stays until its batch's delete horizon: the first pass that
sees it sets the horizon to delete.retention.ms from now, and a pass after that time drops it.

A crash during the commit leaves old segments after new ones. That loses nothing: a record is only
dropped if the log has a later one with its key, and that one is in both. Nothing reappears either:
a tombstone is only dropped after all older records of its key have been dropped durably.

Records of an aborted transaction replace nothing and are dropped, and a pass ends before the first
transaction whose marker is not among its segments. A marker stays as long as any batch of its
transaction does, or if it is the last entry of its producer, whose epoch it has. After that it gets
a delete horizon, as tombstones do. When a segment is rewritten, so is its transaction index,
without the transactions that have no records left.
"""

from __future__ import annotations

import logging
from itertools import pairwise

from ottla.protocol.configdef import LONG_MAX

from .cleaner import (
    CLEANED_SUFFIX,
    CleanedSegment,
    CompactionPlan,
    RewrittenLog,
    remove_cleaned_files,
)
from .disk import NO_SPACE_ERRORS, read_json
from .log import CLEANER_OFFSET_FILE, Log
from .segment import Segment
from .segment_indexes import INDEX_SUFFIXES
from .segments import ALL_INDEX_SUFFIXES
from .transaction_index import TRANSACTION_INDEX_SUFFIX

logger = logging.getLogger(__name__)


def plan(log: Log, now_ms: int) -> CompactionPlan | None:
    """Return what a pass would work on; None if there is too little to do.

    An active segment that is older than max.compaction.lag.ms is rolled, for the next pass.
    """
    config = log.config
    if not config.compacts or log.offline_reason is not None:
        return None
    lag_deadline = now_ms - config.max_compaction_lag_ms
    has_max_lag = config.max_compaction_lag_ms < LONG_MAX
    if has_max_lag and _first_timestamp(log.active_segment) < lag_deadline:
        log.roll()
    first_dirty_offset = _read_first_dirty_offset(log)
    unstable_offset = log.first_unstable_offset
    segments: list[Segment] = []
    dirty: list[tuple[Segment, int]] = []
    for segment, following in pairwise(log.segments):
        end_offset = following.base_offset
        if end_offset > log.recovery_point or segment.flushed_size < segment.size:
            break
        if unstable_offset is not None and unstable_offset <= segment.base_offset:
            break
        if end_offset > first_dirty_offset:
            if _is_within_min_lag(log, segment, now_ms):
                break
            dirty.append((segment, _position_of(segment, first_dirty_offset)))
        segments.append(segment)
    dirty_bytes = sum(segment.size - position for segment, position in dirty)
    if not dirty_bytes or unstable_offset == first_dirty_offset:
        return None
    dirty_ratio = dirty_bytes / sum(segment.size for segment in segments)
    if dirty_ratio < config.min_cleanable_dirty_ratio and not (
        has_max_lag
        and min(_first_timestamp(segment, position) for segment, position in dirty) < lag_deadline
    ):
        return None
    return CompactionPlan(
        files=log.files,
        config=config,
        now_ms=now_ms,
        segments=tuple(segments),
        dirty=tuple(dirty),
        dirty_bytes=dirty_bytes,
        first_dirty_offset=first_dirty_offset,
        end_offset=log.segments[len(segments)].base_offset,
        last_offsets={state.producer_id: state.last_offset for state in log.producer_states},
    )


def commit_next_segment(log: Log, rewritten: RewrittenLog) -> bool:
    """Put the next rewritten segment in place; return whether there is more to do.

    Sets `is_abandoned` if the log has changed too much in the meantime. Each segment waits twice
    for the device, so that an event loop can do other work in between. Raises OSError; the log is
    then offline, unless there was only no space.
    """
    if log.offline_reason is not None or rewritten.guard not in log.segments[:-1]:
        # It was truncated or deleted, and with it perhaps the records that replace others.
        remove_cleaned_files(log.disk, rewritten.plan.segments)
        rewritten.is_abandoned = True
        return False
    try:
        if rewritten.cleaned:
            _put_in_place(log, rewritten, rewritten.cleaned.popleft())
            return True
    except OSError as error:
        log.fail(error)
        raise
    if rewritten.stats.first_dirty_offset > rewritten.plan.first_dirty_offset:
        _write_first_dirty_offset(log, rewritten.stats.first_dirty_offset)
    return False


def _read_first_dirty_offset(log: Log) -> int:
    """Read where the dirty section starts; 0 if in doubt, which only means more work."""
    try:
        offset = read_json(log.directory / CLEANER_OFFSET_FILE)
    except ValueError:
        offset = -1
    if offset is None:
        return 0
    if not isinstance(offset, int) or not 0 <= offset <= log.end_offset:
        name = log.directory.name
        logger.warning("Log %s: %s is damaged, ignoring it", name, CLEANER_OFFSET_FILE)
        return 0
    return offset


def _write_first_dirty_offset(log: Log, offset: int) -> None:
    try:
        log.disk.replace_file(log.directory / CLEANER_OFFSET_FILE, str(offset).encode())
    except OSError as error:
        # If there is only no space, the next pass has more work, and no harm is done.
        if error.errno not in NO_SPACE_ERRORS:
            log.fail(error)
        raise


def _first_timestamp(segment: Segment, position: int = 0) -> int:
    """Return the timestamp of the first batch from a position on, as that of the oldest record."""
    batch = next(segment.batches(position), None)
    return LONG_MAX if batch is None or batch.max_timestamp < 0 else batch.max_timestamp


def _is_within_min_lag(log: Log, segment: Segment, now_ms: int) -> bool:
    # Without a lag, timestamps do not matter: a producer's clock may be ahead.
    lag = log.config.min_compaction_lag_ms
    return lag > 0 and log.newest_record_ms(segment) > now_ms - lag


def _position_of(segment: Segment, offset: int) -> int:
    if offset <= segment.base_offset:
        return 0
    batch = segment.find(offset)
    return segment.size if batch is None else batch.position


def _put_in_place(log: Log, rewritten: RewrittenLog, cleaned: CleanedSegment) -> None:
    segment, stats = cleaned.segment, rewritten.stats
    if segment not in log.segments:
        remove_cleaned_files(log.disk, [segment])  # Deleted by retention.
        return
    if cleaned.is_empty and segment is not log.segments[0]:
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
    """Replace the files of a segment by the new ones.

    At any moment the log file is the old or the new one. While the indexes might belong to the
    other, there are none. The old transaction index is good for both: it may list transactions
    that have no records any more.
    """
    disk = log.disk
    last_append_ms = old.last_append_time()
    old.drop()  # From here on, a flush of it in another thread may fail.
    try:
        for suffix in INDEX_SUFFIXES:
            disk.unlink(old.path(suffix))
        log.sync_directory()
        disk.rename(old.path(".log" + CLEANED_SUFFIX), old.path(".log"))
        log.sync_directory()
        for suffix in INDEX_SUFFIXES:
            disk.rename(old.path(suffix + CLEANED_SUFFIX), old.path(suffix))
        transactions = old.path(TRANSACTION_INDEX_SUFFIX)
        try:
            disk.rename(old.path(TRANSACTION_INDEX_SUFFIX + CLEANED_SUFFIX), transactions)
        except FileNotFoundError:
            disk.unlink(transactions)
    finally:
        # Whatever failed: positions in the old file may be wrong for the file that is there now.
        new = Segment(log.directory, old.base_offset, log.files)
        size = new.path(".log").stat().st_size
        new.load(size, old.next_offset, log.config.index_interval_bytes)
        new.last_append_ms = last_append_ms
        log.segments.replace([old], new)
    return new


def _remove(log: Log, segment: Segment) -> Segment:
    """Remove an empty segment; the one before it covers its offsets too, and is returned."""
    before = log.segments[log.segments.index(segment) - 1]
    log.segments.replace([before, segment], before)
    segment.drop()
    remove_cleaned_files(log.disk, [segment])
    for suffix in (*ALL_INDEX_SUFFIXES, ".log"):
        log.disk.unlink(segment.path(suffix))
    log.sync_directory()
    return before
