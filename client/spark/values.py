"""Parsers of option values. They raise ValueError with what is expected."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from ..cluster import parse_addresses
from ..types import EARLIEST, LATEST, TopicPartition

_ENDS = {"earliest": EARLIEST, "latest": LATEST}
_PREFIX = re.compile(r"[a-zA-Z0-9._-]{1,200}")
_DURATION = re.compile(r"(\d+)\s*([a-z]*)")
_UNITS_MS = {"": 1, "ms": 1, "s": 1000, "m": 60_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class OffsetBound:
    """Where reading starts or ends: the same for all partitions, or by partition.

    A value is an offset, or a time in milliseconds if `is_timestamp`. EARLIEST and LATEST stand for
    the ends of the log.
    """

    everywhere: int | None = None
    by_partition: Mapping[TopicPartition, int] = field(default_factory=dict)
    is_timestamp: bool = False


def parse_flag(text: str) -> bool:
    """Parse true or false."""
    if text.lower() not in ("true", "false"):
        raise ValueError("must be true or false")
    return text.lower() == "true"


def parse_count(text: str) -> int:
    """Parse a positive integer."""
    if not _is_number(text) or int(text) < 1:
        raise ValueError("must be a positive integer")
    return int(text)


def parse_number(text: str) -> int:
    """Parse an integer that is not negative."""
    if not _is_number(text):
        raise ValueError("must be an integer, 0 or more")
    return int(text)


def parse_prefix(text: str) -> str:
    """Parse the start of transactional ids, which is also that of a topic name."""
    if not _PREFIX.fullmatch(text):
        raise ValueError("must be 1 to 200 of a-z, A-Z, 0-9, '.', '_' and '-'")
    return text


def parse_seconds(text: str) -> float:
    """Parse milliseconds; return seconds."""
    if not _is_number(text):
        raise ValueError("must be a number of milliseconds")
    return int(text) / 1000


def parse_duration_ms(text: str) -> int:
    """Parse a duration in Spark's notation: 500ms, 10s, 15m, 1h; bare numbers are milliseconds."""
    match = _DURATION.fullmatch(text.lower())
    if match is None or match[2] not in _UNITS_MS:
        raise ValueError("must be a duration such as 500ms, 10s, 15m or 1h")
    return int(match[1]) * _UNITS_MS[match[2]]


def parse_text(text: str) -> str:
    """Parse a non-empty string."""
    if not text:
        raise ValueError("must not be empty")
    return text


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a parser of one of these words, in any case."""

    def parse(text: str) -> str:
        value = next((choice for choice in choices if choice.lower() == text.lower()), None)
        if value is None:
            raise ValueError(f"must be {' or '.join(choices)}")
        return value

    return parse


def parse_acks(text: str) -> Literal["all", 0, 1]:
    """Parse acks."""
    values: dict[str, Literal["all", 0, 1]] = {"all": "all", "-1": "all", "0": 0, "1": 1}
    if text.lower() not in values:
        raise ValueError("must be all, 1 or 0")
    return values[text.lower()]


def parse_bootstrap(text: str) -> str:
    """Check bootstrap servers."""
    parse_addresses(text)
    return text


def parse_names(text: str) -> tuple[str, ...]:
    """Parse topic names, separated by commas."""
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise ValueError("names no topic")
    return names


def parse_pattern(text: str) -> str:
    """Check a regular expression."""
    try:
        re.compile(parse_text(text))
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return text


def parse_assigned(text: str) -> tuple[TopicPartition, ...]:
    """Parse partitions by topic, as JSON."""
    example = '{"topic":[0,1]}'
    by_topic = _json(text, example)
    for numbers in by_topic.values():
        if not isinstance(numbers, list) or not all(map(_is_partition, numbers)):
            raise ValueError(f"must be JSON like {example}")
    tps = tuple(TopicPartition(topic, n) for topic, some in by_topic.items() for n in some)
    if not tps:
        raise ValueError("names no partition")
    return tps


def parse_offsets(text: str) -> OffsetBound:
    """Parse earliest, latest, or offsets by topic and partition as JSON."""
    if text.lower() in _ENDS:
        return OffsetBound(_ENDS[text.lower()])
    example = '{"topic":{"0":23,"1":-2}}, with -2 for earliest and -1 for latest'
    if not text.startswith("{"):
        raise ValueError(f"must be earliest, latest, or JSON like {example}")
    return OffsetBound(by_partition=_by_partition(text, example, EARLIEST))


def parse_time(text: str) -> OffsetBound:
    """Parse one timestamp for all partitions."""
    if not _is_number(text):
        raise ValueError("must be a time in milliseconds since 1970")
    return OffsetBound(int(text), is_timestamp=True)


def parse_times(text: str) -> OffsetBound:
    """Parse timestamps by topic and partition, as JSON."""
    example = '{"topic":{"0":1000000000000}}, in milliseconds since 1970'
    return OffsetBound(by_partition=_by_partition(text, example, 0), is_timestamp=True)


def _json(text: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"not valid JSON ({error}): expected {example}") from None
    if not isinstance(parsed, dict):
        raise ValueError(f"must be JSON like {example}")
    return parsed


def _by_partition(text: str, example: str, min_value: int) -> dict[TopicPartition, int]:
    values_by_tp: dict[TopicPartition, int] = {}
    for topic, values in _json(text, example).items():
        if not isinstance(values, dict):
            raise ValueError(f"must be JSON like {example}")
        for partition, value in values.items():
            if not _is_number(partition) or type(value) is not int or value < min_value:
                raise ValueError(
                    f"invalid entry {partition!r}: {value!r} of {topic}: expected {example}"
                )
            values_by_tp[TopicPartition(topic, int(partition))] = value
    if not values_by_tp:
        raise ValueError("names no partition")
    return values_by_tp


def _is_partition(value: object) -> bool:
    return type(value) is int and value >= 0


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()
