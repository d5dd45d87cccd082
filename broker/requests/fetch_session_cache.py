"""The cache of fetch sessions: which requests get one, and which sessions are evicted.

The cache limits the number of sessions and the number of partitions in them, because a session
keeps what a client named, whether or not it exists. When the cache is full, a new session evicts
one that has been idle for two minutes, or is declined. A session that has been idle for ten minutes
belongs to a client that is gone, and is dropped.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING

from ottla.protocol.api.fetch import FetchRequest
from ottla.protocol.errors import ErrorCode

from .errors import ApiError
from .fetch_sessions import CLOSE, OPEN, FetchSession
from .follower_session import FollowerSession
from .memory_account import PARTITION_BYTES

if TYPE_CHECKING:
    from ottla.protocol.api.fetch import ReplicaState

_NO_SESSION = 0
_EVICTABLE_SECONDS = 120.0
_EXPIRED_SECONDS = 600.0
_MAX_EPOCH = 2**31 - 1
#: All sessions together may have this many times the partitions that one session may have.
_TOTAL_PARTITIONS_FACTOR = 10
_MAX_TOPIC_NAME_LENGTH = 249


class FetchSessionCache:
    """All fetch sessions of a broker, least recently used first."""

    def __init__(
        self,
        has_memory: Callable[[int], bool] = lambda _size_bytes: True,
        *,
        followers_serve_consumers: bool = False,
    ) -> None:
        self._has_memory = has_memory
        self._followers_serve_consumers = followers_serve_consumers
        self._sessions: dict[int, FetchSession] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def size_bytes(self) -> int:
        """Return the estimated memory of all sessions."""
        return self._partition_count * PARTITION_BYTES

    def of(
        self,
        request: FetchRequest,
        max_sessions: int,
        max_partitions: int,
        now: float,
        *,
        uses_topic_ids: bool = False,
        follower: ReplicaState | None = None,
    ) -> FetchSession | None:
        """Return the session of a request, updated by it; None if the request has no session.

        That of a `follower` is a `FollowerSession`, and nobody else's. `max_partitions` limits each
        session. Raises ApiError, which fails the whole request.
        """
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (OPEN, CLOSE):
            self._remove(session_id)
            session = (
                self._open(max_sessions, now, follower, uses_topic_ids=uses_topic_ids)
                if epoch == OPEN
                else None
            )
        else:
            session = self._next(session_id, epoch, now, follower, uses_topic_ids=uses_topic_ids)
        if session is None:
            return None
        count_before = len(session)
        session.update(request)
        self._partition_count += len(session) - count_before
        if not len(session):
            self._remove(session.id)
            return None
        if not self._fits(session, request, max_partitions, now):
            self._remove(session.id)
            if epoch == OPEN:
                return None
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return session

    def followers_have_changed(self) -> None:
        """Let followers look at all of their partitions again."""
        for session in self._follower_sessions():
            session.all_have_changed()

    def wake_followers(self) -> None:
        """Answer the delayed fetches of followers: the broker is stopping."""
        for session in self._follower_sessions():
            session.wake_all()

    def _follower_sessions(self) -> list[FollowerSession]:
        return [one for one in self._sessions.values() if isinstance(one, FollowerSession)]

    def _open(
        self,
        max_sessions: int,
        now: float,
        follower: ReplicaState | None,
        *,
        uses_topic_ids: bool,
    ) -> FetchSession | None:
        while self._evict(now, _EXPIRED_SECONDS):
            pass
        if len(self._sessions) >= max_sessions and not self._evict(now):
            return None
        session_id = _NO_SESSION
        while session_id == _NO_SESSION or session_id in self._sessions:
            session_id = secrets.randbelow(2**31)
        if follower is None:
            session = FetchSession(session_id, now, uses_topic_ids=uses_topic_ids)
        else:
            session = FollowerSession(
                session_id, now, follower, serves_consumers=self._followers_serve_consumers
            )
        self._sessions[session_id] = session
        return session

    def _next(
        self,
        session_id: int,
        epoch: int,
        now: float,
        follower: ReplicaState | None,
        *,
        uses_topic_ids: bool,
    ) -> FetchSession:
        """Return an existing session, advanced to its next epoch. Raises ApiError."""
        session = self._sessions.get(session_id)
        if session is None or not session.is_of(follower):
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        del self._sessions[session_id]
        self._sessions[session_id] = session  # At the end: most recently used.
        session.last_used = now
        if epoch != session.epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.uses_topic_ids is not uses_topic_ids:
            raise ApiError(ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if epoch == _MAX_EPOCH else epoch + 1
        return session

    def _fits(
        self, session: FetchSession, request: FetchRequest, max_partitions: int, now: float
    ) -> bool:
        """Whether an updated session is within the limits, evicting others if need be."""
        max_total = _TOTAL_PARTITIONS_FACTOR * max_partitions
        while (self._partition_count > max_total or not self._has_memory(0)) and self._evict(now):
            pass
        return (
            len(session) <= max_partitions
            and self._partition_count <= max_total
            and self._has_memory(0)
            and all(len(topic.topic) <= _MAX_TOPIC_NAME_LENGTH for topic in request.topics)
        )

    def _evict(self, now: float, idle_seconds: float = _EVICTABLE_SECONDS) -> bool:
        """Remove the least recently used session if it was idle for that long."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now - oldest.last_used < idle_seconds:
            return False
        self._remove(oldest.id)
        return True

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partition_count -= len(session)
            session.close()
