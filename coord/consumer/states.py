"""The states of a consumer group. They follow from its epochs and members."""

from __future__ import annotations

from enum import Enum


class ConsumerGroupState(Enum):
    """State of a consumer group; the values are Kafka's names, which are on the wire."""

    EMPTY = "Empty"
    """No members. There may be committed offsets.

    Heartbeat: the first member that joins starts a rebalance. JoinGroup: the group becomes a
    classic one. OffsetCommit: accepted from clients that claim no membership.
    """

    ASSIGNING = "Assigning"
    """The group epoch is above the assignment epoch: a new target assignment is due.

    It is computed at most once per `group.consumer.assignment.interval.ms`. Heartbeat: members
    stay with, or move towards, the target that there is.
    """

    RECONCILING = "Reconciling"
    """Members are on their way to the target assignment.

    Heartbeat: a member is told what to revoke, confirms it, gets the epoch of the target, and the
    partitions that others have released.
    """

    STABLE = "Stable"
    """All members have their target assignment, in its epoch."""

    DEAD = "Dead"
    """Removed."""
