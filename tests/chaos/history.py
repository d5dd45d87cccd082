"""What clients did and saw, one partition's worth of facts at a time. `checker` judges it.

A value is a number that is sent once: who sent it and which one of its own it is. In a record it is
written several times over, so that one that was damaged on the way says so.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

#: What a client has seen of one record: partition, offset, value.
Row = tuple[int, int, int]
_VALUE = struct.Struct(">Q")
#: In place of an offset: from here on its owner reads from somewhere else.
MOVED = -1


class Outcome(Enum):
    """What the sender of a record was told."""

    #: Nothing, or something from which it cannot tell: the record may be there.
    UNKNOWN = "unknown"
    #: It is there.
    ACKED = "acked"
    #: It is not, and will not be.
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Send:
    """One record on its way, and what became of it as far as its sender knows."""

    partition: int
    value: int
    outcome: Outcome = Outcome.UNKNOWN
    #: Where the ack said that it is. Not every ack says so.
    offset: int | None = None


@dataclass
class History:
    """What was sent and what was seen, by process, in the order in which each of them did it."""

    sends: dict[str, list[Send]] = field(default_factory=lambda: defaultdict(list))
    polls: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    #: Those who read everything, from start to end, after all that happened.
    last_readers: set[str] = field(default_factory=set)

    @property
    def all_sends(self) -> Iterator[Send]:
        """All of them, whoever sent them."""
        return (send for sends in self.sends.values() for send in sends)

    def acked(self) -> int:
        """Count what was acked."""
        return sum(send.outcome is Outcome.ACKED for send in self.all_sends)


def value_of(producer: int, number: int) -> int:
    """Give the value that a producer sends as its n-th."""
    return producer << 40 | number


def encoded(value: int) -> bytes:
    """Give the bytes of a record with this value; some are longer than others."""
    return _VALUE.pack(value) * (1 + value % 7)


def decoded(data: bytes) -> int:
    """Give the value in the bytes of a record. Raises ValueError if they are not what was sent."""
    (value,) = _VALUE.unpack_from(data) if len(data) >= _VALUE.size else (-1,)
    if value < 0 or data != encoded(value):
        raise ValueError(f"{data[:40]!r} is not what anybody sends")
    return value
