"""Search for records by timestamp, in steps that may run in a thread.

A log and its indexes belong to one thread. `find_timestamp` and `find_max_timestamp` run there, as
generators: they look into the indexes, and yield the steps that read the files, each to be called
before the generator goes on. Steps open files by themselves, check what the indexes said, read
batch headers, and decompress the batch that promises a timestamp. A step opens one batch at most,
so that searches can take turns.

Headers that were not validated may promise what the records do not have. After some of them, or if
a batch cannot be decoded, the answer is its first offset: a consumer that starts there misses
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import suppress
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from ottla.protocol import timestamps
from ottla.protocol.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    MAX_DECOMPRESSED_BYTES,
    RecordBatch,
    unpack_header,
)
from ottla.protocol.errors import BatchError
from ottla.protocol.validation import INT64_MIN

from .cold_reads import ColdIndexes
from .disk import Disk
from .errors import StorageError

if TYPE_CHECKING:
    from .log import Log

_SCAN_BYTES = 64 * 1024
#: Batches that may be opened in one segment without finding the timestamp.
_MAX_OPENED_BATCHES = 16
#: A step that reads headers ends after this time.
_STEP_SECONDS = 0.005
#: Searches for the largest timestamp, if headers promise more than the records have.
_MAX_ATTEMPTS = 8

T = TypeVar("T")
#: A step, called with the maximum of bytes to decompress; if that is too little, it raises
#: BatchError, and may be called again with a larger limit.
Step = Callable[[int], None]
#: Yields steps, and returns the result. The BatchError of a step that cannot be completed is to be
#: thrown into it.
Steps = Generator[Step, None, T]


class TimestampAndOffset(NamedTuple):
    """The offset and the timestamp of a record."""

    offset: int
    timestamp: int


def find_timestamp(log: Log, timestamp: int) -> Steps[TimestampAndOffset | None]:
    """Find the first record of a log whose timestamp is at least `timestamp`."""
    for segment in list(log.segments):
        if segment.is_older(timestamp):
            continue
        if not segment.indexes.are_loaded():
            indexes = ColdIndexes(segment)
            yield indexes.load
            indexes.install()
        search = segment.search(timestamp, log.start_offset)
        if search is None:
            continue
        while not search.is_complete:
            try:
                yield search.step
            except BatchError:
                search.settle()
        if search.result is not None:
            return search.result
        if search.is_newer_unlikely and not search.is_index_damaged:
            segment.is_max_timestamp_verified = True
    return None


def find_max_timestamp(log: Log) -> Steps[TimestampAndOffset | None]:
    """Find the first record of a log that has the largest timestamp.

    If no record has one, that is the first record.
    """
    max_timestamp = max(segment.max_timestamp for segment in log.segments)
    if max_timestamp < 0 and log.end_offset > log.start_offset:
        return TimestampAndOffset(log.start_offset, max_timestamp)
    for _ in range(_MAX_ATTEMPTS):
        if max_timestamp < 0:
            break
        record = yield from find_timestamp(log, max_timestamp)
        if record is not None:
            return record
        max_timestamp = yield from _max_timestamp_below(log, max_timestamp)
    return None


def _max_timestamp_below(log: Log, limit: int) -> Steps[int]:
    """Find the largest timestamp below `limit` in the headers of batches that have records."""
    max_timestamp = -1
    for segment in list(log.segments):
        path = segment.path(".log")
        scan = _MaxTimestampScan(
            log.disk, path, segment.size, log.start_offset, limit, segment.holes
        )
        while not scan.is_complete:
            yield scan.step
        max_timestamp = max(max_timestamp, scan.result)
    return max_timestamp


def run_steps(steps: Steps[T], max_decompressed_bytes: int = MAX_DECOMPRESSED_BYTES) -> T:
    """Call all steps at once, and return the result."""
    try:
        step = next(steps)
        while True:
            try:
                step(max_decompressed_bytes)
            except BatchError as error:
                step = steps.throw(error)
            else:
                step = next(steps)
    except StopIteration as end:
        result: T = end.value
        return result


class IndexHint(NamedTuple):
    """What the indexes of a segment say; none of it is verified."""

    #: An entry of the time index: the max timestamp and the base offset of a batch.
    timestamp: int
    offset: int
    #: An entry of the offset index: the base offset of a batch at or before it, and its position.
    indexed_offset: int
    position: int


class _Header(NamedTuple):
    position: int
    size: int
    base_offset: int
    last_offset: int
    max_timestamp: int
    record_count: int


class SegmentSearch:
    """Finds the first record of a segment whose timestamp is at least `timestamp`.

    All records before the batch of `hint` are older. If `is_newer_unlikely`, the batch of the hint
    has the largest timestamp of the segment, and that is too small: nothing is to be found unless
    the hint is wrong.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        size: int,
        timestamp: int,
        start_offset: int,
        hint: IndexHint,
        *,
        is_newer_unlikely: bool,
        holes: Mapping[int, int],
    ) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        self._holes = holes
        self._timestamp = timestamp
        self._start_offset = start_offset
        self._hint = hint
        self.is_newer_unlikely = is_newer_unlikely
        self._position: int | None = None
        self._opened_batches = 0
        self._candidate: _Header | None = None
        #: Whether there is nothing more to do, and the record that was found.
        self.is_complete = False
        self.result: TimestampAndOffset | None = None
        #: Whether the indexes turned out to be wrong.
        self.is_index_damaged = False

    def step(self, max_decompressed_bytes: int) -> None:
        """Search on. Raises OSError, BatchError, and StorageError where there is no batch.

        BatchError means that a batch that promises the timestamp cannot be decoded within the
        limit: call it again with another limit, or `settle`.
        """
        try:
            fd = self._disk.open(self._path)
        except FileNotFoundError:
            self.is_complete = True  # Deleted in the meantime.
            return
        try:
            if self._position is None:
                self._position = self._verify_hint(fd)
            if self.is_newer_unlikely and not self.is_index_damaged:
                self.is_complete = True
            else:
                self.is_complete = self._search(fd, max_decompressed_bytes)
        finally:
            self._disk.close(fd)

    def settle(self) -> None:
        """Let the batch that cannot be decoded be the result."""
        header = self._candidate
        assert header is not None
        offset = max(header.base_offset, self._start_offset)
        self.result = TimestampAndOffset(offset, header.max_timestamp)
        self.is_complete = True

    def _verify_hint(self, fd: int) -> int:
        """Return the position to search from: that of the hint's batch, or 0 if it is wrong."""
        hint = self._hint
        if hint.timestamp == -1:
            return 0  # There is no entry.
        with suppress(StorageError):  # No batch at the position of the hint.
            headers = self._headers(fd, hint.position)
            first = next(headers, None)
            # At position 0, compaction may have removed the batch.
            is_right = hint.position == 0 or (first and first.base_offset == hint.indexed_offset)
            if first is not None and is_right:
                for header in chain((first,), headers):
                    if header.base_offset == hint.offset and header.max_timestamp == hint.timestamp:
                        return header.position
                    if header.base_offset >= hint.offset:
                        break
        self.is_index_damaged = True
        return 0

    def _search(self, fd: int, max_decompressed_bytes: int) -> bool:
        end = perf_counter() + _STEP_SECONDS
        assert self._position is not None
        for header in self._headers(fd, self._position):
            self._position = header.position
            if self._may_contain(header):
                self._candidate = header
                if self._opened_batches == _MAX_OPENED_BATCHES:
                    self.settle()
                    return True
                self.result = self._find_in(fd, header, max_decompressed_bytes)
                self._opened_batches += 1
                self._position += header.size
                return self.result is not None
            self._position += header.size
            if perf_counter() > end:
                return False
        return True

    def _headers(self, fd: int, position: int) -> Iterator[_Header]:
        return _headers(self._disk, fd, self._path, self._size, position, self._holes)

    def _may_contain(self, header: _Header) -> bool:
        return (
            header.max_timestamp >= self._timestamp
            and header.last_offset >= self._start_offset
            and header.record_count > 0
        )

    def _find_in(self, fd: int, header: _Header, max_bytes: int) -> TimestampAndOffset | None:
        batch = RecordBatch(self._disk.read(fd, header.size, header.position))
        payload = batch.payload(max_bytes)
        base_timestamp, timestamp = batch.base_timestamp, self._timestamp
        if batch.has_append_time:
            base_timestamp, timestamp = 0, INT64_MIN
        first_delta = max(self._start_offset - batch.base_offset, 0)
        found = timestamps.find_timestamp(
            payload, batch.record_count, base_timestamp, timestamp, first_delta
        )
        if found is None:
            return None
        offset_delta, record_timestamp = found
        if batch.has_append_time:
            record_timestamp = batch.max_timestamp
        return TimestampAndOffset(batch.base_offset + offset_delta, record_timestamp)


class _MaxTimestampScan:
    """Finds the largest max timestamp below `limit` of the batches of a segment that have records.

    Compaction may leave the largest timestamp to a batch without records.
    """

    def __init__(
        self,
        disk: Disk,
        path: Path,
        size: int,
        start_offset: int,
        limit: int,
        holes: Mapping[int, int],
    ) -> None:
        self._disk = disk
        self._path = path
        self._size = size
        self._holes = holes
        self._start_offset = start_offset
        self._limit = limit
        self._position = 0
        self.is_complete = False
        self.result = -1

    def step(self, _max_decompressed_bytes: int) -> None:
        """Scan on. Raises OSError, and StorageError where there is no batch."""
        try:
            fd = self._disk.open(self._path)
        except FileNotFoundError:
            self.is_complete = True  # Deleted in the meantime.
            return
        end = perf_counter() + _STEP_SECONDS
        try:
            headers = _headers(self._disk, fd, self._path, self._size, self._position, self._holes)
            for header in headers:
                is_visible = header.record_count > 0 and header.last_offset >= self._start_offset
                if is_visible and self.result < header.max_timestamp < self._limit:
                    self.result = header.max_timestamp
                self._position = header.position + header.size
                if perf_counter() > end:
                    return
        finally:
            self._disk.close(fd)
        self.is_complete = True


def _headers(
    disk: Disk, fd: int, path: Path, size: int, position: int, holes: Mapping[int, int]
) -> Iterator[_Header]:
    """Yield the headers of the batches from a position on. Raises StorageError."""
    block, start = b"", position
    while position < size:
        if position in holes:
            position, block = holes[position], b""
            continue
        at = position - start
        if at + HEADER_BYTES > len(block):
            block, start, at = disk.read(fd, _SCAN_BYTES, position), position, 0
            if len(block) < HEADER_BYTES:
                raise StorageError(f"{path}: no batch at position {position}")
        base, length, _, magic, _, delta, timestamp, _, count = unpack_header(block, at)
        batch_size = LOG_OVERHEAD_BYTES + length
        if magic != 2 or not HEADER_BYTES <= batch_size <= size - position:
            raise StorageError(f"{path}: no batch at position {position}")
        yield _Header(position, batch_size, base, base + delta, timestamp, count)
        position += batch_size
