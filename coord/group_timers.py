"""The timers of a group: sessions, pending member ids, and the two phases of a rebalance."""

from __future__ import annotations

from typing import Literal, NamedTuple

from .deadlines import Deadlines, Now
from .member import Member

#: Session timeout of a new member in its first join: clients do not send heartbeats before it is
#: answered.
NEW_MEMBER_SESSION_TIMEOUT_MS = 5 * 60 * 1000

TimerKind = Literal["session", "pending", "join", "sync", "rebalance", "assignment"]


class Timer(NamedTuple):
    """The key of a deadline. `session` and `pending` timers belong to a member."""

    group_id: str
    kind: TimerKind
    member_id: str = ""


class GroupTimers:
    """The timers of one group, among the deadlines of all groups of a shard."""

    def __init__(self, group_id: str, deadlines: Deadlines[Timer]) -> None:
        self._group_id = group_id
        self._deadlines = deadlines

    def start_session(self, member: Member, now: Now) -> None:
        """Start or restart a member's session."""
        self._start("session", member.session_timeout_ms, now, member.id)

    def start_first_session(self, member: Member, now: Now) -> None:
        """Start the session of a new member, which waits in its first join."""
        self._start("session", NEW_MEMBER_SESSION_TIMEOUT_MS, now, member.id)

    def extend_session(self, member: Member, now: Now) -> None:
        """Restart a session as of `now`, unless it already lasts longer.

        For what follows an append, which may take long: `now` is the time of the request.
        """
        timer = Timer(self._group_id, "session", member.id)
        self._deadlines.postpone(timer, now.tick_ms + member.session_timeout_ms)

    def cancel_session(self, member_id: str) -> None:
        """End a member's session."""
        self._deadlines.cancel(Timer(self._group_id, "session", member_id))

    def start_pending(self, member_id: str, timeout_ms: int, now: Now) -> None:
        """Start the wait for a pending member to join with its id."""
        self._start("pending", timeout_ms, now, member_id)

    def cancel_pending(self, member_id: str) -> None:
        """End the wait for a pending member."""
        self._deadlines.cancel(Timer(self._group_id, "pending", member_id))

    def start_join(self, timeout_ms: int, now: Now) -> None:
        """Start or restart the wait for members to join."""
        self._start("join", timeout_ms, now)

    def cancel_join(self) -> None:
        """End the wait for members to join."""
        self._deadlines.cancel(Timer(self._group_id, "join"))

    def start_sync(self, timeout_ms: int, now: Now) -> None:
        """Start the wait for members to sync."""
        self._start("sync", timeout_ms, now)

    def cancel_sync(self) -> None:
        """End the wait for members to sync."""
        self._deadlines.cancel(Timer(self._group_id, "sync"))

    def _start(self, kind: TimerKind, timeout_ms: int, now: Now, member_id: str = "") -> None:
        self._deadlines.set(Timer(self._group_id, kind, member_id), now.tick_ms + timeout_ms)
