"""The two sparse indexes of a segment.

    .index       relative offset  uint32 │ position uint32             8 bytes per entry
    .timeindex   timestamp        int64  │ relative offset uint32     12 bytes per entry

Numbers are big-endian. Offsets are relative to the segment's base offset, so that they fit into 32
bits. An entry of the offset index says that the batch at `position` starts at that offset. An entry
of the time index says that no record up to the end of the batch that starts at that offset has a
timestamp larger than `timestamp`.

The indexes of the active segment live in memory; they are written when the segment is sealed and at
a clean shutdown. Those of sealed segments are read when a lookup needs them. Neither has a
checksum: indexes that a crash may have damaged are rebuilt from the log, which has checksums. An
entry is therefore only a hint, and its user verifies that the batch it points to is there.
"""

from __future__ import annotations

import struct

from .disk import Buffer

_OFFSET_ENTRY = struct.Struct(">II")
_TIME_ENTRY = struct.Struct(">qI")
OFFSET_ENTRY_BYTES = _OFFSET_ENTRY.size
TIME_ENTRY_BYTES = _TIME_ENTRY.size


class OffsetIndex:
    """Maps an offset to the position of a batch at or before it."""

    def __init__(self, entries: Buffer = b"") -> None:
        self.entries = entries

    def __len__(self) -> int:
        return len(self.entries) // OFFSET_ENTRY_BYTES

    def add(self, relative_offset: int, position: int) -> None:
        """Append an entry. Offsets and positions must increase from entry to entry."""
        assert isinstance(self.entries, bytearray), "the index of a sealed segment is read-only"
        self.entries += _OFFSET_ENTRY.pack(relative_offset, position)

    def rows(self) -> list[tuple[int, int]]:
        """Return all entries."""
        return list(_OFFSET_ENTRY.iter_unpack(self.entries))

    def entry_at_or_before_offset(self, relative_offset: int) -> tuple[int, int]:
        """Return the last entry whose offset is not larger; (0, 0) if there is none."""
        return self._last_entry(relative_offset, 0)

    def entry_at_or_before_position(self, position: int) -> tuple[int, int]:
        """Return the last entry whose position is not larger; (0, 0) if there is none."""
        return self._last_entry(position, 1)

    def _last_entry(self, limit: int, column: int) -> tuple[int, int]:
        """Return the last entry that is not above `limit` in one of its sorted columns."""
        low, high = 0, len(self)
        entries, unpack = self.entries, _OFFSET_ENTRY.unpack_from
        while low < high:
            middle = (low + high) // 2
            if unpack(entries, middle * 8)[column] <= limit:
                low = middle + 1
            else:
                high = middle
        return (0, 0) if low == 0 else unpack(entries, (low - 1) * 8)


class TimeIndex:
    """Maps a timestamp to an offset before which all records are older."""

    def __init__(self, entries: Buffer = b"") -> None:
        self.entries = entries
        #: The entry with the largest timestamp; (-1, 0) if there is none.
        self.last = (-1, 0)
        if entries:
            self.last = _TIME_ENTRY.unpack_from(entries, len(entries) - TIME_ENTRY_BYTES)

    def __len__(self) -> int:
        return len(self.entries) // TIME_ENTRY_BYTES

    def add(self, timestamp: int, relative_offset: int) -> None:
        """Append an entry, unless its timestamp is not larger than that of the last one."""
        assert isinstance(self.entries, bytearray), "the index of a sealed segment is read-only"
        if timestamp > self.last[0]:
            self.entries += _TIME_ENTRY.pack(timestamp, relative_offset)
            self.last = (timestamp, relative_offset)

    def rows(self) -> list[tuple[int, int]]:
        """Return all entries."""
        return list(_TIME_ENTRY.iter_unpack(self.entries))

    def entry_before(self, timestamp: int) -> tuple[int, int]:
        """Return the last entry with a smaller timestamp; (-1, 0) if there is none."""
        low, high = 0, len(self)
        entries, unpack = self.entries, _TIME_ENTRY.unpack_from
        while low < high:
            middle = (low + high) // 2
            if unpack(entries, middle * 12)[0] < timestamp:
                low = middle + 1
            else:
                high = middle
        return (-1, 0) if low == 0 else unpack(entries, (low - 1) * 12)
