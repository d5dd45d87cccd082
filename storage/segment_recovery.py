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
import logging
import os
import re
from collections.abc import Iterator
from contextlib import suppress
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

from .damaged_segment import DamagedSegment
from .disk import NO_SPACE_ERRORS, read_json
from .log import Log
from .segment import Segment

logger = logging.getLogger(__name__)

GAPS_FILE = "gaps"
# A record may end in zeros, which look like the zeros that the file was extended by: up to so many.
_MAX_TRAILING_ZEROS = 4096
_CHUNK_BYTES = 256 * 1024
# CRCs of possible batches in a damaged range may cover so many times its size.
_CRC_BUDGET = 8
#: The largest batch that a damaged length is looked for.
_MAX_BATCH_BYTES = 64 * 1024 * 1024


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
    #: Whether there was no segment: the log was created, or its files are lost.
    was_empty: bool = False
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
        # Before recovery changes the file.
        self._append_ms = segment.last_append_time()
        self._end = self._size
        self._damaged: list[tuple[int, int]] = []
        #: Offsets from here on are not in this segment; indexes have relative offsets of 31 bits.
        self._end_offset = (
            segment.base_offset + 2**31 if following is None else following.base_offset
        )
        self._content_end = -1
        self._anchors = segment.indexes.read_offset_entries()[::-1]

    def run(self) -> None:
        """Verify all batches, set damaged ones aside, and truncate the rest."""
        segment, disk = self._segment, self._disk
        segment.reset()
        segment.transactions.replace([])
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
        buffer = bytearray(_CHUNK_BYTES)
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
                if base > expected and not self._may_follow_a_gap(
                    position + total, base, base + delta
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
        """Return where the batch after a damaged one starts; None if there is none.

        A record may contain batches, so that a good batch is not enough. In this order:

        1. The header of the damaged batch is plausible, so its length is: the damage is elsewhere.
        2. Its CRC matches up to the start of another batch: the damage is in bytes 0 to 16.
        3. The first good batch that another batch, the end of the log or a hole follows, before
           the next batch that the index points to. CRCs are computed over a limited number of
           bytes, because a value can be made of headers.
        """
        stored = self._segment.read(position, HEADER_BYTES)
        content_end = self._end_of_content()
        trusted_from = position + 1
        length_end = position + batch_size(stored) if len(stored) == HEADER_BYTES else 0
        header = self._plausible_header(position)
        if position + HEADER_BYTES <= length_end < content_end:
            if header is not None and self._is_followed(*header):
                return length_end
            if self._is_good(length_end):
                return length_end
        is_tail = content_end <= length_end <= min(content_end + _MAX_TRAILING_ZEROS, self._size)
        if header is not None or is_tail:
            trusted_from = length_end
        if self._complete_size(position, content_end):
            return None
        anchor, anchor_offset = self._next_anchor(position)
        covered = position + CRC_COVERS_FROM
        crc = 0
        budget = _CRC_BUDGET * (anchor - position) + _CHUNK_BYTES
        first: int | None = None
        for candidate in self._headers_between(position + 1, anchor):
            found = self._plausible_header(candidate)
            if found is None or self._base_offset_at(candidate) >= anchor_offset:
                continue
            if candidate > position + HEADER_BYTES and candidate - position <= _MAX_BATCH_BYTES:
                crc, covered = self._crc(covered, candidate, crc), candidate
                if crc == unpack_header(stored, 0)[4]:
                    return candidate
            if first is None and budget > 0 and candidate >= trusted_from:
                end, last_offset = found
                if self._is_followed(end, last_offset) or self._is_zero(end):
                    budget -= end - candidate
                    first = candidate if self._is_good(candidate) else None
            if first is not None and candidate - position > _MAX_BATCH_BYTES:
                break
        if first is not None:
            return first
        return anchor if anchor < self._size else None

    def _plausible_header(self, position: int) -> tuple[int, int] | None:
        """Return end and last offset of the batch at a position, if its header may be right."""
        block = self._segment.read(position, HEADER_BYTES)
        if len(block) < HEADER_BYTES:
            return None
        base, length, _epoch, magic, _crc, delta, _timestamp, _id, _ = unpack_header(block, 0)
        end = position + LOG_OVERHEAD_BYTES + length
        attributes = int.from_bytes(block[21:23], "big")
        record_count = int.from_bytes(block[57:61], "big", signed=True)
        is_plausible = (
            magic == 2
            and position + HEADER_BYTES <= end <= self._size
            and self._expected_offset <= base
            and base + delta < self._end_offset
            and 0 <= record_count <= delta + 1
            and (record_count == delta + 1 or self._log.config.compacts)
            and attributes < 128
            and attributes & 7 <= 4
        )
        return (end, base + delta) if is_plausible else None

    def _base_offset_at(self, position: int) -> int:
        return int.from_bytes(self._segment.read(position, 8), "big", signed=True)

    def _is_followed(self, end: int, last_offset: int) -> bool:
        """Whether a batch may start at `end`, right after `last_offset`, or the segment ends."""
        if end == self._size:
            return True
        if self._plausible_header(end) is None:
            return False
        base_offset = self._base_offset_at(end)
        # After compaction, and damage, there are gaps.
        may_have_gap = self._log.config.compacts or self._is_good(end)
        return base_offset == last_offset + 1 or (base_offset > last_offset and may_have_gap)

    def _is_zero(self, position: int) -> bool:
        """Whether the file has zeros where the next header would be, or ends there."""
        return not self._segment.read(position, HEADER_BYTES).strip(b"\0")

    def _next_anchor(self, position: int) -> tuple[int, int]:
        """Return position and base offset of the next good batch that the old index points to."""
        while self._anchors:
            relative_offset, anchor = self._anchors[-1]
            base_offset = self._segment.base_offset + relative_offset
            if (
                position < anchor < self._size
                and base_offset > self._expected_offset
                and self._base_offset_at(anchor) == base_offset
                and self._is_good(anchor)
            ):
                return anchor, base_offset
            self._anchors.pop()
        return self._size, self._end_offset

    def _headers_between(self, start: int, stop: int) -> Iterator[int]:
        """Yield the positions that have the magic byte and base offset of a possible batch."""
        # The upper half of the base offset is known except for a carry, the length is positive.
        upper = self._expected_offset >> 32
        halves = {upper & 0xFFFFFFFF, (upper + 1) & 0xFFFFFFFF}
        choices = b"|".join(re.escape(half.to_bytes(4, "big")) for half in sorted(halves))
        # It starts with the magic byte, for which the regex engine looks quickly in zeros.
        pattern = re.compile(rb"\x02(?<=(?:" + choices + rb").{4}[\x00-\x7f].{7}\x02)", re.DOTALL)
        for window in self._data_chunks(start, stop):
            block = self._segment.read(window, _CHUNK_BYTES + HEADER_BYTES)
            for match in pattern.finditer(block):
                candidate = window + match.start() - 16
                if candidate < min(window + _CHUNK_BYTES, stop):
                    yield candidate

    def _data_chunks(self, start: int, stop: int) -> Iterator[int]:
        """Yield the start of each chunk that is not in a hole."""
        fd = self._disk.open(self._segment.path(".log"))
        try:
            position = start
            while position < stop:
                data = self._disk.next_data(fd, position, stop)
                # A batch may start in a hole: its base offset and length begin with zeros.
                position = max(position, data - HEADER_BYTES)
                if data < stop:
                    yield position
                    position += _CHUNK_BYTES
                else:
                    break
        finally:
            self._disk.close(fd)

    def _crc(self, start: int, stop: int, crc: int) -> int:
        """Continue a CRC over a range of the file."""
        for position in range(start, stop, _CHUNK_BYTES):
            crc = crc32c(self._segment.read(position, min(_CHUNK_BYTES, stop - position)), crc)
        return crc

    def _is_good(self, position: int) -> bool:
        header = self._plausible_header(position)
        if header is None:
            return False
        try:
            RecordBatch(self._segment.read(position, header[0] - position)).validate()
        except BatchError:
            return False
        return True

    def _end_at(self, position: int) -> None:
        """End the segment where nothing good follows.

        A torn write is truncated. A batch that is complete but wrong is set aside: complete by its
        length, or by its CRC, which does not cover the length.
        """
        content_end = max(position, self._end_of_content())
        content_size = content_end - position
        rest = self._segment.read(position, HEADER_BYTES)
        complete_size = self._complete_size(position, content_end)
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

    def _complete_size(self, position: int, content_end: int) -> int:
        """Return the size of the batch at a position that is complete by its CRC; 0 if not.

        It ends with the content of the file, except for zeros at the end of its last record.
        """
        end = max(content_end, position + HEADER_BYTES)
        if end > self._size:
            return 0
        stored = unpack_header(self._segment.read(position, HEADER_BYTES), 0)[4]
        crc = self._crc(position + CRC_COVERS_FROM, end, 0)
        last = min(content_end + _MAX_TRAILING_ZEROS, self._size)
        while crc != stored and end < last:
            crc = crc32c(b"\0", crc)
            end += 1
        return end - position if crc == stored else 0

    def _is_start_of_next_batch(self, rest: bytes) -> bool:
        """Whether these bytes are how the next batch would have started."""
        if len(rest) <= 16:
            return True
        return rest[16] == 2 and int.from_bytes(rest[:8], "big") == self._expected_offset

    def _end_of_content(self) -> int:
        """Return where the zeros start that the file was extended by."""
        if self._content_end < 0:
            self._content_end = 0
            for start in reversed(list(self._data_chunks(0, self._size))):
                content = self._segment.read(start, _CHUNK_BYTES).rstrip(b"\0")
                if content:
                    self._content_end = start + len(content)
                    break
        return self._content_end

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
                for position in range(start, stop, _CHUNK_BYTES):
                    chunk = self._segment.read(position, min(_CHUNK_BYTES, stop - position))
                    disk.write_all(fd, chunk, written)
                    written += len(chunk)
            disk.sync(fd)
        finally:
            disk.close(fd)
