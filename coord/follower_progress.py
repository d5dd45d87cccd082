"""What the leader of a partition knows of its followers, and the high watermark that follows.

A follower's fetch offset is its log end offset: a fetch acknowledges everything before it. The high
watermark is the lowest end offset among the maximal ISR: the stored ISR, and a follower whose
addition is being stored. So an expansion counts at once, and a shrink only when it is stored:
whichever of the two states holds, each of its members has every record below the high watermark.

A fetch of an incremental session also says that nothing has changed for the partitions that it does
not name. Those are not recorded one by one: while a partition is idle, its latest fetch is that of
the session (`SessionFetches`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from .election import effective_min_isr
from .partition_state import PartitionState


class SessionFetches:
    """The times of the two latest fetches of a follower's session; -1 before there are any."""

    __slots__ = ("fetched_at_ms", "previous_at_ms")

    def __init__(self) -> None:
        self.fetched_at_ms = -1
        self.previous_at_ms = -1

    def record(self, now_ms: int) -> None:
        """Record a fetch."""
        self.previous_at_ms, self.fetched_at_ms = self.fetched_at_ms, now_ms


class FollowerFetch(NamedTuple):
    """The latest fetch of a follower."""

    end_offset: int
    #: The registration of the process that sent it. One that restarts may have lost its records.
    broker_epoch: int
    fetched_at_ms: int
    #: The leader's log end offset at the time of the fetch.
    leader_end_offset: int
    #: When the follower last had all records that the leader had.
    caught_up_at_ms: int
    #: When the fetch before this one was received; -1 if it is the first. The follower has sent
    #: this one later, after the response: this one itself may have waited in a socket for long.
    previous_at_ms: int = -1
    #: The session whose fetches count for an idle partition, of which the follower has everything.
    session: SessionFetches | None = None
    #: The first offset of the follower's log.
    start_offset: int = 0

    def as_of_session(self) -> FollowerFetch:
        """Return the fetch with the times of its session."""
        session = self.session
        if session is None:
            return self
        return self._replace(
            fetched_at_ms=max(session.fetched_at_ms, self.fetched_at_ms),
            caught_up_at_ms=max(session.fetched_at_ms, self.caught_up_at_ms),
            previous_at_ms=max(session.previous_at_ms, self.previous_at_ms),
            session=None,
        )


class FollowerProgress:
    """The followers of one partition in one leader epoch. `state` is the stored state."""

    __slots__ = ("_broker_id", "_fetches", "_pending", "_since_ms", "epoch_start_offset", "state")

    def __init__(
        self, state: PartitionState, broker_id: int, epoch_start_offset: int, now_ms: int
    ) -> None:
        self.state = state
        self.epoch_start_offset = epoch_start_offset
        self._broker_id = broker_id
        self._since_ms = now_ms
        self._fetches: dict[int, FollowerFetch] = {}
        # The followers whose addition to the ISR is being stored, with the broker epochs of the
        # fetches that qualified them.
        self._pending: dict[int, int] = {}

    @property
    def fetches(self) -> Mapping[int, FollowerFetch]:
        """The latest fetch of each follower that has fetched in this epoch."""
        return self._fetches

    @property
    def pending_expansion(self) -> Mapping[int, int]:
        """The broker epochs of the followers whose addition to the ISR is being stored."""
        return self._pending

    def set_state(self, state: PartitionState) -> None:
        """Follow a newer stored state of the same leader epoch.

        It includes the pending expansion, or the expansion can no longer be stored.
        """
        self.state = state
        self._pending = {}

    def record_fetch(
        self,
        broker_id: int,
        broker_epoch: int,
        offset: int,
        *,
        leader_end_offset: int,
        now_ms: int,
        start_offset: int = 0,
    ) -> None:
        """Record that a follower has all records from `start_offset` on before `offset`."""
        self.end_session(broker_id)
        previous = self._fetches.get(broker_id)
        caught_up_at_ms = self._since_ms if previous is None else previous.caught_up_at_ms
        if offset >= leader_end_offset:
            caught_up_at_ms = now_ms
        elif previous is not None and offset >= previous.leader_end_offset:
            # It now has what the leader had when it fetched last.
            caught_up_at_ms = max(caught_up_at_ms, previous.fetched_at_ms)
        previous_at_ms = -1 if previous is None else previous.fetched_at_ms
        self._fetches[broker_id] = FollowerFetch(
            offset,
            broker_epoch,
            now_ms,
            leader_end_offset,
            caught_up_at_ms,
            previous_at_ms,
            start_offset=start_offset,
        )

    def begin_session(self, broker_id: int, session: SessionFetches) -> None:
        """Count the fetches of a session from now on; the follower has all records."""
        self._fetches[broker_id] = self._fetches[broker_id]._replace(session=session)

    def end_session(self, broker_id: int) -> None:
        """Count fetches of a session no longer: the partition has changed, or is in no session."""
        fetch = self._fetches.get(broker_id)
        if fetch is not None and fetch.session is not None:
            self._fetches[broker_id] = fetch.as_of_session()

    def previous_fetch_at_ms(self, broker_id: int) -> int:
        """Return when the fetch before a follower's latest one was received; -1 if none was."""
        fetch = self._fetches.get(broker_id)
        return -1 if fetch is None else fetch.as_of_session().previous_at_ms

    def high_watermark(self, current: int, leader_end_offset: int, min_isr: int) -> int:
        """Return the high watermark, at least `current`.

        It does not advance while the ISR is smaller than `min_isr`: that is what makes members of
        the ELR eligible. If less is required than before, it waits until there is no ELR any more.
        """
        state = self.state
        if state.elr or len(state.isr) < effective_min_isr(state, min_isr):
            return current
        lowest = leader_end_offset
        for broker_id in self.maximal_isr():
            if broker_id != self._broker_id:
                fetch = self._fetches.get(broker_id)
                if fetch is None:
                    return current
                lowest = min(lowest, fetch.end_offset)
        return max(current, lowest)

    def maximal_isr(self) -> Collection[int]:
        """Return the ISR, and the followers that are being added to it."""
        return {*self.state.isr, *self._pending} if self._pending else self.state.isr

    def caught_up(self, high_watermark: int) -> dict[int, int]:
        """Return the followers that may join the ISR, with their broker epochs.

        They have all records below the high watermark, and all of earlier leader epochs: records
        of those may be committed, although this leader's high watermark does not show it yet.
        """
        required = max(high_watermark, self.epoch_start_offset)
        return {
            broker_id: fetch.broker_epoch
            for broker_id, fetch in self._fetches.items()
            if fetch.end_offset >= required
            and broker_id not in self.state.isr
            and broker_id in self.state.replicas
        }

    def readable_at(self, offset: int) -> list[int]:
        """Return the in-sync followers that consumers can read from at an offset, best first.

        The best one is the one that has most, and has caught up last.
        """
        found = [
            (fetch.end_offset, fetch.as_of_session().caught_up_at_ms, broker_id)
            for broker_id, fetch in self._fetches.items()
            if broker_id in self.state.isr and fetch.start_offset <= offset <= fetch.end_offset
        ]
        return [broker_id for _end, _caught_up, broker_id in sorted(found, reverse=True)]

    def begin_expansion(self, added: Mapping[int, int]) -> None:
        """Count followers as in sync from now on, while their addition is being stored."""
        self._pending = dict(added)

    def lagging(self, now_ms: int, max_lag_ms: int) -> list[int]:
        """Return the followers in the ISR that have not caught up for `max_lag_ms`."""
        lagging = []
        for broker_id in self.state.isr:
            if broker_id != self._broker_id:
                fetch = self._fetches.get(broker_id)
                caught_up_at_ms = (
                    self._since_ms if fetch is None else fetch.as_of_session().caught_up_at_ms
                )
                if now_ms - caught_up_at_ms > max_lag_ms:
                    lagging.append(broker_id)
        return lagging
