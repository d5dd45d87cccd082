"""What clients sent and received, for `checker` to judge.

Every record has a unique value: the producer's number and a sequence number. A record repeats it,
so that damage is detected.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

#: A record that a client received: partition, offset, value.
Row = tuple[int, int, int]
_VALUE = struct.Struct(">Q")
_HEX_DIGITS = 2 * _VALUE.size
#: In place of an offset: the reader's position was changed here, by a seek or a reset.
MOVED = -1


class Outcome(Enum):
    """What the producer knows of a record."""

    #: No response, or an error that leaves it open: the record may have been written.
    UNKNOWN = "unknown"
    #: Acknowledged.
    ACKED = "acked"
    #: Rejected, and never written.
    REFUSED = "refused"


@dataclass(slots=True, eq=False)
class Send:
    """One record that was sent, and its outcome."""

    partition: int
    value: int
    outcome: Outcome = Outcome.UNKNOWN
    #: The acknowledged offset; None if the acknowledgement had none.
    offset: int | None = None


@dataclass(slots=True, eq=False)
class Transaction:
    """The records of one transaction, which also commits an offset of its producer's group."""

    producer: str
    #: Transactions of a producer have rising offsets, which start at 1.
    offset: int
    sends: list[Send]


@dataclass
class History:
    """What each producer sent and each reader received, in order."""

    sends: dict[str, list[Send]] = field(default_factory=lambda: defaultdict(list))
    polls: dict[str, list[Row]] = field(default_factory=lambda: defaultdict(list))
    #: Readers that read everything from start to end, after all faults.
    last_readers: set[str] = field(default_factory=set)
    transactions: list[Transaction] = field(default_factory=list)
    #: The offset that each transactional producer's group has committed in the end; 0: none.
    committed: dict[str, int] = field(default_factory=dict)

    @property
    def all_sends(self) -> Iterator[Send]:
        """The sends of all producers."""
        return (send for sends in self.sends.values() for send in sends)

    def acked(self) -> int:
        """Return how many records were acknowledged."""
        return sum(send.outcome is Outcome.ACKED for send in self.all_sends)

    def acked_records(self) -> dict[tuple[int, int | None], str]:
        """Return the text of each acknowledged record by partition and offset."""
        return {
            (send.partition, send.offset): encoded(send.value).decode()
            for send in self.all_sends
            if send.outcome is Outcome.ACKED
        }

    def received(self) -> dict[int, list[int]]:
        """Return the offsets that one of the last readers received, by partition."""
        offsets: dict[int, list[int]] = defaultdict(list)
        for partition, offset, _value in self.polls[min(self.last_readers)]:
            offsets[partition].append(offset)
        return offsets


def value_of(producer: int, number: int) -> int:
    """Return the value of a producer's n-th record."""
    return producer << 40 | number


def encoded(value: int) -> bytes:
    """Return the record with a value: text of varying length."""
    return _VALUE.pack(value).hex().encode() * (1 + value % 7)


def decoded(data: bytes) -> int:
    """Return the value of a record. Raises ValueError if it is damaged."""
    try:
        (value,) = _VALUE.unpack(bytes.fromhex(data[:_HEX_DIGITS].decode()))
    except (ValueError, struct.error):
        value = -1
    if value < 0 or data != encoded(value):
        raise ValueError(f"Damaged record {data[:40]!r}")
    return value
