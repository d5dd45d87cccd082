"""Opening a log: after a clean stop, and after any other.

After a clean stop files are believed. After a crash everything from the recovery point on is read
again, each batch checked, and indexes and producer states built anew. What is found to be wrong:

- the last segment ends in zeros, by which its file was longer than its content, or in a part of a
  batch, a write that was torn and never acknowledged. That is cut off;
- a batch is damaged. Its bytes are set aside in a file, `….log.damaged-POSITION`, the report says
  so, and the log goes on without them. What follows is good, and nobody said that it may go: there
  is a gap in the offsets then, which is noted in the file `gaps`, so that it can be told from
  damage the next time.

A batch is good if its CRC is, and if its offset, which the CRC does not cover, fits between those
of its neighbours. The leader epoch is not under the CRC either: a flipped bit in it goes unnoticed.
"""

from __future__ import annotations

import json
import logging
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path

from crc32c import crc32c

from ottla.protocol.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, BatchError, RecordBatch

from .config import LogConfig
from .disk import read_json
from .errors import StorageError
from .files import OpenFiles
from .log import DELETED, Log
from .producer_states import ProducerStates
from .segment import Segment

logger = logging.getLogger(__name__)

GAPS_FILE = "gaps"
# A record may end in zeros, which look like those that the file was lengthened by; in so many.
_TRAILING_ZEROS = 64
_CHUNK_BYTES = 256 * 1024
# Base offset, length, epoch, magic, CRC, last offset delta, max timestamp, producer id.
_HEADER = struct.Struct(">qiibI2xi8xqq")
_FILE_NAME = re.compile(r"(\d{20})\.(log|snapshot)")


@dataclass
class DamagedRange:
    """Bytes that were set aside."""

    segment: str
    position: int
    size: int
    saved_as: str


@dataclass
class RecoveryReport:
    """What opening a log found and did."""

    was_clean: bool
    scanned_bytes: int = 0
    truncated_bytes: int = 0
    damaged_ranges: list[DamagedRange] = field(default_factory=list)


def open_log(
    directory: Path, config: LogConfig, files: OpenFiles, *, recovery_point: int | None = None
) -> tuple[Log, RecoveryReport]:
    """Open a log, or make an empty one.

    `recovery_point` is the offset up to which the device is known to have everything; None says
    that the log was closed cleanly.
    """
    files.disk.make_directory(directory)
    opened = Log(directory, config, files)
    report = RecoveryReport(was_clean=recovery_point is None)
    try:
        _load(opened, recovery_point, report)
    except BaseException:
        for segment in opened.segments:
            segment.close()
        raise
    for damage in report.damaged_ranges:
        logger.error(
            "%s: %d damaged bytes at %d of %s are set aside in %s",
            directory.name,
            damage.size,
            damage.position,
            damage.segment,
            damage.saved_as,
        )
    return opened, report


def read_gaps(directory: Path) -> list[list[int]]:
    """Read which offsets of a log damage has left a gap between: [expected, found]."""
    try:
        return read_json(directory / GAPS_FILE) or []
    except ValueError:
        return []


def _load(opened: Log, recovery_point: int | None, report: RecoveryReport) -> None:
    for base in _tidy(opened):
        opened.adopt(Segment(opened.directory, base, opened.files))
    opened.load_start()
    if recovery_point is None:
        _load_clean(opened)
    else:
        _recover(opened, recovery_point, report)
    _guess_age(opened)
    opened.ensure_active()
    opened.leader_epochs.truncate(opened.end_offset)
    opened.recovery_point = opened.end_offset
    if opened.start_offset > opened.end_offset:
        opened.save_start(opened.end_offset)
    if report.was_clean and opened.snapshots[-1:] == [opened.end_offset]:
        opened.note_as_found()


def _tidy(opened: Log) -> list[int]:
    """Finish what a crash interrupted, and give the base offsets of the segments."""
    bases: list[int] = []
    for name in opened.disk.names(opened.directory):
        if name.endswith((DELETED, ".tmp", ".cleaned")):
            opened.disk.unlink(opened.directory / name)
        elif match := _FILE_NAME.fullmatch(name):
            (bases if match[2] == "log" else opened.snapshots).append(int(match[1]))
    return bases


def _load_clean(opened: Log) -> None:
    for segment, following in _with_next(opened.segments):
        size = segment.path(".log").stat().st_size
        next_offset = None if following is None else following.base_offset
        segment.load(size, next_offset, opened.config.index_interval_bytes)
    snapshot = _restore_producers(opened, opened.end_offset if opened.segments else 0)
    for segment in opened.segments:
        if segment.next_offset > snapshot:
            _replay_producers(opened, segment, snapshot)


def _guess_age(opened: Log) -> None:
    """Say since when the active segment has been filling, so that segment.ms means something."""
    if opened.segments and opened.active_segment.size:
        first = next(opened.active_segment.batches())
        written_ms = int(opened.active_segment.path(".log").stat().st_mtime * 1000)
        opened.active_segment.first_append_ms = max(0, min(first.max_timestamp, written_ms))


def _with_next(segments: list[Segment]) -> Iterator[tuple[Segment, Segment | None]]:
    return zip_longest(segments, segments[1:])


def _restore_producers(opened: Log, offset: int) -> int:
    """Load the last snapshot at or before an offset; give the offset that it is of."""
    for known in reversed(opened.snapshots):
        if known <= offset:
            path = opened.directory / f"{known:020d}.snapshot"
            try:
                opened.producer_states = ProducerStates.restore(path.read_bytes())
            except ValueError:
                logger.warning("%s: the snapshot of %d is damaged", opened.directory.name, known)
                continue
            return known
    opened.producer_states = ProducerStates()
    return 0


def _recover(opened: Log, recovery_point: int, report: RecoveryReport) -> None:
    segments = opened.segments
    # The segment that has the recovery point inside, and all behind it, are read again.
    first = max((n for n, s in enumerate(segments) if s.base_offset <= recovery_point), default=0)
    for n, segment in enumerate(segments[:first]):
        if not _can_be_believed(opened, segment, segments[n + 1].base_offset):
            first = n
            break
    snapshot = _restore_producers(opened, recovery_point)
    for segment in segments[:first]:
        if segment.next_offset > snapshot:
            _replay_producers(opened, segment, snapshot)
    expected = segments[first].base_offset if segments else 0
    for n in range(first, len(segments)):
        is_last = n == len(segments) - 1
        _Scan(opened, segments[n], expected, snapshot, report, is_last=is_last).run()
        expected = segments[n].next_offset
        if not is_last:
            expected = max(expected, segments[n + 1].base_offset)


def _can_be_believed(opened: Log, segment: Segment, next_offset: int) -> bool:
    """Load a segment that the device should have had whole, and see whether it has."""
    size = segment.path(".log").stat().st_size
    try:
        segment.load(size, next_offset, opened.config.index_interval_bytes)
    except StorageError:
        return False
    return segment.ends_well()


def _replay_producers(opened: Log, segment: Segment, snapshot: int) -> None:
    """Take batches into account that lie between the snapshot and the recovery point."""
    start = segment.find(snapshot)
    if start is None:
        return
    for place in segment.batches(start.position):
        batch = RecordBatch(segment.read(place.position, place.size))
        if batch.producer_id >= 0:
            opened.producer_states.update(batch, batch.base_offset)


def _whole_size(rest: bytes, content: int, room: int) -> int:
    """Give the size of the batch that these bytes are, though a wrong one; 0 if they are none."""
    if len(rest) < HEADER_BYTES:
        return 0
    (crc,) = struct.unpack_from(">I", rest, 17)
    for size in range(max(content, HEADER_BYTES), len(rest) + 1):
        if crc32c(rest[21:size]) == crc:
            return size
    total = LOG_OVERHEAD_BYTES + int.from_bytes(rest[8:12], "big", signed=True)
    return total if HEADER_BYTES <= total <= room else 0


class _Scan:
    """Reads one segment again, and mends it."""

    def __init__(
        self,
        opened: Log,
        segment: Segment,
        expected: int,
        snapshot: int,
        report: RecoveryReport,
        *,
        is_last: bool,
    ) -> None:
        self.opened = opened
        self.segment = segment
        self.expected = expected
        self.snapshot = snapshot
        self.report = report
        self.is_last = is_last
        self.size = segment.path(".log").stat().st_size
        self.end = self.size
        self.bad: list[tuple[int, int]] = []

    def run(self) -> None:
        segment, disk = self.segment, self.opened.disk
        segment.forget_indexes()
        segment.size = segment.flushed_size = self.size
        position = self._scan_from(0)
        while position < self.size:
            start = position
            found = self._next_good(start)
            if found is None:
                self._end_at(start)
                break
            self.bad.append((start, found))
            position = self._scan_from(found)
        if self.bad:
            self._set_aside()
        else:
            segment.size = self.end
        fd = disk.open(segment.path(".log"))
        try:
            disk.resize(fd, segment.size)
            disk.sync(fd)
        finally:
            disk.close(fd)
        segment.flushed_size = segment.size
        if not self.is_last:
            segment.seal()
            segment.flush()
            segment.close()

    def _scan_from(self, position: int) -> int:
        """Take in good batches from a position on; give where they end."""
        segment, interval = self.segment, self.opened.config.index_interval_bytes
        read_into, size = self.opened.disk.read_into, self.size
        fd = self.opened.disk.open(segment.path(".log"))
        buffer = bytearray(_CHUNK_BYTES)
        view = memoryview(buffer)
        start = filled = 0
        began = position
        expected, snapshot = self.expected, self.snapshot
        update, unpack = self.opened.producer_states.update, _HEADER.unpack_from
        epochs, take = self.opened.leader_epochs, segment.take
        known_epoch = epochs.current
        try:
            while position + HEADER_BYTES <= size:
                at = position - start
                if at + HEADER_BYTES > filled or filled == 0:
                    start, at = position, 0
                    filled = read_into(fd, view, position)
                base, length, epoch, magic, crc, delta, timestamp, producer = unpack(view, at)
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
                if crc32c(view[at + 21 : at + total]) != crc or delta < 0:
                    break
                self.expected = expected
                if base > expected and not self._may_leave_a_gap(
                    position + total, base, base + delta
                ):
                    break
                if epoch > known_epoch:
                    epochs.assign(epoch, base)
                    known_epoch = epoch
                take(position, total, base, base + delta, timestamp, interval)
                if producer >= 0 and base >= snapshot:
                    update(RecordBatch(view[at : at + total]), base)
                expected = base + delta + 1
                position += total
        finally:
            self.opened.disk.close(fd)
        self.report.scanned_bytes += position - began
        self.expected = expected
        return position

    def _may_leave_a_gap(self, following: int, base_offset: int, last_offset: int) -> bool:
        """Whether a batch whose offset is larger than expected is where it should be.

        Compaction leaves gaps, and so does damage that is set aside; or the offset is wrong. It is
        right if the next batch fits behind it. The last batch of all has none, and as active
        segments are not compacted no gap before it either, unless there was damage, of which there
        is a note, or a compacted log was truncated.
        """
        header = self.segment.read(following, LOG_OVERHEAD_BYTES) if following < self.size else b""
        if len(header) == LOG_OVERHEAD_BYTES:
            base, length = struct.unpack(">qi", header)
            if length > 0:
                return bool(base > last_offset)
        if not self.is_last:
            at = self.opened.segments.index(self.segment)
            return self.opened.segments[at + 1].base_offset > last_offset
        known = [self.expected, base_offset] in read_gaps(self.opened.directory)
        return known or bool(self.bad) or self.opened.config.compacts

    def _next_good(self, position: int) -> int | None:
        """Find the next good batch behind a bad one, if there is any."""
        # Bytes 0 to 16 of a header are not under the CRC. The upper half of the offset is known,
        # but for a carry; the length is positive; the magic is 2.
        upper = {(self.expected >> 32) & 0xFFFFFFFF, ((self.expected >> 32) + 1) & 0xFFFFFFFF}
        choices = b"|".join(re.escape(half.to_bytes(4, "big")) for half in sorted(upper))
        pattern = re.compile(b"(?=(?:" + choices + rb").{4}[\x00-\x7f].{7}\x02)", re.DOTALL)
        window = position + 1
        while window < self.size:
            block = self.segment.read(window, _CHUNK_BYTES + HEADER_BYTES)
            for match in pattern.finditer(block):
                if match.start() < _CHUNK_BYTES and self._is_good(window + match.start()):
                    return window + match.start()
            window += _CHUNK_BYTES
        return None

    def _is_good(self, position: int) -> bool:
        header = self.segment.read(position, HEADER_BYTES)
        if len(header) < HEADER_BYTES:
            return False
        base, length = struct.unpack_from(">qi", header)
        total = LOG_OVERHEAD_BYTES + length
        if base < self.expected or not HEADER_BYTES <= total <= self.size - position:
            return False
        try:
            RecordBatch(self.segment.read(position, total)).validate()
        except BatchError:
            return False
        return True

    def _end_at(self, position: int) -> None:
        """End the segment where nothing good follows.

        A write that was torn is cut off. A batch that is whole, and wrong, is set aside: whole by
        its length, or by its CRC, which does not cover the length.
        """
        content = self._end_of_content(position)
        rest = self.segment.read(position, content - position + _TRAILING_ZEROS)
        whole = _whole_size(rest, content - position, self.size - position)
        self.end = position
        if whole or not self.is_last or not self._is_beginning(rest):
            content = position + max(whole, content - position)
            if content > position:
                self.bad.append((position, content))
        else:
            self.report.truncated_bytes += content - position

    def _is_beginning(self, rest: bytes) -> bool:
        """Whether these bytes are how the next batch would have begun."""
        if len(rest) <= 16:
            return True
        return rest[16] == 2 and int.from_bytes(rest[:8], "big") == self.expected

    def _end_of_content(self, position: int) -> int:
        """Give where the zeros begin that the file was lengthened by."""
        end = self.size
        while end > position:
            start = max(position, end - _CHUNK_BYTES)
            content = self.segment.read(start, end - start).rstrip(b"\0")
            if content:
                return start + len(content)
            end = start
        return end

    def _set_aside(self) -> None:
        """Save the bad bytes, and write the segment again without them."""
        segment, disk = self.segment, self.opened.disk
        good, position = [], 0
        for start, stop in self.bad:
            target = self._new_name(start)
            self._copy([(start, stop)], target)
            damage = DamagedRange(segment.path(".log").name, start, stop - start, target.name)
            self.report.damaged_ranges.append(damage)
            good.append((position, start))
            position = stop
        good.append((position, max(position, self.end)))
        temporary = segment.path(".log.tmp")
        self._copy(good, temporary)
        segment.close()
        disk.rename(temporary, segment.path(".log"))
        disk.sync_directory(segment.directory)
        segment.forget_indexes()
        segment.size = segment.flushed_size = segment.path(".log").stat().st_size
        gaps, expected = read_gaps(segment.directory), segment.base_offset
        for batch in segment.batches():
            segment.note(batch, self.opened.config.index_interval_bytes)
            if batch.base_offset > expected and [expected, batch.base_offset] not in gaps:
                gaps.append([expected, batch.base_offset])
            expected = batch.last_offset + 1
        disk.replace_file(self.opened.directory / GAPS_FILE, json.dumps(gaps).encode())

    def _new_name(self, position: int) -> Path:
        """Name a file for bytes of a position, not one that earlier damage was saved under."""
        target = self.segment.path(f".log.damaged-{position}")
        number = 2
        while target.exists():
            target = self.segment.path(f".log.damaged-{position}-{number}")
            number += 1
        return target

    def _copy(self, ranges: list[tuple[int, int]], target: Path) -> None:
        disk = self.opened.disk
        fd = disk.open(target, create=True, empty=True)
        try:
            written = 0
            for start, stop in ranges:
                for position in range(start, stop, _CHUNK_BYTES):
                    chunk = self.segment.read(position, min(_CHUNK_BYTES, stop - position))
                    disk.write_all(fd, chunk, written)
                    written += len(chunk)
            disk.sync(fd)
        finally:
            disk.close(fd)
