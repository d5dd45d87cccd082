"""Streaming reads: micro-batches between offsets that Spark keeps in its checkpoint.

There are two instances of a reader. One lives with the query and plans: where it starts, how far a
micro-batch goes, which ranges it has. The other is sent to tasks, and only reads the range it is
given. The offsets in the checkpoint alone determine what a micro-batch reads, so that one that is
run again after a crash reads the same.
"""

from __future__ import annotations

import logging
import math
import os
import sys
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
from .broker_client import BrokerClient, broker_client
from .errors import DataLossError, OptionError, options_reported
from .options import ReadOptions
from .planning import (
    LookUp,
    Offsets,
    earliest_of,
    from_json,
    is_below_minimum,
    limited_to,
    ranges_between,
    rate_limited,
    resolve_start,
    split,
    to_json,
    without_progress,
)
from .reader import Task, read_task

logger = logging.getLogger(__name__)

# Commits to the group must not delay the query: their timeout, and the pause after one failed.
_COMMIT_SECONDS = 5.0
_COMMIT_PAUSE_SECONDS = 30.0


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads topics for as long as a query runs."""

    def __init__(self, options: ReadOptions, columns: Sequence[str] | None) -> None:
        self._options = options
        self._columns = columns
        #: The end of this run, with Trigger.AvailableNow.
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._committed: Offsets = {}
        self._next_commit_at = -math.inf
        # The first batch of a run does not wait for more records, as with Spark's own source.
        self._last_batch_at = -math.inf

    # Planning.

    @options_reported()
    def initialOffset(self) -> dict[str, Any]:
        """Return the starting offsets of a new query."""
        options = self._options
        with broker_client(options.connection) as client:
            tps = client.partitions_of(options.selection)
            look_up = self._look_up(client)
            return to_json(
                resolve_start(options.starting, tps, look_up, options.timestamp_strategy)
            )

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return the limit that the options set; Spark applies or lifts it."""
        limits = self._options.limits
        if limits.max_offsets is not None:
            return ReadMaxRows(limits.max_offsets)
        if limits.min_offsets is not None:
            return ReadMinRows(limits.min_offsets)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the current end of the logs as the end of this run."""
        with broker_client(self._options.connection) as client:
            self._target = self._end_offsets(client)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next micro-batch; its start, if there is to be none."""
        begin = from_json(start)
        with broker_client(self._options.connection) as client:
            # Everything before the start is processed: Spark plans one batch after the other.
            self._commit_to_group(client, begin)
            self._latest = latest = self._end_offsets(client)
            if self._target is not None:
                latest = limited_to(latest, self._target)
            if isinstance(limit, ReadAllAvailable):
                return to_json(latest)
            return to_json(self._limited(client, begin, latest))

    def _limited(self, client: BrokerClient, start: Offsets, latest: Offsets) -> Offsets:
        limits = self._options.limits
        added = latest.keys() - start.keys()
        if added:
            start = {**start, **earliest_of(self._look_up(client))(added)}
        waited_ms = (time.monotonic() - self._last_batch_at) * 1000
        # With Trigger.AvailableNow nothing waits for more records.
        if self._target is None and is_below_minimum(start, latest, limits, waited_ms):
            return without_progress(start, {tp: latest[tp] for tp in latest.keys() - added})
        self._last_batch_at = time.monotonic()
        if limits.max_offsets is None:
            return latest
        return rate_limited(start, latest, limits.max_offsets)

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """Return the end of the logs, for the progress of the query."""
        return None if self._latest is None else to_json(self._latest)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Plan the tasks between two offsets."""
        with broker_client(self._options.connection) as client:
            earliest = earliest_of(self._look_up(client))
            ranges = ranges_between(from_json(start), from_json(end), earliest, self._on_loss)
        return [Task(one) for one in split(ranges, self._options.splitting)]

    def commit(self, end: dict[str, Any]) -> None:
        """Commit offsets that the query has processed to the group, if there is one."""
        with broker_client(self._options.connection) as client:
            self._commit_to_group(client, from_json(end))

    def stop(self) -> None:
        """End the process if Spark has closed its socket, as it does when a query ends.

        Spark's worker would try to report that to Spark, fail, and print a traceback.
        """
        if isinstance(sys.exc_info()[1], EOFError):
            os._exit(0)

    # Reading.

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Read one range."""
        return read_task(partition, self._options.connection, self._options.fetch, self._columns)

    def _look_up(self, client: BrokerClient) -> LookUp:
        return partial(client.look_up, read_committed=self._options.fetch.read_committed)

    def _end_offsets(self, client: BrokerClient) -> Offsets:
        """Return the current end of the logs, with those of new partitions and topics."""
        tps = client.partitions_of(self._options.selection, may_be_missing=True)
        return dict(self._look_up(client)(dict.fromkeys(tps, LATEST)))

    def _on_loss(self, reason: str) -> None:
        if self._options.fetch.fail_on_data_loss:
            raise DataLossError(reason)
        logger.warning("%s; continuing because failOnDataLoss is false", reason)

    def _commit_to_group(self, client: BrokerClient, offsets: Offsets) -> None:
        """Commit for the group of commitGroup, which shows the lag. Failures are logged only."""
        group = self._options.commit_group
        if group is None or not offsets or offsets == self._committed:
            return
        if time.monotonic() < self._next_commit_at:
            return
        try:
            client.commit(group, offsets, timeout=_COMMIT_SECONDS)
        except (KafkaError, ClientError, TimeoutError) as error:
            logger.warning("cannot commit offsets for group %r: %r", group, error)
            self._next_commit_at = time.monotonic() + _COMMIT_PAUSE_SECONDS
        else:
            self._committed = offsets


class InvalidStreamReader(StreamReader):
    """Raises the error of its options with the first call.

    Spark's worker replaces an error that `OttlaSource.streamReader` raises by one of its own.
    """

    def __init__(self, error: OptionError) -> None:
        self._error = error

    @property
    def _options(self) -> ReadOptions:  # type: ignore[override]
        with options_reported():
            raise self._error
