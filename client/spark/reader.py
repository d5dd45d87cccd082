"""Batch reads: the offsets to read are planned once, and each range is read by a task."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from functools import partial

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, Filter, InputPartition

from ..types import LATEST
from .broker_client import BrokerClient, broker_client
from .errors import options_reported
from .filters import PushedFilters, push_down
from .options import ConnectionOptions, FetchOptions, ReadOptions
from .planning import LookUp, Offsets, PartitionRange, ranges_of, resolve_end, resolve_start, split
from .ranges import read_range


class Task(InputPartition):
    """The range that one task reads; all that is sent to the executor."""

    def __init__(self, offsets: PartitionRange) -> None:
        super().__init__(offsets)
        self.range = offsets


class BatchReader(DataSourceReader):
    """Reads topics from their starting to their ending offsets."""

    def __init__(self, options: ReadOptions, columns: Sequence[str] | None) -> None:
        self._options = options
        self._columns = columns
        self._filters = PushedFilters()

    @options_reported()
    def partitions(self) -> Sequence[InputPartition]:
        """Plan the tasks."""
        with broker_client(self._options.connection) as client:
            ranges = self._plan(client)
        return [Task(one) for one in split(ranges, self._options.splitting)]

    def _plan(self, client: BrokerClient) -> list[PartitionRange]:
        options = self._options
        look_up = partial(client.look_up, read_committed=options.fetch.read_committed)
        tps = client.partitions_of(options.selection)
        start = resolve_start(options.starting, tps, look_up, options.timestamp_strategy)
        end = resolve_end(options.ending, tps, look_up)
        return ranges_of(*filtered(start, end, self._filters, look_up))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return read_task(partition, self._options.connection, self._options.fetch, self._columns)


class PushdownReader(BatchReader):
    """A batch reader with filter pushdown; see `OttlaSource` for when it is used."""

    def pushFilters(self, filters: list[Filter]) -> Iterable[Filter]:
        """Apply filters on partitions and offsets; return those that Spark must evaluate."""
        self._filters, remaining = push_down(filters)
        return remaining


def filtered(
    start: Offsets, end: Offsets, filters: PushedFilters, look_up: LookUp
) -> tuple[Offsets, Offsets]:
    """Return the starting and ending offsets that filters leave."""
    topics, partitions = filters.topics, filters.partitions
    tps = [
        tp
        for tp in end
        if (topics is None or tp.topic in topics)
        and (partitions is None or tp.partition in partitions)
    ]
    first = filters.first_offset or 0
    start = {tp: max(start[tp], first) for tp in tps}
    if filters.end_offset is not None:
        end = {tp: min(end[tp], filters.end_offset) for tp in tps}
    if filters.since_ms is not None and tps:
        since = look_up(dict.fromkeys(tps, filters.since_ms))
        start = {tp: end[tp] if since[tp] == LATEST else max(start[tp], since[tp]) for tp in tps}
    return start, {tp: end[tp] for tp in tps}


_FREEZES = 3
_tasks = 0


def read_task(
    partition: InputPartition,
    connection: ConnectionOptions,
    options: FetchOptions,
    columns: Sequence[str] | None,
) -> Iterator[pa.RecordBatch]:
    """Read the range of a task; `columns` is None for all columns."""
    if not isinstance(partition, Task):
        return  # Spark calls this even if no task was planned
    _freeze_imports()
    for batch in read_range(partition.range, connection, options):
        yield batch if columns is None else batch.select(columns)


def _freeze_imports() -> None:
    """Exclude imported modules from garbage collection.

    Spark's workers collect garbage after each task, and traverse every object of pyspark and
    pyarrow: that takes longer than a short task. Modules that are imported late are frozen by the
    next tasks.
    """
    global _tasks  # noqa: PLW0603
    if _tasks < _FREEZES:
        _tasks += 1
        gc.freeze()
