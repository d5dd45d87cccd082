"""The work of compaction: writing segments again without what has been replaced.

Runs beside the log, which goes on: it reads files through descriptors of its own, and writes others
beside them. See compaction.py for when, and for how they get into place.
"""

from __future__ import annotations

import logging
import struct
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import NamedTuple

from ottla.protocol.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchError,
    Record,
    RecordBatch,
    build_batch,
)
from ottla.protocol.compression import Compression

from .config import LogConfig
from .disk import Buffer, Disk
from .errors import StorageError
from .files import OpenFiles
from .segment import BatchPosition, Segment

logger = logging.getLogger(__name__)

#: Keys of one pass, unless a caller says otherwise: about 180 MB.
MAX_KEYS = 1_000_000

CLEANED = ".cleaned"
_CHUNK_BYTES = 1024 * 1024
_DIGEST_BYTES = 16
# Beyond this, differences of timestamps may not fit into a record. It is far enough.
_LAST_TIMESTAMP = 2**62
_CONTROL_KEY = struct.Struct(">hh")  # version, type
_ENDS_OF_TRANSACTIONS = {0: "abort", 1: "commit"}


class CompactionStoppedError(StorageError):
    """A rewrite was asked to stop; it has left nothing behind."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What a pass is to look at. All of it stays as it is while the log goes on."""

    files: OpenFiles
    config: LogConfig
    now_ms: int
    #: All that may be rewritten, from the start of the log on.
    segments: tuple[Segment, ...]
    #: Those with something that no pass has seen, and the position at which that begins.
    dirty: tuple[tuple[Segment, int], ...]
    dirty_bytes: int
    #: The first offset that no pass has seen, and the one at which this pass has to end.
    dirty_offset: int
    end_offset: int
    #: Of each producer, the last offset of its last batch.
    last_offsets: Mapping[int, int]


@dataclass(slots=True)
class CleanerStats:
    """What a pass did."""

    segments: int = 0
    segments_removed: int = 0
    bytes_before: int = 0
    bytes_after: int = 0
    records_kept: int = 0
    records_dropped: int = 0
    #: Records without a key, and batches that cannot be read: they are kept as they are.
    records_without_key: int = 0
    damaged_batches: int = 0
    #: Where the next pass begins. It is short of the plan's end if there were too many keys.
    dirty_offset: int = 0


class CleanedSegment(NamedTuple):
    """What became of a segment. One that has nothing left but where it ended is void."""

    segment: Segment
    size: int
    has_changed: bool
    is_void: bool


@dataclass(slots=True)
class RewrittenLog:
    """What waits to be put in place."""

    plan: CompactionPlan
    cleaned: deque[CleanedSegment]
    stats: CleanerStats
    #: While this segment is a sealed one of the log, the log has all that the pass relied on.
    guard: Segment
    is_abandoned: bool = False


def rewrite(
    plan: CompactionPlan,
    *,
    max_keys: int = MAX_KEYS,
    bytes_per_second: int | None = None,
    stop: threading.Event | None = None,
) -> RewrittenLog:
    """Write the segments of a plan again, to files beside them. For a thread.

    `bytes_per_second` counts what is read and what is written. Raises OSError, BatchError where a
    log is not made of batches, and CompactionStoppedError once `stop` is set; then all files that
    it made are gone again.
    """
    throttle = _Throttle(bytes_per_second, stop)
    try:
        keys = _Keys(max_keys)
        dirty_offset = keys.read(plan, throttle)
        stats = CleanerStats(dirty_offset=dirty_offset)
        cleaned: deque[CleanedSegment] = deque()
        for segment in plan.segments:
            if plan.dirty_offset < dirty_offset > segment.base_offset:
                cleaner = _Cleaner(plan, keys.offsets, dirty_offset, stats, throttle)
                result = cleaner.clean(segment)
                if result is not None:
                    cleaned.append(result)
    except BaseException:
        remove_cleaned(plan.files.disk, plan.segments)
        raise
    return RewrittenLog(plan, cleaned, stats, plan.segments[-1])


def remove_cleaned(disk: Disk, segments: tuple[Segment, ...] | list[Segment]) -> None:
    """Remove files that were written and are not to be put in place."""
    for segment in segments:
        for suffix in (".log", ".index", ".timeindex"):
            disk.unlink(segment.path(suffix + CLEANED))


class _Throttle:
    """Keeps to so many bytes a second, and looks whether it is time to stop."""

    def __init__(self, bytes_per_second: int | None, stop: threading.Event | None) -> None:
        self._bytes_per_second = bytes_per_second
        self._stop = stop or threading.Event()
        self._started = time.monotonic()
        self._done_bytes = 0

    def spend(self, size: int) -> None:
        self._done_bytes += size
        if self._bytes_per_second is not None:
            due = self._started + self._done_bytes / self._bytes_per_second
            self._stop.wait(max(0, due - time.monotonic()))
        if self._stop.is_set():
            raise CompactionStoppedError("compaction was stopped")


class _Source:
    """The file of a segment, as long as the segment is."""

    def __init__(self, disk: Disk, segment: Segment, throttle: _Throttle) -> None:
        self._disk = disk
        self._throttle = throttle
        self.size = segment.size
        self.fd = disk.open(segment.path(".log"))

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close(self.fd)

    def read(self, position: int, size: int) -> bytes:
        size = min(size, self.size - position)
        self._throttle.spend(size)
        return self._disk.read(self.fd, size, position)

    def batches(self, position: int = 0) -> Iterator[tuple[int, RecordBatch]]:
        """Give batches and their positions. Raises BatchError where there is none."""
        block, start = b"", position
        while position < self.size:
            at = position - start
            if at + HEADER_BYTES > len(block):
                block, start, at = self.read(position, _CHUNK_BYTES), position, 0
            size = LOG_OVERHEAD_BYTES + int.from_bytes(block[at + 8 : at + 12], "big")
            if len(block) - at < size <= self.size - position:
                block, start, at = self.read(position, max(size, _CHUNK_BYTES)), position, 0
            batch = RecordBatch(memoryview(block)[at:])
            yield position, batch
            position += batch.size


class _Keys:
    """The last offset of each key in the dirty part.

    A digest stands for a key, so that a key takes the same room whatever its length is. What an
    open transaction wrote waits for its marker.
    """

    def __init__(self, max_keys: int) -> None:
        self.offsets: dict[bytes, int] = {}
        self._max_keys = max_keys
        # By producer: the first offset of its open transaction, and the keys in it.
        self._open: dict[int, tuple[int, dict[bytes, int]]] = {}

    def read(self, plan: CompactionPlan, throttle: _Throttle) -> int:
        """Read the dirty part up to its end, or until there are too many; give where that was."""
        end = self._read(plan, throttle)
        first_open = min((first for first, _ in self._open.values()), default=end)
        if first_open < end:
            directory = plan.segments[0].directory.name
            logger.info("%s: compaction ends at %d: an open transaction", directory, first_open)
        return min(end, first_open)

    def _read(self, plan: CompactionPlan, throttle: _Throttle) -> int:
        for segment, position in plan.dirty:
            try:
                source = _Source(plan.files.disk, segment, throttle)
            except FileNotFoundError:
                continue  # deleted by retention, with all that it could replace
            with source:
                for _, batch in source.batches(position):
                    if self._size() >= self._max_keys:
                        return batch.base_offset
                    self._add(batch)
        return plan.end_offset

    def _size(self) -> int:
        return len(self.offsets) + sum(len(keys) for _, keys in self._open.values())

    def _add(self, batch: RecordBatch) -> None:
        records = _records(batch)
        if records is None:
            return
        if batch.is_control:
            self._end_transaction(batch.producer_id, records)
            return
        offsets = self.offsets
        if batch.is_transactional:
            new = (batch.base_offset, dict[bytes, int]())
            _, offsets = self._open.setdefault(batch.producer_id, new)
        for record in records:
            if record.key is not None:
                offsets[_digest(record.key)] = record.offset

    def _end_transaction(self, producer_id: int, records: list[Record]) -> None:
        key = records[0].key if records else None
        if key is None or len(key) < _CONTROL_KEY.size:
            return
        end = _ENDS_OF_TRANSACTIONS.get(_CONTROL_KEY.unpack_from(key)[1])
        if end is None:
            return
        _, waiting = self._open.pop(producer_id, (0, {}))
        if end == "commit":
            for digest, offset in waiting.items():
                if offset > self.offsets.get(digest, -1):
                    self.offsets[digest] = offset


class _Cleaner:
    """Writes one segment again, without what has been replaced."""

    def __init__(
        self,
        plan: CompactionPlan,
        offsets: Mapping[bytes, int],
        dirty_offset: int,
        stats: CleanerStats,
        throttle: _Throttle,
    ) -> None:
        self._plan = plan
        self._offsets = offsets
        self._dirty_offset = dirty_offset
        self._stats = stats
        self._throttle = throttle
        horizon = plan.now_ms + plan.config.delete_retention_ms
        self._horizon = min(horizon, _LAST_TIMESTAMP)

    def clean(self, segment: Segment) -> CleanedSegment | None:
        """Do it; None if all stays as it is."""
        try:
            source = _Source(self._plan.files.disk, segment, self._throttle)
        except FileNotFoundError:
            return None  # deleted by retention
        with source, _Writer(self._plan, segment, source, self._throttle) as writer:
            is_void = False
            for position, batch in source.batches():
                cleaned = self._clean(batch)
                if cleaned is None and position + batch.size == source.size:
                    # The last one says where the segment ended, even if it says nothing else.
                    is_void = writer.size == 0
                    cleaned = _emptied(batch)
                writer.add(batch, cleaned)
            writer.finish()
            self._stats.bytes_before += source.size
            self._stats.bytes_after += writer.size
            if not writer.has_changed and not is_void:
                return None
            self._stats.segments += 1
            return CleanedSegment(segment, writer.size, writer.has_changed, is_void)

    def _clean(self, batch: RecordBatch) -> Buffer | None:
        """Give what is to be in the place of a batch: itself, a smaller one, or nothing."""
        stats = self._stats
        if batch.is_control:
            return batch.view
        if batch.last_offset >= self._dirty_offset:
            stats.records_kept += batch.record_count
            return batch.view
        records = _records(batch)
        if records is None:
            stats.damaged_batches += 1
            return batch.view
        kept = self._kept(batch, records)
        horizon = None
        if any(_is_tombstone(record) for record in kept):
            horizon = batch.base_timestamp if batch.has_delete_horizon else self._horizon
        is_same = len(kept) == len(records)
        if horizon is not None and not batch.has_delete_horizon:
            is_same = False
        if not is_same and not all(-1 <= record.timestamp < _LAST_TIMESTAMP for record in kept):
            kept, is_same = records, True  # no harm in keeping what cannot be written again
        stats.records_kept += len(kept)
        stats.records_dropped += len(records) - len(kept)
        stats.records_without_key += sum(record.key is None for record in kept)
        if not kept:
            is_last = self._plan.last_offsets.get(batch.producer_id) == batch.last_offset
            return _emptied(batch) if is_last else None
        return batch.view if is_same else _rebuilt(batch, kept, horizon)

    def _kept(self, batch: RecordBatch, records: list[Record]) -> list[Record]:
        is_past = batch.has_delete_horizon and batch.base_timestamp <= self._plan.now_ms
        find = self._offsets.get
        return [
            record
            for record in records
            if record.key is None
            or (
                find(_digest(record.key), -1) <= record.offset
                and not (is_past and record.value is None)
            )
        ]


class _Writer:
    """The new files of a segment. There are none before something differs."""

    def __init__(
        self, plan: CompactionPlan, segment: Segment, source: _Source, throttle: _Throttle
    ) -> None:
        self._disk = plan.files.disk
        self._interval = plan.config.index_interval_bytes
        self._source = source
        self._throttle = throttle
        # For its indexes; it opens no file.
        self._segment = Segment(segment.directory, segment.base_offset, plan.files)
        self._fd: int | None = None
        self._buffer = bytearray()
        self._written = 0
        self.size = 0

    def __enter__(self) -> _Writer:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            self._disk.close(self._fd)
            self._fd = None

    @property
    def has_changed(self) -> bool:
        """Whether it is another segment than the old one."""
        return self._fd is not None

    def add(self, old: RecordBatch, new: Buffer | None) -> None:
        """Take in what is in the place of the next batch of the old segment."""
        if self._fd is None and new is not old.view:
            path = self._segment.path(".log" + CLEANED)
            self._fd = self._disk.open(path, create=True, empty=True)
            self._copy_beginning()
        if new is None:
            return
        batch = old if new is old.view else RecordBatch(new)
        place = BatchPosition(
            self.size, batch.size, batch.base_offset, batch.last_offset, batch.max_timestamp
        )
        self._segment.note(place, self._interval)
        self.size += batch.size
        if self._fd is not None:
            self._buffer += new
            if len(self._buffer) >= _CHUNK_BYTES:
                self._flush(self._fd)

    def finish(self) -> None:
        """Write what is left, and see to it that the device has all of it."""
        if self._fd is None:
            return
        self._flush(self._fd)
        self._disk.sync(self._fd)
        segment = self._segment
        segment.times.add(
            segment.max_timestamp, segment.offset_of_max_timestamp - segment.base_offset
        )
        for suffix, entries in (
            (".index", segment.offsets.entries),
            (".timeindex", segment.times.entries),
        ):
            fd = self._disk.open(segment.path(suffix + CLEANED), create=True, empty=True)
            try:
                self._disk.write_all(fd, entries, 0)
                self._disk.sync(fd)
            finally:
                self._disk.close(fd)

    def _copy_beginning(self) -> None:
        assert self._fd is not None
        for position in range(0, self.size, _CHUNK_BYTES):
            self._buffer += self._source.read(position, min(_CHUNK_BYTES, self.size - position))
            self._flush(self._fd)

    def _flush(self, fd: int) -> None:
        self._throttle.spend(len(self._buffer))
        self._disk.write_all(fd, self._buffer, self._written)
        self._written += len(self._buffer)
        self._buffer.clear()


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()


def _is_tombstone(record: Record) -> bool:
    return record.value is None and record.key is not None


def _records(batch: RecordBatch) -> list[Record] | None:
    """Decode a batch; None if it is damaged."""
    try:
        batch.validate()
        return batch.records()
    except BatchError as error:
        logger.warning("the batch at offset %d is left as it is: %s", batch.base_offset, error)
        return None


def _rebuilt(batch: RecordBatch, records: list[Record], horizon: int | None = None) -> Buffer:
    """Build a batch anew with fewer records; one that has none left keeps its time as well."""
    data = build_batch(
        records,
        compression=batch.compression if records else Compression.NONE,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        leader_epoch=batch.partition_leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.is_transactional,
        delete_horizon=horizon,
        max_timestamp=batch.max_timestamp,
    )
    if batch.has_append_time:
        RecordBatch(data).stamp_append_time(batch.max_timestamp)
    return data


def _emptied(batch: RecordBatch) -> Buffer:
    return batch.view if batch.record_count == 0 else _rebuilt(batch, [])
