"""Produce: validate and append record batches, and respond when they are as durable as requested.

Batches are stored as they arrive, apart from what the broker assigns, and from topics with
`compression.type`. A request whose records are compressed, many, or to be compressed by the broker
is validated in a thread; the others, which take microseconds, at once. All
batches of a request are appended before the next request of the connection is started, which keeps
a client's order. Then the partitions whose ack means fsync are waited for, while the connection
goes on.

A request with a transactional id is verified first (KIP-890): the first batch of a transaction in
each partition must belong to it. The order stays: verification precedes the append of all batches.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ottla.coord.effects import Producer
from ottla.coord.metadata_image import TopicPartition
from ottla.coord.partition_state import NO_LEADER
from ottla.protocol.api.produce import (
    BatchIndexAndErrorMessage,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from ottla.protocol.batch import (
    HEADER_BYTES,
    LOG_OVERHEAD_BYTES,
    TRANSACTIONAL,
    RecordBatch,
    batch_size,
)
from ottla.protocol.compression import Compression
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Buffer
from ottla.storage.errors import InvalidRecordsError
from ottla.storage.recompression import needs_recompression
from ottla.storage.validation import validate_header, validate_header_timestamp, validate_records

from ..authorization import DENIED, TOPIC, TRANSACTIONAL_ID, WRITE, allows, check
from ..errors import EXPECTED_ERRORS, ApiError, NotLeaderError, error_code_of, error_message_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ...coordinators.verification import Guard
    from ...partitions.disk_space import DiskSpace
    from ...partitions.partition import FlushCallback, Partition
    from ..batch_workers import ProducedBatch
    from ..dispatch import RequestContext

_ACKS_ALL = -1
_FIRST_VERSION_WITH_ZSTD = 7
_FIRST_VERSION_WITH_LEADER = 10
_FIRST_VERSION_WITH_TRANSACTION_ABORTABLE = 11
_FIRST_VERSION_THAT_ADDS_PARTITIONS = 12
_FIRST_VERSION_WITH_TOPIC_IDS = 13
# The low byte of the attributes in the batch header.
_ATTRIBUTES_INDEX = 22
_CODEC_MASK = 0x07
# Producer id and epoch in the batch header.
_PRODUCER = struct.Struct(">qh")
_PRODUCER_AT = 43
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
    if context.version >= _FIRST_VERSION_WITH_TOPIC_IDS:
        request = _with_topic_names(broker, request)
    if broker.authorizer is not None and not _may_write_in_transaction(broker, context, request):
        return _refuse(context, request, ApiError(DENIED[TRANSACTIONAL_ID]))
    if (broker.config.broker_validate_records and _needs_thread(request)) or (
        broker.topics.may_recompress and _needs_recompression(broker, request)
    ):
        return _validate_in_thread(broker, context, request)
    if request.transactional_id is not None:
        return _verify_and_append(broker, context, request)
    return _append(broker, context, request)


def _may_write_in_transaction(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> bool:
    """Whether a client may use its transactional id, if it writes transactional batches."""
    transactional_id = request.transactional_id
    return (
        transactional_id is None
        or not _transactional_batches(request)
        or allows(broker, context, WRITE, TRANSACTIONAL_ID, transactional_id)
    )


def _refuse(
    context: RequestContext, request: ProduceRequest, error: ApiError
) -> ProduceResponse | None:
    """Refuse all batches of a request."""
    if request.acks == 0:
        context.connection.close(f"Produce with acks=0 failed: {error}")
        return None
    return ProduceResponse(
        responses=[
            TopicProduceResponse(
                name=topic.name,
                topic_id=topic.topic_id,
                partition_responses=[
                    _error_response(data.index, error, context.version)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
    )


def _with_topic_names(broker: Broker, request: ProduceRequest) -> ProduceRequest:
    """Return the request with the names of its topics; an unknown id keeps an empty name."""
    topics = broker.topics.image.topics_by_id
    found_topics = [topics.get(topic.topic_id) for topic in request.topic_data]
    return ProduceRequest(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        topic_data=[
            TopicProduceData(
                name="" if found is None else found.name,
                topic_id=topic.topic_id,
                partition_data=topic.partition_data,
            )
            for topic, found in zip(request.topic_data, found_topics, strict=True)
        ],
    )


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


def _needs_recompression(broker: Broker, request: ProduceRequest) -> bool:
    """Whether a log stores a batch of the request with another codec."""
    for topic in request.topic_data:
        for data in topic.partition_data:
            records = data.records
            if records is not None and len(records) >= HEADER_BYTES:
                try:
                    config = broker.topics.find(topic.name, data.index).log.config
                except ApiError:
                    continue  # The append fails with it.
                if needs_recompression(records[_ATTRIBUTES_INDEX] & _CODEC_MASK, config):
                    return True
    return False


async def _validate_in_thread(
    broker: Broker, context: RequestContext, request: ProduceRequest
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    """Validate all batches of a request, then append them."""
    results: list[RecordBatch | Exception] = []
    produced: list[ProducedBatch] = []
    for topic in request.topic_data:
        for data in topic.partition_data:
            try:
                partition = _find(broker, context, topic.name, data.index)
                batch = _parse(data.records, context.version, request.transactional_id)
            except EXPECTED_ERRORS as error:
                results.append(error.with_traceback(None))
            else:
                results.append(batch)
                produced.append((batch, partition.log.config))
    outcomes = iter(await broker.batch_workers.validate(produced, broker.now_ms()))
    validated = [
        (next(outcomes) or result) if isinstance(result, RecordBatch) else result
        for result in results
    ]
    if request.transactional_id is not None:
        result = _verify_and_append(broker, context, request, validated)
        return await result if isinstance(result, Coroutine) else result
    return _append(broker, context, request, iter(validated))


def _verify_and_append(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    validated: list[RecordBatch | Exception] | None = None,
) -> (
    ProduceResponse
    | asyncio.Future[ProduceResponse]
    | Coroutine[Any, Any, ProduceResponse | asyncio.Future[ProduceResponse] | None]
    | None
):
    """Verify and append the batches of a transactional producer."""
    batches = _transactional_batches(request)
    producer_ids = {producer.id for _tp, producer in batches}
    if len(producer_ids) > 1:
        errors = {
            TopicPartition(topic.name, data.index): ErrorCode.INVALID_PRODUCER_ID_MAPPING
            for topic in request.topic_data
            for data in topic.partition_data
        }
        return _append(broker, context, request, _iterate(validated), errors)
    if not _unverified(broker, context, batches):
        return _append(broker, context, request, _iterate(validated), {})
    return _ask_and_append(broker, context, request, batches, validated)


async def _ask_and_append(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    batches: list[tuple[TopicPartition, Producer]],
    validated: list[RecordBatch | Exception] | None,
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    """Ask the transaction coordinator about batches, then append those that it accepts."""
    version = context.version
    verifications = broker.transactions.verifications
    assert request.transactional_id is not None
    producer = batches[0][1]
    with verifications.guard(producer.id) as guard:
        # A marker that arrives meanwhile revokes what was verified: nothing is awaited between the
        # last look and the append.
        while unverified := _unverified(broker, context, batches, guard):
            await verifications.verify(
                guard,
                request.transactional_id,
                unverified[0][1],
                [tp for tp, one in unverified if one == unverified[0][1]],
                adds=version >= _FIRST_VERSION_THAT_ADDS_PARTITIONS,
            )
        errors = {
            tp: _produce_code(code, version)
            for tp, code in guard.results.items()
            if code is not ErrorCode.NONE
        }
        return _append(broker, context, request, _iterate(validated), errors)


def _transactional_batches(request: ProduceRequest) -> list[tuple[TopicPartition, Producer]]:
    """Return the partitions with transactional batches, and the producers of these."""
    return [
        (
            TopicPartition(topic.name, data.index),
            Producer(*_PRODUCER.unpack_from(data.records, _PRODUCER_AT)),
        )
        for topic in request.topic_data
        for data in topic.partition_data
        if data.records is not None
        and len(data.records) >= HEADER_BYTES
        and data.records[_ATTRIBUTES_INDEX] & TRANSACTIONAL
    ]


def _unverified(
    broker: Broker,
    context: RequestContext,
    batches: list[tuple[TopicPartition, Producer]],
    guard: Guard | None = None,
) -> list[tuple[TopicPartition, Producer]]:
    """Return the batches that begin a transaction in their partition, and are not verified."""
    if (
        context.version < _FIRST_VERSION_THAT_ADDS_PARTITIONS
        and not broker.config.transaction_partition_verification_enable
    ):
        return []
    unverified = []
    for tp, producer in batches:
        if guard is not None and tp in guard.results:
            continue
        try:
            check(broker, context, WRITE, TOPIC, tp.topic)
            partition = broker.topics.find(*tp)
        except ApiError:
            continue  # The append fails with it.
        if not partition.is_internal and not partition.has_open_transaction(*producer):
            unverified.append((tp, producer))
    return unverified


def _produce_code(code: ErrorCode, version: int) -> ErrorCode:
    """Return the error of a batch for what the transaction coordinator answered."""
    if code is ErrorCode.TRANSACTION_ABORTABLE:
        is_known = version >= _FIRST_VERSION_WITH_TRANSACTION_ABORTABLE
        return code if is_known else ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code in (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.INVALID_REQUEST):
        return code
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version >= _FIRST_VERSION_THAT_ADDS_PARTITIONS:
        return code
    # All clients retry it, without a metadata refresh.
    return ErrorCode.NOT_ENOUGH_REPLICAS


def _iterate(
    validated: list[RecordBatch | Exception] | None,
) -> Iterator[RecordBatch | Exception] | None:
    return None if validated is None else iter(validated)


def _append(
    broker: Broker,
    context: RequestContext,
    request: ProduceRequest,
    validated: Iterator[RecordBatch | Exception] | None = None,
    unverified: Mapping[TopicPartition, ErrorCode] | None = None,
) -> ProduceResponse | asyncio.Future[ProduceResponse] | None:
    """Append the batches of a request, and validate them first unless they are `validated`.

    `unverified` has the partitions that a transactional producer must not append to.
    """
    acks = request.acks
    now_ms = broker.now_ms()
    validates_records = validated is not None or broker.config.broker_validate_records
    batch_bytes = broker.metrics.produced_batch_bytes
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
                result = None if validated is None else next(validated)
                if isinstance(result, ApiError):
                    raise result
                partition = _find(broker, context, name, index)
                if result is None:
                    result = _parse(data.records, context.version, request.transactional_id)
                if unverified is not None and (name, index) in unverified:
                    raise ApiError(unverified[TopicPartition(name, index)])
                if acks not in (0, 1, _ACKS_ALL):
                    raise ApiError(ErrorCode.INVALID_REQUIRED_ACKS)
                if isinstance(result, Exception):
                    raise result
                if partition.progress is not None:
                    _check_replicas(broker, partition, acks)
                batch = result
                if validated is None:
                    config = partition.log.config
                    validate_header(batch, config)
                    if validates_records:
                        validate_records(batch, config, now_ms)
                    else:
                        validate_header_timestamp(batch, config, now_ms)
                if unverified is None:
                    appended = partition.append_produced(batch, now_ms, validates_records)
                else:
                    appended = partition.append_produced(
                        batch,
                        now_ms,
                        validates_records,
                        must_start_at_zero=(
                            context.version >= _FIRST_VERSION_THAT_ADDS_PARTITIONS
                            and batch.is_transactional
                        ),
                    )
                batch_bytes.observe(batch.size)
            except EXPECTED_ERRORS as error:
                failure = str(error)
                response = _error_response(index, error, context.version)
                if response.error_code == ErrorCode.KAFKA_STORAGE_ERROR:
                    broker.disk_space.count(error)
                    if broker.replicas is not None:
                        broker.replicas.append_failed(partition, error)
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
                partition.is_fsynced or (acks == _ACKS_ALL and partition.acks_all_waits)
            ):
                if delayed is None:
                    delayed = _DelayedProduce(
                        request.timeout_ms, broker.disk_space, context.version
                    )
                wait = partition.when_committed if acks == _ACKS_ALL else partition.when_flushed
                delayed.wait_for(wait, appended.last_offset, responses)
        topics.append(
            TopicProduceResponse(name=name, topic_id=topic.topic_id, partition_responses=responses)
        )
    if acks == 0:
        # The client expects no response. As in Kafka, closing the connection reports the error.
        if failure is not None:
            context.connection.close(f"Produce with acks=0 failed: {failure}")
        return None
    endpoints = _endpoints(broker, context, leaders) if leaders else ()
    produce_response = ProduceResponse(responses=topics, node_endpoints=endpoints)
    return produce_response if delayed is None else delayed.respond_with(produce_response)


def _check_replicas(broker: Broker, partition: Partition, acks: int) -> None:
    """Raise ApiError if the replicas of a partition cannot keep what an ack promises."""
    if acks == _ACKS_ALL and partition.is_under_min_isr:
        raise ApiError(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"Too few in-sync replicas: min.insync.replicas is {partition.min_isr}",
        )
    if not broker.may_lead(partition):
        raise NotLeaderError(NO_LEADER, partition.leader_epoch)


def _endpoints(
    broker: Broker, context: RequestContext, leaders: Iterable[int]
) -> list[NodeEndpoint]:
    """Return the endpoints of leaders, so that clients need no Metadata request (KIP-951)."""
    nodes = broker.cluster.known_nodes(leaders, context)
    return [NodeEndpoint(node_id=node.id, host=node.host, port=node.port) for node in nodes]


def _find(broker: Broker, context: RequestContext, topic: str, index: int) -> Partition:
    """Return a partition that a request may append to. Raises ApiError."""
    if not topic and context.version >= _FIRST_VERSION_WITH_TOPIC_IDS:
        raise ApiError(ErrorCode.UNKNOWN_TOPIC_ID)
    if broker.authorizer is not None:
        check(broker, context, WRITE, TOPIC, topic)
    partition = broker.topics.find(topic, index)
    if partition.is_internal:
        raise ApiError(ErrorCode.INVALID_TOPIC_EXCEPTION)
    return partition


def _parse(records: Buffer | None, version: int, transactional_id: str | None) -> RecordBatch:
    """Return the batch of a partition, in a writable buffer. Raises ApiError and BatchError.

    Checks what the log does not: what clients may send, and in which version.
    """
    if records is None or len(records) < HEADER_BYTES:
        raise ApiError(ErrorCode.INVALID_RECORD, "The partition has no record batch")
    if LOG_OVERHEAD_BYTES <= batch_size(records) < len(records):
        raise ApiError(ErrorCode.INVALID_RECORD, "The partition has more than one record batch")
    attributes = records[_ATTRIBUTES_INDEX]
    if attributes & TRANSACTIONAL and transactional_id is None:
        raise ApiError(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            "A transactional batch in a request without a transactional id",
        )
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
        error_message=error_message_of(error),
        current_leader=leader,
    )


class _DelayedProduce:
    """A response that waits for fsync or the replicas, at most for the timeout of the request."""

    def __init__(self, timeout_ms: int, disk_space: DiskSpace, version: int) -> None:
        loop = asyncio.get_running_loop()
        self._disk_space = disk_space
        self._version = version
        self._future: asyncio.Future[ProduceResponse] = loop.create_future()
        self._timer = loop.call_later(max(timeout_ms, 0) / 1000, self._time_out)
        self._waiting: dict[int, tuple[list[PartitionProduceResponse], int]] = {}
        self._response: ProduceResponse | None = None

    def wait_for(
        self,
        wait: Callable[[int, FlushCallback], None],
        offset: int,
        responses: list[PartitionProduceResponse],
    ) -> None:
        """Wait for the record at `offset`, whose response is the last in the list."""
        number = len(self._waiting)
        self._waiting[number] = (responses, len(responses) - 1)

        def flushed(error: Exception | None) -> None:
            waiting = self._waiting.pop(number, None)
            if error is not None and waiting is not None:
                if not isinstance(error, ApiError):
                    self._disk_space.count(error)
                self._fail(*waiting, error)
            self._complete_if_done()

        wait(offset, flushed)

    def respond_with(self, response: ProduceResponse) -> asyncio.Future[ProduceResponse]:
        """Return a future that completes with the response when nothing is waited for."""
        self._response = response
        self._complete_if_done()
        return self._future

    def _time_out(self) -> None:
        error = ApiError(
            ErrorCode.REQUEST_TIMED_OUT,
            "Not fsynced, or not replicated, within the request's timeout",
        )
        for responses, index in self._waiting.values():
            self._fail(responses, index, error)
        self._waiting.clear()
        self._complete_if_done()

    def _fail(
        self, responses: list[PartitionProduceResponse], index: int, error: Exception
    ) -> None:
        responses[index] = _error_response(responses[index].index, error, self._version)

    def _complete_if_done(self) -> None:
        if self._response is None or self._waiting:
            return
        self._timer.cancel()
        if not self._future.done():
            self._future.set_result(self._response)
