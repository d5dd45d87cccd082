"""Where the next batch starts after a damaged one, as recovery looks for it.

A record may contain batches, whole and with a CRC that matches, so that a good batch is not enough:
it may be part of the damaged one, and clients decide what is in a record. Several bits may have
flipped, in neighbouring batches too. What says where the damaged batch ends, the strongest first:

1. Its CRC matches up to there: the damage is in bytes 0 to 16, which the CRC does not cover.
2. Its records, if they are not compressed, do: the lengths of a record and of its fields agree.
3. Its length, if the next batch is where it says, or the content of the file ends there.
4. The index points to a good batch.
5. A good batch starts a chain of batches without a gap, to a batch that the index points to or to
   the end of the file. A batch in a record is followed by the rest of that record.

If a chain ends in the zeros that the file was extended by, it may be part of the last batch, whose
record ends in a zero. It is taken if the damaged bytes do not look like the header of a batch in
which a few bits have flipped: something else was written there, and it has no length to go by.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple

from crc32c import crc32c

from ottla.protocol.batch import (
    CRC_COVERS_FROM,
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    BatchError,
    RecordBatch,
    unpack_header,
)
from ottla.protocol.records import MIN_RECORD_BYTES, Record, decode_as

if TYPE_CHECKING:
    from .disk import Disk
    from .segment import Segment

# A record may end in zeros, which look like the zeros that the file was extended by: up to so many.
MAX_TRAILING_ZEROS = 4096
CHUNK_BYTES = 256 * 1024
# CRCs of possible batches in a damaged range may cover so many times its size.
_CRC_BUDGET = 8
#: The largest batch that a damaged length is looked for.
_MAX_BATCH_BYTES = 64 * 1024 * 1024
#: So many bits of a length may have flipped.
_FLIPPED_LENGTH_BITS = 2
#: So many bits of the fields of a header that are known may have flipped.
_FLIPPED_HEADER_BITS = 3
#: So many possible offsets of a batch are kept, if the header of the one before it is damaged.
_MAX_OFFSETS = 8
_MAX_REMEMBERED = 100_000
_WINDOW_BYTES = 64 * 1024
_WINDOW_MASK = -_WINDOW_BYTES
_MAX_WINDOWS = 8
_LONGEST_VARINT = 5
#: So many zeros may end a batch whose length is known but for a few bits.
_FEW_ZEROS = 16


class _Header(NamedTuple):
    """The header of a batch that may be damaged."""

    base_offset: int
    size: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    record_count: int

    @classmethod
    def read(cls, block: bytes) -> _Header:
        base, length, _epoch, magic, crc, delta, _time, _id, count = unpack_header(block, 0)
        attributes = int.from_bytes(block[21:23], "big")
        return cls(base, LOG_OVERHEAD_BYTES + length, magic, crc, attributes, delta, count)

    @property
    def counts(self) -> set[int]:
        """The number of its records, as two fields have it."""
        return {count for count in (self.record_count, self.last_offset_delta + 1) if count > 0}

    @property
    def has_right_count(self) -> bool:
        """Whether one of the counts is right, unless more than one bit has flipped in both."""
        last = self.record_count - 1
        return (last ^ self.last_offset_delta).bit_count() <= 1 or (
            self.record_count ^ (self.last_offset_delta + 1)
        ).bit_count() <= 1


class _Span(NamedTuple):
    """A batch whose header may be right."""

    end: int
    base_offset: int
    last_offset: int


class NextBatch(NamedTuple):
    """Where the batch after a damaged one starts, and the offsets it may have; None: any."""

    position: int
    offsets: frozenset[int] | None


class BatchFinder:
    """Finds batches in a segment of which some are damaged."""

    def __init__(
        self,
        disk: Disk,
        segment: Segment,
        size: int,
        end_offset: int,
        *,
        has_gaps: bool,
    ) -> None:
        self._disk = disk
        self._segment = segment
        self._size = size
        #: Offsets from here on are not in this segment.
        self._end_offset = end_offset
        # Whether batches may follow each other with a gap: after compaction.
        self._has_gaps = has_gaps
        self._anchors = segment.indexes.read_offset_entries()[::-1]
        # All good batches are at this offset, or after it.
        self._expected_offset = segment.base_offset
        self._content_end = -1
        # By position: where a chain of headers ends that starts there, and which batches are good.
        self._chain_ends: dict[int, int] = {}
        self._good: dict[int, bool] = {}
        # Parts of the file by position, for headers.
        self._windows: dict[int, bytes] = {}

    def find(
        self, position: int, expected_offset: int, offsets: frozenset[int] | None
    ) -> NextBatch | None:
        """Return the batch after a damaged one; None if there is none.

        The damaged one has one of these offsets, and not less than `expected_offset`.
        """
        if expected_offset != self._expected_offset:
            self._expected_offset = expected_offset
            self._chain_ends.clear()
            self._good.clear()
        content_end = self.end_of_content()
        anchor, anchor_offset = self._next_anchor(position)
        block = self._segment.read(position, HEADER_BYTES)
        header = _Header.read(block) if len(block) == HEADER_BYTES else None
        if header is not None:
            end = self._end_of_batch(position, header, offsets, min(anchor, self._size))
            if end is not None:
                offsets = _certain_offsets_after(header, offsets)
                return NextBatch(end, offsets) if end < content_end else None
        if self.complete_size(position):
            return None
        if header is not None and (next_damaged := self._next_damaged(position, header, offsets)):
            return NextBatch(next_damaged, _offsets_after(header, offsets))
        found = self._scan(position, header, offsets, anchor, anchor_offset)
        if found is None:
            return None
        is_next = header is not None and found - position in _similar_sizes(header.size)
        return NextBatch(found, _offsets_after(header, offsets) if header and is_next else None)

    def _end_of_batch(
        self, position: int, header: _Header, offsets: frozenset[int] | None, limit: int
    ) -> int | None:
        """Return where a damaged batch ends, by its CRC, records or length; None if unknown."""
        first, last = position + HEADER_BYTES, min(limit, position + _MAX_BATCH_BYTES)
        by_length = position + header.size
        by_records = self._ends_of_records(first, header.counts, limit)
        crc, covered = 0, position + CRC_COVERS_FROM
        for end in sorted({position + size for size in _similar_sizes(header.size)} | by_records):
            if first <= end <= last:
                crc, covered = self._crc(covered, end, crc), end
                if crc == header.crc:
                    return end
        if by_records:
            is_followed = [end for end in by_records if self._may_start(end, None)]
            return max(is_followed or by_records)
        after = _certain_offsets_after(header, offsets)
        if first <= by_length < limit and self._may_start(by_length, after):
            return by_length
        return None

    def _ends_of_records(self, position: int, counts: set[int], limit: int) -> set[int]:
        """Return where so many uncompressed records end, if they are whole."""
        ends = set()
        number = 0
        limit = min(limit, position + _MAX_BATCH_BYTES)
        while number < max(counts, default=0):
            start = self._segment.read(position, _LONGEST_VARINT)
            size = _record_size(start)
            if size is None or position + size > limit:
                break
            try:
                decode_as(Record, (), (), self._segment.read(position, size), 1, 0, 0, None)
            except BatchError:
                break
            position += size
            number += 1
            if number in counts:
                ends.add(position)
        return ends

    def _may_start(self, position: int, offsets: frozenset[int] | None) -> bool:
        """Whether a batch may start at a position, good or damaged, or the content ends there."""
        if self.end_of_content() <= position <= self.end_of_content() + 1:
            return True
        header = self._plausible_header(position)
        if header is not None and (
            offsets is None or self._has_gaps or header.base_offset in offsets
        ):
            return True
        return self._looks_damaged(position, offsets)

    def _looks_damaged(self, position: int, offsets: frozenset[int] | None) -> bool:
        """Whether there is a header at a position in which a few bits have flipped."""
        block = self._segment.read(position, HEADER_BYTES)
        if len(block) < HEADER_BYTES or not any(block[16:]):
            return False
        header = _Header.read(block)
        base_offset = header.base_offset & 0xFFFF_FFFF_FFFF_FFFF
        flipped = (header.magic ^ 2) & 0xFF
        bits = flipped.bit_count() + (header.attributes >> 7).bit_count()
        if not self._has_gaps:
            difference = (header.last_offset_delta + 1) ^ header.record_count
            bits += (difference & 0xFFFF_FFFF).bit_count()
        if offsets is None or self._has_gaps:
            upper = self._expected_offset >> 32
            bits += min(((base_offset >> 32) ^ half).bit_count() for half in (upper, upper + 1))
        else:
            bits += min((base_offset ^ offset).bit_count() for offset in offsets)
        return bits <= _FLIPPED_HEADER_BITS

    def _scan(
        self,
        position: int,
        header: _Header | None,
        offsets: frozenset[int] | None,
        anchor: int,
        anchor_offset: int,
    ) -> int | None:
        """Return the first batch that is not part of the damaged one.

        CRCs are computed over a limited number of bytes: a value can be made of headers.
        """
        crc, covered = 0, position + CRC_COVERS_FROM
        budget = _CRC_BUDGET * (anchor - position) + CHUNK_BYTES
        sizes = None
        if header is not None and self._looks_damaged(position, offsets):
            sizes = _similar_sizes(header.size)
            offsets = _offsets_after(header, offsets)
        for candidate in self._headers_between(position + 1, anchor):
            found = self._plausible_header(candidate)
            if found is None or found.base_offset >= anchor_offset:
                continue
            is_near = candidate - position <= _MAX_BATCH_BYTES
            if header is not None and candidate > position + HEADER_BYTES and is_near:
                crc, covered = self._crc(covered, candidate, crc), candidate
                if crc == header.crc:
                    return candidate
            if budget <= 0 or not self._is_chained(candidate, position, sizes, anchor):
                continue
            budget -= found.end - candidate
            if self.is_good(candidate):
                if sizes is None:
                    return candidate
                return self._next_in_chain(candidate, position, sizes, offsets, anchor)
        return anchor if anchor < self._size else None

    def _next_damaged(
        self, position: int, header: _Header, offsets: frozenset[int] | None
    ) -> int | None:
        """Return where the next batch starts, if it is damaged, too, and has the next offset."""
        after = _offsets_after(header, offsets)
        if after is None or self._has_gaps or not self._looks_damaged(position, offsets):
            return None
        limit = min(self.end_of_content(), position + _MAX_BATCH_BYTES)
        budget = _MAX_BATCH_BYTES
        for size in sorted(_similar_sizes(header.size)):
            start = position + size
            if not position + HEADER_BYTES <= start < limit or not self._looks_damaged(
                start, after
            ):
                continue
            found = _Header.read(self._segment.read(start, HEADER_BYTES))
            end = start + found.size
            if not start + HEADER_BYTES <= end <= self._size:
                return start
            budget -= found.size
            if budget < 0:
                break
            # A whole one is either good, or in a record with a similar offset.
            if self._crc(start + CRC_COVERS_FROM, end, 0) != found.crc:
                return start
        return None

    def _next_in_chain(
        self,
        candidate: int,
        position: int,
        sizes: Mapping[int, int],
        offsets: frozenset[int] | None,
        anchor: int,
    ) -> int | None:
        """Return which batch is next, by the sizes and offsets of the damaged one.

        The first ones of the chain that starts at `candidate` may be part of it: the last batch in
        a record may end where the record ends. None if there is no next one.
        """
        end = candidate
        while end - position <= _MAX_BATCH_BYTES:
            if end >= self._size:
                return None if self._size - position in sizes else candidate
            found = self._plausible_header(end)
            if found is None:
                break
            if end - position in sizes and (offsets is None or found.base_offset in offsets):
                return end
            if end >= anchor:
                break
            end = found.end
        return candidate

    def _is_chained(
        self, candidate: int, position: int, sizes: Mapping[int, int] | None, anchor: int
    ) -> bool:
        """Whether a batch leads to something known, and so is not part of the one at `position`.

        `sizes` are those that the damaged one may have, as `_similar_sizes` returns them; None if
        its header is unknown.
        """
        end = self._end_of_chain(candidate, anchor)
        if end in (anchor, self._size):
            return True
        if end < 0:
            return False
        if sizes is None:
            return self._is_zero(end) or self._is_damaged_batch(end) or self._is_followed(candidate)
        if candidate - position not in sizes:
            return False
        if not self._is_zero(end):
            return self._is_damaged_batch(end)
        # Both may be whole, the batch in the record and the record in the last batch.
        rest = self.end_of_content() - position
        flips = [sizes[rest + zeros] for zeros in range(_FEW_ZEROS) if rest + zeros in sizes]
        return sizes[candidate - position] <= min(flips, default=_FLIPPED_LENGTH_BITS)

    def _is_followed(self, position: int) -> bool:
        """Whether a batch is followed by another one, or by a torn write of the next one."""
        found = self._plausible_header(position)
        if found is None:
            return False
        if self._plausible_header(found.end) is not None:
            return True
        block = self._segment.read(found.end, HEADER_BYTES)
        if len(block) < HEADER_BYTES:
            return False
        header = _Header.read(block)
        is_next = header.magic == 2 and header.base_offset == found.last_offset + 1
        return is_next and found.end + header.size > self._size

    def _end_of_chain(self, position: int, anchor: int) -> int:
        """Return where batches without a gap end that start at a position; -1 if there is one.

        It is the end of the file for a chain that is longer than a batch can be.
        """
        chain: list[int] = []
        if len(self._chain_ends) > _MAX_REMEMBERED:
            self._chain_ends.clear()
        while position < anchor and position not in self._chain_ends:
            found = self._plausible_header(position)
            if found is None:
                break
            chain.append(position)
            if position - chain[0] > _MAX_BATCH_BYTES:
                position = self._size
                break
            following = self._plausible_header(found.end)
            if following is not None and following.base_offset != found.last_offset + 1:
                is_gap = following.base_offset > found.last_offset
                if not is_gap or not (self._has_gaps or self.is_good(found.end)):
                    position = -1
                    break
            position = found.end
        end = self._chain_ends.get(position, position)
        self._chain_ends.update(dict.fromkeys(chain, end))
        return end

    def _is_damaged_batch(self, position: int) -> bool:
        """Whether there is a damaged batch at a position, whose length leads to the next one."""
        block = self._segment.read(position, HEADER_BYTES)
        if len(block) < HEADER_BYTES:
            return False
        header = _Header.read(block)
        end = position + header.size
        return (
            header.magic == 2
            and self._looks_damaged(position, None)
            and position + HEADER_BYTES <= end <= self._size
            and self._may_start(end, None)
        )

    def end_of_content(self) -> int:
        """Return where the zeros start that the file was extended by."""
        if self._content_end < 0:
            self._content_end = 0
            for start in reversed(list(self._data_chunks(0, self._size))):
                content = self._segment.read(start, CHUNK_BYTES).rstrip(b"\0")
                if content:
                    self._content_end = start + len(content)
                    break
        return self._content_end

    def complete_size(self, position: int) -> int:
        """Return the size of the batch at a position that is complete by its CRC; 0 if not.

        It ends with the content of the file, except for zeros at the end of its last record.
        """
        content_end = self.end_of_content()
        end = max(content_end, position + HEADER_BYTES)
        if end > self._size:
            return 0
        stored = unpack_header(self._segment.read(position, HEADER_BYTES), 0)[4]
        crc = self._crc(position + CRC_COVERS_FROM, end, 0)
        last = min(content_end + MAX_TRAILING_ZEROS, self._size)
        while crc != stored and end < last:
            crc = crc32c(b"\0", crc)
            end += 1
        return end - position if crc == stored else 0

    def _plausible_header(self, position: int) -> _Span | None:
        """Return where the batch at a position ends, if its header may be right."""
        start = position & _WINDOW_MASK
        window = self._windows.get(start)
        if window is None:
            if len(self._windows) == _MAX_WINDOWS:
                del self._windows[next(iter(self._windows))]
            window = self._segment.read(start, _WINDOW_BYTES + HEADER_BYTES)
            self._windows[start] = window
        at = position - start
        if at + HEADER_BYTES > len(window):
            return None
        base, length, _, magic, _, delta, _, _, record_count = unpack_header(window, at)
        end = position + LOG_OVERHEAD_BYTES + length
        is_plausible = (
            magic == 2
            and position + HEADER_BYTES <= end <= self._size
            and self._expected_offset <= base
            and base + delta < self._end_offset
            and 0 <= record_count <= delta + 1
            and (record_count == delta + 1 or self._has_gaps)
            and window[at + 21] == 0
            and window[at + 22] < 128
            and window[at + 22] & 7 <= 4
        )
        return _Span(end, base, base + delta) if is_plausible else None

    def _base_offset_at(self, position: int) -> int:
        return int.from_bytes(self._segment.read(position, 8), "big", signed=True)

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
                and self.is_good(anchor)
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
            block = self._segment.read(window, CHUNK_BYTES + HEADER_BYTES)
            for match in pattern.finditer(block):
                candidate = window + match.start() - 16
                if candidate < min(window + CHUNK_BYTES, stop):
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
                    position += CHUNK_BYTES
                else:
                    break
        finally:
            self._disk.close(fd)

    def _crc(self, start: int, stop: int, crc: int) -> int:
        """Continue a CRC over a range of the file."""
        for position in range(start, stop, CHUNK_BYTES):
            crc = crc32c(self._segment.read(position, min(CHUNK_BYTES, stop - position)), crc)
        return crc

    def is_good(self, position: int) -> bool:
        """Whether there is a batch at a position whose CRC matches."""
        good = self._good.get(position)
        if good is None:
            if len(self._good) > _MAX_REMEMBERED:
                self._good.clear()
            good = self._good[position] = self._has_valid_batch(position)
        return good

    def _has_valid_batch(self, position: int) -> bool:
        header = self._plausible_header(position)
        if header is None:
            return False
        try:
            RecordBatch(self._segment.read(position, header.end - position)).validate()
        except BatchError:
            return False
        return True


def _offsets_after(header: _Header, offsets: frozenset[int] | None) -> frozenset[int] | None:
    """Return the offsets that the batch after one with these offsets may have; None if unknown."""
    if offsets is None:
        return None
    after = frozenset(offset + count for offset in offsets for count in header.counts)
    return after if 0 < len(after) <= _MAX_OFFSETS else None


def _certain_offsets_after(
    header: _Header, offsets: frozenset[int] | None
) -> frozenset[int] | None:
    """Return the same, or None if both counts of the batch may be damaged."""
    return _offsets_after(header, offsets) if header.has_right_count else None


def _similar_sizes(size: int) -> dict[int, int]:
    """Return the sizes of a batch that differ in a few bits of its length, and in how many."""
    length = (size - LOG_OVERHEAD_BYTES) & 0xFFFF_FFFF
    return {
        LOG_OVERHEAD_BYTES + (length ^ sum(bits)): count
        for count in range(_FLIPPED_LENGTH_BITS + 1)
        for bits in combinations([1 << bit for bit in range(32)], count)
    }


def _record_size(start: bytes) -> int | None:
    """Return the size of the record that starts with these bytes; None if they are no length."""
    value = 0
    for index, byte in enumerate(start):
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            is_valid = not value & 1 and value >> 1 >= MIN_RECORD_BYTES - 1
            return index + 1 + (value >> 1) if is_valid else None
    return None
