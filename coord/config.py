"""Limits and timeouts of the coordinators."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ClassicGroupConfig:
    """Limits of one group."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 1_000


@dataclass(frozen=True, slots=True)
class GroupCoordinatorConfig:
    """Limits of all groups of a broker."""

    group: ClassicGroupConfig = field(default_factory=ClassicGroupConfig)
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
