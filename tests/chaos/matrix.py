"""The matrix: which faults there are, how often each happens in which size of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from chaos.stage import Run
from harness.load import silenced_client_logs

Play = Callable[[Run], None]


class Size(Enum):
    """How long a run takes."""

    #: About a minute for all: it is part of the tests.
    SHORT = "short"
    #: About ten minutes.
    NORMAL = "normal"
    #: What the matrix asks for; hours.
    FULL = "full"


@dataclass(frozen=True)
class Row:
    """A fault, and how often it happens."""

    number: str
    name: str
    #: What is counted as a cycle.
    unit: str
    counts: dict[Size, int]
    play: Play = field(repr=False)

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


ROWS: dict[str, Row] = {}


def row(
    number: str, name: str, unit: str, *, short: int, normal: int, full: int
) -> Callable[[Play], Play]:
    """Let a function be a row of the matrix."""

    def register(play: Play) -> Play:
        assert number not in ROWS, number
        counts = {Size.SHORT: short, Size.NORMAL: normal, Size.FULL: full}
        ROWS[number] = Row(number, name, unit, counts, silenced_client_logs()(play))
        return play

    return register
