"""DescribeShareGroupOffsets: how far share groups are in their partitions (KIP-932).

The start offset is the first that is not done; the lag counts the records from there on that are
not done. It takes the high watermark, for which the leader of a partition is asked; -1 if it cannot
be told.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ottla.coord.consumer.partitions import TopicIdPartition, by_topic
from ottla.coord.share.state import UNINITIALIZED, ShareState
from ottla.protocol.api.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import NIL_UUID

from ..authorization import DENIED, DESCRIBE, GROUP, TOPIC, allows
from ..errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from uuid import UUID

    from ottla.coord.metadata_image import Topic

    from ...broker import Broker
    from ..dispatch import RequestContext

_LATEST = -1
_LIST_OFFSETS_VERSION = 6
_UNTOUCHED = ShareState(0, 0)


async def handle(
    broker: Broker, context: RequestContext, request: DescribeShareGroupOffsetsRequest
) -> DescribeShareGroupOffsetsResponse:
    """Handle DescribeShareGroupOffsets."""
    return DescribeShareGroupOffsetsResponse(
        groups=[await _describe(broker, context, group) for group in request.groups]
    )


async def _describe(
    broker: Broker, context: RequestContext, asked: DescribeShareGroupOffsetsRequestGroup
) -> DescribeShareGroupOffsetsResponseGroup:
    group_id = asked.group_id
    if not allows(broker, context, DESCRIBE, GROUP, group_id):
        return _error(group_id, DENIED[GROUP])
    code = broker.groups.check_existence(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
    if code is not ErrorCode.NONE:
        return _error(group_id, code)
    group = broker.groups.group(group_id)
    if group is None or group.type != "share":
        return _error(group_id, ErrorCode.GROUP_ID_NOT_FOUND)
    states = dict(group.states)
    image = broker.topics.image
    topics: list[tuple[str, Topic | None, Iterable[int]]]
    if asked.topics is None:
        topics = [
            (topic.name, topic, indexes)
            for topic_id, indexes in by_topic(states).items()
            if (topic := image.topics_by_id.get(topic_id)) is not None
            and allows(broker, context, DESCRIBE, TOPIC, topic.name, logs=False)
        ]
    else:
        topics = [
            (topic.topic_name, image.topics.get(topic.topic_name), topic.partitions)
            for topic in asked.topics
        ]
    denied = {name for name, _t, _i in topics if not allows(broker, context, DESCRIBE, TOPIC, name)}
    wanted = [
        TopicIdPartition(topic.id, index)
        for name, topic, indexes in topics
        if topic is not None and name not in denied
        for index in indexes
    ]
    started = [tp for tp in wanted if tp in states and states[tp].start_offset >= 0]
    high_watermarks = await _high_watermarks(broker, started)
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=group_id,
        topics=[
            DescribeShareGroupOffsetsResponseTopic(
                topic_name=name,
                topic_id=NIL_UUID if topic is None or name in denied else topic.id,
                partitions=[
                    _partition(
                        None if name in denied else topic,
                        index,
                        states,
                        high_watermarks,
                        DENIED[TOPIC] if name in denied else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    )
                    for index in indexes
                ],
            )
            for name, topic, indexes in topics
        ],
    )


def _partition(
    topic: Topic | None,
    index: int,
    states: Mapping[TopicIdPartition, ShareState],
    high_watermarks: Mapping[TopicIdPartition, int],
    code: ErrorCode,
) -> DescribeShareGroupOffsetsResponsePartition:
    if topic is None or not 0 <= index < len(topic.replicas):
        return DescribeShareGroupOffsetsResponsePartition(
            partition_index=index,
            start_offset=UNINITIALIZED,
            error_code=code,
            error_message=code.message,
        )
    tp = TopicIdPartition(topic.id, index)
    state = states.get(tp, _UNTOUCHED)
    lag = -1
    if tp in high_watermarks:
        lag = max(high_watermarks[tp] - state.start_offset - state.done_count, 0)
    return DescribeShareGroupOffsetsResponsePartition(
        partition_index=index,
        start_offset=state.start_offset,
        leader_epoch=state.leader_epoch,
        lag=lag,
    )


async def _high_watermarks(
    broker: Broker, partitions: Iterable[TopicIdPartition]
) -> dict[TopicIdPartition, int]:
    """Return the high watermarks of partitions, as far as their leaders can be asked."""
    found: dict[TopicIdPartition, int] = {}
    elsewhere: defaultdict[int, list[TopicIdPartition]] = defaultdict(list)
    image = broker.topics.image
    for tp in partitions:
        try:
            partition = broker.topics.find_by_id(*tp)
        except ApiError:
            topic = image.topics_by_id.get(tp.topic_id)
            if topic is not None and 0 <= tp.partition < len(topic.replicas):
                elsewhere[image.leader_of(topic, tp.partition)].append(tp)
            continue
        found[tp] = partition.high_watermark
    for leader_id, of_leader in elsewhere.items():
        if leader_id >= 0 and leader_id != broker.id:
            found |= await _ask(broker, leader_id, of_leader)
    return found


async def _ask(
    broker: Broker, leader_id: int, partitions: Iterable[TopicIdPartition]
) -> dict[TopicIdPartition, int]:
    names: dict[UUID, str] = {
        topic_id: broker.topics.image.topics_by_id[topic_id].name for topic_id, _index in partitions
    }
    request = ListOffsetsRequest(
        replica_id=-1,
        topics=[
            ListOffsetsTopic(
                name=names[topic_id],
                partitions=[
                    ListOffsetsPartition(partition_index=index, timestamp=_LATEST)
                    for index in indexes
                ],
            )
            for topic_id, indexes in by_topic(partitions).items()
        ],
    )
    try:
        response = await broker.channels.send(
            leader_id, request, ListOffsetsResponse, _LIST_OFFSETS_VERSION
        )
    except ApiError:
        return {}
    ids = {name: topic_id for topic_id, name in names.items()}
    return {
        TopicIdPartition(ids[topic.name], partition.partition_index): partition.offset
        for topic in response.topics
        for partition in topic.partitions
        if not partition.error_code
    }


def _error(group_id: str, code: ErrorCode) -> DescribeShareGroupOffsetsResponseGroup:
    return DescribeShareGroupOffsetsResponseGroup(
        group_id=group_id, error_code=code, error_message=code.message
    )
