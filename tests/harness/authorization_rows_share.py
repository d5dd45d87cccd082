"""Rows of the APIs of share groups; see authorization_rows. The known group is a classic one."""

from __future__ import annotations

from harness.authorization_rows import (
    CLUSTER,
    CLUSTER_ACTION,
    DELETE,
    DESCRIBE,
    GROUP,
    READ,
    TOPIC,
    Names,
    Row,
    World,
    right,
)
from ottla.protocol import registry
from ottla.protocol.api.alter_share_group_offsets import AlterShareGroupOffsetsRequest
from ottla.protocol.api.delete_share_group_offsets import DeleteShareGroupOffsetsRequest
from ottla.protocol.api.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
)
from ottla.protocol.api.read_share_group_state import (
    PartitionData,
    ReadShareGroupStateRequest,
    ReadStateData,
)
from ottla.protocol.api.share_acknowledge import ShareAcknowledgeRequest
from ottla.protocol.api.share_fetch import FetchPartition, FetchTopic, ShareFetchRequest
from ottla.protocol.api.share_group_describe import ShareGroupDescribeRequest
from ottla.protocol.api.share_group_heartbeat import ShareGroupHeartbeatRequest
from ottla.protocol.api.write_share_group_state import (
    PartitionData as WrittenPartition,
)
from ottla.protocol.api.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteStateData,
)
from ottla.protocol.errors import ErrorCode

_NOT_SHARE = frozenset({ErrorCode.GROUP_ID_NOT_FOUND})


def _heartbeat(_world: World, names: Names, _version: int) -> ShareGroupHeartbeatRequest:
    # Of no member: nobody joins.
    return ShareGroupHeartbeatRequest(
        group_id=names.group,
        member_id="m",
        member_epoch=5,
        subscribed_topic_names=[names.topic],
    )


def _fetch(world: World, names: Names, _version: int) -> ShareFetchRequest:
    partitions = [FetchPartition(partition_index=0)]
    return ShareFetchRequest(
        group_id=names.group,
        member_id="m",
        max_records=1,
        topics=[FetchTopic(topic_id=world.topic_id(names), partitions=partitions)],
    )


def _read_state(world: World, names: Names, _version: int) -> ReadShareGroupStateRequest:
    partitions = [PartitionData(partition=0)]
    topic = ReadStateData(topic_id=world.topic_id(names), partitions=partitions)
    return ReadShareGroupStateRequest(group_id=names.group, topics=[topic])


def _write_state(world: World, names: Names, _version: int) -> WriteShareGroupStateRequest:
    partitions = [WrittenPartition(partition=0)]
    topic = WriteStateData(topic_id=world.topic_id(names), partitions=partitions)
    return WriteShareGroupStateRequest(group_id=names.group, topics=[topic])


SHARE_ROWS: tuple[Row, ...] = (
    Row(
        registry.SHARE_GROUP_HEARTBEAT,
        _heartbeat,
        (right(READ, GROUP), right(DESCRIBE, TOPIC)),
        tolerated=_NOT_SHARE,
    ),
    Row(
        registry.SHARE_GROUP_DESCRIBE,
        lambda _world, names, _version: ShareGroupDescribeRequest(group_ids=[names.group]),
        (right(DESCRIBE, GROUP),),
        tolerated=_NOT_SHARE,
    ),
    Row(
        registry.SHARE_FETCH,
        _fetch,
        (right(READ, GROUP), right(READ, TOPIC)),
        tolerated=_NOT_SHARE,
        first_by_id=0,
    ),
    Row(
        registry.SHARE_ACKNOWLEDGE,
        lambda _world, names, _version: ShareAcknowledgeRequest(
            group_id=names.group, member_id="nobody", share_session_epoch=1
        ),
        (right(READ, GROUP),),
        tolerated=frozenset({ErrorCode.SHARE_SESSION_NOT_FOUND}),
    ),
    Row(
        registry.READ_SHARE_GROUP_STATE,
        _read_state,
        (right(CLUSTER_ACTION, CLUSTER),),
        tolerated=_NOT_SHARE,
    ),
    Row(
        registry.WRITE_SHARE_GROUP_STATE,
        _write_state,
        (right(CLUSTER_ACTION, CLUSTER),),
        tolerated=_NOT_SHARE,
    ),
    Row(
        registry.DESCRIBE_SHARE_GROUP_OFFSETS,
        lambda _world, names, _version: DescribeShareGroupOffsetsRequest(
            groups=[DescribeShareGroupOffsetsRequestGroup(group_id=names.group, topics=None)]
        ),
        (right(DESCRIBE, GROUP),),
        tolerated=_NOT_SHARE,
    ),
    Row(
        registry.ALTER_SHARE_GROUP_OFFSETS,
        lambda _world, names, _version: AlterShareGroupOffsetsRequest(group_id=names.group),
        (right(READ, GROUP),),
        tolerated=_NOT_SHARE,
    ),
    Row(
        registry.DELETE_SHARE_GROUP_OFFSETS,
        lambda _world, names, _version: DeleteShareGroupOffsetsRequest(group_id=names.group),
        (right(DELETE, GROUP),),
        tolerated=_NOT_SHARE,
    ),
)
