"""Option types: times, positions in a log, and KEY=VALUE pairs."""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterable, Mapping
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
    """How a position in a log is given."""

    START = "start"
    END = "end"
    OFFSET = "offset"
    BEFORE_END = "before the end"
    TIME = "time"


@dataclass(frozen=True, slots=True)
class Position:
    """A position in a log; `number` is an offset, a count, or milliseconds since the epoch."""

    kind: Kind
    number: int = 0


class TimeType(click.ParamType):  # type: ignore[type-arg]  # not in older clicks
    """A time, in milliseconds since the epoch."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse 2026-11-16T12:00, 15m (ago), or @1700000000000."""
        if isinstance(value, int):
            return value
        timestamp = parse_time(value)
        if timestamp is None:
            self.fail(
                f"invalid time {value!r}: expected ISO 8601 (2026-11-16T12:00), a duration (15m) or"
                " @MILLISECONDS",
                param,
                ctx,
            )
        return timestamp


class PositionType(click.ParamType):  # type: ignore[type-arg]
    """A position in a log."""

    name = "position"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position:
        """Parse start, end, an offset, -N, or a time."""
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
        timestamp = parse_time(value)
        if timestamp is None:
            self.fail(
                f"invalid position {value!r}: expected start, end, an OFFSET, -N (before the end),"
                " ISO 8601 (2026-11-16T12:00), a duration (15m) or @MILLISECONDS",
                param,
                ctx,
            )
        return Position(Kind.TIME, timestamp)


class DurationType(click.ParamType):  # type: ignore[type-arg]
    """A duration, in seconds."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse 90s, 15m or 2h."""
        if isinstance(value, float):
            return value
        match = _AGO.fullmatch(value)
        if match is None:
            self.fail(f"invalid duration {value!r}: expected 90s, 15m, 2h, 1d or 1w", param, ctx)
        return float(match["number"]) * _UNIT_SECONDS[match["unit"]]


TIME = TimeType()
DURATION = DurationType()
POSITION = PositionType()


def parse_time(text: str) -> int | None:
    """Return milliseconds since the epoch, or None. A time without a zone is local."""
    if re.fullmatch("@[0-9]+", text):
        return int(text[1:])
    # As in rpk: @2026-11-16, @-15m.
    text = text.removeprefix("@")
    if match := _AGO.fullmatch(text.removeprefix("-")):
        seconds = float(match["number"]) * _UNIT_SECONDS[match["unit"]]
        return int((time.time() - seconds) * 1000)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError):
        return None


def format_time(milliseconds: int) -> str | None:
    """Return a timestamp in the local time zone; None if it is negative."""
    if milliseconds < 0:
        return None
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000).astimezone()
    except (ValueError, OverflowError, OSError):
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds")


def pairs(texts: Iterable[str], option: str) -> dict[str, str]:
    """Parse KEY=VALUE pairs."""
    values: dict[str, str] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(
                f"invalid value {text!r}: expected KEY=VALUE", param_hint=option
            )
        if key.strip() in values:
            raise click.BadParameter(f"{key.strip()} is given twice", param_hint=option)
        values[key.strip()] = value.strip()
    return values


def offsets_at(
    admin: Admin, partitions: Collection[TopicPartition], position: Position
) -> dict[TopicPartition, int]:
    """Return the offset of a position in each partition, clamped to the start and end offsets."""
    return offset_between(
        admin, admin.beginning_offsets(*partitions), admin.end_offsets(*partitions), position
    )


def offset_between(
    admin: Admin,
    starts: Mapping[TopicPartition, int],
    ends: Mapping[TopicPartition, int],
    position: Position,
) -> dict[TopicPartition, int]:
    """Return the offset of a position in each partition, by their start and end offsets."""
    if position.kind is Kind.START:
        return dict(starts)
    partitions = ends.keys()
    if position.kind is Kind.OFFSET:
        offsets = dict.fromkeys(partitions, position.number)
    elif position.kind is Kind.BEFORE_END:
        offsets = {tp: ends[tp] - position.number for tp in partitions}
    elif position.kind is Kind.TIME:
        by_time = admin.offsets_for_times(dict.fromkeys(partitions, position.number))
        offsets = {
            tp: ends[tp] if at_time is None else at_time.offset for tp, at_time in by_time.items()
        }
    else:
        offsets = dict(ends)
    return {tp: min(max(offsets[tp], starts[tp]), ends[tp]) for tp in partitions}
