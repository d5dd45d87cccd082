"""Produce: validate and append record batches, and respond when they are as durable as requested.

Batches are stored as they arrive, apart from what the broker assigns. A request whose records are
compressed, or many, is validated in a thread; the others, which take microseconds, at once. All
batches of a request are appended before the next request of the connection is started, which keeps
a client's order. Then the partitions whose ack means fsync are waited for, while the connection
goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ottla.protocol.api.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, RecordBatch, batch_size
from ottla.protocol.compression import Compression
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Buffer
from ottla.storage.errors import InvalidRecordsError
from ottla.storage.validation import validate_header, validate_header_timestamp, validate_records

from ..errors import EXPECTED_ERRORS, ApiError, NotLeaderError, error_code_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ...partitions.partition import Partition
    from ..batch_workers import ProducedBatch
    from ..dispatch import RequestContext

_ACKS_ALL = -1
_FIRST_VERSION_WITH_ZSTD = 7
_FIRST_VERSION_WITH_LEADER = 10
# The low byte of the attributes in the batch header.
_ATTRIBUTES_INDEX = 22
_CODEC_MASK = 0x07
_TRANSACTIONAL_FLAG = 0x10
#: Uncompressed records of a request that are validated at once: one batch of the default maximum
#: size. That takes 140 µs with records of 100 bytes, less than a thread costs, and 1.3 ms with the
#: smallest possible records.
_MAX_INLINE_BYTES = 1100 * 1024


def handle(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> (
    ProduceResponse
    | asyncio.Future[ProduceResponse]
    | Coroutine[Any, Any, ProduceResponse | asyncio.Future[ProduceResponse] | None]
    | None
):
    """Handle Produce."""
    if broker.config.broker_validate_records and _needs_thread(request):
        return _validate_in_thread(broker, context, request)
    return _append(broker, context, request)


def _needs_thread(request: ProduceRequest) -> bool:
    """Whether validating the records takes long: they are compressed or many."""
    total_bytes = 0
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records is not None and len(records) >= HEADER_BYTES:
                if records[_ATTRIBUTES_INDEX] & _CODEC_MASK:
                    return True
                total_bytes += len(records)
    return total_bytes > _MAX_INLINE_BYTES


async def _validate_in_thread(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    """Validate all batches of a request, then append them."""
    results: list[RecordBatch | Exception] = []
    produced: list[ProducedBatch] = []
    for topic in request.topic_data:
        for data in topic.partition_data:
            try:
                partition = _find(broker, request, topic.name, data.index)
                batch = _parse(data.records, context.version)
            except EXPECTED_ERRORS as error:
                results.append(error.with_traceback(None))
            else:
                results.append(batch)
                produced.append((batch, partition.log.config))
    errors = iter(await broker.batch_workers.validate(produced, broker.now_ms()))
    validated = [
        (next(errors) or result) if isinstance(result, RecordBatch) else result
        for result in results
    ]
    return _append(broker, context, request, iter(validated))


def _append(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    validated: Iterator[RecordBatch | Exception] | None = None,
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    """Append the batches of a request, and validate them first unless they are `validated`."""
    acks = request.acks
    now_ms = broker.now_ms()
    validates_records = validated is not None or broker.config.broker_validate_records
    delayed: _DelayedProduce | None = None
    topics = []
    # The message, not the error: an error references this frame, and would keep the request alive.
    failure: str | None = None
    leaders: set[int] = set()
    for topic in request.topic_data:
        name = topic.name
        responses = []
        for data in topic.partition_data:
            index = data.index
            try:
                batch = None
                if validated is not None:
                    batch = _batch_of(next(validated))
                partition = _find(broker, request, name, index)
                if batch is None:
                    batch = _parse(data.records, context.version)
                    config = partition.log.config
                    validate_header(batch, config)
                    if validates_records:
                        validate_records(batch, config, now_ms)
                    else:
                        validate_header_timestamp(batch, config, now_ms)
                appended = partition.append_produced(batch, now_ms, validates_records)
            except EXPECTED_ERRORS as error:
                failure = str(error)
                response = _error_response(index, error, context.version)
                broker.metrics.rejected_batches[ErrorCode.of(response.error_code).name] += 1
                leaders.add(response.current_leader.leader_id)
                responses.append(response)
                continue
            response = PartitionProduceResponse(
                index=index,
                base_offset=appended.base_offset,
                log_append_time_ms=appended.append_time_ms,
                log_start_offset=partition.log.start_offset,
            )
            responses.append(response)
            if acks != 0 and (
                partition.is_fsynced or (acks == _ACKS_ALL and partition.acks_all_means_fsync)
            ):
                if delayed is None:
                    delayed = _DelayedProduce(request.timeout_ms)
                delayed.wait_for(partition, appended.last_offset, responses)
        topics.append(TopicProduceResponse(name=name, partition_responses=responses))
    if acks == 0:
        # The client expects no response. As in Kafka, closing the connection reports the error.
        if failure is not None:
            context.connection.close(f"Produce with acks=0 failed: {failure}")
        return None
    endpoints = _endpoints(broker, context, leaders) if leaders else ()
    produce_response = ProduceResponse(responses=topics, node_endpoints=endpoints)
    return produce_response if delayed is None else delayed.respond_with(produce_response)


def _endpoints(
    broker: Broker, context: RequestContext, leaders: Iterable[int]
) -> list[NodeEndpoint]:
    """Return the endpoints of leaders, so that clients need no Metadata request (KIP-951)."""
    nodes = (broker.cluster.node(leader, context) for leader in leaders if leader >= 0)
    return [NodeEndpoint(node_id=node.id, host=node.host, port=node.port) for node in nodes]


def _batch_of(result: RecordBatch | Exception) -> RecordBatch:
    if isinstance(result, Exception):
        raise result
    return result


def _find(broker: Broker, request: ProduceRequest, topic: str, index: int) -> Partition:
    """Return a partition that a request may append to. Raises ApiError."""
    if request.acks not in (0, 1, _ACKS_ALL):
        raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
    partition = broker.topics.find(topic, index)
    if partition.is_internal:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    return partition


def _parse(records: Buffer | None, version: int) -> RecordBatch:
    """Return the batch of a partition, in a writable buffer. Raises ApiError and BatchError.

    Checks what the log does not: what clients may send, and in which version.
    """
    if records is None or len(records) < HEADER_BYTES:
        raise ApiError(ErrorCode.INVALID_RECORD, "The partition has no record batch")
    if LOG_OVERHEAD_BYTES <= batch_size(records) < len(records):
        raise ApiError(ErrorCode.INVALID_RECORD, "The partition has more than one record batch")
    attributes = records[_ATTRIBUTES_INDEX]
    if attributes & _TRANSACTIONAL_FLAG:
        raise ApiError(ErrorCode.INVALID_TXN_STATE, "Transactions are not supported")
    if attributes & _CODEC_MASK == Compression.ZSTD and version < _FIRST_VERSION_WITH_ZSTD:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"zstd requires Produce version {_FIRST_VERSION_WITH_ZSTD} or later",
        )
    view = memoryview(records)
    return RecordBatch(memoryview(bytearray(view)) if view.readonly else view)


def _error_response(index: int, error: Exception, version: int) -> PartitionProduceResponse:
    record_errors = []
    leader = LeaderIdAndEpoch()
    if isinstance(error, NotLeaderError) and version >= _FIRST_VERSION_WITH_LEADER:
        leader = LeaderIdAndEpoch(leader_id=error.leader_id, leader_epoch=error.leader_epoch)
    if isinstance(error, InvalidRecordsError):
        record_errors = [
            BatchIndexAndErrorMessage(batch_index=batch_index, batch_index_error_message=message)
            for batch_index, message in sorted(error.record_errors.items())
        ]
    return PartitionProduceResponse(
        index=index,
        error_code=error_code_of(error),
        base_offset=-1,
        record_errors=record_errors,
        error_message=str(error),
        current_leader=leader,
    )


class _DelayedProduce:
    """A response that waits for fsync, at most for the timeout of the request."""

    def __init__(self, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._future: asyncio.Future[ProduceResponse] = loop.create_future()
        self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._time_out)
        self._waiting: dict[int, tuple[list[PartitionProduceResponse], int]] = {}
        self._response: ProduceResponse | None = None

    def wait_for(
        self, partition: Partition, offset: int, responses: list[PartitionProduceResponse]
    ) -> None:
        """Wait until the record at `offset`, whose response is the last in the list, is durable."""
        number = len(self._waiting)
        self._waiting[number] = (responses, len(responses) - 1)

        def flushed(error: Exception | None) -> None:
            waiting = self._waiting.pop(number, None)
            if error is not None and waiting is not None:
                self._fail(*waiting, error)
            self._complete_if_done()

        partition.when_flushed(offset, flushed)

    def respond_with(self, response: ProduceResponse) -> asyncio.Future[ProduceResponse]:
        """Return a future that completes with the response when nothing is waited for."""
        self._response = response
        self._complete_if_done()
        return self._future

    def _time_out(self) -> None:
        error = ApiError(ErrorCode.REQUEST_TIMED_OUT, "Not fsynced within the request's timeout")
        for responses, index in self._waiting.values():
            self._fail(responses, index, error)
        self._waiting.clear()
        self._complete_if_done()

    def _fail(
        self, responses: list[PartitionProduceResponse], index: int, error: Exception
    ) -> None:
        # Version 0: an fsync error never comes with another leader.
        responses[index] = _error_response(responses[index].index, error, 0)

    def _complete_if_done(self) -> None:
        if self._response is None or self._waiting:
            return
        self._timer.cancel()
        if not self._future.done():
            self._future.set_result(self._response)
