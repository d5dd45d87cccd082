"""The turns of events: while one event of a group waits, later ones of the group wait for it.

An event of a consumer group computes records from the group's state. Another one must not do that
before these are durable and replayed, or are known not to be. Groups do not wait for one another.

Events of one kind that arrive together, or that have waited together, may share a turn: a *batch*.
Members of a large group all send heartbeats at once, and then their records are one append.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

from ottla.protocol.errors import ErrorCode

from .effects import Append, Compute, Effect, Gather

T = TypeVar("T")
Event = Callable[[], list[Effect]]
Refusal = Callable[[ErrorCode], list[Effect]]

#: Events in a batch: their records have to fit into one append.
_MAX_BATCH = 500


class _Deferred(NamedTuple):
    """An event that waits for its turn; `refuse` answers it without running it."""

    run: Event
    refuse: Refusal
    shares: bool


class _Batch(NamedTuple):
    """Events that share a turn, by a key, and what handles them all."""

    events: dict[str, Any]
    run: Callable[[list[Any]], list[Effect]]


class Turns:
    """The groups whose events wait, by id."""

    def __init__(self, on_idle: Callable[[str], None]) -> None:
        # Called when no event of a group waits any more.
        self._on_idle = on_idle
        # How many effects an event of the group waits for.
        self._depths: dict[str, int] = {}
        self._deferred: dict[str, deque[_Deferred]] = {}
        # Batches that are still open.
        self._batches: dict[str, _Batch] = {}

    def __contains__(self, group_id: str) -> bool:
        """Whether an event of the group is waiting."""
        return group_id in self._depths or group_id in self._batches

    def take(
        self, group_id: str, run: Event, refuse: Refusal, *, shares: bool = False
    ) -> list[Effect]:
        """Run an event now, or when the events before it are complete.

        An event that `shares` may become part of an open batch with `gather`. Others come after it.
        """
        effects = [] if shares else self._close_batch(group_id)
        if group_id not in self._depths:
            return effects + run()
        self._deferred.setdefault(group_id, deque()).append(_Deferred(run, refuse, shares))
        return effects

    def gather(
        self, group_id: str, key: str, event: T, run: Callable[[list[T]], list[Effect]]
    ) -> list[Effect]:
        """Handle an event that takes its turn with others of its kind, which arrive soon.

        `run` gets all of them. The caller makes sure that no event has the same key.
        """
        effects: list[Effect] = []
        batch = self._batches.get(group_id)
        if batch is None:
            batch = self._batches[group_id] = _Batch({}, run)
            effects.append(Gather(lambda: self._gathered(group_id, batch)))
        assert key not in batch.events
        batch.events[key] = event
        if len(batch.events) >= _MAX_BATCH:
            effects += self._close_batch(group_id)
        return effects

    def is_gathering(self, group_id: str, key: str) -> bool:
        """Whether there is an open batch with an event of this key; "" for any."""
        batch = self._batches.get(group_id)
        return batch is not None and (not key or key in batch.events)

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

    def _gathered(self, group_id: str, batch: _Batch) -> list[Effect]:
        if self._batches.get(group_id) is not batch:
            return []  # It was closed before.
        return self._close_batch(group_id)

    def _close_batch(self, group_id: str) -> list[Effect]:
        """Handle the events of the open batch, if there is one."""
        batch = self._batches.pop(group_id, None)
        if batch is None:
            return []
        effects = batch.run(list(batch.events.values()))
        if group_id not in self._depths:
            self._on_idle(group_id)
        return effects

    def _holding(
        self, group_id: str, then: Callable[[T], list[Effect]]
    ) -> Callable[[T], list[Effect]]:
        self._depths[group_id] = self._depths.get(group_id, 0) + 1

        def complete(result: T) -> list[Effect]:
            effects = then(result)
            self._depths[group_id] -= 1
            if not self._depths[group_id]:
                del self._depths[group_id]
                effects += self._run_deferred(group_id)
            return effects

        return complete

    def _run_deferred(self, group_id: str) -> list[Effect]:
        """Run events that have waited, until one of them waits for something else."""
        effects: list[Effect] = []
        deferred = self._deferred.get(group_id, deque())
        while deferred and group_id not in self._depths:
            if not deferred[0].shares:
                effects += self._close_batch(group_id)
                if group_id in self._depths:
                    break
            effects += deferred.popleft().run()
        if not deferred and self._deferred.get(group_id) is deferred:
            del self._deferred[group_id]
        if group_id not in self:
            self._on_idle(group_id)
        return effects
