"""A member of a group whose coordinator assigns the partitions, in response to heartbeats.

    UNJOINED ──heartbeat with epoch 0──▶ STABLE ──fenced or removed: partitions are lost──▶ UNJOINED

Two tasks work side by side. One sends heartbeats: what the member subscribes to, when that changes.
The responses have its epoch, and the partitions it is to have. The other one takes the member
there. Meanwhile heartbeats continue.

What each error code means is in `coordinator_errors`.
"""

from __future__ import annotations

import asyncio
import logging
from base64 import urlsafe_b64encode
from collections.abc import Collection, Coroutine, Mapping, Sequence
from typing import Any, Generic, TypeVar
from uuid import UUID, uuid4

from ottla.protocol.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.api.share_group_heartbeat import (
    ShareGroupHeartbeatRequest,
    ShareGroupHeartbeatResponse,
)
from ottla.protocol.errors import ErrorCode

from ..cluster import Cluster
from ..errors import ClientError, KafkaError
from ..offsets import kafka_error
from ..types import TopicPartition
from .config import GroupConfig
from .coordinator_errors import ErrorAction, action_for
from .member import Member
from .member_state import MemberState

logger = logging.getLogger(__name__)

Request = TypeVar("Request", ConsumerGroupHeartbeatRequest, ShareGroupHeartbeatRequest)
Response = TypeVar("Response", ConsumerGroupHeartbeatResponse, ShareGroupHeartbeatResponse)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1
#: How long to wait for the metadata of an assigned topic before asking again.
_UNKNOWN_TOPIC_SECONDS = 0.5


class AssignedMember(Member, Generic[Request, Response]):
    """A member of a group; `response` is the class of the responses to its heartbeats."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        config: GroupConfig,
        response: type[Response],
        instance_id: str | None = None,
    ) -> None:
        member_id = urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
        super().__init__(cluster, group, config, member_id, instance_id)
        self._response: type[Response] = response
        self._interval = config.heartbeat_interval
        # The partitions that the coordinator assigned, by topic id.
        self._target: Mapping[UUID, Collection[int]] = {}
        self._target_changed = asyncio.Event()
        # Set when a heartbeat is to be sent before it is due.
        self._is_due = asyncio.Event()

    # What the protocols differ in.

    def _request(self) -> Request:
        """Return the next heartbeat: all that the coordinator does not know yet."""
        raise NotImplementedError

    def _leave_request(self) -> Request:
        raise NotImplementedError

    def _forget_sent(self) -> None:
        """Send everything again: the coordinator may or may not know it."""
        raise NotImplementedError

    def _freeze(self) -> None:
        """Deliver no more records of the partitions, which are lost."""
        raise NotImplementedError

    async def _drop_lost(self) -> None:
        """Drop the partitions that are lost."""
        raise NotImplementedError

    async def _apply(self, target: frozenset[TopicPartition]) -> None:
        """Take the member to the partitions that it is to have."""
        raise NotImplementedError

    #: Errors that do not make the member give up, although they are not retriable.
    _tolerated: frozenset[ErrorCode] = frozenset()

    # Life cycle.

    def _work(self) -> Sequence[Coroutine[Any, Any, None]]:
        return self._run_heartbeats(), self._run_reconciliation()

    async def leave(self) -> None:
        """Leave the group. A static member may return: its partitions wait for it."""
        epoch, self.generation_id = self.generation_id, -1
        self.state = MemberState.UNJOINED
        self._forget_sent()
        self._target = {}
        if epoch >= 0:
            await self._cluster.send_to_coordinator(
                self._group, self._leave_request(), self._response, channel="heartbeat"
            )

    def _lose(self) -> None:
        """Join again: the group removed this member, and others may have its partitions."""
        self._is_lost = True
        self.generation_id = -1
        self.state = MemberState.UNJOINED
        self._target = {}
        self._forget_sent()
        self._freeze()
        self._target_changed.set()

    # Heartbeats.

    async def _run_heartbeats(self) -> None:
        timeout = min(self._cluster.config.timeouts.request, self._config.session_timeout / 3)
        while True:
            self._is_due.clear()
            request = self._request()
            try:
                response = await self._cluster.send_to_coordinator(
                    self._group, request, self._response, channel="heartbeat", timeout=timeout
                )
            except (ClientError, KafkaError) as error:
                if not error.retriable:
                    raise
                self._forget_sent()
                level = logging.DEBUG if self._failures else logging.WARNING  # warn once
                logger.log(level, "heartbeat of group %s failed: %s", self._group, error)
                self._cluster.invalidate_coordinator(self._group)
                await self._back_off()
                continue
            if not await self._handle(request.member_epoch, response):
                continue
            try:
                async with asyncio.timeout(self._interval):
                    await self._is_due.wait()
            except TimeoutError:
                continue

    async def _handle(self, sent_epoch: int, response: Response) -> bool:
        """Apply a response; False if the next heartbeat is due at once. Raises KafkaError."""
        code = response.error_code
        if code == ErrorCode.NONE:
            self._failures = 0
            self._interval = response.heartbeat_interval_ms / 1000
            if sent_epoch == JOIN_EPOCH or self.generation_id >= 0:
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
        action = action_for(code)
        if action is ErrorAction.FIND_COORDINATOR:
            self._cluster.invalidate_coordinator(self._group)
        elif action is ErrorAction.FAIL and code not in self._tolerated:
            raise error
        await self._back_off()
        return False

    async def _wait_until_dropped(self) -> None:
        """Wait until the partitions that were lost are dropped: a new member owns nothing."""
        while self._is_lost:
            self._is_due.clear()
            await self._is_due.wait()

    # Reconciliation.

    async def _run_reconciliation(self) -> None:
        while True:
            await self._target_changed.wait()
            self._target_changed.clear()
            if self._is_lost:
                await self._drop_lost()
                self._is_lost = False
                self._is_due.set()
                continue
            target = await self._resolve(self._target)
            if target is not None:
                await self._apply(target)

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
