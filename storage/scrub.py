"""Verifies the segments of a log without opening it: finds damage before a consumer does.

A segment is read through a file descriptor of its own, at a limited rate, and its pages are dropped
from the page cache again unless they were there before. Each batch is checked: its framing, its
CRC, and its offsets against its neighbours, the file name and the next segment. The entries of the
indexes have to point at batches.

Nothing is changed. The file may be deleted or replaced meanwhile: what was open is read to its end,
and its damage is not reported, because nobody reads it any more.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from crc32c import crc32c

from ottla.protocol.batch import CRC_COVERS_FROM, HEADER_BYTES, LOG_OVERHEAD_BYTES, unpack_header

from .disk import Disk
from .index import OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES, OffsetIndex, TimeIndex
from .log import CLEANER_OFFSET_FILE
from .segment_indexes import INDEX_SUFFIXES
from .segment_recovery import read_gaps

#: Small, so that a thread that checks tiny batches does not hold the interpreter for long.
_CHUNK_BYTES = 128 * 1024
_PAGE_BYTES = 4096
_RECORD_COUNT = slice(57, 61)
_SEGMENT_NAME = re.compile(r"(\d{20})\.log")

LOG_ADVICE = (
    "restore the file from a backup; or stop the broker, remove clean-shutdown and recovery-point"
    " from its data directory, and start it: recovery sets the damaged bytes aside"
)
INDEX_ADVICE = "stop the broker and remove the file: the next start rebuilds it from the log"


@dataclass(frozen=True, slots=True)
class Damage:
    """A range of a file that is not as it was written."""

    path: Path
    position: int
    size: int
    #: The offsets of the records that are lost with it; for an index, of the entry. The last one
    #: is None if it is not known.
    first_offset: int
    last_offset: int | None
    reason: str
    advice: str = LOG_ADVICE


@dataclass(frozen=True, slots=True)
class SegmentFile:
    """A segment to verify."""

    path: Path
    #: The base offset of the next segment; None for the active segment.
    end_offset: int | None = None
    #: Offsets that may be missing: compaction and damage that was set aside leave gaps.
    is_compacted: bool = False
    gaps: Sequence[Sequence[int]] = ()

    @property
    def base_offset(self) -> int:
        """The base offset, from the name of the file."""
        return int(self.path.stem)


def list_segments(directory: Path) -> list[SegmentFile]:
    """Return the segments of a log's directory, the active one last."""
    names = sorted(filter(_SEGMENT_NAME.fullmatch, (path.name for path in directory.iterdir())))
    is_compacted = (directory / CLEANER_OFFSET_FILE).exists()
    gaps = read_gaps(directory)
    return [
        SegmentFile(
            directory / name,
            None if following is None else int(following[:20]),
            is_compacted,
            gaps,
        )
        for name, following in zip_longest(names, names[1:])
    ]


def verify_segment(
    segment: SegmentFile,
    disk: Disk,
    *,
    with_indexes: bool = True,
    spend: Callable[[int], None] = lambda _size: None,
) -> list[Damage]:
    """Return the damage of a segment. `spend` is called before so many bytes are read.

    The end of the active segment may be zeros or part of a batch, which the next start truncates:
    that is no damage. Raises FileNotFoundError if the segment was deleted.
    """
    with _Reader(disk, segment.path, spend) as reader:
        verifier = _SegmentVerifier(segment, reader, _Indexes(segment, disk))
        damages = list(verifier.run())
        if segment.end_offset is None:
            damages = [one for one in damages if one.position + one.size < reader.size]
        elif not damages and with_indexes:
            damages = verifier.indexes.damages()
        if damages and not reader.is_current():
            return []
    return damages


class _Reader:
    """A log file, read in chunks that do not stay in the page cache."""

    def __init__(self, disk: Disk, path: Path, spend: Callable[[int], None]) -> None:
        self._disk = disk
        self._path = path
        self._spend = spend
        self._fd = disk.open_for_reading(path)
        self.size = disk.size(self._fd)
        # Without readahead, pages that are cached before a read were put there by others.
        disk.advise_random_access(self._fd)
        self._block = b""
        self._start = 0

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close(self._fd)

    def is_current(self) -> bool:
        """Whether the file still has its name: it was not deleted or replaced."""
        return self._disk.is_same_file(self._fd, self._path)

    def read(self, position: int, size: int) -> memoryview:
        """Read up to `size` bytes; fewer at the end of the file. Raises OSError."""
        size = max(0, min(size, self.size - position))
        at = position - self._start
        if at < 0 or at + size > len(self._block):
            wanted = min(max(size, _CHUNK_BYTES), self.size - position)
            self._block, self._start, at = self._load(position, wanted), position, 0
        return memoryview(self._block)[at : at + size]

    def _load(self, position: int, size: int) -> bytes:
        parts = []
        for start in range(position, position + size, _CHUNK_BYTES):
            length = min(_CHUNK_BYTES, position + size - start)
            self._spend(length)
            is_cached = self._disk.is_cached
            was_cached = is_cached(self._fd, start) and is_cached(self._fd, start + length - 1)
            parts.append(self._disk.read(self._fd, length, start))
            if not was_cached:
                page = start - start % _PAGE_BYTES
                self._disk.drop_from_page_cache(self._fd, page, start + length - page)
        return b"".join(parts)


class _SegmentVerifier:
    """Walks over the batches of one segment."""

    def __init__(self, segment: SegmentFile, reader: _Reader, indexes: _Indexes) -> None:
        self._segment = segment
        self._reader = reader
        self.indexes = indexes
        self._expected_offset = segment.base_offset
        self._is_compacted = segment.is_compacted
        #: Offsets from here on are not in this segment.
        self._end_offset = (
            segment.base_offset + 2**31 if segment.end_offset is None else segment.end_offset
        )

    def run(self) -> Iterator[Damage]:
        """Yield the damage of the log file."""
        position, size = 0, self._reader.size
        while position < size:
            try:
                reason, end = self._check_batch(position)
                if reason is not None:
                    end = self._find_next_batch(position)
            except OSError as error:
                reason, end = f"cannot be read: {error.strerror or error}", size
            if reason is not None:
                yield self._damage(position, end, reason)
            position = end

    def _check_batch(self, position: int) -> tuple[str | None, int]:
        """Return what is wrong with the batch at a position, and where it ends."""
        header = self._header(position)
        if header is None:
            return "no record batch", position
        base, end, last_offset, crc, max_timestamp = header
        batch = self._reader.read(position, end - position)
        if crc32c(batch[CRC_COVERS_FROM:]) != crc:
            return "wrong CRC", end
        expected = self._expected_offset
        if base < expected:
            return f"base offset {base} where {expected} is expected", end
        # Of two batches that contradict each other, the one that follows its predecessor is right.
        limit = self._end_offset if base == expected else self._following_offset(end)
        if not base <= last_offset < limit:
            return f"offsets {base} to {last_offset} overlap those of the next batch", end
        count = int.from_bytes(batch[_RECORD_COUNT], "big", signed=True)
        self._is_compacted |= count != last_offset - base + 1
        if base > expected and not (
            self._is_compacted or [expected, base] in self._segment.gaps or position
        ):
            return f"base offset {base} does not match the file name", end
        self._expected_offset = last_offset + 1
        self.indexes.add_batch(position, base, max_timestamp)
        return None, end

    def _header(self, position: int) -> tuple[int, int, int, int, int] | None:
        """Return base offset, end, last offset, CRC and max timestamp of a complete batch."""
        block = self._reader.read(position, HEADER_BYTES)
        if len(block) < HEADER_BYTES:
            return None
        base, length, _, magic, crc, delta, max_timestamp, _, _ = unpack_header(block, 0)
        end = position + LOG_OVERHEAD_BYTES + length
        if magic != 2 or not position + HEADER_BYTES <= end <= self._reader.size:
            return None
        return base, end, base + delta, crc, max_timestamp

    def _following_offset(self, end: int) -> int:
        """Return the base offset of the batch at a position, or where the segment has to end."""
        header = self._header(end)
        return self._end_offset if header is None else min(header[0], self._end_offset)

    def _find_next_batch(self, position: int) -> int:
        """Return where the batch after a damaged one starts: by its length, else by the index."""
        header = self._header(position)
        if header is not None and self._is_next(header[1]):
            return header[1]
        for anchor in self.indexes.positions_after(position):
            if self._is_next(anchor):
                return anchor
        return self._reader.size

    def _is_next(self, position: int) -> bool:
        """Whether a good batch starts at a position, or the segment ends there."""
        if position == self._reader.size:
            return True
        header = self._header(position)
        if header is None or not self._expected_offset <= header[0] < self._end_offset:
            return False
        batch = self._reader.read(position, header[1] - position)
        return crc32c(batch[CRC_COVERS_FROM:]) == header[3]

    def _damage(self, position: int, end: int, reason: str) -> Damage:
        first = self._expected_offset
        following = self._header_offset(end)
        last = following - 1 if following is not None and following > first else None
        return Damage(self._segment.path, position, end - position, first, last, reason)

    def _header_offset(self, position: int) -> int | None:
        try:
            header = self._header(position)
        except OSError:
            header = None
        return self._segment.end_offset if header is None else header[0]


class _Indexes:
    """The entries of both indexes that no batch has confirmed yet."""

    def __init__(self, segment: SegmentFile, disk: Disk) -> None:
        self._base_offset = segment.base_offset
        self._paths = [segment.path.with_suffix(suffix) for suffix in INDEX_SUFFIXES]
        self._errors: list[Damage] = []
        offsets = self._read(disk, 0, OFFSET_ENTRY_BYTES)
        times = self._read(disk, 1, TIME_ENTRY_BYTES)
        self._offset_rows = OffsetIndex(offsets).rows()
        self._time_rows = TimeIndex(times).rows()
        # Offset and position, and timestamp and offset, as the entries have them.
        self._offsets = {position: offset for offset, position in self._offset_rows}
        self._times = {offset: timestamp for timestamp, offset in self._time_rows}

    def add_batch(self, position: int, base_offset: int, max_timestamp: int) -> None:
        """Remove the entries that are right about a batch."""
        relative = base_offset - self._base_offset
        if self._offsets.get(position) == relative:
            del self._offsets[position]
        if self._times.get(relative) == max_timestamp:
            del self._times[relative]

    def positions_after(self, position: int) -> Iterator[int]:
        """Yield the positions of batches that the offset index has after a position."""
        return (at for _offset, at in self._offset_rows if at > position)

    def damages(self) -> list[Damage]:
        """Return the wrong entries: the first of each index."""
        damages = self._errors[:]
        for number, row in enumerate(self._offset_rows):
            if row[1] in self._offsets:
                reason = f"no batch with this offset at position {row[1]} of the log"
                damages.append(self._damage(0, number * OFFSET_ENTRY_BYTES, row[0], reason))
                break
        for number, entry in enumerate(self._time_rows):
            if entry[1] in self._times:
                reason = f"no batch with this offset and the max timestamp {entry[0]} in the log"
                damages.append(self._damage(1, number * TIME_ENTRY_BYTES, entry[1], reason))
                break
        return damages

    def _read(self, disk: Disk, index: int, entry_bytes: int) -> bytes:
        try:
            data = disk.read_file(self._paths[index])
        except FileNotFoundError:
            return b""  # The next start rebuilds it.
        except OSError as error:
            self._errors.append(self._damage(index, 0, 0, f"cannot be read: {error.strerror}"))
            return b""
        size = len(data) // entry_bytes * entry_bytes
        if size != len(data):
            reason = f"{len(data) - size} bytes after the last entry"
            self._errors.append(self._damage(index, size, 0, reason))
        return data[:size]

    def _damage(self, index: int, position: int, relative: int, reason: str) -> Damage:
        entry_bytes = (OFFSET_ENTRY_BYTES, TIME_ENTRY_BYTES)[index]
        offset = self._base_offset + relative
        return Damage(
            self._paths[index], position, entry_bytes, offset, offset, reason, INDEX_ADVICE
        )
