"""The matrix of faults, and how often each is injected in a run of which size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from chaos.testbed import Run
from harness.load import silenced_client_logs

Play = Callable[[Run], None]


class Size(Enum):
    """The size of a run."""

    #: About a minute for all: part of the tests.
    SHORT = "short"
    #: About ten minutes.
    NORMAL = "normal"
    #: Hours.
    FULL = "full"


@dataclass(frozen=True)
class Row:
    """A fault, and how often it is injected."""

    number: str
    name: str
    #: What a cycle is.
    unit: str
    counts: dict[Size, int]
    play: Play = field(repr=False)
    #: Whether it depends on the batches of plain producers, and cannot run with transactions.
    is_plain: bool = False

    def __str__(self) -> str:
        return f"{self.number} {self.name}"


ROWS: dict[str, Row] = {}
#: The failure scenarios of replicated clusters, with numbers of their own.
REPLICATED_ROWS: dict[str, Row] = {}


def row(
    number: str,
    name: str,
    unit: str,
    *,
    short: int,
    normal: int,
    full: int,
    is_plain: bool = False,
) -> Callable[[Play], Play]:
    """Register a function as a row of the matrix."""
    counts = {Size.SHORT: short, Size.NORMAL: normal, Size.FULL: full}
    return _registering(ROWS, number, name, unit, counts, is_plain)


def replicated_row(
    number: str, name: str, unit: str, *, short: int, normal: int, full: int
) -> Callable[[Play], Play]:
    """Register a function as a failure scenario of replicated clusters."""
    counts = {Size.SHORT: short, Size.NORMAL: normal, Size.FULL: full}
    return _registering(REPLICATED_ROWS, number, name, unit, counts, is_plain=False)


def _registering(
    rows: dict[str, Row],
    number: str,
    name: str,
    unit: str,
    counts: dict[Size, int],
    is_plain: bool,
) -> Callable[[Play], Play]:
    def register(play: Play) -> Play:
        assert number not in rows, number
        rows[number] = Row(number, name, unit, counts, silenced_client_logs()(play), is_plain)
        return play

    return register
