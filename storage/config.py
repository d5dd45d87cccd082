"""The settings of a topic that its logs obey: Kafka's names, defaults and limits.

`LogConfig.of({"retention.ms": "60000"})` takes overrides as text, as they come from a client or a
file. A name that there is not, or a value that cannot be, is a ConfigError that says what could.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

FOREVER = 2**63 - 1
_DAY_MS = 24 * 60 * 60 * 1000


class ConfigError(ValueError):
    """A setting that there is not, or a value that it cannot have."""


def _setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    meta = {"doc": doc, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What one log does. A field's name with dots for underscores is the setting's name."""

    segment_bytes: int = _setting(
        1024**3, "a segment is rolled before it becomes larger than this", low=1024, high=2**31 - 1
    )
    segment_ms: int = _setting(
        7 * _DAY_MS, "a segment is rolled when its first record is older than this", low=1
    )
    segment_index_bytes: int = _setting(
        10 * 1024 * 1024, "a segment is rolled when an index has grown to this", low=48
    )
    index_interval_bytes: int = _setting(
        4096, "one index entry for about so many bytes of the log", low=1, high=2**31 - 1
    )
    max_message_bytes: int = _setting(
        1024 * 1024 + 12, "the largest batch that is taken", low=0, high=2**31 - 1
    )
    message_timestamp_type: str = _setting(
        "CreateTime",
        "whose time a record has: the producer's, or the broker's at the append",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = _setting(
        FOREVER, "how far in the past a producer's timestamp may be", low=0
    )
    message_timestamp_after_max_ms: int = _setting(
        60 * 60 * 1000, "how far in the future a producer's timestamp may be", low=0
    )
    cleanup_policy: str = _setting(
        "delete",
        "what becomes of old records: deleted, reduced to the last one of each key, or both",
        choices=("delete", "compact", "compact,delete", "delete,compact"),
    )
    retention_ms: int = _setting(7 * _DAY_MS, "older segments are deleted; -1: no limit", low=-1)
    retention_bytes: int = _setting(
        -1,
        "the oldest segments are deleted while the log is larger than this; -1: no limit",
        low=-1,
    )
    delete_retention_ms: int = _setting(
        _DAY_MS, "how long compaction keeps a tombstone that it has seen", low=0
    )
    min_compaction_lag_ms: int = _setting(
        0, "a record is left alone by compaction until it is this old", low=0
    )
    max_compaction_lag_ms: int = _setting(
        FOREVER, "a record is compacted at the latest when it is this old", low=1
    )
    min_cleanable_dirty_ratio: float = _setting(
        0.5,
        "the part of the log that must be uncompacted before compaction is worth it",
        low=0,
        high=1,
    )
    flush_messages: int = _setting(
        FOREVER, "records after which the log is flushed to the device", low=1
    )
    flush_ms: int = _setting(FOREVER, "time after which the log is flushed to the device", low=0)
    durability: str = _setting(
        "acks",
        "what an ack means: page-cache (the operating system has it: it survives a crash of the"
        " broker), fsync (the device has it: it survives a power cut), or acks: fsync for acks=all,"
        " page-cache for acks=1",
        choices=("acks", "page-cache", "fsync"),
    )

    def __post_init__(self) -> None:
        for spec in fields(self):
            _check(spec.name.replace("_", "."), getattr(self, spec.name), spec.metadata)

    @property
    def deletes(self) -> bool:
        """Whether retention applies."""
        return "delete" in self.cleanup_policy

    @property
    def compacts(self) -> bool:
        """Whether compaction applies."""
        return "compact" in self.cleanup_policy

    @classmethod
    def of(cls, overrides: Mapping[str, str]) -> LogConfig:
        """Make a config from settings by name, as text. Raises ConfigError."""
        known = {spec.name.replace("_", "."): spec for spec in fields(cls)}
        values: dict[str, Any] = {}
        for name, text in overrides.items():
            if name not in known:
                near = difflib.get_close_matches(name, known, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"there is no setting {name}{hint}")
            default: Any = known[name].default
            kind = type(default)
            try:
                values[known[name].name] = kind(text.strip())
            except ValueError:
                raise ConfigError(f"{name}: {text!r} is not of type {kind.__name__}") from None
        return cls(**values)


def _check(name: str, value: Any, meta: Mapping[str, Any]) -> None:
    low, high, choices = meta["low"], meta["high"], meta["choices"]
    if choices and value not in choices:
        raise ConfigError(f"{name}: {value!r} is not one of {', '.join(choices)}")
    if low is not None and not value >= low:
        raise ConfigError(f"{name}: {value} is less than {low}")
    if high is not None and not value <= high:
        raise ConfigError(f"{name}: {value} is more than {high}")
