"""Topic configs of a partition's log, with Kafka's names, defaults and limits.

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

from .throttled_replicas import parse_throttled_replicas

_DAY_MS = 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class LogConfig:
    """The configs of one log. A field's name with dots for underscores is the config's name."""

    segment_bytes: int = config_key(
        1024**3, "Maximum size of a segment file; a full segment is rolled.", low=1024, high=INT_MAX
    )
    segment_ms: int = config_key(
        7 * _DAY_MS,
        "Maximum age of the active segment before it is rolled, even if it is not full.",
        low=1,
    )
    segment_index_bytes: int = config_key(
        10 * 1024 * 1024,
        "Maximum size of an index file; a segment whose index is full is rolled.",
        low=48,
        high=INT_MAX,
    )
    index_interval_bytes: int = config_key(
        4096, "Bytes of the log between index entries.", low=1, high=INT_MAX
    )
    max_message_bytes: int = config_key(
        1024 * 1024 + 12, "Maximum size of a record batch, after compression.", low=0, high=INT_MAX
    )
    message_timestamp_type: str = config_key(
        "CreateTime",
        "Whether a record has the timestamp of the producer (CreateTime) or of the broker when it"
        " is appended (LogAppendTime).",
        choices=("CreateTime", "LogAppendTime"),
    )
    message_timestamp_before_max_ms: int = config_key(
        LONG_MAX,
        "Maximum age of a record's timestamp when it is appended. Ignored with LogAppendTime.",
        low=0,
    )
    message_timestamp_after_max_ms: int = config_key(
        60 * 60 * 1000,
        "Maximum time that a record's timestamp may be ahead of the broker's clock. Ignored with"
        " LogAppendTime.",
        low=0,
    )
    cleanup_policy: str = config_key(
        "delete",
        "How old records are removed: delete (by age or size), compact (keep the last record per"
        " key), or both.",
        choices=("delete", "compact", "compact,delete", "delete,compact"),
        is_list=True,
    )
    retention_ms: int = config_key(
        7 * _DAY_MS,
        "Time after which segments are deleted, with cleanup.policy=delete; -1 for no limit.",
        low=-1,
    )
    retention_bytes: int = config_key(
        -1,
        "Maximum size of a partition's log before its oldest segments are deleted, with"
        " cleanup.policy=delete; -1 for no limit.",
        low=-1,
    )
    delete_retention_ms: int = config_key(
        _DAY_MS, "Time that a tombstone is kept after compaction has first seen it.", low=0
    )
    min_compaction_lag_ms: int = config_key(
        0, "Minimum time that a record stays uncompacted.", low=0
    )
    max_compaction_lag_ms: int = config_key(
        LONG_MAX, "Maximum time that a record may remain uncompacted.", low=1
    )
    min_cleanable_dirty_ratio: float = config_key(
        0.5,
        "Minimum ratio of uncompacted bytes to all bytes of a log before it is compacted.",
        low=0,
        high=1,
    )
    file_delete_delay_ms: int = config_key(
        60_000,
        "Time that the log directories of a deleted topic are kept, renamed, before removal.",
        low=0,
    )
    flush_messages: int = config_key(
        LONG_MAX, "Maximum number of unflushed records before the log is fsynced.", low=1
    )
    flush_ms: int = config_key(
        LONG_MAX, "Maximum time that a record may stay unflushed before the log is fsynced.", low=0
    )
    durability: str = config_key(
        "acks",
        "What an acknowledged record survives: page-cache (a crash of the broker), fsync (a power"
        " cut: the log was fsynced), or acks (fsync for acks=all, page-cache for acks=1).",
        choices=("acks", "page-cache", "fsync"),
    )

    compression_type: str = config_key(
        "producer",
        "Compression of batches in the log; producer keeps that of the producer. The broker"
        " compresses batches of another codec again, which costs CPU time.",
        choices=("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd"),
    )
    compression_gzip_level: int = config_key(
        -1,
        "Level of compression.type=gzip: 1 to 9, or -1 for the codec's default.",
        low=-1,
        high=9,
    )
    compression_lz4_level: int = config_key(9, "Level of compression.type=lz4.", low=1, high=17)
    compression_zstd_level: int = config_key(
        3, "Level of compression.type=zstd.", low=-131072, high=22
    )
    min_insync_replicas: int = config_key(
        1,
        "Minimum number of in-sync replicas for a produce request with acks=all, and for records to"
        " become visible; a partition with fewer replicas needs all of them. 2 by default with"
        " cluster.store.",
        low=1,
        high=INT_MAX,
    )
    unclean_leader_election_enable: bool = config_key(
        False,
        "Whether a replica outside the ISR may become leader, losing records, if no other can.",
    )
    leader_replication_throttled_replicas: str = config_key(
        "",
        "Replicas whose leaders send followers that are not in sync no more than"
        " leader.replication.throttled.rate: PARTITION:BROKER,… with the brokers that lead, or *"
        " for all.",
        is_list=True,
    )
    follower_replication_throttled_replicas: str = config_key(
        "",
        "Replicas that fetch no more than follower.replication.throttled.rate while they are"
        " behind: PARTITION:BROKER,… or * for all.",
        is_list=True,
    )
    preallocate: bool = config_key(
        False,
        "Whether the file of a new segment is extended to segment.bytes at once, instead of in"
        " steps.",
    )
    segment_jitter_ms: int = config_key(
        0,
        "Maximum time subtracted from segment.ms, a different one for each segment, so that the"
        " partitions of a topic do not all roll at once.",
        low=0,
    )
    message_downconversion_enable: bool = config_key(
        True, "Accepted for compatibility; there are no older record formats to convert to."
    )
    remote_storage_enable: bool = config_key(
        False,
        "Whether segments are copied to remote storage.",
        fixed_because="there is no remote storage",
    )
    remote_log_copy_disable: bool = config_key(
        False,
        "Whether to stop copying segments to remote storage.",
        fixed_because="there is no remote storage",
    )
    remote_log_delete_on_disable: bool = config_key(
        False,
        "Whether to delete remote segments when remote storage is disabled.",
        fixed_because="there is no remote storage",
    )
    local_retention_ms: int = config_key(
        -2,
        "Time that segments are kept locally after they were copied to remote storage; -2 for"
        " retention.ms.",
        fixed_because="there is no remote storage",
    )
    local_retention_bytes: int = config_key(
        -2,
        "Size of the segments that are kept locally after they were copied to remote storage; -2"
        " for retention.bytes.",
        fixed_because="there is no remote storage",
    )

    def __post_init__(self) -> None:
        for name, declared in TOPIC_CONFIGS.items():
            declared.check(getattr(self, field_of(name)))
        parse_throttled_replicas(self.leader_replication_throttled_replicas)
        parse_throttled_replicas(self.follower_replication_throttled_replicas)

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
        """Return the default config with overrides, by name and as text. Raises ConfigError."""
        return cls().with_overrides(overrides)

    def with_overrides(self, overrides: Mapping[str, str]) -> LogConfig:
        """Return a copy with overrides, by name and as text. Raises ConfigError."""
        values: dict[str, Any] = {}
        for name, text in overrides.items():
            if name not in TOPIC_CONFIGS:
                raise unknown_config(name, TOPIC_CONFIGS)
            values[field_of(name)] = TOPIC_CONFIGS[name].parse(text)
        return replace(self, **values)

    def text_of(self, name: str) -> str:
        """Return the value of a config as text."""
        return as_text(getattr(self, field_of(name)))


TOPIC_CONFIGS = config_keys(LogConfig)
