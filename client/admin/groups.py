"""Groups and their committed offsets: list, describe, delete, alter."""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterable, Mapping

from ottla.protocol.api.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from ottla.protocol.api.consumer_group_describe import (
    DescribedGroup as DescribedConsumerGroup,
)
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
from ottla.protocol.api.share_group_describe import DescribedGroup as DescribedShareGroup
from ottla.protocol.api.share_group_describe import (
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from ottla.protocol.compiler import codec
from ottla.protocol.consumer import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from ottla.protocol.errors import DecodeError, ErrorCode, KafkaError
from ottla.protocol.registry import SHARE_GROUP_DESCRIBE
from ottla.protocol.schema import Buffer

from ..cluster import M
from ..errors import ClientError, error_of
from ..offsets import commit_offsets, fetch_committed_offsets, group_by_topic, values_or_raise
from ..types import OffsetAndMetadata, TopicPartition
from .brokers import BrokersAdmin
from .offsets import OffsetsAdmin
from .requests import Outcome, PartialError, no_such_group, outcome
from .results import GroupDescription, GroupListing, MemberDescription, PartitionLag

_CONSUMER = "consumer"
_SHARE = "share"
_DEAD = "Dead"
_CLASSIC_MEMBER = 0
# Errors of a commit without a member id to a group that has members.
_HAS_MEMBERS = (
    ErrorCode.NON_EMPTY_GROUP,
    ErrorCode.UNKNOWN_MEMBER_ID,
    ErrorCode.ILLEGAL_GENERATION,
    ErrorCode.REBALANCE_IN_PROGRESS,
)


class GroupsAdmin(OffsetsAdmin, BrokersAdmin):
    """Admin requests about groups."""

    async def list_groups(self, *, states: Collection[str] = ()) -> list[GroupListing]:
        """Return all groups, or those in one of the states, by name. All brokers are asked."""

        async def send(node_id: int, _: list[int]) -> Mapping[int, Outcome[list[GroupListing]]]:
            response = await self._cluster.send(node_id, ListGroupsRequest(), ListGroupsResponse)
            listed = [
                GroupListing(
                    group.group_id,
                    group.protocol_type,
                    group.group_state,
                    group.group_type,
                    node_id,
                )
                for group in response.groups
            ]
            return {node_id: outcome(response.error_code, None, listed)}

        async def attempt(pending: list[int]) -> Mapping[int, Outcome[list[GroupListing]]]:
            return await self._by_node({node_id: node_id for node_id in pending}, send)

        brokers = (await self.describe_cluster()).brokers
        alive = [one.id for one in brokers if one.is_alive]
        by_broker = await self._each(alive, attempt, "listing groups")
        accepted = {state.lower() for state in states}
        listed = [one for groups in by_broker.values() for one in groups]
        return sorted(
            (one for one in listed if not accepted or one.state.lower() in accepted),
            key=lambda group: group.group_id,
        )

    async def describe_groups(self, *groups: str) -> dict[str, GroupDescription]:
        """Return groups with their members, by name. Raises GROUP_ID_NOT_FOUND for unknown ones."""

        async def send(node_id: int, some: list[str]) -> Mapping[str, Outcome[GroupDescription]]:
            described = await self._describe_consumer_groups(node_id, some)
            others = [name for name in some if name not in described]
            if (
                others
                and SHARE_GROUP_DESCRIBE.key in (await self._cluster.connect(node_id)).versions
            ):
                found = await self._send_share_group_describe(node_id, others)
                described |= {name: one for name, one in found.items() if not _is_unknown(one)}
                others = [name for name in others if name not in described]
            if others:
                request = DescribeGroupsRequest(groups=others)
                response = await self._cluster.send(node_id, request, DescribeGroupsResponse)
                for group in response.groups:
                    described[group.group_id] = _described(group, node_id)
            return described

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[GroupDescription]]:
            return await self._by_node(await self._coordinators(pending), send)

        return await self._each(groups, attempt, "describing groups")

    async def _describe_consumer_groups(
        self, node_id: int, groups: list[str]
    ) -> dict[str, Outcome[GroupDescription]]:
        """Return those of the groups that have the consumer protocol."""
        connection = await self._cluster.connect(node_id)
        if connection.features.get("group.version", 0) < 1:
            return {}
        request = ConsumerGroupDescribeRequest(group_ids=groups)
        response = await self._cluster.send(node_id, request, ConsumerGroupDescribeResponse)
        return {
            group.group_id: outcome(
                group.error_code, group.error_message, _consumer_group_description(group, node_id)
            )
            for group in response.groups
            if group.error_code != ErrorCode.GROUP_ID_NOT_FOUND
        }

    async def _send_share_group_describe(
        self, node_id: int, groups: list[str]
    ) -> dict[str, Outcome[GroupDescription]]:
        request = ShareGroupDescribeRequest(group_ids=groups)
        response = await self._cluster.send(node_id, request, ShareGroupDescribeResponse)
        return {
            group.group_id: outcome(
                group.error_code, group.error_message, _share_group_description(group, node_id)
            )
            for group in response.groups
        }

    async def delete_groups(self, *groups: str) -> None:
        """Delete groups that have no members, and their committed offsets."""

        async def send(node_id: int, some: list[str]) -> Mapping[str, Outcome[None]]:
            request = DeleteGroupsRequest(groups_names=some)
            response = await self._cluster.send(node_id, request, DeleteGroupsResponse)
            return {
                result.group_id: for_empty_group(result.group_id, error_of(result.error_code))
                for result in response.results
            }

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[None]]:
            return await self._by_node(await self._coordinators(pending), send)

        await self._each(groups, attempt, "deleting groups")

    async def list_group_offsets(self, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group; none if the group is unknown."""

        async def attempt() -> dict[TopicPartition, OffsetAndMetadata]:
            results = await fetch_committed_offsets(
                self._cluster, group, None, require_stable=False
            )
            offsets = values_or_raise(results)
            return {tp: one for tp, one in sorted(offsets.items()) if one is not None}

        return await self._cluster.retry(attempt, what=f"looking up committed offsets of {group}")

    async def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int | OffsetAndMetadata]
    ) -> None:
        """Commit offsets for a group that has no members: those of the next records."""
        commits = {tp: _with_metadata(offset) for tp, offset in offsets.items()}

        async def attempt(pending: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[None]]:
            results = await commit_offsets(
                self._cluster, group, {tp: commits[tp] for tp in pending}
            )
            return {tp: for_empty_group(group, error) for tp, error in results.items()}

        await self._each(commits, attempt, f"altering the offsets of {group}")

    async def delete_group_offsets(self, group: str, *tps: TopicPartition) -> None:
        """Delete committed offsets of partitions that no member is subscribed to."""

        async def attempt(pending: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[None]]:
            request = OffsetDeleteRequest(
                group_id=group,
                topics=[
                    OffsetDeleteRequestTopic(
                        name=topic,
                        partitions=[
                            OffsetDeleteRequestPartition(partition_index=tp.partition)
                            for tp in some
                        ],
                    )
                    for topic, some in group_by_topic(pending)
                ],
            )
            response = await self._cluster.send_to_coordinator(group, request, OffsetDeleteResponse)
            if (error := for_empty_group(group, error_of(response.error_code))) is not None:
                raise error
            return {
                TopicPartition(topic.name, partition.partition_index): outcome(
                    partition.error_code, None, None
                )
                for topic in response.topics
                for partition in topic.partitions
            }

        await self._each(tps, attempt, f"deleting offsets of {group}")

    async def group_lag(self, group: str) -> dict[TopicPartition, PartitionLag]:
        """Return the lag of a group, for its committed and assigned partitions.

        If end offsets cannot be looked up, because a broker is down, it raises PartialError: `done`
        has all partitions then, those of `failed` without an end offset.
        """
        committed = await self.list_group_offsets(group)
        try:
            members = (await self.describe_groups(group))[group].members
        except KafkaError as error:
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            members = ()
        assigned = {tp for member in members for tp in member.assignment}
        tps = sorted({*committed, *assigned})
        ends, failed = await self._end_offsets_of_existing(tps)
        lags = {
            tp: PartitionLag(
                committed[tp].offset if tp in committed else None,
                ends.get(tp),
                committed[tp].metadata if tp in committed else "",
            )
            for tp in tps
        }
        if failed:
            raise PartialError(failed, lags)
        return lags

    async def _coordinators(self, groups: Iterable[str]) -> dict[str, Outcome[int]]:
        """Return the coordinator of each group, or the error of some lookup."""
        coordinators: dict[str, Outcome[int]] = {}
        for group in groups:
            try:
                coordinators[group] = await self._cluster.coordinator_of(group)
            except (KafkaError, ClientError) as error:
                coordinators[group] = error
        return coordinators


def _described(group: DescribedGroup, node_id: int) -> Outcome[GroupDescription]:
    error = error_of(group.error_code)
    # Before version 6, brokers describe unknown groups as dead.
    if group.error_code == ErrorCode.GROUP_ID_NOT_FOUND or (
        error is None and group.group_state == _DEAD
    ):
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
    """Decode a message of the embedded consumer protocol; None if it is empty or invalid."""
    try:
        (version,) = struct.unpack_from(">h", data)
        decoded: M
        decoded, _end = codec(message, min(max(version, 0), 3)).decode(memoryview(data), 2)
    except (struct.error, DecodeError):
        return None
    return decoded


def for_empty_group(group: str, error: KafkaError | None) -> KafkaError | None:
    """Replace an error by what it means for a group that must have no members."""
    if error is not None and error.code is ErrorCode.GROUP_ID_NOT_FOUND:
        return no_such_group(group)
    if error is not None and error.code in _HAS_MEMBERS:
        return KafkaError(
            ErrorCode.NON_EMPTY_GROUP, f"Group {group!r} has members: stop them first"
        )
    return error


def _with_metadata(offset: int | OffsetAndMetadata) -> OffsetAndMetadata:
    return offset if isinstance(offset, OffsetAndMetadata) else OffsetAndMetadata(offset)


def _consumer_group_description(
    group: DescribedConsumerGroup, coordinator: int
) -> GroupDescription:
    """Return the description of a group of the consumer protocol."""
    return GroupDescription(
        group.group_id,
        group.group_state,
        _CONSUMER,
        group.assignor_name,
        coordinator,
        tuple(
            MemberDescription(
                member.member_id,
                member.instance_id,
                member.client_id,
                member.client_host.removeprefix("/"),
                tuple(member.subscribed_topic_names),
                _flattened(member.assignment),
                member.member_epoch,
                _flattened(member.target_assignment),
                member.subscribed_topic_regex or "",
                "classic" if member.member_type == _CLASSIC_MEMBER else _CONSUMER,
            )
            for member in group.members
        ),
        _CONSUMER,
        group.group_epoch,
        group.assignment_epoch,
    )


def _share_group_description(group: DescribedShareGroup, coordinator: int) -> GroupDescription:
    """Return the description of a share group."""
    return GroupDescription(
        group.group_id,
        group.group_state,
        _SHARE,
        group.assignor_name,
        coordinator,
        tuple(
            MemberDescription(
                member.member_id,
                None,
                member.client_id,
                member.client_host.removeprefix("/"),
                tuple(member.subscribed_topic_names),
                _flattened(member.assignment),
                member.member_epoch,
                type=_SHARE,
            )
            for member in group.members
        ),
        _SHARE,
        group.group_epoch,
        group.assignment_epoch,
    )


def _is_unknown(found: Outcome[GroupDescription]) -> bool:
    return isinstance(found, KafkaError) and found.code is ErrorCode.GROUP_ID_NOT_FOUND


def _flattened(assignment: Assignment) -> tuple[TopicPartition, ...]:
    return tuple(
        sorted(
            TopicPartition(topic.topic_name, index)
            for topic in assignment.topic_partitions
            for index in topic.partitions
        )
    )
