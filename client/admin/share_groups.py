"""Share groups: describe, and the start offsets of their share partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ottla.protocol.api.alter_share_group_offsets import (
    AlterShareGroupOffsetsRequest,
    AlterShareGroupOffsetsRequestPartition,
    AlterShareGroupOffsetsRequestTopic,
    AlterShareGroupOffsetsResponse,
)
from ottla.protocol.api.delete_share_group_offsets import (
    DeleteShareGroupOffsetsRequest,
    DeleteShareGroupOffsetsRequestTopic,
    DeleteShareGroupOffsetsResponse,
)
from ottla.protocol.api.describe_share_group_offsets import (
    DescribeShareGroupOffsetsRequest,
    DescribeShareGroupOffsetsRequestGroup,
    DescribeShareGroupOffsetsResponse,
)

from ..errors import error_of
from ..offsets import group_by_topic
from ..types import TopicPartition
from .groups import GroupsAdmin, for_empty_group
from .requests import Outcome, outcome
from .results import GroupDescription


@dataclass(frozen=True, slots=True)
class ShareOffset:
    """Where a share group stands in a partition."""

    #: The first offset that is not finished; None before the first fetch.
    start_offset: int | None
    #: The records still to be finished; None if not known.
    lag: int | None
    leader_epoch: int = -1


class ShareGroupsAdmin(GroupsAdmin):
    """Admin requests about share groups (KIP-932)."""

    async def describe_share_groups(self, *groups: str) -> dict[str, GroupDescription]:
        """Return share groups with their members, by name. Raises GROUP_ID_NOT_FOUND for others."""

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[GroupDescription]]:
            return await self._by_node(
                await self._coordinators(pending), self._send_share_group_describe
            )

        return await self._each(groups, attempt, "describing share groups")

    async def list_share_group_offsets(self, group: str) -> dict[TopicPartition, ShareOffset]:
        """Return the start offset and the lag of each partition that a share group reads."""

        async def attempt() -> dict[TopicPartition, ShareOffset]:
            request = DescribeShareGroupOffsetsRequest(
                groups=[DescribeShareGroupOffsetsRequestGroup(group_id=group, topics=None)]
            )
            response = await self._cluster.send_to_coordinator(
                group, request, DescribeShareGroupOffsetsResponse
            )
            offsets: dict[TopicPartition, ShareOffset] = {}
            for described in response.groups:
                if error := error_of(described.error_code, described.error_message):
                    raise error
                for topic in described.topics:
                    for one in topic.partitions:
                        if error := error_of(one.error_code, one.error_message):
                            raise error
                        offsets[TopicPartition(topic.topic_name, one.partition_index)] = (
                            ShareOffset(
                                one.start_offset if one.start_offset >= 0 else None,
                                one.lag if one.lag >= 0 else None,
                                one.leader_epoch,
                            )
                        )
            return dict(sorted(offsets.items()))

        return await self._cluster.retry(attempt, what=f"looking up start offsets of {group}")

    async def alter_share_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int]
    ) -> None:
        """Set start offsets of a share group that has no members; it need not exist.

        What was acquired or delivered before is forgotten.
        """

        async def attempt(pending: list[TopicPartition]) -> Mapping[TopicPartition, Outcome[None]]:
            request = AlterShareGroupOffsetsRequest(
                group_id=group,
                topics=[
                    AlterShareGroupOffsetsRequestTopic(
                        topic_name=topic,
                        partitions=[
                            AlterShareGroupOffsetsRequestPartition(
                                partition_index=tp.partition, start_offset=offsets[tp]
                            )
                            for tp in tps
                        ],
                    )
                    for topic, tps in group_by_topic(pending)
                ],
            )
            response = await self._cluster.send_to_coordinator(
                group, request, AlterShareGroupOffsetsResponse
            )
            error = error_of(response.error_code, response.error_message)
            if (error := for_empty_group(group, error)) is not None:
                raise error
            return {
                TopicPartition(topic.topic_name, one.partition_index): outcome(
                    one.error_code, one.error_message, None
                )
                for topic in response.responses
                for one in topic.partitions
            }

        await self._each(offsets, attempt, f"altering the start offsets of {group}")

    async def delete_share_group_offsets(self, group: str, *topics: str) -> None:
        """Delete the share partitions of topics. The group must have no members."""

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[None]]:
            request = DeleteShareGroupOffsetsRequest(
                group_id=group,
                topics=[DeleteShareGroupOffsetsRequestTopic(topic_name=name) for name in pending],
            )
            response = await self._cluster.send_to_coordinator(
                group, request, DeleteShareGroupOffsetsResponse
            )
            error = error_of(response.error_code, response.error_message)
            if (error := for_empty_group(group, error)) is not None:
                raise error
            return {
                topic.topic_name: outcome(topic.error_code, topic.error_message, None)
                for topic in response.responses
            }

        await self._each(topics, attempt, f"deleting the share partitions of {group}")
