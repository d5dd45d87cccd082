"""Settings that producer, consumer and admin share, in groups. Times are in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

#: Told of each request: the api, the node, the seconds it took, and what went wrong, if anything.
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
    """How long things may take."""

    #: One connection to be made and greeted.
    connect: float = 10.0
    #: One answer to come.
    request: float = 30.0
    #: A whole operation, with all its tries.
    operation: float = 60.0


@dataclass(frozen=True, slots=True)
class ClientConfig:
    """What all clients have in common."""

    client_id: str = "ottla"
    retry: RetryConfig = field(default_factory=RetryConfig)
    timeouts: TimeoutConfig = field(default_factory=TimeoutConfig)
    #: After so long metadata are looked up again even if nothing is wrong.
    metadata_max_age: float = 300.0
    #: The largest response that is taken.
    max_response_bytes: int = 512 * 1024 * 1024
    #: Whether topics that are asked for and not there may be made, where the broker does that.
    allow_auto_create: bool = True
    on_request: RequestHook | None = None
