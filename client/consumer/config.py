"""Consumer configs. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FetchConfig:
    """How records are fetched."""

    #: A broker answers a fetch when it has this many bytes,
    min_bytes: int = 1
    #: or after this long.
    max_wait: float = 0.5
    #: Maximum bytes per response and per partition; at least one batch is always returned.
    max_bytes: int = 50 * 1024 * 1024
    partition_max_bytes: int = 1024 * 1024
    #: Maximum bytes buffered for the application, as they came over the wire.
    prefetch_bytes: int = 32 * 1024 * 1024
    #: Whether to verify the CRC of each batch.
    check_crcs: bool = True

    def __post_init__(self) -> None:
        for name in ("min_bytes", "max_bytes", "partition_max_bytes", "prefetch_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"Invalid {name} {getattr(self, name)}: must be at least 1")
        if self.max_wait < 0:
            raise ValueError(f"Invalid max_wait {self.max_wait:g}: must not be negative")


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """Timeouts of group membership."""

    #: The coordinator removes a member after this long without a heartbeat. This and the heartbeat
    #: interval are the client's in the classic protocol only.
    session_timeout: float = 45.0
    #: How long members may take to rejoin in a rebalance.
    rebalance_timeout: float = 300.0
    heartbeat_interval: float = 3.0
    #: How long a rebalance waits for the application to process the records it was given.
    processing_timeout: float = 30.0

    def __post_init__(self) -> None:
        for name in ("session_timeout", "rebalance_timeout", "heartbeat_interval"):
            if getattr(self, name) <= 0:
                raise ValueError(f"Invalid {name} {getattr(self, name):g}: must be positive")
        if self.heartbeat_interval >= self.session_timeout:
            raise ValueError(
                f"Invalid heartbeat_interval {self.heartbeat_interval:g}: must be shorter than"
                f" session_timeout ({self.session_timeout:g})"
            )
        if self.processing_timeout < 0:
            raise ValueError(
                f"Invalid processing_timeout {self.processing_timeout:g}: must not be negative"
            )

    @property
    def is_any_protocol(self) -> bool:
        """Whether the session timeout and the heartbeat interval may be the broker's choice."""
        default = GroupConfig()
        return (self.session_timeout, self.heartbeat_interval) == (
            default.session_timeout,
            default.heartbeat_interval,
        )

    @property
    def revoke_timeout(self) -> float:
        """How long processing may delay a rebalance, with time left to commit and rejoin."""
        return min(self.processing_timeout, 0.8 * self.rebalance_timeout)


@dataclass(frozen=True, slots=True)
class ReadConfig:
    """What is read, and where reading starts."""

    group: str | None
    #: EARLIEST, LATEST or None: the position where no offset is committed.
    reset_to: int | None
    #: Whether to skip records of open and aborted transactions.
    read_committed: bool
