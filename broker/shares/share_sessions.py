"""Share sessions: the partitions that a member of a share group fetches here.

A session belongs to a group, a member and a connection. Its first request has epoch 0, each later
one the next number, and -1 closes it. When it is closed, or its connection is lost, the records
that its member has acquired become available to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

from ottla.coord.consumer.partitions import TopicIdPartition
from ottla.protocol.errors import ErrorCode

from ..requests.errors import ApiError
from ..requests.memory_account import PARTITION_BYTES

if TYPE_CHECKING:
    from ..net.connection import Connection

OPEN = 0
CLOSE = -1
_MAX_EPOCH = 2**31 - 1
_SESSION_BYTES = 1024


class SessionKey(NamedTuple):
    """Whose session it is."""

    group_id: str
    member_id: str


class ShareSession:
    """The partitions that a member fetches, in the order in which they are read."""

    def __init__(self, key: SessionKey, connection: Connection) -> None:
        self.key = key
        self.connection = connection
        self.epoch = 1
        self.is_closed = False
        self._partitions: dict[TopicIdPartition, None] = {}
        #: The partitions that no response has had yet.
        self.unanswered: set[TopicIdPartition] = set()

    def __len__(self) -> int:
        return len(self._partitions)

    def __iter__(self) -> Iterator[TopicIdPartition]:
        return iter(list(self._partitions))

    def update(
        self, added: Iterable[TopicIdPartition], forgotten: Iterable[TopicIdPartition]
    ) -> None:
        """Add and remove partitions."""
        for tp in added:
            if tp not in self._partitions:
                self._partitions[tp] = None
                self.unanswered.add(tp)
        for tp in forgotten:
            self._partitions.pop(tp, None)
            self.unanswered.discard(tp)

    def move_to_end(self, partitions: Iterable[TopicIdPartition]) -> None:
        """Read these partitions last next time, so that they do not starve the others."""
        for tp in partitions:
            if tp in self._partitions:
                del self._partitions[tp]
                self._partitions[tp] = None


class ShareSessions:
    """The share sessions of a broker. `released` is called when one is closed or lost."""

    def __init__(self, released: Callable[[SessionKey], None]) -> None:
        self._released = released
        self._sessions: dict[SessionKey, ShareSession] = {}
        self._by_connection: dict[Connection, set[SessionKey]] = {}
        self._partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def __contains__(self, key: SessionKey) -> bool:
        return key in self._sessions

    def size_bytes(self) -> int:
        """Return the estimated memory of all sessions."""
        return _SESSION_BYTES * len(self._sessions) + PARTITION_BYTES * self._partition_count

    def open(self, key: SessionKey, connection: Connection, max_sessions: int) -> ShareSession:
        """Open a session; one that the member has is replaced. Raises ApiError."""
        self._remove(key)
        if len(self._sessions) >= max_sessions:
            raise ApiError(ErrorCode.SHARE_SESSION_LIMIT_REACHED)
        session = self._sessions[key] = ShareSession(key, connection)
        keys = self._by_connection.get(connection)
        if keys is None:
            keys = self._by_connection[connection] = set()
            connection.on_lost.append(lambda: self._connection_lost(connection))
        keys.add(key)
        return session

    def next(self, key: SessionKey, epoch: int, connection: Connection) -> ShareSession:
        """Return the session of a request with the next epoch. Raises ApiError."""
        session = self._find(key, connection)
        if epoch != session.epoch:
            raise ApiError(ErrorCode.INVALID_SHARE_SESSION_EPOCH)
        session.epoch = 1 if epoch == _MAX_EPOCH else epoch + 1
        return session

    def update(
        self,
        session: ShareSession,
        added: Iterable[TopicIdPartition],
        forgotten: Iterable[TopicIdPartition],
    ) -> None:
        """Add partitions to a session, and remove others."""
        before = len(session)
        session.update(added, forgotten)
        self._partition_count += len(session) - before

    def close(self, key: SessionKey, connection: Connection) -> None:
        """Remove a session; what the member has acquired is yet to be released."""
        self._find(key, connection)
        self._remove(key)

    def lose(self, key: SessionKey) -> None:
        """Close a session; its member has to open another one.

        That of a member that has lost locks, or one that does not fit.
        """
        if key in self._sessions:
            self._remove(key)
            self._released(key)

    def _find(self, key: SessionKey, connection: Connection) -> ShareSession:
        session = self._sessions.get(key)
        if session is None or session.connection is not connection:
            raise ApiError(ErrorCode.SHARE_SESSION_NOT_FOUND)
        return session

    def _remove(self, key: SessionKey) -> None:
        session = self._sessions.pop(key, None)
        if session is None:
            return
        session.is_closed = True
        self._partition_count -= len(session)
        keys = self._by_connection.get(session.connection)
        if keys is not None:
            keys.discard(key)

    def _connection_lost(self, connection: Connection) -> None:
        for key in self._by_connection.pop(connection, ()):
            self._remove(key)
            self._released(key)
