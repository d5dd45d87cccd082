"""Groups that change their protocol, with members of both in them."""

from __future__ import annotations

import pytest

from harness.consumer_agents import Agent, Classic
from harness.group_stage import Stage, a_config
from ottla.coord.config import MigrationPolicy


def a_stage(**configs) -> Stage:
    stage = Stage(a_config(assignment_interval_ms=0, initial_rebalance_delay_ms=0, **configs))
    stage.create_topic("orders", 4)
    return stage


@pytest.fixture
def stage() -> Stage:
    return a_stage()


def a_classic_group(stage: Stage) -> tuple[Classic, Classic]:
    lea, fay = Classic(stage, "lea"), Classic(stage, "fay")
    assert lea.join() == "NONE"
    assert fay.join() == "waits"
    assert lea.join() == "NONE"
    assert fay.joined() == "NONE"
    assert lea.sync({lea.member_id: [0, 1], fay.member_id: [2, 3]}) == "NONE"
    assert fay.sync() == "NONE"
    return lea, fay


def test_a_live_group_is_upgraded_and_its_members_go_on(stage):
    lea, fay = a_classic_group(stage)
    stage.commit("lea", lea.identity, {("orders", 0): 5})
    anna = Agent(stage, "anna")

    assert anna.join().code == "NONE"

    group = stage.group
    assert group.type == "consumer"
    assert {member.id: member.is_classic for member in group.members.values()} == {
        lea.member_id: True,
        fay.member_id: True,
        "anna": False,
    }
    assert anna.indexes == [], "nothing is released yet"
    assert stage.committed() == {("orders", 0): 5}
    for _round in range(3):
        lea.follow()
        fay.follow()
        anna.step()
    assert sorted(lea.assigned + fay.assigned + anna.indexes) == [0, 1, 2, 3]
    assert stage.state.value == "Stable"
    assert lea.beat() == "NONE"
    assert stage.messages[-1].fields["reason"] == "member anna joined"


def test_a_group_is_downgraded_when_its_last_other_member_leaves(stage):
    lea, fay = a_classic_group(stage)
    anna = Agent(stage, "anna")
    anna.join()
    for _round in range(3):
        lea.follow()
        fay.follow()
        anna.step()
    stage.commit("lea", lea.identity, {("orders", 0): 5})

    anna.leave()

    assert stage.group.type == "classic"
    assert stage.state.value == "PreparingRebalance"
    assert lea.beat() == "REBALANCE_IN_PROGRESS"
    assert lea.join() == "waits"
    assert fay.join() == "NONE"
    assert lea.joined() == "NONE"
    leader, other = (lea, fay) if stage.group.leader == lea.member_id else (fay, lea)
    assert leader.sync({lea.member_id: [0, 1], fay.member_id: [2, 3]}) == "NONE"
    assert other.sync() == "NONE"
    assert stage.committed() == {("orders", 0): 5}
    stage.restart()
    assert stage.group.type == "classic"
    assert stage.state.value == "Stable"
    assert stage.committed() == {("orders", 0): 5}


def test_a_classic_member_joins_a_consumer_group(stage):
    anna, carl = Agent(stage, "anna"), Classic(stage, "carl")
    anna.join()

    assert carl.join() == "NONE"
    assert carl.sync() == "NONE"
    for _round in range(3):
        anna.step()
        carl.follow()

    assert sorted(carl.assigned + anna.indexes) == [0, 1, 2, 3]
    assert len(carl.assigned) == 2
    stage.restart()
    assert carl.beat() == "NONE"
    assert carl.sync() == "NONE"
    stage.leave("carl", (carl.member_id, None))
    anna.step()
    assert anna.indexes == [0, 1, 2, 3]


def test_a_classic_member_that_does_not_join_again_is_removed(stage):
    lea, fay = a_classic_group(stage)
    anna = Agent(stage, "anna")
    anna.join()
    assert lea.beat() == "REBALANCE_IN_PROGRESS"

    for _second in range(12):
        stage.wait(5_000)
        lea.beat()
        fay.follow()
        anna.step()

    assert lea.beat() == "UNKNOWN_MEMBER_ID"
    assert sorted(fay.assigned + anna.indexes) == [0, 1, 2, 3]


def test_a_static_member_changes_its_protocol_and_back(stage):
    old = Classic(stage, "old", instance_id="i")
    assert old.join() == "NONE"
    assert old.sync({old.member_id: [0, 1, 2, 3]}) == "NONE"

    new = Agent(stage, "new", instance_id="i")
    assert new.join().code == "NONE"
    assert new.indexes == [0, 1, 2, 3]
    assert list(stage.group.members) == ["new"]
    assert old.beat() == "FENCED_INSTANCE_ID"
    new.leave(-2)
    old.member_id = ""
    assert old.join() == "UNKNOWN_MEMBER_ID", "the group has become a classic one"
    assert stage.group.type == "classic"
    assert old.join() == "NONE"


@pytest.mark.parametrize("policy", ["downgrade", "disabled"])
def test_the_policy_may_forbid_an_upgrade(policy):
    stage = a_stage(migration_policy=MigrationPolicy(policy))
    a_classic_group(stage)

    call = Agent(stage, "anna").join()

    assert call.code == "GROUP_ID_NOT_FOUND"
    assert "group.consumer.migration.policy" in call.answer.error_message
    assert stage.group.type == "classic"


def test_the_policy_may_forbid_a_downgrade():
    stage = a_stage(migration_policy=MigrationPolicy.UPGRADE)
    lea, fay = a_classic_group(stage)
    anna = Agent(stage, "anna")
    anna.join()
    anna.leave()

    assert stage.group.type == "consumer"
    for _round in range(3):
        lea.follow()
        fay.follow()
    assert sorted(lea.assigned + fay.assigned) == [0, 1, 2, 3]


def test_a_group_of_another_type_is_not_upgraded(stage):
    stage.join("worker", version=3, protocol_type="connect")

    call = Agent(stage, "anna").join()

    assert call.code == "GROUP_ID_NOT_FOUND"
    assert "'connect'" in call.answer.error_message


def test_requests_wait_while_the_group_is_converted(stage):
    lea, _fay = a_classic_group(stage)
    stage.holds = True
    anna = Agent(stage, "anna")
    joining = anna.join()

    beating = stage.heartbeat("lea", lea.identity)
    stage.wait(9_000)

    assert joining.answer is None
    assert beating.answer is None
    stage.holds = False
    stage.release_all()
    assert anna.last.code == "NONE"
    assert beating.code == "REBALANCE_IN_PROGRESS"
