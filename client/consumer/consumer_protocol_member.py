"""A member of a group of the consumer protocol (KIP-848).

Its heartbeats also have the partitions that it owns. When the coordinator wants some back, it first
revokes them, when the application has processed what it was given, and commits. The next heartbeat
tells the coordinator, which may assign the partitions to others from then on.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ottla.protocol.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.errors import ErrorCode

from ..cluster import Cluster
from ..offsets import group_by_topic
from ..types import TopicPartition
from .assigned_member import JOIN_EPOCH, LEAVE_EPOCH, AssignedMember
from .config import GroupConfig
from .coordinator_errors import ErrorAction, action_for
from .member_state import MemberState

if TYPE_CHECKING:
    from .assignment import Assignment

_LEAVE_STATIC_EPOCH = -2


class ConsumerProtocolMember(
    AssignedMember[ConsumerGroupHeartbeatRequest, ConsumerGroupHeartbeatResponse]
):
    """A member of a group, for as long as `run` runs."""

    # An earlier process with this instance id may be leaving, or its session end.
    _tolerated = frozenset({ErrorCode.UNRELEASED_INSTANCE_ID})

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        assignment: Assignment,
        config: GroupConfig,
        instance_id: str | None = None,
    ) -> None:
        super().__init__(cluster, group, config, ConsumerGroupHeartbeatResponse, instance_id)
        self._assignment = assignment
        # What the coordinator knows; None: nothing, so that everything is sent.
        self._sent_owned: frozenset[TopicPartition] | None = None
        self._sent_topics: tuple[frozenset[str], str] | None = None

    def rejoin(self) -> None:
        """Send a heartbeat: the subscription, or the partitions of its topics, have changed."""
        self._is_due.set()

    def handle_error(self, code: int, generation_id: int) -> ErrorAction:
        """Act on the error code of a commit that was sent in an epoch."""
        action = action_for(code)
        if generation_id != self.generation_id or self.state is not MemberState.STABLE:
            return action
        if action is ErrorAction.RESET_MEMBER_ID:
            self._lose()
        elif action is ErrorAction.FIND_COORDINATOR:
            self._cluster.invalidate_coordinator(self._group)
        self._is_due.set()
        return action

    # Heartbeats.

    def _request(self) -> ConsumerGroupHeartbeatRequest:
        is_joining = self.generation_id < 0
        regex = self._assignment.subscribed_regex()
        names = frozenset() if regex else frozenset(self._assignment.subscribed_topics())
        subscription = names, regex
        is_new = is_joining or subscription != self._sent_topics
        owned = frozenset() if is_joining else self._assignment.current()
        reports = is_joining or owned != self._sent_owned
        is_full = is_joining or self._sent_owned is None
        self._sent_topics, self._sent_owned = subscription, owned
        return ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=JOIN_EPOCH if is_joining else self.generation_id,
            instance_id=self.instance_id,
            rebalance_timeout_ms=int(self._config.rebalance_timeout * 1000) if is_full else -1,
            subscribed_topic_names=sorted(names) if is_new else None,
            subscribed_topic_regex=regex if is_new and (regex or not is_joining) else None,
            topic_partitions=self._topic_partitions(owned) if reports else None,
        )

    def _leave_request(self) -> ConsumerGroupHeartbeatRequest:
        return ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=LEAVE_EPOCH if self.instance_id is None else _LEAVE_STATIC_EPOCH,
            instance_id=self.instance_id,
        )

    def _topic_partitions(self, owned: Collection[TopicPartition]) -> list[TopicPartitions]:
        topics = self._cluster.metadata.topics
        return [
            TopicPartitions(topic_id=topics[name].id, partitions=[tp.partition for tp in tps])
            for name, tps in group_by_topic(owned)
            if name in topics
        ]

    async def _handle(self, sent_epoch: int, response: ConsumerGroupHeartbeatResponse) -> bool:
        is_bad_regex = response.error_code == ErrorCode.INVALID_REGULAR_EXPRESSION
        if is_bad_regex and self._assignment.give_up_regex():
            self._forget_sent()
            return False  # The topics that match are sent by name.
        return await super()._handle(sent_epoch, response)

    def _forget_sent(self) -> None:
        self._sent_owned = self._sent_topics = None

    def _freeze(self) -> None:
        self._assignment.freeze()

    # Reconciliation.

    async def _drop_lost(self) -> None:
        current = self._assignment.current()
        if current:
            await self._assignment.lose(current)

    async def _apply(self, target: frozenset[TopicPartition]) -> None:
        current = self._assignment.current()
        if revoked := current - target:
            await self._assignment.revoke_gracefully(
                revoked, self._config.revoke_timeout, lambda: self._is_lost
            )
        if self._is_lost:
            return
        if added := target - current:
            await self._assignment.add(added)
        self._is_due.set()
