"""DescribeTopicPartitions: topics in the order of their names, page by page.

A page ends when it has as many partitions as the client or the broker allow, perhaps in the middle
of a topic; the cursor says where the next one begins.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ottla.coord.metadata_image import InvalidTopicError, check_topic_name
from ottla.protocol.api.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from ottla.protocol.errors import ErrorCode

from ..authorized_operations import TOPIC_OPERATIONS
from ..errors import error_code_of
from ..partition_metadata import PartitionMetadata, offline_partitions, partition_metadata

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext


def handle(
    broker: Broker, _context: RequestContext, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Answer DescribeTopicPartitions."""
    image, cursor = broker.topics.image, request.cursor
    names = {topic.name for topic in request.topics} or image.topics.keys()
    left = max(
        1, min(request.response_partition_limit, broker.config.max_request_partition_size_limit)
    )
    topics: list[DescribeTopicPartitionsResponseTopic] = []
    for name in sorted(names):
        start = 0
        if cursor is not None:
            if name < cursor.topic_name:
                continue
            if name == cursor.topic_name:
                start = max(0, cursor.partition_index)
        if left == 0:
            return _page(topics, Cursor(topic_name=name, partition_index=0))
        described = _describe(broker, name, start, left)
        topics.append(described)
        left -= len(described.partitions)
        if described.error_code == ErrorCode.NONE:
            after = start + len(described.partitions)
            if after < len(image.topics[name].replicas):
                return _page(topics, Cursor(topic_name=name, partition_index=after))
    return _page(topics, None)


def _page(
    topics: list[DescribeTopicPartitionsResponseTopic], cursor: Cursor | None
) -> DescribeTopicPartitionsResponse:
    return DescribeTopicPartitionsResponse(topics=topics, next_cursor=cursor)


def _describe(
    broker: Broker, name: str, start: int, limit: int
) -> DescribeTopicPartitionsResponseTopic:
    """Describe a topic, and at most `limit` of its partitions."""
    topic = broker.topics.image.topics.get(name)
    if topic is None:
        return DescribeTopicPartitionsResponseTopic(error_code=_why_not(name), name=name)
    found = partition_metadata(
        topic.replicas, broker.cluster.alive, offline_partitions(broker, topic)
    )
    return DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.id,
        is_internal=topic.is_internal,
        partitions=[_partition(facts) for facts in islice(found, start, start + limit)],
        topic_authorized_operations=TOPIC_OPERATIONS,
    )


def _partition(facts: PartitionMetadata) -> DescribeTopicPartitionsResponsePartition:
    return DescribeTopicPartitionsResponsePartition(
        error_code=facts.error_code,
        partition_index=facts.partition,
        leader_id=facts.leader_id,
        leader_epoch=facts.leader_epoch,
        replica_nodes=facts.replicas,
        isr_nodes=facts.isr,
        eligible_leader_replicas=(),
        last_known_elr=(),
        offline_replicas=facts.offline_replicas,
    )


def _why_not(name: str) -> ErrorCode:
    try:
        check_topic_name(name)
    except InvalidTopicError as error:
        return error_code_of(error)
    return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
