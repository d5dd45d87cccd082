"""How a member gets from the partitions that it has to those of the target assignment.

One step per heartbeat. A partition is *held* while it is among the assigned partitions of a
member, or among those that it was told to revoke: nobody else gets it until then, so that it has at
most one owner at any time.

    STABLE ──new target──▶ revoke first? ──yes──▶ UNREVOKED_PARTITIONS ──revoked──┐
                                 │no                                              │
                                 ◀────────────────────────────────────────────────┘
                                 ▼
                epoch of the target; all of it free? ──yes──▶ STABLE
                                 │no                            ▲
                                 └──▶ UNRELEASED_PARTITIONS ────┘ when others released the rest
"""

from __future__ import annotations

from collections.abc import Callable, Set

from .member import CurrentAssignment, MemberState
from .partitions import TopicIdPartition


def reconcile(
    current: CurrentAssignment,
    target_epoch: int,
    target: Set[TopicIdPartition],
    is_held_by_others: Callable[[TopicIdPartition], bool],
    owned: Set[TopicIdPartition] | None,
) -> CurrentAssignment:
    """Return the next step of a member that reports the partitions it owns; None: not reported.

    Returns `current` if there is nothing to do. Only a report confirms a revocation.
    """
    epoch = current.epoch
    if current.state is MemberState.STABLE and epoch == target_epoch:
        return current
    if current.state is MemberState.UNREVOKED_PARTITIONS:
        if owned is None or owned & current.pending_revocation.keys():
            return current
        epoch += 1
    kept = {tp: since for tp, since in current.assigned.items() if tp in target}
    revoked = {tp: since for tp, since in current.assigned.items() if tp not in target}
    if revoked and (owned is None or owned & revoked.keys()):
        return CurrentAssignment(
            epoch, current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoked
        )
    missing = target - kept.keys()
    free = {tp: target_epoch for tp in missing if not is_held_by_others(tp)}
    state = MemberState.STABLE if len(free) == len(missing) else MemberState.UNRELEASED_PARTITIONS
    reconciled = CurrentAssignment(target_epoch, current.epoch, state, kept | free)
    is_unchanged = (
        epoch == target_epoch == current.epoch
        and state is current.state
        and not free
        and not revoked
    )
    return current if is_unchanged else reconciled
