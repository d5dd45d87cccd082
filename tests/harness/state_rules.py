"""Whether a partition state follows from the one before by a rule of `coord/election.py`.

The rules depend on who is registered, which a history of states does not say: a change is explained
if some rule makes it, whatever each broker's registration was.

no-rule                 a state that no rule makes of the one before
skipped-version         the same, and its version is not the next one: an update was lost
leader-outside-isr      a leader that was in neither the ISR nor the ELR of the state before
same-epoch              two leaders in one leader epoch, or an epoch that went back
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from itertools import permutations, product

from ottla.coord.election import (
    complete_reassignment,
    elect,
    elect_preferred,
    elect_unclean,
    expand,
    original_replicas,
    reassign,
    resign,
    shrink,
    update_elr,
)
from ottla.coord.partition_state import PartitionState

#: What the controller may know of a broker: it is not registered, serves, shuts down, has
#: registered again, or has registered again and may have lost records.
_REGISTRATIONS = ("absent", "up", "leaving", "fenced", "lossy")
#: Targets of a reassignment are tried in every order only if they are this few.
_MAX_PERMUTED = 4


def state_anomalies(
    before: PartitionState, after: PartitionState, min_isr: int, *, may_be_unclean: bool = False
) -> Iterator[str]:
    """Yield what is wrong with a change of a state: names of invariants."""
    if not _is_explained(*_relative(before, after), min_isr, may_be_unclean):
        is_next = after.partition_epoch == before.partition_epoch + 1
        yield "no-rule" if is_next else "skipped-version"
    if after.leader_epoch < before.leader_epoch or (
        after.leader != before.leader and after.leader_epoch == before.leader_epoch
    ):
        yield "same-epoch"
    is_eligible = may_be_unclean or after.leader in (*before.isr, *before.elr)
    if after.has_leader and after.leader != before.leader and not is_eligible:
        yield "leader-outside-isr"
    if after.has_leader and after.leader not in after.isr:
        yield "leader-outside-isr"


def _relative(
    before: PartitionState, after: PartitionState
) -> tuple[PartitionState, PartitionState]:
    """Return two states with the epochs of the first set to 0, so that more changes are equal."""
    return (
        replace(before, leader_epoch=0, partition_epoch=0),
        replace(
            after,
            leader_epoch=after.leader_epoch - before.leader_epoch,
            partition_epoch=after.partition_epoch - before.partition_epoch,
        ),
    )


@lru_cache(maxsize=10_000)
def _is_explained(
    before: PartitionState, after: PartitionState, min_isr: int, may_be_unclean: bool
) -> bool:
    return any(one == after for one in _successors(before, after, min_isr, may_be_unclean))


def _successors(
    before: PartitionState, after: PartitionState, min_isr: int, may_be_unclean: bool
) -> Iterator[PartitionState]:
    """Yield the states that could follow, of those that have the members of `after`."""
    if after.leader_epoch == before.leader_epoch and before.has_leader:
        if before.leader in after.isr:
            yield shrink(before, set(before.isr) - set(after.isr), min_isr)
        yield expand(before, set(after.isr) - set(before.isr), min_isr)
        yield update_elr(before, min_isr)
    yield resign(before, min_isr)
    yield elect_preferred(before, before.replicas)
    yield from _reassigned(before, after, min_isr)
    for registrations in product(_REGISTRATIONS, repeat=len(before.replicas)):
        state_of = dict(zip(before.replicas, registrations, strict=True))
        alive = {one for one, state in state_of.items() if state not in ("absent", "lossy")}
        elected = elect(
            before,
            alive=alive,
            min_isr=min_isr,
            leaving=_in_state(state_of, "leaving"),
            lossy=_in_state(state_of, "lossy"),
            restarted=_in_state(state_of, "fenced", "lossy"),
        )
        yield elected
        if may_be_unclean:
            # One change: the version rises once.
            yield _next(before, elect_unclean(elected, alive))


def _next(before: PartitionState, after: PartitionState) -> PartitionState:
    return replace(after, partition_epoch=before.partition_epoch + 1)


def _reassigned(
    before: PartitionState, after: PartitionState, min_isr: int
) -> Iterator[PartitionState]:
    if before.adding_replicas or before.removing_replicas:
        members = before.replicas
        for number in range(1 << len(members)):
            alive = {one for bit, one in enumerate(members) if number >> bit & 1}
            yield complete_reassignment(before, alive, min_isr)
            # A cancellation may be complete at once.
            cancelled = reassign(before, original_replicas(before), min_isr)
            yield _next(before, complete_reassignment(cancelled, alive, min_isr))
    target = [one for one in after.replicas if one not in after.removing_replicas]
    if target and (after.replicas, after.removing_replicas) != (
        before.replicas,
        before.removing_replicas,
    ):
        orders = permutations(target) if len(target) <= _MAX_PERMUTED else (target,)
        for order in orders:
            yield reassign(before, order, min_isr)


def _in_state(state_of: dict[int, str], *states: str) -> set[int]:
    return {broker_id for broker_id, state in state_of.items() if state in states}
