"""TxnOffsetCommit: commit the offsets of a group as part of a transaction.

The offsets are pending until the transaction ends. Since version 5 the group's offsets are added to
the transaction here; before, with AddOffsetsToTxn.
"""

from __future__ import annotations

import asyncio
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

from ..authorization import DENIED, GROUP, READ, TRANSACTIONAL_ID, WRITE, allows
from .offset_commit import denied_partitions, offsets_of_existing_partitions

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
        return _response(request, {}, ErrorCode.INVALID_GROUP_ID)
    transactional_id = request.transactional_id
    if not allows(broker, context, WRITE, TRANSACTIONAL_ID, transactional_id):
        return _response(request, {}, DENIED[TRANSACTIONAL_ID])
    if not allows(broker, context, READ, GROUP, group_id):
        return _response(request, {}, DENIED[GROUP])
    denied = denied_partitions(broker, context, request)
    offsets = offsets_of_existing_partitions(broker, request, denied)
    if not offsets:
        return _response(request, denied)  # Nothing is added to the transaction.
    if not transactional_id:
        codes = dict.fromkeys(offsets, ErrorCode.INVALID_REQUEST)
        return _response(request, {**codes, **denied})
    producer = Producer(request.producer_id, request.producer_epoch)
    with broker.transactions.verifications.guard(producer.id) as guard:
        code = await _verify(broker, context, request, producer, guard)
        offsets = offsets_of_existing_partitions(broker, request, denied)
        if code is not ErrorCode.NONE:
            return _response(request, {**dict.fromkeys(offsets, code), **denied})
        # Verified and appended in one step.
        identity = MemberIdentity(
            request.member_id, request.group_instance_id, request.generation_id
        )
        result = broker.groups.submit(
            group_id,
            lambda shard, token, _now: shard.commit_in_transaction(
                group_id,
                identity,
                producer,
                offsets,
                lambda codes: Reply(token, _response(request, {**codes, **denied})),
            ),
            lambda code: _response(request, {**dict.fromkeys(offsets, code), **denied}),
        )
    return await result if isinstance(result, asyncio.Future) else result


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


def _response(
    request: TxnOffsetCommitRequest,
    codes: PartitionErrors,
    default: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
) -> TxnOffsetCommitResponse:
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(
                        partition_index=partition.partition_index,
                        error_code=codes.get(
                            TopicPartition(topic.name, partition.partition_index), default
                        ),
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
