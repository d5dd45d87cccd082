"""Limits and timeouts of the coordinators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class ClassicGroupConfig:
    """Limits of one group."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 1_000


class MigrationPolicy(Enum):
    """Which groups with members may change their protocol."""

    BIDIRECTIONAL = "bidirectional"
    UPGRADE = "upgrade"
    DOWNGRADE = "downgrade"
    DISABLED = "disabled"

    @property
    def upgrades(self) -> bool:
        """Whether a classic group becomes a consumer group when such a member joins."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.UPGRADE)

    @property
    def downgrades(self) -> bool:
        """Whether a group becomes a classic one when its last member of the new protocol leaves."""
        return self in (MigrationPolicy.BIDIRECTIONAL, MigrationPolicy.DOWNGRADE)


@dataclass(frozen=True, slots=True)
class ConsumerGroupConfig:
    """Limits and timeouts of a group of the consumer protocol."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    #: At most one new target assignment per interval.
    assignment_interval_ms: int = 1_000
    regex_refresh_interval_ms: int = 600_000
    max_size: int = 2**31 - 1
    #: Names of assignors, the default first.
    assignors: tuple[str, ...] = ("uniform", "range")
    migration_policy: MigrationPolicy = MigrationPolicy.BIDIRECTIONAL

    def with_overrides(self, overrides: Mapping[str, str]) -> ConsumerGroupConfig:
        """Return the config of a group with these configs of its own."""
        return _overridden(self, CONSUMER_GROUP_CONFIG_FIELDS, overrides)


@dataclass(frozen=True, slots=True)
class ShareGroupConfig:
    """Limits and timeouts of a share group."""

    session_timeout_ms: int = 45_000
    heartbeat_interval_ms: int = 5_000
    lock_duration_ms: int = 30_000
    delivery_count_limit: int = 5
    max_record_locks: int = 2_000
    max_size: int = 200
    #: Where a group starts in a partition: earliest, latest or by_duration:DURATION.
    auto_offset_reset: str = "latest"
    isolation_level: str = "read_uncommitted"
    may_renew: bool = True

    def with_overrides(self, overrides: Mapping[str, str]) -> ShareGroupConfig:
        """Return the config of a group with these configs of its own."""
        return _overridden(self, SHARE_GROUP_CONFIG_FIELDS, overrides)


G = TypeVar("G", ConsumerGroupConfig, ShareGroupConfig)

#: The configs that a group may have of its own, and the fields that they override.
CONSUMER_GROUP_CONFIG_FIELDS = {
    "consumer.session.timeout.ms": "session_timeout_ms",
    "consumer.heartbeat.interval.ms": "heartbeat_interval_ms",
    "consumer.assignment.interval.ms": "assignment_interval_ms",
}
SHARE_GROUP_CONFIG_FIELDS = {
    "share.session.timeout.ms": "session_timeout_ms",
    "share.heartbeat.interval.ms": "heartbeat_interval_ms",
    "share.record.lock.duration.ms": "lock_duration_ms",
    "share.delivery.count.limit": "delivery_count_limit",
    "share.partition.max.record.locks": "max_record_locks",
    "share.auto.offset.reset": "auto_offset_reset",
    "share.isolation.level": "isolation_level",
    "share.renew.acknowledge.enable": "may_renew",
}


def _overridden(config: G, fields: Mapping[str, str], overrides: Mapping[str, str]) -> G:
    """Return a config with the values that a group has of its own, which have been checked."""
    if not overrides:
        return config
    values: dict[str, object] = {}
    for name, field_name in fields.items():
        text = overrides.get(name)
        if text is None:
            continue
        default = getattr(config, field_name)
        if isinstance(default, bool):
            values[field_name] = text == "true"
        else:
            values[field_name] = int(text) if isinstance(default, int) else text
    return replace(config, **values) if values else config  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class GroupCoordinatorConfig:
    """Limits of all groups of a broker."""

    group: ClassicGroupConfig = field(default_factory=ClassicGroupConfig)
    consumer: ConsumerGroupConfig = field(default_factory=ConsumerGroupConfig)
    share: ShareGroupConfig = field(default_factory=ShareGroupConfig)
    max_groups: int = 10_000
    offset_metadata_max_bytes: int = 4096
    offsets_retention_ms: int = 7 * 24 * 60 * 60 * 1000


@dataclass(frozen=True, slots=True)
class TransactionConfig:
    """Limits and timeouts of the transactional ids of a broker."""

    max_timeout_ms: int = 900_000
    id_expiration_ms: int = 7 * 24 * 60 * 60 * 1000
    max_ids: int = 100_000
    #: How long an EndTxn waits for the markers before it is answered.
    marker_wait_ms: int = 200
