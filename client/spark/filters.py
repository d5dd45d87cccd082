"""Filter pushdown: what the filters of a query say about partitions and offsets.

Filters on topic, partition and offset are exact, and Spark need not evaluate them again. A lower
bound of the timestamp becomes an offset: brokers know the first record that is not older, and all
records before it are. Spark evaluates timestamp filters again, because later records may be older.
For the same reason an upper bound of the timestamp says nothing about offsets.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
)

_NEVER_NULL = {"topic", "partition", "offset", "timestamp", "timestampType"}


@dataclass(frozen=True)
class PushedFilters:
    """What filters leave to be read; None is everything."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int | None = None
    #: Exclusive.
    end_offset: int | None = None
    since_ms: int | None = None


def push_down(filters: Iterable[Filter]) -> tuple[PushedFilters, list[Filter]]:
    """Return what filters leave to be read, and the filters that Spark must evaluate."""
    pushed, remaining = PushedFilters(), []
    for one in filters:
        narrower = _with_filter(pushed, one)
        if narrower is None:
            remaining.append(one)
        else:
            pushed = narrower
            if isinstance(one, GreaterThan | GreaterThanOrEqual) and _column(one) == "timestamp":
                remaining.append(one)
    return pushed, remaining


def _column(one: Filter) -> str:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _with_filter(pushed: PushedFilters, one: Filter) -> PushedFilters | None:
    """Apply one more filter; None if it cannot be pushed down."""
    column, value = _column(one), getattr(one, "value", None)
    match one:
        case IsNotNull() if column in _NEVER_NULL:
            return pushed
        case EqualTo() | EqualNullSafe():
            return _with_values(pushed, column, [value])
        case In():
            return _with_values(pushed, column, list(value or ()))
        case GreaterThan() | GreaterThanOrEqual() if column == "timestamp":
            return _with_start_time(pushed, value)
    if column != "offset" or not isinstance(value, int):
        return None
    match one:
        case GreaterThan():
            return _with_offsets(pushed, value + 1, None)
        case GreaterThanOrEqual():
            return _with_offsets(pushed, value, None)
        case LessThan():
            return _with_offsets(pushed, None, value)
        case LessThanOrEqual():
            return _with_offsets(pushed, None, value + 1)
    return None


def _with_values(pushed: PushedFilters, column: str, values: list[object]) -> PushedFilters | None:
    if column == "topic" and all(isinstance(value, str) for value in values):
        topics = frozenset(map(str, values))
        return replace(pushed, topics=topics if pushed.topics is None else pushed.topics & topics)
    numbers = frozenset(value for value in values if isinstance(value, int))
    if len(numbers) < len(set(values)):
        return None
    if column == "partition":
        before = pushed.partitions
        return replace(pushed, partitions=numbers if before is None else before & numbers)
    if column == "offset" and len(numbers) == 1:
        (offset,) = numbers
        return _with_offsets(pushed, offset, offset + 1)
    return None


def _with_offsets(pushed: PushedFilters, first: int | None, end: int | None) -> PushedFilters:
    firsts = [one for one in (pushed.first_offset, first) if one is not None]
    ends = [one for one in (pushed.end_offset, end) if one is not None]
    return replace(
        pushed, first_offset=max(firsts, default=None), end_offset=min(ends, default=None)
    )


def _with_start_time(pushed: PushedFilters, value: object) -> PushedFilters | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    milliseconds = max(0, int(value.timestamp() * 1000) - 1)  # never too late, despite rounding
    return replace(pushed, since_ms=max(pushed.since_ms or 0, milliseconds))
