"""The fetch buffer of one partition: what was fetched and not delivered yet, in offset order."""

from __future__ import annotations

from collections import deque

from ..types import ConsumerRecord
from .fetched_data import FetchedData, FetchedSlice


class FetchBuffer:
    """Decoded slices first, then fetched data that is not decoded yet.

    Only this class changes either of them: `put` appends what a fetch returned, `take` removes what
    comes next, and `put_back` returns what was taken and not delivered.
    """

    __slots__ = ("_fetched", "_slices", "size_bytes")

    def __init__(self) -> None:
        self._slices: deque[FetchedSlice] = deque()
        self._fetched: deque[FetchedData] = deque()
        #: Of the fetched data, as it came; a fetch counts until all of it is decoded.
        self.size_bytes = 0

    def __bool__(self) -> bool:
        return bool(self._slices) or bool(self._fetched)

    def put(self, data: FetchedData) -> None:
        """Append fetched data."""
        self._fetched.append(data)
        self.size_bytes += data.size_bytes

    def take(self, max_records: int) -> FetchedSlice | None:
        """Remove and return the next slice; None at the end of each fetched data.

        Raises KafkaError for a corrupt batch.
        """
        if self._slices:
            return self._slices.popleft()
        if self._fetched:
            data = self._fetched[0]
            if (next_slice := data.take(max_records)) is not None:
                return next_slice
            self._remove_fetched()
        return None

    def take_fetched(self) -> FetchedData | None:
        """Remove and return the next fetched data; None if part of it was already taken."""
        if self._slices or not self._fetched or self._fetched[0].is_started:
            return None
        return self._remove_fetched()

    def put_back(self, undelivered: FetchedSlice) -> None:
        """Return a slice, or the end of one, to the front."""
        self._slices.appendleft(undelivered)

    def skip(self, record: ConsumerRecord) -> int | None:
        """Remove a record that was put back, if it still comes next; return the offset after it."""
        if not self._slices or self._slices[0].records[0] is not record:
            return None
        undelivered = self._slices.popleft()
        if len(undelivered.records) == 1:
            return undelivered.next_offset
        self.put_back(undelivered._replace(records=undelivered.records[1:]))
        return record.offset + 1

    def clear(self) -> None:
        """Remove everything."""
        self._slices.clear()
        self._fetched.clear()
        self.size_bytes = 0

    def _remove_fetched(self) -> FetchedData:
        data = self._fetched.popleft()
        self.size_bytes -= data.size_bytes
        return data
