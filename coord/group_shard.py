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
from typing import Any, NamedTuple

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
from .metadata_image import MetadataImage, TopicPartition
from .offsets import CommittedOffsets, PendingOffsets, tombstones
from .records import (
    CommittedOffset,
    CoordinatorRecord,
    GroupRecord,
    OffsetRecord,
    decode_record,
    encode_record,
)
from .responses import join_error
from .states import GroupState

#: Estimated memory of a group without members, and of a committed offset without metadata.
_GROUP_BYTES = 2048
_OFFSET_BYTES = 512
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
    `has_memory` returns whether so many more bytes fit, for a member or for a commit.
    """

    #: What is loaded, for the broker's log.
    kind = "groups"

    def __init__(
        self,
        config: GroupCoordinatorConfig,
        count_groups: Callable[[], int] | None = None,
        has_memory: Callable[[int, bool], bool] = lambda _size_bytes, _is_member: True,
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
        self.groups: dict[str, Group] = {}
        self.offsets = CommittedOffsets()
        self.pending_offsets = PendingOffsets()
        self.deadlines: Deadlines[Timer] = Deadlines()

    encode = staticmethod(encode_record)
    decode = staticmethod(decode_record)

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
            group.config = config.group

    # Durable state.

    def replay(self, record: CoordinatorRecord, *, offset: int = -1, producer_id: int = -1) -> None:
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
        elif record.metadata is None:
            self._replay_group_tombstone(record.group_id)
        elif not self.is_active:
            self._add_group(record.group_id).restore(record.metadata)
        elif record.group_id in self.groups:
            self.groups[record.group_id].replay(record.metadata)
            self._resize(self.groups[record.group_id])

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
                self._drop_if_unused(group)

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
            self._drop_if_unused(group)
            group.start_sessions(now)
            self._resize(group)
        self.is_active = True
        return []

    def _replay_group_tombstone(self, group_id: str) -> None:
        group = self.groups.get(group_id)
        if group is None:
            return
        if self.is_active:
            if group.state is not GroupState.EMPTY:
                return  # Members have joined since the tombstone was appended.
            group.die()
        self._remove_group(group_id)
        for record in self.pending_offsets.remove_group(group_id):
            self.size_bytes -= _offset_bytes(record.committed)
        if group_id in self.offsets:
            self._add_group(group_id)  # For offsets whose commit was in flight meanwhile.

    def _add_group(self, group_id: str) -> Group:
        group = self.groups[group_id] = Group(group_id, self._config.group, self.deadlines)
        self._resize(group)
        return group

    def _remove_group(self, group_id: str) -> None:
        if self.groups.pop(group_id, None) is not None:
            self.size_bytes -= self._group_sizes.pop(group_id)
            self.with_members.discard(group_id)
            self._pending_only.pop(group_id, None)

    def _resize(self, group: Group) -> None:
        """Update the memory of a group after its members have changed."""
        if self.groups.get(group.id) is not group:
            return
        size_bytes = _GROUP_BYTES + sum(member.size_bytes for member in group.members.values())
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
            group.forget_pending_members()
            self._drop_if_unused(group)
            self._resize(group)
            return True
        return False

    # Membership.

    def join(self, group_id: str, join: Join, token: Any, now: Now) -> list[Effect]:
        """Handle JoinGroup."""
        if not group_id:
            return [Reply(token, join_error(ErrorCode.INVALID_GROUP_ID, join.member_id))]
        limits = self._config.group
        if not (
            limits.min_session_timeout_ms
            <= join.session_timeout_ms
            <= limits.max_session_timeout_ms
        ):
            code = ErrorCode.INVALID_SESSION_TIMEOUT
            return [Reply(token, join_error(code, join.member_id))]
        group = self.groups.get(group_id)
        if group is None and join.member_id:
            return [Reply(token, join_error(ErrorCode.UNKNOWN_MEMBER_ID, join.member_id))]
        if (
            group_id not in self.with_members
            and self._count_groups() >= self._config.max_groups
            and not self._forget_pending_members()
        ):
            return [Reply(token, join_error(ErrorCode.GROUP_MAX_SIZE_REACHED, join.member_id))]
        member = None if group is None else group.members.get(join.member_id)
        growth_bytes = member_bytes(join.protocols, join.client_id) - (
            member.size_bytes if member else 0
        )
        if growth_bytes > 0 and not self._has_memory(growth_bytes, True):
            return [Reply(token, join_error(ErrorCode.COORDINATOR_NOT_AVAILABLE, join.member_id))]
        if group is None:
            group = self._add_group(group_id)
        effects = group.join(join, token, now)
        self._drop_if_unused(group)
        self._resize(group)
        return effects

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
        try:
            group = self._find_group(group_id)
        except GroupError as error:
            return [Reply(token, SyncGroupResponse(error_code=error.code))]
        return group.sync(*identity, protocol, assignments, token, now)

    def heartbeat(
        self, group_id: str, identity: MemberIdentity, token: Any, now: Now
    ) -> list[Effect]:
        """Handle Heartbeat."""
        try:
            group = self._find_group(group_id)
        except GroupError as error:
            return [Reply(token, HeartbeatResponse(error_code=error.code))]
        return group.heartbeat(*identity, token, now)

    def leave(
        self, group_id: str, members: Sequence[tuple[str, str | None]], token: Any, now: Now
    ) -> list[Effect]:
        """Handle LeaveGroup of members, given by member id and instance id."""
        if not group_id:
            return [Reply(token, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))]
        group = self.groups.get(group_id)
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
            self._drop_if_unused(group)
            self._resize(group)
        return [*effects, Reply(token, LeaveGroupResponse(members=results))]

    def expire(self, now: Now) -> list[Effect]:
        """Handle all timers that are due."""
        effects: list[Effect] = []
        for timer in self.deadlines.due(now.tick_ms):
            group = self.groups.get(timer.group_id)
            if group is not None:
                effects += group.expire(timer, now)
                self._drop_if_unused(group)
                self._resize(group)
        return effects

    def refuse_waiting(self, code: ErrorCode) -> list[Effect]:
        """Answer all waiting joins and syncs with an error: the shard or the broker stops.

        The groups stay as they are, so that nothing follows from it.
        """
        effects: list[Effect] = []
        for group in self.groups.values():
            for member in group.members.values():
                if member.waiting_join is not None:
                    effects.append(Reply(member.waiting_join, join_error(code, member.id)))
                if member.waiting_sync is not None:
                    effects.append(Reply(member.waiting_sync, SyncGroupResponse(error_code=code)))
        return effects

    def _find_group(self, group_id: str) -> Group:
        if not group_id:
            raise GroupError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(group_id)
        if group is None:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def _drop_if_unused(self, group: Group) -> None:
        """Drop a group that has neither members nor records."""
        if (
            group.state is GroupState.EMPTY
            and group.generation == 0
            and not group.pending
            and group.id not in self.offsets
            and group.id not in self.pending_offsets
        ):
            self._remove_group(group.id)

    # Offsets.

    def commit(
        self,
        group_id: str,
        identity: MemberIdentity,
        offsets: Mapping[TopicPartition, CommittedOffset],
        reply: Callable[[PartitionErrors], Reply],
        now: Now,
        *,
        knows_group_id_not_found: bool,
    ) -> list[Effect]:
        """Handle OffsetCommit; `reply` makes the response from the result of each partition."""
        try:
            self._check_commit(group_id, identity, now, knows_group_id_not_found)
            self._check_commit_memory(group_id, offsets)
        except GroupError as error:
            return [reply(dict.fromkeys(offsets, error.code))]
        return self._append_offsets(group_id, offsets, reply)

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
            elif group.state is not GroupState.EMPTY:
                codes[group_id] = ErrorCode.NON_EMPTY_GROUP
            elif group_id not in codes:
                codes[group_id] = ErrorCode.NONE
                in_flight.add(group_id)
                records = self._group_tombstones(group_id)
                appends.append(Append(records, complete_deletion_of(group_id)))
        return appends or [reply(codes)]

    def delete_offsets(
        self,
        group_id: str,
        topic_partitions: Sequence[TopicPartition],
        reply: Callable[[ErrorCode, PartitionErrors], Reply],
    ) -> list[Effect]:
        """Handle OffsetDelete; `reply` gets the error of the request and of each partition."""
        group = self.groups.get(group_id)
        if group is None or group.state is GroupState.DEAD:
            return [reply(ErrorCode.GROUP_ID_NOT_FOUND, {})]
        subscribed: set[str] | None = set()
        if group.state is not GroupState.EMPTY:
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
            expired = self._expired(group, now.time_ms)
            has_offsets = len(self.offsets.of_group(group_id)) > len(expired)
            has_offsets = has_offsets or group_id in self.pending_offsets
            if group.state is GroupState.EMPTY and not has_offsets and not group.pending:
                effects.append(Append(self._group_tombstones(group_id)))
            elif expired:
                effects.append(Append(tombstones(group_id, expired)))
        return effects

    def _check_commit(
        self, group_id: str, identity: MemberIdentity, now: Now, knows_group_id_not_found: bool
    ) -> None:
        group = self.groups.get(group_id)
        if group is not None:
            group.check_commit(*identity, now)
        elif identity.generation >= 0:
            raise GroupError(
                ErrorCode.GROUP_ID_NOT_FOUND
                if knows_group_id_not_found
                else ErrorCode.ILLEGAL_GENERATION
            )

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

    def _expired(self, group: Group, time_ms: int) -> list[TopicPartition]:
        """Return the partitions whose offsets are older than the retention, and not in use."""
        retention_ms = self._config.offsets_retention_ms
        pending = self.pending_offsets.of_group(group.id)
        expired = [
            tp
            for tp in self.offsets.older_than(group.id, time_ms - retention_ms)
            if tp not in pending
        ]
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

    def _group_tombstones(self, group_id: str) -> list[CoordinatorRecord]:
        """Return the records that remove a group, and the offsets it has committed so far."""
        return [
            *tombstones(group_id, self.offsets.of_group(group_id)),
            *tombstones(group_id, self._only_pending(group_id)),
            GroupRecord(group_id, None),
        ]


def _offset_bytes(committed: CommittedOffset | None) -> int:
    """Estimate the memory of a committed offset; None: there is none."""
    return 0 if committed is None else _OFFSET_BYTES + len(committed.metadata)


def subscribed_topics(group: Group) -> set[str] | None:
    """Return the topics that the members of a consumer group subscribe to; None if unknown."""
    topics: set[str] = set()
    for member in group.members.values():
        metadata = memoryview(member.metadata(group.protocol))
        try:
            # All versions begin like the first, and some clients get the rest wrong.
            subscription, _end = codec(ConsumerProtocolSubscription, 0).decode(metadata, 2)
        except DecodeError:
            return None
        topics.update(subscription.topics)
    return topics
