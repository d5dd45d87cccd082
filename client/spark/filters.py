"""Filters that Spark pushes down, as what they say of partitions and offsets.

Topics, partitions and offsets are taken literally, and Spark need not look at them again. A lower
bound of the timestamp is an offset as well: brokers know the first record that is not older, and
all before it are. Spark looks at timestamps again, as later records may be older. An upper bound
says nothing of offsets, for the same reason.
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
class Narrowing:
    """What is left to be read; None is everything."""

    topics: frozenset[str] | None = None
    partitions: frozenset[int] | None = None
    first_offset: int | None = None
    #: Not included.
    end_offset: int | None = None
    since_ms: int | None = None


def narrow(filters: Iterable[Filter]) -> tuple[Narrowing, list[Filter]]:
    """Give what filters leave to be read, and those that Spark has to look at itself."""
    found, left = Narrowing(), []
    for one in filters:
        narrowed = _narrowed(found, one)
        if narrowed is None:
            left.append(one)
        else:
            found = narrowed
            if isinstance(one, GreaterThan | GreaterThanOrEqual) and _name(one) == "timestamp":
                left.append(one)
    return found, left


def _name(one: Filter) -> str:
    path: tuple[str, ...] = getattr(one, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _narrowed(so_far: Narrowing, one: Filter) -> Narrowing | None:
    """Give what is left with one more filter; None if it is not understood."""
    name, value = _name(one), getattr(one, "value", None)
    match one:
        case IsNotNull() if name in _NEVER_NULL:
            return so_far
        case EqualTo() | EqualNullSafe():
            return _among(so_far, name, [value])
        case In():
            return _among(so_far, name, list(value or ()))
        case GreaterThan() | GreaterThanOrEqual() if name == "timestamp":
            return _since(so_far, value)
    if name != "offset" or not isinstance(value, int):
        return None
    match one:
        case GreaterThan():
            return _between(so_far, value + 1, None)
        case GreaterThanOrEqual():
            return _between(so_far, value, None)
        case LessThan():
            return _between(so_far, None, value)
        case LessThanOrEqual():
            return _between(so_far, None, value + 1)
    return None


def _among(so_far: Narrowing, name: str, values: list[object]) -> Narrowing | None:
    if name == "topic" and all(isinstance(value, str) for value in values):
        topics = frozenset(map(str, values))
        return replace(so_far, topics=topics if so_far.topics is None else so_far.topics & topics)
    numbers = frozenset(value for value in values if isinstance(value, int))
    if len(numbers) < len(set(values)):
        return None
    if name == "partition":
        before = so_far.partitions
        return replace(so_far, partitions=numbers if before is None else before & numbers)
    if name == "offset" and len(numbers) == 1:
        (offset,) = numbers
        return _between(so_far, offset, offset + 1)
    return None


def _between(so_far: Narrowing, first: int | None, end: int | None) -> Narrowing:
    firsts = [one for one in (so_far.first_offset, first) if one is not None]
    ends = [one for one in (so_far.end_offset, end) if one is not None]
    return replace(
        so_far, first_offset=max(firsts, default=None), end_offset=min(ends, default=None)
    )


def _since(so_far: Narrowing, value: object) -> Narrowing | None:
    if not isinstance(value, datetime) or value.tzinfo is None:
        return None
    milliseconds = max(0, int(value.timestamp() * 1000) - 1)  # never later, whatever is rounded
    return replace(so_far, since_ms=max(so_far.since_ms or 0, milliseconds))
