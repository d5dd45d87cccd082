"""Configs that producer, consumer and admin share. Times are in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .security import SecurityConfig

#: Called after each request with the API, the node id, the seconds it took, and the error, if any.
RequestHook = Callable[[str, int, float, Exception | None], None]


@dataclass(frozen=True, slots=True)
class RetryConfig:
    """Exponential backoff between attempts, with 20 % jitter."""

    #: Before the second attempt.
    backoff: float = 0.05
    #: Growth of the backoff with each further attempt.
    multiplier: float = 2.0
    max_backoff: float = 1.0

    def delay(self, failures: int, jitter: float) -> float:
        """Return the seconds to wait after `failures` earlier failures; 0 <= `jitter` <= 1."""
        delay = min(self.max_backoff, self.backoff * self.multiplier ** min(failures, 30))
        return delay * (0.8 + 0.4 * jitter)


@dataclass(frozen=True, slots=True)
class TimeoutConfig:
    """Timeouts."""

    #: To connect, ApiVersions included.
    connect: float = 10.0
    #: For a response.
    request: float = 30.0
    #: For an operation with all retries; of a producer, until a record is acknowledged.
    operation: float = 60.0


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """Configs of all clients."""

    client_id: str = "ottla"
    retry: RetryConfig = field(default_factory=RetryConfig)
    timeouts: TimeoutConfig = field(default_factory=TimeoutConfig)
    #: Metadata is refreshed after this time even without errors.
    metadata_max_age: float = 300.0
    #: Maximum size of a response.
    max_response_bytes: int = 512 * 1024 * 1024
    #: Whether a missing topic may be created, if the broker allows that.
    allow_auto_create: bool = True
    on_request: RequestHook | None = None
    #: TLS and SASL; None: PLAINTEXT.
    security: SecurityConfig | None = None
