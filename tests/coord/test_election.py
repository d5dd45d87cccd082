"""Elections, ISR changes and reassignments, state by state."""

from __future__ import annotations

import pytest

from ottla.coord.election import (
    complete_reassignment,
    elect,
    elect_preferred,
    elect_unclean,
    expand,
    initial_state,
    original_replicas,
    reassign,
    shrink,
)
from ottla.coord.partition_state import NO_LEADER, PartitionState

_STATE = PartitionState((1, 2, 3), 1, 5, (1, 2, 3), last_leader=1, partition_epoch=9)


def test_a_new_partition_is_led_by_its_first_live_replica() -> None:
    state = initial_state((1, 2, 3), {2, 3})
    assert (state.leader, state.isr, state.elr) == (2, (2, 3), ())


def test_a_new_partition_without_live_replicas_is_led_by_the_first_that_returns() -> None:
    state = initial_state((1, 2), set())
    assert (state.leader, state.isr, state.elr) == (NO_LEADER, (), (1, 2))
    state = elect(state, alive={2}, min_isr=2)
    assert (state.leader, state.leader_epoch, state.isr, state.elr) == (2, 1, (2,), (1,))


def test_the_next_replica_in_sync_succeeds_a_leader_that_is_gone() -> None:
    state = elect(_STATE, alive={2, 3}, min_isr=2)
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (2, 6, 10)
    assert (state.isr, state.elr, state.last_leader) == ((2, 3), (), 2)


def test_a_follower_that_is_gone_leaves_the_isr_in_the_same_epoch() -> None:
    state = elect(_STATE, alive={1, 3}, min_isr=2)
    assert (state.leader, state.leader_epoch, state.partition_epoch) == (1, 5, 10)
    assert state.isr == (1, 3)


def test_nothing_changes_while_all_are_alive() -> None:
    assert elect(_STATE, alive={1, 2, 3}, min_isr=2) is _STATE


def test_members_that_leave_a_small_isr_stay_eligible() -> None:
    state = shrink(shrink(_STATE, [2], 2), [3], 2)
    assert (state.isr, state.elr) == ((1,), (3,))  # 2 left while the ISR sufficed.
    state = elect(state, alive={2, 3}, min_isr=2)
    assert (state.leader, state.isr, state.elr) == (3, (3,), (1,))


def test_nobody_is_elected_outside_isr_and_elr() -> None:
    state = elect(shrink(_STATE, [2], 2), alive={2}, min_isr=2)
    assert (state.leader, state.leader_epoch, state.isr, state.elr) == (NO_LEADER, 6, (), (1, 3))
    assert state.last_leader == 1
    assert elect(state, alive={2}, min_isr=2) is state
    state = elect(state, alive={2, 3}, min_isr=2)
    assert (state.leader, state.leader_epoch, state.isr, state.elr) == (3, 7, (3,), (1,))


def test_an_election_from_the_elr_empties_it_if_the_isr_suffices() -> None:
    state = elect(_STATE, alive=set(), min_isr=1)
    assert (state.leader, state.elr) == (NO_LEADER, (1, 2, 3))
    state = elect(state, alive={2, 3}, min_isr=1)
    assert (state.leader, state.isr, state.elr) == (2, (2,), ())


def test_a_broker_that_may_have_lost_records_leaves_isr_and_elr() -> None:
    state = elect(_STATE, alive={2, 3}, lossy={1}, min_isr=2)
    assert (state.leader, state.isr, state.elr) == (2, (2, 3), ())
    alone = elect(shrink(_STATE, [2, 3], 2), alive=set(), lossy={1}, min_isr=2)
    assert (alone.leader, alone.isr, alone.elr) == (NO_LEADER, (), (2, 3))


def test_a_leader_that_restarted_leads_in_a_new_epoch() -> None:
    state = elect(_STATE, alive={1, 2, 3}, min_isr=2, restarted={1})
    assert (state.leader, state.leader_epoch, state.isr) == (1, 6, (1, 2, 3))
    assert elect(_STATE, alive={1, 2, 3}, min_isr=2, restarted={2}) is _STATE


def test_a_leaving_leader_hands_over_unless_it_is_the_last() -> None:
    state = elect(_STATE, alive={1, 2, 3}, leaving={1}, min_isr=2)
    assert (state.leader, state.isr) == (2, (2, 3))
    alone = shrink(_STATE, [2, 3], 2)
    assert elect(alone, alive={1, 2, 3}, leaving={1}, min_isr=2) is alone


def test_the_preferred_leader_is_elected_if_it_is_in_sync() -> None:
    moved = elect(_STATE, alive={2, 3}, min_isr=2)
    assert elect_preferred(moved, {1, 2, 3}) is moved
    state = elect_preferred(expand(moved, [1], 2), {1, 2, 3})
    assert (state.leader, state.leader_epoch, state.isr) == (1, 7, (1, 2, 3))
    assert elect_preferred(state, {1, 2, 3}) is state


def test_an_unclean_election_takes_any_live_replica_and_is_marked() -> None:
    state = elect(shrink(_STATE, [2], 2), alive={2}, min_isr=2)
    state = elect_unclean(state, {2})
    assert (state.leader, state.leader_epoch, state.isr, state.elr) == (2, 7, (2,), ())
    assert state.is_recovering
    state = expand(state, [1], 2)
    assert state.is_recovering
    assert not expand(state, [3], 2).is_recovering


def test_an_unclean_election_needs_a_partition_without_a_leader_and_a_live_replica() -> None:
    assert elect_unclean(_STATE, {1, 2}) is _STATE
    leaderless = elect(_STATE, alive=set(), min_isr=2)
    assert elect_unclean(leaderless, {4}) is leaderless


def test_a_leader_cannot_leave_its_isr() -> None:
    with pytest.raises(ValueError, match="Leader 1 cannot leave"):
        shrink(_STATE, [1], 2)


def test_a_partition_with_one_replica_needs_only_that_one() -> None:
    state = PartitionState((1,), 1, 0, (1,), last_leader=1)
    gone = elect(state, alive=set(), min_isr=2)
    assert (gone.leader, gone.isr, gone.elr) == (NO_LEADER, (), (1,))
    back = elect(gone, alive={1}, min_isr=2)
    assert (back.leader, back.leader_epoch, back.isr, back.elr) == (1, 2, (1,), ())


def test_a_reassignment_completes_when_all_new_replicas_are_in_sync() -> None:
    state = reassign(_STATE, (4, 5, 1))
    assert state.replicas == (4, 5, 1, 2, 3)
    assert (state.adding_replicas, state.removing_replicas) == ((4, 5), (2, 3))
    assert original_replicas(state) == (1, 2, 3)
    alive = {1, 2, 3, 4, 5}
    state = expand(state, [4], 2)
    assert complete_reassignment(state, alive) is state
    state = complete_reassignment(expand(state, [5], 2), alive)
    assert (state.replicas, state.isr, state.leader) == ((4, 5, 1), (4, 5, 1), 1)
    assert (state.leader_epoch, state.adding_replicas, state.removing_replicas) == (5, (), ())


def test_a_reassignment_elects_a_new_leader_if_the_old_one_is_removed() -> None:
    state = expand(reassign(_STATE, (4, 5)), [4, 5], 2)
    state = complete_reassignment(state, {1, 2, 3, 5})
    assert (state.leader, state.leader_epoch, state.isr) == (5, 6, (4, 5))


def test_a_reassignment_can_be_cancelled() -> None:
    begun = expand(reassign(_STATE, (4, 5, 1)), [4], 2)
    state = reassign(begun, original_replicas(begun))
    # 4 is in sync, and stays until the cancellation completes.
    assert (state.replicas, state.removing_replicas) == ((1, 2, 3, 4), (4,))
    state = complete_reassignment(state, {1, 2, 3})
    assert (state.replicas, state.isr, state.leader) == ((1, 2, 3), (1, 2, 3), 1)


def test_a_state_survives_encoding() -> None:
    state = reassign(elect_unclean(elect(_STATE, alive=set(), min_isr=2), {3}), (4, 5))
    assert PartitionState.from_json(state.to_json()) == state
