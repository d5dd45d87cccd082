"""Members of the classic protocol in a consumer group, while it is being migrated.

They do not know that the coordinator assigns their partitions. Heartbeat answers
REBALANCE_IN_PROGRESS when there is something to do; JoinGroup is one step of the reconciliation and
is answered at once, with the member epoch as the generation; SyncGroup returns the partitions that
the member has by then. An eager member owns nothing when it joins; a cooperative one reports what
it owns, and joins again when it has revoked something.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ottla.protocol.api.heartbeat import HeartbeatResponse
from ottla.protocol.api.join_group import JoinGroupResponse
from ottla.protocol.api.leave_group import LeaveGroupResponse, MemberResponse
from ottla.protocol.api.sync_group import SyncGroupResponse
from ottla.protocol.errors import DecodeError, ErrorCode

from ..deadlines import Now
from ..effects import Effect, Reply, append_error
from ..errors import GroupError
from ..group_timers import Timer
from ..member import Join
from ..responses import join_error
from .coordinator import ConsumerGroups, replace_static
from .group import ConsumerGroup, Draft
from .member import ClassicMember, ConsumerMember, MemberMetadata, MemberState
from .migration import Subscription, common_protocols, encode_assignment

if TYPE_CHECKING:
    from ..group_shard import MemberIdentity

_PROTOCOL_TYPE = "consumer"


class ClassicMembers:
    """The events of members of the classic protocol in the consumer groups of a shard."""

    def __init__(self, groups: ConsumerGroups) -> None:
        self._groups = groups
        self._shard = groups.shard

    # JoinGroup.

    def join(self, group: ConsumerGroup, join: Join, token: Any, now: Now) -> list[Effect]:
        """Handle JoinGroup."""
        try:
            return self._join(group, join, token, now)
        except GroupError as error:
            return [Reply(token, join_error(error.code, join.member_id))]

    def _join(self, group: ConsumerGroup, join: Join, token: Any, now: Now) -> list[Effect]:
        if join.protocol_type != _PROTOCOL_TYPE or not join.protocols:
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        try:
            subscription = Subscription(join.protocols[0][1])
        except DecodeError:
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from None
        if not join.member_id and join.instance_id is None and join.requires_known_id:
            member_id = f"{join.client_id}-{join.unique}"
            return [Reply(token, join_error(ErrorCode.MEMBER_ID_REQUIRED, member_id))]
        before = self._find(group, join)
        member_id = join.member_id or f"{join.instance_id or join.client_id}-{join.unique}"
        metadata = MemberMetadata(
            join.instance_id,
            subscription.rack_id,
            join.client_id,
            join.client_host,
            subscription.topics,
            None,
            join.rebalance_timeout_ms,
            None,
            ClassicMember(join.session_timeout_ms, join.protocols),
        )
        draft = Draft(group)
        if before is not None and before.id != member_id:
            replace_static(draft, before, member_id, metadata)
        elif before is None or before.metadata != metadata:
            draft.set_metadata(member_id, metadata)
        if not common_protocols(draft.group.members.values()):
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if self._shard.may_downgrade(draft):
            return self._downgrade(group, draft, join, member_id, token, now)
        if before is None:
            reason = f"member {member_id} joined"
        elif not metadata.has_subscription_of(before.metadata):
            reason = f"member {member_id} changed its subscription"
        else:
            reason = ""
        if reason:
            draft.remove_unused_regexes()
        owned = subscription.owned(self._groups.image)
        self._groups.start_rebalance(draft, reason, now)
        self._groups.step(draft, member_id, owned)
        response = JoinGroupResponse(
            generation_id=draft.group.members[member_id].current.epoch,
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=join.protocols[0][0],
            leader="",
            member_id=member_id,
        )

        def then(code: ErrorCode) -> list[Effect]:
            if code is not ErrorCode.NONE:
                return [Reply(token, join_error(append_error(code), join.member_id))]
            self._groups.start_session(group, member_id, now)
            self._groups.cancel(group, "join", member_id)
            timer = Timer(group.id, "sync", member_id)
            self._shard.deadlines.set(timer, now.tick_ms + join.rebalance_timeout_ms)
            return [Reply(token, response)]

        return self._groups.commit(group, draft, now, then)

    def _find(self, group: ConsumerGroup, join: Join) -> ConsumerMember | None:
        """Return the member as it is so far; None for a new one. Raises GroupError."""
        if join.instance_id is not None and join.instance_id in group.static_members:
            static_id = group.static_members[join.instance_id]
            if join.member_id not in ("", static_id):
                raise GroupError(ErrorCode.FENCED_INSTANCE_ID)
            return group.members[static_id]
        if join.instance_id is not None and join.member_id:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        if join.member_id in group.members:
            return group.members[join.member_id]
        if len(group.members) >= self._shard.config.consumer.max_size:
            raise GroupError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        return None

    def _downgrade(
        self,
        group: ConsumerGroup,
        draft: Draft,
        join: Join,
        member_id: str,
        token: Any,
        now: Now,
    ) -> list[Effect]:
        """Downgrade the group: its last other member came back as a classic one."""

        def then(code: ErrorCode) -> list[Effect]:
            if code is not ErrorCode.NONE:
                return [Reply(token, join_error(append_error(code), join.member_id))]
            return [Reply(token, join_error(ErrorCode.UNKNOWN_MEMBER_ID, member_id))]

        reason = f"member {member_id} joined"
        return self._shard.downgrade(group, draft, reason, now, then)

    # SyncGroup and Heartbeat.

    def sync(
        self,
        group: ConsumerGroup,
        identity: MemberIdentity,
        protocol: tuple[str | None, str | None],
        token: Any,
        now: Now,
    ) -> list[Effect]:
        """Handle SyncGroup."""
        try:
            member = self._member(group, identity)
            classic = member.metadata.classic
            assert classic is not None
            name = classic.protocols[0][0]
            if any(
                sent is not None and sent != current
                for sent, current in zip(protocol, (_PROTOCOL_TYPE, name), strict=True)
            ):
                raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            is_behind = member.current.epoch < group.assignment_epoch
            if is_behind and member.current.state is not MemberState.UNREVOKED_PARTITIONS:
                self._start_join_timer(group, member, now)
                raise GroupError(ErrorCode.REBALANCE_IN_PROGRESS)
        except GroupError as error:
            return [Reply(token, SyncGroupResponse(error_code=error.code))]
        self._groups.start_session(group, member.id, now)
        self._groups.cancel(group, "sync", member.id)
        response = SyncGroupResponse(
            protocol_type=_PROTOCOL_TYPE,
            protocol_name=name,
            assignment=encode_assignment(member.current.assigned, self._groups.image),
        )
        return [Reply(token, response)]

    def heartbeat(
        self, group: ConsumerGroup, identity: MemberIdentity, token: Any, now: Now
    ) -> list[Effect]:
        """Handle Heartbeat."""
        try:
            member = self._member(group, identity)
        except GroupError as error:
            return [Reply(token, HeartbeatResponse(error_code=error.code))]
        self._groups.start_session(group, member.id, now)
        code = ErrorCode.NONE
        if self._must_join(group, member):
            self._start_join_timer(group, member, now)
            code = ErrorCode.REBALANCE_IN_PROGRESS
        return [Reply(token, HeartbeatResponse(error_code=code))]

    @staticmethod
    def _must_join(group: ConsumerGroup, member: ConsumerMember) -> bool:
        """Whether the member has a step to take towards its target."""
        current = member.current
        if current.epoch < group.assignment_epoch:
            return True
        if current.state is MemberState.UNREVOKED_PARTITIONS:
            return True
        missing = group.target_of(member.id) - current.assigned.keys()
        return current.state is MemberState.UNRELEASED_PARTITIONS and any(
            group.holders.get(tp, member.id) == member.id for tp in missing
        )

    def _start_join_timer(self, group: ConsumerGroup, member: ConsumerMember, now: Now) -> None:
        timer = Timer(group.id, "join", member.id)
        if timer not in self._shard.deadlines:
            timeout_ms = member.metadata.rebalance_timeout_ms
            self._shard.deadlines.set(timer, now.tick_ms + timeout_ms)

    @staticmethod
    def _member(group: ConsumerGroup, identity: MemberIdentity) -> ConsumerMember:
        member = group.find(identity.member_id, identity.instance_id)
        if not member.is_classic:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        if identity.generation != member.current.epoch:
            raise GroupError(ErrorCode.ILLEGAL_GENERATION)
        return member

    # LeaveGroup.

    def leave(
        self,
        group: ConsumerGroup,
        members: Sequence[tuple[str, str | None]],
        token: Any,
        now: Now,
    ) -> list[Effect]:
        """Handle LeaveGroup of members, given by member id and instance id.

        Admins remove members with it, whatever their protocol is. A static member may be named by
        its instance id alone.
        """
        leaving: dict[str, ConsumerMember] = {}
        codes: list[ErrorCode] = []
        for member_id, instance_id in members:
            try:
                static_id = group.static_members.get(instance_id or "", "")
                member = group.find(member_id or static_id, instance_id)
            except GroupError as error:
                codes.append(error.code)
            else:
                leaving[member.id] = member
                codes.append(ErrorCode.NONE)

        def then(code: ErrorCode) -> list[Effect]:
            if code is not ErrorCode.NONE:
                return [Reply(token, LeaveGroupResponse(error_code=append_error(code)))]
            results = [
                MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=code)
                for (member_id, instance_id), code in zip(members, codes, strict=True)
            ]
            return [Reply(token, LeaveGroupResponse(members=results))]

        if not leaving:
            return then(ErrorCode.NONE)
        return self._groups.remove(group, leaving.values(), "left", now, then)
