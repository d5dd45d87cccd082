"""Share consumer configs. Times are in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: The number of the acquire mode in requests.
RECORD_LIMIT = 1
_ACQUIRE_MODES = {"batch_optimized": 0, "record_limit": RECORD_LIMIT}


@dataclass(frozen=True, slots=True)
class ShareConfig:
    """How records are acquired and acknowledged."""

    #: Maximum records per fetch, and so about the records that are acquired in advance.
    max_records: int = 500
    #: Whether `max_records` is exceeded for whole batches, which is cheaper, or not.
    acquire_mode: Literal["batch_optimized", "record_limit"] = "batch_optimized"
    #: A broker answers a fetch when it has this many bytes,
    min_bytes: int = 1
    #: or after this long.
    max_wait: float = 0.5
    max_bytes: int = 50 * 1024 * 1024
    #: Acknowledgements are sent with the next fetch, or after this long.
    acknowledge_interval: float = 0.5
    #: An application that asks for no records for this long loses those that it was not given yet:
    #: their locks are not renewed any more.
    max_poll_interval: float = 300.0
    #: How long `close` waits for records that are being sent to the dead letter topic.
    close_timeout: float = 10.0
    #: Whether to verify the CRC of each batch.
    check_crcs: bool = True

    def __post_init__(self) -> None:
        for name in ("max_records", "min_bytes", "max_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"Invalid {name} {getattr(self, name)}: must be at least 1")
        for name in ("max_wait", "acknowledge_interval", "close_timeout"):
            if getattr(self, name) < 0:
                raise ValueError(f"Invalid {name} {getattr(self, name):g}: must not be negative")
        if self.acquire_mode not in _ACQUIRE_MODES:
            names = ", ".join(_ACQUIRE_MODES)
            raise ValueError(f"Invalid acquire_mode {self.acquire_mode!r}: must be one of {names}")

    @property
    def acquire_mode_id(self) -> int:
        """The number of the acquire mode in requests."""
        return _ACQUIRE_MODES[self.acquire_mode]


@dataclass(frozen=True, slots=True)
class DeadLetterConfig:
    """Where records go that could not be processed."""

    topic: str
    #: How often a record is delivered to applications. None: two less than the group's config
    #: `share.delivery.count.limit`. The difference is in reserve for consumers that are killed
    #: before the dead letter topic has the record.
    max_deliveries: int | None = None
    #: Whether records that the application rejects go there, too.
    include_rejected: bool = True

    def __post_init__(self) -> None:
        if self.max_deliveries is not None and self.max_deliveries < 1:
            raise ValueError(f"Invalid max_deliveries {self.max_deliveries}: must be at least 1")
