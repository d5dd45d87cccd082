"""Groups and what they have committed: list, describe, delete, alter."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping

from ottla.protocol.api.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from ottla.protocol.api.describe_groups import (
    DescribedGroup,
    DescribedGroupMember,
    DescribeGroupsRequest,
    DescribeGroupsResponse,
)
from ottla.protocol.api.list_groups import ListGroupsRequest, ListGroupsResponse
from ottla.protocol.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
    OffsetDeleteResponse,
)
from ottla.protocol.compiler import codec
from ottla.protocol.consumer import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.protocol.errors import DecodeError, ErrorCode, KafkaError
from ottla.protocol.schema import Buffer

from ..cluster import M
from ..errors import ClientError, error_of
from ..offsets import commit_offsets, fetch_committed_offsets, group_by_topic, values_or_raise
from ..types import OffsetAndMetadata, TopicPartition
from .brokers import BrokersAdmin
from .offsets import OffsetsAdmin
from .requests import Outcome, no_such_group, outcome
from .results import GroupDescription, GroupListing, MemberDescription, PartitionLag

_CONSUMER = "consumer"
_DEAD = "Dead"
# How brokers say to a commit, which is no member's, that there are members.
_HAS_MEMBERS = (
    ErrorCode.NON_EMPTY_GROUP,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
)


class GroupsAdmin(OffsetsAdmin, BrokersAdmin):
    """What an admin can do with groups."""

    async def list_groups(self, *, states: Collection[str] = ()) -> list[GroupListing]:
        """Give all groups by name, or those in one of the states. Every broker is asked for its."""

        async def ask(node_id: int, _: list[int]) -> Mapping[int, Outcome[list[GroupListing]]]:
            answer = await self._cluster.send(node_id, ListGroupsRequest(), ListGroupsResponse)
            listed = [
                GroupListing(
                    group.group_id,
                    group.protocol_type,
                    group.group_state,
                    group.group_type,
                    node_id,
                )
                for group in answer.groups
            ]
            return {node_id: outcome(answer.error_code, None, listed)}

        async def attempt(left: list[int]) -> Mapping[int, Outcome[list[GroupListing]]]:
            return await self._by_node({node_id: node_id for node_id in left}, ask)

        brokers = (await self.describe_cluster()).brokers
        found = await self._each((one.id for one in brokers), attempt, "listing groups")
        wanted = {state.lower() for state in states}
        listed = [one for groups in found.values() for one in groups]
        return sorted(
            (one for one in listed if not wanted or one.state.lower() in wanted),
            key=lambda group: group.group_id,
        )

    async def describe_groups(self, *groups: str) -> dict[str, GroupDescription]:
        """Give groups with their members, by name. One that is not there is GROUP_ID_NOT_FOUND."""

        async def ask(node_id: int, its: list[str]) -> Mapping[str, Outcome[GroupDescription]]:
            request = DescribeGroupsRequest(groups=its)
            answer = await self._cluster.send(node_id, request, DescribeGroupsResponse)
            return {group.group_id: _described(group, node_id) for group in answer.groups}

        async def attempt(left: list[str]) -> Mapping[str, Outcome[GroupDescription]]:
            return await self._by_node(await self._coordinators(left), ask)

        return await self._each(groups, attempt, "describing groups")

    async def delete_groups(self, *groups: str) -> None:
        """Delete groups that have no members, with what they have committed."""

        async def ask(node_id: int, its: list[str]) -> Mapping[str, Outcome[None]]:
            request = DeleteGroupsRequest(groups_names=its)
            answer = await self._cluster.send(node_id, request, DeleteGroupsResponse)
            return {
                result.group_id: _of_idle_group(result.group_id, error_of(result.error_code))
                for result in answer.results
            }

        async def attempt(left: list[str]) -> Mapping[str, Outcome[None]]:
            return await self._by_node(await self._coordinators(left), ask)

        await self._each(groups, attempt, "deleting groups")

    async def list_group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Give what a group has committed; nothing, if there is no such group."""

        async def attempt() -> dict[TopicPartition, OffsetAndMetadata]:
            answers = await fetch_committed_offsets(
                self._cluster, group, None, require_stable=False
            )
            found = {
                place: one for place, one in values_or_raise(answers).items() if one is not None
            }
            return dict(sorted(found.items()))

        return await self._cluster.retry(attempt, what=f"looking up the offsets of {group}")

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Commit for a group that has no members: the offsets that it will read next."""
        wanted = {place: _committed(offset) for place, offset in offsets.items()}

        async def attempt(left: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[None]]:
            found = await commit_offsets(
                self._cluster, group, {place: wanted[place] for place in left}
            )
            return {place: _of_idle_group(group, error) for place, error in found.items()}

        await self._each(wanted, attempt, f"altering the offsets of {group}")

    async def delete_group_offsets(self, group: str, *places: TopicPartition) -> None:
        """Forget what a group has committed for partitions that none of its members reads."""

        async def attempt(left: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[None]]:
            request = OffsetDeleteRequest(
                group_id=group,
                topics=[
                    OffsetDeleteRequestTopic(
                        name=topic,
                        partitions=[
                            OffsetDeleteRequestPartition(partition_index=place.partition)
                            for place in some
                        ],
                    )
                    for topic, some in group_by_topic(left)
                ],
            )
            answer = await self._cluster.send_to_coordinator(group, request, OffsetDeleteResponse)
            if (error := _of_idle_group(group, error_of(answer.error_code))) is not None:
                raise error
            return {
                TopicPartition(topic.name, partition.partition_index): outcome(
                    partition.error_code, None, None
                )
                for topic in answer.topics
                for partition in topic.partitions
            }

        await self._each(places, attempt, f"deleting offsets of {group}")

    async def group_lag(self, group: str) -> dict[TopicPartition, PartitionLag]:
        """Give how far a group is behind, for what it has committed and what its members have."""
        committed = await self.list_group_offsets(group)
        try:
            members = (await self.describe_groups(group))[group].members
        except KafkaError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            members = ()
        assigned = {place for member in members for place in member.assignment}
        places = sorted({*committed, *assigned})
        ends = await self._ends_where_known(places)
        return {
            place: PartitionLag(
                committed[place].offset if place in committed else None,
                ends.get(place),
                committed[place].metadata if place in committed else "",
            )
            for place in places
        }

    async def _coordinators(self, groups: Iterable[str]) -> dict[str, Outcome[int]]:
        """Give the coordinator of each group, or why it is not known."""
        found: dict[str, Outcome[int]] = {}
        for group in groups:
            try:
                found[group] = await self._cluster.coordinator_of(group)
            except (KafkaError, ClientError) as error:
                found[group] = error
        return found


def _described(group: DescribedGroup, node_id: int) -> Outcome[GroupDescription]:
    error = error_of(group.error_code)
    if error is None and group.group_state == _DEAD:
        # Before version 6 that is how a group is told that there is none of.
        error = no_such_group(group.group_id)
    return error or GroupDescription(
        group.group_id,
        group.group_state,
        group.protocol_type,
        group.protocol_data,
        node_id,
        tuple(
            _member(member, is_consumer=group.protocol_type == _CONSUMER)
            for member in group.members
        ),
    )


def _member(member: DescribedGroupMember, *, is_consumer: bool) -> MemberDescription:
    subscription = (
        _decoded(ConsumerProtocolSubscription, member.member_metadata) if is_consumer else None
    )
    assignment = (
        _decoded(ConsumerProtocolAssignment, member.member_assignment) if is_consumer else None
    )
    return MemberDescription(
        member.member_id,
        member.group_instance_id,
        member.client_id,
        member.client_host.removeprefix("/"),
        tuple(sorted(subscription.topics)) if subscription else (),
        tuple(
            sorted(
                TopicPartition(topic.topic, partition)
                for topic in assignment.assigned_partitions
                for partition in topic.partitions
            )
        )
        if assignment
        else (),
    )


def _decoded(message: type[M], data: Buffer) -> M | None:
    """Decode what a member has said; None if it says nothing, or nothing that is understood."""
    try:
        (version,) = struct.unpack_from(">h", data)
        found: M
        found, _end = codec(message, min(max(version, 0), 3)).decode(memoryview(data), 2)
    except (struct.error, DecodeError):
        return None
    return found


def _of_idle_group(group: str, error: KafkaError | None) -> KafkaError | None:
    """Say what an error means for a group that should have no members."""
    if error is not None and error.code is ErrorCode.GROUP_ID_NOT_FOUND:
        return no_such_group(group)
    if error is not None and error.code in _HAS_MEMBERS:
        return KafkaError(
            ErrorCode.NON_EMPTY_GROUP, f"group {group!r} has members: stop them first"
        )
    return error


def _committed(offset: int | OffsetAndMetadata) -> OffsetAndMetadata:
    return offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)
