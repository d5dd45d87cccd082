"""ReadShareGroupState: the leader of a partition becomes the owner of its state in a share group.

Between brokers. Each read fences who read the state before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coord.consumer.partitions import TopicIdPartition
from ottla.protocol.api.read_share_group_state import (
    PartitionData,
    PartitionResult,
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateResult,
)
from ottla.protocol.errors import ErrorCode

from ...shares.persister import SharePartitionKey, read_here, wire_batches
from ..errors import ApiError
from .write_txn_markers import check_cluster_action

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: ReadShareGroupStateRequest
) -> ReadShareGroupStateResponse:
    """Handle ReadShareGroupState."""
    refused = ErrorCode.NONE
    try:
        check_cluster_action(broker, context)
    except ApiError as error:
        refused = error.code
    return ReadShareGroupStateResponse(
        results=[
            ReadStateResult(
                topic_id=topic.topic_id,
                partitions=[
                    await _read(
                        broker,
                        SharePartitionKey(
                            request.group_id,
                            TopicIdPartition(topic.topic_id, partition.partition),
                        ),
                        partition,
                        refused,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


async def _read(
    broker: Broker, key: SharePartitionKey, asked: PartitionData, refused: ErrorCode
) -> PartitionResult:
    code, state = refused, None
    if refused is ErrorCode.NONE:
        code, state = await read_here(broker, key, asked.leader_epoch)
    if state is None:
        return PartitionResult(
            partition=asked.partition, error_code=code, error_message=code.message
        )
    return PartitionResult(
        partition=asked.partition,
        state_epoch=state.state_epoch,
        start_offset=state.start_offset,
        state_batches=wire_batches(state.batches),
    )
