"""How far each assigned partition has been read.

    committed ≤ consumed ≤ position ≤ fetch offset

`position` is the offset of the record that is delivered next. A record that was delivered is being
processed until the application asks for more, or commits; then it is consumed. Only consumed
offsets are committed automatically, so that records that were being processed when the application
crashed are delivered again.

No I/O, no clock.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from enum import Enum

from ..errors import ConsumerError
from ..types import EARLIEST, OffsetAndMetadata, TopicPartition
from .fetch_buffer import FetchBuffer
from .fetched_data import FetchedData


class FetchState(Enum):
    """Whether the position of a partition is known, and how it is found if not."""

    INITIALIZING = "initializing"
    """Just assigned: `on_assigned` runs, and may seek."""

    AWAIT_COMMITTED = "awaiting the committed offset"
    """The group's committed offset is to be looked up."""

    AWAIT_RESET = "awaiting a reset"
    """The earliest or latest offset is to be looked up."""

    FETCHING = "fetching"
    """The position is known."""


class AssignedPartition:
    """A partition that is assigned to the consumer, with its fetch buffer."""

    __slots__ = (
        "buffer",
        "committed",
        "consumed",
        "error",
        "failures",
        "fetch_epoch",
        "fetch_offset",
        "fetched_epoch",
        "has_stale_leader",
        "has_uncommitted",
        "is_paused",
        "is_queued",
        "is_revoking",
        "last_served",
        "leader_epoch",
        "lowest_position",
        "position",
        "reset_to",
        "retry_at",
        "revoked_while_processing",
        "started_at",
        "state",
        "tp",
        "validated_epoch",
    )

    def __init__(self, tp: TopicPartition) -> None:
        self.tp = tp
        self.state = FetchState.INITIALIZING
        #: LATEST or EARLIEST, for AWAIT_RESET.
        self.reset_to = EARLIEST
        self.position = self.consumed = self.fetch_offset = -1
        #: The lowest offset that this assignment started at, or a seek went to; None if unknown.
        self.lowest_position: int | None = None
        #: The last committed offset that is known; None if there is none.
        self.committed: int | None = None
        #: Where reading started: at the beginning of the assignment, or with the last seek.
        self.started_at = -1
        #: Whether records were delivered that no commit covers.
        self.has_uncommitted = False
        #: The leader epoch of the last record that was delivered, and of the one before the fetch
        #: offset; -1 if unknown.
        self.leader_epoch = self.fetched_epoch = -1
        #: The latest epoch of a leader whose log is known to have what was fetched.
        self.validated_epoch = -1
        self.is_paused = False
        #: The leader in the metadata is wrong or does not answer: look it up again.
        self.has_stale_leader = False
        #: Nothing more is delivered.
        self.is_revoking = False
        #: The rebalance did not wait for the application, which may not have finished.
        self.revoked_while_processing = False
        #: Incremented by each seek or discard: responses to earlier fetches are stale.
        self.fetch_epoch = 0
        #: To be raised to the application.
        self.error: Exception | None = None
        self.buffer = FetchBuffer()
        #: Whether it is in the queue of `Delivery`.
        self.is_queued = False
        #: Rises with each fetch that returned records; the lowest are fetched first.
        self.last_served = 0
        #: Consecutive failures, and when to retry (loop time).
        self.failures = 0
        self.retry_at = 0.0

    def __repr__(self) -> str:
        return f"<AssignedPartition {self.tp} {self.state.value}, position {self.position}>"

    @property
    def has_position(self) -> bool:
        """Whether the position is known."""
        return self.state is FetchState.FETCHING

    @property
    def is_processing(self) -> bool:
        """Whether the application may still process records of it."""
        return self.consumed < self.position

    @property
    def has_something(self) -> bool:
        """Whether there are records, or an error, for the application."""
        return self.error is not None or bool(self.buffer)

    @property
    def is_deliverable(self) -> bool:
        """Whether its records may be delivered."""
        return not self.is_paused and not self.is_revoking

    @property
    def is_fetchable(self) -> bool:
        """Whether it may be fetched from."""
        return self.has_position and self.is_deliverable and self.error is None

    def start_at(self, offset: int, leader_epoch: int = -1, validated_epoch: int = -1) -> None:
        """Set the position; discard the fetch buffer.

        `leader_epoch` is that of the record before it, if known. It is in the log of the leader of
        `validated_epoch`.
        """
        self.leader_epoch, self.validated_epoch = leader_epoch, validated_epoch
        self.discard()
        self.state = FetchState.FETCHING
        self.position = self.consumed = self.fetch_offset = self.started_at = offset
        self.has_uncommitted = False
        lowest = self.lowest_position
        self.lowest_position = offset if lowest is None else min(lowest, offset)
        self.error = None
        self.failures, self.retry_at = 0, 0.0

    def await_position(self, state: FetchState, reset_to: int = EARLIEST) -> None:
        """Clear the position until it is looked up; discard the fetch buffer."""
        self.discard()
        self.state = state
        self.reset_to = reset_to
        self.position = self.consumed = self.fetch_offset = -1
        self.has_uncommitted = False
        self.error = None
        self.retry_at = 0.0

    def discard(self) -> None:
        """Discard the fetch buffer; fetch again from the position."""
        self.fetch_epoch += 1
        self.buffer.clear()
        self.fetch_offset, self.fetched_epoch = self.position, self.leader_epoch

    def add(self, data: FetchedData, validated_epoch: int = -1) -> None:
        """Buffer data that was fetched from the leader of `validated_epoch`."""
        self.buffer.put(data)
        self.fetch_offset, self.fetched_epoch = data.next_offset, data.leader_epoch
        self.validated_epoch = max(self.validated_epoch, validated_epoch)

    def deliver_up_to(self, next_offset: int, leader_epoch: int) -> None:
        """Set the position after records were delivered, which are being processed now."""
        self.position = next_offset
        self.leader_epoch = leader_epoch

    def mark_consumed(self) -> None:
        """Mark everything that was delivered as consumed."""
        self.consumed = self.position


class Positions:
    """The assigned partitions."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, AssignedPartition] = {}

    def __iter__(self) -> Iterator[AssignedPartition]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, tp: object) -> bool:
        return tp in self._partitions

    def __getitem__(self, tp: TopicPartition) -> AssignedPartition:
        try:
            return self._partitions[tp]
        except KeyError:
            raise ConsumerError(f"{tp} is not assigned to this consumer") from None

    def get(self, tp: TopicPartition) -> AssignedPartition | None:
        """Return a partition; None if it is not assigned."""
        return self._partitions.get(tp)

    def is_current(self, partition: AssignedPartition) -> bool:
        """Whether it is still assigned; False too if it was revoked and assigned again."""
        return self._partitions.get(partition.tp) is partition

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The partitions that are assigned."""
        return frozenset(self._partitions)

    def assign(self, tps: Iterable[TopicPartition]) -> list[AssignedPartition]:
        """Add partitions; return those that were not assigned before."""
        added = [AssignedPartition(tp) for tp in sorted(set(tps)) if tp not in self]
        for partition in added:
            self._partitions[partition.tp] = partition
        return added

    def unassign(self, tps: Iterable[TopicPartition]) -> None:
        """Remove partitions."""
        for tp in tps:
            partition = self._partitions.pop(tp, None)
            if partition is not None:
                partition.discard()

    def select(self, tps: Collection[TopicPartition]) -> list[AssignedPartition]:
        """Return these partitions. Raises ConsumerError for one that is not assigned."""
        return [self[tp] for tp in tps]

    def mark_consumed(self) -> None:
        """Mark everything that was delivered as consumed."""
        for partition in self:
            if not partition.revoked_while_processing:
                partition.mark_consumed()

    def offsets_to_commit(
        self, *, include_processing: bool
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the offsets that are not committed yet: the consumed ones, or the positions."""
        offsets = {}
        for partition in self:
            # The application did not finish what it was processing when this was revoked.
            is_all = include_processing and not partition.revoked_while_processing
            offset = partition.position if is_all else partition.consumed
            if partition.has_position and offset != partition.committed:
                offsets[partition.tp] = OffsetAndMetadata(offset, "", partition.leader_epoch)
        return offsets

    def mark_committed(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Store committed offsets; records before them are consumed."""
        for tp, offset in offsets:
            partition = self._partitions.get(tp)
            if partition is not None:
                partition.committed = offset
                if offset >= partition.position:
                    partition.has_uncommitted = False
                if partition.consumed < offset <= partition.position:
                    partition.consumed = offset
