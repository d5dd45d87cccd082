"""DescribeQuorum: the controller, and how far the other brokers have followed the metadata.

The controller is the only voter, and the others observe. With a metadata store the offsets are the
revisions of the store.
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any

from ottla.coord.metadata_image import METADATA_TOPIC
from ottla.protocol.api.describe_quorum import (
    DescribeQuorumListener,
    DescribeQuorumNode,
    DescribeQuorumPartitionData,
    DescribeQuorumRequest,
    DescribeQuorumResponse,
    DescribeQuorumTopicData,
    ReplicaState,
)
from ottla.protocol.errors import ErrorCode

from ...cluster.forwarding import is_from_broker
from ..errors import ApiError, error_message_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse | Coroutine[Any, Any, DescribeQuorumResponse]:
    """Handle DescribeQuorum."""
    # A broker that asks this one by mistake is told so by the controller id in the response.
    if broker.cluster.is_controller or is_from_broker(context):
        return _describe(broker, context, request)
    return _ask_controller(broker, context, request)


async def _ask_controller(
    broker: Broker, context: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    """Return what the controller answers, with the addresses of this client's listener."""
    try:
        response = await broker.controller_channel.send(
            request, DescribeQuorumResponse, version=context.version
        )
    except ApiError as error:
        return DescribeQuorumResponse(error_code=error.code, error_message=error_message_of(error))
    return DescribeQuorumResponse(
        error_code=response.error_code,
        error_message=response.error_message,
        topics=response.topics,
        nodes=_nodes(broker, context),
    )


def _describe(
    broker: Broker, context: RequestContext, request: DescribeQuorumRequest
) -> DescribeQuorumResponse:
    quorum = None
    topics = []
    for topic in request.topics:
        partitions = []
        for partition in topic.partitions:
            if topic.topic_name == METADATA_TOPIC and partition.partition_index == 0:
                quorum = quorum or _quorum(broker)
                partitions.append(quorum)
            else:
                partitions.append(
                    DescribeQuorumPartitionData(
                        partition_index=partition.partition_index,
                        error_code=ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                        error_message=f"Only {METADATA_TOPIC}-0 has a quorum",
                    )
                )
        topics.append(DescribeQuorumTopicData(topic_name=topic.topic_name, partitions=partitions))
    return DescribeQuorumResponse(topics=topics, nodes=_nodes(broker, context))


def _nodes(broker: Broker, context: RequestContext) -> list[DescribeQuorumNode]:
    listener = context.connection.listener.name
    return [
        DescribeQuorumNode(
            node_id=node.id,
            listeners=[DescribeQuorumListener(name=listener, host=node.host, port=node.port)],
        )
        for node in broker.cluster.nodes(context, with_fenced=True)
    ]


def _quorum(broker: Broker) -> DescribeQuorumPartitionData:
    cluster, image = broker.cluster, broker.topics.image
    if broker.store is None:
        end_offset = broker.topics.metadata_log.end_offset
        epoch = max(image.epochs, default=0)
    else:
        end_offset = broker.store_follower.revision
        controller = image.active_controller
        epoch = 0 if controller is None else controller.epoch
    now_ms = broker.now_ms()
    observers = []
    for broker_id in cluster.broker_ids:
        if broker_id == cluster.controller_id:
            continue
        offset, age_seconds = cluster.metadata_progress(broker_id)
        fetched_ms = -1 if age_seconds is None else now_ms - int(age_seconds * 1000)
        observers.append(
            ReplicaState(
                replica_id=broker_id,
                log_end_offset=offset,
                last_fetch_timestamp=fetched_ms,
                last_caught_up_timestamp=fetched_ms if offset >= end_offset else -1,
            )
        )
    return DescribeQuorumPartitionData(
        partition_index=0,
        leader_id=cluster.controller_id,
        leader_epoch=epoch,
        high_watermark=end_offset,
        current_voters=[
            ReplicaState(
                replica_id=cluster.controller_id,
                log_end_offset=end_offset,
                last_fetch_timestamp=now_ms,
                last_caught_up_timestamp=now_ms,
            )
        ],
        observers=observers,
    )
