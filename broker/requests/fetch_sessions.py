"""Fetch sessions (KIP-227): a consumer of many partitions names only what has changed.

A session is the list of partitions that a consumer wants, kept here; its requests change the list,
and its responses have only partitions with something new. A session is known by its id, and each of
its requests has the next epoch: whoever gets out of step is told so, and starts again with a whole
request. A request can also do without, or ask for a session and be declined.

There are at most so many sessions, and so many partitions in them: a new one takes the place of one
that has been idle for a while, or is declined. One that has been idle for long is of nobody who is
still there. A session keeps what a client asked for, which need not exist; hence the second limit.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ottla.protocol.api.fetch import FetchPartition, FetchRequest, PartitionData
from ottla.protocol.errors import ErrorCode

from .errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Epochs with a meaning of their own.
OPEN = 0
CLOSE = -1
_NO_SESSION = 0
_EVICTABLE_SECONDS = 120.0
_FORGOTTEN_SECONDS = 600.0
_LAST_EPOCH = 2**31 - 1
#: All sessions together may have this many times the partitions that one may have.
_TIMES_THE_MOST = 10
#: No topic has a longer name.
_LONGEST_NAME = 249

Key = tuple[str, int]


class FetchSession:
    """The partitions that a consumer wants, in the order in which they are to be looked at."""

    def __init__(self, session_id: int, now: float) -> None:
        self.id = session_id
        self.epoch = 1
        self.last_used = now
        self._wanted: dict[Key, FetchPartition] = {}
        # High watermark and start, as last told.
        self._told: dict[Key, tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._wanted)

    def wanted(self) -> Iterator[tuple[str, FetchPartition]]:
        """Give the topics and partitions to look at."""
        for (topic, _index), partition in self._wanted.items():
            yield topic, partition

    def update(self, request: FetchRequest) -> None:
        """Take in what a request adds, changes and forgets."""
        for topic in request.topics:
            for partition in topic.partitions:
                kept = _without_tags(partition) if partition.unknown_tagged_fields else partition
                self._wanted[topic.topic, partition.partition] = kept
        for forgotten in request.forgotten_topics_data:
            for index in forgotten.partitions:
                self._wanted.pop((forgotten.topic, index), None)
                self._told.pop((forgotten.topic, index), None)

    def is_news(self, topic: str, data: PartitionData) -> bool:
        """Whether a result is worth telling; if so, it counts as told."""
        key = (topic, data.partition_index)
        marks = (data.high_watermark, data.log_start_offset)
        if not data.records and not data.error_code and self._told.get(key) == marks:
            return False
        self._told[key] = marks
        return True

    def rotate(self, told: Iterable[Key]) -> None:
        """Look last, the next time, at those that had something: let no partition starve others."""
        for key in told:
            partition = self._wanted.pop(key, None)
            if partition is not None:
                self._wanted[key] = partition


class FetchSessionCache:
    """All sessions of a broker, least recently used first."""

    def __init__(self) -> None:
        self._sessions: dict[int, FetchSession] = {}
        self._partitions = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def of(self, request: FetchRequest, slots: int, most: int, now: float) -> FetchSession | None:
        """Give the session of a request, up to date with it; None if it does without one.

        There are `slots` sessions, and `most` partitions in each. Raises ApiError, which is for the
        request as a whole.
        """
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (OPEN, CLOSE):
            self._remove(session_id)
            session = self._open(slots, now) if epoch == OPEN else None
        else:
            session = self._next(session_id, epoch, now)
        if session is None:
            return None
        before = len(session)
        session.update(request)
        self._partitions += len(session) - before
        if not len(session):
            self._remove(session.id)
            return None
        if not self._has_room_for(session, request, most, now):
            self._remove(session.id)
            if epoch == OPEN:
                return None
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        return session

    def _open(self, slots: int, now: float) -> FetchSession | None:
        while self._evict(now, _FORGOTTEN_SECONDS):
            pass
        if len(self._sessions) >= slots and not self._evict(now):
            return None
        session_id = _NO_SESSION
        while session_id == _NO_SESSION or session_id in self._sessions:
            session_id = secrets.randbelow(2**31)
        session = self._sessions[session_id] = FetchSession(session_id, now)
        return session

    def _next(self, session_id: int, epoch: int, now: float) -> FetchSession:
        session = self._sessions.pop(session_id, None)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._sessions[session_id] = session  # at the end: it was used last
        session.last_used = now
        if epoch != session.epoch:
            raise ApiError(ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        session.epoch = 1 if epoch == _LAST_EPOCH else epoch + 1
        return session

    def _has_room_for(
        self, session: FetchSession, request: FetchRequest, most: int, now: float
    ) -> bool:
        """Whether what a session has come to want may be kept."""
        while self._partitions > _TIMES_THE_MOST * most and self._evict(now):
            pass
        return (
            len(session) <= most
            and self._partitions <= _TIMES_THE_MOST * most
            and all(len(topic.topic) <= _LONGEST_NAME for topic in request.topics)
        )

    def _evict(self, now: float, idle_seconds: float = _EVICTABLE_SECONDS) -> bool:
        """Remove the session that was idle for longest, if that is long enough."""
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None or now - oldest.last_used < idle_seconds:
            return False
        self._remove(oldest.id)
        return True

    def _remove(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session)


def _without_tags(partition: FetchPartition) -> FetchPartition:
    """Give a copy that keeps nothing which nobody here understands."""
    return FetchPartition(
        **{name: getattr(partition, name) for name in FetchPartition.fields},
    )
