"""How far each partition has been read: asked for, given to the application, done with, committed.

    committed ≤ done ≤ position ≤ fetch offset

`position` is the offset that the application is given next. What it was given last is in its
hands: it is done with when the application asks for more, or says so by a commit, and not before.
`done` is therefore what may be committed on the application's behalf: whatever it had in its hands
when it crashed is given again.

Nothing here does any I/O, or knows of time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator
from enum import Enum

from ..errors import ConsumerError
from ..types import EARLIEST, OffsetAndMetadata, TopicPartition
from .fetched_data import FetchedData, FetchedSlice


class Phase(Enum):
    """What is known of where to read."""

    NEW = "new"
    """It was just assigned, and the application is being told: it may seek first."""

    COMMITTED = "committed"
    """The group's committed offset is to be looked up."""

    RESET = "reset"
    """One end of the log is to be looked up."""

    READY = "ready"
    """The position is known."""


class AssignedPartition:
    """A partition that is assigned."""

    __slots__ = (
        "buffered_bytes",
        "chunks",
        "committed",
        "done",
        "error",
        "fetch_offset",
        "incarnation",
        "is_astray",
        "is_held",
        "is_paused",
        "is_queued",
        "is_torn",
        "leader_epoch",
        "phase",
        "place",
        "position",
        "reset_to",
        "rest",
        "retry_at",
        "served",
        "tries",
    )

    def __init__(self, place: TopicPartition) -> None:
        self.place = place
        self.phase = Phase.NEW
        #: LATEST or EARLIEST, in the phase of that name.
        self.reset_to = EARLIEST
        self.position = self.done = self.fetch_offset = -1
        #: What was last committed or found so; None if there is nothing.
        self.committed: int | None = None
        #: The leader epoch of what was last given.
        self.leader_epoch = -1
        self.is_paused = False
        #: Whoever was taken for its leader is not, or does not answer: it is to be looked up.
        self.is_astray = False
        #: Being taken away: nothing more of it is given.
        self.is_held = False
        #: Taken away while something of it is in hand.
        self.is_torn = False
        #: Goes up with each seek: what was asked for before one is of no use after it.
        self.incarnation = 0
        #: What went wrong, for the application to hear.
        self.error: Exception | None = None
        # What was fetched: first what has been decoded, then what has not.
        self.rest: deque[FetchedSlice] = deque()
        self.chunks: deque[FetchedData] = deque()
        self.buffered_bytes = 0
        #: Whether it waits for the application in `Delivery`.
        self.is_queued = False
        #: When it was last given something by a fetch; those that waited longest are first.
        self.served = 0
        #: How often in a row it failed, and when to try again.
        self.tries = 0
        self.retry_at = 0.0

    def __repr__(self) -> str:
        return f"<AssignedPartition {self.place} {self.phase.value} at {self.position}>"

    @property
    def is_ready(self) -> bool:
        """Whether the position is known."""
        return self.phase is Phase.READY

    @property
    def is_in_hand(self) -> bool:
        """Whether the application may still be at work on something of it."""
        return self.done < self.position

    @property
    def has_something(self) -> bool:
        """Whether there is something for the application."""
        return self.error is not None or bool(self.rest) or bool(self.chunks)

    @property
    def is_deliverable(self) -> bool:
        """Whether the application may be given something of it."""
        return not self.is_paused and not self.is_held

    @property
    def is_fetchable(self) -> bool:
        """Whether more of it is wanted."""
        return self.is_ready and self.is_deliverable and self.error is None

    def start_at(self, offset: int, leader_epoch: int = -1) -> None:
        """Read from an offset on; whatever was fetched is forgotten."""
        self.discard()
        self.phase = Phase.READY
        self.position = self.done = self.fetch_offset = offset
        self.leader_epoch = leader_epoch
        self.error = None
        self.tries, self.retry_at = 0, 0.0

    def look_up(self, phase: Phase, reset_to: int = EARLIEST) -> None:
        """Have the position looked up."""
        self.discard()
        self.phase = phase
        self.reset_to = reset_to
        self.position = self.done = self.fetch_offset = -1
        self.error = None
        self.retry_at = 0.0

    def discard(self) -> None:
        """Forget what was fetched and not given."""
        self.incarnation += 1
        self.rest.clear()
        self.chunks.clear()
        self.buffered_bytes = 0
        self.fetch_offset = self.position

    def add(self, chunk: FetchedData) -> None:
        """Take in what was fetched."""
        self.chunks.append(chunk)
        self.buffered_bytes += chunk.size_bytes
        self.fetch_offset = chunk.next_offset

    def take(self, most: int) -> FetchedSlice | None:
        """Give what comes next; None at the end of each chunk. Raises KafkaError for damage."""
        if self.rest:
            return self.rest.popleft()
        if self.chunks:
            chunk = self.chunks[0]
            if (slice_ := chunk.take(most)) is not None:
                return slice_
            self.chunks.popleft()
            self.buffered_bytes -= chunk.size_bytes
        return None

    def take_chunk(self) -> FetchedData | None:
        """Give all of what was fetched at once; None if some of it has been given already."""
        if self.rest or not self.chunks or self.chunks[0].is_begun:
            return None
        chunk = self.chunks.popleft()
        self.buffered_bytes -= chunk.size_bytes
        return chunk

    def give(self, next_offset: int, leader_epoch: int) -> None:
        """Take note that the application has all before an offset, some of it in its hands."""
        self.position = next_offset
        self.leader_epoch = leader_epoch

    def put_down(self) -> None:
        """Take note that the application is done with what it has."""
        self.done = self.position


class Positions:
    """The partitions that are assigned."""

    def __init__(self) -> None:
        self._partitions: dict[TopicPartition, AssignedPartition] = {}

    def __iter__(self) -> Iterator[AssignedPartition]:
        return iter(self._partitions.values())

    def __len__(self) -> int:
        return len(self._partitions)

    def __contains__(self, place: object) -> bool:
        return place in self._partitions

    def __getitem__(self, place: TopicPartition) -> AssignedPartition:
        try:
            return self._partitions[place]
        except KeyError:
            raise ConsumerError(f"{place} is not assigned to this consumer") from None

    def has(self, partition: AssignedPartition) -> bool:
        """Whether it is this one that is assigned, and not another of the same name."""
        return self._partitions.get(partition.place) is partition

    @property
    def places(self) -> frozenset[TopicPartition]:
        """What is assigned."""
        return frozenset(self._partitions)

    def assign(self, places: Iterable[TopicPartition]) -> list[AssignedPartition]:
        """Add partitions; give those that are new."""
        fresh = [AssignedPartition(place) for place in sorted(set(places)) if place not in self]
        for partition in fresh:
            self._partitions[partition.place] = partition
        return fresh

    def drop(self, places: Iterable[TopicPartition]) -> None:
        """Remove partitions."""
        for place in places:
            partition = self._partitions.pop(place, None)
            if partition is not None:
                partition.discard()

    def select(self, places: Collection[TopicPartition]) -> list[AssignedPartition]:
        """Give these. Raises ConsumerError for one that is not assigned."""
        return [self[place] for place in places]

    def put_down(self) -> None:
        """Take note that the application is done with all that it has."""
        for partition in self:
            if not partition.is_torn:
                partition.put_down()

    def to_commit(self, *, with_hands: bool) -> dict[TopicPartition, OffsetAndMetadata]:
        """Give what is not committed yet, with or without what is in the application's hands."""
        found = {}
        for partition in self:
            # Nobody can say that what is in hand is done if its partition could not wait for it.
            is_given = with_hands and not partition.is_torn
            offset = partition.position if is_given else partition.done
            if partition.is_ready and offset != partition.committed:
                found[partition.place] = OffsetAndMetadata(offset, "", partition.leader_epoch)
        return found

    def took_commit(self, offsets: Iterable[tuple[TopicPartition, int]]) -> None:
        """Take note of what was committed: it is done with, whoever has it in hand."""
        for place, offset in offsets:
            partition = self._partitions.get(place)
            if partition is not None:
                partition.committed = offset
                if partition.done < offset <= partition.position:
                    partition.done = offset
