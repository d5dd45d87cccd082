"""A partition's log: segments in a row, of which the last one grows.

What is promised:

- offsets go up one by one with each append, and a batch is stored as it came but for its offset,
  its leader epoch and, where the topic wants it, its time;
- an append is whole or not at all. When it returns, the operating system has it (a crash of this
  process loses nothing); when `sync` has returned after it, the device has it;
- a read gives whole batches, as a view of mapped pages that stays valid whatever the log does.

Three offsets, start ≤ flushed ≤ end: the first that is left, the first that may not be on the
device, and the next to be given. All but `flush` and `purge_deleted_segments` is for one thread:
in the broker, the event loop.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ottla.protocol.batch import RecordBatch

from .config import LogConfig
from .disk import NO_ROOM, Buffer, read_json
from .errors import (
    BatchTooLargeError,
    InvalidTimestampError,
    KeylessRecordError,
    LogOfflineError,
    OffsetOutOfRangeError,
    SequenceError,
)
from .files import OpenFiles
from .index import TIME_ENTRY_BYTES
from .leader_epochs import LeaderEpochs
from .producer_states import ProducerStates
from .retention import SegmentSummary, expired, should_roll_for_retention
from .segment import Segment

logger = logging.getLogger(__name__)

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
START_FILE = "log-start-offset"
#: Up to where compaction has seen the log; see compaction.py.
COMPACTED_FILE = "compacted-offset"
DELETED = ".deleted"


class LogAppendInfo(NamedTuple):
    """What became of an append."""

    base_offset: int
    last_offset: int
    append_time_ms: int  # -1: the records have their producer's time
    is_duplicate: bool = False


class LogSlice(NamedTuple):
    """Whole batches in one segment: what a read gives."""

    view: memoryview
    segment: Segment
    position: int

    def is_in_page_cache(self) -> bool:
        """Whether sending it will likely not wait for the device."""
        return self.segment.is_in_page_cache(self.position, self.position + len(self.view))

    def load_into_page_cache(self) -> None:
        """Bring it into the page cache; may be called in a thread."""
        self.segment.load_into_page_cache(self.position, self.position + len(self.view))


class TimestampAndOffset(NamedTuple):
    """A record's offset, and its time."""

    offset: int
    timestamp: int


class Log:
    """One partition's log; made by `recovery.open_log`."""

    def __init__(self, directory: Path, config: LogConfig, files: OpenFiles) -> None:
        self.directory = directory
        self.set_config(config)
        self.files = files
        self.disk = files.disk
        self.segments: list[Segment] = []
        self.producer_states = ProducerStates()
        self.leader_epochs = LeaderEpochs()
        #: The offsets of which there are snapshots of the producers, in order.
        self.snapshots: list[int] = []
        self.start_offset = 0
        self.recovery_point = 0
        #: When `sync` was last asked for, on the caller's clock.
        self.last_flush_ms = 0
        #: Why the log is offline: it takes no appends and is not flushed. None: it is online.
        self.offline_reason: str | None = None
        #: Called before a truncation, when `flushed_offset` says already what will be left of it.
        self.before_truncation: Callable[[], None] = lambda: None
        self._bases: list[int] = []
        self._deleted: list[Segment] = []
        self._names_dirty = False
        self._epochs_dirty = False
        self._as_found: tuple[int, ...] = ()
        # A sync that began before a truncation says nothing of what was appended after it.
        self._truncations = 0

    def __repr__(self) -> str:
        return f"<Log {self.directory.name}, {self.start_offset} to {self.end_offset}>"

    def set_config(self, config: LogConfig) -> None:
        """Obey other settings from now on."""
        self.config = config
        # These are asked for at each append.
        self._compacts = config.compacts
        self._has_append_time = config.message_timestamp_type == "LogAppendTime"

    @property
    def active_segment(self) -> Segment:
        """The segment that grows."""
        return self.segments[-1]

    @property
    def end_offset(self) -> int:
        """The next offset to be given."""
        return self.segments[-1].next_offset

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    def append(self, data: Buffer, *, leader_epoch: int, now_ms: int) -> LogAppendInfo:
        """Append the batches in `data`, into which offset and epoch are written.

        Raises BatchError and StorageError before anything is written, and OSError when the disk
        took none of it. A batch that an idempotent producer sent before is not written again.
        """
        if self.offline_reason is not None:
            self._check_online()
        view = memoryview(data)
        if view.readonly:
            view = memoryview(bytearray(view))
        batches = _batches(view)
        for batch in batches:
            self._check(batch, now_ms)
        if len(batches) > 1 or batches[0].producer_id >= 0:
            duplicate = self._duplicate_of(batches)
            if duplicate is not None:
                return duplicate
        config = self.config
        append_time = now_ms if self._has_append_time else -1
        self._roll_if_needed(len(view), batches[-1], now_ms)
        segment = self.segments[-1]
        base_offset = offset = segment.next_offset
        position = segment.size
        places = []
        for batch in batches:
            batch.assign(offset, leader_epoch)
            if append_time >= 0:
                batch.stamp_append_time(append_time)
            last = offset + batch.last_offset_delta
            places.append((position, batch.size, offset, last, batch.max_timestamp))
            position += batch.size
            offset = last + 1
        if leader_epoch > self.leader_epochs.current:
            self._assign_epoch(leader_epoch, base_offset)
        try:
            segment.append(view, places, config.index_interval_bytes, config.segment_bytes)
        except OSError as error:
            self._write_failed(error)
            raise
        if segment.first_append_ms < 0:
            segment.first_append_ms = now_ms
        for batch in batches:
            if batch.producer_id >= 0:
                self.producer_states.update(batch, batch.base_offset, now_ms)
        return LogAppendInfo(base_offset, offset - 1, append_time)

    def read(self, offset: int, max_bytes: int, end_offset: int | None = None) -> LogSlice:
        """Read whole batches from the one that contains `offset` on.

        At least one, even if it is larger than `max_bytes`; none at the end of the log, or at
        `end_offset` if that is given. Raises OffsetOutOfRangeError.
        """
        end = self.end_offset if end_offset is None else min(end_offset, self.end_offset)
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRangeError(offset, self.start_offset, self.end_offset)
        at = bisect_right(self._bases, offset) - 1
        while offset < end and at < len(self.segments):
            segment = self.segments[at]
            batch = segment.find(offset)
            if batch is None or batch.base_offset >= end:
                at += 1  # what was here has been compacted away
                continue
            start, stop = batch.position, segment.end_of_whole_batches(batch, max_bytes, end)
            return LogSlice(segment.view(start, stop), segment, start)
        return LogSlice(memoryview(b""), self.active_segment, self.active_segment.size)

    def offset_for_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """Find the first record that is at least as young as this."""
        for segment in self.segments:
            segment.check_age()
            if segment.max_timestamp < timestamp:
                continue
            start = segment.find(max(segment.offset_before(timestamp), self.start_offset))
            if start is None:
                continue
            for batch in segment.batches(start.position):
                if batch.max_timestamp < timestamp:
                    continue
                decoded = RecordBatch(segment.read(batch.position, batch.size))
                for offset, time, _has_key in decoded.outlines():
                    if time >= timestamp and offset >= self.start_offset:
                        return TimestampAndOffset(offset, time)
        return None

    def offset_for_max_timestamp(self) -> TimestampAndOffset | None:
        """Find the first record with the largest timestamp."""
        largest = max(segment.max_timestamp for segment in self.segments)
        if largest < 0:
            return None
        found = self.offset_for_timestamp(largest)
        if found is not None:
            return found
        # Compaction left the largest time to a batch without records: look at all of them.
        times = {batch.max_timestamp for segment in self.segments for batch in segment.batches()}
        answers = (self.offset_for_timestamp(time) for time in sorted(times, reverse=True))
        return next((answer for answer in answers if answer is not None), None)

    def roll(self) -> None:
        """Seal the active segment and start another, if it has anything in it."""
        active = self.active_segment
        if active.size == 0:
            return
        active.seal()
        self.write_snapshot()
        self._add_segment(active.next_offset)

    def truncate(self, offset: int) -> None:
        """Drop everything from `offset` on; a batch that has it inside goes as a whole.

        A file is never shortened while somebody may be sending it: what is kept is copied.
        """
        self._check_online()
        if offset >= self.end_offset:
            return
        if offset < self.start_offset:
            raise OffsetOutOfRangeError(offset, self.start_offset, self.end_offset)
        self._truncations += 1
        found = self.segments[bisect_right(self._bases, offset) - 1].find(offset)
        end = offset if found is None else min(offset, found.base_offset)
        self.recovery_point = min(self.recovery_point, end)
        self.before_truncation()
        # What is appended here next is new to compaction, whatever it has seen at these offsets.
        self.disk.unlink(self.directory / COMPACTED_FILE)
        while len(self.segments) > 1 and self.active_segment.base_offset >= offset:
            self._drop(len(self.segments) - 1)
        segment = self.active_segment
        batch = segment.find(offset)
        kept = segment.size if batch is None else batch.position
        self._replace_active(segment, kept)
        if self.start_offset > self.end_offset:
            self.save_start(self.end_offset)
        self.producer_states.truncate(self.end_offset)
        self._forget_snapshots_after(self.end_offset)
        self.leader_epochs.truncate(self.end_offset)
        self._save_epochs()

    def delete_records_before(self, offset: int) -> None:
        """Let the log start at `offset`; segments that lie before it are deleted."""
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRangeError(offset, self.start_offset, self.end_offset)
        self.save_start(offset)
        self._drop_segments_before_start()

    def save_start(self, offset: int) -> None:
        """Write down where the log starts, which need not be where a segment does."""
        self.disk.replace_file(self.directory / START_FILE, str(offset).encode())
        self.start_offset = offset

    def apply_retention(self, now_ms: int) -> int:
        """Delete segments that are too old, or too much; give how many."""
        if should_roll_for_retention(self._facts()[-1], self.config, now_ms):
            self.roll()
        count = expired(self._facts(), self.config, now_ms)
        # Ages are believed, until something that cannot be taken back is to come of them.
        for segment in self.segments[:count]:
            segment.check_age()
        count = min(count, expired(self._facts(), self.config, now_ms))
        if count:
            self.start_offset = max(self.start_offset, self.segments[count].base_offset)
            self._drop_segments_before_start()
        return count

    @property
    def has_deleted_segments(self) -> bool:
        """Whether files of deleted segments remain to be removed."""
        return bool(self._deleted)

    def purge_deleted_segments(self) -> int:
        """Remove the files of deleted segments that nobody reads; give how many are left.

        May be called in a thread: to free a gigabyte takes the system half a second.
        """
        for segment in list(self._deleted):
            if segment.views_are_gone():
                for suffix in (".log", ".index", ".timeindex"):
                    self.disk.unlink(segment.path(suffix + DELETED))
                self._deleted.remove(segment)
        return len(self._deleted)

    def flush(self) -> int:
        """Wait until all that was appended is on the device; give the offset up to which it is.

        May be called in a thread. A failure is final: what the device has is then unknown, and
        asking again would be told that all is well. The log takes no appends after it. Only where
        there is no room for the epochs it is an OSError, and the next sync tries again.
        """
        self._check_online()
        end, truncations = self.end_offset, self._truncations
        if self._epochs_dirty:
            self._sync_epochs()
        try:
            for segment in self._dirty_segments():
                segment.flush()
            if self._names_dirty:
                self._names_dirty = False
                self.disk.sync_directory(self.directory)
        except OSError as error:
            raise self.fail(error) from error
        if truncations == self._truncations:
            self.recovery_point = max(self.recovery_point, end)
        return self.recovery_point

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms ask for a sync."""
        waiting = self.end_offset - self.recovery_point
        if waiting == 0:
            return False
        late = now_ms - self.last_flush_ms >= self.config.flush_ms
        return waiting >= self.config.flush_messages or late

    def fail(self, error: OSError) -> LogOfflineError:
        """Take the log offline after a disk error, and return the exception to raise."""
        if self.offline_reason is None:
            logger.error("%s goes offline: %s", self.directory.name, error)
            self.take_offline(str(error))
        return LogOfflineError(f"{self.directory.name}: {error}")

    def take_offline(self, reason: str) -> None:
        """Refuse appends and flushes until the log is opened again."""
        self.offline_reason = reason

    def is_as_found(self) -> bool:
        """Whether nothing has changed since a clean start, so that there is nothing to write."""
        return self._as_found == self._shape() and not self._names_dirty and not self._epochs_dirty

    def note_as_found(self) -> None:
        """Remember what a clean start found; for opening a log."""
        self._as_found = self._shape()

    def close(self) -> None:
        """Write what a clean start needs, and close all files."""
        if self.offline_reason is None and not self.is_as_found():
            self.active_segment.write_indexes()
            self.write_snapshot()
            self.flush()
        for segment in [*self.segments, *self._deleted]:
            segment.close()

    def release_files(self) -> None:
        """Close what need not be open."""
        for segment in self.segments:
            if segment.release():
                self.files.closed(segment)

    def write_snapshot(self) -> None:
        """Write down what is known of producers up to the end; keep the last two of such."""
        path = self.directory / f"{self.end_offset:020d}.snapshot"
        # Not worth waiting for: it has a checksum, and recovery can do with an older one.
        self.disk.replace_file(path, self.producer_states.snapshot(), durable=False)
        self.snapshots = [*(offset for offset in self.snapshots if offset < self.end_offset)]
        self.snapshots.append(self.end_offset)
        while len(self.snapshots) > 2:
            self.disk.unlink(self.directory / f"{self.snapshots.pop(0):020d}.snapshot")

    def swap(self, old: Sequence[Segment], new: Segment) -> None:
        """Put a rewritten segment in the place of neighbours whose files it has replaced."""
        first = self.segments.index(old[0])
        assert self.segments[first : first + len(old)] == list(old)
        self.segments[first : first + len(old)] = [new]
        self._bases[first : first + len(old)] = [new.base_offset]

    def adopt(self, segment: Segment) -> None:
        """Take a segment in at the end; for opening a log."""
        self.segments.append(segment)
        self._bases.append(segment.base_offset)

    def ensure_active(self) -> None:
        """Make the first segment of an empty log; for opening one."""
        if not self.segments:
            self._add_segment(self.start_offset)

    def load_start(self) -> None:
        """Read where the log starts, and its epochs; for opening one."""
        start = read_json(self.directory / START_FILE)
        first = self.segments[0].base_offset if self.segments else 0
        self.start_offset = max(first, start or 0)
        path = self.directory / LEADER_EPOCH_CHECKPOINT
        try:
            self.leader_epochs = LeaderEpochs.decode(path.read_bytes())
        except FileNotFoundError:
            pass
        except ValueError:
            logger.warning("%s: %s is damaged", self.directory.name, LEADER_EPOCH_CHECKPOINT)

    def _facts(self) -> list[SegmentSummary]:
        return [SegmentSummary(s.base_offset, s.size, s.max_timestamp) for s in self.segments]

    def _shape(self) -> tuple[int, ...]:
        return (self.start_offset, *self._bases, self.active_segment.size, self.end_offset)

    def _dirty_segments(self) -> list[Segment]:
        """Give the segments with content that may not be on the device, oldest first."""
        dirty: list[Segment] = []
        for segment in reversed(list(self.segments)):
            if segment.is_dirty:
                dirty.append(segment)
            elif segment.size:
                break  # all before it were synced with it or before it
        return dirty[::-1]

    def _check_online(self) -> None:
        if self.offline_reason is not None:
            raise LogOfflineError(f"{self.directory.name} is offline: {self.offline_reason}")

    def _check(self, batch: RecordBatch, now_ms: int) -> None:
        batch.validate_produced()
        config = self.config
        if batch.size > config.max_message_bytes:
            raise BatchTooLargeError(batch.size, config.max_message_bytes)
        if batch.size > config.segment_bytes:
            raise BatchTooLargeError(batch.size, config.segment_bytes)
        if not self._has_append_time:
            # The header knows the largest timestamp; the smallest would cost a look at each record.
            if batch.max_timestamp - now_ms > config.message_timestamp_after_max_ms:
                raise InvalidTimestampError(f"{batch.max_timestamp} is too far after {now_ms}")
            if now_ms - batch.max_timestamp > config.message_timestamp_before_max_ms:
                raise InvalidTimestampError(f"{batch.max_timestamp} is too far before {now_ms}")
        if self._compacts:
            for index, (_offset, _time, has_key) in enumerate(batch.outlines()):
                if not has_key:
                    raise KeylessRecordError(index)

    def _duplicate_of(self, batches: Sequence[RecordBatch]) -> LogAppendInfo | None:
        if len(batches) > 1:
            if any(batch.producer_id >= 0 for batch in batches):
                raise SequenceError("a batch of an idempotent producer comes alone")
            return None
        base = self.producer_states.check(batches[0]) if batches[0].producer_id >= 0 else None
        if base is None:
            return None
        return LogAppendInfo(base, base + batches[0].last_offset_delta, -1, is_duplicate=True)

    def _roll_if_needed(self, size: int, batch: RecordBatch, now_ms: int) -> None:
        segment, config = self.segments[-1], self.config
        if segment.size == 0:
            return
        full = segment.size + size > config.segment_bytes
        old = now_ms - segment.first_append_ms > config.segment_ms and segment.first_append_ms >= 0
        indexed = (segment.index_entries + 1) * TIME_ENTRY_BYTES > config.segment_index_bytes
        far = segment.next_offset + batch.last_offset_delta - segment.base_offset >= 2**31
        if full or old or indexed or far:
            self.roll()

    def _add_segment(self, base_offset: int) -> None:
        segment = Segment(self.directory, base_offset, self.files)
        segment.create()
        self._names_dirty = True
        self.adopt(segment)

    def _write_failed(self, error: OSError) -> None:
        if getattr(error, "__notes__", None):
            self.fail(error)

    def _assign_epoch(self, epoch: int, offset: int) -> None:
        if self.leader_epochs.assign(epoch, offset):
            try:
                self._save_epochs()
            except OSError as error:
                # The batch says it too, and that is what counts.
                logger.warning("%s: the epoch is not saved: %s", self.directory.name, error)

    def _save_epochs(self) -> None:
        # Not worth waiting for the device now: `sync` will, and until then recovery looks at all
        # batches, which say it too.
        self._epochs_dirty = True
        path = self.directory / LEADER_EPOCH_CHECKPOINT
        self.disk.replace_file(path, self.leader_epochs.encode(), durable=False)

    def _sync_epochs(self) -> None:
        self._epochs_dirty = False
        try:
            self.disk.replace_file(
                self.directory / LEADER_EPOCH_CHECKPOINT, self.leader_epochs.encode()
            )
        except OSError as error:
            self._epochs_dirty = True
            # Where there is no room, nothing was lost: the file that is there is whole.
            if error.errno in NO_ROOM:
                raise
            raise self.fail(error) from error

    def _forget_snapshots_after(self, end: int) -> None:
        for offset in [offset for offset in self.snapshots if offset > end]:
            self.disk.unlink(self.directory / f"{offset:020d}.snapshot")
            self.snapshots.remove(offset)

    def _drop_segments_before_start(self) -> None:
        while len(self.segments) > 1 and self.segments[1].base_offset <= self.start_offset:
            self._drop(0)
        if self.leader_epochs.trim_start(self.start_offset):
            self._save_epochs()

    def _drop(self, at: int) -> None:
        """Rename the files of a segment; `purge_deleted_segments` unlinks them."""
        segment = self.segments[at]
        self.disk.rename(segment.path(".log"), segment.path(".log" + DELETED))
        del self.segments[at]
        del self._bases[at]
        self._names_dirty = True
        segment.drop()
        self._deleted.append(segment)
        for suffix in (".index", ".timeindex"):
            # An active segment has them in memory; and without a log they mean nothing.
            with suppress(OSError):
                self.disk.rename(segment.path(suffix), segment.path(suffix + DELETED))

    def _replace_active(self, segment: Segment, kept: int) -> None:
        """Copy the beginning of the active segment to a file that takes its name."""
        target = segment.path(".log.tmp")
        fd = self.disk.open(target, create=True, empty=True)
        try:
            for position in range(0, kept, 1 << 20):
                chunk = segment.read(position, min(1 << 20, kept - position))
                self.disk.write_all(fd, chunk, position)
            self.disk.sync(fd)
        finally:
            self.disk.close(fd)
        self.disk.rename(target, segment.path(".log"))
        try:
            self.disk.sync_directory(self.directory)
        except OSError as error:
            self.fail(error)  # the file that we have open is not the one of that name any more
            raise
        segment.drop()
        renewed = Segment(self.directory, segment.base_offset, self.files)
        renewed.size = renewed.flushed_size = kept
        renewed.first_append_ms = segment.first_append_ms
        for batch in renewed.batches():
            renewed.note(batch, self.config.index_interval_bytes)
        self.segments[-1] = renewed


def _batches(view: memoryview) -> list[RecordBatch]:
    """Give the batches in a buffer, nearly always one; anything else up to its end is an error."""
    batch = RecordBatch(view)
    batches = [batch]
    end = batch.size
    while end < len(view):
        batch = RecordBatch(view[end:])
        batches.append(batch)
        end += batch.size
    return batches
