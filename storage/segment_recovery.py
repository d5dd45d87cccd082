"""Recovery of one segment after a crash: verify each batch, and repair what is wrong.

- The last segment ends in zeros, because its file was longer than its content, or in part of a
  batch: a torn write that was never acknowledged. Both are truncated.
- A batch is damaged. Its bytes are set aside in a file, `….log.damaged-POSITION`, the report lists
  them, and the log continues without them: what follows is good and must not be lost. That leaves a
  gap in the offsets. The file `gaps` records it, so that it is not taken for damage the next time.
  `next_batch` finds what follows.

A batch is good if its CRC matches and its base offset, which the CRC does not cover, fits between
its neighbours. The leader epoch is not covered by the CRC either: a flipped bit in it goes
unnoticed.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from crc32c import crc32c

from ottla.protocol.batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    RecordBatch,
    batch_size,
    unpack_header,
)

from .damaged_segment import DamagedSegment
from .disk import NO_SPACE_ERRORS, read_json
from .log import Log
from .next_batch import CHUNK_BYTES, BatchFinder, NextBatch
from .segment import Segment

logger = logging.getLogger(__name__)

GAPS_FILE = "gaps"
#: So many batches are asked whether a gap in the offsets is right.
_MAX_WITNESSES = 5


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
    #: Whether it ends before what was durable, without damaged bytes that would explain it.
    has_lost_records: bool = False
    #: Why damaged bytes could not be set aside: there is no space. The log only serves reads.
    space_error: OSError | None = None


def read_gaps(directory: Path) -> list[list[int]]:
    """Read the gaps that damage has left in the offsets of a log, as [expected, found] pairs."""
    try:
        return read_json(directory / GAPS_FILE) or []
    except ValueError:
        return []


def add_gap(log: Log, expected: int, found: int) -> bool:
    """Remember a gap in the offsets of a log; return whether it is new. Raises OSError."""
    gaps = read_gaps(log.directory)
    if [expected, found] in gaps:
        return False
    content = json.dumps([*gaps, [expected, found]]).encode()
    log.disk.replace_file(log.directory / GAPS_FILE, content)
    return True


class SegmentRecovery:
    """Reads one segment again and repairs it.

    `following` is the next segment; None for the last. Producer states are updated from the offset
    of `snapshot` on. What is before the recovery point is durable.
    """

    def __init__(
        self,
        log: Log,
        segment: Segment,
        following: Segment | None,
        expected_offset: int,
        snapshot: int,
        recovery_point: int,
        report: RecoveryReport,
    ) -> None:
        self._log = log
        self._disk = log.disk
        self._segment = segment
        self._following = following
        self._expected_offset = expected_offset
        self._snapshot = snapshot
        self._recovery_point = recovery_point
        self._report = report
        self._size = segment.path(".log").stat().st_size
        # Before recovery changes the file.
        self._append_ms = segment.last_append_time()
        self._end = self._size
        self._damaged: list[tuple[int, int]] = []
        #: Offsets from here on are not in this segment; indexes have relative offsets of 31 bits.
        self._end_offset = (
            segment.base_offset + 2**31 if following is None else following.base_offset
        )
        has_gaps = log.config.compacts
        self._finder = BatchFinder(
            log.disk, segment, self._size, self._end_offset, has_gaps=has_gaps
        )
        # Where the batch after a damaged one starts, and the offsets it may have.
        self._resumed = NextBatch(-1, None)

    def run(self) -> None:
        """Verify all batches, set damaged ones aside, and truncate the rest."""
        segment, disk = self._segment, self._disk
        segment.reset()
        segment.transactions.replace([])
        segment.size = segment.flushed_size = self._size
        position = self._scan_from(0)
        while position < self._size:
            start = position
            offsets: frozenset[int] | None = frozenset((self._expected_offset,))
            if start == self._resumed.position:
                offsets = self._resumed.offsets
            next_batch = self._finder.find(start, self._expected_offset, offsets)
            if next_batch is None:
                self._end_at(start)
                break
            self._resumed = next_batch
            self._damaged.append((start, next_batch.position))
            position = self._scan_from(next_batch.position)
        if self._damaged:
            try:
                self._set_aside()
            except OSError as error:
                if error.errno not in NO_SPACE_ERRORS:
                    raise
                self._report.space_error = error
                self._skip_damaged()
                return
        else:
            segment.size = self._end
        if self._damaged or segment.size < self._size or segment.next_offset > self._recovery_point:
            fd = disk.open(segment.path(".log"))
            try:
                disk.resize(fd, segment.size)
                # It remains the time of the last append, however often recovery is repeated.
                disk.set_modification_time(fd, self._append_ms)
                disk.sync(fd)
            finally:
                disk.close(fd)
        segment.set_durable_size(segment.size)
        if self._following is not None:
            try:
                segment.seal()
                segment.flush()
                segment.close()
            except OSError as error:
                if error.errno not in NO_SPACE_ERRORS:
                    raise
                logger.warning("%s: indexes not saved: %s", segment.path(".log"), error)
                self._log.seal_in_memory(segment)

    def _scan_from(self, position: int) -> int:
        """Add good batches from a position on to the segment; return where they end."""
        segment, interval = self._segment, self._log.config.index_interval_bytes
        read_into, size = self._disk.read_into, self._size
        fd = self._disk.open(segment.path(".log"))
        buffer = bytearray(CHUNK_BYTES)
        view = memoryview(buffer)
        start = filled = 0
        first_position = position
        expected, snapshot = self._expected_offset, self._snapshot
        append_ms = self._append_ms
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
                is_resumed = position == self._resumed.position
                if (base > expected or is_resumed) and not self._may_follow_a_gap(
                    position, position + total, base, base + delta
                ):
                    break
                if epoch > current_epoch:
                    leader_epochs.assign(epoch, base)
                    current_epoch = epoch
                add_batch(position, total, base, base + delta, timestamp, interval)
                if producer_id >= 0 and base >= snapshot:
                    aborted = update(RecordBatch(view[at : at + total]), base, append_ms)
                    if aborted is not None:
                        segment.transactions.add(aborted)
                expected = base + delta + 1
                position += total
        finally:
            self._disk.close(fd)
        self._report.scanned_bytes += position - first_position
        self._expected_offset = expected
        return position

    def _may_follow_a_gap(
        self, position: int, end: int, base_offset: int, last_offset: int
    ) -> bool:
        """Whether a base offset that is larger than expected, or after damage, is right.

        Compaction leaves gaps, and so does damage that was set aside; else the offset is damaged.
        It is right if it is as far from the last good one as the damaged headers between say, or if
        the next batch, at position `end`, fits after it. The last batch of a log has no next one.
        As the active segment is not compacted, there is no gap before it either, unless there was
        damage, which `gaps` records, or a compacted log was truncated.
        """
        if last_offset >= self._end_offset:
            return False
        compacts = self._log.config.compacts
        is_resumed = position == self._resumed.position
        offsets = self._resumed.offsets if is_resumed and not compacts else None
        if offsets is not None and base_offset in offsets:
            return True
        header = self._segment.read(end, LOG_OVERHEAD_BYTES) if end < self._size else b""
        if len(header) == LOG_OVERHEAD_BYTES and batch_size(header) > LOG_OVERHEAD_BYTES:
            next_offset = int.from_bytes(header[:8], "big", signed=True)
            if offsets is not None:
                return next_offset == last_offset + 1 and self._finder.is_good(end)
            is_certain = not compacts and not is_resumed
            fits = self._is_before_others(end, last_offset, is_certain=is_certain)
            return fits or self._is_known_gap(base_offset)
        if self._following is not None:
            return self._following.base_offset > last_offset
        is_explained = compacts or (is_resumed and offsets is None)
        return is_explained or (offsets is None and self._is_known_gap(base_offset))

    def _is_known_gap(self, base_offset: int) -> bool:
        return [self._expected_offset, base_offset] in read_gaps(self._log.directory)

    def _is_before_others(self, position: int, offset: int, *, is_certain: bool) -> bool:
        """Whether an offset is less than those of the next batches, or most of them.

        Neighbours with damaged offsets may fit to each other. If the next batch is damaged, nothing
        is certain.
        """
        header = self._segment.read(position, LOG_OVERHEAD_BYTES)
        is_less = int.from_bytes(header[:8], "big", signed=True) > offset
        witnesses: list[bool] = []
        while len(witnesses) < _MAX_WITNESSES and self._finder.is_good(position):
            header = self._segment.read(position, LOG_OVERHEAD_BYTES)
            witnesses.append(int.from_bytes(header[:8], "big", signed=True) > offset)
            position += batch_size(header)
        if not witnesses:
            return is_less and not is_certain
        return is_less and 2 * sum(witnesses) >= len(witnesses)

    def _end_at(self, position: int) -> None:
        """End the segment where nothing good follows.

        A torn write is truncated. A batch that is complete but wrong is set aside: complete by its
        length, or by its CRC, which does not cover the length.
        """
        content_end = max(position, self._finder.end_of_content())
        content_size = content_end - position
        rest = self._segment.read(position, HEADER_BYTES)
        complete_size = self._finder.complete_size(position)
        if not complete_size and len(rest) == HEADER_BYTES:
            size = batch_size(rest)
            complete_size = size if HEADER_BYTES <= size <= self._size - position else 0
        self._end = position
        is_torn_write = self._following is None and self._is_start_of_next_batch(
            rest[:content_size]
        )
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

    def _set_aside(self) -> None:
        """Save the damaged bytes, and rewrite the segment without them."""
        segment, disk = self._segment, self._disk
        good, position = [], 0
        ranges: list[DamagedRange] = []
        temporary = segment.path(".log.tmp")
        copies = [temporary]
        try:
            for start, stop in self._damaged:
                target = self._new_damaged_path(start)
                copies.append(target)
                self._copy([(start, stop)], target)
                ranges.append(
                    DamagedRange(segment.path(".log").name, start, stop - start, target.name)
                )
                good.append((position, start))
                position = stop
            good.append((position, max(position, self._end)))
            self._copy(good, temporary)
            # Before the rename: a recovery that is repeated knows the gaps that this one made.
            self._save_gaps(temporary)
        except OSError:
            # The segment is unchanged, and the next attempt makes other copies: on a full disk
            # these would take what space there is.
            for copy in copies:
                with suppress(OSError):
                    disk.unlink(copy)
            raise
        self._report.damaged_ranges += ranges
        segment.close()
        disk.rename(temporary, segment.path(".log"))
        disk.sync_directory(segment.directory)
        segment.reset()
        segment.size = segment.flushed_size = segment.path(".log").stat().st_size
        for batch in segment.batches():
            segment.add_batch(*batch, self._log.config.index_interval_bytes)

    def _skip_damaged(self) -> None:
        """Leave the file as it is, for reads that skip what is damaged."""
        interval = self._log.config.index_interval_bytes
        self._segment.close()
        damaged = DamagedSegment(self._segment, self._end, self._damaged, interval)
        self._log.segments.replace([self._segment], damaged)

    def _save_gaps(self, path: Path) -> None:
        """Add the gaps between the offsets of the batches in a file to those of the log."""
        gaps, expected = read_gaps(self._log.directory), self._segment.base_offset
        with path.open("rb") as file:
            while len(header := file.read(HEADER_BYTES)) == HEADER_BYTES:
                base_offset, length, _, _, _, last_offset_delta, *_ = unpack_header(header, 0)
                if base_offset > expected and [expected, base_offset] not in gaps:
                    gaps.append([expected, base_offset])
                expected = base_offset + last_offset_delta + 1
                file.seek(LOG_OVERHEAD_BYTES + length - HEADER_BYTES, os.SEEK_CUR)
        self._disk.replace_file(self._log.directory / GAPS_FILE, json.dumps(gaps).encode())

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
                for position in range(start, stop, CHUNK_BYTES):
                    chunk = self._segment.read(position, min(CHUNK_BYTES, stop - position))
                    disk.write_all(fd, chunk, written)
                    written += len(chunk)
            disk.sync(fd)
        finally:
            disk.close(fd)
