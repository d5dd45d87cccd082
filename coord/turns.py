"""The turns of events: while one event of a group waits, later ones of the group wait for it.

An event of a consumer group computes records from the group's state. Another one must not do that
before these are durable and replayed, or are known not to be. Groups do not wait for one another.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ottla.protocol.errors import ErrorCode

from .effects import Append, Compute, Effect

T = TypeVar("T")
Event = Callable[[], list[Effect]]


class _Deferred(NamedTuple):
    """An event that waits for its turn; `refuse` answers it without running it."""

    run: Event
    refuse: Callable[[ErrorCode], list[Effect]]


class Turns:
    """The groups whose events wait, by id."""

    def __init__(self, on_idle: Callable[[str], None]) -> None:
        # Called when no event of a group waits any more.
        self._on_idle = on_idle
        # How many effects an event of the group waits for.
        self._depths: dict[str, int] = {}
        self._deferred: dict[str, deque[_Deferred]] = {}

    def __contains__(self, group_id: str) -> bool:
        """Whether an event of the group is waiting for an effect."""
        return group_id in self._depths

    def take(
        self, group_id: str, run: Event, refuse: Callable[[ErrorCode], list[Effect]]
    ) -> list[Effect]:
        """Run an event now, or when the events before it are complete."""
        if group_id not in self._depths:
            return run()
        self._deferred.setdefault(group_id, deque()).append(_Deferred(run, refuse))
        return []

    def append(
        self,
        group_id: str,
        records: Sequence[Any],
        then: Callable[[ErrorCode], list[Effect]],
    ) -> list[Effect]:
        """Append records, and then go on; later events of the group wait until that is done."""
        return [Append(records, self._holding(group_id, then))]

    def compute(
        self, group_id: str, work: Callable[[], T], then: Callable[[T], list[Effect]]
    ) -> list[Effect]:
        """Compute something in a thread, and then go on, as with `append`."""
        return [Compute(work, self._holding(group_id, then))]

    def refuse_deferred(self, code: ErrorCode) -> list[Effect]:
        """Answer all events that wait for their turn with an error."""
        deferred = [event for events in self._deferred.values() for event in events]
        self._deferred.clear()
        return [effect for event in deferred for effect in event.refuse(code)]

    def _holding(
        self, group_id: str, then: Callable[[T], list[Effect]]
    ) -> Callable[[T], list[Effect]]:
        self._depths[group_id] = self._depths.get(group_id, 0) + 1

        def complete(result: T) -> list[Effect]:
            effects = then(result)
            self._depths[group_id] -= 1
            if self._depths[group_id]:
                return effects
            del self._depths[group_id]
            deferred = self._deferred.pop(group_id, deque())
            while deferred and group_id not in self._depths:
                effects += deferred.popleft().run()
            if deferred:
                self._deferred[group_id] = deferred
            if group_id not in self._depths:
                self._on_idle(group_id)
            return effects

        return complete
