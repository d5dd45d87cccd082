"""OffsetFetch: the committed offsets of groups. One group before version 8, several since.

Since version 10, topics are given by id.

With RequireStable, an offset that an open transaction may replace is UNSTABLE_OFFSET_COMMIT.
"""

from __future__ import annotations

from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ottla.coord.errors import GroupError
from ottla.coord.metadata_image import TopicPartition
from ottla.coord.records import CommittedOffset
from ottla.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DENIED, DESCRIBE, GROUP, TOPIC, allows
from ..slices import SLICE_ELEMENTS, in_slices

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_FIRST_WITH_GROUPS = 8
_FIRST_WITH_TOPIC_IDS = 10
_NO_OFFSET = CommittedOffset(-1, -1, "", -1)

#: Partition indexes by topic.
TopicPartitions = Mapping[str, Iterable[int]]


def handle(
    broker: Broker, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse | Coroutine[Any, Any, OffsetFetchResponse]:
    """Handle OffsetFetch."""
    if context.version >= _FIRST_WITH_GROUPS:
        if len(request.groups) > SLICE_ELEMENTS:
            return _many_groups(broker, context, request)
        return OffsetFetchResponse(groups=_groups(broker, context, request, request.groups))
    group = _group(
        broker,
        context,
        request.group_id,
        _requested_partitions(request.topics),
        requires_stable=request.require_stable,
    )
    # Version 1 has no error of the group, but one of each partition.
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=partition.partition_index,
                        committed_offset=partition.committed_offset,
                        committed_leader_epoch=partition.committed_leader_epoch,
                        metadata=partition.metadata,
                        error_code=partition.error_code,
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


async def _many_groups(
    broker: Broker, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    groups: list[OffsetFetchResponseGroup] = []
    async for groups_of_slice in in_slices(request.groups):
        groups += _groups(broker, context, request, groups_of_slice)
    return OffsetFetchResponse(groups=groups)


def _groups(
    broker: Broker,
    context: RequestContext,
    request: OffsetFetchRequest,
    groups: Iterable[OffsetFetchRequestGroup],
) -> list[OffsetFetchResponseGroup]:
    describe = _group_by_id if context.version >= _FIRST_WITH_TOPIC_IDS else _group_by_name
    return [describe(broker, context, request, group) for group in groups]


def _group_by_name(
    broker: Broker,
    context: RequestContext,
    request: OffsetFetchRequest,
    group: OffsetFetchRequestGroup,
) -> OffsetFetchResponseGroup:
    return _group(
        broker,
        context,
        group.group_id,
        _requested_partitions(group.topics),
        requires_stable=request.require_stable,
        member=(group.member_id, group.member_epoch),
    )


def _group_by_id(
    broker: Broker,
    context: RequestContext,
    request: OffsetFetchRequest,
    group: OffsetFetchRequestGroup,
) -> OffsetFetchResponseGroup:
    image = broker.topics.image
    known: list[OffsetFetchRequestTopics] = []
    unknown: list[OffsetFetchRequestTopics] = []
    for topic in group.topics or ():
        found = image.topics_by_id.get(topic.topic_id)
        if found is None:
            unknown.append(topic)
        else:
            indexes = topic.partition_indexes
            known.append(OffsetFetchRequestTopics(name=found.name, partition_indexes=indexes))
    described = _group_by_name(
        broker,
        context,
        request,
        OffsetFetchRequestGroup(
            group_id=group.group_id,
            member_id=group.member_id,
            member_epoch=group.member_epoch,
            topics=None if group.topics is None else known,
        ),
    )
    code = ErrorCode.of(described.error_code)
    if code is ErrorCode.NONE:
        code = ErrorCode.UNKNOWN_TOPIC_ID
    topics = [
        OffsetFetchResponseTopics(topic_id=image.topics[topic.name].id, partitions=topic.partitions)
        for topic in described.topics
        if topic.name in image.topics
    ]
    topics += [
        OffsetFetchResponseTopics(
            topic_id=topic.topic_id,
            partitions=[_partition(index, _NO_OFFSET, code) for index in topic.partition_indexes],
        )
        for topic in unknown
    ]
    return OffsetFetchResponseGroup(
        group_id=described.group_id, error_code=described.error_code, topics=topics
    )


def _requested_partitions(
    topics: Sequence[OffsetFetchRequestTopic] | Sequence[OffsetFetchRequestTopics] | None,
) -> TopicPartitions | None:
    """Return the partitions by topic; a request may name a topic more than once."""
    if topics is None:
        return None
    requested: dict[str, dict[int, None]] = {}
    for topic in topics:
        requested.setdefault(topic.name, {}).update(dict.fromkeys(topic.partition_indexes))
    return requested


def _group(
    broker: Broker,
    context: RequestContext,
    group_id: str,
    topics: TopicPartitions | None,
    *,
    requires_stable: bool,
    member: tuple[str | None, int] = (None, -1),
) -> OffsetFetchResponseGroup:
    if not group_id:
        code = ErrorCode.INVALID_GROUP_ID
    elif not allows(broker, context, DESCRIBE, GROUP, group_id):
        code = DENIED[GROUP]
    else:
        code = broker.groups.check(group_id)
    if code is ErrorCode.NONE:
        code = _check_member(broker, group_id, *member)
    committed = broker.groups.committed(group_id) if code is ErrorCode.NONE else {}
    unstable: Collection[TopicPartition] = ()
    if requires_stable and code is ErrorCode.NONE:
        unstable = broker.groups.pending_partitions(group_id)
    denied: set[str] = set()
    if topics is None:
        topics = _all_topics(committed)
        if broker.authorizer is not None:
            topics = {
                name: indexes
                for name, indexes in topics.items()
                if allows(broker, context, DESCRIBE, TOPIC, name, logs=False)
            }
    elif broker.authorizer is not None and code is ErrorCode.NONE:
        denied = {name for name in topics if not allows(broker, context, DESCRIBE, TOPIC, name)}
    return OffsetFetchResponseGroup(
        group_id=group_id,
        error_code=code,
        topics=[
            OffsetFetchResponseTopics(
                name=name,
                partitions=[
                    _partition(index, _NO_OFFSET, DENIED[TOPIC])
                    if name in denied
                    else _unstable_partition(index)
                    if unstable and (name, index) in unstable
                    else _partition(
                        index, committed.get(TopicPartition(name, index), _NO_OFFSET), code
                    )
                    for index in indexes
                ],
            )
            for name, indexes in topics.items()
        ],
    )


def _check_member(broker: Broker, group_id: str, member_id: str | None, epoch: int) -> ErrorCode:
    """Return the error if a consumer group has no such member, or in another epoch."""
    group = broker.groups.group(group_id)
    if group is not None and group.type == "consumer":
        try:
            group.check_fetch(member_id, epoch)
        except GroupError as error:
            return error.code
    return ErrorCode.NONE


def _all_topics(committed: Mapping[TopicPartition, CommittedOffset]) -> TopicPartitions:
    topics: dict[str, list[int]] = {}
    for topic, partition in sorted(committed):
        topics.setdefault(topic, []).append(partition)
    return topics


def _unstable_partition(index: int) -> OffsetFetchResponsePartitions:
    return _partition(index, _NO_OFFSET, ErrorCode.UNSTABLE_OFFSET_COMMIT)


def _partition(
    index: int, committed: CommittedOffset, code: ErrorCode
) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=code,
    )
