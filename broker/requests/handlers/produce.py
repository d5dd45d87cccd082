"""Produce: append record batches, and respond when they are as durable as requested.

Batches are stored as they arrive; nothing here reads a record. All batches of a request are
appended before the next request of the connection is read, which keeps a client's order. Then the
partitions whose ack means fsync are waited for, while the connection goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.protocol.api.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES, batch_size
from ottla.protocol.compression import Compression
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Buffer
from ottla.storage.errors import KeylessRecordError

from ..errors import EXPECTED_ERRORS, ApiError, NotLeaderError, error_code_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ...partitions.partition import Partition
    from ..dispatch import RequestContext

_ACKS_ALL = -1
_FIRST_VERSION_WITH_ZSTD = 7
_FIRST_VERSION_WITH_LEADER = 10
# Fields of the batch header: the low byte of the attributes, and the length, which counts the
# bytes after itself.
_ATTRIBUTES_INDEX = 22
_CODEC_MASK = 0x07
_TRANSACTIONAL_FLAG = 0x10


def handle(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    """Handle Produce."""
    acks = request.acks
    now_ms = broker.now_ms()
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
                if acks not in (0, 1, _ACKS_ALL):
                    raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
                partition = broker.topics.find(name, index)
                if partition.is_internal:
                    raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
                records = _validate(data.records, context.version)
                appended = partition.append(records, now_ms)
            except EXPECTED_ERRORS as error:
                failure = str(error)
                response = _error_response(index, error, context.version)
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


def _validate(records: Buffer | None, version: int) -> Buffer:
    """Check what the log does not: what clients may send, and in which version. Raises ApiError."""
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
    return records


def _error_response(index: int, error: Exception, version: int) -> PartitionProduceResponse:
    record_errors = []
    leader = LeaderIdAndEpoch()
    if isinstance(error, NotLeaderError) and version >= _FIRST_VERSION_WITH_LEADER:
        leader = LeaderIdAndEpoch(leader_id=error.leader_id, leader_epoch=error.leader_epoch)
    if isinstance(error, KeylessRecordError):
        record_errors.append(
            BatchIndexAndErrorMessage(
                batch_index=error.index,
                batch_index_error_message="A compacted topic cannot accept a record without a key",
            )
        )
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
