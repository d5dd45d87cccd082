"""A member of a consumer group."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from .records import MemberMetadata

#: Names and metadata, in the member's order of preference.
Protocols = tuple[tuple[str, bytes], ...]


#: Estimated memory of a member without its metadata and assignment.
_MEMBER_BYTES = 1024


def member_bytes(protocols: Protocols, client_id: str) -> int:
    """Estimate the memory of a member; its id contains the client id, too."""
    return (
        _MEMBER_BYTES
        + 2 * len(client_id)
        + sum(100 + len(name) + len(data) for name, data in protocols)
    )


@dataclass(frozen=True, slots=True)
class Join:
    """A JoinGroup request, and what the broker knows of its sender."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: Protocols
    #: Makes the member id unique, if the coordinator has to generate one.
    unique: str
    #: Whether a new member first gets its id, and joins again with it (KIP-394).
    requires_known_id: bool = False
    #: Whether the client understands SkipAssignment (KIP-814).
    can_skip_assignment: bool = False


@dataclass(slots=True, eq=False)
class Member:
    """A member, as of its last JoinGroup."""

    id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocols: Protocols
    assignment: bytes = b""
    # Soft state: not in records.
    #: The tokens of its waiting requests.
    waiting_join: Any = field(default=None, repr=False)
    waiting_sync: Any = field(default=None, repr=False)
    #: Whether no JoinGroup of it was answered yet.
    is_new: bool = True
    #: Cached: each join is checked against the protocol names of all members.
    protocol_names: frozenset[str] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self.protocol_names = frozenset(name for name, _metadata in self.protocols)

    @classmethod
    def from_join(cls, member_id: str, join: Join) -> Member:
        """Return the member that a request describes."""
        return cls(
            id=member_id,
            instance_id=join.instance_id,
            client_id=join.client_id,
            client_host=join.client_host,
            session_timeout_ms=join.session_timeout_ms,
            rebalance_timeout_ms=join.rebalance_timeout_ms,
            protocols=join.protocols,
        )

    @classmethod
    def from_record(cls, metadata: MemberMetadata, protocol: str | None) -> Member:
        """Return the member that a record describes. It has only the chosen protocol."""
        return cls(
            id=metadata.member_id,
            instance_id=metadata.group_instance_id,
            client_id=metadata.client_id,
            client_host=metadata.client_host,
            session_timeout_ms=metadata.session_timeout,
            # Version 0 has no rebalance timeout.
            rebalance_timeout_ms=(
                metadata.session_timeout
                if metadata.rebalance_timeout < 0
                else metadata.rebalance_timeout
            ),
            protocols=((protocol or "", bytes(metadata.subscription)),),
            assignment=bytes(metadata.assignment),
            is_new=False,
        )

    def to_record(self, protocol: str | None, assignment: bytes) -> MemberMetadata:
        """Return the member as part of a group's record."""
        return MemberMetadata(
            member_id=self.id,
            group_instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout=self.rebalance_timeout_ms,
            session_timeout=self.session_timeout_ms,
            subscription=self.metadata(protocol),
            assignment=assignment,
        )

    @property
    def is_waiting(self) -> bool:
        """Whether one of its requests is waiting, which shows that it is alive."""
        return self.waiting_join is not None or self.waiting_sync is not None

    def update(self, join: Join) -> None:
        """Apply what a later JoinGroup says."""
        self.client_id, self.client_host = join.client_id, join.client_host
        self.session_timeout_ms = join.session_timeout_ms
        self.rebalance_timeout_ms = join.rebalance_timeout_ms
        if self.protocols != join.protocols:
            self.set_protocols(join.protocols)

    def set_protocols(self, protocols: Protocols) -> None:
        """Replace the protocols that it supports."""
        self.protocols = protocols
        self.protocol_names = frozenset(name for name, _metadata in protocols)

    @property
    def size_bytes(self) -> int:
        """The estimated memory of the member."""
        return member_bytes(self.protocols, self.client_id) + len(self.assignment)

    def metadata(self, protocol: str | None) -> bytes:
        """Return the member's metadata for a protocol."""
        return next((data for name, data in self.protocols if name == protocol), b"")

    def vote(self, candidates: Collection[str]) -> str:
        """Return the member's preferred protocol of `candidates`, all of which it supports."""
        return next(name for name, _metadata in self.protocols if name in candidates)
