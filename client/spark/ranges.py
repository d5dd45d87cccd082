"""Reading a range of offsets: fetches from the partition's leader, out come Arrow batches.

It is all that a task does. The next fetch is sent before what came is decoded and handed to Spark,
so that the broker is at work meanwhile. Offsets without records are nothing unusual: compaction
takes records away, and transactions leave markers. What is gone because the log begins later is a
loss of data.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ottla.protocol.api.fetch import FetchResponse, PartitionData
from ottla.protocol.errors import BatchError

from ..arrow.decoder import ArrowDecoder, corrupt_batch_error
from ..consumer.fetched_data import FetchedData
from ..errors import ClientError, ErrorCode, KafkaError, RefreshError
from ..fetch_request import PartitionFetch, fetch_request
from ..offsets import kafka_error, list_offsets, values_or_raise
from ..types import EARLIEST
from .brokers import Brokers, brokers, is_unknown
from .errors import DataLossError
from .options import ConnectionOptions, Fetch
from .planning import Range

logger = logging.getLogger(__name__)

_MAX_WAIT_MS = 500
# What a record is taken to be before one was seen, and the least that is asked for.
_GUESS_BYTES = 1024
_LEAST_BYTES = 64 * 1024
# After so long a partition that its broker does not know is taken to be gone.
_GONE_SECONDS = 5.0


def read_range(wanted: Range, link: ConnectionOptions, fetch: Fetch) -> Iterator[pa.RecordBatch]:
    """Give the records of a range, in the columns of Spark's Kafka source.

    Raises DataLossError if some are not there any more, unless that is to be tolerated.
    """
    with brokers(link) as way:
        yield from _Reader(way, wanted, fetch).batches()


class _Answer(NamedTuple):
    """What a fetch brought: a chunk, or where to go on if there is nothing at the offset."""

    chunk: FetchedData | None
    next_offset: int


class _Reader:
    def __init__(self, way: Brokers, wanted: Range, fetch: Fetch) -> None:
        self._way = way
        self._wanted = wanted
        self._fetch_options = fetch
        self._decoder = ArrowDecoder(
            timestamp=pa.timestamp("us", "UTC"),
            headers=fetch.has_headers,
            check_crcs=fetch.check_crcs,
        )
        self._record_bytes = float(_GUESS_BYTES)
        self._unknown_since: float | None = None
        self._waited_since: float | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        way, end = self._way, self._wanted.end
        position = self._wanted.start
        pending = way.begin(self._fetch(position))
        while True:
            chunk, position = self._waited_for(pending, position)
            is_last = position >= end
            if not is_last:
                pending = way.begin(self._fetch(position))
            if chunk is not None:
                yield from self._decoded(chunk)
            if is_last:
                return

    def _waited_for(self, pending: asyncio.Task[_Answer], position: int) -> _Answer:
        try:
            return self._way.wait_for(pending)
        except (KafkaError, ClientError) as error:
            if not error.retriable:
                raise
            # Spark may have been busy elsewhere for so long that the broker gave up, or we did.
            return self._way.wait_for(self._fetch(position))

    def _decoded(self, chunk: FetchedData) -> Iterator[pa.RecordBatch]:
        place = chunk.tp
        try:
            for batch in self._decoder.decode(
                chunk.batches(),
                topic=place.topic,
                partition=place.partition,
                start_offset=chunk.fetch_offset,
                end_offset=self._wanted.end,
            ):
                yield _without_empty_headers(batch) if self._decoder.headers else batch
        except BatchError as error:
            raise corrupt_batch_error(place, error) from error

    async def _fetch(self, offset: int) -> _Answer:
        """Fetch until there is something."""
        cluster = self._way.cluster
        return await cluster.retry(
            lambda: self._attempt(offset), what=f"reading {self._wanted.place} at offset {offset}"
        )

    async def _attempt(self, offset: int) -> _Answer:
        while True:
            try:
                data = await self._ask(offset)
            except KafkaError as error:
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    return await self._miss(offset)
                if not is_unknown(error):
                    raise
                if self._is_gone():
                    return self._lose(f"{self._wanted.place} is gone")
                # It may be newer than what was known when this worker had its last task.
                self._way.cluster.invalidate([self._wanted.topic])
                raise RefreshError(error.code, str(error)) from error
            self._unknown_since = None
            if data.records:
                self._waited_since = None
                return self._chunk(offset, data)
            if self._is_out_of_patience():
                timeout = self._way.cluster.config.timeouts.operation
                return self._lose(
                    f"{self._wanted.place} ends at offset {data.high_watermark}, for {timeout:g} s"
                    f" now: offsets {offset} to {self._wanted.end - 1} should be there"
                )

    async def _ask(self, offset: int) -> PartitionData:
        place, cluster = self._wanted.place, self._way.cluster
        node = await cluster.leader_of(place)
        info = cluster.metadata.topics[place.topic].partitions[place.partition]
        request = fetch_request(
            [PartitionFetch(*place, offset, self._bytes_from(offset), info.leader_epoch)],
            max_wait_ms=_MAX_WAIT_MS,
            max_bytes=self._fetch_options.partition_max_bytes,
            read_committed=self._fetch_options.is_committed,
        )
        answer = await cluster.send(node, request, FetchResponse)
        data = answer.responses[0].partitions[0] if answer.responses else PartitionData()
        error = kafka_error(answer.error_code or data.error_code, f"{place} at offset {offset}")
        if error is not None:
            raise error
        return data

    def _bytes_from(self, offset: int) -> int:
        """Give about what is left of the range: the rest would be thrown away."""
        expected = int((self._wanted.end - offset) * self._record_bytes)
        return min(self._fetch_options.partition_max_bytes, max(_LEAST_BYTES, expected))

    def _chunk(self, offset: int, data: PartitionData) -> _Answer:
        aborted = [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()]
        chunk = FetchedData(
            self._wanted.place,
            offset,
            data.records or b"",
            aborted if self._fetch_options.is_committed else (),
            checks_crc=False,  # the decoder does
        )
        self._record_bytes = 1.1 * chunk.size_bytes / max(1, chunk.next_offset - offset)
        return _Answer(chunk, chunk.next_offset)

    # What is not there.

    async def _miss(self, offset: int) -> _Answer:
        """Find out what is missing at an offset that is not in the log."""
        place, end = self._wanted.place, self._wanted.end
        found = await self._earliest()
        if found <= offset:
            return self._lose(f"{place} ends before offset {offset}: {end - offset} are missing")
        reason = f"Offsets {offset} to {min(found, end) - 1} of {place} are gone"
        return self._lose(reason, min(found, end))

    async def _earliest(self) -> int:
        place = self._wanted.place
        cluster = self._way.cluster
        found = values_or_raise(
            await list_offsets(cluster, {place: EARLIEST}, read_committed=False)
        )
        return found[place].offset

    def _lose(self, reason: str, next_offset: int | None = None) -> _Answer:
        if self._fetch_options.fails_on_data_loss:
            raise DataLossError(reason)
        logger.warning("%s; going on, as failOnDataLoss is false", reason)
        return _Answer(None, self._wanted.end if next_offset is None else next_offset)

    def _is_gone(self) -> bool:
        now = time.monotonic()
        self._unknown_since = self._unknown_since or now
        return now - self._unknown_since > _GONE_SECONDS

    def _is_out_of_patience(self) -> bool:
        """Whether records that were there when the range was planned do not come."""
        now = time.monotonic()
        self._waited_since = self._waited_since or now
        return now - self._waited_since > self._way.cluster.config.timeouts.operation


def _without_empty_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Give no headers as null, as Spark's own source does."""
    headers = batch.column("headers")
    is_empty = pc.equal(pc.list_value_length(headers), 0)
    if not pc.any(is_empty).as_py():
        return batch
    column = pa.ListArray.from_arrays(
        headers.offsets, headers.values, type=headers.type, mask=is_empty
    )
    return batch.set_column(len(batch.schema) - 1, batch.schema.field("headers"), column)
