"""The replicated state of a partition: its replicas, its leader, and who is in sync with it.

A state is stored as a whole, by compare-and-swap: `partition_epoch` rises with each change, and
`leader_epoch` whenever a leader takes over, be it the same broker after a restart. The rules by
which one state follows another are in `election.py`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: The leader of a partition that has none.
NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class PartitionState:
    """One state of a partition. Broker ids are in the order of `replicas`."""

    #: All replicas, the preferred leader first. During a reassignment: old and new ones.
    replicas: tuple[int, ...]
    leader: int
    leader_epoch: int
    #: The in-sync replicas: all of them have every record below the high watermark.
    isr: tuple[int, ...]
    #: The eligible leader replicas (KIP-966): they have every record below the high watermark, too,
    #: because it does not advance while the ISR is smaller than min.insync.replicas.
    elr: tuple[int, ...] = ()
    #: The last leader, which an operator may elect if nobody else can be.
    last_leader: int = NO_LEADER
    adding_replicas: tuple[int, ...] = ()
    removing_replicas: tuple[int, ...] = ()
    #: Whether an unclean election took place, and not all replicas have followed it yet: they may
    #: truncate below their high watermark.
    is_recovering: bool = False
    partition_epoch: int = 0

    @property
    def has_leader(self) -> bool:
        """Whether a broker leads the partition."""
        return self.leader != NO_LEADER

    @property
    def is_under_replicated(self) -> bool:
        """Whether replicas are missing from the ISR, besides those that are being added."""
        return any(one not in self.isr for one in self.replicas if one not in self.adding_replicas)

    @property
    def is_reassigning(self) -> bool:
        """Whether the partition is being moved to other brokers."""
        return bool(self.adding_replicas or self.removing_replicas)

    def to_json(self) -> bytes:
        """Encode the state as it is stored."""
        content = {
            "replicas": self.replicas,
            "leader": self.leader,
            "leader_epoch": self.leader_epoch,
            "isr": self.isr,
            "elr": self.elr,
            "last_leader": self.last_leader,
            "adding": self.adding_replicas,
            "removing": self.removing_replicas,
            "recovering": self.is_recovering,
            "version": self.partition_epoch,
        }
        return json.dumps(content, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> PartitionState:
        """Decode a stored state. Fields of newer versions are ignored."""
        return cls.from_content(json.loads(data))

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> PartitionState:
        """Return the state of parsed JSON."""
        return cls(
            replicas=tuple(content["replicas"]),
            leader=content["leader"],
            leader_epoch=content["leader_epoch"],
            isr=tuple(content["isr"]),
            elr=tuple(content["elr"]),
            last_leader=content["last_leader"],
            adding_replicas=tuple(content["adding"]),
            removing_replicas=tuple(content["removing"]),
            is_recovering=content["recovering"],
            partition_epoch=content["version"],
        )
