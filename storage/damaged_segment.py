"""A segment with damaged bytes that recovery had no space to set aside.

The file is left as it is. Until there is space, the log only serves reads, and those skip the
damaged bytes: the batches before and after them are good.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .segment import BatchPosition, Segment


class DamagedSegment(Segment):
    """A copy of `segment` whose good batches end at `size`, except for `damaged` ranges before it.

    Its file stays open, because another one gets the name when there is space.
    """

    def __init__(
        self,
        segment: Segment,
        size: int,
        damaged: Sequence[tuple[int, int]],
        index_interval_bytes: int,
    ) -> None:
        super().__init__(segment.directory, segment.base_offset, segment.files)
        self.holes = dict(damaged)
        self.set_durable_size(size)
        self.transactions = segment.transactions
        self.last_append_ms = segment.last_append_time()
        self.pin()
        for batch in self.batches():
            self.add_batch(*batch, index_interval_bytes)

    def end_of_whole_batches(self, first: BatchPosition, max_bytes: int, end_offset: int) -> int:
        """Return the position where the last batch of a read ends: it does not reach a hole."""
        limit = first.position + max_bytes
        end = first.position + first.size
        for position, size, base_offset, _last_offset, _timestamp in self._scan(end):
            if position != end or position + size > limit or base_offset >= end_offset:
                break
            end += size
        return end

    def _scan(self, position: int, _block: bytes = b"") -> Iterator[tuple[int, int, int, int, int]]:
        end = self.size
        while position < end:
            stop = min((start for start in self.holes if start >= position), default=end)
            yield from self._scan_between(position, min(stop, end))
            position = self.holes.get(stop, end)
