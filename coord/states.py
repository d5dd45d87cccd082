"""The states of a consumer group: what each request gets in them, and where they lead.

Empty ──first member──▶ PreparingRebalance ──all have joined──▶ CompletingRebalance
  ▲                       │    ▲      ▲                              │        │
  └──nobody is left───────┘    │      └──join, leave, expiry─────────┘        │
  │                            └──join, leave, expiry, subscription── Stable ◀─┘
  └──expired or deleted──▶ Dead                                    assignments are there
"""

from __future__ import annotations

from enum import Enum


class GroupState(Enum):
    """A state; its value is its name on the wire."""

    EMPTY = "Empty"
    """No members. It may have committed offsets.

    JoinGroup: the first member, which begins a rebalance. SyncGroup, Heartbeat, LeaveGroup:
    UNKNOWN_MEMBER_ID. OffsetCommit: taken from anybody who claims no membership.
    """

    PREPARING_REBALANCE = "PreparingRebalance"
    """Waits for its members to join, again or for the first time.

    JoinGroup: parked until all have joined or the rebalance timeout is over. SyncGroup and
    Heartbeat: REBALANCE_IN_PROGRESS. LeaveGroup: the member is gone, and need not be waited for.
    OffsetCommit: taken, as members commit before they join again.
    """

    COMPLETING_REBALANCE = "CompletingRebalance"
    """Has a generation, and waits for its leader to say who gets what.

    JoinGroup: the same answer again for a member that changes nothing; else a new rebalance.
    SyncGroup: parked until the leader's comes, and with it the assignments. Heartbeat: fine.
    LeaveGroup: a new rebalance. OffsetCommit: REBALANCE_IN_PROGRESS.
    """

    STABLE = "Stable"
    """Its members have their assignments.

    JoinGroup: the same answer again for a follower that changes nothing; else a new rebalance.
    SyncGroup: the assignment again. Heartbeat: fine. LeaveGroup: a new rebalance. OffsetCommit:
    taken.
    """

    DEAD = "Dead"
    """It is being removed. Every request: COORDINATOR_NOT_AVAILABLE, or UNKNOWN_MEMBER_ID."""


#: From which states one may come.
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
