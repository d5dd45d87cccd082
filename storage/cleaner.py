"""The cleaner: rewrites segments without the records that compaction removes.

It runs beside the log, which keeps serving: it reads files through descriptors of its own, and
writes new files next to them. compaction.py decides what is cleaned, and puts the files in place.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from ottla.protocol.batch import Record, RecordBatch, build_batch
from ottla.protocol.compression import Compression

from .config import LogConfig
from .disk import Buffer, Disk
from .files import OpenFiles
from .offset_map import OffsetMap, decode_records
from .segment import Segment
from .segments import ALL_INDEX_SUFFIXES, CLEANED_SUFFIX
from .throttled_reader import CHUNK_BYTES, SegmentReader, Throttler
from .transaction_index import TRANSACTION_INDEX_SUFFIX, AbortedTransaction

#: Keys per pass by default: about 180 MB.
MAX_KEYS = 1_000_000

# Beyond this, differences between timestamps may not fit into a record.
_MAX_TIMESTAMP = 2**62


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """What a pass works on. None of it changes while the log keeps serving."""

    files: OpenFiles
    config: LogConfig
    now_ms: int
    #: All segments that may be rewritten, from the start of the log on.
    segments: tuple[Segment, ...]
    #: Segments with records that no pass has seen, and the position where those start.
    dirty: tuple[tuple[Segment, int], ...]
    dirty_bytes: int
    #: The first offset that no pass has seen, and the offset where this pass must end.
    first_dirty_offset: int
    end_offset: int
    #: For each producer id, the last offset of its last batch.
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
    #: Records without a key, and damaged batches: they are kept as they are.
    records_without_key: int = 0
    damaged_batches: int = 0
    #: Where the next pass starts; before the end of the plan if there were too many keys.
    first_dirty_offset: int = 0


class CleanedSegment(NamedTuple):
    """A segment after cleaning. An empty one has no records, only a batch that marks its end."""

    segment: Segment
    size: int
    has_changed: bool
    is_empty: bool


@dataclass(slots=True)
class RewrittenLog:
    """Cleaned segments that wait to be put in place."""

    plan: CompactionPlan
    cleaned: deque[CleanedSegment]
    stats: CleanerStats
    #: As long as the log has this segment, sealed, it has everything that the pass relied on.
    guard: Segment
    is_abandoned: bool = False
    #: Whether all segments are in place, and the first dirty offset is being written.
    is_committed: bool = False


def rewrite(
    plan: CompactionPlan,
    *,
    max_keys: int = MAX_KEYS,
    bytes_per_second: int | None = None,
    stop: threading.Event | None = None,
) -> RewrittenLog:
    """Rewrite the segments of a plan to new files. Meant for a thread.

    `bytes_per_second` limits reads and writes together. Raises OSError, BatchError if a segment is
    not made of batches, and CompactionStoppedError once `stop` is set; the new files are removed.
    """
    throttler = Throttler(bytes_per_second, stop)
    disk = plan.files.disk
    try:
        offsets = OffsetMap(max_keys)
        end = offsets.build(disk, plan.dirty, plan.end_offset, throttler)
        stats = CleanerStats(first_dirty_offset=end)
        cleaned: deque[CleanedSegment] = deque()
        if end > plan.first_dirty_offset:
            cleaner = _Cleaner(plan, offsets, end, stats, throttler)
            for segment in plan.segments:
                if segment.base_offset < end:
                    result = cleaner.clean(segment)
                    if result is not None:
                        cleaned.append(result)
    except BaseException:
        remove_cleaned_files(disk, plan.segments)
        raise
    return RewrittenLog(plan, cleaned, stats, plan.segments[-1])


def remove_cleaned_files(disk: Disk, segments: Iterable[Segment]) -> None:
    """Remove new files that will not be put in place."""
    for segment in segments:
        for suffix in (".log", *ALL_INDEX_SUFFIXES):
            disk.unlink(segment.path(suffix + CLEANED_SUFFIX))


class _Cleaner:
    """Rewrites segments without the records that have a later one with the same key.

    Nor does it keep those of aborted transactions.
    """

    def __init__(
        self,
        plan: CompactionPlan,
        offsets: OffsetMap,
        end_offset: int,
        stats: CleanerStats,
        throttler: Throttler,
    ) -> None:
        self._plan = plan
        self._offsets = offsets
        self._end_offset = end_offset
        self._stats = stats
        self._throttler = throttler
        self._aborted = _AbortedTransactions(plan.segments)
        # Producers whose last transaction so far has batches left.
        self._with_batches: set[int] = set()
        # Aborted transactions that keep records, because a batch is damaged.
        self._damaged_transactions: set[AbortedTransaction] = set()
        self._delete_horizon = min(plan.now_ms + plan.config.delete_retention_ms, _MAX_TIMESTAMP)

    def clean(self, segment: Segment) -> CleanedSegment | None:
        """Rewrite a segment; return None if nothing in it changes."""
        try:
            reader = SegmentReader(self._plan.files.disk, segment, self._throttler)
        except FileNotFoundError:
            return None  # Deleted by retention.
        with reader, _Writer(self._plan, segment, reader, self._throttler) as writer:
            is_empty = False
            for position, batch in reader.batches():
                cleaned = self._clean(batch)
                if cleaned is None and position + batch.size == reader.size:
                    # The last batch stays, without records: it says where the segment ended.
                    is_empty = writer.size == 0
                    cleaned = _without_records(batch)
                if cleaned is not None and batch.is_transactional and not batch.is_control:
                    self._with_batches.add(batch.producer_id)
                writer.add(batch, cleaned)
            writer.finish(self._transactions_of(segment))
            self._stats.bytes_before += reader.size
            self._stats.bytes_after += writer.size
            if not writer.has_changed and not is_empty:
                return None
            self._stats.segments += 1
            return CleanedSegment(segment, writer.size, writer.has_changed, is_empty)

    def _clean(self, batch: RecordBatch) -> Buffer | None:
        """Return what replaces a batch: itself, a smaller one, or None to remove it."""
        stats = self._stats
        if batch.last_offset >= self._end_offset:
            stats.records_kept += 0 if batch.is_control else batch.record_count
            return batch.view
        if batch.is_control:
            return self._clean_marker(batch)
        aborted = self._aborted.find(batch) if batch.is_transactional else None
        records = decode_records(batch)
        if records is None:
            stats.damaged_batches += 1
            if aborted is not None:
                self._damaged_transactions.add(aborted)
            return batch.view
        kept = self._kept(batch, records) if aborted is None else []
        delete_horizon = None
        if any(_is_tombstone(record) for record in kept):
            has_horizon = batch.has_delete_horizon
            delete_horizon = batch.base_timestamp if has_horizon else self._delete_horizon
        is_same = len(kept) == len(records)
        if delete_horizon is not None and not batch.has_delete_horizon:
            is_same = False
        if not is_same and not all(-1 <= record.timestamp < _MAX_TIMESTAMP for record in kept):
            kept, is_same = records, True  # Timestamps that cannot be encoded again: keep it all.
        stats.records_kept += len(kept)
        stats.records_dropped += len(records) - len(kept)
        stats.records_without_key += sum(record.key is None for record in kept)
        if not kept:
            is_last = self._plan.last_offsets.get(batch.producer_id) == batch.last_offset
            return _without_records(batch) if is_last else None
        return batch.view if is_same else _rebuild(batch, kept, delete_horizon)

    def _transactions_of(self, segment: Segment) -> list[AbortedTransaction]:
        """Return the entries of a segment's transaction index that are still needed."""
        return [
            transaction
            for transaction in segment.transactions.entries()
            if transaction.last_offset >= self._end_offset
            or transaction in self._damaged_transactions
        ]

    def _clean_marker(self, batch: RecordBatch) -> Buffer | None:
        """Return what replaces the marker of a transaction."""
        producer_id = batch.producer_id
        has_batches = producer_id in self._with_batches
        self._with_batches.discard(producer_id)
        is_last = self._plan.last_offsets.get(producer_id) == batch.last_offset
        if has_batches or is_last:
            return batch.view
        if batch.has_delete_horizon:
            return None if batch.base_timestamp <= self._plan.now_ms else batch.view
        records = decode_records(batch)
        return batch.view if not records else _rebuild(batch, records, self._delete_horizon)

    def _kept(self, batch: RecordBatch, records: list[Record]) -> list[Record]:
        drops_tombstones = batch.has_delete_horizon and batch.base_timestamp <= self._plan.now_ms
        is_latest = self._offsets.is_latest
        return [
            record
            for record in records
            if record.key is None
            or (
                is_latest(record.key, record.offset)
                and not (drops_tombstones and record.value is None)
            )
        ]


class _Writer:
    """Writes the new files of a segment. They are created when the first batch differs."""

    def __init__(
        self,
        plan: CompactionPlan,
        segment: Segment,
        reader: SegmentReader,
        throttler: Throttler,
    ) -> None:
        self._disk = plan.files.disk
        self._index_interval_bytes = plan.config.index_interval_bytes
        self._reader = reader
        self._throttler = throttler
        # Only builds the indexes; it opens no file.
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
        """Whether the new segment differs from the old one."""
        return self._fd is not None

    def add(self, old: RecordBatch, new: Buffer | None) -> None:
        """Add what replaces the next batch of the old segment; None removes it."""
        if self._fd is None and new is not old.view:
            path = self._segment.path(".log" + CLEANED_SUFFIX)
            self._fd = self._disk.open(path, create=True, empty=True)
            self._copy_unchanged_batches()
        if new is None:
            return
        batch = old if new is old.view else RecordBatch(new)
        self._segment.add_batch(
            self.size,
            batch.size,
            batch.base_offset,
            batch.last_offset,
            batch.max_timestamp,
            self._index_interval_bytes,
        )
        self.size += batch.size
        if self._fd is not None:
            self._buffer += new
            if len(self._buffer) >= CHUNK_BYTES:
                self._write_buffer(self._fd)

    def finish(self, transactions: list[AbortedTransaction]) -> None:
        """Write the remainder and the indexes, and fsync the files."""
        if self._fd is None:
            return
        self._write_buffer(self._fd)
        self._disk.sync(self._fd)
        segment = self._segment
        relative_offset = segment.offset_of_max_timestamp - segment.base_offset
        segment.indexes.times.add(segment.max_timestamp, relative_offset)
        segment.indexes.write_durably(CLEANED_SUFFIX)
        segment.transactions.replace(transactions)
        segment.transactions.write_durably(segment.path(TRANSACTION_INDEX_SUFFIX + CLEANED_SUFFIX))

    def _copy_unchanged_batches(self) -> None:
        assert self._fd is not None
        for position in range(0, self.size, CHUNK_BYTES):
            self._buffer += self._reader.read(position, min(CHUNK_BYTES, self.size - position))
            self._write_buffer(self._fd)

    def _write_buffer(self, fd: int) -> None:
        self._throttler.spend(len(self._buffer))
        self._disk.write_all(fd, self._buffer, self._written)
        self._written += len(self._buffer)
        self._buffer.clear()


class _AbortedTransactions:
    """The aborted transactions that the indexes of some segments list, by producer."""

    def __init__(self, segments: Iterable[Segment]) -> None:
        self._by_producer: dict[int, list[AbortedTransaction]] = {}
        for segment in segments:
            for transaction in segment.transactions.entries():
                self._by_producer.setdefault(transaction.producer_id, []).append(transaction)

    def find(self, batch: RecordBatch) -> AbortedTransaction | None:
        """Return the aborted transaction that a batch is part of."""
        transactions = self._by_producer.get(batch.producer_id, [])
        index = bisect_right(transactions, batch.base_offset, key=_first_offset) - 1
        if index >= 0 and batch.base_offset < transactions[index].last_offset:
            return transactions[index]
        return None


def _first_offset(transaction: AbortedTransaction) -> int:
    return transaction.first_offset


def _is_tombstone(record: Record) -> bool:
    return record.value is None and record.key is not None


def _rebuild(
    batch: RecordBatch, records: list[Record], delete_horizon: int | None = None
) -> Buffer:
    """Build a batch with fewer records; one without records keeps its max timestamp.

    A marker without its record is no control batch any more.
    """
    is_marker = batch.is_control
    data = build_batch(
        records,
        compression=batch.compression if records else Compression.NONE,
        base_offset=batch.base_offset,
        last_offset=batch.last_offset,
        leader_epoch=batch.partition_leader_epoch,
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        transactional=batch.is_transactional and (not is_marker or bool(records)),
        control=is_marker and bool(records),
        delete_horizon=delete_horizon,
        max_timestamp=batch.max_timestamp,
    )
    if batch.has_append_time:
        RecordBatch(data).stamp_append_time(batch.max_timestamp)
    return data


def _without_records(batch: RecordBatch) -> Buffer:
    return batch.view if batch.record_count == 0 else _rebuild(batch, [])
