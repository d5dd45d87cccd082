"""Topic configs that a partition's log follows, with Kafka's names, defaults and limits.

`LogConfig.of({"retention.ms": "60000"})` takes overrides as text, as they come from a client or a
file. An unknown name or an invalid value raises ConfigError.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ottla.protocol.configdef import (
    INT_MAX,
    LONG_MAX,
    as_text,
    config_key,
    config_keys,
    field_of,
    unknown_config,
)

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """What one log does. A field's name with dots for underscores is the setting's name."""

    segment_bytes: int = config_key(
        1024**3, "a segment is rolled before it becomes larger than this", low=1024, high=INT_MAX
    )
    segment_ms: int = config_key(
        7 * _DAY_MS, "a segment is rolled when its first record is older than this", low=1
    )
    segment_index_bytes: int = config_key(
        10 * 1024 * 1024,
        "a segment is rolled when an index has grown to this",
        low=48,
        high=INT_MAX,
    )
    index_interval_bytes: int = config_key(
        4096, "one index entry for about so many bytes of the log", low=1, high=INT_MAX
    )
    max_message_bytes: int = config_key(
        1024 * 1024 + 12, "the largest batch that is taken", low=0, high=INT_MAX
    )
    message_timestamp_type: str = config_key(
        "CreateTime",
        "whose time a record has: the producer's, or the broker's at the append",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = config_key(
        LONG_MAX, "how far in the past a producer's timestamp may be", low=0
    )
    message_timestamp_after_max_ms: int = config_key(
        60 * 60 * 1000, "how far in the future a producer's timestamp may be", low=0
    )
    cleanup_policy: str = config_key(
        "delete",
        "what becomes of old records: deleted, reduced to the last one of each key, or both",
        choices=("delete", "compact", "compact,delete", "delete,compact"),
        is_list=True,
    )
    retention_ms: int = config_key(7 * _DAY_MS, "older segments are deleted; -1: no limit", low=-1)
    retention_bytes: int = config_key(
        -1,
        "the oldest segments are deleted while the log is larger than this; -1: no limit",
        low=-1,
    )
    delete_retention_ms: int = config_key(
        _DAY_MS, "how long compaction keeps a tombstone that it has seen", low=0
    )
    min_compaction_lag_ms: int = config_key(
        0, "a record is left alone by compaction until it is this old", low=0
    )
    max_compaction_lag_ms: int = config_key(
        LONG_MAX, "a record is compacted at the latest when it is this old", low=1
    )
    min_cleanable_dirty_ratio: float = config_key(
        0.5,
        "the part of the log that must be uncompacted before compaction is worth it",
        low=0,
        high=1,
    )
    flush_messages: int = config_key(
        LONG_MAX, "records after which the log is flushed to the device", low=1
    )
    flush_ms: int = config_key(LONG_MAX, "time after which the log is flushed to the device", low=0)
    durability: str = config_key(
        "acks",
        "what an ack means: page-cache (the operating system has it: it survives a crash of the"
        " broker), fsync (the device has it: it survives a power cut), or acks: fsync for acks=all,"
        " page-cache for acks=1",
        choices=("acks", "page-cache", "fsync"),
    )

    compression_type: str = config_key(
        "producer",
        "how batches are compressed in the log",
        fixed_because="batches are stored as they come",
    )
    min_insync_replicas: int = config_key(
        1,
        "the replicas that must have a record before it is acknowledged to acks=all",
        high=INT_MAX,
        fixed_because="a partition has one replica",
    )
    unclean_leader_election_enable: bool = config_key(
        False,
        "whether a replica that lacks records may lead",
        fixed_because="a partition has one replica",
    )
    preallocate: bool = config_key(
        False,
        "whether a segment's file is made in its full size",
        fixed_because="the space of a segment is taken as it is written",
    )
    segment_jitter_ms: int = config_key(
        0,
        "how much earlier than segment.ms a segment may be rolled, at random",
        fixed_because="segments are rolled when segment.ms says so",
    )

    def __post_init__(self) -> None:
        for name, declared in TOPIC_CONFIGS.items():
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
        return cls().with_overrides(overrides)

    def with_overrides(self, overrides: Mapping[str, str]) -> LogConfig:
        """Give a config that differs in these settings. Raises ConfigError."""
        values: dict[str, Any] = {}
        for name, text in overrides.items():
            if name not in TOPIC_CONFIGS:
                raise unknown_config(name, TOPIC_CONFIGS)
            values[field_of(name)] = TOPIC_CONFIGS[name].parse(text)
        return replace(self, **values)

    def text_of(self, name: str) -> str:
        """Give the value of a setting as text."""
        return as_text(getattr(self, field_of(name)))


TOPIC_CONFIGS = config_keys(LogConfig)
