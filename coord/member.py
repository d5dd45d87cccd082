"""A member of a consumer group."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

#: Names and metadata, the member's favourite first.
Protocols = tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request, and what the broker knows of who sent it."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    #: Something that nobody else has, for the member's id if it needs one.
    unique: str
    #: Whether it is to be given its id first, and to come again with that (KIP-394).
    requires_known_id: bool = False
    #: Whether it understands that it leads, and is not to assign anything (KIP-814).
    can_skip_assignment: bool = False


@dataclass(slots=True, eq=False)
class Member:
    """One member. `join` and `sync` are the tokens of its parked requests."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    join: Any = field(default=None, repr=False)
    sync: Any = field(default=None, repr=False)
    #: Whether it has never had an answer to its join.
    is_new: bool = True
    #: The names of its protocols: each join of another is held against those of all members.
    names: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.names = frozenset(name for name, _data in self.protocols)

    @classmethod
    def of(cls, member_id: str, join: Join) -> Member:
        """Make the member that a request describes."""
        return cls(
            id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocols=join.protocols,
        )

    @property
    def is_parked(self) -> bool:
        """Whether a request of it waits here, which shows that it is alive."""
        return self.join is not None or self.sync is not None

    def update(self, join: Join) -> None:
        """Take over what a later request says."""
        self.client_id, self.client_host = join.client_id, join.client_host
        self.session_timeout_ms = join.session_timeout_ms
        self.rebalance_timeout_ms = join.rebalance_timeout_ms
        if self.protocols != join.protocols:
            self.protocols = join.protocols
            self.names = frozenset(name for name, _data in join.protocols)

    def metadata(self, protocol: str | None) -> bytes:
        """Give what the member says under a protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def vote(self, candidates: Collection[str]) -> str:
        """Give the member's favourite of these, of which it has all."""
        return next(name for name, _data in self.protocols if name in candidates)
