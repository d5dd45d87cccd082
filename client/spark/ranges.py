"""Reading a range of offsets: Fetch requests to the partition's leader in, Arrow batches out.

This is all that a task does. The next Fetch is sent before the previous response is decoded and
passed to Spark, so that the broker works meanwhile.

Records that are missing because the log begins later, or ends earlier, are a loss of data. So is a
gap between two batches, unless the topic is compacted: a broker assigns consecutive offsets, and
control batches and aborted transactions are part of what is fetched. Only compaction removes
batches, and recovery, which sets damaged ones aside. Gaps inside a batch are always due to
compaction. Whether the topic is compacted is asked when a gap is found, once per task. If it was
compacted before, but is not now, a gap counts as a loss, because the two cannot be told apart.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ottla.protocol.api.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from ottla.protocol.api.fetch import LAST_VERSION_WITH_TOPIC_NAMES, FetchResponse, PartitionData
from ottla.protocol.batch import HEADER_BYTES, batch_size, unpack_header
from ottla.protocol.errors import BatchError
from ottla.protocol.schema import Buffer

from ..arrow.decoder import ArrowDecoder, corrupt_batch_error
from ..consumer.fetched_data import FetchedData
from ..errors import ClientError, DeadlineError, ErrorCode, KafkaError, RefreshError
from ..fetch_request import PartitionFetch, fetch_request
from ..offsets import kafka_error, list_offsets, values_or_raise
from ..types import EARLIEST
from .broker_client import BrokerClient, broker_client, is_unknown_partition
from .errors import DataLossError
from .options import ConnectionOptions, FetchOptions
from .planning import PartitionRange

logger = logging.getLogger(__name__)

_MAX_WAIT_MS = 500
# The assumed size of a record before one was seen, and the minimum to fetch.
_RECORD_BYTES = 1024
_MIN_FETCH_BYTES = 64 * 1024
# A partition that its broker does not know for this long is taken to be deleted.
_DELETED_SECONDS = 5.0
_TOPIC_RESOURCE = 2
_CLEANUP_POLICY = "cleanup.policy"
_SET_ASIDE = (
    "The topic is not compacted: recovery has set damaged batches aside, see the broker's log"
)


def read_range(
    offsets: PartitionRange, connection: ConnectionOptions, options: FetchOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the records of a range, in the columns of Spark's Kafka source.

    Raises DataLossError if some do not exist any more, unless failOnDataLoss is false.
    """
    with broker_client(connection) as client:
        yield from read_range_with(client, offsets, options)


def read_range_with(
    client: BrokerClient, offsets: PartitionRange, options: FetchOptions
) -> Iterator[pa.RecordBatch]:
    """Like `read_range`, with a client of the caller."""
    return _RangeReader(client, offsets, options).batches()


class _Fetched(NamedTuple):
    """The result of a fetch: data, or None where offsets are skipped."""

    data: FetchedData | None
    next_offset: int


class _RangeReader:
    def __init__(
        self, client: BrokerClient, offsets: PartitionRange, options: FetchOptions
    ) -> None:
        self._client = client
        self._range = offsets
        self._tp = offsets.tp
        self._options = options
        self._decoder = ArrowDecoder(
            timestamp=pa.timestamp("us", "UTC"),
            headers=options.has_headers,
            check_crcs=options.check_crcs,
        )
        self._record_bytes = float(_RECORD_BYTES)
        self._unknown_since: float | None = None
        self._empty_since: float | None = None
        self._is_compacted: bool | None = None

    def batches(self) -> Iterator[pa.RecordBatch]:
        client, end = self._client, self._range.end
        position = self._range.start
        pending = client.begin(self._fetch(position))
        while True:
            data, position = self._result_of(pending, position)
            is_last = position >= end
            if not is_last:
                pending = client.begin(self._fetch(position))
            if data is not None:
                yield from self._decoded(data)
            if is_last:
                return

    def _result_of(self, pending: asyncio.Task[_Fetched], position: int) -> _Fetched:
        try:
            return self._client.wait_for(pending)
        except (KafkaError, ClientError) as error:
            if not error.retriable:
                raise
            # Spark may have been busy for longer than the timeouts of the request.
            return self._client.wait_for(self._fetch(position))

    def _decoded(self, data: FetchedData) -> Iterator[pa.RecordBatch]:
        try:
            for batch in self._decoder.decode(
                data.batches(),
                topic=self._tp.topic,
                partition=self._tp.partition,
                start_offset=data.fetch_offset,
                end_offset=self._range.end,
            ):
                yield _with_null_headers(batch) if self._decoder.headers else batch
        except BatchError as error:
            raise corrupt_batch_error(self._tp, error) from error

    async def _fetch(self, offset: int) -> _Fetched:
        """Fetch until there is data, or a loss is certain."""
        return await self._client.cluster.retry(
            lambda: self._attempt(offset), what=f"reading {self._tp} at offset {offset}"
        )

    async def _attempt(self, offset: int) -> _Fetched:
        while True:
            try:
                response = await self._fetch_once(offset)
            except KafkaError as error:
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    return await self._handle_out_of_range(offset)
                if not is_unknown_partition(error):
                    raise
                if self._is_deleted():
                    return self._lose(f"{self._tp} does not exist any more")
                # It may be newer than the metadata from this worker's last task.
                self._client.cluster.invalidate([self._tp.topic])
                raise RefreshError(error.code, str(error)) from error
            self._unknown_since = None
            if response.records:
                self._empty_since = None
                await self._check_gaps(offset, response.records)
                return self._fetched(offset, response)
            if self._is_empty_for_too_long():
                timeout = self._client.cluster.config.timeouts.operation
                if response.high_watermark > offset:
                    raise DeadlineError(
                        f"{self._tp}: records from offset {offset} on have been in an open"
                        f" transaction for {timeout:g} s; read up to the last stable offset, which"
                        " is the default of endingOffsets"
                    )
                return self._lose(
                    f"{self._tp} has ended at offset {response.high_watermark} for {timeout:g} s:"
                    f" offsets {offset} to {self._range.end - 1} are missing"
                )

    async def _fetch_once(self, offset: int) -> PartitionData:
        tp, cluster = self._tp, self._client.cluster
        node = await cluster.leader_of(tp)
        info = cluster.metadata.topics[tp.topic].partitions[tp.partition]
        request = fetch_request(
            [PartitionFetch(*tp, offset, self._max_bytes(offset), info.leader_epoch)],
            max_wait_ms=_MAX_WAIT_MS,
            max_bytes=self._options.partition_max_bytes,
            read_committed=self._options.read_committed,
        )
        response = await cluster.send(
            node, request, FetchResponse, max_version=LAST_VERSION_WITH_TOPIC_NAMES
        )
        data = response.responses[0].partitions[0] if response.responses else PartitionData()
        error = kafka_error(response.error_code or data.error_code, f"{tp} at offset {offset}")
        if error is not None:
            raise error
        return data

    def _max_bytes(self, offset: int) -> int:
        """Return about the size of what remains of the range: the rest would be discarded."""
        expected = int((self._range.end - offset) * self._record_bytes)
        return min(self._options.partition_max_bytes, max(_MIN_FETCH_BYTES, expected))

    def _fetched(self, offset: int, response: PartitionData) -> _Fetched:
        aborted = [
            (one.producer_id, one.first_offset) for one in response.aborted_transactions or ()
        ]
        data = FetchedData(
            self._tp,
            offset,
            response.records or b"",
            aborted if self._options.read_committed else (),
            checks_crc=False,  # the decoder does
        )
        self._record_bytes = 1.1 * data.size_bytes / max(1, data.next_offset - offset)
        return _Fetched(data, data.next_offset)

    # Data loss.

    async def _check_gaps(self, offset: int, records: Buffer) -> None:
        """Raise DataLossError for batches missing in the range, unless compaction removed them."""
        for first, next_offset in _gaps(records, offset):
            if first >= self._range.end or await self._is_topic_compacted():
                return
            last = min(next_offset, self._range.end) - 1
            self._lose(f"Offsets {first} to {last} of {self._tp} are missing", cause=_SET_ASIDE)

    async def _is_topic_compacted(self) -> bool:
        if self._is_compacted is None:
            topic = DescribeConfigsResource(
                resource_type=_TOPIC_RESOURCE,
                resource_name=self._tp.topic,
                configuration_keys=[_CLEANUP_POLICY],
            )
            request = DescribeConfigsRequest(resources=[topic])
            response = await self._client.cluster.send_to_any(request, DescribeConfigsResponse)
            (result,) = response.results
            error = kafka_error(result.error_code, f"{_CLEANUP_POLICY} of {self._tp.topic}")
            if error is not None:
                raise error
            values = {config.name: config.value or "" for config in result.configs}
            self._is_compacted = "compact" in values.get(_CLEANUP_POLICY, "")
        return self._is_compacted

    async def _handle_out_of_range(self, offset: int) -> _Fetched:
        """Find out which records are missing at an offset that is not in the log."""
        end = self._range.end
        earliest = await self._earliest_offset()
        if earliest <= offset:
            return self._lose(
                f"{self._tp} ends before offset {offset}: {end - offset} offsets are missing"
            )
        next_offset = min(earliest, end)
        reason = f"Offsets {offset} to {next_offset - 1} of {self._tp} do not exist any more"
        return self._lose(reason, next_offset)

    async def _earliest_offset(self) -> int:
        offsets = values_or_raise(
            await list_offsets(self._client.cluster, {self._tp: EARLIEST}, read_committed=False)
        )
        return offsets[self._tp].offset

    def _lose(
        self, reason: str, next_offset: int | None = None, cause: str | None = None
    ) -> _Fetched:
        if self._options.fail_on_data_loss:
            raise DataLossError(reason) if cause is None else DataLossError(reason, cause)
        logger.warning("%s; continuing because failOnDataLoss is false", reason)
        return _Fetched(None, self._range.end if next_offset is None else next_offset)

    def _is_deleted(self) -> bool:
        now = time.monotonic()
        self._unknown_since = self._unknown_since or now
        return now - self._unknown_since > _DELETED_SECONDS

    def _is_empty_for_too_long(self) -> bool:
        """Whether records that existed when the range was planned have not come in time."""
        now = time.monotonic()
        self._empty_since = self._empty_since or now
        return now - self._empty_since > self._client.cluster.config.timeouts.operation


def _gaps(records: Buffer, offset: int) -> Iterator[tuple[int, int]]:
    """Yield the offsets that no batch covers, from `offset` on: the first, and the one after."""
    at, end = 0, len(records)
    while end - at >= HEADER_BYTES:
        size = batch_size(records, at)
        if size < HEADER_BYTES or at + size > end:
            return  # an incomplete batch
        base_offset, _, _, _, _, last_offset_delta, *_ = unpack_header(records, at)
        if base_offset > offset:
            yield offset, base_offset
        offset = max(offset, base_offset + last_offset_delta + 1)
        at += size


def _with_null_headers(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Replace empty headers by null, as in Spark's own source."""
    headers = batch.column("headers")
    is_empty = pc.equal(pc.list_value_length(headers), 0)
    if not pc.any(is_empty).as_py():
        return batch
    column = pa.ListArray.from_arrays(
        headers.offsets, headers.values, type=headers.type, mask=is_empty
    )
    return batch.set_column(len(batch.schema) - 1, batch.schema.field("headers"), column)
