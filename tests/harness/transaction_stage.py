"""A stage for a transaction shard: a clock, a log, partitions, and calls that are answered once.

The stage does what a broker does with the effects of a shard, in order. A test decides when an
append completes or fails, when markers are written, when time passes, and when the shard is loaded
again from the log.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from ottla.coord.config import TransactionConfig
from ottla.coord.deadlines import Now
from ottla.coord.effects import Append, Effect, LogMessage, Producer, Reply, SendMarkers
from ottla.coord.metadata_image import KeyValue, TopicPartition
from ottla.coord.transaction_records import TransactionMetadata
from ottla.coord.transaction_shard import TransactionShard
from ottla.protocol.errors import ErrorCode

#: The time of day when the monotonic clock is at 0.
EPOCH_MS = 1_700_000_000_000
ID = "id"


@dataclass(eq=False)
class TransactionCall:
    """A request: its answer is None while it waits."""

    who: str
    what: str
    answer: Any = None


class TransactionStage:
    """One shard and its surroundings. `log` has what was appended."""

    def __init__(self) -> None:
        self.tick_ms = 0
        self.log: list[KeyValue] = []
        self.held: deque[Append] = deque()
        self.holds = False
        #: Markers that were asked for, and are not written yet.
        self.markers: list[SendMarkers] = []
        self.waiting: list[TransactionCall] = []
        self.next_producer_id = 8
        self.on_append: Callable[[Append], None] = lambda append: None
        self.on_answer: Callable[[TransactionCall], None] = lambda call: None
        self.on_log: Callable[[LogMessage], None] = lambda log: None
        self.shard = TransactionShard(TransactionConfig())
        self.run(self.shard.activate(self.now))

    @property
    def now(self) -> Now:
        return Now(self.tick_ms, EPOCH_MS + self.tick_ms)

    @property
    def metadata(self) -> TransactionMetadata | None:
        transaction = self.shard.transactions.get(ID)
        return transaction and transaction.metadata

    # Requests.

    def init(
        self, who: str, expected: Producer | None = None, timeout_ms: int = 60_000
    ) -> TransactionCall:
        new_id = None
        if self.shard.needs_producer_id(ID):
            new_id, self.next_producer_id = self.next_producer_id, self.next_producer_id + 1
        return self._call(
            who,
            "init",
            lambda call: self.shard.init_producer_id(
                ID, timeout_ms, expected, new_id, call, self.now
            ),
        )

    def add(
        self, who: str, producer: Producer, *partitions: TopicPartition, version: int = 0
    ) -> TransactionCall:
        return self._call(
            who,
            "add",
            lambda call: self.shard.add_partitions(
                ID, producer, partitions, call, self.now, transaction_version=version
            ),
        )

    def end(
        self, who: str, producer: Producer, *, commit: bool, bumps_epoch: bool = False
    ) -> TransactionCall:
        new_id = None
        if bumps_epoch and self.shard.has_exhausted_epoch(ID):
            new_id, self.next_producer_id = self.next_producer_id, self.next_producer_id + 1
        return self._call(
            who,
            "commit" if commit else "abort",
            lambda call: self.shard.end(
                ID,
                producer,
                new_id,
                call,
                self.now,
                is_commit=commit,
                bumps_epoch=bumps_epoch,
            ),
        )

    # Surroundings.

    def write_markers(self, partitions: Iterable[TopicPartition] | None = None) -> None:
        """Write all markers that are due, or those of some partitions."""
        due, self.markers = self.markers, []
        for effect in due:
            written = effect.partitions
            if partitions is not None:
                written = written & set(partitions)
                if rest := effect.partitions - written:
                    self.markers.append(effect._replace(partitions=rest))
            self.run(self.shard.markers_written(ID, effect.producer, written, self.now))

    def pass_time(self, milliseconds: int) -> None:
        """Let time pass; timers are handled in time."""
        end_ms = self.tick_ms + milliseconds
        while (due_ms := self.shard.deadlines.next()) is not None and due_ms <= end_ms:
            self.tick_ms = max(due_ms, self.tick_ms)
            self.run(self.shard.expire(self.now))
        self.tick_ms = end_ms

    def check_timeouts(self) -> None:
        self.run(self.shard.abort_timed_out(self.now))

    def check_expiration(self) -> None:
        self.run(self.shard.remove_expired(self.now))

    def check_idle_ids(self) -> None:
        self.run(self.shard.remove_idle(self.now))

    def complete_append(self, code: ErrorCode = ErrorCode.NONE) -> None:
        """Complete the oldest append that is held."""
        self._complete(self.held.popleft(), code)

    def reload(self) -> None:
        """Lose the shard, and all that waits for it, and load another one from the log."""
        self.held.clear()
        self.waiting.clear()
        self.markers.clear()
        self.shard = TransactionShard(TransactionConfig())
        for key, value in dict(self.log).items():
            record = self.shard.decode(key, value)
            assert record is not None
            self.shard.replay(record)
        self.run(self.shard.activate(self.now))

    def run(self, effects: Iterable[Effect]) -> None:
        todo = deque(effects)
        while todo:
            effect = todo.popleft()
            if isinstance(effect, Reply):
                call = effect.token
                assert call.answer is None, f"{call} is answered twice"
                call.answer = effect.response
                self.waiting.remove(call)
                self.on_answer(call)
            elif isinstance(effect, SendMarkers):
                self.markers.append(effect)
            elif isinstance(effect, LogMessage):
                self.on_log(effect)
            else:
                self.on_append(effect)
                if self.holds or self.held:
                    self.held.append(effect)
                else:
                    self._complete(effect)

    def _complete(self, append: Append, code: ErrorCode = ErrorCode.NONE) -> None:
        if code is ErrorCode.NONE:
            for record in append.records:
                self.log.append(self.shard.encode(record))  # type: ignore[arg-type]
                self.shard.replay(record)  # type: ignore[arg-type]
        self.run(append.complete(code))

    def _call(
        self, who: str, what: str, event: Callable[[TransactionCall], list[Effect]]
    ) -> TransactionCall:
        call = TransactionCall(who, what)
        self.waiting.append(call)
        self.run(event(call))
        return call
