"""The last offset of each key in the dirty section of a log; what compaction decides by."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from hashlib import blake2b

from ottla.protocol.batch import BatchError, Record, RecordBatch, parse_marker

from .disk import Disk
from .segment import Segment
from .throttled_reader import SegmentReader, Throttler

logger = logging.getLogger(__name__)

_DIGEST_BYTES = 16


class OffsetMap:
    """Maps a key to the last offset of a committed record with that key.

    A digest stands for a key, so that all keys need the same memory. Records of an open transaction
    wait for its marker.
    """

    def __init__(self, max_keys: int) -> None:
        self._offsets: dict[bytes, int] = {}
        self._max_keys = max_keys
        # By producer id: the first offset of its open transaction, and the offsets of its keys.
        self._open_transactions: dict[int, tuple[int, dict[bytes, int]]] = {}

    def is_latest(self, key: bytes, offset: int) -> bool:
        """Whether no later record with this key is known."""
        return self._offsets.get(_digest(key), -1) <= offset

    def build(
        self,
        disk: Disk,
        dirty_segments: Sequence[tuple[Segment, int]],
        end_offset: int,
        throttler: Throttler,
    ) -> int:
        """Read segments, each from a position on; return the offset where the map ends.

        That is `end_offset`, or earlier if the map is full or a transaction is still open.
        """
        end = self._read(disk, dirty_segments, end_offset, throttler)
        first_open = min((first for first, _ in self._open_transactions.values()), default=end)
        if first_open < end:
            # Again, without records that read_committed consumers cannot see yet: they must not
            # replace others.
            self._offsets.clear()
            self._open_transactions.clear()
            self._read(disk, dirty_segments, first_open, throttler)
            logger.info(
                "Log %s: compaction ends at offset %d, where an open transaction starts",
                dirty_segments[0][0].directory.name,
                first_open,
            )
        return min(end, first_open)

    def _read(
        self,
        disk: Disk,
        dirty_segments: Sequence[tuple[Segment, int]],
        end_offset: int,
        throttler: Throttler,
    ) -> int:
        end: int | None = None
        for segment, start in dirty_segments:
            try:
                reader = SegmentReader(disk, segment, throttler)
            except FileNotFoundError:
                continue  # Deleted by retention, along with all older records.
            with reader:
                for _position, batch in reader.batches(start):
                    is_past_end = batch.base_offset >= end_offset
                    if end is None and (is_past_end or self._size() >= self._max_keys):
                        end = min(batch.base_offset, end_offset)
                    if end is None:
                        self._add(batch)
                        continue
                    # The map ends here. Transactions that are open may be decided later.
                    if not self._open_transactions:
                        return end
                    if batch.is_control:
                        self._end_transaction(batch)
        return end_offset if end is None else end

    def _size(self) -> int:
        waiting = sum(len(offsets) for _, offsets in self._open_transactions.values())
        return len(self._offsets) + waiting

    def _add(self, batch: RecordBatch) -> None:
        if batch.is_control:
            self._end_transaction(batch)
            return
        records = decode_records(batch)
        if records is None:
            return
        offsets = self._offsets
        if batch.is_transactional:
            transaction = (batch.base_offset, dict[bytes, int]())
            _, offsets = self._open_transactions.setdefault(batch.producer_id, transaction)
        for record in records:
            if record.key is not None:
                offsets[_digest(record.key)] = record.offset

    def _end_transaction(self, batch: RecordBatch) -> None:
        try:
            batch.validate()
            marker = parse_marker(batch)
        except BatchError:
            return
        _, waiting = self._open_transactions.pop(batch.producer_id, (0, {}))
        if marker.is_commit:
            for digest, offset in waiting.items():
                if offset > self._offsets.get(digest, -1):
                    self._offsets[digest] = offset


def decode_records(batch: RecordBatch) -> list[Record] | None:
    """Decode the records of a batch; None if it is damaged."""
    try:
        batch.validate()
        return batch.records()
    except BatchError as error:
        logger.warning(
            "Compaction keeps the damaged batch at offset %d as it is: %s",
            batch.base_offset,
            error,
        )
        return None


def _digest(key: bytes) -> bytes:
    return blake2b(key, digest_size=_DIGEST_BYTES).digest()
