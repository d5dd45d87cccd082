"""Reads that do not wait for the disk, and what a thread loads for them.

The event loop reads within `NO_WAITING`. A read that would need an index that is not in memory, the
rebuild of a damaged one, or the headers of batches outside the page cache then raises
ColdReadError. A `ColdRead` does the same read in a thread, through descriptors of its own, and
leaves behind what was missing: pages in the page cache, and indexes for `install`. After that the
event loop reads again, and may wait: nothing is left to wait for, unless memory is so short that it
was evicted already, or the segment was replaced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import StorageError
from .transaction_index import find_aborted

if TYPE_CHECKING:
    from .index import OffsetIndex, TimeIndex
    from .log import Log
    from .segment import Segment


class ColdIndexes:
    """Loads the offset index and the time index of a sealed segment."""

    def __init__(self, segment: Segment) -> None:
        self._segment = segment
        self._offsets: OffsetIndex | None = None
        self._times: TimeIndex | None = None

    def load(self, _max_decompressed_bytes: int = 0) -> None:
        """Read the files, or rebuild them; call it in a thread. Raises OSError.

        A step of a timestamp search.
        """
        if not self._segment.is_readable_by_path:
            return
        reader = self._segment.reader()
        try:
            self._offsets, self._times = reader.offset_index(), reader.indexes.times
        except OSError:
            if self._segment.is_readable_by_path:
                raise
        finally:
            reader.close()

    def install(self) -> None:
        """Let the segment use what was loaded; call it in the thread that the log belongs to."""
        if self._segment.accepts_indexes:
            self._segment.indexes.replace(self._offsets, self._times)


class ColdRead:
    """Loads what one read of a log needs besides the records themselves.

    `end_offset` is the offset before which the read ends. `with_transactions` is for the aborted
    transactions among the records.
    """

    def __init__(
        self, log: Log, offset: int, max_bytes: int, end_offset: int, *, with_transactions: bool
    ) -> None:
        self._segments = log.segments.from_offset(offset)
        self._offset = offset
        self._max_bytes = max_bytes
        self._end_offset = end_offset
        self._with_transactions = with_transactions
        self._readers: list[tuple[Segment, Segment, OffsetIndex, TimeIndex | None]] = []
        self._transactions: list[tuple[Segment, bytes]] = []

    def load(self) -> None:
        """Read headers and indexes; call it in a thread.

        Damaged indexes are rebuilt, and saved. Raises OSError and StorageError as the read would.
        """
        segment = self._segments[0]
        try:
            for segment in self._segments:
                if not segment.is_readable_by_path:
                    return
                if self._load_segment(segment):
                    break
        except (OSError, StorageError):
            if segment.is_readable_by_path:
                raise
            # Deleted or replaced in the meantime: the next read finds the segment that is there.

    def install(self) -> None:
        """Let segments use what was loaded; call it in the thread that the log belongs to."""
        for segment, reader, offsets, times in self._readers:
            if segment.accepts_indexes and segment.indexes.loaded_offsets is not offsets:
                segment.indexes.replace(offsets, times)
                if not segment.is_max_timestamp_verified:
                    segment.max_timestamp = reader.max_timestamp
                    segment.offset_of_max_timestamp = reader.offset_of_max_timestamp
        for segment, entries in self._transactions:
            if segment.accepts_indexes:
                segment.transactions.set_entries(entries)

    def _load_segment(self, segment: Segment) -> bool:
        """Load what a read of this segment needs; return whether it has the records."""
        reader = segment.reader()
        try:
            batch = reader.find(self._offset)
            if batch is not None and batch.base_offset < self._end_offset:
                stop = reader.end_of_whole_batches(batch, self._max_bytes, self._end_offset)
                if self._with_transactions:
                    self._load_transactions(reader.offset_at(stop))
            return batch is not None
        finally:
            offsets, times = reader.indexes.loaded_offsets, reader.indexes.loaded_times
            if offsets is not None:
                self._readers.append((segment, reader, offsets, times))
            reader.close()

    def _load_transactions(self, end_offset: int) -> None:
        for segment in self._segments:
            if not segment.transactions.count:
                continue
            entries = segment.transactions.loaded_entries()
            if entries is None:
                entries = segment.transactions.read_file()
                self._transactions.append((segment, entries))
            if find_aborted(entries, self._offset, end_offset)[1]:
                break
