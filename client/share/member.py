"""A member of a share group: heartbeats with its topics, and the partitions it is to fetch."""

from __future__ import annotations

from collections.abc import Callable

from ottla.protocol.api.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)

from ..cluster import Cluster
from ..consumer.assigned_member import JOIN_EPOCH, LEAVE_EPOCH, AssignedMember
from ..consumer.config import GroupConfig
from ..types import TopicPartition


class ShareGroupMember(AssignedMember[ShareGroupHeartbeatRequest, ShareGroupHeartbeatResponse]):
    """A member of a share group, for as long as `run` runs. `assign` gets each new assignment."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: frozenset[str],
        assign: Callable[[frozenset[TopicPartition]], None],
    ) -> None:
        super().__init__(cluster, group, GroupConfig(), ShareGroupHeartbeatResponse)
        self._topics = topics
        self._assign = assign
        self._sent_topics: frozenset[str] | None = None

    def subscribe(self, topics: frozenset[str]) -> None:
        """Replace the subscription."""
        self._topics = topics
        self._is_due.set()

    def _request(self) -> ShareGroupHeartbeatRequest:
        is_joining = self.generation_id < 0
        is_new = is_joining or self._topics != self._sent_topics
        self._sent_topics = self._topics
        return ShareGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=JOIN_EPOCH if is_joining else self.generation_id,
            subscribed_topic_names=sorted(self._topics) if is_new else None,
        )

    def _leave_request(self) -> ShareGroupHeartbeatRequest:
        return ShareGroupHeartbeatRequest(
            group_id=self._group, member_id=self.member_id, member_epoch=LEAVE_EPOCH
        )

    def _forget_sent(self) -> None:
        self._sent_topics = None

    def _freeze(self) -> None:
        self._assign(frozenset())

    async def _drop_lost(self) -> None:
        self._assign(frozenset())

    async def _apply(self, target: frozenset[TopicPartition]) -> None:
        self._assign(target)
