"""The durable state of a share partition: what a group has done with the records of a partition.

The group coordinator stores it, and the leader of the partition owns it: reading it makes the
reader the owner. Each read raises the *state epoch*, and a write with another state epoch than the
current one is fenced. So there is one owner at a time, whatever leaders believe and however late a
request of an earlier owner arrives.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

#: The start offset of a share partition of which nothing was delivered yet.
UNINITIALIZED = -1


class RecordState(IntEnum):
    """What became of a record; the values are Kafka's, which are in the log."""

    AVAILABLE = 0
    """To be delivered, or delivered again."""

    ACQUIRED = 1
    """Locked by a member until a deadline. Not stored: after a restart, it is available."""

    ACKNOWLEDGED = 2
    """Processed. Never delivered again."""

    ARCHIVED = 4
    """Given up: rejected, delivered too often, or nothing that could be delivered."""

    @property
    def is_final(self) -> bool:
        """Whether the record is never delivered again."""
        return self in (RecordState.ACKNOWLEDGED, RecordState.ARCHIVED)


class StateBatch(NamedTuple):
    """Consecutive offsets with the same state and delivery count."""

    first: int
    last: int
    state: RecordState
    delivery_count: int


class ShareState(NamedTuple):
    """The state of a share partition: everything before `start_offset` is done.

    The batches follow one another from there on. Records after the last one were never delivered.
    """

    state_epoch: int
    leader_epoch: int
    start_offset: int = UNINITIALIZED
    batches: tuple[StateBatch, ...] = ()
    created_ms: int = 0
    written_ms: int = 0

    @property
    def done_count(self) -> int:
        """The number of offsets from `start_offset` on that are done."""
        return sum(batch.last - batch.first + 1 for batch in self.batches if batch.state.is_final)
