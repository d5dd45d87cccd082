"""Streams: micro-batches between offsets that Spark keeps in its checkpoint.

Two instances of a reader are at work. One lives with the query and plans: where to start, how far a
batch goes, which ranges it has. The other is sent to tasks, and only reads what it is given. What a
batch reads is decided by the offsets in the checkpoint alone, so that a batch that is run again
after a crash reads the same.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from ..errors import ClientError, KafkaError
from ..types import LATEST
from .brokers import Brokers, brokers
from .errors import DataLossError
from .options import ReadOptions
from .planning import (
    LookUp,
    Offsets,
    capped,
    earliest_of,
    from_json,
    is_too_little,
    kept,
    ranges_between,
    rate_limited,
    resolve_start,
    split,
    to_json,
)
from .reader import Task, read_task

logger = logging.getLogger(__name__)

# A group that cannot be told keeps no query waiting: for so long at most, and not again at once.
_COMMIT_SECONDS = 5.0
_COMMIT_PAUSE_SECONDS = 30.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics for as long as a query runs."""

    def __init__(self, options: ReadOptions, columns: Sequence[str] | None) -> None:
        self._options = options
        self._columns = columns
        #: How far this run goes, if it ends by itself.
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._committed: Offsets = {}
        self._tells_group_from = -math.inf
        # The first batch of a run does not wait for more, as with Spark's own source.
        self._last_batch = -math.inf

    # Planning.

    def initialOffset(self) -> dict[str, Any]:
        """Give where a new query starts."""
        options = self._options
        with brokers(options.link) as way:
            places = way.partitions_of(options.topics)
            return to_json(
                resolve_start(options.starting, places, self._look_up(way), options.late_start)
            )

    def getDefaultReadLimit(self) -> ReadLimit:
        """Give the limit that the options set; Spark passes it on, or lifts it."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Take what there is now as the end of this run."""
        with brokers(self._options.link) as way:
            self._target = self._look(way)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Give where the next batch ends; where it starts, if there is to be none."""
        begin = from_json(start)
        with brokers(self._options.link) as way:
            # All before the start is done: Spark asks for more when a batch is behind it.
            self._tell_group(way, begin)
            self._latest = latest = self._look(way)
            if self._target is not None:
                latest = capped(latest, self._target)
            if isinstance(limit, ReadAllAvailable):
                return to_json(latest)
            return to_json(self._limited(way, begin, latest))

    def _limited(self, way: Brokers, start: Offsets, latest: Offsets) -> Offsets:
        limits = self._options.limits
        fresh = latest.keys() - start.keys()
        if fresh:
            start = {**start, **earliest_of(self._look_up(way))(fresh)}
        waited_ms = (time.monotonic() - self._last_batch) * 1000
        # A run that ends by itself does not wait for more.
        if self._target is None and is_too_little(start, latest, limits, waited_ms):
            return kept(start, {place: latest[place] for place in latest.keys() - fresh})
        self._last_batch = time.monotonic()
        if limits.max_offsets is None:
            return latest
        return rate_limited(start, latest, limits.max_offsets)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Give where the logs end, for the query's progress."""
        return None if self._latest is None else to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Share out what lies between two offsets."""
        with brokers(self._options.link) as way:
            earliest = earliest_of(self._look_up(way))
            ranges = ranges_between(from_json(start), from_json(end), earliest, self._on_loss)
        return [Task(one) for one in split(ranges, self._options.splitting)]

    def commit(self, end: dict[str, Any]) -> None:
        """Take note that all before some offsets is done."""
        with brokers(self._options.link) as way:
            self._tell_group(way, from_json(end))

    def stop(self) -> None:
        """Do nothing: what is open ends with the process."""

    # Reading.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return read_task(partition, self._options.link, self._options.fetch, self._columns)

    # Parts.

    def _look_up(self, way: Brokers) -> LookUp:
        return partial(way.look_up, is_committed=self._options.fetch.is_committed)

    def _look(self, way: Brokers) -> Offsets:
        """Give where the logs end by now, those of new partitions and topics too."""
        places = way.partitions_of(self._options.topics, may_be_missing=True)
        return dict(self._look_up(way)(dict.fromkeys(places, LATEST)))

    def _on_loss(self, reason: str) -> None:
        if self._options.fetch.fails_on_data_loss:
            raise DataLossError(reason)
        logger.warning("%s; going on, as failOnDataLoss is false", reason)

    def _tell_group(self, way: Brokers, offsets: Offsets) -> None:
        """Commit for the group that shows how far we are. The query does not depend on it."""
        group = self._options.commit_group
        if group is None or not offsets or offsets == self._committed:
            return
        if time.monotonic() < self._tells_group_from:
            return
        try:
            way.commit(group, offsets, timeout=_COMMIT_SECONDS)
        except (KafkaError, ClientError, TimeoutError) as error:
            logger.warning("group %r is not told how far we are: %r", group, error)
            self._tells_group_from = time.monotonic() + _COMMIT_PAUSE_SECONDS
        else:
            self._committed = offsets
