"""Produce: append batches, and answer when they are as safe as the topic and the client want.

Batches are stored as they came; nothing here looks at a record. All of a request is appended before
anything else of its connection is looked at, so that what a client sent first comes first. Then
partitions whose ack means the device are waited for, and the connection goes on meanwhile.
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
from ottla.protocol.batch import HEADER_BYTES
from ottla.protocol.compression import Compression
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Buffer
from ottla.storage.errors import KeylessRecordError

from ...partitions.partition import LEADER_EPOCH
from ..errors import EXPECTED_ERRORS, ApiError, NotLeaderError, error_code_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ...partitions.partition import Partition
    from ..dispatch import RequestContext

ALL = -1
_FIRST_WITH_ZSTD = 7
_FIRST_WITH_LEADER = 10
# The low byte of a batch's attributes, and what it says.
_ATTRIBUTES_AT = 22
_CODEC = 0x07
_TRANSACTIONAL = 0x10
_LENGTH = slice(8, 12)
_BEFORE_LENGTH_COUNTS = 12


def handle(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    """Answer Produce."""
    acks = request.acks
    now_ms = broker.now_ms()
    pending: _Pending | None = None
    responses = []
    # Not the error itself: it knows this function's variables, and would keep the request alive.
    failure: str | None = None
    owners: set[int] = set()
    for topic in request.topic_data:
        name = topic.name
        results = []
        for data in topic.partition_data:
            index = data.index
            try:
                if acks not in (0, 1, ALL):
                    raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
                partition = broker.topics.find(name, index)
                if partition.is_internal:
                    raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
                records = _check(data.records, context.version)
                appended = partition.append(records, now_ms)
            except EXPECTED_ERRORS as error:
                failure = str(error)
                result = _failed(index, error, context.version)
                owners.add(result.current_leader.leader_id)
                results.append(result)
                continue
            result = PartitionProduceResponse(
                index=index,
                base_offset=appended.base_offset,
                log_append_time_ms=appended.append_time_ms,
                log_start_offset=partition.log.start_offset,
            )
            results.append(result)
            if acks != 0 and (
                partition.is_fsynced or (acks == ALL and partition.acks_all_means_fsync)
            ):
                if pending is None:
                    pending = _Pending(request.timeout_ms)
                pending.wait_for(partition, appended.last_offset, results)
        responses.append(TopicProduceResponse(name=name, partition_responses=results))
    if acks == 0:
        # No answer is expected; an end of the connection is the only way to tell.
        if failure is not None:
            context.connection.close(f"Produce with acks=0 failed: {failure}")
        return None
    endpoints = _endpoints(broker, context, owners) if owners else ()
    response = ProduceResponse(responses=responses, node_endpoints=endpoints)
    return response if pending is None else pending.answer_with(response)


def _endpoints(
    broker: Broker, context: RequestContext, owners: Iterable[int]
) -> list[NodeEndpoint]:
    """Say where the brokers are that own what was sent here, so that nobody has to ask."""
    nodes = (broker.cluster.node(owner, context) for owner in owners if owner >= 0)
    return [NodeEndpoint(node_id=one.id, host=one.host, port=one.port) for one in nodes]


def _check(records: Buffer | None, version: int) -> Buffer:
    """Check what a log does not: what clients may send, and in which version."""
    if records is None or len(records) < HEADER_BYTES:
        raise ApiError(ErrorCode.INVALID_RECORD, "there is no batch")
    if int.from_bytes(records[_LENGTH]) + _BEFORE_LENGTH_COUNTS < len(records):
        raise ApiError(ErrorCode.INVALID_RECORD, "there is something behind the batch")
    attributes = records[_ATTRIBUTES_AT]
    if attributes & _TRANSACTIONAL:
        raise ApiError(ErrorCode.INVALID_TXN_STATE, "there are no transactions here yet")
    if attributes & _CODEC == Compression.ZSTD and version < _FIRST_WITH_ZSTD:
        raise ApiError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"zstd is for Produce {_FIRST_WITH_ZSTD}"
        )
    return records


def _failed(index: int, error: Exception, version: int) -> PartitionProduceResponse:
    record_errors = []
    leader = LeaderIdAndEpoch()
    if isinstance(error, NotLeaderError) and version >= _FIRST_WITH_LEADER:
        leader = LeaderIdAndEpoch(leader_id=error.leader_id, leader_epoch=LEADER_EPOCH)
    if isinstance(error, KeylessRecordError):
        record_errors.append(
            BatchIndexAndErrorMessage(
                batch_index=error.index, batch_index_error_message="the record has no key"
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


class _Pending:
    """A response that waits for the device, but not longer than the client does."""

    def __init__(self, timeout_ms: int) -> None:
        loop = asyncio.get_running_loop()
        self._future: asyncio.Future[ProduceResponse] = loop.create_future()
        self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._too_late)
        self._waiting: dict[int, tuple[list[PartitionProduceResponse], int]] = {}
        self._response: ProduceResponse | None = None

    def wait_for(
        self, partition: Partition, offset: int, results: list[PartitionProduceResponse]
    ) -> None:
        """Wait until the device has a record, whose result is the last one in the list."""
        number = len(self._waiting)
        self._waiting[number] = (results, len(results) - 1)

        def flushed(error: Exception | None) -> None:
            waited = self._waiting.pop(number, None)
            if error is not None and waited is not None:
                self._fail(*waited, error)
            self._answer_if_done()

        partition.when_flushed(offset, flushed)

    def answer_with(self, response: ProduceResponse) -> asyncio.Future[ProduceResponse]:
        """Give the response when all has been waited for."""
        self._response = response
        self._answer_if_done()
        return self._future

    def _too_late(self) -> None:
        error = ApiError(ErrorCode.REQUEST_TIMED_OUT, "the device has not confirmed it in time")
        for results, at in self._waiting.values():
            self._fail(results, at, error)
        self._waiting.clear()
        self._answer_if_done()

    def _fail(self, results: list[PartitionProduceResponse], at: int, error: Exception) -> None:
        # Whatever it is, it is no question of who owns the partition.
        results[at] = _failed(results[at].index, error, 0)

    def _answer_if_done(self) -> None:
        if self._response is None or self._waiting:
            return
        self._timer.cancel()
        if not self._future.done():
            self._future.set_result(self._response)
