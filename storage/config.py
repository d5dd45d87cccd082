"""The settings of a topic that its logs obey: Kafka's names, defaults and limits.

`LogConfig.of({"retention.ms": "60000"})` takes overrides as text, as they come from a client or a
file. A name that there is not, or a value that cannot be, is a ConfigError that says what could.

A setting is declared once, as a field: `segment_bytes: int = setting(…)`. The broker declares its
own in the same way.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

FOREVER = 2**63 - 1
INT_MAX = 2**31 - 1
_DAY_MS = 24 * 60 * 60 * 1000


class ConfigError(ValueError):
    """A setting that there is not, or a value that it cannot have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting: what it is called, what it may be, and what it is for."""

    name: str
    type: str
    """One of Kafka's: bool, string, int, long, double, list."""
    value: Any
    """The default."""
    doc: str
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    why: str = ""
    """If it can only be the default: the reason."""
    is_dynamic: bool = True
    """Whether it may change while the broker runs."""
    topic_name: str | None = None
    """Of a setting of the broker: the setting of topics that it is the default of."""

    @property
    def default(self) -> str:
        """The default as text."""
        return as_text(self.value)

    @property
    def allowed(self) -> str:
        """What it may be, for people; empty if that is any text."""
        if self.why:
            return f"{self.default} only: {self.why}"
        if self.type == "bool":
            return "true, false"
        if self.low is None:
            return ", ".join(self.choices)
        is_open = self.high is None or self.high >= FOREVER
        return f"{self.low:,} or more" if is_open else f"{self.low:,} to {self.high:,}"

    def parse(self, text: str) -> Any:
        """Give the value that a text means. Raises ConfigError."""
        kind = _TYPES[self.type]
        try:
            value = _convert(text.strip(), kind)
        except ValueError:
            raise ConfigError(
                f"{self.name}: {text!r} is not of type {kind.__name__}; it may be {self.allowed}"
            ) from None
        self.check(value)
        return value

    def check(self, value: Any) -> None:
        """Raise ConfigError if it cannot be this."""
        if self.why and value != self.value:
            raise ConfigError(
                f"{self.name}: {as_text(value)} cannot be, it is always {self.default}: {self.why}"
            )
        if self.choices and value not in self.choices:
            raise ConfigError(f"{self.name}: {value!r} is not one of {', '.join(self.choices)}")
        if self.low is not None and not value >= self.low:
            raise ConfigError(f"{self.name}: {value} is less than {self.low}")
        if self.high is not None and not value <= self.high:
            raise ConfigError(f"{self.name}: {value} is more than {self.high}")


def setting(
    default: Any,
    doc: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
    why: str = "",
    is_list: bool = False,
    is_dynamic: bool = True,
) -> Any:
    """Declare a setting, as the default of a dataclass's field."""
    kind = {bool: "bool", int: "long", float: "double", str: "string"}[type(default)]
    if kind == "long":
        high = FOREVER if high is None else high
        kind = "int" if high <= INT_MAX else "long"
    declared = Setting(
        name="",
        type="list" if is_list else kind,
        value=default,
        doc=doc,
        low=low,
        high=high,
        choices=choices,
        why=why,
        is_dynamic=is_dynamic,
    )
    return field(default=default, metadata={"setting": declared})


def settings_of(config: type[Any]) -> Mapping[str, Setting]:
    """Give the settings that a dataclass declares, by name: its field's, with dots."""
    declared = ((spec.name.replace("_", "."), spec.metadata) for spec in fields(config))
    return {
        name: replace(metadata["setting"], name=name)
        for name, metadata in declared
        if "setting" in metadata
    }


def field_of(name: str) -> str:
    """Give the name of the field that holds a setting."""
    return name.replace(".", "_")


def as_text(value: Any) -> str:
    """Give a value as text that `Setting.parse` takes; none is the empty text."""
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


def unknown(name: str, known: Iterable[str]) -> ConfigError:
    """Make the error for a setting that there is not, with the nearest one that there is."""
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    return ConfigError(f"there is no setting {name}{hint}")


_TYPES: dict[str, type] = {
    "bool": bool,
    "int": int,
    "long": int,
    "double": float,
    "string": str,
    "list": str,
}


def _convert(text: str, kind: type) -> Any:
    if kind is not bool:
        return kind(text)
    if text.lower() not in ("true", "false"):
        raise ValueError(text)
    return text.lower() == "true"


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What one log does. A field's name with dots for underscores is the setting's name."""

    segment_bytes: int = setting(
        1024**3, "a segment is rolled before it becomes larger than this", low=1024, high=INT_MAX
    )
    segment_ms: int = setting(
        7 * _DAY_MS, "a segment is rolled when its first record is older than this", low=1
    )
    segment_index_bytes: int = setting(
        10 * 1024 * 1024,
        "a segment is rolled when an index has grown to this",
        low=48,
        high=INT_MAX,
    )
    index_interval_bytes: int = setting(
        4096, "one index entry for about so many bytes of the log", low=1, high=INT_MAX
    )
    max_message_bytes: int = setting(
        1024 * 1024 + 12, "the largest batch that is taken", low=0, high=INT_MAX
    )
    message_timestamp_type: str = setting(
        "CreateTime",
        "whose time a record has: the producer's, or the broker's at the append",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = setting(
        FOREVER, "how far in the past a producer's timestamp may be", low=0
    )
    message_timestamp_after_max_ms: int = setting(
        60 * 60 * 1000, "how far in the future a producer's timestamp may be", low=0
    )
    cleanup_policy: str = setting(
        "delete",
        "what becomes of old records: deleted, reduced to the last one of each key, or both",
        choices=("delete", "compact", "compact,delete", "delete,compact"),
        is_list=True,
    )
    retention_ms: int = setting(7 * _DAY_MS, "older segments are deleted; -1: no limit", low=-1)
    retention_bytes: int = setting(
        -1,
        "the oldest segments are deleted while the log is larger than this; -1: no limit",
        low=-1,
    )
    delete_retention_ms: int = setting(
        _DAY_MS, "how long compaction keeps a tombstone that it has seen", low=0
    )
    min_compaction_lag_ms: int = setting(
        0, "a record is left alone by compaction until it is this old", low=0
    )
    max_compaction_lag_ms: int = setting(
        FOREVER, "a record is compacted at the latest when it is this old", low=1
    )
    min_cleanable_dirty_ratio: float = setting(
        0.5,
        "the part of the log that must be uncompacted before compaction is worth it",
        low=0,
        high=1,
    )
    flush_messages: int = setting(
        FOREVER, "records after which the log is flushed to the device", low=1
    )
    flush_ms: int = setting(FOREVER, "time after which the log is flushed to the device", low=0)
    durability: str = setting(
        "acks",
        "what an ack means: page-cache (the operating system has it: it survives a crash of the"
        " broker), fsync (the device has it: it survives a power cut), or acks: fsync for acks=all,"
        " page-cache for acks=1",
        choices=("acks", "page-cache", "fsync"),
    )

    compression_type: str = setting(
        "producer",
        "how batches are compressed in the log",
        why="batches are stored as they come",
    )
    min_insync_replicas: int = setting(
        1,
        "the replicas that must have a record before it is acknowledged to acks=all",
        high=INT_MAX,
        why="a partition has one replica",
    )
    unclean_leader_election_enable: bool = setting(
        False,
        "whether a replica that lacks records may lead",
        why="a partition has one replica",
    )
    preallocate: bool = setting(
        False,
        "whether a segment's file is made in its full size",
        why="the space of a segment is taken as it is written",
    )
    segment_jitter_ms: int = setting(
        0,
        "how much earlier than segment.ms a segment may be rolled, at random",
        why="segments are rolled when segment.ms says so",
    )

    def __post_init__(self) -> None:
        for name, declared in TOPIC_SETTINGS.items():
            declared.check(getattr(self, field_of(name)))

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
        return cls().with_settings(overrides)

    def with_settings(self, overrides: Mapping[str, str]) -> LogConfig:
        """Give a config that differs in these settings. Raises ConfigError."""
        values: dict[str, Any] = {}
        for name, text in overrides.items():
            if name not in TOPIC_SETTINGS:
                raise unknown(name, TOPIC_SETTINGS)
            values[field_of(name)] = TOPIC_SETTINGS[name].parse(text)
        return replace(self, **values)

    def text_of(self, name: str) -> str:
        """Give the value of a setting as text."""
        return as_text(getattr(self, field_of(name)))


TOPIC_SETTINGS = settings_of(LogConfig)
