"""Reads segments for compaction, at a limited rate, through file descriptors of its own."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

from ottla.protocol.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, RecordBatch, batch_size

from .disk import Disk
from .errors import CompactionStoppedError
from .segment import Segment

CHUNK_BYTES = 1024 * 1024


class Throttler:
    """Limits bytes per second, and raises CompactionStoppedError once `stop` is set."""

    def __init__(self, bytes_per_second: int | None, stop: threading.Event | None) -> None:
        self._bytes_per_second = bytes_per_second
        self._stop = stop or threading.Event()
        self._started = time.monotonic()
        self._spent_bytes = 0

    def spend(self, size: int) -> None:
        """Wait until `size` more bytes may be read or written."""
        self._spent_bytes += size
        if self._bytes_per_second is not None:
            due = self._started + self._spent_bytes / self._bytes_per_second
            self._stop.wait(max(0, due - time.monotonic()))
        if self._stop.is_set():
            raise CompactionStoppedError("Compaction was stopped")


class SegmentReader:
    """The log file of a segment, up to the size that the segment has now."""

    def __init__(self, disk: Disk, segment: Segment, throttler: Throttler) -> None:
        self._disk = disk
        self._throttler = throttler
        self.size = segment.size
        self._fd = disk.open(segment.path(".log"))

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._disk.close(self._fd)

    def read(self, position: int, size: int) -> bytes:
        """Read up to `size` bytes."""
        size = min(size, self.size - position)
        self._throttler.spend(size)
        return self._disk.read(self._fd, size, position)

    def batches(self, position: int = 0) -> Iterator[tuple[int, RecordBatch]]:
        """Yield each batch with its position. Raises BatchError where there is no batch."""
        block, start = b"", position
        while position < self.size:
            at = position - start
            if at + HEADER_BYTES > len(block):
                block, start, at = self.read(position, CHUNK_BYTES), position, 0
            size = batch_size(block, at) if len(block) - at >= LOG_OVERHEAD_BYTES else 0
            if len(block) - at < size <= self.size - position:
                block, start, at = self.read(position, max(size, CHUNK_BYTES)), position, 0
            batch = RecordBatch(memoryview(block)[at:])
            yield position, batch
            position += batch.size
