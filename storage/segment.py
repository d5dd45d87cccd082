"""One segment: a `.log` file of batches, its two indexes, and nothing that looks into a record.

    00000000000000001000.log         batches, exactly as on the wire, from offset 1000 on
    00000000000000001000.index       see index.py
    00000000000000001000.timeindex

An active segment's file is longer than its content: it is lengthened by holes ahead of what is
written, so that one map serves for many appends, and cut when the segment is sealed. After a crash
the rest is zeros, which no batch begins with in its length: recovery sees where the end is.

Python never looks at mapped pages. They are for system calls, for which a page that cannot be read
is an error; for Python it would be the end of the process. Headers are read with pread.
"""

from __future__ import annotations

import logging
import mmap
import struct
import weakref
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from ottla.protocol.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES

from .disk import Buffer
from .errors import StorageError
from .files import OpenFiles
from .index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex

logger = logging.getLogger(__name__)

_EXTENT_BYTES = 64 * 1024
_LARGEST_STEP_BYTES = 64 * 1024 * 1024
_WALK_BYTES = 8 * 1024
_WARM_STEP_BYTES = 128 * 1024
# Between the entries of an index that is built again, whatever its topic wants.
_INTERVAL_BYTES = 4096

# What a walk needs of a batch: base offset, length, …, last offset delta, …, max timestamp.
_HEAD = struct.Struct(">qi11xi8xq")


class BatchPosition(NamedTuple):
    """Where a batch is, and which offsets and times it spans."""

    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int


class Segment:
    """Batches from `base_offset` on. Not thread-safe, but for `sync`."""

    def __init__(self, directory: Path, base_offset: int, files: OpenFiles) -> None:
        self.directory = directory
        self.base_offset = base_offset
        self.size = 0
        self.next_offset = base_offset
        self.max_timestamp = -1
        self.offset_of_max_timestamp = base_offset
        #: Content up to here is on the device.
        self.flushed_size = 0
        #: When the first record was written here, on the caller's clock; -1 while there is none.
        self.first_append_ms = -1
        self._files = files
        self._disk = files.disk
        self._fd: int | None = None
        self._map: mmap.mmap | None = None
        self._map_alive: weakref.ref[mmap.mmap] | None = None
        self._extent = 0
        self._offsets: OffsetIndex | None = OffsetIndex(bytearray())
        self._times: TimeIndex | None = TimeIndex(bytearray())
        #: Entries of the offset index; the time index has no more.
        self.index_entries = 0
        self._unindexed = 0
        self._indexes_dirty = False
        # The batch that was appended last, which is what most consumers want.
        self._tail: tuple[int, int, int, int, int] | None = None
        self._sealed = False
        self._dropped = False
        self._has_age_checked = True

    def __repr__(self) -> str:
        return f"<Segment {self.base_offset} to {self.next_offset}, {self.size} bytes>"

    def path(self, suffix: str) -> Path:
        """Give the path of one of its files."""
        return self.directory / f"{self.base_offset:020d}{suffix}"

    @property
    def is_dirty(self) -> bool:
        """Whether it has content, or indexes, that may not be on the device."""
        return self.flushed_size < self.size or self._indexes_dirty

    @property
    def offsets(self) -> OffsetIndex:
        """The offset index; that of a sealed segment is mapped when it is first used."""
        if self._offsets is None:
            self._offsets = OffsetIndex(self._map_index(".index"))
        return self._offsets

    @property
    def times(self) -> TimeIndex:
        """The time index, likewise."""
        if self._times is None:
            self._times = TimeIndex(self._map_index(".timeindex"))
        return self._times

    def create(self) -> None:
        """Make the file."""
        self._fd = self._disk.open(self.path(".log"), create=True)
        self._files.used(self)

    def append(
        self,
        data: Buffer,
        batches: Sequence[tuple[int, int, int, int, int]],
        index_interval: int,
        limit: int,
    ) -> None:
        """Write batches, which are all of `data`, at the end, all or none of them.

        Where they will be and what they span is said as in `BatchPosition`.

        `limit` is how large the file may be made in advance. Raises OSError; if even taking back
        what was written of them failed, that error has a note, and the segment is not to be used.
        """
        if self._sealed:
            self._unseal()
        position = self.size
        end = position + len(data)
        fd = self._fd
        if fd is None:
            fd = self._open()
        try:
            if end > self._extent:
                self._extend(fd, end, limit)
            if self._disk.write(fd, data, position) != len(data):
                self._disk.write_all(fd, data, position)
        except OSError as error:
            self._take_back(fd, position, error)
            raise
        self.size = end
        for batch in batches:
            self.take(*batch, index_interval)
        self._tail = batches[-1]

    def note(self, batch: BatchPosition, index_interval: int) -> None:
        """Take a batch that is in the file into account, in the indexes too."""
        self.take(*batch, index_interval)

    def take(
        self,
        position: int,
        size: int,
        base_offset: int,
        last_offset: int,
        timestamp: int,
        index_interval: int,
    ) -> None:
        """Do the same for a batch that is told in numbers: recovery has very many of them."""
        self.next_offset = last_offset + 1
        if timestamp > self.max_timestamp:
            self.max_timestamp = timestamp
            self.offset_of_max_timestamp = base_offset
        if self._unindexed > index_interval:
            offsets, times = self._offsets, self._times
            assert offsets is not None
            assert times is not None
            offsets.add(base_offset - self.base_offset, position)
            if self.max_timestamp > times.last[0]:
                times.add(self.max_timestamp, self.offset_of_max_timestamp - self.base_offset)
            self.index_entries += 1
            self._unindexed = 0
        self._unindexed += size

    def view(self, start: int, stop: int) -> memoryview:
        """Give the bytes from `start` to `stop` as a view of the map, for a system call."""
        assert start <= stop <= self.size
        mapped = self._map
        if mapped is None or len(mapped) < stop:
            if start == stop:
                return memoryview(b"")
            fd = self._open()
            mapped = self._map = self._disk.map(fd, max(self._extent, stop))
            self._map_alive = weakref.ref(mapped)
        else:
            self._files.used(self)
        return memoryview(mapped)[start:stop]

    def read(self, start: int, size: int) -> bytes:
        """Read bytes, for Python to look at."""
        return self._disk.read(self._open(), min(size, self.size - start), start)

    def batches(self, position: int = 0) -> Iterator[BatchPosition]:
        """Walk over the batches from a position on, at which one must start."""
        return map(BatchPosition._make, self._walk(position))

    def ends_well(self) -> bool:
        """Whether the last indexed batch and those behind it are where they should be."""
        try:
            for batch in self.batches(self.offsets.entry_before(self.size)[1]):
                if batch.last_offset >= self.next_offset or batch.base_offset < self.base_offset:
                    return False
        except StorageError:
            return False
        return True

    def find(self, offset: int) -> BatchPosition | None:
        """Find the batch that contains an offset, or else the first one behind it."""
        tail = self._tail
        if tail is not None and offset >= tail[2]:
            return BatchPosition(*tail) if offset <= tail[3] else None
        for place in self._walk_from(self.offsets.entry_of(offset - self.base_offset)):
            if place[3] >= offset:
                return BatchPosition(*place)
        return None

    def end_of_whole_batches(self, first: BatchPosition, most: int, end_offset: int) -> int:
        """Give where the last batch ends that is within `most` bytes of the start of `first`.

        Those from `end_offset` on do not count; `first` does, whatever it is.
        """
        limit = first.position + most
        end = first.position + first.size
        if end >= limit:
            return end
        is_all_seen = self.next_offset <= end_offset
        if is_all_seen and self.size <= limit:
            return self.size
        entry = self.offsets.entry_before(limit)
        if not is_all_seen:
            entry = min(entry, self.offsets.entry_of(end_offset - self.base_offset))
        walk = self._walk_from(entry) if entry[1] > end else self._walk(end)
        for position, size, base, _last, _timestamp in walk:
            if position + size > limit or base >= end_offset:
                return position
        return self.size

    def offset_before(self, timestamp: int) -> int:
        """Give an offset before which all records are older than this."""
        timestamp, relative = self.times.entry_before(timestamp)
        if not self._has_time(timestamp, relative):
            self._mend_indexes()
            return self.base_offset
        return self.base_offset + relative

    def check_age(self) -> None:
        """Make sure that `max_timestamp` is right, before something irrevocable comes of it.

        It was taken from the end of the time index, when the segment was loaded.
        """
        if not self._has_age_checked:
            self._has_age_checked = True
            relative = self.offset_of_max_timestamp - self.base_offset
            if not self._has_time(self.max_timestamp, relative):
                self._mend_indexes()

    def is_in_page_cache(self, start: int, stop: int) -> bool:
        """Whether a range is likely to be in the page cache: it is at the places looked at."""
        # What is not on the device is in the cache; and what was dropped cannot be warmed any more.
        if start >= self.flushed_size or self._dropped:
            return True
        fd = self._open()
        return all(
            self._disk.is_cached(fd, position) for position in range(start, stop, _WARM_STEP_BYTES)
        ) and (start == stop or self._disk.is_cached(fd, stop - 1))

    def load_into_page_cache(self, start: int, stop: int) -> None:
        """Bring a range into the page cache. May be called in a thread: it waits for the device."""
        try:
            fd = self._disk.open(self.path(".log"))
        except FileNotFoundError:
            return  # deleted meanwhile
        try:
            buffer = memoryview(bytearray(_WARM_STEP_BYTES))
            for position in range(start, stop, len(buffer)):
                self._disk.read_into(fd, buffer[: stop - position], position)
        finally:
            self._disk.close(fd)

    def flush(self) -> None:
        """Wait until all content of this moment is on the device. May be called in a thread."""
        size, with_indexes = self.size, self._indexes_dirty
        if not self.is_dirty:
            return
        try:
            if self._fd is not None:
                # A file that was cut to its content must not come back with a tail of zeros.
                self._disk.sync(self._fd, metadata=with_indexes)
            else:
                self._sync_file(".log")
            if with_indexes:
                self._sync_file(".index")
                self._sync_file(".timeindex")
        except OSError:
            if self._dropped:
                return  # deleted meanwhile: nobody asks for it any more
            raise
        self.flushed_size = size
        if with_indexes:
            self._indexes_dirty = False

    def seal(self) -> None:
        """End the segment: its indexes go to files, and its file gets its true size."""
        if self.max_timestamp >= 0:
            relative = self.offset_of_max_timestamp - self.base_offset
            self.times.add(self.max_timestamp, relative)
        self.write_indexes()
        self._sealed = True

    def write_indexes(self) -> None:
        """Write the indexes to their files, and cut the log's file to its content."""
        fd = self._open()
        self._disk.resize(fd, self.size)
        self._extent = self.size
        for suffix, entries in (
            (".index", self.offsets.entries),
            (".timeindex", self.times.entries),
        ):
            temporary = self.path(suffix + ".tmp")
            index = self._disk.open(temporary, create=True, empty=True)
            try:
                self._disk.write_all(index, entries, 0)
            finally:
                self._disk.close(index)
            self._disk.rename(temporary, self.path(suffix))
        self._indexes_dirty = True

    def load(self, size: int, next_offset: int | None, index_interval: int) -> None:
        """Take over a file that was left whole.

        `next_offset` is known of a sealed segment. An active one is read from its last index
        entry on, and its indexes come into memory, to go on. Indexes that are missing are built:
        compaction removes them before it replaces a log.
        """
        self.size = self.flushed_size = self._extent = size
        self._has_age_checked = False
        if next_offset is None:
            self._load_active(index_interval)
            return
        self.next_offset = next_offset
        timestamp, relative = self._last_time()
        if timestamp < 0 and (size or not self.path(".index").exists()):
            self._build_indexes(index_interval)
            self.next_offset = next_offset
            self.seal()
        else:
            self.max_timestamp = timestamp
            self.offset_of_max_timestamp = self.base_offset + relative
        self._sealed = True
        self._offsets = self._times = None

    def _load_active(self, index_interval: int) -> None:
        try:
            self._offsets = OffsetIndex(bytearray(self._read_index(".index")))
            self._times = TimeIndex(bytearray(self._read_index(".timeindex")))
        except FileNotFoundError:
            self._build_indexes(index_interval)
            return
        self.index_entries = len(self._offsets)
        self.max_timestamp, relative = self._times.last
        self.offset_of_max_timestamp = self.base_offset + relative
        entry = self._offsets.entry_before(self.size)
        if not self._has_batch(*entry):
            self._build_indexes(index_interval)
            return
        for batch in self.batches(entry[1]):
            self.note(batch, index_interval=self.size)

    def _last_time(self) -> tuple[int, int]:
        """Read the end of the time index; (-1, 0) if there is none, or an index is no index."""
        try:
            offsets = self.path(".index").stat().st_size
            times = self.path(".timeindex").stat().st_size
        except FileNotFoundError:
            return -1, 0
        if offsets % OFFSET_ENTRY_BYTES or times % TIME_ENTRY_BYTES or not times:
            return -1, 0
        last = TimeIndex(self._read_index(".timeindex", times - TIME_ENTRY_BYTES)).last
        is_possible = last[0] > 0 and self.base_offset + last[1] < self.next_offset
        return last if is_possible else (-1, 0)

    def forget_indexes(self) -> None:
        """Start the indexes anew: recovery is going to build them."""
        self._offsets = OffsetIndex(bytearray())
        self._times = TimeIndex(bytearray())
        self.index_entries = 0
        self._unindexed = 0
        self.next_offset = self.base_offset
        self.max_timestamp = -1

    def release(self) -> bool:
        """Close the files, if all content is on the device; what a reader holds stays valid."""
        if self.is_dirty:
            return False
        self._close()
        return True

    def close(self) -> None:
        """Close the files."""
        self._close()
        self._files.closed(self)

    def drop(self) -> None:
        """Close the files of a segment that is being deleted, synced or not."""
        self._dropped = True
        self.close()

    def views_are_gone(self) -> bool:
        """Whether no reader holds a view of the map any more."""
        self._map = None
        return self._map_alive is None or self._map_alive() is None

    def _unseal(self) -> None:
        """Go on with a segment that was sealed: what followed it was truncated."""
        offsets = OffsetIndex(bytearray(self._read_index(".index")))
        self._times = TimeIndex(bytearray(self._read_index(".timeindex")))
        self._offsets = offsets
        self.index_entries = len(offsets)
        self._sealed = False

    def _build_indexes(self, index_interval: int) -> None:
        self.forget_indexes()
        for batch in self.batches():
            self.note(batch, index_interval)

    def _walk(self, position: int, block: bytes = b"") -> Iterator[tuple[int, int, int, int, int]]:
        """Tell of batches as in `BatchPosition`, which takes time to make where many are passed by.

        `block` is what was read at the position already, if anything was.
        """
        start, end = position, self.size
        while position < end:
            at = position - start
            if at + HEADER_BYTES > len(block):
                block, start, at = self.read(position, _WALK_BYTES), position, 0
            if len(block) - at < HEADER_BYTES:
                raise self._damaged(position)
            base, length, delta, timestamp = _HEAD.unpack_from(block, at)
            size = LOG_OVERHEAD_BYTES + length
            if not HEADER_BYTES <= size <= end - position:
                raise self._damaged(position)
            yield position, size, base, base + delta, timestamp
            position += size

    def _walk_from(self, entry: tuple[int, int]) -> Iterator[tuple[int, int, int, int, int]]:
        """Do so from an index entry on; from the first batch if the index is wrong."""
        relative, position = entry
        if position == 0:
            return self._walk(0)
        block = self.read(position, _WALK_BYTES) if position < self.size else b""
        if block.startswith((self.base_offset + relative).to_bytes(8)):
            return self._walk(position, block)
        self._mend_indexes()
        return self._walk(0)

    def _has_batch(self, relative: int, position: int) -> bool:
        """Whether the batch that an entry of the offset index speaks of is there."""
        if position == 0:
            return True
        wanted = (self.base_offset + relative).to_bytes(8)
        return position < self.size and self.read(position, len(wanted)) == wanted

    def _has_time(self, timestamp: int, relative: int) -> bool:
        """Whether the batch that an entry of the time index speaks of has that time."""
        if timestamp == -1:
            return True  # there is none
        batch = self.find(self.base_offset + relative)
        return (
            batch is not None
            and batch.base_offset == self.base_offset + relative
            and batch.max_timestamp == timestamp
        )

    def _mend_indexes(self) -> None:
        """Build the indexes again: an entry is wrong, and so may others be."""
        name = self.path(".index").relative_to(self.directory.parent)
        logger.warning("%s: the index is damaged, and is built again", name)
        next_offset, max_timestamp = self.next_offset, self.max_timestamp
        try:
            self._build_indexes(_INTERVAL_BYTES)
        except StorageError:
            # The log is damaged too, and whoever reads there will hear of it.
            self.max_timestamp = max(self.max_timestamp, max_timestamp)
        self.next_offset = next_offset
        if self._sealed:
            with suppress(OSError):  # the next start will mend them again
                self.seal()

    def _close(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            self._disk.close(fd)
        self._map = None
        if self._sealed:
            self._offsets = self._times = None

    def _open(self) -> int:
        if self._fd is None:
            self._fd = self._disk.open(self.path(".log"))
        self._files.used(self)
        return self._fd

    def _extend(self, fd: int, end: int, limit: int) -> None:
        step = min(max(self.size, _EXTENT_BYTES), _LARGEST_STEP_BYTES)
        extent = max(end, min(self.size + step, limit))
        self._disk.resize(fd, extent)
        self._extent = extent

    def _take_back(self, fd: int, size: int, cause: OSError) -> None:
        try:
            self._disk.resize(fd, size)
            self._extent = size
        except OSError as error:
            cause.add_note(f"and what was written of it could not be taken back: {error}")

    def _damaged(self, position: int) -> StorageError:
        return StorageError(f"{self.path('.log')} has no batch at {position}")

    def _sync_file(self, suffix: str) -> None:
        fd = self._disk.open(self.path(suffix))
        try:
            self._disk.sync(fd, metadata=True)
        finally:
            self._disk.close(fd)

    def _map_index(self, suffix: str) -> Buffer:
        fd = self._disk.open(self.path(suffix))
        try:
            size = self._disk.size(fd)
            return memoryview(self._disk.map(fd, size)) if size else b""
        finally:
            self._disk.close(fd)

    def _read_index(self, suffix: str, position: int = 0) -> bytes:
        fd = self._disk.open(self.path(suffix))
        try:
            return self._disk.read(fd, self._disk.size(fd) - position, position)
        finally:
            self._disk.close(fd)
