"""Elections, ISR changes and reassignments, state by state."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coord.election import (
    complete_reassignment,
    effective_min_isr,
    elect,
    elect_preferred,
    elect_unclean,
    expand,
    initial_state,
    original_replicas,
    reassign,
    resign,
    shrink,
    update_elr,
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


_ALL = {1, 2, 3, 4, 5}


def test_a_reassignment_completes_when_all_new_replicas_are_in_sync() -> None:
    state = reassign(_STATE, (4, 5, 1), 2)
    assert state.replicas == (4, 5, 1, 2, 3)
    assert (state.adding_replicas, state.removing_replicas) == ((4, 5), (2, 3))
    assert original_replicas(state) == (1, 2, 3)
    assert not state.is_under_replicated
    state = expand(state, [4], 2)
    assert complete_reassignment(state, _ALL, 2) is state
    state = complete_reassignment(expand(state, [5], 2), _ALL, 2)
    assert (state.replicas, state.isr, state.leader) == ((4, 5, 1), (4, 5, 1), 1)
    # The leader stays, in a new epoch: 2 and 3 may delete their logs, and be added again.
    assert (state.leader_epoch, state.is_reassigning) == (6, False)


def test_a_reassignment_elects_a_new_leader_if_the_old_one_is_removed() -> None:
    state = expand(reassign(_STATE, (4, 5), 2), [4, 5], 2)
    state = complete_reassignment(state, {1, 2, 3, 5}, 2)
    assert (state.leader, state.leader_epoch, state.isr) == (5, 6, (4, 5))
    nobody = expand(reassign(_STATE, (4, 5), 2), [4, 5], 2)
    assert complete_reassignment(nobody, {1, 2, 3}, 2) is nobody


def test_a_reassignment_waits_for_as_many_in_sync_as_acks_need() -> None:
    # 2 and 3 stay, and are not in sync.
    state = shrink(expand(reassign(_STATE, (4, 2, 3), 2), [4], 2), [2, 3], 2)
    assert complete_reassignment(state, _ALL, 2) is state
    state = complete_reassignment(expand(state, [3], 2), _ALL, 2)
    assert (state.replicas, state.isr, state.leader) == ((4, 2, 3), (4, 3), 4)


def test_another_order_of_the_same_replicas_is_complete_at_once() -> None:
    state = reassign(_STATE, (3, 1, 2), 2)
    assert (state.replicas, state.isr, state.leader) == ((3, 1, 2), (3, 1, 2), 1)
    assert (state.leader_epoch, state.is_reassigning) == (5, False)
    assert reassign(state, (3, 1, 2), 2) is state


def test_a_factor_is_raised_without_refusing_acks_meanwhile() -> None:
    alone = PartitionState((1,), 1, 0, (1,), last_leader=1)
    state = reassign(alone, (1, 2, 3), 2)
    assert effective_min_isr(state, 2) == 1
    state = complete_reassignment(expand(state, [2, 3], 2), _ALL, 2)
    assert effective_min_isr(state, 2) == 2
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == (
        *((1, 2, 3), (1, 2, 3)),
        *(1, 0),
    )


def test_a_factor_is_lowered() -> None:
    state = reassign(_STATE, (2,), 2)
    assert (state.replicas, state.removing_replicas) == ((2, 1, 3), (1, 3))
    state = complete_reassignment(state, _ALL, 2)
    assert (state.replicas, state.isr, state.leader, state.leader_epoch) == ((2,), (2,), 2, 6)


def test_a_reassignment_can_be_cancelled() -> None:
    begun = expand(reassign(_STATE, (4, 5, 1), 2), [4], 2)
    state = reassign(begun, original_replicas(begun), 2)
    # 5 goes at once; 4 is in sync, and stays until the cancellation completes.
    assert (state.replicas, state.removing_replicas) == ((1, 2, 3, 4), (4,))
    assert state.leader_epoch == 6
    state = complete_reassignment(state, {1, 2, 3}, 2)
    assert (state.replicas, state.isr, state.leader) == ((1, 2, 3), (1, 2, 3), 1)
    assert state.leader_epoch == 7


def test_a_cancellation_keeps_the_new_replicas_until_the_old_ones_are_in_sync() -> None:
    moved = shrink(expand(reassign(_STATE, (4, 5), 2), [4, 5], 2), [2, 3], 2)
    moved = elect(moved, alive={2, 3, 4, 5}, min_isr=2)
    assert (moved.leader, moved.isr) == (4, (4, 5))
    state = reassign(moved, original_replicas(moved), 2)
    assert complete_reassignment(state, _ALL, 2) is state
    assert (state.leader, state.isr) == (4, (4, 5))
    state = complete_reassignment(expand(state, [2, 3], 2), _ALL, 2)
    assert (state.replicas, state.isr, state.leader) == ((1, 2, 3), (2, 3), 2)


def test_a_reassignment_replaces_another() -> None:
    begun = expand(reassign(_STATE, (1, 2, 4), 2), [4], 2)
    state = reassign(begun, (1, 2, 5), 2)
    assert (state.replicas, state.adding_replicas) == ((1, 2, 5, 3, 4), (5,))
    state = complete_reassignment(expand(state, [5], 2), _ALL, 2)
    assert (state.replicas, state.isr) == ((1, 2, 5), (1, 2, 5))


def test_replicas_are_distinct_and_there_is_at_least_one() -> None:
    for target in ((), (1, 1)):
        with pytest.raises(ValueError, match="expected distinct broker ids"):
            reassign(_STATE, target, 2)


def test_a_leader_whose_log_failed_leaves_the_isr_and_is_not_eligible() -> None:
    state = resign(_STATE, 2)
    assert (state.leader, state.leader_epoch, state.isr, state.elr) == (NO_LEADER, 6, (2, 3), ())
    state = elect(state, alive={1, 2, 3}, min_isr=2)
    assert (state.leader, state.isr) == (2, (2, 3))
    state = resign(shrink(_STATE, [3], 2), 2)
    assert (state.isr, state.elr, state.last_leader) == ((2,), (), 1)


def test_a_leader_without_others_in_sync_does_not_resign() -> None:
    alone = shrink(shrink(_STATE, [2], 2), [3], 2)
    assert resign(alone, 2) is alone


def test_the_elr_is_emptied_when_less_is_required() -> None:
    state = shrink(shrink(_STATE, [2], 2), [3], 2)
    assert update_elr(state, 2) is state
    after = update_elr(state, 1)
    assert (after.elr, after.partition_epoch) == ((), state.partition_epoch + 1)


_RULES = ("elect", "shrink", "expand", "reassign", "complete", "resign", "prefer")


@st.composite
def histories(draw: st.DrawFn) -> list[PartitionState]:
    """Draw states that follow from one another by all rules."""
    min_isr = draw(st.integers(1, 3))
    brokers = st.integers(1, 5)
    groups = st.sets(brokers)
    targets = st.lists(brokers, min_size=1, max_size=4, unique=True)
    states = [initial_state(draw(targets), draw(groups))]
    for _ in range(draw(st.integers(1, 12))):
        state = states[-1]
        rule = draw(
            st.sampled_from(
                ["elect", "shrink", "expand", "reassign", "complete", "resign", "prefer"]
            )
        )
        match rule:
            case "elect":
                alive = draw(groups)
                state = elect(state, alive=alive, min_isr=min_isr, lossy=draw(groups) - alive)
            case "shrink" if state.has_leader:
                state = shrink(state, draw(groups) - {state.leader}, min_isr)
            case "expand" if state.has_leader:
                state = expand(state, draw(groups), min_isr)
            case "reassign":
                state = reassign(state, draw(targets), min_isr)
            case "complete":
                state = complete_reassignment(state, draw(groups), min_isr)
            case "resign":
                state = resign(state, min_isr)
            case "prefer":
                state = elect_preferred(state, draw(groups))
        states.append(state)
    return states


@given(histories())
def test_states_follow_from_one_another(states: list[PartitionState]) -> None:
    for before, after in itertools.pairwise(states):
        if after is before:
            continue
        assert after.partition_epoch == before.partition_epoch + 1
        assert after.leader_epoch >= before.leader_epoch
        if after.leader != before.leader or not {*before.replicas} <= {*after.replicas}:
            assert after.leader_epoch > before.leader_epoch
        if after.has_leader:
            assert after.leader in after.isr
            assert after.leader == before.leader or after.leader in (*before.isr, *before.elr)
        assert len({*after.replicas}) == len(after.replicas) > 0
        assert {*after.isr, *after.elr} <= {*after.replicas}
        assert not {*after.isr} & {*after.elr}
        assert {*after.adding_replicas, *after.removing_replicas} <= {*after.replicas}
        assert not {*after.adding_replicas} & {*after.removing_replicas}
        assert original_replicas(after)
        assert PartitionState.from_json(after.to_json()) == after


def test_a_state_survives_encoding() -> None:
    state = reassign(elect_unclean(elect(_STATE, alive=set(), min_isr=2), {3}), (4, 5), 2)
    assert PartitionState.from_json(state.to_json()) == state
