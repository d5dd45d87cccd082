"""What options say: texts in, values out. Functions raise ValueError with what would be right."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..cluster import parse_addresses
from ..types import EARLIEST, LATEST, TopicPartition

_ENDS = {"earliest": EARLIEST, "latest": LATEST}
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")
_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class Bound:
    """One end of what is read: the same for all partitions, or what is said of each.

    A value is an offset, or a time in milliseconds if `is_time`; EARLIEST and LATEST are an end of
    the log.
    """

    everywhere: int | None = None
    by_place: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_time: bool = False


def parse_flag(text: str) -> bool:
    """Read true or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.lower() == "true"


def parse_count(text: str) -> int:
    """Read a number above zero."""
    if not _is_number(text) or int(text) < 1:
        raise ValueError("it must be a whole number above 0")
    return int(text)


def parse_seconds(text: str) -> float:
    """Read milliseconds, and give seconds."""
    if not _is_number(text):
        raise ValueError("it must be a number of milliseconds")
    return int(text) / 1000


def parse_duration_ms(text: str) -> int:
    """Read a duration as Spark writes them: 500ms, 10s, 15m, 1h; bare numbers are milliseconds."""
    match = _DURATION.fullmatch(text.lower())
    if match is None or match[2] not in _UNITS_MS:
        raise ValueError("it must be a duration such as 500ms, 10s, 15m or 1h")
    return int(match[1]) * _UNITS_MS[match[2]]


def parse_text(text: str) -> str:
    """Read a text that is not empty."""
    if not text:
        raise ValueError("it is empty")
    return text


def one_of(*choices: str) -> Callable[[str], str]:
    """Give what reads one of some words, in any case."""

    def parse(text: str) -> str:
        found = next((choice for choice in choices if choice.lower() == text.lower()), None)
        if found is None:
            raise ValueError(f"it must be {' or '.join(choices)}")
        return found

    return parse


def parse_acks(text: str) -> Literal["all", 0, 1]:
    """Read who has to have a record."""
    values: dict[str, Literal["all", 0, 1]] = {"all": "all", "-1": "all", "0": 0, "1": 1}
    if text.lower() not in values:
        raise ValueError("it must be all, 1 or 0")
    return values[text.lower()]


def parse_bootstrap(text: str) -> str:
    """Read addresses of brokers."""
    parse_addresses(text)
    return text


def parse_names(text: str) -> tuple[str, ...]:
    """Read topics, separated by commas."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError("it names no topic")
    return names


def parse_pattern(text: str) -> str:
    """Read a regular expression."""
    try:
        re.compile(parse_text(text))
    except re.error as error:
        raise ValueError(f"it is no regular expression: {error}") from None
    return text


def parse_assigned(text: str) -> tuple[TopicPartition, ...]:
    """Read partitions by topic."""
    example = '{"topic":[0,1]}'
    found = _json(text, example)
    for numbers in found.values():
        if not isinstance(numbers, list) or not all(map(_is_partition, numbers)):
            raise ValueError(f"it is not of the form {example}")
    places = tuple(TopicPartition(name, one) for name, some in found.items() for one in some)
    if not places:
        raise ValueError("it names no partition")
    return places


def parse_offsets(text: str) -> Bound:
    """Read earliest, latest, or offsets by topic and partition."""
    if text.lower() in _ENDS:
        return Bound(_ENDS[text.lower()])
    example = '{"topic":{"0":23,"1":-2}}, with -2 for earliest and -1 for latest'
    if not text.startswith("{"):
        raise ValueError(f"it must be earliest, latest, or JSON such as {example}")
    return Bound(by_place=_by_place(text, example, EARLIEST))


def parse_time(text: str) -> Bound:
    """Read one time for all partitions."""
    if not _is_number(text):
        raise ValueError("it must be a time in milliseconds since 1970")
    return Bound(int(text), is_time=True)


def parse_times(text: str) -> Bound:
    """Read times by topic and partition."""
    example = '{"topic":{"0":1000000000000}}, in milliseconds since 1970'
    return Bound(by_place=_by_place(text, example, 0), is_time=True)


def _json(text: str, example: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error}): {example} would be") from None
    if not isinstance(found, dict):
        raise ValueError(f"it is not of the form {example}")
    return found


def _by_place(text: str, example: str, least: int) -> dict[TopicPartition, int]:
    found: dict[TopicPartition, int] = {}
    for topic, values in _json(text, example).items():
        if not isinstance(values, dict):
            raise ValueError(f"it is not of the form {example}")
        for partition, value in values.items():
            if not _is_number(partition) or type(value) is not int or value < least:
                raise ValueError(f"{topic} has {partition!r}: {value!r}, unlike {example}")
            found[TopicPartition(topic, int(partition))] = value
    if not found:
        raise ValueError("it names no partition")
    return found


def _is_partition(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
