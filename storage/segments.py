"""The segments of one log, in offset order. The last one is the active segment.

A segment is deleted in three steps. It is removed from the sequence at once. Its files are renamed
to `….deleted`, and unlinked when no reader holds a view of them, because a reader may still send
from its map; both wait for the disk, and may be done in a thread.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import overload

from .files import OpenFiles
from .segment import BatchPosition, Segment
from .segment_indexes import INDEX_SUFFIXES
from .transaction_index import TRANSACTION_INDEX_SUFFIX

DELETED_SUFFIX = ".deleted"
#: The suffix of a file that compaction writes; see cleaner.py.
CLEANED_SUFFIX = ".cleaned"
#: The suffixes of files that the next start removes.
LEFTOVER_SUFFIXES = (DELETED_SUFFIX, ".tmp", CLEANED_SUFFIX)
#: The suffixes of all indexes of a segment; it need not have all of them.
ALL_INDEX_SUFFIXES = (*INDEX_SUFFIXES, TRANSACTION_INDEX_SUFFIX)


class LogSegments(Sequence[Segment]):
    """A sequence of segments that is also searched by offset."""

    __slots__ = (
        "_base_offsets",
        "_deleted",
        "_directory",
        "_disk",
        "_files",
        "_removed",
        "_segments",
        "active",
        "deletion_lock",
        "has_unflushed_names",
    )

    #: The segment that appends go to.
    active: Segment

    def __init__(self, directory: Path, files: OpenFiles) -> None:
        self._directory = directory
        self._files = files
        self._disk = files.disk
        self._segments: list[Segment] = []
        self._base_offsets: list[int] = []
        # Removed from the sequence, under their own names and renamed.
        self._removed: list[Segment] = []
        self._deleted: list[Segment] = []
        #: Held by threads that rename or remove files of sealed segments.
        self.deletion_lock = threading.Lock()
        #: Whether files were created or renamed since the last `flush`.
        self.has_unflushed_names = False

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    @overload
    def __getitem__(self, index: int) -> Segment: ...

    @overload
    def __getitem__(self, index: slice) -> list[Segment]: ...

    def __getitem__(self, index: int | slice) -> Segment | list[Segment]:
        return self._segments[index]

    @property
    def base_offsets(self) -> tuple[int, ...]:
        """The base offset of each segment."""
        return tuple(self._base_offsets)

    @property
    def has_deleted(self) -> bool:
        """Whether files of deleted segments remain to be unlinked."""
        return bool(self._removed or self._deleted)

    def find(self, offset: int) -> tuple[Segment, BatchPosition] | None:
        """Return the batch that contains an offset, or else the first one after it."""
        active = self.active
        if offset >= active.base_offset:  # Most reads are at the end of the log.
            batch = active.find(offset)
            return None if batch is None else (active, batch)
        segments = self._segments
        for index in range(bisect_right(self._base_offsets, offset) - 1, len(segments)):
            segment = segments[index]
            batch = segment.find(offset)
            if batch is not None:
                return segment, batch
        return None  # Compaction has removed everything from this offset on.

    def from_offset(self, offset: int) -> list[Segment]:
        """Return the segment that contains an offset, and all after it."""
        return self._segments[max(0, bisect_right(self._base_offsets, offset) - 1) :]

    def add(self, segment: Segment) -> None:
        """Add a segment at the end."""
        self._segments.append(segment)
        self._base_offsets.append(segment.base_offset)
        self.active = segment

    def create(self, base_offset: int) -> None:
        """Create an empty segment, which becomes the active one."""
        self.add(self.create_file(base_offset))

    def create_file(self, base_offset: int) -> Segment:
        """Create an empty segment that is to be added. Raises OSError."""
        segment = Segment(self._directory, base_offset, self._files)
        segment.create()
        self.has_unflushed_names = True
        return segment

    def replace(self, old: Sequence[Segment], new: Segment) -> None:
        """Replace neighbouring segments by the one that now has their files."""
        first = self._segments.index(old[0])
        assert self._segments[first : first + len(old)] == list(old)
        self._segments[first : first + len(old)] = [new]
        self._base_offsets[first : first + len(old)] = [new.base_offset]
        self.active = self._segments[-1]

    def remove(self, index: int) -> None:
        """Remove a segment from the sequence; `rename_removed` and `purge_deleted` follow."""
        segment = self._segments[index]
        del self._segments[index]
        del self._base_offsets[index]
        self.active = self._segments[-1]
        segment.drop()
        self._removed.append(segment)

    def write_indexes(self, segment: Segment) -> None:
        """Write the indexes of a sealed segment, unless it is removed. May be called in a thread.

        Raises OSError.
        """
        with self.deletion_lock:  # The files are renamed after that.
            if not segment.is_dropped:
                segment.write_indexes()

    def rename_removed(self) -> None:
        """Rename the files of removed segments. May be called in a thread. Raises OSError.

        In the order of their removal: a crash leaves no hole in the log.
        """
        with self.deletion_lock:
            while self._removed:
                segment = self._removed[0]
                self._disk.rename(segment.path(".log"), segment.path(".log" + DELETED_SUFFIX))
                self.has_unflushed_names = True
                self._deleted.append(segment)
                del self._removed[0]
                for suffix in ALL_INDEX_SUFFIXES:
                    # The active segment has its indexes in memory; without a log they mean nothing.
                    deleted = segment.path(suffix + DELETED_SUFFIX)
                    with suppress(OSError):
                        self._disk.rename(segment.path(suffix), deleted)

    def purge_deleted(self) -> int:
        """Unlink the files of deleted segments that no reader uses; return how many remain."""
        self.rename_removed()
        with self.deletion_lock:
            for segment in list(self._deleted):
                if not segment.has_views():
                    for suffix in (".log", *ALL_INDEX_SUFFIXES):
                        self._disk.unlink(segment.path(suffix + DELETED_SUFFIX))
                    self._deleted.remove(segment)
        return len(self._deleted)

    def flush(self) -> None:
        """Wait until content, indexes and names are durable. May be called in a thread."""
        for segment in self._dirty():
            segment.flush()
        if self.has_unflushed_names:
            # Before the fsync: a file created during it is for the next one.
            self.has_unflushed_names = False
            self._disk.sync_directory(self._directory)

    def release_files(self) -> None:
        """Close files of segments that are durable."""
        for segment in self._segments:
            if segment.release():
                self._files.forget(segment)

    def close(self) -> None:
        """Close all files."""
        for segment in [*self._segments, *self._removed, *self._deleted]:
            segment.close()

    def _dirty(self) -> list[Segment]:
        """Return the segments that may not be durable, oldest first."""
        dirty: list[Segment] = []
        for segment in reversed(list(self._segments)):
            if segment.is_dirty:
                dirty.append(segment)
            elif segment.size:
                break  # All before it were flushed with it or earlier.
        return dirty[::-1]
