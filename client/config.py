"""Settings that producer, consumer and admin share, in groups. Times are in seconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

#: Told of each request: the api, the node, the seconds it took, and what went wrong, if anything.
RequestHook = Callable[[str, int, float, Exception | None], None]


@dataclass(frozen=True, slots=True)
class Backoff:
    """How long to wait before the next try: longer each time, never the same for everybody."""

    first: float = 0.05
    factor: float = 2.0
    most: float = 1.0

    def seconds(self, tries: int, chance: float) -> float:
        """Give the wait after so many tries that failed; `chance` is between 0 and 1."""
        wait = min(self.most, self.first * self.factor ** min(tries, 30))
        return wait * (0.8 + 0.4 * chance)


@dataclass(frozen=True, slots=True)
class Timeouts:
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
    backoff: Backoff = field(default_factory=Backoff)
    timeouts: Timeouts = field(default_factory=Timeouts)
    #: After so long metadata are looked up again even if nothing is wrong.
    metadata_max_age: float = 300.0
    #: The largest response that is taken.
    max_response_bytes: int = 512 * 1024 * 1024
    #: Whether topics that are asked for and not there may be made, where the broker does that.
    allow_auto_create: bool = True
    on_request: RequestHook | None = None
