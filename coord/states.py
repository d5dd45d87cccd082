"""The states of a consumer group: how each request is answered, and the transitions.

Empty ──first member──▶ PreparingRebalance ──all have joined──▶ CompletingRebalance
  ▲                       │    ▲      ▲                              │        │
  └──no member is left────┘    │      └──join, leave, expiry─────────┘        │
  │                            └──join, leave, expiry, subscription── Stable ◀─┘
  └──expired or deleted──▶ Dead                                assignments appended
"""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """A state; its value is its name on the wire."""

    EMPTY = "Empty"
    """No members. There may be committed offsets.

    JoinGroup: the first member starts a rebalance. SyncGroup, Heartbeat, LeaveGroup:
    UNKNOWN_MEMBER_ID. OffsetCommit: accepted from clients that claim no membership.
    """

    PREPARING_REBALANCE = "PreparingRebalance"
    """Waiting for members to join or join again.

    JoinGroup: waits until all have joined or the rebalance timeout has passed. SyncGroup and
    Heartbeat: REBALANCE_IN_PROGRESS. LeaveGroup: the member is removed and no longer waited for.
    OffsetCommit: accepted, as members commit before they join again.
    """

    COMPLETING_REBALANCE = "CompletingRebalance"
    """A new generation, waiting for the assignment from its leader.

    JoinGroup: the same response again for a member that changes nothing; otherwise a new rebalance.
    SyncGroup: waits for the leader's, which carries the assignment. Heartbeat: NONE. LeaveGroup: a
    new rebalance. OffsetCommit: REBALANCE_IN_PROGRESS.
    """

    STABLE = "Stable"
    """The members have their assignments.

    JoinGroup: the same response again for a follower that changes nothing; otherwise a new
    rebalance. SyncGroup: the assignment again. Heartbeat: NONE. LeaveGroup: a new rebalance.
    OffsetCommit: accepted.
    """

    DEAD = "Dead"
    """Removed. Every request: COORDINATOR_NOT_AVAILABLE or UNKNOWN_MEMBER_ID."""


#: The states from which each state is reached.
PREDECESSORS = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {
        GroupState.EMPTY,
        GroupState.COMPLETING_REBALANCE,
        GroupState.STABLE,
    },
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: {GroupState.EMPTY},
}
