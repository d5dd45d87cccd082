"""The two sparse indexes beside a segment.

    .index       relative offset  uint32 │ position uint32             8 bytes an entry
    .timeindex   timestamp        int64  │ relative offset uint32     12 bytes an entry

Numbers are big-endian, and offsets relative to the segment's base, so that they fit. An entry of
the first says that the batch at `position` starts at that offset; one of the second, that up to and
in the batch that starts at that offset no record is younger than `timestamp`.

The indexes of an active segment live in memory and are written when it is sealed, at a flush and at
the end; those of sealed segments are mapped. Neither carries a checksum: what a crash may have
touched is built again from the log, which does. So an entry is a hint. Whoever uses one looks
whether the batch that it speaks of is there.
"""

from __future__ import annotations

import struct

from .disk import Buffer

_OFFSET = struct.Struct(">II")
_TIME = struct.Struct(">qI")
OFFSET_ENTRY_BYTES = _OFFSET.size
TIME_ENTRY_BYTES = _TIME.size


class OffsetIndex:
    """From an offset to a position at or before it."""

    def __init__(self, entries: Buffer = b"") -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries) // _OFFSET.size

    def add(self, relative_offset: int, position: int) -> None:
        """Note that the batch at `position` starts at this offset. Both only ever go up."""
        assert isinstance(self.entries, bytearray), "a sealed index is read-only"
        self.entries += _OFFSET.pack(relative_offset, position)

    def entry_of(self, relative_offset: int) -> tuple[int, int]:
        """Give offset and position of a batch that starts at this offset or before it."""
        return self._last_entry(relative_offset, 0)

    def entry_before(self, position: int) -> tuple[int, int]:
        """Give offset and position of the last indexed batch that is not behind this position."""
        return self._last_entry(position, 1)

    def _last_entry(self, limit: int, column: int) -> tuple[int, int]:
        """Find the last entry that is not over the limit in one of the columns: both are sorted.

        Before all entries is the start of the segment.
        """
        low, high = 0, len(self)
        entries, unpack = self.entries, _OFFSET.unpack_from
        while low < high:
            middle = (low + high) // 2
            if unpack(entries, middle * 8)[column] <= limit:
                low = middle + 1
            else:
                high = middle
        return (0, 0) if low == 0 else unpack(entries, (low - 1) * 8)


class TimeIndex:
    """From a time to an offset before which nothing is as young."""

    def __init__(self, entries: Buffer = b"") -> None:
        self.entries = entries
        #: The largest timestamp noted and its offset; (-1, 0) if there is none.
        self.last = (-1, 0)
        if entries:
            self.last = _TIME.unpack_from(entries, len(entries) - _TIME.size)

    def __len__(self) -> int:
        return len(self.entries) // _TIME.size

    def add(self, timestamp: int, relative_offset: int) -> None:
        """Note the largest timestamp so far; one that is no larger than the last is left out."""
        assert isinstance(self.entries, bytearray), "a sealed index is read-only"
        if timestamp > self.last[0]:
            self.entries += _TIME.pack(timestamp, relative_offset)
            self.last = (timestamp, relative_offset)

    def entry_before(self, timestamp: int) -> tuple[int, int]:
        """Give the last entry that is older than this; before all of them is (-1, 0)."""
        low, high = 0, len(self)
        entries, unpack = self.entries, _TIME.unpack_from
        while low < high:
            middle = (low + high) // 2
            if unpack(entries, middle * 12)[0] < timestamp:
                low = middle + 1
            else:
                high = middle
        return (-1, 0) if low == 0 else unpack(entries, (low - 1) * 12)
