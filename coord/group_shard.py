"""The groups of one partition of `__consumer_offsets`, and the offsets that they committed.

A shard is loaded by replaying the log of its partition, and unloaded by dropping it. Between the
two, requests and timers are events: each validates, and returns effects (see `effects`).

`replay` is the only method that changes durable state: which groups exist, their completed
generations, and committed offsets. It applies the same records in both phases. While the shard
loads, a group is what its last record says. Once it is active, a group's members are in memory, and
a record completes the generation that they negotiated. Soft state (members in a rebalance, waiting
requests, timers) is changed by the events themselves, and is lost with the shard.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple, Union

from ottla.protocol.api.heartbeat import HeartbeatResponse
from ottla.protocol.api.leave_group import LeaveGroupResponse, MemberResponse
from ottla.protocol.api.sync_group import SyncGroupResponse
from ottla.protocol.compiler import codec
from ottla.protocol.consumer import ConsumerProtocolSubscription
from ottla.protocol.errors import DecodeError, ErrorCode

from .config import GroupCoordinatorConfig
from .deadlines import Deadlines, Now
from .effects import Append, Effect, Producer, Reply, append_error
from .errors import GroupError
from .group import Group
from .group_timers import Timer
from .member import Join, member_bytes
from .metadata_image import KeyValue, MetadataImage, TopicPartition
from .offsets import CommittedOffsets, PendingOffsets, tombstones
from .records import (
    CommittedOffset,
    CoordinatorRecord,
    GroupRecord,
    OffsetRecord,
    decode_record,
    encode_record,
    version_of,
)
from .responses import join_error
from .states import GroupState
from .turns import Turns

if TYPE_CHECKING:
    from uuid import UUID

    from .consumer.classic_members import ClassicMembers
    from .consumer.coordinator import ConsumerGroups, ConsumerHeartbeat
    from .consumer.group import ConsumerGroup, Draft
    from .consumer.records import ConsumerRecord
    from .share.coordinator import ShareGroups, ShareHeartbeat
    from .share.group import ShareGroup
    from .share.records import ShareRecord

AnyGroup = Union["Group", "ConsumerGroup", "ShareGroup"]
GroupShardRecord = Union[CoordinatorRecord, "ConsumerRecord", "ShareRecord"]

#: Estimated memory of a group without members, and of a committed offset without metadata.
_GROUP_BYTES = 2048
_OFFSET_BYTES = 512
#: Before this version of OffsetCommit, a group that does not exist is ILLEGAL_GENERATION.
_FIRST_WITH_GROUP_ID_NOT_FOUND = 9
#: The keys of records of consumer groups have these versions.
_CONSUMER_KEYS = frozenset((3, 4, 5, 6, 7, 8, 16))
#: The keys of records of share groups.
_SHARE_KEYS = frozenset((10, 11, 1000))
#: The key of the record whose tombstone removes a consumer group.
_GROUP_EPOCH = 3
#: The result of each partition of a request.
PartitionErrors = dict[TopicPartition, ErrorCode]


class MemberIdentity(NamedTuple):
    """The member that a request claims to come from."""

    member_id: str
    instance_id: str | None
    generation: int


class GroupShard:
    """The groups of a partition by id. `config` may be replaced at any time.

    `count_groups` returns the number of groups that `max_groups` limits: those with members, of all
    shards of the broker. Groups that only have offsets cost little, and are limited by memory:
    `has_memory` returns whether so many more bytes fit, for a member or for a commit. `image`
    returns the topics, whose partitions consumer groups are assigned.
    """

    #: What is loaded, for the broker's log.
    kind = "groups"

    def __init__(
        self,
        config: GroupCoordinatorConfig,
        count_groups: Callable[[], int] | None = None,
        has_memory: Callable[[int, bool], bool] = lambda _size_bytes, _is_member: True,
        image: Callable[[], MetadataImage] = MetadataImage,
    ) -> None:
        self._config = config
        self._count_groups = count_groups or (lambda: len(self.with_members))
        self._has_memory = has_memory
        #: The estimated memory of groups and offsets.
        self.size_bytes = 0
        self._group_sizes: dict[str, int] = {}
        #: Groups with members, or with member ids that were handed out.
        self.with_members: set[str] = set()
        # Those of them that have only pending members, oldest first.
        self._pending_only: dict[str, None] = {}
        #: Whether the log was replayed, so that requests can be handled.
        self.is_active = False
        self.groups: dict[str, AnyGroup] = {}
        #: The events of groups that wait for an append.
        self.turns = Turns(self._on_idle)
        #: The topics that exist.
        self.image = image
        # Groups whose protocol is being changed.
        self._converting: set[str] = set()
        self.offsets = CommittedOffsets()
        self.pending_offsets = PendingOffsets()
        self.deadlines: Deadlines[Timer] = Deadlines()

    @staticmethod
    def encode(record: GroupShardRecord) -> KeyValue:
        """Encode a record for the log."""
        if isinstance(record, OffsetRecord | GroupRecord):
            return encode_record(record)
        from .consumer.records import (  # noqa: PLC0415  # On first use.
            ConsumerRecord,
            encode_consumer_record,
        )

        if isinstance(record, ConsumerRecord):
            return encode_consumer_record(record)
        from .share.records import encode_share_record  # noqa: PLC0415  # On first use.

        return encode_share_record(record)

    @staticmethod
    def decode(key: bytes, value: bytes | None) -> GroupShardRecord | None:
        """Decode a record of the log; None for a key of an unknown version. Raises DecodeError."""
        version = version_of(key)
        if version in _SHARE_KEYS:
            from .share.records import decode_share_record  # noqa: PLC0415  # On first use.

            return decode_share_record(key, value)
        if version not in _CONSUMER_KEYS:
            return decode_record(key, value)
        from .consumer.records import decode_consumer_record  # noqa: PLC0415  # On first use.

        return decode_consumer_record(key, value)

    @cached_property
    def consumer_groups(self) -> ConsumerGroups:
        """The events of consumer groups."""
        from .consumer.coordinator import ConsumerGroups  # noqa: PLC0415  # On first use.

        return ConsumerGroups(self)

    @cached_property
    def share_groups(self) -> ShareGroups:
        """The events of share groups."""
        from .share.coordinator import ShareGroups  # noqa: PLC0415  # On first use.

        return ShareGroups(self)

    @cached_property
    def classic_members(self) -> ClassicMembers:
        """The events of members of the classic protocol in consumer groups."""
        from .consumer.classic_members import ClassicMembers  # noqa: PLC0415  # On first use.

        return ClassicMembers(self.consumer_groups)

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def config(self) -> GroupCoordinatorConfig:
        """The limits in force."""
        return self._config

    @config.setter
    def config(self, config: GroupCoordinatorConfig) -> None:
        self._config = config
        for group in self.groups.values():
            if group.type == "classic":
                group.config = config.group

    # Durable state.

    def replay(self, record: GroupShardRecord, *, offset: int = -1, producer_id: int = -1) -> None:
        """Apply a record: of the log, while the shard loads, or one that was just appended.

        With a producer id it is part of an open transaction: an offset at `offset` of the log,
        which takes effect with `replay_marker`.
        """
        if producer_id >= 0:
            if isinstance(record, OffsetRecord):
                self._replay_pending(record, offset, producer_id)
            return
        if isinstance(record, OffsetRecord):
            # Whatever is pending so far is earlier in the log.
            self.pending_offsets.supersede(record.group_id, record.topic_partition)
            replaced = self.offsets.of_group(record.group_id).get(record.topic_partition)
            self.offsets.replay(record)
            self.size_bytes += _offset_bytes(record.committed) - _offset_bytes(replaced)
            if record.committed is not None and record.group_id not in self.groups:
                self._add_group(record.group_id)
        elif not isinstance(record, GroupRecord):
            self._replay_other_group(record)
        elif record.metadata is None:
            self._replay_group_tombstone(record.group_id)
        else:
            group = self.groups.get(record.group_id)
            if not self.is_active or group is None or record.group_id in self._converting:
                self._add_group(record.group_id).restore(record.metadata)
            elif group.type == "classic":
                group.replay(record.metadata)
                self.resize(group)

    def _replay_other_group(self, record: ConsumerRecord | ShareRecord) -> None:
        from .consumer.records import ConsumerRecord  # noqa: PLC0415  # On first use.

        if isinstance(record, ConsumerRecord):
            self._replay_consumer_group(record)
        else:
            self._replay_share_group(record)

    def _replay_share_group(self, record: ShareRecord) -> None:
        from .share.group import ShareGroup  # noqa: PLC0415  # On first use.

        value = record[-1]
        group = self.groups.get(record.group_id)
        if group is None or group.type != "share":
            if value is None:
                return
            group = self.groups[record.group_id] = ShareGroup(record.group_id)
            self.resize(group)
        if value is None and record == (record.group_id, None):
            group.is_dead = True
            self._remove_group(group.id)
        else:
            group.replay(record)

    def _replay_consumer_group(self, record: ConsumerRecord) -> None:
        group_id = record.group_id
        group = self.groups.get(group_id)
        if group is None or group.type != "consumer":
            if record.value is None:
                return
            group = self._add_consumer_group(group_id)
        if record.type == _GROUP_EPOCH and record.value is None:
            group.is_dead = True
            self._remove_group(group_id)
            self._keep_offsets_of(group_id)
        else:
            group.replay(record)

    def replay_marker(self, producer_id: int, *, is_commit: bool) -> None:
        """Apply the marker that ends a transaction: commit its pending offsets, or drop them.

        An offset that was committed later in the log, by whomever, stays.
        """
        for record, offset, is_superseded in self.pending_offsets.end(producer_id):
            self.size_bytes -= _offset_bytes(record.committed)
            if is_commit and not is_superseded:
                replaced = self.offsets.of_group(record.group_id).get(record.topic_partition)
                self.offsets.replay(record)
                self.size_bytes += _offset_bytes(record.committed) - _offset_bytes(replaced)
                self.pending_offsets.supersede(record.group_id, record.topic_partition, offset)
            group = self.groups.get(record.group_id)
            if group is None and record.group_id in self.offsets:
                self._add_group(record.group_id)
            elif group is not None and self.is_active:
                self.drop_if_unused(group)

    def _replay_pending(self, record: OffsetRecord, offset: int, producer_id: int) -> None:
        replaced = self.pending_offsets.get(producer_id, record.group_id, record.topic_partition)
        self.pending_offsets.add(producer_id, record, offset)
        self.size_bytes += _offset_bytes(record.committed)
        if replaced is not None:
            self.size_bytes -= _offset_bytes(replaced.record.committed)
        if record.group_id not in self.groups:
            self._add_group(record.group_id)

    def activate(self, now: Now) -> list[Effect]:
        """Start to handle requests, after a load. Members have a session timeout to appear."""
        for group in list(self.groups.values()):
            self.drop_if_unused(group)
            if group.type == "consumer":
                self.consumer_groups.activate(group, now)
            elif group.type == "share":
                self.share_groups.activate(group, now)
            else:
                group.start_sessions(now)
            self.resize(group)
        self.is_active = True
        return []

    def _replay_group_tombstone(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is None or group.type != "classic":
            return
        if self.is_active and group_id not in self._converting:
            if group.state is not GroupState.EMPTY:
                return  # Members have joined since the tombstone was appended.
            group.die()
            removed = self.pending_offsets.remove_group(group_id)
        else:
            # The group was deleted, with tombstones for all its offsets; or it got another
            # protocol, and its pending offsets stay.
            removed = self.pending_offsets.remove_deleted(group_id, self.offsets.of_group(group_id))
        for record in removed:
            self.size_bytes -= _offset_bytes(record.committed)
        self._remove_group(group_id)
        self._keep_offsets_of(group_id)

    def _keep_offsets_of(self, group_id: str) -> None:
        """Keep a group whose record was removed, for its offsets.

        Their commit was in flight meanwhile, or the group gets another protocol.
        """
        if group_id in self.offsets or group_id in self.pending_offsets:
            self._add_group(group_id)

    def _add_group(self, group_id: str) -> Group:
        group = self.groups[group_id] = Group(group_id, self._config.group, self.deadlines)
        self.resize(group)
        return group

    def _add_consumer_group(self, group_id: str) -> ConsumerGroup:
        from .consumer.group import ConsumerGroup  # noqa: PLC0415  # On first use.

        group = self.groups[group_id] = ConsumerGroup(group_id)
        self.resize(group)
        return group

    def _remove_group(self, group_id: str) -> None:
        if self.groups.pop(group_id, None) is not None:
            self.size_bytes -= self._group_sizes.pop(group_id)
            self.with_members.discard(group_id)
            self._pending_only.pop(group_id, None)

    def resize(self, group: AnyGroup) -> None:
        """Update the memory of a group after its members have changed."""
        if self.groups.get(group.id) is not group:
            return
        size_bytes = _GROUP_BYTES + group.size_bytes
        self.size_bytes += size_bytes - self._group_sizes.get(group.id, 0)
        self._group_sizes[group.id] = size_bytes
        if group.members or group.pending:
            self.with_members.add(group.id)
        else:
            self.with_members.discard(group.id)
        if group.pending and not group.members:
            self._pending_only[group.id] = None
        else:
            self._pending_only.pop(group.id, None)

    def _forget_pending_members(self) -> bool:
        """Forget the pending members of the oldest group without others; False if there is none.

        They are ids that were handed out and not used. A client that comes late gets another one.
        """
        for group_id in self._pending_only:
            group = self.groups[group_id]
            assert group.type == "classic"
            group.forget_pending_members()
            self.drop_if_unused(group)
            self.resize(group)
            return True
        return False

    # Membership.

    def join(self, group_id: str, join: Join, token: Any, now: Now) -> list[Effect]:
        """Handle JoinGroup."""

        def refuse(code: ErrorCode) -> list[Effect]:
            return [Reply(token, join_error(code, join.member_id))]

        if group_id in self.turns:
            return self.turns.take(group_id, lambda: self.join(group_id, join, token, now), refuse)
        if not group_id:
            return refuse(ErrorCode.INVALID_GROUP_ID)
        limits = self._config.group
        if not (
            limits.min_session_timeout_ms
            <= join.session_timeout_ms
            <= limits.max_session_timeout_ms
        ):
            return refuse(ErrorCode.INVALID_SESSION_TIMEOUT)
        group = self.groups.get(group_id)
        if group is not None and group.type == "consumer":
            return self._join_consumer_group(group, join, token, now)
        if group is not None and group.type == "share":
            return refuse(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if group is None and join.member_id:
            return refuse(ErrorCode.UNKNOWN_MEMBER_ID)
        try:
            self.check_new_group(group_id)
        except GroupError as error:
            return refuse(error.code)
        member = None if group is None else group.members.get(join.member_id)
        growth_bytes = member_bytes(join.protocols, join.client_id) - (
            member.size_bytes if member else 0
        )
        if growth_bytes > 0 and not self._has_memory(growth_bytes, True):
            return refuse(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        if group is None:
            group = self._add_group(group_id)
        effects = group.join(join, token, now)
        self.drop_if_unused(group)
        self.resize(group)
        return effects

    def check_new_group(self, group_id: str) -> None:
        """Raise GroupError if the group has no members, and as many groups as may have some do."""
        if (
            group_id not in self.with_members
            and self._count_groups() >= self._config.max_groups
            and not self._forget_pending_members()
        ):
            raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def has_memory_for_member(self, size_bytes: int) -> bool:
        """Whether there is memory for a member."""
        return self._has_memory(size_bytes, True)

    def _join_consumer_group(
        self, group: ConsumerGroup, join: Join, token: Any, now: Now
    ) -> list[Effect]:
        """Handle JoinGroup for a consumer group; one without members becomes a classic one."""
        if group.members:
            return self.classic_members.join(group, join, token, now)
        from .consumer.group import group_tombstones  # noqa: PLC0415  # On first use.

        def then(code: ErrorCode) -> list[Effect]:
            if code is not ErrorCode.NONE:
                return [Reply(token, join_error(append_error(code), join.member_id))]
            return self.join(group.id, join, token, now)

        return self.turns.append(group.id, group_tombstones(group), then)

    def sync(
        self,
        group_id: str,
        identity: MemberIdentity,
        protocol: tuple[str | None, str | None],
        assignments: Mapping[str, bytes],
        token: Any,
        now: Now,
    ) -> list[Effect]:
        """Handle SyncGroup."""

        def refuse(code: ErrorCode) -> list[Effect]:
            return [Reply(token, SyncGroupResponse(error_code=code))]

        def run() -> list[Effect]:
            return self.sync(group_id, identity, protocol, assignments, token, now)

        if group_id in self.turns:
            return self.turns.take(group_id, run, refuse)
        try:
            group = self._find_group(group_id)
        except GroupError as error:
            return refuse(error.code)
        if group.type == "consumer":
            return self.classic_members.sync(group, identity, protocol, token, now)
        return group.sync(*identity, protocol, assignments, token, now)

    def heartbeat(
        self, group_id: str, identity: MemberIdentity, token: Any, now: Now
    ) -> list[Effect]:
        """Handle Heartbeat."""

        def refuse(code: ErrorCode) -> list[Effect]:
            return [Reply(token, HeartbeatResponse(error_code=code))]

        if group_id in self.turns:
            return self.turns.take(
                group_id, lambda: self.heartbeat(group_id, identity, token, now), refuse
            )
        try:
            group = self._find_group(group_id)
        except GroupError as error:
            return refuse(error.code)
        if group.type == "consumer":
            return self.classic_members.heartbeat(group, identity, token, now)
        return group.heartbeat(*identity, token, now)

    def leave(
        self, group_id: str, members: Sequence[tuple[str, str | None]], token: Any, now: Now
    ) -> list[Effect]:
        """Handle LeaveGroup of members, given by member id and instance id."""

        def refuse(code: ErrorCode) -> list[Effect]:
            return [Reply(token, LeaveGroupResponse(error_code=code))]

        if group_id in self.turns:
            return self.turns.take(
                group_id, lambda: self.leave(group_id, members, token, now), refuse
            )
        if not group_id:
            return refuse(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(group_id)
        if group is not None and group.type == "consumer":
            return self.classic_members.leave(group, members, token, now)
        if group is not None and group.type == "share":
            group = None  # It has no such members.
        effects: list[Effect] = []
        results = []
        for member_id, instance_id in members:
            code = ErrorCode.UNKNOWN_MEMBER_ID
            if group is not None:
                code, member_effects = group.leave(member_id, instance_id, now)
                effects += member_effects
            results.append(
                MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=code)
            )
        if group is not None:
            self.drop_if_unused(group)
            self.resize(group)
        return [*effects, Reply(token, LeaveGroupResponse(members=results))]

    def expire(self, now: Now) -> list[Effect]:
        """Handle all timers that are due."""
        effects: list[Effect] = []
        for timer in self.deadlines.due(now.tick_ms):
            effects += self._expire(timer, now)
        return effects

    def _expire(self, timer: Timer, now: Now) -> list[Effect]:
        group = self.groups.get(timer.group_id)
        if group is None:
            return []
        if group.type == "consumer":
            return self.consumer_groups.expire(group, timer, now)
        if group.type == "share":
            return self.share_groups.expire(group, timer, now)
        if group.id in self.turns:
            return self.turns.take(group.id, lambda: self._expire(timer, now), lambda _code: [])
        effects = group.expire(timer, now)
        self.drop_if_unused(group)
        self.resize(group)
        return effects

    def refuse_waiting(self, code: ErrorCode) -> list[Effect]:
        """Answer all waiting joins and syncs with an error: the shard or the broker stops.

        The groups stay as they are, so that nothing follows from it.
        """
        effects = self.turns.refuse_deferred(code)
        if "share_groups" in self.__dict__:
            effects += self.share_groups.refuse_waiting(code)
        for group in self.groups.values():
            if group.type != "classic":
                continue
            for member in group.members.values():
                if member.waiting_join is not None:
                    effects.append(Reply(member.waiting_join, join_error(code, member.id)))
                if member.waiting_sync is not None:
                    effects.append(Reply(member.waiting_sync, SyncGroupResponse(error_code=code)))
        return effects

    def _find_group(self, group_id: str) -> Group | ConsumerGroup:
        if not group_id:
            raise GroupError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(group_id)
        if group is None or group.type == "share":
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def drop_if_unused(self, group: AnyGroup) -> None:
        """Drop a group that has neither members nor records."""
        if self.groups.get(group.id) is not group or group.id in self.turns:
            return
        if group.type != "classic":
            if not group.has_records:
                self._remove_group(group.id)
                self._keep_offsets_of(group.id)
        elif (
            group.state is GroupState.EMPTY
            and group.generation == 0
            and not group.pending
            and group.id not in self.offsets
            and group.id not in self.pending_offsets
        ):
            self._remove_group(group.id)

    def _on_idle(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is not None and group.type != "classic":
            self.resize(group)
            self.drop_if_unused(group)

    # Groups of the consumer protocol.

    def consumer_heartbeat(
        self, heartbeat: ConsumerHeartbeat, token: Any, now: Now
    ) -> list[Effect]:
        """Handle ConsumerGroupHeartbeat."""
        return self.consumer_groups.heartbeat(heartbeat, token, now)

    def become_consumer_group(
        self, group_id: str, now: Now, then: Callable[[ErrorCode], list[Effect]]
    ) -> list[Effect]:
        """Create a consumer group, or upgrade a classic one, and then go on. Raises GroupError."""
        group = self.groups.get(group_id)
        if group is None:
            self._add_consumer_group(group_id)
            return then(ErrorCode.NONE)
        from .consumer.migration import upgraded  # noqa: PLC0415  # On first use.

        if group.type != "classic":
            raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id!r} is a share group")
        policy = self._config.consumer.migration_policy
        draft = upgraded(group, policy, self.image(), now.time_ms)
        group.forget_pending_members()
        if not draft.records:
            self._remove_group(group_id)
            self._add_consumer_group(group_id)
            return then(ErrorCode.NONE)
        effects = group.refuse_all_waiting(ErrorCode.REBALANCE_IN_PROGRESS)
        self._converting.add(group_id)

        def complete(code: ErrorCode) -> list[Effect]:
            self._converting.discard(group_id)
            if code is ErrorCode.NONE:
                group.cancel_timers()
                converted = self.groups[group_id]
                assert converted.type == "consumer"
                self.consumer_groups.activate(converted, now)
                self.resize(converted)
            return then(code)

        tombstone = [GroupRecord(group_id, None)] if group.generation > 0 else []
        return effects + self.turns.append(group_id, [*tombstone, *draft.records], complete)

    def may_downgrade(self, draft: Draft) -> bool:
        """Whether a group is to become a classic one: its last other member is gone."""
        from .consumer.migration import common_protocols  # noqa: PLC0415  # On first use.

        members = draft.group.members
        return (
            self._config.consumer.migration_policy.downgrades
            and not draft.before.has_only_classic_members()
            and draft.group.has_only_classic_members()
            and len(members) <= self._config.group.max_size
            and bool(common_protocols(members.values()))
        )

    def downgrade(
        self,
        group: ConsumerGroup,
        draft: Draft,
        reason: str,
        now: Now,
        then: Callable[[ErrorCode], list[Effect]],
    ) -> list[Effect]:
        """Turn a group into a classic one, which rebalances, and then go on."""
        from .consumer.group import group_tombstones  # noqa: PLC0415  # On first use.
        from .consumer.migration import common_protocols, downgraded  # noqa: PLC0415

        members = dict(draft.group.members)
        (protocol, *_others) = common_protocols(members.values())
        record = downgraded(draft.group, protocol, self.image(), now.time_ms)
        records = [*draft.records, *group_tombstones(draft.group), record]
        old_members = list(group.members)
        self._converting.add(group.id)

        def complete(code: ErrorCode) -> list[Effect]:
            self._converting.discard(group.id)
            effects = then(code)
            if code is not ErrorCode.NONE:
                return effects
            for member_id in old_members:
                self.consumer_groups.cancel_all(group, member_id)
            classic = self.groups[group.id]
            assert classic.type == "classic"
            for member_id, member in classic.members.items():
                metadata = members[member_id].metadata
                assert metadata.classic is not None
                classic.membership.set_protocols(member, metadata.classic.protocols)
            classic.start_sessions(now)
            effects += classic.rebalance(reason, now)
            self.resize(classic)
            return effects

        return self.turns.append(group.id, records, complete)

    # Share groups.

    def share_heartbeat(self, heartbeat: ShareHeartbeat, token: Any, now: Now) -> list[Effect]:
        """Handle ShareGroupHeartbeat."""
        return self.share_groups.heartbeat(heartbeat, token, now)

    # Offsets.

    def commit(
        self,
        group_id: str,
        identity: MemberIdentity,
        offsets: Mapping[TopicPartition, CommittedOffset],
        reply: Callable[[PartitionErrors], Reply],
        now: Now,
        *,
        version: int,
    ) -> list[Effect]:
        """Handle OffsetCommit; `reply` makes the response from the result of each partition.

        `version` is that of the request.
        """
        try:
            refused = self._check_commit(group_id, identity, offsets, now, version)
            self._check_commit_memory(group_id, offsets)
        except GroupError as error:
            return [reply(dict.fromkeys(offsets, error.code))]
        if not refused:
            return self._append_offsets(group_id, offsets, reply)
        accepted = {tp: offset for tp, offset in offsets.items() if tp not in refused}
        return self._append_offsets(group_id, accepted, lambda codes: reply(codes | refused))

    def commit_in_transaction(
        self,
        group_id: str,
        identity: MemberIdentity,
        producer: Producer,
        offsets: Mapping[TopicPartition, CommittedOffset],
        reply: Callable[[PartitionErrors], Reply],
    ) -> list[Effect]:
        """Handle TxnOffsetCommit: the offsets are pending until the transaction ends."""
        try:
            group = self.groups.get(group_id)
            if group is not None:
                if group.type == "share":
                    raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND)
                group.check_transactional_commit(*identity)
            elif identity.generation >= 0:
                raise GroupError(ErrorCode.ILLEGAL_GENERATION)
            self._check_commit_memory(group_id, offsets, is_pending=True)
        except GroupError as error:
            return [reply(dict.fromkeys(offsets, error.code))]
        return self._append_offsets(group_id, offsets, reply, producer)

    def _append_offsets(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        reply: Callable[[PartitionErrors], Reply],
        producer: Producer | None = None,
    ) -> list[Effect]:
        """Append the offsets of a commit; `reply` gets the result of each partition."""
        max_bytes = self._config.offset_metadata_max_bytes
        codes: PartitionErrors = {}
        records: list[OffsetRecord] = []
        for tp, committed in offsets.items():
            if len(committed.metadata.encode()) > max_bytes:
                codes[tp] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                codes[tp] = ErrorCode.NONE
                records.append(OffsetRecord(group_id, tp, committed))
        if not records:
            return [reply(codes)]

        def complete(code: ErrorCode) -> list[Effect]:
            if code is ErrorCode.MESSAGE_TOO_LARGE:
                code = ErrorCode.INVALID_COMMIT_OFFSET_SIZE
            codes.update((record.topic_partition, code) for record in records)
            return [reply(codes)]

        return [Append(records, complete, producer)]

    def delete_groups(
        self, group_ids: Iterable[str], reply: Callable[[dict[str, ErrorCode]], Reply]
    ) -> list[Effect]:
        """Handle DeleteGroups: remove groups without members, and their committed offsets."""
        codes: dict[str, ErrorCode] = {}
        appends: list[Effect] = []
        in_flight: set[str] = set()

        def complete_deletion_of(group_id: str) -> Callable[[ErrorCode], list[Effect]]:
            def complete(code: ErrorCode) -> list[Effect]:
                in_flight.discard(group_id)
                codes[group_id] = append_error(code)
                return [] if in_flight else [reply(codes)]

            return complete

        for group_id in group_ids:
            group = self.groups.get(group_id)
            if not group_id:
                codes[group_id] = ErrorCode.INVALID_GROUP_ID
            elif group is None or group.state is GroupState.DEAD:
                codes[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
            elif group_id not in in_flight and self._is_changing(group):
                codes[group_id] = ErrorCode.COORDINATOR_NOT_AVAILABLE
            elif not group.is_empty:
                codes[group_id] = ErrorCode.NON_EMPTY_GROUP
            elif group_id not in codes:
                codes[group_id] = ErrorCode.NONE
                in_flight.add(group_id)
                appends += self._remove(group, complete_deletion_of(group_id))
        return appends or [reply(codes)]

    def delete_offsets(
        self,
        group_id: str,
        topic_partitions: Sequence[TopicPartition],
        reply: Callable[[ErrorCode, PartitionErrors], Reply],
    ) -> list[Effect]:
        """Handle OffsetDelete; `reply` gets the error of the request and of each partition."""
        group = self.groups.get(group_id)
        if group is None or group.type == "share" or group.state is GroupState.DEAD:
            return [reply(ErrorCode.GROUP_ID_NOT_FOUND, {})]
        subscribed: set[str] | None = set()
        if group.type == "consumer":
            subscribed = group.subscribed_topics()
        elif group.state is not GroupState.EMPTY:
            if group.protocol_type != "consumer":
                return [reply(ErrorCode.NON_EMPTY_GROUP, {})]
            subscribed = subscribed_topics(group)
        codes = {
            tp: (
                ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                if subscribed is None or tp.topic in subscribed
                else ErrorCode.NONE
            )
            for tp in topic_partitions
        }
        committed = self.offsets.of_group(group_id)
        deleted = [tp for tp, code in codes.items() if code is ErrorCode.NONE and tp in committed]
        if not deleted:
            return [reply(ErrorCode.NONE, codes)]

        def complete(code: ErrorCode) -> list[Effect]:
            if code is not ErrorCode.NONE:
                return [reply(append_error(code), {})]
            return [reply(ErrorCode.NONE, codes)]

        return [Append(tombstones(group_id, deleted), complete)]

    def delete_topics(self, names: Collection[str]) -> list[Effect]:
        """Remove all committed and pending offsets of topics that were deleted."""
        deleted = {
            group_id: self.offsets.of_topics(group_id, names)
            for group_id, _offsets in self.offsets.all()
        }
        for group_id in self.pending_offsets.groups():
            pending = [tp for tp in self._only_pending(group_id) if tp.topic in names]
            deleted.setdefault(group_id, []).extend(pending)
        return [Append(tombstones(group_id, tps)) for group_id, tps in deleted.items() if tps]

    def delete_share_states(self, is_deleted: Callable[[UUID], bool]) -> list[Effect]:
        """Remove what share groups have in flight of topics that were deleted."""
        effects: list[Effect] = []
        for group in self.groups.values():
            if group.type == "share" and group.states:
                effects += self.share_groups.delete_topics(group, is_deleted)
        return effects

    def delete_outdated(self, image: MetadataImage) -> list[Effect]:
        """Remove the committed offsets of topics deleted while the shard was not loaded."""
        return [
            Append(tombstones(group_id, outdated))
            for group_id, _offsets in self.offsets.all()
            if (outdated := self.offsets.of_other_topics(group_id, image))
        ]

    def clean_up(self, now: Now) -> list[Effect]:
        """Remove expired offsets, and groups that have neither members nor offsets left."""
        effects: list[Effect] = []
        for group_id, group in self.groups.items():
            if self._is_changing(group):
                continue
            expired = self._expired(group, now.time_ms)
            has_offsets = len(self.offsets.of_group(group_id)) > len(expired)
            has_offsets = has_offsets or group_id in self.pending_offsets
            has_offsets = has_offsets or self._has_share_states(group, now.time_ms)
            if group.is_empty and not has_offsets and not group.pending:
                effects += self._remove(group, lambda _code: [])
            elif expired:
                effects.append(Append(tombstones(group_id, expired)))
        return effects

    def _is_changing(self, group: AnyGroup) -> bool:
        """Whether records of a group are being written that its removal has to wait for."""
        if group.type == "share" and group.writing_count:
            return True
        return group.id in self.turns

    def _has_share_states(self, group: AnyGroup, time_ms: int) -> bool:
        """Whether a share group has states that are not older than the retention of offsets."""
        if group.type != "share":
            return False
        latest_ms = max((state.written_ms for state in group.states.values()), default=0)
        used_ms = max(latest_ms, group.empty_since_ms)
        return time_ms - used_ms < self._config.offsets_retention_ms

    def _check_commit(
        self,
        group_id: str,
        identity: MemberIdentity,
        offsets: Mapping[TopicPartition, CommittedOffset],
        now: Now,
        version: int,
    ) -> PartitionErrors:
        """Check a commit; return the partitions that are refused. Raises GroupError."""
        group = self.groups.get(group_id)
        if group is None:
            if identity.generation >= 0:
                raise GroupError(
                    ErrorCode.GROUP_ID_NOT_FOUND
                    if version >= _FIRST_WITH_GROUP_ID_NOT_FOUND
                    else ErrorCode.ILLEGAL_GENERATION
                )
        elif group.type == "share":
            raise GroupError(ErrorCode.GROUP_ID_NOT_FOUND)
        elif group.type == "consumer":
            refused = group.check_commit(*identity, version, offsets.items())
            member = group.members.get(identity.member_id)
            if member is not None and member.is_classic:
                self.consumer_groups.start_session(group, member.id, now)
            return refused
        else:
            group.check_commit(*identity, now)
        return {}

    def _check_commit_memory(
        self,
        group_id: str,
        offsets: Mapping[TopicPartition, CommittedOffset],
        *,
        is_pending: bool = False,
    ) -> None:
        committed = {} if is_pending else self.offsets.of_group(group_id)
        growth_bytes = sum(
            _offset_bytes(offset) - _offset_bytes(committed.get(tp))
            for tp, offset in offsets.items()
        )
        if group_id not in self.groups:
            growth_bytes += _GROUP_BYTES
        if growth_bytes > 0 and not self._has_memory(growth_bytes, group_id in self.with_members):
            raise GroupError(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _expired(self, group: AnyGroup, time_ms: int) -> list[TopicPartition]:
        """Return the partitions whose offsets are older than the retention, and not in use."""
        retention_ms = self._config.offsets_retention_ms
        pending = self.pending_offsets.of_group(group.id)
        expired = [
            tp
            for tp in self.offsets.older_than(group.id, time_ms - retention_ms)
            if tp not in pending
        ]
        if group.type == "consumer":
            if group.is_empty:
                return expired if time_ms - group.empty_since_ms >= retention_ms else []
            in_use = group.subscribed_topics()
            return [tp for tp in expired if tp.topic not in in_use]
        if group.type == "share":
            return expired  # Of a transaction that was open when the group was created.
        if group.protocol_type is None:
            return expired  # Never had members: only commits count.
        if group.state is GroupState.EMPTY:
            # A member that committed long ago may have left just now.
            return expired if time_ms - group.empty_since_ms >= retention_ms else []
        if group.protocol_type != "consumer" or group.state is not GroupState.STABLE:
            return []
        subscribed = subscribed_topics(group)
        return [] if subscribed is None else [tp for tp in expired if tp.topic not in subscribed]

    def _only_pending(self, group_id: str) -> list[TopicPartition]:
        """Return the partitions with pending offsets, and no committed ones.

        A tombstone for them keeps the pending offsets from coming back with a commit.
        """
        committed = self.offsets.of_group(group_id)
        return [tp for tp in self.pending_offsets.of_group(group_id) if tp not in committed]

    def _remove(self, group: AnyGroup, then: Callable[[ErrorCode], list[Effect]]) -> list[Effect]:
        """Remove a group without members, and then go on."""
        records = self._group_tombstones(group)
        if group.type != "classic":
            return self.turns.append(group.id, records, then)
        return [Append(records, then)]  # It stays if members join meanwhile.

    def _group_tombstones(self, group: AnyGroup) -> list[GroupShardRecord]:
        """Return the records that remove a group, and the offsets it has committed so far."""
        records: list[GroupShardRecord] = [
            *tombstones(group.id, self.offsets.of_group(group.id)),
            *tombstones(group.id, self._only_pending(group.id)),
        ]
        if group.type == "classic":
            return [*records, GroupRecord(group.id, None)]
        if group.type == "share":
            from .share.group import group_tombstones as of_share_group  # noqa: PLC0415

            return [*records, *of_share_group(group)]
        from .consumer.group import group_tombstones  # noqa: PLC0415  # On first use.

        return [*records, *group_tombstones(group)]


def _offset_bytes(committed: CommittedOffset | None) -> int:
    """Estimate the memory of a committed offset; None: there is none."""
    return 0 if committed is None else _OFFSET_BYTES + len(committed.metadata)


def subscribed_topics(group: Group) -> set[str] | None:
    """Return the topics that the members of a consumer group subscribe to; None if unknown.

    As in the last generation: a member that joins again counts from the next one on.
    """
    if group.subscriptions is None:
        return None
    topics: set[str] = set()
    for metadata in group.subscriptions:
        try:
            # All versions begin like the first, and some clients get the rest wrong.
            subscription, _end = codec(ConsumerProtocolSubscription, 0).decode(
                memoryview(metadata), 2
            )
        except DecodeError:
            return None
        topics.update(subscription.topics)
    return topics
