"""Who is in a group: members, static members by instance id, and pending member ids."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from ottla.protocol.errors import ErrorCode

from .errors import GroupError
from .member import Join, Member, Protocols


class Membership:
    """The members of one group, in the order in which they joined."""

    def __init__(self, members: Iterable[Member] = ()) -> None:
        self.members: dict[str, Member] = {}
        #: Member ids that were handed out, but that nobody joined with yet (KIP-394).
        self.pending: set[str] = set()
        #: The estimated memory of the members. It is asked for after each event.
        self.size_bytes = 0
        # How many members support the same protocols.
        self._protocol_names: Counter[frozenset[str]] = Counter()
        # Member ids by instance id.
        self._static: dict[str, str] = {}
        for member in members:
            self.add(member)

    @property
    def joined(self) -> list[Member]:
        """The members whose join is waiting."""
        return [member for member in self.members.values() if member.waiting_join is not None]

    @property
    def rebalance_timeout_ms(self) -> int:
        """How long the slowest member may take to join again."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    def find(self, member_id: str, instance_id: str | None) -> Member:
        """Return the member that a request comes from.

        Raises GroupError: FENCED_INSTANCE_ID if its instance id belongs to another member id,
        UNKNOWN_MEMBER_ID if it is not a member.
        """
        if instance_id is not None:
            current_id = self._static.get(instance_id)
            if current_id is not None and current_id != member_id:
                raise GroupError(ErrorCode.FENCED_INSTANCE_ID)
            if current_id is None:
                raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        member = self.members.get(member_id)
        if member is None:
            raise GroupError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member

    def static_member_id(self, instance_id: str) -> str | None:
        """Return the member id of an instance id."""
        return self._static.get(instance_id)

    def add(self, member: Member) -> None:
        """Add a member."""
        self.members[member.id] = member
        self._count(member)
        if member.instance_id is not None:
            self._static[member.instance_id] = member.id

    def remove(self, member: Member) -> None:
        """Remove a member."""
        del self.members[member.id]
        self._uncount(member)
        if member.instance_id is not None:
            self._static.pop(member.instance_id, None)

    def update(self, member: Member, join: Join) -> None:
        """Apply what a later JoinGroup of a member says."""
        self._uncount(member)
        member.update(join)
        self._count(member)

    def set_protocols(self, member: Member, protocols: Protocols) -> None:
        """Replace the protocols that a member supports."""
        self._uncount(member)
        member.set_protocols(protocols)
        self._count(member)

    def assign(self, member: Member, assignment: bytes) -> None:
        """Replace the assignment of a member."""
        self.size_bytes += len(assignment) - len(member.assignment)
        member.assignment = assignment

    def _count(self, member: Member) -> None:
        self.size_bytes += member.size_bytes
        self._protocol_names[member.protocol_names] += 1

    def _uncount(self, member: Member) -> None:
        self.size_bytes -= member.size_bytes
        self._protocol_names[member.protocol_names] -= 1
        if not self._protocol_names[member.protocol_names]:
            del self._protocol_names[member.protocol_names]

    def check_join(self, join: Join, max_size: int) -> None:
        """Raise GroupError if no protocol suits all members, or if the group is full.

        A member that joins again has to keep one of its protocols, as in Kafka.
        """
        names = {name for name, _metadata in join.protocols}
        if self.members and not names & self._common_protocols():
            raise GroupError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        is_known = (
            join.member_id in self.members
            or join.member_id in self.pending
            or (not join.member_id and join.instance_id in self._static)
        )
        if not is_known and len(self.members) + len(self.pending) >= max_size:
            raise GroupError(ErrorCode.GROUP_MAX_SIZE_REACHED)

    def choose_protocol(self) -> str | None:
        """Return the protocol that most members prefer, of those that all support."""
        candidates = self._common_protocols()
        if not candidates:
            return None
        votes = Counter(member.vote(candidates) for member in self.members.values())
        return votes.most_common(1)[0][0]

    def _common_protocols(self) -> frozenset[str]:
        return frozenset.intersection(*self._protocol_names)
