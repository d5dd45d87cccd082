"""TxnOffsetCommit: commit the offsets of a group as part of a transaction.

The offsets are pending until the transaction ends. Since version 5 the group's offsets are added to
the transaction here; before, with AddOffsetsToTxn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Container
from typing import TYPE_CHECKING

from ottla.coord.effects import Producer, Reply
from ottla.coord.group_shard import MemberIdentity, PartitionErrors
from ottla.coord.metadata_image import OFFSETS_TOPIC, TopicPartition
from ottla.protocol.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DENIED, GROUP, READ, TOPIC, TRANSACTIONAL_ID, WRITE, allows
from ..slices import in_slices, map_in_slices
from .offset_commit import denied_topics, offsets_of_existing_partitions

if TYPE_CHECKING:
    from ...broker import Broker
    from ...coordinators.verification import Guard
    from ..dispatch import RequestContext

_FIRST_WITH_LOAD_IN_PROGRESS = 2
_FIRST_WITH_TRANSACTION_ABORTABLE = 4
_FIRST_THAT_ADDS_OFFSETS = 5


async def handle(
    broker: Broker, context: RequestContext, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse:
    """Handle TxnOffsetCommit."""
    group_id = request.group_id
    if not group_id:
        return await _response(request, {}, ErrorCode.INVALID_GROUP_ID)
    transactional_id = request.transactional_id
    if not allows(broker, context, WRITE, TRANSACTIONAL_ID, transactional_id):
        return await _response(request, {}, DENIED[TRANSACTIONAL_ID])
    if not allows(broker, context, READ, GROUP, group_id):
        return await _response(request, {}, DENIED[GROUP])
    denied = await denied_topics(broker, context, request)
    offsets = await offsets_of_existing_partitions(broker, request, denied)
    if not offsets:
        return await _response(request, {}, denied=denied)  # Nothing is added to the transaction.
    if not transactional_id:
        codes = dict.fromkeys(offsets, ErrorCode.INVALID_REQUEST)
        return await _response(request, codes, denied=denied)
    producer = Producer(request.producer_id, request.producer_epoch)
    with broker.transactions.verifications.guard(producer.id) as guard:
        code = await _verify(broker, context, request, producer, guard)
        # Verified and appended in one step; topics may have been deleted before it.
        image = broker.topics.image
        offsets = {
            tp: committed
            for tp, committed in offsets.items()
            if image.has_partition(*tp) and image.topics[tp.topic].id == committed.topic_id
        }
        if code is not ErrorCode.NONE:
            return await _response(request, dict.fromkeys(offsets, code), denied=denied)
        identity = MemberIdentity(
            request.member_id, request.group_instance_id, request.generation_id
        )
        result: PartitionErrors | asyncio.Future[PartitionErrors] = broker.groups.submit(
            group_id,
            lambda shard, token, _now: shard.commit_in_transaction(
                group_id,
                identity,
                producer,
                offsets,
                lambda codes: Reply(token, codes),
            ),
            lambda code: dict.fromkeys(offsets, code),
        )
    codes = await result if isinstance(result, asyncio.Future) else result
    return await _response(request, codes, denied=denied)


async def _verify(
    broker: Broker,
    context: RequestContext,
    request: TxnOffsetCommitRequest,
    producer: Producer,
    guard: Guard,
) -> ErrorCode:
    """Return NONE once the group's offsets are in the transaction, else the error."""
    adds = context.version >= _FIRST_THAT_ADDS_OFFSETS
    while True:
        code = broker.groups.check(request.group_id)
        if code is not ErrorCode.NONE:
            is_old = context.version < _FIRST_WITH_LOAD_IN_PROGRESS
            if code is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and is_old:
                return ErrorCode.COORDINATOR_NOT_AVAILABLE
            return code
        tp = TopicPartition(OFFSETS_TOPIC, broker.groups.partition_index_of(request.group_id))
        partition = broker.groups.shards[tp.partition].partition
        if partition.has_open_transaction(*producer):
            return ErrorCode.NONE
        if not adds and not broker.config.transaction_partition_verification_enable:
            return ErrorCode.NONE
        if tp in guard.results:
            return _commit_code(guard.results[tp], context.version)
        await broker.transactions.verifications.verify(
            guard, request.transactional_id, producer, [tp], adds=adds
        )


def _commit_code(code: ErrorCode, version: int) -> ErrorCode:
    """Return the error of a commit for what the transaction coordinator answered."""
    if code is ErrorCode.TRANSACTION_ABORTABLE:
        is_known = version >= _FIRST_WITH_TRANSACTION_ABORTABLE
        return code if is_known else ErrorCode.INVALID_TXN_STATE
    if code is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if code is ErrorCode.CONCURRENT_TRANSACTIONS and version >= _FIRST_THAT_ADDS_OFFSETS:
        return code
    if code in (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_ID_MAPPING):
        return code
    return ErrorCode.COORDINATOR_NOT_AVAILABLE


async def _response(
    request: TxnOffsetCommitRequest,
    codes: PartitionErrors,
    default: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    denied: Container[str] = (),
) -> TxnOffsetCommitResponse:
    of_topics: list[list[TxnOffsetCommitResponsePartition]] = [[] for _topic in request.topics]
    entries = (
        (topic.name, of_topic, partition.partition_index)
        for topic, of_topic in zip(request.topics, of_topics, strict=True)
        for partition in topic.partitions
    )
    async for entries_of_slice in in_slices(entries):
        for name, of_topic, index in entries_of_slice:
            code = codes.get(TopicPartition(name, index), default)
            if name in denied:
                code = DENIED[TOPIC]
            of_topic.append(
                TxnOffsetCommitResponsePartition(partition_index=index, error_code=code)
            )
    topics = await map_in_slices(
        lambda pair: TxnOffsetCommitResponseTopic(name=pair[0].name, partitions=pair[1]),
        zip(request.topics, of_topics, strict=True),
    )
    return TxnOffsetCommitResponse(topics=topics)
