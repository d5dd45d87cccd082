"""Batches: which offsets are to be read is decided once, and each range is read by a task."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ..types import LATEST
from .brokers import Brokers, brokers
from .filters import Narrowing, narrow
from .options import ConnectionOptions, Fetch, ReadOptions
from .planning import LookUp, Offsets, Range, ranges_of, resolve_end, resolve_start, split
from .ranges import read_range


class Task(InputPartition):
    """A range that one task reads; all that is sent to it."""

    def __init__(self, wanted: Range) -> None:
        super().__init__(wanted)
        self.range = wanted


class BatchReader(DataSourceReader):
    """Reads topics from their starting to their ending offsets."""

    def __init__(self, options: ReadOptions, columns: Sequence[str] | None) -> None:
        self._options = options
        self._columns = columns
        self._narrowing = Narrowing()

    def partitions(self) -> Sequence[InputPartition]:
        """Decide what is read."""
        with brokers(self._options.link) as way:
            ranges = self._plan(way)
        return [Task(one) for one in split(ranges, self._options.splitting)]

    def _plan(self, way: Brokers) -> list[Range]:
        options = self._options
        look_up = partial(way.look_up, is_committed=options.fetch.is_committed)
        places = way.partitions_of(options.topics)
        start = resolve_start(options.starting, places, look_up, options.late_start)
        end = resolve_end(options.ending, places, look_up)
        return ranges_of(*narrowed(start, end, self._narrowing, look_up))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return read_task(partition, self._options.link, self._options.fetch, self._columns)


class PushdownReader(BatchReader):
    """The same, with filters: for a DataFrame that is used in one query, see `OttlaSource`."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Take what says something of offsets; give back what Spark has to look at itself."""
        self._narrowing, left = narrow(filters)
        return left


def narrowed(
    start: Offsets, end: Offsets, narrowing: Narrowing, look_up: LookUp
) -> tuple[Offsets, Offsets]:
    """Give what filters leave of partitions and their offsets."""
    topics, partitions = narrowing.topics, narrowing.partitions
    places = [
        place
        for place in end
        if (topics is None or place.topic in topics)
        and (partitions is None or place.partition in partitions)
    ]
    first = narrowing.first_offset or 0
    start = {place: max(start[place], first) for place in places}
    if narrowing.end_offset is not None:
        end = {place: min(end[place], narrowing.end_offset) for place in places}
    if narrowing.since_ms is not None and places:
        young = look_up(dict.fromkeys(places, narrowing.since_ms))
        start = {
            place: end[place] if young[place] == LATEST else max(start[place], young[place])
            for place in places
        }
    return start, {place: end[place] for place in places}


_FREEZES = 3
_tasks = 0


def read_task(
    partition: InputPartition, link: ConnectionOptions, fetch: Fetch, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch]:
    """Read what a task is to read; `columns` are those that are wanted, if not all are."""
    if not isinstance(partition, Task):
        return  # there was nothing to be planned, and Spark asks all the same
    _spare_the_collector()
    for batch in read_range(partition.range, link, fetch):
        yield batch if columns is None else batch.select(columns)


def _spare_the_collector() -> None:
    """Let the garbage collector pass over what a worker has imported.

    After each task Spark's workers collect, and look at every object of pyspark and pyarrow: that
    takes longer than a short task. What is imported late is frozen by the next tasks.
    """
    global _tasks  # noqa: PLW0603
    if _tasks < _FREEZES:
        _tasks += 1
        gc.freeze()
