"""Recovery of one segment after a crash: verify each batch, and repair what is wrong.

- The last segment ends in zeros, because its file was longer than its content, or in part of a
  batch: a torn write that was never acknowledged. Both are truncated.
- A batch is damaged. Its bytes are set aside in a file, `….log.damaged-POSITION`, the report lists
  them, and the log continues without them: what follows is good and must not be lost. That leaves a
  gap in the offsets. The file `gaps` records it, so that it is not taken for damage the next time.

A batch is good if its CRC matches and its base offset, which the CRC does not cover, fits between
its neighbours. The leader epoch is not covered by the CRC either: a flipped bit in it goes
unnoticed.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from ottla.protocol.batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchError,
    RecordBatch,
    batch_size,
    unpack_header,
)

from .disk import read_json
from .log import Log
from .segment import Segment

GAPS_FILE = "gaps"
# A record may end in zeros, which look like the zeros that the file was extended by: up to so many.
_MAX_TRAILING_ZEROS = 64
_CHUNK_BYTES = 256 * 1024


@dataclass
class DamagedRange:
    """Bytes that were set aside."""

    segment: str
    position: int
    size: int
    saved_as: str


@dataclass
class RecoveryReport:
    """What opening a log found and repaired."""

    was_clean: bool
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    damaged_ranges: list[DamagedRange] = field(default_factory=list)


def read_gaps(directory: Path) -> list[list[int]]:
    """Read the gaps that damage has left in the offsets of a log, as [expected, found] pairs."""
    try:
        return read_json(directory / GAPS_FILE) or []
    except ValueError:
        return []


class SegmentRecovery:
    """Reads one segment again and repairs it.

    `following` is the next segment; None for the last. Producer states are updated from the offset
    of `snapshot` on.
    """

    def __init__(
        self,
        log: Log,
        segment: Segment,
        following: Segment | None,
        expected_offset: int,
        snapshot: int,
        report: RecoveryReport,
    ) -> None:
        self._log = log
        self._disk = log.disk
        self._segment = segment
        self._following = following
        self._expected_offset = expected_offset
        self._snapshot = snapshot
        self._report = report
        self._size = segment.path(".log").stat().st_size
        self._end = self._size
        self._damaged: list[tuple[int, int]] = []

    def run(self) -> None:
        """Verify all batches, set damaged ones aside, and truncate the rest."""
        segment, disk = self._segment, self._disk
        segment.reset()
        segment.size = segment.flushed_size = self._size
        position = self._scan_from(0)
        while position < self._size:
            start = position
            next_batch = self._find_next_batch(start)
            if next_batch is None:
                self._end_at(start)
                break
            self._damaged.append((start, next_batch))
            position = self._scan_from(next_batch)
        if self._damaged:
            self._set_aside()
        else:
            segment.size = self._end
        fd = disk.open(segment.path(".log"))
        try:
            disk.resize(fd, segment.size)
            disk.sync(fd)
        finally:
            disk.close(fd)
        segment.flushed_size = segment.size
        if self._following is not None:
            segment.seal()
            segment.flush()
            segment.close()

    def _scan_from(self, position: int) -> int:
        """Add good batches from a position on to the segment; return where they end."""
        segment, interval = self._segment, self._log.config.index_interval_bytes
        read_into, size = self._disk.read_into, self._size
        fd = self._disk.open(segment.path(".log"))
        buffer = bytearray(_CHUNK_BYTES)
        view = memoryview(buffer)
        start = filled = 0
        first_position = position
        expected, snapshot = self._expected_offset, self._snapshot
        update, add_batch = self._log.producer_states.update, segment.add_batch
        leader_epochs = self._log.leader_epochs
        current_epoch = leader_epochs.current
        try:
            while position + HEADER_BYTES <= size:
                at = position - start
                if at + HEADER_BYTES > filled or filled == 0:
                    start, at = position, 0
                    filled = read_into(fd, view, position)
                base, length, epoch, magic, crc, delta, timestamp, producer_id, _ = unpack_header(
                    view, at
                )
                total = LOG_OVERHEAD_BYTES + length
                if magic != 2 or total < HEADER_BYTES or position + total > size or base < expected:
                    break
                if at + total > filled:
                    if total > len(buffer):
                        view.release()
                        buffer = bytearray(total)
                        view = memoryview(buffer)
                    start, at = position, 0
                    filled = read_into(fd, view, position)
                if crc32c(view[at + CRC_COVERS_FROM : at + total]) != crc or delta < 0:
                    break
                self._expected_offset = expected
                if base > expected and not self._may_follow_a_gap(
                    position + total, base, base + delta
                ):
                    break
                if epoch > current_epoch:
                    leader_epochs.assign(epoch, base)
                    current_epoch = epoch
                add_batch(position, total, base, base + delta, timestamp, interval)
                if producer_id >= 0 and base >= snapshot:
                    update(RecordBatch(view[at : at + total]), base)
                expected = base + delta + 1
                position += total
        finally:
            self._disk.close(fd)
        self._report.scanned_bytes += position - first_position
        self._expected_offset = expected
        return position

    def _may_follow_a_gap(self, end: int, base_offset: int, last_offset: int) -> bool:
        """Whether a base offset that is larger than expected is right.

        Compaction leaves gaps, and so does damage that was set aside; else the offset is damaged.
        It is right if the next batch, at position `end`, fits after it. The last batch of a log has
        no next one. As the active segment is not compacted, there is no gap before it either,
        unless there was damage, which `gaps` records, or a compacted log was truncated.
        """
        header = self._segment.read(end, LOG_OVERHEAD_BYTES) if end < self._size else b""
        if len(header) == LOG_OVERHEAD_BYTES and batch_size(header) > LOG_OVERHEAD_BYTES:
            return int.from_bytes(header[:8], "big", signed=True) > last_offset
        if self._following is not None:
            return self._following.base_offset > last_offset
        is_known = [self._expected_offset, base_offset] in read_gaps(self._log.directory)
        return is_known or bool(self._damaged) or self._log.config.compacts

    def _find_next_batch(self, position: int) -> int | None:
        """Return the position of the next good batch after a damaged one; None if there is none."""
        # The CRC does not cover bytes 0 to 16 of a header. The upper half of the base offset is
        # known except for a carry, the length is positive, and the magic is 2.
        upper = self._expected_offset >> 32
        halves = {upper & 0xFFFFFFFF, (upper + 1) & 0xFFFFFFFF}
        choices = b"|".join(re.escape(half.to_bytes(4, "big")) for half in sorted(halves))
        pattern = re.compile(b"(?=(?:" + choices + rb").{4}[\x00-\x7f].{7}\x02)", re.DOTALL)
        window = position + 1
        while window < self._size:
            block = self._segment.read(window, _CHUNK_BYTES + HEADER_BYTES)
            for match in pattern.finditer(block):
                if match.start() < _CHUNK_BYTES and self._is_good(window + match.start()):
                    return window + match.start()
            window += _CHUNK_BYTES
        return None

    def _is_good(self, position: int) -> bool:
        header = self._segment.read(position, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return False
        base_offset = unpack_header(header, 0)[0]
        size = batch_size(header)
        if base_offset < self._expected_offset:
            return False
        if not HEADER_BYTES <= size <= self._size - position:
            return False
        try:
            RecordBatch(self._segment.read(position, size)).validate()
        except BatchError:
            return False
        return True

    def _end_at(self, position: int) -> None:
        """End the segment where nothing good follows.

        A torn write is truncated. A batch that is complete but wrong is set aside: complete by its
        length, or by its CRC, which does not cover the length.
        """
        content_end = self._end_of_content(position)
        content_size = content_end - position
        rest = self._segment.read(position, content_size + _MAX_TRAILING_ZEROS)
        complete_size = _complete_size(rest, content_size, self._size - position)
        self._end = position
        is_torn_write = self._following is None and self._is_start_of_next_batch(rest)
        if complete_size or not is_torn_write:
            damaged_end = position + max(complete_size, content_size)
            if damaged_end > position:
                self._damaged.append((position, damaged_end))
        else:
            self._report.truncated_bytes += content_size

    def _is_start_of_next_batch(self, rest: bytes) -> bool:
        """Whether these bytes are how the next batch would have started."""
        if len(rest) <= 16:
            return True
        return rest[16] == 2 and int.from_bytes(rest[:8], "big") == self._expected_offset

    def _end_of_content(self, position: int) -> int:
        """Return where the zeros start that the file was extended by."""
        end = self._size
        while end > position:
            start = max(position, end - _CHUNK_BYTES)
            content = self._segment.read(start, end - start).rstrip(b"\0")
            if content:
                return start + len(content)
            end = start
        return end

    def _set_aside(self) -> None:
        """Save the damaged bytes, and rewrite the segment without them."""
        segment, disk = self._segment, self._disk
        good, position = [], 0
        for start, stop in self._damaged:
            target = self._new_damaged_path(start)
            self._copy([(start, stop)], target)
            self._report.damaged_ranges.append(
                DamagedRange(segment.path(".log").name, start, stop - start, target.name)
            )
            good.append((position, start))
            position = stop
        good.append((position, max(position, self._end)))
        temporary = segment.path(".log.tmp")
        self._copy(good, temporary)
        segment.close()
        disk.rename(temporary, segment.path(".log"))
        disk.sync_directory(segment.directory)
        segment.reset()
        segment.size = segment.flushed_size = segment.path(".log").stat().st_size
        gaps, expected = read_gaps(segment.directory), segment.base_offset
        for batch in segment.batches():
            segment.add_batch(*batch, self._log.config.index_interval_bytes)
            if batch.base_offset > expected and [expected, batch.base_offset] not in gaps:
                gaps.append([expected, batch.base_offset])
            expected = batch.last_offset + 1
        disk.replace_file(self._log.directory / GAPS_FILE, json.dumps(gaps).encode())

    def _new_damaged_path(self, position: int) -> Path:
        """Return a path for damaged bytes that no earlier recovery has used."""
        target = self._segment.path(f".log.damaged-{position}")
        number = 2
        while target.exists():
            target = self._segment.path(f".log.damaged-{position}-{number}")
            number += 1
        return target

    def _copy(self, ranges: list[tuple[int, int]], target: Path) -> None:
        disk = self._disk
        fd = disk.open(target, create=True, empty=True)
        try:
            written = 0
            for start, stop in ranges:
                for position in range(start, stop, _CHUNK_BYTES):
                    chunk = self._segment.read(position, min(_CHUNK_BYTES, stop - position))
                    disk.write_all(fd, chunk, written)
                    written += len(chunk)
            disk.sync(fd)
        finally:
            disk.close(fd)


def _complete_size(rest: bytes, content_size: int, available: int) -> int:
    """Return the size of the complete but wrong batch that `rest` starts with; 0 if none."""
    if len(rest) < HEADER_BYTES:
        return 0
    crc = unpack_header(rest, 0)[4]
    for size in range(max(content_size, HEADER_BYTES), len(rest) + 1):
        if crc32c(rest[CRC_COVERS_FROM:size]) == crc:
            return size
    size = batch_size(rest)
    return size if HEADER_BYTES <= size <= available else 0
