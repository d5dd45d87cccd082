"""DescribeProducers: the producers of partitions, and their open transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.coord.metadata_image import check_topic_name
from ottla.protocol.api.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

from ..authorization import READ, TOPIC, check
from ..errors import EXPECTED_ERRORS, error_code_of, error_message_of

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: DescribeProducersRequest
) -> DescribeProducersResponse:
    """Handle DescribeProducers."""
    # Deduplicated, since a response is far larger than a request.
    requested: dict[str, dict[int, None]] = {}
    for topic in request.topics:
        requested.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=name,
                partitions=[_describe(broker, context, name, index) for index in indexes],
            )
            for name, indexes in requested.items()
        ]
    )


def _describe(broker: Broker, context: RequestContext, topic: str, index: int) -> PartitionResponse:
    try:
        check(broker, context, READ, TOPIC, topic)
        check_topic_name(topic)
        partition = broker.topics.find(topic, index)
    except EXPECTED_ERRORS as error:
        return PartitionResponse(
            partition_index=index,
            error_code=error_code_of(error),
            error_message=error_message_of(error),
        )
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_append_ms,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=producer.txn_start_offset,
            )
            for producer in partition.log.producer_states
        ],
    )
