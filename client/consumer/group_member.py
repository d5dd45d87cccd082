"""A member of a consumer group: join, sync, heartbeat, leave.

    UNJOINED ──join──▶ JOINING ──response──▶ SYNCING ──assignment──▶ STABLE
        ▲                 │                     │                      │
        ├──────error──────┴────────error────────┘                      │
        ├──rebalance: revoke what must be revoked, then rejoin─────────┤
        └──removed from the group: all partitions are lost─────────────┘

An *eager* member revokes all of its partitions before it rejoins. A *cooperative* one keeps them
while it joins, learns from its new assignment which ones to revoke, and if there are any, revokes
them and rejoins (KIP-429). A member is cooperative if all of its assignors are.

What each error code means is in `coordinator_errors`. Heartbeats use a connection of their own: a
join may wait for minutes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ottla.protocol.api.heartbeat import HeartbeatRequest, HeartbeatResponse
from ottla.protocol.api.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
    JoinGroupResponseMember,
)
from ottla.protocol.api.leave_group import LeaveGroupRequest, LeaveGroupResponse, MemberIdentity
from ottla.protocol.api.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import LEAVE_GROUP

from ..cluster import Cluster
from ..errors import ClientError, KafkaError
from ..offsets import kafka_error
from ..types import TopicPartition
from .assignors import Assignor
from .config import GroupConfig
from .consumer_protocol import (
    decode_assignment,
    decode_member,
    encode_assignment,
    encode_subscription,
)
from .coordinator_errors import ErrorAction, action_for
from .member import Member
from .member_state import MemberState
from .subscription import partition_counts

if TYPE_CHECKING:
    from .assignment import Assignment

logger = logging.getLogger(__name__)

_LEAVE_WITH_MEMBERS_VERSION = 3


class GroupMember(Member):
    """A member of a group of the classic protocol, for as long as `run` runs."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        assignment: Assignment,
        assignors: Sequence[Assignor],
        config: GroupConfig,
        instance_id: str | None = None,
    ) -> None:
        super().__init__(cluster, group, config, instance_id=instance_id)
        #: The name of the assignor that the group selected.
        self.protocol = ""
        self.is_leader = False
        self._assignment = assignment
        self._assignors = {assignor.name: assignor for assignor in assignors}
        self._rejoin_requested = asyncio.Event()

    @property
    def is_cooperative(self) -> bool:
        """Whether it keeps its partitions while it joins."""
        return all(assignor.is_cooperative for assignor in self._assignors.values())

    def rejoin(self) -> None:
        """Join again: the subscription, or the partitions of its topics, have changed."""
        self._rejoin_requested.set()

    def handle_error(self, code: int, generation_id: int) -> ErrorAction:
        """Act on the error code of a commit or heartbeat that was sent in a generation."""
        action = action_for(code)
        if generation_id != self.generation_id or self.state is not MemberState.STABLE:
            return action  # it has rejoined since
        if action.loses_partitions:
            self._reset(action)
        if action is ErrorAction.REJOIN or action.loses_partitions:
            self.rejoin()
        elif action is ErrorAction.FIND_COORDINATOR:
            self._cluster.invalidate_coordinator(self._group)
        return action

    def _work(self) -> Sequence[Coroutine[Any, Any, None]]:
        return self._run_membership(), self._run_heartbeats()

    async def leave(self) -> None:
        """Leave the group. Static members do not: they are expected to return."""
        member_id, self.member_id = self.member_id, ""
        self.generation_id = -1
        self.is_leader = False
        self.group_topics, self.partition_counts = (), {}
        self._set_state(MemberState.UNJOINED)
        if not member_id or self.instance_id is not None:
            return
        node = await self._cluster.coordinator_of(self._group)
        connection = await self._cluster.connect(node, "group")
        version = connection.version_for(LEAVE_GROUP)
        identity = MemberIdentity(member_id=member_id, reason="the consumer was closed")
        request = (
            LeaveGroupRequest(group_id=self._group, members=[identity])
            if version >= _LEAVE_WITH_MEMBERS_VERSION
            else LeaveGroupRequest(group_id=self._group, member_id=member_id)
        )
        await connection.send(request, LeaveGroupResponse, version=version)

    # Rebalances.

    async def _run_membership(self) -> None:
        while True:
            await self._prepare_to_join()
            self._rejoin_requested.clear()
            try:
                assigned = await self._join()
            except (ClientError, KafkaError) as error:
                if not error.retriable:
                    raise
                level = logging.DEBUG if self._failures else logging.WARNING  # warn once
                logger.log(level, "cannot join group %s: %s", self._group, error)
                self._cluster.invalidate_coordinator(self._group)
                await self._back_off()
                continue
            if assigned is None:
                continue
            self._failures = 0
            if not await self._apply(assigned):
                self._rejoin_requested.set()
            await self._rejoin_requested.wait()

    async def _prepare_to_join(self) -> None:
        """Give up the partitions that must not be kept while joining."""
        current = self._assignment.current()
        if self._is_lost:
            if current:
                await self._assignment.lose(current)
        elif not self.is_cooperative and current:
            await self._revoke(current)
        self._set_state(MemberState.UNJOINED)
        self._is_lost = False

    async def _revoke(self, tps: frozenset[TopicPartition]) -> None:
        await self._assignment.revoke_gracefully(
            tps, self._config.revoke_timeout, lambda: self._is_lost
        )

    async def _apply(self, assigned: frozenset[TopicPartition]) -> bool:
        """Revoke and add partitions to match an assignment; False if a rejoin must follow."""
        current = self._assignment.current()
        if revoked := current - assigned:
            await self._revoke(revoked)
        if self._is_lost:
            return False
        if added := assigned - current:
            await self._assignment.add(added)
        # Revoked partitions are assigned to other members in the next rebalance.
        return not revoked

    async def _join(self) -> frozenset[TopicPartition] | None:
        """Send JoinGroup and SyncGroup; return the assignment, or None to try again."""
        self._set_state(MemberState.JOINING)
        joined = await self._cluster.send_to_coordinator(
            self._group,
            self._join_request(),
            JoinGroupResponse,
            channel="join",
            timeout=self._rebalance_deadline,
        )
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = joined.member_id
            return None
        if not await self._check(joined.error_code, "JoinGroup"):
            return None
        self.member_id = joined.member_id
        self.generation_id = joined.generation_id
        self.protocol = joined.protocol_name or ""
        self.is_leader = joined.leader == joined.member_id
        if not self.is_leader:
            self.group_topics, self.partition_counts = (), {}
        if self.protocol not in self._assignors:
            reason = (
                f"Group {self._group!r} selected assignor {self.protocol!r}, which was not offered"
            )
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL, reason)
        self._set_state(MemberState.SYNCING)
        assignments: Mapping[str, Iterable[TopicPartition]] = {}
        if self.is_leader and not joined.skip_assignment:
            assignments = await self._assign(joined.members)
        synced = await self._cluster.send_to_coordinator(
            self._group,
            self._sync_request(assignments),
            SyncGroupResponse,
            channel="join",
            timeout=self._rebalance_deadline,
        )
        if not await self._check(synced.error_code, "SyncGroup"):
            return None
        self._set_state(MemberState.STABLE)
        return decode_assignment(synced.assignment)

    @property
    def _rebalance_deadline(self) -> float:
        """JoinGroup is answered when all members have joined, or had the time to."""
        return self._config.rebalance_timeout + self._cluster.config.timeouts.request

    def _join_request(self) -> JoinGroupRequest:
        topics = sorted(self._assignment.subscribed_topics())
        owned = self._assignment.current()
        return JoinGroupRequest(
            group_id=self._group,
            session_timeout_ms=int(self._config.session_timeout * 1000),
            rebalance_timeout_ms=int(self._config.rebalance_timeout * 1000),
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocols=[
                JoinGroupRequestProtocol(
                    name=name,
                    metadata=encode_subscription(
                        topics, owned, self.generation_id, with_user_data=assignor.is_cooperative
                    ),
                )
                for name, assignor in self._assignors.items()
            ],
        )

    def _sync_request(
        self, assignments: Mapping[str, Iterable[TopicPartition]]
    ) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=self._group,
            generation_id=self.generation_id,
            member_id=self.member_id,
            group_instance_id=self.instance_id,
            protocol_type="consumer",
            protocol_name=self.protocol,
            assignments=[
                SyncGroupRequestAssignment(
                    member_id=member_id, assignment=encode_assignment(partitions)
                )
                for member_id, partitions in assignments.items()
            ],
        )

    async def _assign(
        self, joined: Sequence[JoinGroupResponseMember]
    ) -> Mapping[str, Iterable[TopicPartition]]:
        """Assign, as the leader, the partitions of all topics to the members."""
        members = [decode_member(member) for member in joined]
        topics = sorted({topic for member in members for topic in member.topics})
        metadata = await self._cluster.refresh(topics)
        self.group_topics = topics
        self.partition_counts = partition_counts(metadata, topics, self.partition_counts)
        return self._assignors[self.protocol].assign(members, self.partition_counts)

    async def _check(self, code: int, request: str) -> bool:
        """Whether JoinGroup or SyncGroup succeeded; act on the error if not. Raises KafkaError."""
        action = action_for(code)
        if action is ErrorAction.NONE:
            return True
        error = kafka_error(code, f"{request} for group {self._group!r}")
        assert error is not None
        if action is ErrorAction.FAIL:
            raise error
        logger.info("%s", error)
        if action.loses_partitions:
            self._reset(action)
        elif action is not ErrorAction.REJOIN:
            if action is ErrorAction.FIND_COORDINATOR:
                self._cluster.invalidate_coordinator(self._group)
            await self._back_off()
        return False

    # Heartbeats.

    async def _run_heartbeats(self) -> None:
        delay = self._config.heartbeat_interval
        # Give up on a coordinator that hangs while there is time to find another one.
        timeout = min(self._cluster.config.timeouts.request, self._config.session_timeout / 3)
        while True:
            await asyncio.sleep(delay)
            delay = self._config.heartbeat_interval
            if self.state is not MemberState.STABLE or self._is_lost:
                continue  # a pending JoinGroup keeps the session alive
            generation_id = self.generation_id
            request = HeartbeatRequest(
                group_id=self._group,
                generation_id=generation_id,
                member_id=self.member_id,
                group_instance_id=self.instance_id,
            )
            try:
                response = await self._cluster.send_to_coordinator(
                    self._group, request, HeartbeatResponse, channel="heartbeat", timeout=timeout
                )
            except (ClientError, KafkaError) as error:
                if not error.retriable:
                    raise
                logger.info("heartbeat of group %s failed: %s", self._group, error)
                self._cluster.invalidate_coordinator(self._group)
                delay = min(delay, self._cluster.config.retry.max_backoff)
                continue
            if self.handle_error(response.error_code, generation_id) is ErrorAction.FAIL:
                self._is_lost = True
                raise kafka_error(response.error_code, f"group {self._group!r}") or AssertionError

    def _reset(self, action: ErrorAction) -> None:
        """Forget the generation, and the member id if it is unknown; partitions are lost."""
        self._is_lost = True
        self.generation_id = -1
        if action is ErrorAction.RESET_MEMBER_ID:
            self.member_id = ""
        self._assignment.freeze()

    def _set_state(self, state: MemberState) -> None:
        self.state = state
