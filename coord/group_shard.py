"""All groups of a broker, and the offsets that they have committed.

Requests are events, as in `group`: they give effects. What must survive is in records, and takes
effect when they are stored: `replay` reads the same records when a broker starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ottla.protocol.api.heartbeat import HeartbeatResponse
from ottla.protocol.api.leave_group import LeaveGroupResponse, MemberResponse
from ottla.protocol.api.sync_group import SyncGroupResponse
from ottla.protocol.compiler import codec
from ottla.protocol.consumer import ConsumerProtocolSubscription
from ottla.protocol.errors import DecodeError, ErrorCode

from .deadlines import Deadlines
from .effects import Append, Effect, Reply
from .group import ClassicGroupConfig, Group, GroupError, Now, Timer, refused_join
from .member import Join
from .metadata_image import KeyValue
from .records import (
    CommittedOffset,
    GroupMetadataKey,
    OffsetCommitKey,
    decode_group,
    decode_key,
    decode_offset,
    group_key,
    members_of,
    offset_key,
    offset_record,
)
from .states import GroupState

#: A topic and a partition.
TopicPartition = tuple[str, int]
#: What becomes of each partition of a commit.
Codes = dict[TopicPartition, ErrorCode]


@dataclass(frozen=True, slots=True)
class GroupCoordinatorConfig:
    """What the coordinator allows."""

    group: ClassicGroupConfig = field(default_factory=ClassicGroupConfig)
    max_groups: int = 10_000
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000


class MemberIdentity(NamedTuple):
    """Who a request says it comes from."""

    member_id: str
    instance_id: str | None
    generation: int


class GroupShard:
    """The groups, by id. `config` may be replaced at any time."""

    def __init__(self, config: GroupCoordinatorConfig) -> None:
        self._config = config
        self.groups: dict[str, Group] = {}
        self.offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self.timers: Deadlines[Timer] = Deadlines()

    @property
    def config(self) -> GroupCoordinatorConfig:
        """What is allowed."""
        return self._config

    @config.setter
    def config(self, config: GroupCoordinatorConfig) -> None:
        self._config = config
        for group in self.groups.values():
            group.config = config.group

    # Membership.

    def join(self, group_id: str, join: Join, token: Any, now: Now) -> list[Effect]:
        """Take a JoinGroup."""
        if not group_id:
            return [Reply(token, refused_join(ErrorCode.INVALID_GROUP_ID, join.member_id))]
        group = self.groups.get(group_id)
        if group is None:
            if join.member_id:
                return [Reply(token, refused_join(ErrorCode.UNKNOWN_MEMBER_ID, join.member_id))]
            if len(self.groups) >= self._config.max_groups:
                return [Reply(token, refused_join(ErrorCode.GROUP_MAX_SIZE_REACHED))]
            group = self._make(group_id)
        effects = group.join(join, token, now)
        self._drop_if_void(group)
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
        """Take a SyncGroup."""
        try:
            group = self._group(group_id)
        except GroupError as error:
            return [Reply(token, SyncGroupResponse(error_code=error.code))]
        return group.sync(*identity, protocol, assignments, token, now)

    def heartbeat(
        self, group_id: str, identity: MemberIdentity, token: Any, now: Now
    ) -> list[Effect]:
        """Take a Heartbeat."""
        try:
            group = self._group(group_id)
        except GroupError as error:
            return [Reply(token, HeartbeatResponse(error_code=error.code))]
        return group.heartbeat(*identity, token, now)

    def leave(
        self, group_id: str, members: Sequence[tuple[str, str | None]], token: Any, now: Now
    ) -> list[Effect]:
        """Take a LeaveGroup of members, by their ids and instance ids."""
        if not group_id:
            return [Reply(token, LeaveGroupResponse(error_code=ErrorCode.INVALID_GROUP_ID))]
        group = self.groups.get(group_id)
        effects: list[Effect] = []
        results = []
        for member_id, instance_id in members:
            code = ErrorCode.UNKNOWN_MEMBER_ID
            if group is not None:
                code, more = group.leave(member_id, instance_id, now)
                effects += more
            results.append(
                MemberResponse(member_id=member_id, group_instance_id=instance_id, error_code=code)
            )
        if group is not None:
            self._drop_if_void(group)
        return [*effects, Reply(token, LeaveGroupResponse(members=results))]

    def expire(self, now: Now) -> list[Effect]:
        """Take note of all times that are over."""
        effects: list[Effect] = []
        for timer in self.timers.due(now.tick_ms):
            group = self.groups.get(timer.group_id)
            if group is not None:
                effects += group.expire(timer, now)
                self._drop_if_void(group)
        return effects

    # Offsets.

    def commit(
        self,
        group_id: str,
        identity: MemberIdentity,
        offsets: Mapping[TopicPartition, CommittedOffset],
        finish: Callable[[Codes], Effect],
        now: Now,
        *,
        knows_missing_groups: bool,
    ) -> list[Effect]:
        """Take an OffsetCommit; `finish` makes the answer from what became of each partition."""
        try:
            self._check_commit(group_id, identity, now, knows_missing_groups=knows_missing_groups)
        except GroupError as error:
            return [finish(dict.fromkeys(offsets, error.code))]
        limit = self._config.offset_metadata_max_bytes
        codes: Codes = {}
        accepted: dict[TopicPartition, CommittedOffset] = {}
        for place, committed in offsets.items():
            if len(committed.metadata.encode()) > limit:
                codes[place] = ErrorCode.OFFSET_METADATA_TOO_LARGE
            else:
                codes[place] = ErrorCode.NONE
                accepted[place] = committed
        if not accepted:
            return [finish(codes)]

        def stored(error: Exception | None) -> list[Effect]:
            if isinstance(error, GroupError):
                codes.update(dict.fromkeys(accepted, error.code))
            elif error is not None:
                codes.update(dict.fromkeys(accepted, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            else:
                if group_id not in self.groups:
                    self._make(group_id)  # now, as it may have been deleted meanwhile
                self.offsets.setdefault(group_id, {}).update(accepted)
            return [finish(codes)]

        records = [
            offset_record(group_id, topic, partition, committed)
            for (topic, partition), committed in accepted.items()
        ]
        return [Append(group_id, records, stored)]

    def committed(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """Give what a group has committed."""
        return self.offsets.get(group_id, {})

    def delete_groups(
        self, group_ids: Iterable[str], finish: Callable[[dict[str, ErrorCode]], Effect]
    ) -> list[Effect]:
        """Delete groups that have no members, and all that they have committed."""
        codes: dict[str, ErrorCode] = {}
        stores: list[Effect] = []
        waiting: set[str] = set()

        def stored_of(group_id: str) -> Callable[[Exception | None], list[Effect]]:
            def stored(error: Exception | None) -> list[Effect]:
                waiting.discard(group_id)
                if error is not None:
                    codes[group_id] = ErrorCode.COORDINATOR_NOT_AVAILABLE
                return [] if waiting else [finish(codes)]

            return stored

        for group_id in group_ids:
            group = self.groups.get(group_id)
            if not group_id:
                codes[group_id] = ErrorCode.INVALID_GROUP_ID
            elif group is None or group.is_dead:
                codes[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not GroupState.EMPTY:
                codes[group_id] = ErrorCode.NON_EMPTY_GROUP
            elif group_id not in codes:
                codes[group_id] = ErrorCode.NONE
                waiting.add(group_id)
                stores.append(self._removing(group_id, stored_of(group_id)))
        return stores or [finish(codes)]

    def delete_offsets(
        self,
        group_id: str,
        places: Sequence[TopicPartition],
        finish: Callable[[ErrorCode, Codes], Effect],
    ) -> list[Effect]:
        """Take an OffsetDelete; `finish` gets the error of all, and those of the partitions."""
        group = self.groups.get(group_id)
        if group is None or group.is_dead:
            return [finish(ErrorCode.GROUP_ID_NOT_FOUND, {})]
        subscribed: set[str] | None = set()
        if group.state is not GroupState.EMPTY:
            if group.protocol_type != "consumer":
                return [finish(ErrorCode.NON_EMPTY_GROUP, {})]
            subscribed = topics_of(group)
        codes = {
            (topic, partition): (
                ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                if subscribed is None or topic in subscribed
                else ErrorCode.NONE
            )
            for topic, partition in places
        }
        known = self.offsets.get(group_id, {})
        gone = [p for p, code in codes.items() if code is ErrorCode.NONE and p in known]
        if not gone:
            return [finish(ErrorCode.NONE, codes)]

        def stored(error: Exception | None) -> list[Effect]:
            if error is not None:
                return [finish(ErrorCode.COORDINATOR_NOT_AVAILABLE, {})]
            self._forget(group_id, gone)
            return [finish(ErrorCode.NONE, codes)]

        return [self._forgetting(group_id, gone, stored)]

    def forget_topic(self, name: str) -> list[Effect]:
        """Drop all offsets of a topic that is gone."""
        effects: list[Effect] = []
        for group_id, offsets in self.offsets.items():
            gone = [place for place in offsets if place[0] == name]
            if gone:
                effects.append(self._forgetting(group_id, gone, self._forgot(group_id, gone)))
        return effects

    def clean_up(self, now: Now) -> list[Effect]:
        """Drop offsets that have expired, and groups that have nothing left."""
        effects: list[Effect] = []
        for group_id, group in list(self.groups.items()):
            gone = self._expired(group, now.time_ms)
            left = len(self.offsets.get(group_id, {})) - len(gone)
            if group.state is GroupState.EMPTY and not left and not group.pending:
                effects.append(self._removing(group_id, lambda _error: []))
            elif gone:
                effects.append(self._forgetting(group_id, gone, self._forgot(group_id, gone)))
        return effects

    # What a start reads.

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Take in a record that was stored before. Raises DecodeError."""
        found = decode_key(key)
        if isinstance(found, OffsetCommitKey):
            place = (found.topic, found.partition)
            if value is not None:
                self.offsets.setdefault(found.group, {})[place] = decode_offset(value)
            elif place in self.offsets.get(found.group, {}):
                self._forget(found.group, [place])
        elif isinstance(found, GroupMetadataKey):
            self.groups.pop(found.group, None)
            if value is not None:
                self._restore(found.group, value)

    def loaded(self, group_ids: Iterable[str], now: Now) -> None:
        """Begin to serve groups that were read: their members have a session's time to appear."""
        for group_id in group_ids:
            group = self.groups.get(group_id) or self._make(group_id)
            group.restart_sessions(now)

    def _restore(self, group_id: str, value: bytes) -> None:
        content = decode_group(value)
        group = self._make(group_id)
        group.protocol_type = content.protocol_type or None
        group.protocol = content.protocol
        group.empty_since_ms = content.current_state_timestamp
        group.restore(content.generation, content.leader, members_of(content))

    # Small things.

    def _make(self, group_id: str) -> Group:
        group = self.groups[group_id] = Group(group_id, self._config.group, self.timers)
        return group

    def _group(self, group_id: str) -> Group:
        """Give a group whose members may speak. Raises GroupError."""
        if not group_id:
            raise GroupError(ErrorCode.INVALID_GROUP_ID)
        group = self.groups.get(group_id)
        if group is None:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        return group

    def _check_commit(
        self, group_id: str, identity: MemberIdentity, now: Now, *, knows_missing_groups: bool
    ) -> None:
        group = self.groups.get(group_id)
        if group is not None:
            group.check_commit(*identity, now)
        elif identity.generation >= 0:
            raise GroupError(
                ErrorCode.GROUP_ID_NOT_FOUND
                if knows_missing_groups
                else ErrorCode.ILLEGAL_GENERATION
            )
        elif len(self.groups) >= self._config.max_groups:
            raise GroupError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def _drop_if_void(self, group: Group) -> None:
        """Forget a group that never was: nobody is in it, and nothing of it is stored."""
        if (
            group.state is GroupState.EMPTY
            and group.generation == 0
            and not group.pending
            and group.id not in self.offsets
        ):
            self.groups.pop(group.id, None)

    def _expired(self, group: Group, time_ms: int) -> list[TopicPartition]:
        """Give what has been there for too long, unless somebody may still be at it."""
        retention = self._config.offsets_retention_ms
        offsets = self.offsets.get(group.id, {})
        if group.state is GroupState.EMPTY and group.protocol_type is not None:
            # A consumer that committed long ago may have been there until just now.
            if time_ms - group.empty_since_ms < retention:
                return []
            return [p for p, c in offsets.items() if time_ms - c.timestamp_ms >= retention]
        subscribed: set[str] | None = None
        if group.protocol_type is None:
            subscribed = set()
        elif group.protocol_type == "consumer" and group.state is GroupState.STABLE:
            subscribed = topics_of(group)
        if subscribed is None:
            return []
        return [
            place
            for place, committed in offsets.items()
            if place[0] not in subscribed and time_ms - committed.timestamp_ms >= retention
        ]

    def _removing(self, group_id: str, then: Callable[[Exception | None], list[Effect]]) -> Append:
        """Write that a group is gone, and all that it has committed until now."""
        places = list(self.offsets.get(group_id, {}))
        records: list[KeyValue] = [(offset_key(group_id, *place), None) for place in places]

        def stored(error: Exception | None) -> list[Effect]:
            if error is None:
                self._remove(group_id, places)
            return then(error)

        return Append(group_id, [*records, (group_key(group_id), None)], stored)

    def _forgetting(
        self,
        group_id: str,
        places: Iterable[TopicPartition],
        stored: Callable[[Exception | None], list[Effect]],
    ) -> Append:
        return Append(group_id, [(offset_key(group_id, *place), None) for place in places], stored)

    def _forgot(
        self, group_id: str, places: Iterable[TopicPartition]
    ) -> Callable[[Exception | None], list[Effect]]:
        def stored(error: Exception | None) -> list[Effect]:
            if error is None:
                self._forget(group_id, places)
            return []

        return stored

    def _forget(self, group_id: str, places: Iterable[TopicPartition]) -> None:
        offsets = self.offsets.get(group_id, {})
        for place in places:
            offsets.pop(place, None)
        if not offsets:
            self.offsets.pop(group_id, None)

    def _remove(self, group_id: str, places: Iterable[TopicPartition]) -> None:
        self._forget(group_id, places)
        group = self.groups.get(group_id)
        if group is not None and group.state is GroupState.EMPTY:
            group.die()
            del self.groups[group_id]
            if group_id in self.offsets:
                self._make(group_id)  # for what was being written when the group was removed


def topics_of(group: Group) -> set[str] | None:
    """Give the topics that the members of a consumer group are subscribed to; None: all may be."""
    topics: set[str] = set()
    for member in group.members.values():
        metadata = memoryview(member.metadata(group.protocol))
        try:
            # All versions begin like the first, and some clients are wrong about what follows.
            found, _end = codec(ConsumerProtocolSubscription, 0).decode(metadata, 2)
        except DecodeError:
            return None  # not what consumers say, whatever it is
        topics.update(found.topics)
    return topics
