"""The requests of group members and admins, in any version, valid or not.

Each takes a `WireClient`. Responses of old versions are returned in the form of new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from ottla.protocol.api.delete_groups import DeleteGroupsRequest
from ottla.protocol.api.describe_groups import DescribeGroupsRequest
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest
from ottla.protocol.api.heartbeat import HeartbeatRequest
from ottla.protocol.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.api.list_groups import ListGroupsRequest
from ottla.protocol.api.metadata import MetadataRequest
from ottla.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.protocol.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.compiler import codec
from ottla.protocol.consumer import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from ottla.protocol.errors import ErrorCode

#: A topic and a partition's index.
Partition = tuple[str, int]


class Member(NamedTuple):
    """A member, as a JoinGroup response identifies it."""

    group: str
    id: str
    generation: int
    instance: str | None = None
    is_leader: bool = False


def subscription(*topics: str, version: int = 1) -> bytes:
    """Return the metadata of a consumer in JoinGroup."""
    metadata = ConsumerProtocolSubscription(topics=topics)
    return bytes(
        codec(ConsumerProtocolSubscription, version).encode(
            metadata, bytearray(version.to_bytes(2)), []
        )
    )


def assignment(**topics: Sequence[int]) -> bytes:
    """Return a consumer's assignment in SyncGroup."""
    given = [TopicPartitions(topic=name, partitions=numbers) for name, numbers in topics.items()]
    return bytes(
        codec(ConsumerProtocolAssignment, 0).encode(
            ConsumerProtocolAssignment(assigned_partitions=given), bytearray(2), []
        )
    )


async def find(client: Any, *groups: str, version: int = 6, kind: int = 0) -> list[Any]:
    """Send FindCoordinator; return the coordinator of each group."""
    request = (
        FindCoordinatorRequest(coordinator_keys=groups, key_type=kind)
        if version >= 4
        else FindCoordinatorRequest(key=groups[0], key_type=kind)
    )
    response = await client.request(request, version)
    return list(response.coordinators) if version >= 4 else [response]


def join_request(
    group: str,
    member_id: str = "",
    *,
    instance: str | None = None,
    protocols: Mapping[str, bytes] | None = None,
    protocol_type: str = "consumer",
    session_ms: int = 10_000,
    rebalance_ms: int = 10_000,
) -> JoinGroupRequest:
    offered = {"range": subscription("t")} if protocols is None else protocols
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member_id,
        group_instance_id=instance,
        protocol_type=protocol_type,
        protocols=[
            JoinGroupRequestProtocol(name=name, metadata=data) for name, data in offered.items()
        ],
    )


async def join(
    client: Any, group: str, member_id: str = "", *, version: int = 9, **options: Any
) -> Any:
    """Send JoinGroup once; return the response."""
    return await client.request(join_request(group, member_id, **options), version)


async def enter(
    client: Any, group: str, member_id: str = "", *, version: int = 9, **options: Any
) -> Member:
    """Join a group as clients do: again with the member id, if one is required."""
    response = await join(client, group, member_id, version=version, **options)
    if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        response = await join(client, group, response.member_id, version=version, **options)
    assert response.error_code == ErrorCode.NONE, ErrorCode.of(response.error_code).name
    return Member(
        group,
        response.member_id,
        response.generation_id,
        options.get("instance"),
        response.leader == response.member_id,
    )


async def sync(
    client: Any,
    member: Member,
    assignments: Mapping[str, bytes] | None = None,
    *,
    version: int = 5,
    protocol: tuple[str, str] | None = ("consumer", "range"),
) -> Any:
    """Send SyncGroup; the leader sends all assignments."""
    kind, name = protocol if protocol and version >= 5 else (None, None)
    return await client.request(
        SyncGroupRequest(
            group_id=member.group,
            generation_id=member.generation,
            member_id=member.id,
            group_instance_id=member.instance if version >= 3 else None,
            protocol_type=kind,
            protocol_name=name,
            assignments=[
                SyncGroupRequestAssignment(member_id=name, assignment=data)
                for name, data in (assignments or {}).items()
            ],
        ),
        version,
    )


async def heartbeat(client: Any, member: Member, *, version: int = 4) -> int:
    request = HeartbeatRequest(
        group_id=member.group,
        generation_id=member.generation,
        member_id=member.id,
        group_instance_id=member.instance if version >= 3 else None,
    )
    code: int = (await client.request(request, version)).error_code
    return code


async def leave(
    client: Any, group: str, *members: tuple[str, str | None], version: int = 5
) -> tuple[int, list[int]]:
    """Send LeaveGroup for members by id and instance; return the error codes: all, each."""
    if version < 3:
        request = LeaveGroupRequest(group_id=group, member_id=members[0][0])
    else:
        named = [MemberIdentity(member_id=name, group_instance_id=own) for name, own in members]
        request = LeaveGroupRequest(group_id=group, members=named)
    response = await client.request(request, version)
    return response.error_code, [member.error_code for member in response.members]


def commit_request(
    group: str,
    offsets: Mapping[Partition, int],
    *,
    member: Member | None = None,
    metadata: str | Mapping[Partition, str] | None = "",
    epoch: int = -1,
    version: int = 9,
) -> OffsetCommitRequest:
    """Build an OffsetCommit, with or without a member; `metadata` is for all, or by partition."""
    who = member or Member(group, "", -1)
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for tp, offset in offsets.items():
        topics.setdefault(tp[0], []).append(
            OffsetCommitRequestPartition(
                partition_index=tp[1],
                committed_offset=offset,
                committed_leader_epoch=epoch,
                committed_metadata=metadata[tp] if isinstance(metadata, Mapping) else metadata,
            )
        )
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=who.generation,
        member_id=who.id,
        group_instance_id=who.instance if version >= 7 else None,
        topics=[
            OffsetCommitRequestTopic(name=name, partitions=parts) for name, parts in topics.items()
        ],
    )


async def commit(
    client: Any, group: str, offsets: Mapping[Partition, int], *, version: int = 9, **fields: Any
) -> dict[Partition, int]:
    """Send OffsetCommit; return the error code of each partition."""
    request = commit_request(group, offsets, version=version, **fields)
    names = await _replace_names(client, request.topics) if version >= 10 else {}
    response = await client.request(request, version)
    return {
        (names.get(topic.topic_id, topic.name), part.partition_index): part.error_code
        for topic in response.topics
        for part in topic.partitions
    }


async def _replace_names(client: Any, topics: Sequence[Any]) -> dict[UUID, str]:
    """Give topics of a request their ids instead of names; return the names. Some are unknown."""
    described = await client.request(MetadataRequest(topics=None), 12)
    ids = {topic.name: topic.topic_id for topic in described.topics}
    names = {}
    for topic in topics:
        topic.topic_id = ids.get(topic.name) or uuid4()
        names[topic.topic_id], topic.name = topic.name, ""
    return {topic_id: name for name, topic_id in ids.items()} | names


async def fetch(
    client: Any, group: str, partitions: Iterable[Partition] | None = None, *, version: int = 9
) -> Any:
    """Send OffsetFetch for some partitions, or for all; return the group's response."""
    wanted: dict[str, list[int]] | None = None
    if partitions is not None:
        wanted = {}
        for topic, index in partitions:
            wanted.setdefault(topic, []).append(index)
    if version < 8:
        old = OffsetFetchRequestTopic
        topics = (
            None
            if wanted is None
            else [old(name=name, partition_indexes=numbers) for name, numbers in wanted.items()]
        )
        return await client.request(OffsetFetchRequest(group_id=group, topics=topics), version)
    new = OffsetFetchRequestTopics
    topics = (
        None
        if wanted is None
        else [new(name=name, partition_indexes=numbers) for name, numbers in wanted.items()]
    )
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
    names = await _replace_names(client, topics or ()) if version >= 10 else {}
    response = (await client.request(request, version)).groups[0]
    for topic in response.topics:
        topic.name = names.get(topic.topic_id, topic.name)
    return response


async def committed(
    client: Any, group: str, partitions: Iterable[Partition] | None = None, *, version: int = 9
) -> dict[Partition, int]:
    """Return the committed offsets of a group."""
    response = await fetch(client, group, partitions, version=version)
    assert response.error_code == ErrorCode.NONE, ErrorCode.of(response.error_code).name
    return {
        (topic.name, part.partition_index): part.committed_offset
        for topic in response.topics
        for part in topic.partitions
    }


async def list_groups(
    client: Any, *, version: int = 5, states: Sequence[str] = (), types: Sequence[str] = ()
) -> dict[str, Any]:
    """Send ListGroups; return the entries by group id."""
    response = await client.request(
        ListGroupsRequest(states_filter=states, types_filter=types), version
    )
    assert response.error_code == ErrorCode.NONE, ErrorCode.of(response.error_code).name
    return {entry.group_id: entry for entry in response.groups}


async def describe(client: Any, *groups: str, version: int = 5, operations: bool = False) -> Any:
    """Send DescribeGroups; return the description, or a list of several."""
    request = DescribeGroupsRequest(groups=groups, include_authorized_operations=operations)
    response = await client.request(request, version)
    return response.groups[0] if len(groups) == 1 else list(response.groups)


async def state_of(client: Any, group: str) -> str:
    state: str = (await describe(client, group)).group_state
    return state


async def delete(client: Any, *groups: str, version: int = 2) -> dict[str, int]:
    response = await client.request(DeleteGroupsRequest(groups_names=groups), version)
    return {result.group_id: result.error_code for result in response.results}


async def delete_offsets(
    client: Any, group: str, partitions: Iterable[Partition]
) -> tuple[int, dict[Partition, int]]:
    """Send OffsetDelete; return the error code and those of partitions."""
    topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
    for topic, index in partitions:
        topics.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition_index=index))
    response = await client.request(
        OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(name=name, partitions=parts)
                for name, parts in topics.items()
            ],
        )
    )
    return response.error_code, {
        (topic.name, part.partition_index): part.error_code
        for topic in response.topics
        for part in topic.partitions
    }
