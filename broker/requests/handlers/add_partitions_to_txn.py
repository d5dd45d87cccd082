"""AddPartitionsToTxn: add partitions to a transaction.

Versions up to 3 are for producers, one transaction each. Later ones are for brokers that lead
partitions: they verify that partitions are in transactions, or add them, for several transactions
at once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.coord.effects import Producer
from ottla.coord.metadata_image import INTERNAL_TOPICS, OFFSETS_TOPIC, TopicPartition
from ottla.protocol.api.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.errors import ErrorCode

from ...coordinators.verification import PartitionErrors, Question, ask_here
from ..authorization import DENIED, TOPIC, TRANSACTIONAL_ID, WRITE, allows
from ..errors import ApiError
from ..slices import in_slices
from .add_offsets_to_txn import fenced_code
from .write_txn_markers import check_cluster_action

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_FIRST_FOR_BROKERS = 4


async def handle(
    broker: Broker, context: RequestContext, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    """Handle AddPartitionsToTxn."""
    if context.version >= _FIRST_FOR_BROKERS:
        try:
            check_cluster_action(broker, context)
        except ApiError as error:
            return AddPartitionsToTxnResponse(error_code=error.code)
        results: list[AddPartitionsToTxnResult] = []
        async for transactions in in_slices(request.transactions):
            answers = [_answer(broker, transaction) for transaction in transactions]
            results += await asyncio.gather(*answers)
        return AddPartitionsToTxnResponse(results_by_transaction=results)
    codes = await _add(broker, context, request)
    return AddPartitionsToTxnResponse(
        results_by_topic_v3_and_below=_results(request.v3_and_below_topics, codes)
    )


async def _add(
    broker: Broker, context: RequestContext, request: AddPartitionsToTxnRequest
) -> PartitionErrors:
    """Add the partitions of a producer's request: all or none."""
    codes: PartitionErrors = {}
    transactional_id = request.v3_and_below_transactional_id
    if not allows(broker, context, WRITE, TRANSACTIONAL_ID, transactional_id):
        return {
            TopicPartition(topic.name, index): DENIED[TRANSACTIONAL_ID]
            for topic in request.v3_and_below_topics
            for index in topic.partitions
        }
    for topic in request.v3_and_below_topics:
        is_denied = topic.name in INTERNAL_TOPICS or not allows(
            broker, context, WRITE, TOPIC, topic.name
        )
        for index in topic.partitions:
            tp = TopicPartition(topic.name, index)
            if is_denied:
                codes[tp] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
            elif not broker.topics.image.has_partition(topic.name, index):
                codes[tp] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            else:
                codes[tp] = ErrorCode.NONE
    if any(codes.values()):
        return {tp: code or ErrorCode.OPERATION_NOT_ATTEMPTED for tp, code in codes.items()}
    producer = Producer(request.v3_and_below_producer_id, request.v3_and_below_producer_epoch)
    result = broker.transactions.submit(
        transactional_id,
        lambda shard, token, now: shard.add_partitions(
            transactional_id, producer, codes.keys(), token, now
        ),
        ErrorCode,
    )
    code = await result if isinstance(result, asyncio.Future) else result
    return dict.fromkeys(codes, fenced_code(code, context.version))


async def _answer(
    broker: Broker, transaction: AddPartitionsToTxnTransaction
) -> AddPartitionsToTxnResult:
    """Answer another broker about one transaction."""
    partitions = tuple(
        TopicPartition(topic.name, index)
        for topic in transaction.topics
        for index in topic.partitions
    )
    codes: PartitionErrors = {}
    if not transaction.verify_only:
        codes = {
            tp: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            for tp in partitions
            if not broker.topics.image.has_partition(*tp)
            or (tp.topic in INTERNAL_TOPICS and tp.topic != OFFSETS_TOPIC)
        }
    if codes:
        codes = {tp: codes.get(tp, ErrorCode.OPERATION_NOT_ATTEMPTED) for tp in partitions}
    else:
        producer = Producer(transaction.producer_id, transaction.producer_epoch)
        codes = await ask_here(
            broker,
            Question(
                transaction.transactional_id, producer, partitions, not transaction.verify_only
            ),
        )
    return AddPartitionsToTxnResult(
        transactional_id=transaction.transactional_id,
        topic_results=_results(transaction.topics, codes),
    )


def _results(
    topics: Sequence[AddPartitionsToTxnTopic], codes: PartitionErrors
) -> list[AddPartitionsToTxnTopicResult]:
    return [
        AddPartitionsToTxnTopicResult(
            name=topic.name,
            results_by_partition=[
                AddPartitionsToTxnPartitionResult(
                    partition_index=index,
                    partition_error_code=codes[TopicPartition(topic.name, index)],
                )
                for index in topic.partitions
            ],
        )
        for topic in topics
    ]
