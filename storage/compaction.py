"""Compaction: of each key the last record stays, and no offset ever changes.

A pass has three steps. `plan` belongs to the log's thread, as does the commit but for its waits for
the disk; `cleaner.rewrite`, which does the work, reads files through descriptors of its own and may
run in another thread:

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

from .cleaner import CompactionPlan, RewrittenLog, remove_cleaned_files
from .disk import NO_SPACE_ERRORS, read_json
from .log import CLEANER_OFFSET_FILE, Log
from .segment import Segment
from .segment_indexes import INDEX_SUFFIXES
from .segments import ALL_INDEX_SUFFIXES, CLEANED_SUFFIX
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
        if end_offset > log.checkpointed_recovery_point or segment.flushed_size < segment.size:
            break
        if log.high_watermark is not None and end_offset > log.high_watermark:
            break  # A follower may have to truncate it.
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


class Commit:
    """One step of a commit. `write` waits for the disk, and may run in a thread.

    `next_commit` before it and `finish` after it, whether it failed or not, belong to the log's
    thread. Reads in the meantime use the old file, which stays open.
    """

    def __init__(self, log: Log) -> None:
        self._log = log

    def write(self) -> None:
        """Change the files. Raises OSError."""
        raise NotImplementedError

    def finish(self) -> None:
        """Make the log follow its files."""
        raise NotImplementedError


def commit_next_segment(log: Log, rewritten: RewrittenLog) -> bool:
    """Put the next rewritten segment in place; return whether there is more to do.

    Waits for the disk; `next_commit` does the same in steps. Raises OSError; the log is then
    offline, unless there was only no space.
    """
    commit = next_commit(log, rewritten)
    if commit is None:
        return False
    try:
        commit.write()
    finally:
        commit.finish()
    return not isinstance(commit, _FirstDirtyOffset)


def next_commit(log: Log, rewritten: RewrittenLog) -> Commit | None:
    """Return the next step of a commit; None if there is no more to do.

    Sets `is_abandoned` if the log has changed too much in the meantime.
    """
    if log.offline_reason is not None or rewritten.guard not in log.segments[:-1]:
        # It was truncated or deleted, and with it perhaps the records that replace others.
        remove_cleaned_files(log.disk, rewritten.plan.segments)
        rewritten.is_abandoned = True
        return None
    while rewritten.cleaned:
        cleaned = rewritten.cleaned.popleft()
        segment = cleaned.segment
        if segment not in log.segments:
            remove_cleaned_files(log.disk, [segment])  # Deleted by retention.
        elif cleaned.is_empty and segment is not log.segments[0]:
            rewritten.stats.segments_removed += 1
            rewritten.stats.bytes_after -= cleaned.size
            return _Removal(log, rewritten, segment)
        elif cleaned.has_changed:
            return _Replacement(log, rewritten, segment)
    first_dirty_offset = rewritten.stats.first_dirty_offset
    if first_dirty_offset > rewritten.plan.first_dirty_offset and not rewritten.is_committed:
        rewritten.is_committed = True
        return _FirstDirtyOffset(log, first_dirty_offset)
    return None


class _FirstDirtyOffset(Commit):
    """Writes where the next pass starts."""

    def __init__(self, log: Log, offset: int) -> None:
        super().__init__(log)
        self._offset = offset
        self._truncation_count = log.truncation_count

    def write(self) -> None:
        log = self._log
        try:
            log.disk.replace_file(log.directory / CLEANER_OFFSET_FILE, str(self._offset).encode())
        except OSError as error:
            # If there is only no space, the next pass has more work, and no harm is done.
            if error.errno not in NO_SPACE_ERRORS:
                log.fail(error)
            raise

    def finish(self) -> None:
        if self._log.truncation_count != self._truncation_count:
            self._log.disk.unlink(self._log.directory / CLEANER_OFFSET_FILE)


class _Replacement(Commit):
    """Replaces the files of a segment by the new ones.

    At any moment the log file is the old or the new one. While the indexes might belong to the
    other, there are none. The old transaction index is good for both: it may list transactions
    that have no records any more.
    """

    def __init__(self, log: Log, rewritten: RewrittenLog, old: Segment) -> None:
        super().__init__(log)
        self._rewritten = rewritten
        self._old = old
        self._last_append_ms = old.last_append_time()
        self._new: Segment | None = None
        old.pin()

    def write(self) -> None:
        log, old, disk = self._log, self._old, self._log.disk
        with log.segments.deletion_lock:
            if old.is_dropped:  # By retention, or DeleteRecords.
                remove_cleaned_files(disk, [old])
                return
            try:
                old.keep_indexes()
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
            except OSError as error:
                log.fail(error)
                raise
            finally:
                # Whatever failed: positions in the old file may be wrong for the one that is there
                # now.
                new = Segment(log.directory, old.base_offset, log.files)
                size = new.path(".log").stat().st_size
                new.load(size, old.next_offset, log.config.index_interval_bytes)
                new.last_append_ms = self._last_append_ms
                self._new = new

    def finish(self) -> None:
        old, new, segments = self._old, self._new, self._log.segments
        old.drop()
        if new is None or old not in segments:
            return  # It was deleted in the meantime.
        segments.replace([old], new)
        if old is self._rewritten.guard:
            self._rewritten.guard = new


class _Removal(Commit):
    """Removes an empty segment; the one before it covers its offsets too."""

    def __init__(self, log: Log, rewritten: RewrittenLog, segment: Segment) -> None:
        super().__init__(log)
        self._segment = segment
        before = log.segments[log.segments.index(segment) - 1]
        log.segments.replace([before, segment], before)
        segment.drop()
        if segment is rewritten.guard:
            rewritten.guard = before

    def write(self) -> None:
        log, segment = self._log, self._segment
        try:
            with log.segments.deletion_lock:
                remove_cleaned_files(log.disk, [segment])
                for suffix in (*ALL_INDEX_SUFFIXES, ".log"):
                    log.disk.unlink(segment.path(suffix))
                log.sync_directory()
        except OSError as error:
            log.fail(error)
            raise

    def finish(self) -> None:
        """Nothing: the segment is not part of the log since before `write`."""


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
