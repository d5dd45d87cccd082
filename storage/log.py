"""A partition's log: a row of segments, of which the last one is active.

What is promised:

- Offsets increase by one per record. A batch is stored as it came, except for its base offset, its
  leader epoch and, with LogAppendTime, its timestamp.
- An append is atomic. When it returns, the operating system has the records: a crash of this
  process loses nothing. After a later `flush` has returned, they are durable.
- A read returns whole batches as a view of mapped pages, which stays valid whatever happens to the
  log.

Three offsets, start ≤ recovery point ≤ end: the log start offset, the first offset that may not be
durable, and the log end offset, which the next record gets. Everything except `flush`,
`complete_rolls` and `purge_deleted_segments` belongs to one thread: in the broker, the event loop.
`truncate` may be called in another one, if nobody uses the log meanwhile: see `is_truncating`.

The log of a follower has the batches of its leader, with the leader's offsets and epochs
(`append_as_follower`).
"""

from __future__ import annotations

import errno
import logging
import threading
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from ottla.protocol.batch import RecordBatch, build_control_batch

from .checkpoints import LeaderEpochCheckpoint, ProducerSnapshots
from .config import LogConfig
from .disk import NO_SPACE_ERRORS, Buffer, read_json
from .errors import (
    DivergedBatchError,
    LogOfflineError,
    OffsetOutOfRangeError,
    SequenceError,
)
from .files import OpenFiles
from .index import TIME_ENTRY_BYTES
from .leader_epochs import LeaderEpochs
from .partition_metadata import PARTITION_METADATA_FILE, PartitionMetadata
from .producer_states import SNAPSHOT_PAUSE_SECONDS, ProducerSnapshot, ProducerStates
from .retention import SegmentSummary, count_deletable, should_roll_for_retention
from .segment import Segment
from .segments import LogSegments
from .timestamp_search import (
    TimestampAndOffset,
    find_max_timestamp,
    find_timestamp,
    run_steps,
)
from .transaction_index import AbortedTransaction
from .validation import split, validate_header, validate_records

logger = logging.getLogger(__name__)

LOG_START_OFFSET_FILE = "log-start-offset"
#: The first offset that compaction has not seen; see compaction.py.
CLEANER_OFFSET_FILE = "compacted-offset"
#: The offset from which on all records were validated; missing if the last ones were not.
VALIDATED_FROM_FILE = "validated-from"

_COPY_BYTES = 1024 * 1024


class LogAppendInfo(NamedTuple):
    """The result of an append."""

    base_offset: int
    last_offset: int
    append_time_ms: int  # -1: the records have the producer's timestamps.
    is_duplicate: bool = False


class LogSlice(NamedTuple):
    """Whole batches of one segment: the result of a read."""

    view: memoryview
    segment: Segment
    position: int

    def is_in_page_cache(self) -> bool:
        """Whether sending it will probably not wait for the device."""
        return self.segment.is_in_page_cache(self.position, self.position + len(self.view))

    def load_into_page_cache(self) -> None:
        """Read it into the page cache; may be called in a thread."""
        self.segment.load_into_page_cache(self.position, self.position + len(self.view))


class Log:
    """One partition's log, opened by `recovery.open_log`."""

    __slots__ = (
        "_flush_lock",
        "_has_append_time",
        "_has_unflushed_metadata",
        "_is_fsynced",
        "_leader_epoch_checkpoint",
        "_pending_snapshot",
        "_recovery_point_lock",
        "_sealed",
        "_sealed_lock",
        "_shape_when_opened",
        "_snapshot_lock",
        "_start_offset_lock",
        "_unseen_markers",
        "after_roll",
        "before_truncation",
        "config",
        "directory",
        "disk",
        "files",
        "high_watermark",
        "is_committing",
        "is_truncating",
        "last_flush_ms",
        "leader_epochs",
        "offline_reason",
        "producer_snapshots",
        "producer_states",
        "recovery_point",
        "segments",
        "start_offset",
        "topic_id",
        "truncation_count",
        "validated_from",
    )

    def __init__(self, directory: Path, config: LogConfig, files: OpenFiles) -> None:
        self.directory = directory
        self.set_config(config)
        self.files = files
        self.disk = files.disk
        self.segments = LogSegments(directory, files)
        self.producer_states = ProducerStates()
        # First and last offset of transactions whose marker may not be below the high watermark, so
        # that consumers do not see it.
        self._unseen_markers: list[tuple[int, int]] = []
        #: With several replicas: the offset below which records are committed; None with one.
        self.high_watermark: int | None = None
        #: Whether a thread truncates the log: nobody else may use it.
        self.is_truncating = False
        #: Whether a thread replaces the files of compacted segments: no truncation may start.
        self.is_committing = False
        self.producer_snapshots = ProducerSnapshots(directory, self.disk)
        self.leader_epochs = LeaderEpochs()
        self._leader_epoch_checkpoint = LeaderEpochCheckpoint(directory, self.disk)
        #: The topic that the records belong to; None if that was not recorded.
        self.topic_id: UUID | None = None
        self._has_unflushed_metadata = False
        self.start_offset = 0
        self.recovery_point = 0
        #: From this offset on, records were validated, and the max timestamps in batch headers are
        #: right; None if the last ones were not.
        self.validated_from: int | None = None
        #: When the flush policy last asked for a flush, by the caller's clock.
        self.last_flush_ms = 0
        #: Why the log accepts no appends and no flushes; None if it is online.
        self.offline_reason: str | None = None
        #: Called before a truncation, with `recovery_point` already lowered.
        self.before_truncation: Callable[[], None] = _do_nothing
        #: Called with the log after a roll.
        self.after_roll: Callable[[Log], object] = Log.try_to_complete_rolls
        # Sealed segments whose indexes are to be written, and the producer states of a roll.
        self._sealed: list[Segment] = []
        self._pending_snapshot: tuple[int, ProducerSnapshot] | None = None
        self._sealed_lock = threading.Lock()
        self._snapshot_lock = threading.Lock()
        self._shape_when_opened: tuple[int, ...] = ()
        #: Truncations so far. A flush that began before one says nothing about records appended
        #: after it.
        self.truncation_count = 0
        # Linux reports a failed writeback once per open file. One flush at a time, so that nobody
        # gets a success from an fsync whose predecessor has just consumed the error.
        self._flush_lock = threading.Lock()
        self._start_offset_lock = threading.Lock()
        self._recovery_point_lock = threading.Lock()

    def __repr__(self) -> str:
        return f"<Log {self.directory.name}, {self.start_offset} to {self.end_offset}>"

    def set_config(self, config: LogConfig) -> None:
        """Use another config from now on."""
        self.config = config
        # Needed for each append.
        self._has_append_time = config.message_timestamp_type == "LogAppendTime"
        self._is_fsynced = config.durability == "fsync"

    def write_metadata(self, metadata: PartitionMetadata) -> None:
        """Write the metadata of a new log, which the first flush makes durable."""
        metadata.write(self.directory, self.disk)
        self._has_unflushed_metadata = self.segments.has_unflushed_names = True
        self.set_metadata(metadata)

    def set_metadata(self, metadata: PartitionMetadata) -> None:
        """Set the topic id, and whether the log replaces one that was lost."""
        self.topic_id = metadata.topic_id
        self.producer_states.accepts_unknown_sequences = not metadata.log_lost

    @property
    def active_segment(self) -> Segment:
        """The segment that appends go to."""
        return self.segments.active

    @property
    def end_offset(self) -> int:
        """The log end offset: that of the next record."""
        return self.segments.active.next_offset

    @property
    def size(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size for segment in self.segments)

    @property
    def first_unstable_offset(self) -> int | None:
        """The first offset of a transaction that is undecided for consumers; None if none is.

        It is open, or its marker is not yet below the high watermark.
        """
        first = self.producer_states.first_open_offset
        unseen = self._unseen_markers
        if unseen:
            visible = self.recovery_point if self.high_watermark is None else self.high_watermark
            while unseen and unseen[0][1] < visible:
                del unseen[0]
            for first_offset, _marker_offset in unseen:
                first = first_offset if first is None else min(first, first_offset)
        return first

    def append(
        self, data: Buffer, *, leader_epoch: int, now_ms: int, validates_records: bool = True
    ) -> LogAppendInfo:
        """Validate and append the batches in `data`; see `append_batches`.

        Without `validates_records`, the records must be the broker's own. Then sequences are not
        checked either: the broker appends offsets for a transactional producer, with sequence 0.
        """
        if self.offline_reason is not None:
            self._check_online()
        view = memoryview(data)
        if view.readonly:
            view = memoryview(bytearray(view))
        batches = split(view)
        for batch in batches:
            validate_header(batch, self.config)
            if validates_records:
                validate_records(batch, self.config, now_ms)
            elif batch.producer_id >= 0:
                self.producer_states.check_epoch(batch.producer_id, batch.producer_epoch)
        return self.append_batches(
            view,
            batches,
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            checks_sequences=validates_records,
        )

    def append_batches(
        self,
        view: memoryview,
        batches: Sequence[RecordBatch],
        *,
        leader_epoch: int,
        now_ms: int,
        is_validated: bool = True,
        checks_sequences: bool = True,
        must_start_at_zero: bool = False,
    ) -> LogAppendInfo:
        """Append batches, after writing base offset and leader epoch into them.

        `batches` are views of consecutive parts of `view`, which is writable; their headers are
        valid, and so are their records if `is_validated`.

        Raises StorageError before anything is written, and OSError if nothing was appended because
        the disk failed. A batch that an idempotent producer has sent before is not appended again.
        A producer without a state here may start with any sequence, unless `must_start_at_zero`.
        """
        if self.offline_reason is not None:
            self._check_online()
        if (len(batches) > 1 or batches[0].producer_id >= 0) and checks_sequences:
            duplicate = self._find_duplicate(batches, must_start_at_zero)
            if duplicate is not None:
                return duplicate
        if is_validated is (self.validated_from is None):
            self._set_validated(is_validated)
        append_time = now_ms if self._has_append_time else -1
        self._roll_if_needed(len(view), batches[-1], now_ms)
        segment = self.segments.active
        base_offset = offset = segment.next_offset
        for batch in batches:
            batch.assign(offset, leader_epoch)
            if append_time >= 0:
                batch.stamp_append_time(append_time)
            offset += batch.last_offset_delta + 1
        if leader_epoch > self.leader_epochs.current:
            self._start_leader_epoch(leader_epoch, base_offset)
        self._write(segment, view, batches, now_ms)
        return LogAppendInfo(base_offset, offset - 1, append_time)

    def _write(
        self, segment: Segment, view: memoryview, batches: Sequence[RecordBatch], now_ms: int
    ) -> None:
        config = self.config
        try:
            segment.append(
                view,
                batches,
                config.index_interval_bytes,
                config.segment_bytes,
                preallocates=config.preallocate,
            )
        except OSError as error:
            if getattr(error, "__notes__", None):
                self.fail(error)
            raise
        if segment.first_append_ms < 0:
            segment.first_append_ms = now_ms
        segment.last_append_ms = now_ms
        for batch in batches:
            if batch.producer_id >= 0:
                if batch.is_control and (self._is_fsynced or self.high_watermark is not None):
                    first_offset = self.producer_states.txn_start_offset(batch.producer_id)
                    if first_offset is not None:
                        self._unseen_markers.append((first_offset, batch.base_offset))
                aborted = self.producer_states.update(batch, batch.base_offset, now_ms)
                if aborted is not None:
                    segment.transactions.add(aborted)

    def append_as_follower(self, data: Buffer, now_ms: int) -> None:
        """Append batches that were fetched from the leader, unchanged.

        Their offsets may have gaps, which compaction leaves. Raises BatchError and
        DivergedBatchError before anything of a batch is written; OSError if the disk failed. The
        batches before that one stay.
        """
        self._check_online()
        view = memoryview(data)
        start = end = 0
        chunk: list[RecordBatch] = []
        for batch in split(view):
            batch.validate()
            next_offset = chunk[-1].next_offset if chunk else self.end_offset
            epoch = chunk[-1].partition_leader_epoch if chunk else self.leader_epochs.current
            if batch.base_offset < next_offset or batch.partition_leader_epoch < epoch:
                self._append_chunk(view[start:end], chunk, now_ms)
                raise DivergedBatchError(
                    f"Batch at offset {batch.base_offset} in epoch {batch.partition_leader_epoch}"
                    f" does not follow offset {next_offset} in epoch {epoch}"
                )
            is_new_epoch = chunk and batch.partition_leader_epoch != epoch
            if is_new_epoch or end + batch.size - start > self.config.segment_bytes:
                self._append_chunk(view[start:end], chunk, now_ms)
                start, chunk = end, []
            chunk.append(batch)
            end += batch.size
        self._append_chunk(view[start:end], chunk, now_ms)

    def _append_chunk(self, view: memoryview, batches: Sequence[RecordBatch], now_ms: int) -> None:
        """Append batches of one leader epoch as they are."""
        if not batches:
            return
        if self.validated_from is None:
            self._set_validated(is_validated=True)  # By the leader.
        self._roll_if_needed(len(view), batches[-1], now_ms)
        segment = self.segments.active
        epoch = batches[0].partition_leader_epoch
        if epoch > self.leader_epochs.current:
            self._start_leader_epoch(epoch, batches[0].base_offset)
        self._write(segment, view, batches, now_ms)

    def append_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        is_commit: bool,
        transaction_version: int,
        leader_epoch: int,
        now_ms: int,
    ) -> LogAppendInfo:
        """Append the marker that ends a producer's transaction, if it has one open here or not.

        Raises InvalidProducerEpochError and TransactionCoordinatorFencedError, and what
        `append_batches` does.
        """
        states = self.producer_states
        states.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        marker = build_control_batch(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            is_commit=is_commit,
            timestamp=now_ms,
        )
        return self.append_batches(
            memoryview(marker),
            (RecordBatch(marker),),
            leader_epoch=leader_epoch,
            now_ms=now_ms,
            checks_sequences=False,
        )

    def aborted_transactions(self, start_offset: int, end_offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with data in a range of offsets, by first offset."""
        found: list[AbortedTransaction] = []
        for segment in self.segments.from_offset(start_offset):
            if segment.transactions.count:
                entries, is_complete = segment.transactions.find(start_offset, end_offset)
                found += entries
                if is_complete:
                    break
        return sorted(found, key=_first_offset)

    def aborted_transactions_in(self, log_slice: LogSlice, offset: int) -> list[AbortedTransaction]:
        """Return the aborted transactions with data in what was read, from an offset on."""
        segments = self.segments.from_offset(offset)
        if not any(segment.transactions.count for segment in segments):
            return []
        position = log_slice.position + len(log_slice.view)
        return self.aborted_transactions(offset, log_slice.segment.offset_at(position))

    def read(self, offset: int, max_bytes: int, end_offset: int | None = None) -> LogSlice:
        """Read whole batches, from the one that contains `offset` on.

        At least one, even if it is larger than `max_bytes`; none at the log end offset, or at
        `end_offset` if given. Raises OffsetOutOfRangeError.
        """
        active = self.segments.active
        end = active.next_offset
        if not self.start_offset <= offset <= end:
            raise OffsetOutOfRangeError(offset, self.start_offset, end)
        if end_offset is not None and end_offset < end:
            end = end_offset
        found = self.segments.find(offset) if offset < end else None
        if found is None or found[1].base_offset >= end:
            return LogSlice(memoryview(b""), active, active.size)
        segment, batch = found
        start, stop = batch.position, segment.end_of_whole_batches(batch, max_bytes, end)
        return LogSlice(segment.view(start, stop), segment, start)

    def offset_for_timestamp(self, timestamp: int) -> TimestampAndOffset | None:
        """Return the first record whose timestamp is at least `timestamp`.

        Decompresses, and waits for the disk; `timestamp_search` does the same in steps.
        """
        return run_steps(find_timestamp(self, timestamp))

    def offset_for_max_timestamp(self) -> TimestampAndOffset | None:
        """Return the first record that has the largest timestamp; see `offset_for_timestamp`."""
        return run_steps(find_max_timestamp(self))

    def roll(self) -> None:
        """Seal the active segment and create the next one, unless it is empty.

        Its indexes and a snapshot of the producer states are left for `complete_rolls`. Raises
        OSError, and then nothing has changed.
        """
        active = self.active_segment
        if active.size == 0:
            return
        active.trim()
        created = self.segments.create_file(active.next_offset)
        self.seal_in_memory(active)
        if self._pending_snapshot is None:
            # While one is being written, the next one can wait for the next roll.
            self._pending_snapshot = (active.next_offset, self.producer_states.snapshot())
        self.segments.add(created)
        self.after_roll(self)

    def seal_in_memory(self, segment: Segment) -> None:
        """Seal a segment, and leave its indexes for `complete_rolls`."""
        segment.seal_in_memory()
        self._sealed.append(segment)

    @property
    def has_unwritten(self) -> bool:
        """Whether something is left for `complete_rolls`."""
        return bool(self._sealed) or self._pending_snapshot is not None

    def complete_rolls(self) -> None:
        """Write the indexes and the snapshot that rolls have left. May be called in a thread.

        Raises OSError, after which the next call tries again. Nothing is fsynced.
        """
        self._write_sealed()
        with self._snapshot_lock:
            snapshot = self._pending_snapshot
            # Once it is offline, another log may have its directory.
            if snapshot is not None and self.offline_reason is None:
                offset, states = snapshot
                content = states.encode(SNAPSHOT_PAUSE_SECONDS)
                self.producer_snapshots.write(offset, content, offset)
                self._pending_snapshot = None

    def try_to_complete_rolls(self) -> None:
        """Do the same, and leave it to the next flush and the next roll if it fails."""
        try:
            self.complete_rolls()
        except OSError as error:
            logger.warning("Log %s: indexes not written yet: %s", self.directory.name, error)

    def _write_sealed(self) -> None:
        """Write the indexes of segments that rolls have sealed.

        A flush does it first: the segments below the recovery point have indexes that fit.
        """
        with self._sealed_lock:
            sealed = self._sealed
            while sealed and self.offline_reason is None:
                self.segments.write_indexes(sealed[0])
                del sealed[0]

    @property
    def checkpointed_recovery_point(self) -> int:
        """The recovery point, but not after a segment whose indexes were not written."""
        with suppress(IndexError):  # A thread may have written them.
            return min(self.recovery_point, self._sealed[0].base_offset)
        return self.recovery_point

    def truncate(self, offset: int) -> None:
        """Remove all batches from the one that contains `offset` on.

        A file is never shortened, because a reader may be sending it: the rest is copied.
        """
        self._check_online()
        if offset >= self.end_offset:
            return
        if offset < self.start_offset:
            raise OffsetOutOfRangeError(offset, self.start_offset, self.end_offset)
        found = self.segments.find(offset)
        end = offset if found is None else min(offset, found[1].base_offset)
        self.complete_rolls()
        with self._recovery_point_lock:
            self.truncation_count += 1
            self.recovery_point = min(self.recovery_point, end)
        self.before_truncation()
        # Compaction has not seen what will be appended at these offsets next.
        self.disk.unlink(self.directory / CLEANER_OFFSET_FILE)
        while len(self.segments) > 1 and self.active_segment.base_offset >= offset:
            self.segments.remove(len(self.segments) - 1)
        self.segments.rename_removed()  # New segments may get the same names.
        segment = self.active_segment
        batch = segment.find(offset)
        self._truncate_active_segment(segment.size if batch is None else batch.position)
        if self.start_offset > self.end_offset:
            self.save_start_offset(self.end_offset)
        self.producer_snapshots.remove_after(self.end_offset)
        self.restore_producer_states(self.end_offset, self.segments)
        unseen = self._unseen_markers
        while unseen and unseen[-1][1] >= self.end_offset:
            unseen.pop()
        self.leader_epochs.truncate(self.end_offset)
        self._leader_epoch_checkpoint.write(self.leader_epochs)

    def restart_at(self, offset: int) -> None:
        """Remove everything, and go on at an offset: a follower's leader has no earlier records."""
        self._check_online()
        self.complete_rolls()
        with self._recovery_point_lock:
            self.truncation_count += 1
            self.recovery_point = 0
        self.before_truncation()
        self.disk.unlink(self.directory / CLEANER_OFFSET_FILE)
        assert offset > self.end_offset
        self.segments.create(offset)
        while len(self.segments) > 1:
            self.segments.remove(0)
        self.segments.rename_removed()
        self.save_start_offset(offset)
        self.producer_snapshots.remove_after(-1)
        self.restore_producer_states(offset, self.segments)
        self._unseen_markers.clear()
        self.leader_epochs = LeaderEpochs()
        self._leader_epoch_checkpoint.write(self.leader_epochs)
        with self._recovery_point_lock:
            self.recovery_point = offset

    def restore_producer_states(self, offset: int, segments: Sequence[Segment]) -> int:
        """Restore the producer states from the last snapshot at or before an offset.

        Applies the batches of `segments` after the snapshot to them. Returns its offset.
        """
        before = self.producer_states
        self.producer_states, snapshot = self.producer_snapshots.restore(offset)
        self.producer_states.continue_from(before)
        for segment in segments:
            first = segment.find(snapshot) if segment.next_offset > snapshot else None
            if first is None:
                continue
            append_ms = segment.last_append_time()
            for position in segment.batches(first.position):
                batch = RecordBatch(segment.read(position.position, position.size))
                if batch.producer_id >= 0:
                    self.producer_states.update(batch, batch.base_offset, append_ms)
        return snapshot

    def delete_records_before(self, offset: int) -> None:
        """Advance the log start offset to `offset`, and delete segments before it.

        Waits for the disk; `write_start_offset`, `advance_start_offset` and `rename_removed` do the
        same in steps.
        """
        if not self.start_offset <= offset <= self.end_offset:
            raise OffsetOutOfRangeError(offset, self.start_offset, self.end_offset)
        self.write_start_offset(offset)
        self.advance_start_offset(offset)
        self.segments.rename_removed()

    def write_start_offset(self, offset: int) -> None:
        """Write a log start offset durably, for the next start. May be called in a thread."""
        with self._start_offset_lock:
            self._check_online()
            self.replace_file(LOG_START_OFFSET_FILE, str(offset).encode())

    def advance_start_offset(self, offset: int) -> None:
        """Advance the log start offset, and remove the segments before it, in memory alone."""
        self.start_offset = max(self.start_offset, offset)
        self._remove_segments_before_start()

    def save_start_offset(self, offset: int) -> None:
        """Set the log start offset, durably; it need not be the base offset of a segment."""
        self.replace_file(LOG_START_OFFSET_FILE, str(offset).encode())
        self.start_offset = offset

    def apply_retention(self, now_ms: int) -> int:
        """Delete segments beyond retention.ms and retention.bytes; return how many.

        Waits for the disk; `remove_expired_segments` and `purge_deleted_segments` do the same in
        steps.
        """
        count = self.remove_expired_segments(now_ms)
        self.segments.rename_removed()
        return count

    def remove_expired_segments(self, now_ms: int) -> int:
        """Remove the segments that retention deletes; return how many.

        `purge_deleted_segments` renames and unlinks their files.
        """
        if should_roll_for_retention(self._summaries()[-1], self.config, now_ms):
            self.roll()
        count = count_deletable(self._summaries(), self.config, now_ms)
        # Deletion cannot be undone, so timestamps from indexes are verified first.
        for segment in self.segments[:count]:
            segment.verify_max_timestamp()
        count = min(count, count_deletable(self._summaries(), self.config, now_ms))
        if self.high_watermark is not None:
            while count and self.segments[count].base_offset > self.high_watermark:
                count -= 1
        if count:
            self.start_offset = max(self.start_offset, self.segments[count].base_offset)
        # A crash may have left segments of deleted records.
        self._remove_segments_before_start()
        return count

    def unverified_segments(self, now_ms: int) -> list[Segment]:
        """Return the segments that `apply_retention` would verify: it may delete them."""
        count = count_deletable(self._summaries(), self.config, now_ms)
        return [
            segment
            for segment in self.segments[:count]
            # Indexes that were not written yet are verified in memory, by `apply_retention`.
            if not segment.is_max_timestamp_verified and not segment.indexes.is_unwritten
        ]

    @property
    def has_deleted_segments(self) -> bool:
        """Whether files of deleted segments remain to be unlinked."""
        return self.segments.has_deleted

    def purge_deleted_segments(self) -> int:
        """Unlink the files of deleted segments that no reader uses; return how many remain.

        May be called in a thread: freeing a gigabyte takes the system half a second.
        """
        return self.segments.purge_deleted()

    def flush(self) -> int:
        """Wait until all records appended so far are durable; return the recovery point.

        May be called in a thread; a second caller waits for the first. A failed fsync is final,
        because a second one would report success without the data being durable: the log goes
        offline. The exception is a lack of space for the leader epoch checkpoint: that is an
        OSError, and the next flush tries again. Indexes without space stay in memory; a restart
        after a crash builds them again.
        """
        with self._flush_lock:
            return self._flush()

    def _flush(self) -> int:
        self._check_online()
        active = self.segments.active
        end, truncation_count = self.end_offset, self.truncation_count
        try:
            self._leader_epoch_checkpoint.flush(self.leader_epochs)
        except OSError as error:
            # Nothing is lost when there is no space: the existing file is whole.
            if error.errno in NO_SPACE_ERRORS:
                raise
            raise self.fail(error) from error
        if self._has_unflushed_metadata:
            try:
                self.disk.sync_path(self.directory / PARTITION_METADATA_FILE)
            except OSError as error:
                raise self.fail(error) from error
            self._has_unflushed_metadata = False
        self._flush_segments()
        if self.segments.active is not active:
            # It was sealed meanwhile, maybe with `end` as its end: its indexes belong to it.
            self._flush_segments()
        # Another fsync, of the directory or of a checkpoint, may have failed in the meantime.
        self._check_online()
        with self._recovery_point_lock:
            if truncation_count == self.truncation_count:
                self.recovery_point = max(self.recovery_point, end)
            return self.recovery_point

    def _flush_segments(self) -> None:
        try:
            self._write_sealed()
        except OSError as error:
            if error.errno not in NO_SPACE_ERRORS:
                raise self.fail(error) from error
        try:
            self.segments.flush()
        except OSError as error:
            raise self.fail(error) from error

    def sync_directory(self) -> None:
        """Make the names of the log's files durable; a failure takes the log offline."""
        try:
            self.disk.sync_directory(self.directory)
        except OSError as error:
            self.fail(error)
            raise

    def replace_file(self, name: str, content: Buffer) -> None:
        """Replace a small file of the log, durably; a failed fsync takes the log offline."""
        try:
            self.disk.replace_file(self.directory / name, content)
        except OSError as error:
            if error.errno == errno.EIO:
                self.fail(error)
            raise

    def is_flush_due(self, now_ms: int) -> bool:
        """Whether flush.messages or flush.ms demand a flush."""
        unflushed = self.end_offset - self.recovery_point
        if unflushed == 0:
            return False
        is_late = now_ms - self.last_flush_ms >= self.config.flush_ms
        return unflushed >= self.config.flush_messages or is_late

    def fail(self, error: OSError) -> LogOfflineError:
        """Take the log offline after a disk error, and return the exception to raise."""
        if self.offline_reason is None:
            logger.error("Log %s goes offline: %s", self.directory.name, error)
            self.take_offline(str(error))
        return LogOfflineError(f"Log {self.directory.name} is offline: {error}")

    def wait_for_writers(self) -> None:
        """Wait until no thread writes to the directory of an offline log, so that it can be moved.

        A new log may get the same path.
        """
        for lock in (
            self._flush_lock,
            self._sealed_lock,
            self._snapshot_lock,
            self._start_offset_lock,
            self.segments.deletion_lock,
        ):
            with lock:
                pass

    def take_offline(self, reason: str) -> None:
        """Refuse appends and flushes until the log is opened again."""
        self.offline_reason = reason

    def close(self) -> None:
        """Write what a clean start needs, and close all files."""
        if self.offline_reason is None:
            self.segments.rename_removed()
        if self.offline_reason is None and not self.is_unchanged():
            self.complete_rolls()
            self.active_segment.trim()
            self.active_segment.write_indexes()
            snapshot = self.producer_states.snapshot().encode()
            self.producer_snapshots.write(
                self.end_offset, snapshot, self.active_segment.base_offset
            )
            self.flush()
        self.segments.close()

    def is_unchanged(self) -> bool:
        """Whether nothing has changed since a clean start, so that there is nothing to write."""
        return (
            self._shape_when_opened == self._shape()
            and not self.segments.has_unflushed_names
            and not self._leader_epoch_checkpoint.is_dirty
        )

    def mark_unchanged(self) -> None:
        """Remember the state after a clean start; called when a log is opened."""
        self._shape_when_opened = self._shape()

    def load_checkpoints(self) -> None:
        """Read the log start offset and the leader epochs; called when a log is opened."""
        saved = read_json(self.directory / LOG_START_OFFSET_FILE)
        first = self.segments[0].base_offset if self.segments else 0
        self.start_offset = max(first, saved or 0)
        self.leader_epochs = self._leader_epoch_checkpoint.read()
        self.validated_from = self._read_validated_from()

    def newest_record_ms(self, segment: Segment) -> int:
        """Return the time of the newest record of a segment, to decide about its deletion.

        That is the largest timestamp of its records. If they have none, or were not validated, it
        is the time of the last append: what a producer wrote into a header deletes nothing.
        """
        is_validated = (
            self.validated_from is not None and self.validated_from <= segment.base_offset
        )
        if is_validated and segment.max_timestamp >= 0:
            return segment.max_timestamp
        return segment.last_append_time()

    def _summaries(self) -> list[SegmentSummary]:
        newest_record_ms = self.newest_record_ms
        return [SegmentSummary(s.base_offset, s.size, newest_record_ms(s)) for s in self.segments]

    def _set_validated(self, is_validated: bool) -> None:
        """Record that appends are validated from here on, or no longer."""
        path = self.directory / VALIDATED_FROM_FILE
        self.validated_from = self.end_offset if is_validated else None
        try:
            if is_validated:
                # No fsync: without the file, records count as not validated.
                self.disk.replace_file(path, str(self.end_offset).encode(), durable=False)
            else:
                self.disk.unlink(path)
        except OSError as error:
            logger.warning("Log %s: %s not saved: %s", self.directory.name, path.name, error)

    def _read_validated_from(self) -> int | None:
        try:
            offset = read_json(self.directory / VALIDATED_FROM_FILE)
        except ValueError:
            return None
        return offset if isinstance(offset, int) else None

    def _shape(self) -> tuple[int, ...]:
        # After a truncation, appends may lead back to the same sizes and offsets.
        changes = (self.truncation_count, self.start_offset, *self.segments.base_offsets)
        return (*changes, self.active_segment.size, self.end_offset)

    def _check_online(self) -> None:
        if self.offline_reason is not None:
            raise LogOfflineError(f"Log {self.directory.name} is offline: {self.offline_reason}")

    def _find_duplicate(
        self, batches: Sequence[RecordBatch], must_start_at_zero: bool
    ) -> LogAppendInfo | None:
        if len(batches) > 1:
            if any(batch.producer_id >= 0 for batch in batches):
                raise SequenceError(
                    f"{len(batches)} batches of an idempotent producer: send one at a time"
                )
            return None
        if batches[0].producer_id < 0:
            return None
        base = self.producer_states.check(batches[0], must_start_at_zero=must_start_at_zero)
        if base is None:
            return None
        return LogAppendInfo(base, base + batches[0].last_offset_delta, -1, is_duplicate=True)

    def _roll_if_needed(self, size: int, batch: RecordBatch, now_ms: int) -> None:
        segment, config = self.segments.active, self.config
        if segment.size == 0:
            return
        is_full = segment.size + size > config.segment_bytes
        first_append_ms = segment.first_append_ms
        is_old = now_ms - first_append_ms > config.segment_ms and first_append_ms >= 0
        if config.segment_jitter_ms and not is_old and first_append_ms >= 0:
            is_old = now_ms - first_append_ms > config.segment_ms - self._roll_jitter_ms()
        index_size = (segment.indexes.entry_count + 1) * TIME_ENTRY_BYTES
        is_index_full = index_size > config.segment_index_bytes
        # Indexes have relative offsets of 32 bits; Kafka uses 31 of them.
        last_offset = segment.next_offset + batch.last_offset_delta
        is_out_of_range = last_offset - segment.base_offset >= 2**31
        if is_full or is_old or is_index_full or is_out_of_range:
            self.roll()

    def _roll_jitter_ms(self) -> int:
        """Return how much earlier the active segment is rolled: the same at each call."""
        name = f"{self.directory.name}/{self.active_segment.base_offset}"
        spread = min(self.config.segment_jitter_ms, self.config.segment_ms)
        return zlib.crc32(name.encode()) % spread

    def start_leader_epoch(self, epoch: int) -> bool:
        """Start an epoch at the log end offset; return whether `save_leader_epochs` is due."""
        if epoch > self.leader_epochs.current:
            self.leader_epochs.assign(epoch, self.end_offset)
            self._leader_epoch_checkpoint.is_dirty = True
        return self._leader_epoch_checkpoint.is_dirty

    def save_leader_epochs(self) -> None:
        """Save the leader epochs durably, which `flush` does otherwise; call it in a thread.

        Raises OSError: no record of the epoch can become durable before it succeeds.
        """
        with self._flush_lock:
            self._leader_epoch_checkpoint.flush(self.leader_epochs)

    def _start_leader_epoch(self, epoch: int, offset: int) -> None:
        if self.leader_epochs.assign(epoch, offset):
            try:
                self._leader_epoch_checkpoint.write(self.leader_epochs)
            except OSError as error:
                if error.errno in NO_SPACE_ERRORS:
                    # Append nothing that the next flush could not make durable: the producer is
                    # told that nothing was appended, and may send it again as a new batch.
                    self.leader_epochs.truncate(offset)
                    raise
                # Recovery finds the epoch in the batches.
                logger.warning(
                    "Log %s: leader epoch %d not saved: %s", self.directory.name, epoch, error
                )

    def _remove_segments_before_start(self) -> None:
        segments = self.segments
        while len(segments) > 1 and segments[1].base_offset <= self.start_offset:
            segments.remove(0)
        if self.leader_epochs.trim_start(self.start_offset):
            self._leader_epoch_checkpoint.is_dirty = True  # For the next flush.

    def _truncate_active_segment(self, size: int) -> None:
        """Copy the first `size` bytes of the active segment to a file that replaces its file."""
        segment, disk = self.active_segment, self.disk
        target = segment.path(".log.tmp")
        fd = disk.open(target, create=True, empty=True)
        try:
            for position in range(0, size, _COPY_BYTES):
                chunk = segment.read(position, min(_COPY_BYTES, size - position))
                disk.write_all(fd, chunk, position)
            disk.sync(fd)
        finally:
            disk.close(fd)
        disk.rename(target, segment.path(".log"))
        self.sync_directory()  # Offline if it fails: the open file no longer has this name.
        segment.drop()
        truncated = Segment(self.directory, segment.base_offset, self.files)
        truncated.size = truncated.flushed_size = size
        truncated.first_append_ms = segment.first_append_ms
        truncated.last_append_ms = segment.last_append_time()
        for batch in truncated.batches():
            truncated.add_batch(*batch, self.config.index_interval_bytes)
        truncated.transactions.replace(
            [
                aborted
                for aborted in segment.transactions.entries()
                if aborted.last_offset < truncated.next_offset
            ]
        )
        self.segments.replace([segment], truncated)


def _do_nothing() -> None:
    """Do nothing."""


def _first_offset(transaction: AbortedTransaction) -> int:
    return transaction.first_offset
