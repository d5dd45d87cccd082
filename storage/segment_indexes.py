"""The offset index and the time index of one segment, in memory and as files.

The pair grows in memory while the segment is active. Once the segment is sealed the files are
written, and are read again when a lookup needs them. They are not mapped: a page that is gone,
because the file was truncated or cannot be read, would end the process (SIGBUS). The copies of all
sealed segments together are limited, and read again when needed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

from .disk import Buffer, Disk
from .index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex
from .read_mode import check_may_wait

INDEX_SUFFIXES = (".index", ".timeindex")
_OFFSET_SUFFIX, _TIME_SUFFIX = INDEX_SUFFIXES
_MAX_CACHE_BYTES = 64 * 1024 * 1024


class SegmentIndexes:
    """Both indexes of the segment whose files start with `stem`."""

    __slots__ = (
        "_directory",
        "_disk",
        "_offsets",
        "_stem",
        "_times",
        "entry_count",
        "is_dirty",
        "is_unwritten",
    )

    def __init__(self, directory: Path, stem: str, disk: Disk) -> None:
        self._directory = directory
        self._stem = stem
        self._disk = disk
        self._offsets: OffsetIndex | None = OffsetIndex(bytearray())
        self._times: TimeIndex | None = TimeIndex(bytearray())
        #: Entries of the offset index; the time index has at most as many.
        self.entry_count = 0
        #: Whether the files may not be durable.
        self.is_dirty = False
        #: Whether the segment was sealed, and the files were not written since.
        self.is_unwritten = False

    def path(self, suffix: str) -> Path:
        """Return the path of a file of the segment."""
        return self._directory / (self._stem + suffix)

    @property
    def offsets(self) -> OffsetIndex:
        """The offset index; that of a sealed segment is read on first use."""
        offsets = self._offsets
        if offsets is None:
            offsets = self._offsets = OffsetIndex(self._read(_OFFSET_SUFFIX, OFFSET_ENTRY_BYTES))
        return offsets

    @property
    def times(self) -> TimeIndex:
        """The time index; that of a sealed segment is read on first use."""
        times = self._times
        if times is None:
            times = self._times = TimeIndex(self._read(_TIME_SUFFIX, TIME_ENTRY_BYTES))
        return times

    def add(
        self, relative_offset: int, position: int, max_timestamp: int, max_timestamp_offset: int
    ) -> None:
        """Append an entry to the offset index, and to the time index if timestamps increased."""
        offsets, times = self._offsets, self._times
        assert offsets is not None
        assert times is not None
        offsets.add(relative_offset, position)
        if max_timestamp > times.last[0]:
            times.add(max_timestamp, max_timestamp_offset)
        self.entry_count += 1

    def clear(self) -> None:
        """Start over with empty indexes in memory."""
        INDEX_CACHE.forget(self)
        self._offsets = OffsetIndex(bytearray())
        self._times = TimeIndex(bytearray())
        self.entry_count = 0

    def load(self) -> None:
        """Read the files into memory, to append to them. Raises FileNotFoundError."""
        INDEX_CACHE.forget(self)
        offsets = OffsetIndex(bytearray(self._disk.read_file(self.path(_OFFSET_SUFFIX))))
        self._times = TimeIndex(bytearray(self._disk.read_file(self.path(_TIME_SUFFIX))))
        self._offsets = offsets
        self.entry_count = len(offsets)

    def unmap(self) -> None:
        """Forget the indexes of a sealed segment; the next use reads the files."""
        self._offsets = self._times = None
        INDEX_CACHE.forget(self)

    @property
    def loaded_offsets(self) -> OffsetIndex | None:
        """The offset index if it is in memory."""
        return self._offsets

    @property
    def loaded_times(self) -> TimeIndex | None:
        """The time index if it is in memory."""
        return self._times

    def are_loaded(self) -> bool:
        """Whether both indexes are in memory."""
        return self._offsets is not None and self._times is not None

    def share(self, other: SegmentIndexes) -> None:
        """Use what the indexes of another object for the same files have in memory.

        A thread may look up entries while others are appended.
        """
        self._offsets, self._times = other._offsets, other._times

    def replace(self, offsets: OffsetIndex | None, times: TimeIndex | None) -> None:
        """Use indexes of a sealed segment that were read or rebuilt elsewhere; None keeps one."""
        offsets = self._offsets if offsets is None else offsets
        times = self._times if times is None else times
        INDEX_CACHE.forget(self)
        INDEX_CACHE.add(self, sum(len(i.entries) for i in (offsets, times) if i is not None))
        self._offsets, self._times = offsets, times

    def write(self) -> None:
        """Write both files, without an fsync; see `flush`. May be called in a thread."""
        for suffix, entries in self._files():
            self._disk.replace_file(self.path(suffix), entries, durable=False)
        self.is_dirty = True
        self.is_unwritten = False

    def write_durably(self, extension: str) -> None:
        """Write both files under names that end in `extension`, and fsync them."""
        for suffix, entries in self._files():
            self._disk.write_file(self.path(suffix + extension), entries, durable=True)

    def flush(self) -> None:
        """Fsync both files."""
        for suffix in INDEX_SUFFIXES:
            self._disk.sync_path(self.path(suffix))

    def read_offset_entries(self) -> list[tuple[int, int]]:
        """Read the entries of the offset index's file; none if it is missing or malformed."""
        try:
            data = self._disk.read_file(self.path(_OFFSET_SUFFIX))
        except FileNotFoundError:
            return []
        return OffsetIndex(data[: len(data) // OFFSET_ENTRY_BYTES * OFFSET_ENTRY_BYTES]).rows()

    def have_files(self) -> bool:
        """Whether the offset index was written."""
        return self.path(_OFFSET_SUFFIX).exists()

    def last_time_entry(self, offset_count: int) -> tuple[int, int]:
        """Read the last entry of the time index's file.

        Returns (-1, 0) if a file is missing or malformed, or if the entry cannot be right for a
        segment of `offset_count` offsets.
        """
        try:
            offsets_size = self.path(_OFFSET_SUFFIX).stat().st_size
            times_size = self.path(_TIME_SUFFIX).stat().st_size
        except FileNotFoundError:
            return -1, 0
        if offsets_size % OFFSET_ENTRY_BYTES or times_size % TIME_ENTRY_BYTES or not times_size:
            return -1, 0
        tail = self._disk.read_file(self.path(_TIME_SUFFIX), times_size - TIME_ENTRY_BYTES)
        timestamp, relative_offset = TimeIndex(tail).last
        is_possible = timestamp > 0 and relative_offset < offset_count
        return (timestamp, relative_offset) if is_possible else (-1, 0)

    def _files(self) -> tuple[tuple[str, Buffer], tuple[str, Buffer]]:
        return (_OFFSET_SUFFIX, self.offsets.entries), (_TIME_SUFFIX, self.times.entries)

    def _read(self, suffix: str, entry_bytes: int) -> bytes:
        """Read an index of a sealed segment; only whole entries, none if it is missing."""
        check_may_wait()
        try:
            data = self._disk.read_file(self.path(suffix))
        except FileNotFoundError:
            data = b""
        INDEX_CACHE.add(self, len(data))
        return data[: len(data) // entry_bytes * entry_bytes]


class _CachedIndex(Protocol):
    def unmap(self) -> None:
        """Forget what was read."""
        ...


class _IndexCache:
    """The indexes of sealed segments in memory, least recently read first, within a limit."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._sizes: OrderedDict[_CachedIndex, int] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def add(self, indexes: _CachedIndex, size: int) -> None:
        """Count `size` bytes of these indexes; forget others if there are too many."""
        evicted = []
        with self._lock:
            self._sizes[indexes] = self._sizes.pop(indexes, 0) + size
            self._bytes += size
            while self._bytes > self._max_bytes and len(self._sizes) > 1:
                oldest, freed = self._sizes.popitem(last=False)
                self._bytes -= freed
                evicted.append(oldest)
        for oldest in evicted:
            oldest.unmap()

    def forget(self, indexes: _CachedIndex) -> None:
        """Stop counting these indexes."""
        with self._lock:
            self._bytes -= self._sizes.pop(indexes, 0)


INDEX_CACHE = _IndexCache(_MAX_CACHE_BYTES)
