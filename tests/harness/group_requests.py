"""What members and admins of groups say, said by hand: any version, right or wrong.

Each takes a client that has `ask(message, version)`. Answers of old and new shapes are given in the
new one, where it matters to a story which it was the story looks itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from ottla.protocol.api.delete_groups import DeleteGroupsRequest
from ottla.protocol.api.describe_groups import DescribeGroupsRequest
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest
from ottla.protocol.api.heartbeat import HeartbeatRequest
from ottla.protocol.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.api.list_groups import ListGroupsRequest
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

#: A topic and the number of one of its partitions.
Place = tuple[str, int]


class Member(NamedTuple):
    """Who somebody is in a group, as the answer to a join says."""

    group: str
    id: str
    generation: int
    instance: str | None = None
    is_leader: bool = False


def subscription(*topics: str, version: int = 1) -> bytes:
    """What a consumer says when it joins."""
    said = ConsumerProtocolSubscription(topics=topics)
    return bytes(
        codec(ConsumerProtocolSubscription, version).encode(
            said, bytearray(version.to_bytes(2)), []
        )
    )


def assignment(**topics: Sequence[int]) -> bytes:
    """What a leader gives a consumer."""
    given = [TopicPartitions(topic=name, partitions=numbers) for name, numbers in topics.items()]
    return bytes(
        codec(ConsumerProtocolAssignment, 0).encode(
            ConsumerProtocolAssignment(assigned_partitions=given), bytearray(2), []
        )
    )


async def find(client: Any, *groups: str, version: int = 6, kind: int = 0) -> list[Any]:
    """Ask who looks after groups; an answer for each."""
    asked = (
        FindCoordinatorRequest(coordinator_keys=groups, key_type=kind)
        if version >= 4
        else FindCoordinatorRequest(key=groups[0], key_type=kind)
    )
    answer = await client.request(asked, version)
    return list(answer.coordinators) if version >= 4 else [answer]


def joining(
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
    client: Any, group: str, member_id: str = "", *, version: int = 9, **wishes: Any
) -> Any:
    """Join, once; the answer, whatever it is."""
    return await client.request(joining(group, member_id, **wishes), version)


async def enter(
    client: Any, group: str, member_id: str = "", *, version: int = 9, **wishes: Any
) -> Member:
    """Join as clients do: with the id that one is given, if one is."""
    answer = await join(client, group, member_id, version=version, **wishes)
    if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
        answer = await join(client, group, answer.member_id, version=version, **wishes)
    assert answer.error_code == ErrorCode.NONE, ErrorCode.of(answer.error_code).name
    return Member(
        group,
        answer.member_id,
        answer.generation_id,
        wishes.get("instance"),
        answer.leader == answer.member_id,
    )


async def sync(
    client: Any,
    member: Member,
    assignments: Mapping[str, bytes] | None = None,
    *,
    version: int = 5,
    protocol: tuple[str, str] | None = ("consumer", "range"),
) -> Any:
    """Ask for one's assignment; with everybody's, if one leads."""
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
    """Let members go, by id and instance; the error of all, and those of each if there are such."""
    if version < 3:
        request = LeaveGroupRequest(group_id=group, member_id=members[0][0])
    else:
        named = [MemberIdentity(member_id=name, group_instance_id=own) for name, own in members]
        request = LeaveGroupRequest(group_id=group, members=named)
    answer = await client.request(request, version)
    return answer.error_code, [member.error_code for member in answer.members]


def committing(
    group: str,
    offsets: Mapping[Place, int],
    *,
    member: Member | None = None,
    metadata: str | Mapping[Place, str] | None = "",
    epoch: int = -1,
    version: int = 9,
) -> OffsetCommitRequest:
    """A commit, of nobody or of a member; `metadata` is the same for all, or of each."""
    who = member or Member(group, "", -1)
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for place, offset in offsets.items():
        topics.setdefault(place[0], []).append(
            OffsetCommitRequestPartition(
                partition_index=place[1],
                committed_offset=offset,
                committed_leader_epoch=epoch,
                committed_metadata=metadata[place] if isinstance(metadata, Mapping) else metadata,
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
    client: Any, group: str, offsets: Mapping[Place, int], *, version: int = 9, **said: Any
) -> dict[Place, int]:
    """Commit; the code of each partition."""
    answer = await client.request(committing(group, offsets, version=version, **said), version)
    return {
        (topic.name, part.partition_index): part.error_code
        for topic in answer.topics
        for part in topic.partitions
    }


async def fetch(
    client: Any, group: str, places: Iterable[Place] | None = None, *, version: int = 9
) -> Any:
    """Ask how far a group has come, in some partitions or all; the answer for that group."""
    wanted: dict[str, list[int]] | None = None
    if places is not None:
        wanted = {}
        for topic, index in places:
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
    asked = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
    return (await client.request(asked, version)).groups[0]


async def committed(
    client: Any, group: str, places: Iterable[Place] | None = None, *, version: int = 9
) -> dict[Place, int]:
    """Give how far a group has come."""
    answer = await fetch(client, group, places, version=version)
    assert answer.error_code == ErrorCode.NONE, ErrorCode.of(answer.error_code).name
    return {
        (topic.name, part.partition_index): part.committed_offset
        for topic in answer.topics
        for part in topic.partitions
    }


async def list_groups(
    client: Any, *, version: int = 5, states: Sequence[str] = (), types: Sequence[str] = ()
) -> dict[str, Any]:
    """List groups; the entries by group."""
    answer = await client.request(
        ListGroupsRequest(states_filter=states, types_filter=types), version
    )
    assert answer.error_code == ErrorCode.NONE, ErrorCode.of(answer.error_code).name
    return {entry.group_id: entry for entry in answer.groups}


async def describe(client: Any, *groups: str, version: int = 5, operations: bool = False) -> Any:
    """Describe groups; a description for each, or the only one."""
    request = DescribeGroupsRequest(groups=groups, include_authorized_operations=operations)
    answer = await client.request(request, version)
    return answer.groups[0] if len(groups) == 1 else list(answer.groups)


async def state_of(client: Any, group: str) -> str:
    state: str = (await describe(client, group)).group_state
    return state


async def delete(client: Any, *groups: str, version: int = 2) -> dict[str, int]:
    answer = await client.request(DeleteGroupsRequest(groups_names=groups), version)
    return {result.group_id: result.error_code for result in answer.results}


async def delete_offsets(
    client: Any, group: str, places: Iterable[Place]
) -> tuple[int, dict[Place, int]]:
    """Have a group forget; the error of all, and of each partition."""
    topics: dict[str, list[OffsetDeleteRequestPartition]] = {}
    for topic, index in places:
        topics.setdefault(topic, []).append(OffsetDeleteRequestPartition(partition_index=index))
    answer = await client.request(
        OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(name=name, partitions=parts)
                for name, parts in topics.items()
            ],
        )
    )
    return answer.error_code, {
        (topic.name, part.partition_index): part.error_code
        for topic in answer.topics
        for part in topic.partitions
    }
