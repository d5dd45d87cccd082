"""DescribeTopicPartitions: the partitions of topics, sorted by topic name, page by page (KIP-966).

A page ends after as many partitions as the client or the broker allows, possibly in the middle of a
topic; the cursor is where the next page starts.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ottla.protocol.api.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DESCRIBE, NOT_REQUESTED, TOPIC, allows, authorized_operations, check
from ..errors import EXPECTED_ERRORS, error_code_of
from ..topic_metadata import (
    find_topic,
    offline_partitions,
    partition_metadata,
    replicated_partitions,
)

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Handle DescribeTopicPartitions."""
    image, cursor = broker.topics.image, request.cursor
    names = {topic.name for topic in request.topics} or {
        name for name in image.topics if allows(broker, context, DESCRIBE, TOPIC, name, logs=False)
    }
    if cursor is not None and (
        cursor.partition_index < 0 or (request.topics and cursor.topic_name not in names)
    ):
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(
                    error_code=ErrorCode.INVALID_REQUEST, name=topic.name
                )
                for topic in request.topics
            ]
        )
    remaining = max(
        1, min(request.response_partition_limit, broker.config.max_request_partition_size_limit)
    )
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in sorted(names):
        start = 0
        if cursor is not None:
            if name < cursor.topic_name:
                continue
            if name == cursor.topic_name:
                start = cursor.partition_index
        if remaining == 0:
            return _page(topics, Cursor(topic_name=name, partition_index=0))
        topic = _describe(broker, context, name, start, remaining)
        topics.append(topic)
        remaining -= len(topic.partitions)
        if topic.error_code == ErrorCode.NONE:
            end = start + len(topic.partitions)
            if end < len(image.topics[name].replicas):
                return _page(topics, Cursor(topic_name=name, partition_index=end))
    return _page(topics, None)


def _page(
    topics: list[DescribeTopicPartitionsResponseTopic], cursor: Cursor | None
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)


def _describe(
    broker: Broker, context: RequestContext, name: str, start: int, max_partitions: int
) -> DescribeTopicPartitionsResponseTopic:
    """Describe a topic and at most `max_partitions` of its partitions."""
    operations = NOT_REQUESTED
    try:
        check(broker, context, DESCRIBE, TOPIC, name)
        operations = authorized_operations(broker, context, TOPIC, name)
        topic = find_topic(broker, name)
    except EXPECTED_ERRORS as error:
        return DescribeTopicPartitionsResponseTopic(
            error_code=error_code_of(error), name=name, topic_authorized_operations=operations
        )
    states = broker.topics.image.partition_states.get(topic.id, {})
    if states:
        partitions = replicated_partitions(broker, topic, broker.cluster.alive)
    else:
        partitions = partition_metadata(
            topic.replicas,
            broker.cluster.alive,
            offline_partitions(broker, topic),
            dict(broker.topics.leader_epochs),
        )
    return DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                **partition._asdict(),
                eligible_leader_replicas=(states[partition.partition_index].elr if states else ()),
                last_known_elr=(),
            )
            for partition in islice(partitions, start, start + max_partitions)
        ],
        topic_authorized_operations=operations,
    )
