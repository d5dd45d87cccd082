"""OffsetFetch: how far groups have come. One group in old versions, several since 8.

There are no transactions, so no offset is ever about to change: RequireStable changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ottla.coord.group_shard import TopicPartition
from ottla.coord.records import CommittedOffset
from ottla.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from ottla.protocol.errors import ErrorCode

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_FIRST_WITH_MANY_GROUPS = 8
_NOTHING = CommittedOffset(-1, -1, "", -1)

#: Partitions by topic.
Wanted = Mapping[str, Iterable[int]]


def handle(
    broker: Broker, context: RequestContext, request: OffsetFetchRequest
) -> OffsetFetchResponse:
    """Answer OffsetFetch."""
    if context.version >= _FIRST_WITH_MANY_GROUPS:
        return OffsetFetchResponse(
            groups=[
                _group(
                    broker,
                    group.group_id,
                    None
                    if group.topics is None
                    else {topic.name: topic.partition_indexes for topic in group.topics},
                )
                for group in request.groups
            ]
        )
    wanted = (
        None
        if request.topics is None
        else {topic.name: topic.partition_indexes for topic in request.topics}
    )
    group = _group(broker, request.group_id, wanted)
    # Version 1 has no error for the group: it is told with each partition.
    return OffsetFetchResponse(
        error_code=group.error_code,
        topics=[
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=found.partition_index,
                        committed_offset=found.committed_offset,
                        committed_leader_epoch=found.committed_leader_epoch,
                        metadata=found.metadata,
                        error_code=found.error_code,
                    )
                    for found in topic.partitions
                ],
            )
            for topic in group.topics
        ],
    )


def _group(broker: Broker, group_id: str, wanted: Wanted | None) -> OffsetFetchResponseGroup:
    code = broker.groups.check(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
    committed = broker.groups.coordinator.committed(group_id)
    if code is not ErrorCode.NONE:
        committed = {}
    if wanted is None:
        wanted = _all(committed)
    return OffsetFetchResponseGroup(
        group_id=group_id,
        error_code=code,
        topics=[
            OffsetFetchResponseTopics(
                name=name,
                partitions=[
                    _partition(index, committed.get((name, index), _NOTHING), code)
                    for index in indexes
                ],
            )
            for name, indexes in wanted.items()
        ],
    )


def _all(committed: Mapping[TopicPartition, CommittedOffset]) -> Wanted:
    topics: dict[str, list[int]] = {}
    for name, index in sorted(committed):
        topics.setdefault(name, []).append(index)
    return topics


def _partition(
    index: int, found: CommittedOffset, code: ErrorCode
) -> OffsetFetchResponsePartitions:
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=found.offset,
        committed_leader_epoch=found.leader_epoch,
        metadata=found.metadata,
        error_code=code,
    )
