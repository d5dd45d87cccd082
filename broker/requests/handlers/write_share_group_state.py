"""WriteShareGroupState: store the state of a partition in a share group, for its owner.

Between brokers. Each write has the complete state. Who is not the owner any more is fenced.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coord.consumer.partitions import TopicIdPartition
from ottla.protocol.api.initialize_share_group_state import PartitionResult, StateResult
from ottla.protocol.api.write_share_group_state import (
    PartitionData,
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
)
from ottla.protocol.errors import ErrorCode

from ...shares.persister import SharePartitionKey, WrittenState, batches_of, write_here
from ..errors import ApiError
from .write_txn_markers import check_cluster_action

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


async def handle(
    broker: Broker, context: RequestContext, request: WriteShareGroupStateRequest
) -> WriteShareGroupStateResponse:
    """Handle WriteShareGroupState."""
    refused = ErrorCode.NONE
    try:
        check_cluster_action(broker, context)
    except ApiError as error:
        refused = error.code
    results = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            tp = TopicIdPartition(topic.topic_id, partition.partition)
            code = refused or await _write(
                broker, SharePartitionKey(request.group_id, tp), partition
            )
            partitions.append(
                PartitionResult(
                    partition=partition.partition,
                    error_code=code,
                    error_message=code.message if code else None,
                )
            )
        results.append(StateResult(topic_id=topic.topic_id, partitions=partitions))
    return WriteShareGroupStateResponse(results=results)


async def _write(broker: Broker, key: SharePartitionKey, written: PartitionData) -> ErrorCode:
    try:
        batches = batches_of(written.state_batches)
    except ApiError as error:
        return error.code
    state = WrittenState(written.state_epoch, written.leader_epoch, written.start_offset, batches)
    return await write_here(broker, key, state)
