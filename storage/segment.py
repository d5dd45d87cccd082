"""One segment: a `.log` file of record batches and its indexes. It never decodes a record.

    00000000000000001000.log         batches, exactly as on the wire, from base offset 1000
    00000000000000001000.index       see index.py
    00000000000000001000.timeindex
    00000000000000001000.txnindex    see transaction_index.py; only if a transaction was aborted

The file of the active segment is longer than its content: it is extended by holes ahead of the
appends, so that one map serves many of them, and truncated when the segment is sealed. After a
crash the rest of the file is zeros. No batch has a length of zero, so recovery finds the end.

Python never touches mapped pages: they are only passed to system calls. A page that cannot be read
is an error for a system call, but SIGBUS, the end of the process, for Python. Batch headers are
read with pread.
"""

from __future__ import annotations

import errno
import logging
import mmap
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ottla.protocol.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, RecordBatch, unpack_header

from .disk import Buffer
from .errors import StorageError
from .files import OpenFiles
from .index import OffsetIndex
from .read_mode import READ_MODE, ColdReadError, check_may_wait
from .segment_indexes import SegmentIndexes
from .timestamp_search import IndexHint, SegmentSearch
from .transaction_index import TransactionIndex

logger = logging.getLogger(__name__)

_MIN_EXTENSION_BYTES = 64 * 1024
_MAX_EXTENSION_BYTES = 64 * 1024 * 1024
_SCAN_BYTES = 8 * 1024
_LOAD_STEP_BYTES = 128 * 1024
#: How far ahead of what is loaded into the page cache the system reads: so many times its size, up
#: to a maximum. Consumers read on, but whoever jumps about should not cost much more.
_READ_AHEAD_FACTOR = 4
_MAX_READ_AHEAD_BYTES = 4 * 1024 * 1024
# Between entries of an index that is rebuilt while the segment is open; the topic's config is not
# known here.
_REBUILD_INTERVAL_BYTES = 4096
# An index whose last entry is so far from the end of a sealed segment was truncated.
_MAX_UNINDEXED_BYTES = 8 * 1024 * 1024
_NO_HOLES: Mapping[int, int] = {}


class BatchPosition(NamedTuple):
    """Where a batch is in its segment, and which offsets and timestamps it spans."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class SegmentState(NamedTuple):
    """What a start needs to know of a segment that was closed cleanly."""

    base_offset: int
    size: int
    next_offset: int
    max_timestamp: int
    offset_of_max_timestamp: int
    first_append_ms: int
    index_entries: int
    bytes_since_index_entry: int


class Segment:
    """Batches from `base_offset` on. Not thread-safe, except for `flush` and `reader`."""

    __slots__ = (
        "_bytes_since_index_entry",
        "_disk",
        "_fd",
        "_fd_to_close",
        "_file_size",
        "_is_pinned",
        "_is_sealed",
        "_is_syncing",
        "_last_batch",
        "_map",
        "_map_reference",
        "_sync_lock",
        "base_offset",
        "directory",
        "files",
        "first_append_ms",
        "flushed_size",
        "holes",
        "indexes",
        "is_dropped",
        "is_max_timestamp_verified",
        "last_append_ms",
        "max_timestamp",
        "next_offset",
        "offset_of_max_timestamp",
        "size",
        "transactions",
    )

    def __init__(self, directory: Path, base_offset: int, files: OpenFiles) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.size = 0
        self.next_offset = base_offset
        self.max_timestamp = -1
        self.offset_of_max_timestamp = base_offset
        #: Content up to this position is durable.
        self.flushed_size = 0
        #: When the first record was appended, by the caller's clock; -1 if there is none.
        self.first_append_ms = -1
        #: When the last record was appended, by the same clock; -1 if that was before the log was
        #: opened. See `last_append_time`.
        self.last_append_ms = -1
        #: Where damaged bytes start and end; see damaged_segment.py.
        self.holes: Mapping[int, int] = _NO_HOLES
        self.files = files
        self._disk = files.disk
        self.indexes = SegmentIndexes(directory, f"{base_offset:020d}", self._disk)
        #: The aborted transactions whose markers are in this segment.
        self.transactions = TransactionIndex(directory, base_offset, self._disk)
        self._bytes_since_index_entry = 0
        self._fd: int | None = None
        self._map: mmap.mmap | None = None
        self._map_reference: weakref.ref[mmap.mmap] | None = None
        self._file_size = 0
        # The batch that was appended last, which is what most consumers ask for.
        self._last_batch: tuple[int, int, int, int, int] | None = None
        self._is_sealed = False
        #: Whether it was deleted or replaced.
        self.is_dropped = False
        self._is_pinned = False
        # While a thread syncs the file, its descriptor must not be closed: the number could be
        # reused, and the error of another file be consumed.
        self._sync_lock = threading.Lock()
        self._is_syncing = False
        self._fd_to_close: int | None = None
        #: Whether `max_timestamp` was verified; after a start it comes from the time index.
        self.is_max_timestamp_verified = True

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset} to {self.next_offset}, {self.size} bytes>"

    def path(self, suffix: str) -> Path:
        """Return the path of one of its files."""
        return self.directory / f"{self.base_offset:020d}{suffix}"

    @property
    def is_dirty(self) -> bool:
        """Whether content or indexes may not be durable."""
        return self.flushed_size < self.size or self.indexes.is_dirty

    def create(self) -> None:
        """Create the log file."""
        self._fd = self._disk.open(self.path(".log"), create=True)
        self.files.touch(self)

    def append(
        self,
        data: Buffer,
        batches: Sequence[RecordBatch],
        index_interval_bytes: int,
        max_file_size: int,
        *,
        preallocates: bool = False,
    ) -> None:
        """Append `batches`, whose bytes are `data`, completely or not at all.

        The file is extended in advance, in steps or, if it `preallocates`, at once, but not beyond
        `max_file_size`. Raises OSError. If a partial write could not be undone either, the error
        has a note, and the segment must not be used.
        """
        if self._is_sealed:
            self._unseal()
        position = self.size
        end = position + len(data)
        fd = self._fd
        if fd is None:
            fd = self._open()
        try:
            if end > self._file_size:
                self._extend(fd, end, max_file_size, at_once=preallocates)
            if self._disk.write(fd, data, position) != len(data):
                self._disk.write_all(fd, data, position)
        except OSError as error:
            self._undo_append(fd, position, error)
            raise
        self.size = end
        for batch in batches:
            base_offset, size = batch.base_offset, batch.size
            last_offset = base_offset + batch.last_offset_delta
            appended = (position, size, base_offset, last_offset, batch.max_timestamp)
            self.add_batch(*appended, index_interval_bytes)
            position += size
        self._last_batch = appended

    def add_batch(
        self,
        position: int,
        size: int,
        base_offset: int,
        last_offset: int,
        max_timestamp: int,
        index_interval_bytes: int,
    ) -> None:
        """Account for a batch that the file contains: next offset, max timestamp, indexes."""
        self.next_offset = last_offset + 1
        if max_timestamp > self.max_timestamp:
            self.max_timestamp = max_timestamp
            self.offset_of_max_timestamp = base_offset
        if self._bytes_since_index_entry > index_interval_bytes:
            self.indexes.add(
                base_offset - self.base_offset,
                position,
                self.max_timestamp,
                self.offset_of_max_timestamp - self.base_offset,
            )
            self._bytes_since_index_entry = 0
        self._bytes_since_index_entry += size

    def view(self, start: int, stop: int) -> memoryview:
        """Return the bytes from `start` to `stop` as a view of the map, for a system call."""
        assert start <= stop <= self.size
        mapped = self._map
        if mapped is None or len(mapped) < stop:
            if start == stop:
                return memoryview(b"")
            fd = self._open()
            mapped = self._map = self._disk.map(fd, max(self._file_size, stop))
            self._map_reference = weakref.ref(mapped)
        else:
            self.files.touch(self)
        return memoryview(mapped)[start:stop]

    def read(self, start: int, size: int) -> bytes:
        """Read bytes for Python to look at."""
        size = min(size, self.size - start)
        if not READ_MODE.may_wait and not self.is_in_page_cache(start, start + size):
            raise ColdReadError
        return self._disk.read(self._open(), size, start)

    def reader(self) -> Segment:
        """Return a copy with descriptors of its own, for a thread to read what there is now."""
        reader = Segment(self.directory, self.base_offset, OpenFiles(self._disk))
        reader._is_sealed = self._is_sealed  # First: the rest no longer changes then.
        reader.set_durable_size(self.size)
        reader.next_offset = self.next_offset
        reader.max_timestamp = self.max_timestamp
        reader.offset_of_max_timestamp = self.offset_of_max_timestamp
        reader.indexes.share(self.indexes)
        return reader

    @property
    def is_readable_by_path(self) -> bool:
        """Whether its files have their names, which a `reader` needs."""
        return not self.is_dropped and not self._is_pinned

    @property
    def accepts_indexes(self) -> bool:
        """Whether indexes that were loaded in a thread may be used."""
        return self._is_sealed and self.is_readable_by_path

    def batches(self, position: int = 0) -> Iterator[BatchPosition]:
        """Yield the batches from a position on, at which one must start. Raises StorageError."""
        return map(BatchPosition._make, self._scan(position))

    def find(self, offset: int) -> BatchPosition | None:
        """Return the batch that contains an offset, or else the first batch after it."""
        last = self._last_batch
        if last is not None and offset >= last[2]:
            return BatchPosition(*last) if offset <= last[3] else None
        index = self.offset_index()
        entry = index.entry_at_or_before_offset(offset - self.base_offset)
        for batch in self._scan_from_entry(entry):
            if batch[3] >= offset:
                return BatchPosition(*batch)
        return None

    def end_of_whole_batches(self, first: BatchPosition, max_bytes: int, end_offset: int) -> int:
        """Return the position where the last batch within `max_bytes` of the start of `first` ends.

        Batches from `end_offset` on do not count; `first` always does.
        """
        limit = first.position + max_bytes
        end = first.position + first.size
        if end >= limit:
            return end
        is_all_visible = self.next_offset <= end_offset
        if is_all_visible and self.size <= limit:
            return self.size
        index = self.offset_index()
        entry = index.entry_at_or_before_position(limit)
        if not is_all_visible:
            entry = min(entry, index.entry_at_or_before_offset(end_offset - self.base_offset))
        batches = self._scan_from_entry(entry) if entry[1] > end else self._scan(end)
        for position, size, base_offset, _last_offset, _timestamp in batches:
            if position + size > limit or base_offset >= end_offset:
                return position
        return self.size

    def offset_at(self, position: int) -> int:
        """Return the base offset of the batch at a position, or the next offset at the end."""
        entry = self.offset_index().entry_at_or_before_position(position)
        for batch in self._scan_from_entry(entry):
            if batch[0] >= position:
                return batch[2]
        return self.next_offset

    def has_valid_end(self) -> bool:
        """Whether the last indexed batch, and those after it, are where they should be."""
        entry = self.offset_index().entry_at_or_before_position(self.size)
        try:
            for batch in self.batches(entry[1]):
                if batch.last_offset >= self.next_offset or batch.base_offset < self.base_offset:
                    return False
        except StorageError:
            return False
        return True

    def is_older(self, timestamp: int) -> bool:
        """Whether all records are known to be older."""
        return self.max_timestamp < timestamp and self.is_max_timestamp_verified

    def search(self, timestamp: int, start_offset: int) -> SegmentSearch | None:
        """Return a search for the first record from an offset on that is not older; None if none.

        It uses what the indexes say, and verifies it.
        """
        if self.is_older(timestamp):
            return None
        is_too_old = self.max_timestamp < timestamp
        if is_too_old:
            entry = (self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)
        else:
            entry = self.indexes.times.entry_before(timestamp)
        indexed_offset, position = self.indexes.offsets.entry_at_or_before_offset(entry[1])
        base_offset = self.base_offset
        hint = IndexHint(entry[0], base_offset + entry[1], base_offset + indexed_offset, position)
        return SegmentSearch(
            self._disk,
            self.path(".log"),
            self.size,
            timestamp,
            start_offset,
            hint,
            is_newer_unlikely=is_too_old,
            holes=self.holes,
        )

    def verify_max_timestamp(self) -> None:
        """Make sure that `max_timestamp` is right, before records are deleted because of it.

        When a segment is loaded, it comes from the end of the time index, unverified.
        """
        if not self.is_max_timestamp_verified:
            self.is_max_timestamp_verified = True
            relative_offset = self.offset_of_max_timestamp - self.base_offset
            if not self._has_timestamp(self.max_timestamp, relative_offset):
                self._repair_indexes()

    def probe_max_timestamp(self) -> tuple[int, int]:
        """Return the verified max timestamp of a sealed segment, and the offset of its batch.

        Reads the files through descriptors of its own, and repairs the indexes if they are wrong;
        meant for a thread. `set_max_timestamp` follows.
        """
        probe = Segment(self.directory, self.base_offset, OpenFiles(self._disk))
        try:
            probe.load(self.size, self.next_offset, _REBUILD_INTERVAL_BYTES)
            probe.verify_max_timestamp()
            return probe.max_timestamp, probe.offset_of_max_timestamp
        finally:
            probe.close()

    def set_max_timestamp(self, max_timestamp: int, offset: int) -> None:
        """Use the result of `probe_max_timestamp`."""
        self.max_timestamp, self.offset_of_max_timestamp = max_timestamp, offset
        self.is_max_timestamp_verified = True
        self.indexes.unmap()

    def last_append_time(self) -> int:
        """Return when the last record was appended, or when the file was changed since (ms)."""
        if self.last_append_ms < 0:
            try:
                modified = self.path(".log").stat().st_mtime
            except FileNotFoundError:
                return -1  # Deleted in the meantime.
            self.last_append_ms = int(modified * 1000)
        return self.last_append_ms

    def is_in_page_cache(self, start: int, stop: int) -> bool:
        """Whether a range is probably in the page cache: it is at the positions probed."""
        if self.is_dropped:
            return True  # It can no longer be loaded.
        mapped = self.view(start, stop)
        return self._fd is None or self._disk.is_resident(self._fd, mapped, start)

    def load_into_page_cache(self, start: int, stop: int) -> None:
        """Read a range into the page cache. May be called in a thread: it waits for the device.

        Raises OSError, also if the file ends before the range: sending it would fail.
        """
        try:
            fd = self._disk.open(self.path(".log"))
        except FileNotFoundError:
            return  # Deleted in the meantime.
        try:
            # The readahead of the system would leave it to the next reader to continue: to the
            # event loop, which sends these pages.
            self._disk.advise_random_access(fd)
            ahead = min(_READ_AHEAD_FACTOR * (stop - start), _MAX_READ_AHEAD_BYTES)
            self._disk.read_ahead(fd, start, min(stop + ahead, self.size) - start)
            buffer = memoryview(bytearray(_LOAD_STEP_BYTES))
            for position in range(start, stop, len(buffer)):
                part = buffer[: stop - position]
                if self._disk.read_into(fd, part, position) == len(part):
                    continue
                if not self.is_dropped and not self._is_pinned:
                    raise OSError(errno.EIO, f"the file ends before position {stop}")
                return  # Another file has its name: what was mapped is whole.
        finally:
            self._disk.close(fd)

    def flush(self) -> None:
        """Wait until the present content is durable. May be called in a thread."""
        size = self.size
        with_indexes = self.indexes.is_dirty and not self.indexes.is_unwritten
        if not self.is_dirty:
            return
        with self._sync_lock:
            fd = self._fd
            self._is_syncing = True
        try:
            if fd is not None:
                # A file truncated to its content must not come back with a tail of zeros.
                self._disk.sync(fd, metadata=with_indexes)
            else:
                self._disk.sync_path(self.path(".log"))
            if with_indexes:
                self.indexes.flush()
                self.transactions.flush()
        except OSError:
            if self.is_dropped:
                return  # Deleted in the meantime: nobody needs it.
            raise
        finally:
            with self._sync_lock:
                self._is_syncing = False
                fd, self._fd_to_close = self._fd_to_close, None
            if fd is not None:
                self._disk.close(fd)
        self.flushed_size = size
        if with_indexes:
            self.indexes.is_dirty = False

    def seal(self) -> None:
        """End the segment: write the indexes, and truncate the file to its content."""
        self.trim()
        self._add_last_time_entry()
        self.write_indexes()
        self._is_sealed = True

    def seal_in_memory(self) -> None:
        """End the segment, whose file was trimmed; `write_indexes` follows, in any thread."""
        self._add_last_time_entry()
        # While they are dirty, the indexes stay in memory.
        self.indexes.is_dirty = self.indexes.is_unwritten = True
        self._is_sealed = True

    def trim(self) -> None:
        """Truncate the log file to its content."""
        if self._file_size != self.size:  # Keeps the time of the last change.
            self._disk.resize(self._open(), self.size)
            self._file_size = self.size

    def write_indexes(self) -> None:
        """Write the indexes to their files. May be called in a thread if it is sealed."""
        # First: a flush in another thread covers them when the indexes were written.
        self.transactions.write()
        self.indexes.write()

    def load(self, size: int, next_offset: int | None, index_interval_bytes: int) -> None:
        """Load a segment that was closed cleanly.

        `next_offset` is known for sealed segments. The active one (None) is read from its last
        index entry on, and its indexes are loaded into memory, to be appended to. Missing indexes
        are rebuilt: compaction removes them before it replaces a log file.
        """
        self.set_durable_size(size)
        self.is_max_timestamp_verified = False
        self.transactions.open()
        if next_offset is None:
            self.transactions.load()
            self._load_active(index_interval_bytes)
            return
        self.next_offset = next_offset
        timestamp, relative_offset = self.indexes.last_time_entry(next_offset - self.base_offset)
        if timestamp < 0 and (size or not self.indexes.have_files()):
            self._rebuild_indexes(index_interval_bytes)
            self.next_offset = next_offset
            self.seal()
        else:
            self.max_timestamp = timestamp
            self.offset_of_max_timestamp = self.base_offset + relative_offset
        self._is_sealed = True
        self.indexes.unmap()

    def state(self) -> SegmentState:
        """Return the state of a closed segment."""
        return SegmentState(
            self.base_offset,
            self.size,
            self.next_offset,
            self.max_timestamp,
            self.offset_of_max_timestamp,
            self.first_append_ms,
            self.indexes.entry_count,
            self._bytes_since_index_entry,
        )

    def restore(self, state: SegmentState, *, is_active: bool) -> None:
        """Load a segment that was closed cleanly, without reading its records.

        Of the active one, the indexes are read, unless they are empty: appends add to them, and
        must not wait for the disk. Raises ValueError or FileNotFoundError if they are damaged.
        """
        self.set_durable_size(state.size)
        self.next_offset = state.next_offset
        self.max_timestamp = state.max_timestamp
        self.offset_of_max_timestamp = state.offset_of_max_timestamp
        self.is_max_timestamp_verified = False
        self.first_append_ms = state.first_append_ms
        self.indexes.entry_count = state.index_entries
        self._bytes_since_index_entry = state.bytes_since_index_entry
        if not is_active:
            self.indexes.unmap()
            self._is_sealed = True
        elif state.index_entries:
            self.indexes.load()
            if self.indexes.entry_count != state.index_entries:
                raise ValueError("the offset index has another number of entries")

    def set_durable_size(self, size: int) -> None:
        """Set the size of the content, which fills the file and is durable."""
        self.size = self.flushed_size = self._file_size = size

    def reset(self) -> None:
        """Forget batches and their indexes: all batches are going to be added again.

        Aborted transactions are not forgotten, since they may have begun in an earlier segment.
        """
        self.indexes.clear()
        self._bytes_since_index_entry = 0
        self.next_offset = self.base_offset
        self.max_timestamp = -1

    def pin(self) -> None:
        """Keep the file open: another one is about to get its name."""
        self._open()
        self._is_pinned = True

    def keep_indexes(self) -> None:
        """Keep the indexes of a pinned segment in memory. May be called in a thread."""
        try:
            self._unseal()
        except FileNotFoundError:
            self._repair_indexes()
            self._unseal()

    def release(self) -> bool:
        """Close the files if everything is durable. Views that readers hold stay valid."""
        if self.is_dirty or self._is_pinned:
            return False
        self._close()
        return True

    def close(self) -> None:
        """Close the files."""
        self._close()
        self.files.forget(self)

    def drop(self) -> None:
        """Close the files of a segment that is being deleted, flushed or not."""
        self.is_dropped = True
        self.close()

    def has_views(self) -> bool:
        """Whether a reader still holds a view of the map, which is released here."""
        self._map = None
        return self._map_reference is not None and self._map_reference() is not None

    def _load_active(self, index_interval_bytes: int) -> None:
        try:
            self.indexes.load()
        except FileNotFoundError:
            self._rebuild_indexes(index_interval_bytes)
            return
        self.max_timestamp, relative_offset = self.indexes.times.last
        self.offset_of_max_timestamp = self.base_offset + relative_offset
        relative_offset, position = self.indexes.offsets.entry_at_or_before_position(self.size)
        if position and self._read_if_entry_is_right(relative_offset, position) is None:
            self._rebuild_indexes(index_interval_bytes)
            return
        for batch in self._scan(position):
            self.add_batch(*batch, self.size)

    def _add_last_time_entry(self) -> None:
        if self.max_timestamp >= 0:
            relative_offset = self.offset_of_max_timestamp - self.base_offset
            self.indexes.times.add(self.max_timestamp, relative_offset)

    def _unseal(self) -> None:
        """Make a sealed segment active again, after those that followed it were truncated."""
        self.indexes.load()
        self.transactions.load()
        self._is_sealed = False

    def _scan(self, position: int, block: bytes = b"") -> Iterator[tuple[int, int, int, int, int]]:
        """Yield the fields of `BatchPosition` for each batch from a position on.

        Plain tuples, because reads skip many batches. `block` is what was already read there.
        """
        return self._scan_between(position, self.size, block)

    def _scan_between(
        self, position: int, end: int, block: bytes = b""
    ) -> Iterator[tuple[int, int, int, int, int]]:
        start = position
        while position < end:
            at = position - start
            if at + HEADER_BYTES > len(block):
                block, start, at = self.read(position, _SCAN_BYTES), position, 0
                if len(block) < HEADER_BYTES:
                    raise self._no_batch_at(position)
            base_offset, length, _, _, _, last_offset_delta, max_timestamp, _, _ = unpack_header(
                block, at
            )
            size = LOG_OVERHEAD_BYTES + length
            next_position = position + size
            if size < HEADER_BYTES or next_position > end:
                raise self._no_batch_at(position)
            yield position, size, base_offset, base_offset + last_offset_delta, max_timestamp
            position = next_position

    def offset_index(self) -> OffsetIndex:
        """Return the offset index; that of a sealed segment is rebuilt if it does not fit."""
        indexes = self.indexes
        offsets = indexes.loaded_offsets
        if offsets is None:
            position = indexes.offsets.entry_at_or_before_offset(2**32)[1]
            if position >= self.size > 0 or self.size - position > _MAX_UNINDEXED_BYTES:
                self._repair_indexes()
            return indexes.offsets
        return offsets

    def _scan_from_entry(self, entry: tuple[int, int]) -> Iterator[tuple[int, int, int, int, int]]:
        """Scan from an entry of the offset index on; from the first batch if the entry is wrong."""
        relative_offset, position = entry
        if position == 0:
            return self._scan(0)
        block = self._read_if_entry_is_right(relative_offset, position)
        if block is not None:
            return self._scan(position, block)
        self._repair_indexes()
        return self._scan(0)

    def _read_if_entry_is_right(self, relative_offset: int, position: int) -> bytes | None:
        """Read from a position on; None if no batch of that base offset is there."""
        block = self.read(position, _SCAN_BYTES) if position < self.size else b""
        is_right = block.startswith((self.base_offset + relative_offset).to_bytes(8))
        return block if is_right else None

    def _has_timestamp(self, timestamp: int, relative_offset: int) -> bool:
        """Whether the batch of a time index entry exists and has that max timestamp."""
        if timestamp == -1:
            return True  # There is no entry.
        batch = self.find(self.base_offset + relative_offset)
        return (
            batch is not None
            and batch.base_offset == self.base_offset + relative_offset
            and batch.max_timestamp == timestamp
        )

    def _rebuild_indexes(self, index_interval_bytes: int) -> None:
        self.reset()
        for batch in self._scan(0):
            self.add_batch(*batch, index_interval_bytes)

    def _repair_indexes(self) -> None:
        """Rebuild both indexes: one entry is wrong, so others may be."""
        check_may_wait()
        name = self.path(".index").relative_to(self.directory.parent)
        logger.warning("%s is damaged, rebuilding it", name)
        next_offset, max_timestamp = self.next_offset, self.max_timestamp
        try:
            self._rebuild_indexes(_REBUILD_INTERVAL_BYTES)
        except StorageError:
            # The log is damaged too; a read of that part will raise.
            self.max_timestamp = max(self.max_timestamp, max_timestamp)
        self.next_offset = next_offset
        if self._is_sealed:
            with suppress(OSError):  # The next start repairs them again.
                self.seal()

    def _close(self) -> None:
        with self._sync_lock:
            fd, self._fd = self._fd, None
            if fd is not None and self._is_syncing:
                fd, self._fd_to_close = None, fd
        if fd is not None:
            self._disk.close(fd)
        self._map = None
        if self._is_sealed:
            self.indexes.unmap()
            self.transactions.unmap()

    def _open(self) -> int:
        if self._fd is None:
            self._fd = self._disk.open(self.path(".log"))
        self.files.touch(self)
        return self._fd

    def _extend(self, fd: int, end: int, max_file_size: int, *, at_once: bool) -> None:
        step = min(max(self.size, _MIN_EXTENSION_BYTES), _MAX_EXTENSION_BYTES)
        file_size = max(end, max_file_size if at_once else min(self.size + step, max_file_size))
        self._disk.resize(fd, file_size)
        self._file_size = file_size

    def _undo_append(self, fd: int, size: int, cause: OSError) -> None:
        try:
            self._disk.resize(fd, size)
            self._file_size = size
        except OSError as error:
            cause.add_note(f"the partial write could not be undone: {error}")

    def _no_batch_at(self, position: int) -> StorageError:
        return StorageError(f"{self.path('.log')}: no batch at position {position}")
