"""A member of a group of the consumer protocol (KIP-848): the coordinator assigns the partitions.

    UNJOINED ──heartbeat with epoch 0──▶ STABLE ──fenced or removed: partitions are lost──▶ UNJOINED

Two tasks work side by side. One sends heartbeats: what the member subscribes to, when that changes,
and the partitions that it owns. The responses have its epoch, and the partitions it is to have. The
other one takes the member there: it first revokes what the coordinator wants back, when the
application has processed what it was given, and commits. The next heartbeat tells the coordinator,
which may assign the partitions to others from then on. Meanwhile heartbeats continue.

What each error code means is in `coordinator_errors`.
"""

from __future__ import annotations

import asyncio
import logging
import random
from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING
from uuid import UUID, uuid4

from ottla.protocol.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.errors import ErrorCode

from ..cluster import Cluster
from ..errors import ClientError, KafkaError
from ..offsets import group_by_topic, kafka_error
from ..types import TopicPartition
from .config import GroupConfig
from .coordinator_errors import ErrorAction, action_for
from .member_state import MemberState

if TYPE_CHECKING:
    from .assignment import Assignment

logger = logging.getLogger(__name__)

_JOIN_EPOCH = 0
_LEAVE_EPOCH = -1
_LEAVE_STATIC_EPOCH = -2
#: How long to wait for the metadata of an assigned topic before asking again.
_UNKNOWN_TOPIC_SECONDS = 0.5


class ConsumerProtocolMember:
    """A member of a group, for as long as `run` runs."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        assignment: Assignment,
        config: GroupConfig,
        instance_id: str | None = None,
    ) -> None:
        self.state = MemberState.UNJOINED
        self.member_id = urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
        #: The member epoch; the name is that of the classic protocol.
        self.generation_id = -1
        #: The leader's, in the classic protocol.
        self.group_topics: Collection[str] = ()
        self.partition_counts: dict[str, int] = {}
        self.instance_id = instance_id
        self._cluster = cluster
        self._group = group
        self._assignment = assignment
        self._config = config
        self._interval = config.heartbeat_interval
        self._is_lost = False
        self._failures = 0
        # The partitions that the coordinator assigned, by topic id; None: nothing new.
        self._target: Mapping[UUID, Collection[int]] = {}
        self._target_changed = asyncio.Event()
        # Set when a heartbeat is to be sent before it is due.
        self._is_due = asyncio.Event()
        # What the coordinator knows; None: nothing, so that everything is sent.
        self._sent_owned: frozenset[TopicPartition] | None = None
        self._sent_topics: tuple[frozenset[str], str] | None = None

    def __repr__(self) -> str:
        return f"<ConsumerProtocolMember {self.member_id} of {self._group}, {self.state.value}>"

    @property
    def identity(self) -> tuple[int, str, str | None]:
        """Member epoch, member id and instance id, as commits need them."""
        return self.generation_id, self.member_id, self.instance_id

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

    async def run(self) -> None:
        """Stay a member. Raises KafkaError when the group rejects it."""
        tasks = [
            asyncio.create_task(self._run_heartbeats()),
            asyncio.create_task(self._run_reconciliation()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def leave(self) -> None:
        """Leave the group. A static member may return: its partitions wait for it."""
        epoch, self.generation_id = self.generation_id, -1
        self.state = MemberState.UNJOINED
        self._forget_sent()
        self._target = {}
        if epoch < 0:
            return
        request = ConsumerGroupHeartbeatRequest(
            group_id=self._group,
            member_id=self.member_id,
            member_epoch=_LEAVE_EPOCH if self.instance_id is None else _LEAVE_STATIC_EPOCH,
            instance_id=self.instance_id,
        )
        await self._cluster.send_to_coordinator(
            self._group, request, ConsumerGroupHeartbeatResponse, channel="heartbeat"
        )

    # Heartbeats.

    async def _run_heartbeats(self) -> None:
        timeout = min(self._cluster.config.timeouts.request, self._config.session_timeout / 3)
        while True:
            self._is_due.clear()
            request = self._request()
            try:
                response = await self._cluster.send_to_coordinator(
                    self._group,
                    request,
                    ConsumerGroupHeartbeatResponse,
                    channel="heartbeat",
                    timeout=timeout,
                )
            except (ClientError, KafkaError) as error:
                if not error.retriable:
                    raise
                # The coordinator may or may not know what was sent.
                self._forget_sent()
                level = logging.DEBUG if self._failures else logging.WARNING  # warn once
                logger.log(level, "heartbeat of group %s failed: %s", self._group, error)
                self._cluster.invalidate_coordinator(self._group)
                await self._back_off()
                continue
            if not await self._handle(request, response):
                continue
            try:
                async with asyncio.timeout(self._interval):
                    await self._is_due.wait()
            except TimeoutError:
                continue

    def _request(self) -> ConsumerGroupHeartbeatRequest:
        """Return the next heartbeat: all that the coordinator does not know yet."""
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
            member_epoch=_JOIN_EPOCH if is_joining else self.generation_id,
            instance_id=self.instance_id,
            rebalance_timeout_ms=int(self._config.rebalance_timeout * 1000) if is_full else -1,
            subscribed_topic_names=sorted(names) if is_new else None,
            subscribed_topic_regex=regex if is_new and (regex or not is_joining) else None,
            topic_partitions=self._topic_partitions(owned) if reports else None,
        )

    def _topic_partitions(self, owned: Collection[TopicPartition]) -> list[TopicPartitions]:
        topics = self._cluster.metadata.topics
        return [
            TopicPartitions(topic_id=topics[name].id, partitions=[tp.partition for tp in tps])
            for name, tps in group_by_topic(owned)
            if name in topics
        ]

    async def _handle(
        self, request: ConsumerGroupHeartbeatRequest, response: ConsumerGroupHeartbeatResponse
    ) -> bool:
        """Apply a response; False if the next heartbeat is due at once. Raises KafkaError."""
        code = response.error_code
        if code == ErrorCode.NONE:
            self._failures = 0
            self._interval = response.heartbeat_interval_ms / 1000
            if request.member_epoch == _JOIN_EPOCH or self.generation_id >= 0:
                self.generation_id = response.member_epoch
                self.state = MemberState.STABLE
            if response.assignment is not None:
                self._target = {
                    topic.topic_id: list(topic.partitions)
                    for topic in response.assignment.topic_partitions
                }
                self._target_changed.set()
            return True
        error = kafka_error(code, f"group {self._group!r}: {response.error_message or 'heartbeat'}")
        assert error is not None
        if code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_MEMBER_EPOCH):
            logger.info("%s", error)
            self._lose()
            await self._wait_until_dropped()
            return False
        self._forget_sent()
        if code == ErrorCode.INVALID_REGULAR_EXPRESSION and self._assignment.give_up_regex():
            return False  # The topics that match are sent by name.
        action = action_for(code)
        if action is ErrorAction.FIND_COORDINATOR:
            self._cluster.invalidate_coordinator(self._group)
        elif action is ErrorAction.FAIL and code != ErrorCode.UNRELEASED_INSTANCE_ID:
            raise error
        # An earlier process with this instance id may be leaving, or its session end.
        await self._back_off()
        return False

    def _forget_sent(self) -> None:
        self._sent_owned = self._sent_topics = None

    def _lose(self) -> None:
        """Join again: the group removed this member, and others may have its partitions."""
        self._is_lost = True
        self.generation_id = -1
        self.state = MemberState.UNJOINED
        self._target = {}
        self._forget_sent()
        self._assignment.freeze()
        self._target_changed.set()

    async def _wait_until_dropped(self) -> None:
        """Wait until the partitions that were lost are dropped: a new member owns nothing."""
        while self._is_lost:
            self._is_due.clear()
            await self._is_due.wait()

    async def _back_off(self) -> None:
        delay = self._cluster.config.retry.delay(self._failures, random.random())  # noqa: S311
        self._failures += 1
        await asyncio.sleep(delay)

    # Reconciliation.

    async def _run_reconciliation(self) -> None:
        while True:
            await self._target_changed.wait()
            self._target_changed.clear()
            if self._is_lost:
                current = self._assignment.current()
                if current:
                    await self._assignment.lose(current)
                self._is_lost = False
                self._is_due.set()
                continue
            target = await self._resolve(self._target)
            if target is not None:
                await self._apply(target)

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

    async def _resolve(
        self, target: Mapping[UUID, Collection[int]]
    ) -> frozenset[TopicPartition] | None:
        """Return the partitions of a target by name; None if it is replaced meanwhile."""
        while True:
            names = {info.id: name for name, info in self._cluster.metadata.topics.items()}
            if names.keys() >= target.keys():
                return frozenset(
                    TopicPartition(names[topic_id], index)
                    for topic_id, indexes in target.items()
                    for index in indexes
                )
            try:
                await self._cluster.refresh(None)
            except (ClientError, KafkaError) as error:
                if not error.retriable:
                    raise
            names = {info.id: name for name, info in self._cluster.metadata.topics.items()}
            if names.keys() < target.keys():
                await asyncio.sleep(_UNKNOWN_TOPIC_SECONDS)
            if target is not self._target:
                return None
