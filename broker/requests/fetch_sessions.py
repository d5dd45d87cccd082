"""Incremental fetch sessions (KIP-227): requests and responses carry only what changed.

A session is the list of partitions that a consumer fetches, kept by the broker. Requests of the
session change the list, and responses include only partitions with new data. A session has an id,
and each of its requests carries the next epoch; a client that is out of step gets an error and
starts over with a full request. A request may also do without a session, or ask for one and be
declined.

The cache limits the number of sessions and the number of partitions in them, because a session
keeps what a client named, whether or not it exists. When the cache is full, a new session evicts
one that has been idle for two minutes, or is declined. A session that has been idle for ten minutes
belongs to a client that is gone, and is dropped.

Sessions of Fetch versions with topic names and of those with topic ids do not mix: a session stays
with what it was opened with.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING
from uuid import UUID

from ottla.protocol.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from ottla.protocol.errors import ErrorCode

from .errors import ApiError
from .memory_account import PARTITION_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Session epochs with a special meaning: open a new session, and close or do without one.
OPEN = 0
CLOSE = -1
_NO_SESSION = 0
_EVICTABLE_SECONDS = 120.0
_EXPIRED_SECONDS = 600.0
_MAX_EPOCH = 2**31 - 1
#: All sessions together may have this many times the partitions that one session may have.
_TOTAL_PARTITIONS_FACTOR = 10
_MAX_TOPIC_NAME_LENGTH = 249

#: A topic as the client names it: by name, or by id from Fetch version 13 on.
TopicKey = str | UUID
PartitionKey = tuple[TopicKey, int]


class FetchSession:
    """The partitions that a consumer fetches, in the order in which they are read."""

    def __init__(self, session_id: int, now: float, *, uses_topic_ids: bool = False) -> None:
        self.id = session_id
        self.uses_topic_ids = uses_topic_ids
        self.epoch = 1
        self.last_used = now
        self._partitions: dict[PartitionKey, FetchPartition] = {}
        # High watermark and log start offset, as last sent to the client.
        self._sent: dict[PartitionKey, tuple[int, int]] = {}
        # The partitions by topic id that were found at least once.
        self._found: set[PartitionKey] = set()

    def __len__(self) -> int:
        return len(self._partitions)

    def partitions(self) -> Iterator[tuple[TopicKey, FetchPartition]]:
        """Yield the partitions to read, with their topics."""
        for (topic, _index), partition in self._partitions.items():
            yield topic, partition

    def update(self, request: FetchRequest) -> None:
        """Add, change and forget partitions as a request says.

        The first request of a session lists its partitions, and has nothing to forget.
        """
        for topic in request.topics:
            name = self._key_of(topic)
            for partition in topic.partitions:
                kept = _without_tags(partition) if partition.unknown_tagged_fields else partition
                self._partitions[name, partition.partition] = kept
        for forgotten in request.forgotten_topics_data if request.session_epoch != OPEN else ():
            name = self._key_of(forgotten)
            for index in forgotten.partitions:
                self._partitions.pop((name, index), None)
                self._sent.pop((name, index), None)
                self._found.discard((name, index))

    def has_found(self, topic: TopicKey, index: int) -> bool:
        """Whether a response of the session had the partition of a topic id without an error."""
        return (topic, index) in self._found

    def update_sent(self, topic: TopicKey, data: PartitionData) -> bool:
        """Whether a partition belongs in an incremental response; if so, record it as sent."""
        key = (topic, data.partition_index)
        offsets = (data.high_watermark, data.log_start_offset)
        if (
            not data.records
            and not data.error_code
            and data.diverging_epoch.epoch < 0
            and self._sent.get(key) == offsets
        ):
            return False
        self._sent[key] = offsets
        if self.uses_topic_ids and not data.error_code:
            self._found.add(key)
        return True

    def move_to_end(self, keys: Iterable[PartitionKey]) -> None:
        """Read these partitions last next time, so that they do not starve the others."""
        for key in keys:
            partition = self._partitions.pop(key, None)
            if partition is not None:
                self._partitions[key] = partition

    def _key_of(self, topic: FetchTopic | ForgottenTopic) -> TopicKey:
        return topic.topic_id if self.uses_topic_ids else topic.topic


class FetchSessionCache:
    """All fetch sessions of a broker, least recently used first."""

    def __init__(self, has_memory: Callable[[int], bool] = lambda _size_bytes: True) -> None:
        self._has_memory = has_memory
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
    ) -> FetchSession | None:
        """Return the session of a request, updated by it; None if the request has no session.

        `max_partitions` limits each session. Raises ApiError, which fails the whole request.
        """
        session_id, epoch = request.session_id, request.session_epoch
        if epoch in (OPEN, CLOSE):
            self._remove(session_id)
            session = (
                self._open(max_sessions, now, uses_topic_ids=uses_topic_ids)
                if epoch == OPEN
                else None
            )
        else:
            session = self._next(session_id, epoch, now, uses_topic_ids=uses_topic_ids)
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

    def _open(self, max_sessions: int, now: float, *, uses_topic_ids: bool) -> FetchSession | None:
        while self._evict(now, _EXPIRED_SECONDS):
            pass
        if len(self._sessions) >= max_sessions and not self._evict(now):
            return None
        session_id = _NO_SESSION
        while session_id == _NO_SESSION or session_id in self._sessions:
            session_id = secrets.randbelow(2**31)
        session = FetchSession(session_id, now, uses_topic_ids=uses_topic_ids)
        self._sessions[session_id] = session
        return session

    def _next(
        self, session_id: int, epoch: int, now: float, *, uses_topic_ids: bool
    ) -> FetchSession:
        """Return an existing session, advanced to its next epoch. Raises ApiError."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            raise ApiError(ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
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


def _without_tags(partition: FetchPartition) -> FetchPartition:
    """Return a copy without unknown tagged fields, which a client could make arbitrarily large."""
    return FetchPartition(
        **{name: getattr(partition, name) for name in FetchPartition.fields},
    )
