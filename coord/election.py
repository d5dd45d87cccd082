"""Elections and ISR changes: how one `PartitionState` follows from another.

The controller elects leaders (`elect`, `elect_preferred`, `elect_unclean`) and reassigns replicas;
the leader of a partition shrinks and expands its ISR, and resigns if its log fails. Each function
takes a state and returns the next one, or the same object if nothing changes; a compare-and-swap on
the stored state makes it true. `tests/replication` runs a model of the protocol on these functions.

Two invariants keep acked records:

- Every member of the ISR and of the ELR has all records below the high watermark, or, after a
  restart, everything it had; a broker that may have lost records leaves both (`lossy`).
- Only members of the ISR, and of the ELR if the ISR is empty, are elected. An unclean election,
  which breaks this rule, is an operator's choice.

A replica that is removed deletes its log, and may be added again. So a state without some of the
replicas before it has a new leader epoch: what the leader knew of them counts no longer.

`min_isr` is the topic's min.insync.replicas; a partition with fewer replicas needs all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from .partition_state import NO_LEADER, PartitionState


def initial_state(replicas: Sequence[int], alive: Collection[int]) -> PartitionState:
    """Return the state of a new partition: its ISR are the live replicas.

    Without a live replica it has no leader until one returns; all of them are as empty.
    """
    isr = tuple(broker_id for broker_id in replicas if broker_id in alive)
    leader = isr[0] if isr else NO_LEADER
    return PartitionState(
        tuple(replicas), leader, 0, isr, () if isr else tuple(replicas), last_leader=leader
    )


def effective_min_isr(state: PartitionState, min_isr: int) -> int:
    """Return the number of in-sync replicas that acks=all and the high watermark require.

    Replicas that are being added do not count yet: raising a replication factor refuses no acks.
    """
    return max(min(min_isr, len(state.replicas) - len(state.adding_replicas)), 1)


def eligible_leaders(
    state: PartitionState, isr: Collection[int], min_isr: int, lossy: Collection[int] = ()
) -> tuple[int, ...]:
    """Return the ELR after the ISR has become `isr`.

    Once the ISR is large enough, the high watermark advances without the others: they are no longer
    eligible.
    """
    if len(isr) >= effective_min_isr(state, min_isr):
        return ()
    eligible = ({*state.elr, *state.isr} - {*isr}) - {*lossy}
    return _in_order(state, eligible)


def elect(
    state: PartitionState,
    *,
    alive: Collection[int],
    min_isr: int,
    leaving: Collection[int] = (),
    lossy: Collection[int] = (),
    restarted: Collection[int] = (),
) -> PartitionState:
    """Return the state after the controller has looked at the registered brokers.

    `alive` brokers are registered and not fenced; `leaving` ones among them shut down, and keep a
    leadership only if nobody else can have it. `lossy` brokers may have lost records with their
    last restart. `restarted` brokers have a new registration: they lead in a new epoch.
    """
    remaining = [
        broker_id for broker_id in state.isr if broker_id in alive and broker_id not in lossy
    ]
    isr = tuple(broker_id for broker_id in remaining if broker_id not in leaving)
    if not isr:
        isr = tuple(remaining)
    elr = eligible_leaders(state, isr, min_isr, lossy)
    leader = state.leader if state.leader in isr else NO_LEADER
    if leader == NO_LEADER:
        leader = _first_of(isr, state.replicas)
    if leader == NO_LEADER:
        leader = _first_of(
            [one for one in elr if one in alive and one not in leaving]
            or [one for one in elr if one in alive],
            state.replicas,
        )
        if leader != NO_LEADER:
            isr = (leader,)
            elr = eligible_leaders(replace(state, isr=(), elr=elr), isr, min_isr)
    is_new_leader = leader != state.leader or (leader != NO_LEADER and leader in restarted)
    if not is_new_leader and (isr, elr) == (state.isr, state.elr):
        return state
    return _changed(state, leader=leader, isr=isr, elr=elr, is_new_leader=is_new_leader)


def elect_preferred(state: PartitionState, alive: Collection[int]) -> PartitionState:
    """Return the state with the preferred leader, the first replica, if it is in sync."""
    preferred = state.replicas[0]
    if preferred == state.leader or preferred not in state.isr or preferred not in alive:
        return state
    return _changed(state, leader=preferred, isr=state.isr, elr=state.elr, is_new_leader=True)


def elect_unclean(state: PartitionState, alive: Collection[int]) -> PartitionState:
    """Return the state with any live replica as leader, if there is no leader.

    Records that only other replicas have are lost. The last leader has the most of them.
    """
    if state.has_leader:
        return state
    order = (*state.elr, state.last_leader, *state.replicas)
    leader = next((one for one in order if one in alive and one in state.replicas), NO_LEADER)
    if leader == NO_LEADER:
        return state
    changed = _changed(state, leader=leader, isr=(leader,), elr=(), is_new_leader=True)
    return replace(changed, is_recovering=len(state.replicas) > 1)


def shrink(state: PartitionState, removed: Collection[int], min_isr: int) -> PartitionState:
    """Return the state after the leader has removed lagging followers from the ISR."""
    if state.leader in removed:
        raise ValueError(f"Leader {state.leader} cannot leave the ISR")
    isr = tuple(broker_id for broker_id in state.isr if broker_id not in removed)
    if isr == state.isr:
        return state
    elr = eligible_leaders(state, isr, min_isr)
    return _changed(state, leader=state.leader, isr=isr, elr=elr)


def expand(state: PartitionState, added: Iterable[int], min_isr: int) -> PartitionState:
    """Return the state after the leader has added followers that caught up to the ISR."""
    isr = _in_order(state, {*state.isr, *added})
    if isr == state.isr:
        return state
    elr = eligible_leaders(state, isr, min_isr)
    changed = _changed(state, leader=state.leader, isr=isr, elr=elr)
    if len(isr) == len(state.replicas):
        changed = replace(changed, is_recovering=False)
    return changed


def resign(state: PartitionState, min_isr: int) -> PartitionState:
    """Return the state after the leader, whose log has failed, has given up its leadership.

    It leaves the ISR, and is not eligible: what its disk has is not known. Without another replica
    in sync it stays: nobody could take over.
    """
    isr = tuple(broker_id for broker_id in state.isr if broker_id != state.leader)
    if not state.has_leader or not isr:
        return state
    elr = eligible_leaders(state, isr, min_isr, lossy={state.leader})
    changed = _changed(state, leader=NO_LEADER, isr=isr, elr=elr, is_new_leader=True)
    return replace(changed, last_leader=state.leader)


def update_elr(state: PartitionState, min_isr: int) -> PartitionState:
    """Return the state without an ELR if the ISR suffices, because less is required than before."""
    elr = eligible_leaders(state, state.isr, min_isr)
    if elr == state.elr:
        return state
    return _changed(state, leader=state.leader, isr=state.isr, elr=elr)


def reassign(state: PartitionState, target: Sequence[int], min_isr: int) -> PartitionState:
    """Return the state in which a partition begins to move to the replicas in `target`.

    A reassignment under way is replaced: its new replicas that are not in `target` go, at once if
    they are not in sync. With `original_replicas` as the target it is cancelled.
    """
    if not target or len(set(target)) != len(target):
        raise ValueError(f"Invalid replicas {list(target)}: expected distinct broker ids")
    original = original_replicas(state)
    adding = tuple(broker_id for broker_id in target if broker_id not in original)
    # Replicas of an earlier reassignment that lead, or are in sync, stay until this one completes.
    removing = tuple(
        broker_id
        for broker_id in (*original, *state.adding_replicas)
        if broker_id not in target
        and (broker_id in original or broker_id in (*state.isr, *state.elr))
    )
    replicas = (*target, *removing)
    if (replicas, adding, removing) == (
        state.replicas,
        state.adding_replicas,
        state.removing_replicas,
    ):
        return state
    changed = replace(
        state,
        replicas=replicas,
        adding_replicas=adding,
        removing_replicas=removing,
        isr=tuple(one for one in replicas if one in state.isr),
        elr=tuple(one for one in replicas if one in state.elr),
    )
    return _changed(
        changed,
        leader=state.leader,
        isr=changed.isr,
        elr=eligible_leaders(changed, changed.isr, min_isr),
        is_new_leader=not set(state.replicas) <= set(replicas),
    )


def complete_reassignment(
    state: PartitionState, alive: Collection[int], min_isr: int
) -> PartitionState:
    """Return the state without the replicas that are to be removed, once that is safe.

    All new replicas must be in sync, and of the remaining ones as many as acks=all needs.
    """
    if not state.is_reassigning:
        return state
    target = tuple(one for one in state.replicas if one not in state.removing_replicas)
    moved = replace(state, replicas=target, adding_replicas=(), removing_replicas=())
    isr = tuple(one for one in state.isr if one in target)
    if not set(state.adding_replicas) <= set(isr) or len(isr) < effective_min_isr(moved, min_isr):
        return state
    leader = state.leader if state.leader in isr else NO_LEADER
    if leader == NO_LEADER:
        leader = _first_of([one for one in isr if one in alive], target)
    if leader == NO_LEADER:
        return state
    return _changed(
        moved,
        leader=leader,
        isr=isr,
        elr=(),
        is_new_leader=leader != state.leader or target != state.replicas,
    )


def original_replicas(state: PartitionState) -> tuple[int, ...]:
    """Return the replicas from before the reassignment under way."""
    return tuple(one for one in state.replicas if one not in state.adding_replicas)


def _changed(
    state: PartitionState,
    *,
    leader: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...],
    is_new_leader: bool = False,
) -> PartitionState:
    return replace(
        state,
        leader=leader,
        leader_epoch=state.leader_epoch + is_new_leader,
        isr=isr,
        elr=elr,
        last_leader=state.last_leader if leader == NO_LEADER else leader,
        partition_epoch=state.partition_epoch + 1,
    )


def _in_order(state: PartitionState, broker_ids: Collection[int]) -> tuple[int, ...]:
    return tuple(broker_id for broker_id in state.replicas if broker_id in broker_ids)


def _first_of(broker_ids: Collection[int], order: Iterable[int]) -> int:
    return next((broker_id for broker_id in order if broker_id in broker_ids), NO_LEADER)
