"""What is written on a command line: settings, times, and places in a log."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from ottla.client.blocking import Admin
    from ottla.client.types import TopicPartition

_AGO = re.compile(r"(?P<number>[0-9]+(\.[0-9]+)?)(?P<unit>s|m|h|d|w)")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class Kind(Enum):
    """How a place in a log is named."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    BEFORE_END = "before the end"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in a log; `number` is an offset, a count, or milliseconds since 1970."""

    kind: Kind
    number: int = 0


class TimeType(click.ParamType):  # type: ignore[type-arg]  # not in older clicks
    """A time, in milliseconds since 1970."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Read 2026-11-16T12:00, 15m (ago), or @1700000000000."""
        if isinstance(value, int):
            return value
        found = parse_time(value)
        if found is None:
            self.fail(
                f"{value!r} is no time: 2026-11-16T12:00 is, 15m (ago), or @MILLISECONDS",
                param,
                ctx,
            )
        return found


class PositionType(click.ParamType):  # type: ignore[type-arg]
    """A place in a log."""

    name = "position"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position:
        """Read start, end, an offset, a number below zero, or a time."""
        if isinstance(value, Position):
            return value
        if value in ("start", "earliest", "beginning"):
            return Position(Kind.START)
        if value in ("end", "latest"):
            return Position(Kind.END)
        if re.fullmatch("[0-9]+", value):
            return Position(Kind.OFFSET, int(value))
        if re.fullmatch("-[0-9]+", value):
            return Position(Kind.BEFORE_END, -int(value))
        found = parse_time(value)
        if found is None:
            self.fail(
                f"{value!r} is no place in a log: start is, end, an OFFSET, -N (before the end),"
                " 2026-11-16T12:00, 15m (ago), or @MILLISECONDS",
                param,
                ctx,
            )
        return Position(Kind.TIME, found)


TIME = TimeType()
POSITION = PositionType()


def parse_time(text: str) -> int | None:
    """Read a time, in milliseconds since 1970; None if it is none. Without a zone it is local."""
    if match := _AGO.fullmatch(text):
        seconds = float(match["number"]) * _UNIT_SECONDS[match["unit"]]
        return int((time.time() - seconds) * 1000)
    if re.fullmatch("@[0-9]+", text):
        return int(text[1:])
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def format_time(milliseconds: int) -> str | None:
    """Write a time, in the zone of whoever reads it; None if there is none."""
    if milliseconds < 0:
        return None
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds")


def pairs(given: Iterable[str], option: str) -> dict[str, str]:
    """Read KEY=VALUE, several times."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f"{text!r} is not KEY=VALUE", param_hint=option)
        if key.strip() in found:
            raise click.BadParameter(f"{key.strip()} is set twice", param_hint=option)
        found[key.strip()] = value.strip()
    return found


def offsets_at(
    admin: Admin, places: Collection[TopicPartition], position: Position
) -> dict[TopicPartition, int]:
    """Give the offset of a position in each log; what is outside of a log is its nearer end."""
    starts = admin.beginning_offsets(*places)
    if position.kind is Kind.START:
        return starts
    ends = admin.end_offsets(*places)
    if position.kind is Kind.OFFSET:
        wanted = dict.fromkeys(places, position.number)
    elif position.kind is Kind.BEFORE_END:
        wanted = {place: ends[place] - position.number for place in places}
    elif position.kind is Kind.TIME:
        found = admin.offsets_for_times(dict.fromkeys(places, position.number))
        wanted = {place: ends[place] if one is None else one.offset for place, one in found.items()}
    else:
        wanted = ends
    return {place: min(max(wanted[place], starts[place]), ends[place]) for place in places}
