"""The aborted transactions of one segment, as Kafka's `.txnindex` file has them.

    version int16, 0 │ producer id int64 │ first offset int64 │ last offset int64
    │ last stable offset int64                                                34 bytes per entry

An entry is in the segment that has the ABORT marker, whose offset is the last offset. Entries are
in the order of their markers. No transaction whose marker comes later has data before the last
stable offset of an entry, so that a search ends there. Committed transactions have no entry, and a
segment without aborted transactions has no file.

As with the other indexes, the entries of the active segment are in memory: the file is written when
the segment is sealed and at a clean shutdown, and recovery rebuilds the entries from the markers.
The entries of sealed segments are read when a fetch needs them.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from .disk import Buffer, Disk
from .read_mode import check_may_wait
from .segment_indexes import INDEX_CACHE

TRANSACTION_INDEX_SUFFIX = ".txnindex"

_ENTRY = struct.Struct(">hqqqq")
_VERSION = 0


class AbortedTransaction(NamedTuple):
    """An aborted transaction: its data is from `first_offset` to its marker at `last_offset`."""

    producer_id: int
    first_offset: int
    last_offset: int
    #: The first offset that was undecided after the marker.
    last_stable_offset: int


class TransactionIndex:
    """The entries of one segment, in memory or in its file."""

    __slots__ = (
        "_base_offset",
        "_directory",
        "_disk",
        "_entries",
        "_has_file",
        "_is_changed",
        "count",
    )

    def __init__(self, directory: Path, base_offset: int, disk: Disk) -> None:
        self._directory = directory
        self._base_offset = base_offset
        self._disk = disk
        #: None if they have to be read from the file.
        self._entries: Buffer | None = bytearray()
        #: Number of entries.
        self.count = 0
        self._is_changed = False
        self._has_file = False

    def __len__(self) -> int:
        return self.count

    def add(self, transaction: AbortedTransaction) -> None:
        """Add an entry to the index of the active segment."""
        entries = self._entries
        assert isinstance(entries, bytearray), "the index of a sealed segment is read-only"
        entries += _ENTRY.pack(_VERSION, *transaction)
        self.count += 1
        self._is_changed = True

    def entries(self) -> list[AbortedTransaction]:
        """Return all entries, in the order of their markers."""
        if not self.count:
            return []
        return [AbortedTransaction(*row[1:]) for row in _ENTRY.iter_unpack(self._read())]

    def find(self, start_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """Return the entries with data in a range of offsets, and whether later ones have none."""
        return find_aborted(self._read(), start_offset, end_offset)

    def loaded_entries(self) -> bytes | None:
        """Return a copy of the entries if they are in memory. May be called in a thread."""
        entries = self._entries
        return None if entries is None else bytes(entries)

    def read_file(self) -> bytes:
        """Read the entries of a sealed segment; none if the file is missing.

        May be called in a thread, which leaves what is in memory as it is; see `set_entries`.
        """
        try:
            data = self._disk.read_file(self._path)
        except FileNotFoundError:
            data = b""
        return data[: len(data) // _ENTRY.size * _ENTRY.size]

    def set_entries(self, entries: bytes) -> None:
        """Use the result of `read_file`."""
        if self._entries is None:
            self._entries = entries
            INDEX_CACHE.add(self, len(entries))

    def replace(self, transactions: list[AbortedTransaction]) -> None:
        """Replace all entries."""
        self._forget()
        self._entries = bytearray()
        self.count = 0
        for transaction in transactions:
            self.add(transaction)
        self._is_changed = True

    def open(self) -> None:
        """Use the file of a segment that was closed; `load` follows if it is appended to."""
        self._forget()
        self._entries = None
        try:
            size = self._path.stat().st_size
            self._has_file = True
        except FileNotFoundError:
            size = 0
            self._has_file = False
        self.count = -(-size // _ENTRY.size)

    def load(self) -> None:
        """Read the file into memory, to append to it."""
        if not isinstance(self._entries, bytearray):
            entries = bytearray(self._read() if self.count else b"")
            self._forget()
            self._entries = entries

    def unmap(self) -> None:
        """Forget the entries of a sealed segment; the next use reads the file."""
        if not self._is_changed:
            self._entries = None
            self._forget()

    def fits(self, base_offset: int, next_offset: int) -> bool:
        """Whether the file can be that of a segment with these offsets."""
        if not self.count:
            return not self._has_file  # a power cut may leave an empty file
        try:
            data = self._disk.read_file(self._path)
        except FileNotFoundError:
            return False
        if len(data) != self.count * _ENTRY.size:
            return False
        previous = base_offset - 1
        for version, _producer_id, first, last, stable in _ENTRY.iter_unpack(data):
            if version != _VERSION or not 0 <= first < last or stable > last + 1:
                return False
            if not previous < last < next_offset:
                return False
            previous = last
        return True

    def write(self) -> None:
        """Write the file if entries have changed, without an fsync; see `flush`."""
        if not self._is_changed:
            return
        if self.count:
            assert self._entries is not None
            self._disk.replace_file(self._path, self._entries, durable=False)
        else:
            self._disk.unlink(self._path)
        self._has_file = self.count > 0
        self._is_changed = False

    def write_durably(self, path: Path) -> None:
        """Write the entries to another file, and fsync it; no file if there are none."""
        if self.count:
            self._disk.write_file(path, self._read(), durable=True)

    def flush(self) -> None:
        """Fsync the file, if there is one. May be called in a thread."""
        if self._has_file:
            self._disk.sync_path(self._path)

    @property
    def _path(self) -> Path:
        return self._directory / f"{self._base_offset:020d}{TRANSACTION_INDEX_SUFFIX}"

    def _read(self) -> Buffer:
        entries = self._entries
        if entries is None:
            check_may_wait()
            entries = self._entries = self.read_file()
            INDEX_CACHE.add(self, len(entries))
        return entries

    def _forget(self) -> None:
        INDEX_CACHE.forget(self)


def find_aborted(
    data: Buffer, start_offset: int, end_offset: int
) -> tuple[list[AbortedTransaction], bool]:
    """Return the entries with data in a range of offsets, and whether later ones have none."""
    low, high = 0, len(data) // _ENTRY.size
    while low < high:
        middle = (low + high) // 2
        if _ENTRY.unpack_from(data, middle * _ENTRY.size)[3] < start_offset:
            low = middle + 1
        else:
            high = middle
    found = []
    for row in _ENTRY.iter_unpack(memoryview(data)[low * _ENTRY.size :]):
        if row[2] < end_offset:
            found.append(AbortedTransaction(*row[1:]))
        if row[4] >= end_offset:
            return found, True
    return found, False
