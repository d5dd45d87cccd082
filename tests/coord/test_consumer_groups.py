"""Consumer groups: what a heartbeat is answered, and what becomes of the group."""

from __future__ import annotations

import pytest

from harness.consumer_agents import Agent, step_together
from harness.group_stage import Stage, a_config
from ottla.coord.config import ConsumerGroupConfig, GroupCoordinatorConfig
from ottla.coord.consumer import coordinator
from ottla.coord.group_shard import MemberIdentity
from ottla.protocol.errors import ErrorCode


@pytest.fixture
def stage() -> Stage:
    stage = Stage(a_config(assignment_interval_ms=0))
    stage.create_topic("orders", 3)
    return stage


def test_members_share_the_partitions_and_revoke_before_others_are_assigned(stage):
    anna, bert = Agent(stage, "anna"), Agent(stage, "bert")

    assert anna.shown(anna.join()) == "1 [0, 1, 2]"
    assert bert.shown(bert.join()) == "2 []"
    assert anna.shown(anna.beat()) == "1 [0, 1]"
    assert anna.shown(anna.beat()) == "1"
    anna.owned = frozenset(stage.group.target_of("anna") | stage.group.target_of("bert"))
    assert anna.shown(anna.beat()) == "1", "it still owns all"
    anna.owned = anna.assigned
    assert anna.shown(anna.beat()) == "2"
    assert bert.shown(bert.beat()) == "2 [2]"
    assert stage.state.value == "Stable"
    assert bert.shown(bert.leave()) == "-1"
    assert anna.shown(anna.beat()) == "3 [0, 1, 2]"


def test_a_rebalance_is_logged_when_it_ends(stage):
    anna, bert = Agent(stage, "anna"), Agent(stage, "bert")
    anna.join()
    bert.join()
    stage.wait(1500)
    for agent in (anna, anna, bert):
        agent.step()
    anna.leave()
    bert.leave()

    logged = [(one.message, dict(one.fields)) for one in stage.messages]

    assert [(message, fields["reason"]) for message, fields in logged] == [
        ("Group rebalanced", "member anna joined"),
        ("Group rebalanced", "member bert joined"),
        ("Group is empty", "member anna left"),
    ]
    assert logged[1][1] == {
        "group": "g",
        "protocol": "consumer",
        "reason": "member bert joined",
        "members": 2,
        "epoch": 2,
        "milliseconds": 1500,
    }


def test_the_target_is_computed_once_per_interval():
    stage = Stage(a_config(assignment_interval_ms=1000))
    stage.create_topic("orders", 4)
    agents = [Agent(stage, name) for name in "abcd"]

    for agent in agents:
        agent.join()

    assert stage.state.value == "Assigning"
    assert (stage.group.epoch, stage.group.assignment_epoch) == (4, 1)
    stage.wait(1000)
    assert stage.state.value == "Reconciling"
    assert stage.group.assignment_epoch == 4
    for _round in range(3):
        for agent in agents:
            assert agent.step() == "NONE"
    assert sorted(len(agent.assigned) for agent in agents) == [1, 1, 1, 1]
    assert stage.state.value == "Stable"


def test_one_large_target_at_a_time_is_computed_and_applied(stage, monkeypatch):
    """Also while the group changes: it gets targets, though for what it was."""
    stage.create_topic("bills", 3)
    anna, bert, carl = (Agent(stage, name) for name in ("anna", "bert", "carl"))
    anna.join()
    bert.join(topics=("orders", "bills"))
    monkeypatch.setattr(coordinator, "_MAX_WORK", 0)
    stage.computes = True
    carl.join()
    assert len(stage.computing) == 1
    bert.beat(topics=("bills",))
    anna.beat(topics=("orders", "bills"))
    assert len(stage.computing) == 1, "the next one follows it"
    epoch, target = stage.group.assignment_epoch, stage.group.targets["bert"]

    stage.complete_computation()

    assert epoch < stage.group.assignment_epoch < stage.group.epoch
    assert stage.group.targets["bert"] == target, "it subscribes to something else by now"
    assert stage.group.targets["carl"]
    stage.complete_computation()
    assert stage.group.assignment_epoch == stage.group.epoch
    assert not stage.computing
    assert sum(map(len, stage.group.targets.values())) == 6


def test_a_first_target_that_is_large_comes_with_a_later_heartbeat(stage, monkeypatch):
    monkeypatch.setattr(coordinator, "_MAX_WORK", 0)
    stage.computes = True
    anna, bert = Agent(stage, "anna"), Agent(stage, "bert")

    assert anna.shown(anna.join()) == "1 []"
    assert bert.shown(bert.join()) == "1 []"
    stage.complete_computation()
    assert anna.shown(anna.beat()) == "2 [0, 1, 2]"
    stage.complete_computation()
    assert anna.shown(anna.beat()) == "2 [0, 1]"
    assert stage.state.value == "Reconciling"
    assert not stage.computing


def test_heartbeats_that_arrive_at_once_are_one_append_and_one_target(stage):
    agents = [Agent(stage, f"m{number:03}") for number in range(200)]
    agents[0].join()
    appends = []
    stage.on_append = appends.append
    stage.create_topic("orders", 400)

    assert set(step_together(stage, agents)) == {"NONE"}
    assert len(appends) == 1
    assert (stage.group.epoch, len(stage.group.members)) == (2, 200)
    for _round in range(3):
        step_together(stage, agents)
    assert stage.state.value == "Stable"
    assert {len(agent.assigned) for agent in agents} == {2}
    assert len(appends) <= 4
    step_together(stage, agents)
    assert len(appends) <= 4, "nothing has changed"


def test_what_cannot_share_an_append_comes_after_it(stage):
    anna, bert, carl = (Agent(stage, name) for name in ("anna", "bert", "carl"))
    stage.gathers = True
    calls = [
        anna.join(),
        bert.join(),
        anna.join(),  # A second one of the same member.
        carl.join(regex="orders.*", topics=None),
        bert.leave(),
        stage.commit("anna", MemberIdentity("anna", None, 1), {("orders", 0): 5}),
    ]
    stage.gathers = False
    stage.complete_gathered()

    assert [call.answer and call.what for call in calls[:5]] == ["consumer heartbeat"] * 5
    assert [call.code for call in calls[:5]] == ["NONE"] * 5
    assert sorted(stage.group.members) == ["anna", "carl"]
    assert bert.shown(calls[4]) == "-1"


def test_heartbeats_that_share_an_append_fail_with_it(stage):
    anna, bert = Agent(stage, "anna"), Agent(stage, "bert")
    anna.join()
    stage.holds = True
    assert step_together(stage, [anna, bert]) == ["NONE", "waits"], "one of them changes nothing"
    late = Agent(stage, "late")
    call = late.join()
    assert call.answer is None

    stage.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert bert.last.code == "COORDINATOR_NOT_AVAILABLE"
    assert list(stage.group.members) == ["anna"]
    stage.release_all()
    assert call.code == "NONE"
    assert sorted(stage.group.members) == ["anna", "late"]


INVALID = {
    "a rebalance timeout of -1": {"rebalance_timeout_ms": -1},
    "partitions that are null": {"owned": None},
    "no subscription": {"topics": None},
    "an epoch below -2": {"epoch": -3},
    "epoch -2 without an instance id": {"epoch": -2},
}


@pytest.mark.parametrize("case", INVALID)
def test_an_invalid_heartbeat_is_refused(stage, case):
    anna = Agent(stage, "anna")

    call = anna.join(**INVALID[case])

    assert call.code == "INVALID_REQUEST"
    assert call.answer.assignment is None
    assert call.answer.member_id is None
    assert not stage.shard.groups


def test_an_unknown_assignor_is_refused_and_the_known_ones_are_named(stage):
    call = Agent(stage, "anna", assignor="sticky").join()

    assert call.code == "UNSUPPORTED_ASSIGNOR"
    assert "uniform, range" in call.answer.error_message


def test_members_are_fenced_by_their_epoch(stage):
    anna, bert = Agent(stage, "anna"), Agent(stage, "bert")
    anna.join()
    bert.join()
    for agent in (anna, anna, bert, anna):
        agent.step()
    assert (anna.epoch, bert.epoch) == (2, 2)

    assert anna.send(epoch=3).code == "FENCED_MEMBER_EPOCH"
    assert anna.send(epoch=1).code == "FENCED_MEMBER_EPOCH", "nothing is reported"
    assert anna.send(epoch=1, owned=bert.assigned).code == "FENCED_MEMBER_EPOCH"
    assert anna.shown(anna.send(epoch=1, owned=anna.assigned)) == "2", "the response was lost"
    assert anna.send(member_id="carl").code == "UNKNOWN_MEMBER_ID"
    assert anna.send(group_id="other").code == "GROUP_ID_NOT_FOUND"
    assert anna.send(instance_id="i").code == "UNKNOWN_MEMBER_ID"


def test_a_member_that_joins_again_is_told_everything(stage):
    anna = Agent(stage, "anna")
    anna.join()

    assert anna.shown(anna.join()) == "1 [0, 1, 2]"
    full = {"rebalance_timeout_ms": 1000, "topics": ("orders",), "owned": anna.assigned}
    assert anna.shown(anna.send(**full)) == "1 [0, 1, 2]"


def test_a_member_without_heartbeats_is_removed(stage):
    anna, bert = Agent(stage, "anna"), Agent(stage, "bert")
    anna.join()
    bert.join()
    stage.wait(44_000)
    anna.step()
    stage.wait(1000)

    assert list(stage.group.members) == ["anna"]
    assert bert.send().code == "UNKNOWN_MEMBER_ID"
    anna.step()
    assert anna.indexes == [0, 1, 2]


def test_a_member_that_does_not_revoke_in_time_is_removed(stage):
    anna, bert = Agent(stage, "anna", rebalance_ms=10_000), Agent(stage, "bert")
    anna.join()
    bert.join()
    assert anna.beat(owned=anna.assigned).code == "NONE"
    stage.wait(9_000)
    anna.send()
    assert "anna" in stage.group.members

    stage.wait(1_000)

    assert anna.send().code == "UNKNOWN_MEMBER_ID"
    bert.step()
    assert bert.indexes == [0, 1, 2]


def test_a_static_member_that_restarts_keeps_its_partitions(stage):
    anna, bert = Agent(stage, "anna", instance_id="a"), Agent(stage, "bert", instance_id="b")
    anna.join()
    bert.join()
    for agent in (anna, anna, bert, anna):
        agent.step()
    before, epoch = anna.indexes, stage.group.epoch

    again = Agent(stage, "anna2", instance_id="a")
    assert again.join().code == "UNRELEASED_INSTANCE_ID"
    assert anna.shown(anna.leave(-2)) == "-2"
    bert.step()
    assert len(bert.indexes) == 1 or before == [0], "its partitions are reserved"
    again.join()

    assert again.indexes == before
    assert stage.group.epoch == epoch, "no rebalance"
    assert anna.send(epoch=epoch).code == "FENCED_INSTANCE_ID"
    assert anna.send(epoch=epoch, instance_id=None).code == "UNKNOWN_MEMBER_ID"


def test_a_static_member_that_does_not_return_is_removed(stage):
    anna, bert = Agent(stage, "anna", instance_id="a"), Agent(stage, "bert")
    anna.join()
    bert.join()
    anna.leave(-2)
    stage.wait(44_000)
    bert.step()
    stage.wait(1_000)
    bert.step()

    assert bert.indexes == [0, 1, 2]


def test_a_group_has_no_more_members_than_allowed():
    stage = Stage(GroupCoordinatorConfig(consumer=ConsumerGroupConfig(max_size=1)))
    Agent(stage, "anna").join()

    assert Agent(stage, "bert").join().code == "GROUP_MAX_SIZE_REACHED"


def test_topics_that_come_and_grow_are_assigned(stage):
    anna = Agent(stage, "anna", topics=("orders", "bills"))
    anna.join()

    stage.create_topic("bills", 1)
    anna.step()
    assert len(anna.assigned) == 4
    stage.create_topic("orders", 5)
    anna.step()
    assert len(anna.assigned) == 6


def test_a_subscription_can_be_changed(stage):
    stage.create_topic("bills", 2)
    anna = Agent(stage, "anna")
    anna.join()

    anna.read(anna.send(topics=("bills",), owned=anna.assigned))
    anna.step()
    anna.step()

    assert anna.indexes == [0, 1]
    assert {tp.topic_id for tp in anna.assigned} == {stage.image.topics["bills"].id}


def test_a_regular_expression_matches_whole_names_of_present_and_future_topics(stage):
    stage.create_topic("orders-old", 1)
    anna = Agent(stage, "anna", topics=None, regex="orders")

    anna.join()
    assert anna.indexes == [0, 1, 2]
    anna.read(anna.send(regex="orders-.*", owned=anna.assigned))
    for _round in range(2):
        anna.step()
    assert anna.indexes == [0]
    assert list(stage.group.regexes) == ["orders-.*"]
    stage.create_topic("orders-new", 2)
    for _round in range(2):
        anna.step()

    assert len(anna.assigned) == 3


def test_memory_is_charged_for_what_regular_expressions_match(stage):
    for number in range(100):
        stage.create_topic(f"orders-{number}", 1)
    anna, bert = (Agent(stage, name, topics=None) for name in ("anna", "bert"))
    anna.join(regex="none")
    before = stage.group.size_bytes
    bert.join(regex="orders.*")
    assert stage.group.size_bytes - before > 101 * 50
    bert.leave()
    anna.step()
    assert stage.group.size_bytes == before

    stage.shard._has_memory = lambda size_bytes, _is_member: size_bytes < 5000
    assert bert.join(regex="(orders).*").code == "COORDINATOR_NOT_AVAILABLE"
    assert bert.join(regex="orders-1.").code == "NONE"


def test_an_invalid_regular_expression_is_refused(stage):
    call = Agent(stage, "anna", topics=None, regex="(?=orders)").join()

    assert call.code == "INVALID_REGULAR_EXPRESSION"
    assert not stage.shard.groups


def test_the_assignor_that_most_members_prefer_is_used(stage):
    stage.create_topic("bills", 3)
    topics = ("bills", "orders")
    names = {"a": "range", "b": "range", "c": None}
    agents = [Agent(stage, name, topics=topics, assignor=one) for name, one in names.items()]
    for agent in agents:
        agent.join()
    for _round in range(4):
        for agent in agents:
            agent.step()

    assert [agent.indexes for agent in agents] == [[0, 0], [1, 1], [2, 2]]


def test_a_group_survives_a_reload(stage):
    anna, bert = Agent(stage, "anna"), Agent(stage, "bert", instance_id="b")
    anna.join()
    bert.join()
    anna.step()

    stage.restart()

    assert stage.state.value == "Reconciling"
    for agent in (anna, bert):
        assert agent.step() == "NONE"
    assert sorted(anna.indexes + bert.indexes) == [0, 1, 2]
    bert.step()
    assert stage.state.value == "Stable"


def test_a_heartbeat_is_answered_when_its_records_are_durable(stage):
    anna = Agent(stage, "anna")
    stage.holds = True

    joining = anna.join()
    again = anna.send(epoch=1)

    assert joining.answer is None
    assert again.answer is None, "it waits for its turn"
    stage.release()
    assert anna.shown(joining) == "1 [0, 1, 2]"
    assert anna.shown(again) == "1"


def test_nothing_has_changed_if_an_append_fails(stage):
    anna = Agent(stage, "anna")
    stage.holds = True
    joining = anna.join()

    stage.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    stage.holds = False

    assert joining.code == "COORDINATOR_NOT_AVAILABLE"
    assert not stage.shard.groups
    assert anna.shown(anna.join()) == "1 [0, 1, 2]"


class TestOffsets:
    def test_the_epochs_in_which_a_member_has_had_the_partition_count(self, stage):
        anna, bert = Agent(stage, "anna"), Agent(stage, "bert")
        anna.join()
        bert.join()
        for agent in (anna, anna, bert, anna):
            agent.step()
        kept, (lost,) = anna.indexes, bert.indexes

        def commit(agent: Agent, partition: int, epoch: int) -> str:
            topic_id = stage.image.topics["orders"].id
            answer = agent.commit("orders", partition, 7, epoch=epoch, topic_id=topic_id).answer
            return next(iter(answer.values())).name

        assert commit(anna, kept[0], 2) == "NONE"
        assert commit(anna, kept[0], 1) == "NONE"
        assert commit(anna, lost, 1) == "STALE_MEMBER_EPOCH"
        assert commit(bert, lost, 1) == "STALE_MEMBER_EPOCH"
        assert commit(bert, lost, 3) == "STALE_MEMBER_EPOCH"
        assert commit(bert, lost, 2) == "NONE"

    def test_commits_are_checked(self, stage):
        anna = Agent(stage, "anna")
        nobody = MemberIdentity("", None, -1)
        assert stage.commit("x", nobody, {("orders", 0): 3}).answer[("orders", 0)].name == "NONE"
        anna.join()

        def code(identity: MemberIdentity, version: int = 9) -> str:
            return (
                stage.commit("x", identity, {("orders", 0): 5}, version=version)
                .answer[("orders", 0)]
                .name
            )

        assert code(nobody) == "UNKNOWN_MEMBER_ID"
        assert code(MemberIdentity("bert", None, 1)) == "UNKNOWN_MEMBER_ID"
        assert code(MemberIdentity("anna", None, 1), version=8) == "UNSUPPORTED_VERSION"
        assert code(MemberIdentity("anna", None, 1)) == "NONE"
        assert stage.committed() == {("orders", 0): 5}

    def test_deletion_spares_members_and_their_topics(self, stage):
        anna = Agent(stage, "anna")
        anna.join()
        anna.commit("orders", 0, 5)

        assert stage.delete_groups("admin", "g").answer["g"].name == "NON_EMPTY_GROUP"
        _code, codes = stage.delete_offsets("admin", ("orders", 0)).answer
        assert codes["orders", 0].name == "GROUP_SUBSCRIBED_TO_TOPIC"
        anna.leave()
        assert stage.delete_groups("admin", "g").answer["g"].name == "NONE"
        assert not stage.shard.groups
        stage.restart()
        assert not stage.shard.groups
        assert not stage.committed()

    def test_offsets_survive_a_change_of_the_protocol(self, stage):
        anna = Agent(stage, "anna")
        anna.join()
        anna.commit("orders", 0, 5)
        anna.leave()

        first = stage.join("carl", version=3)
        assert stage.group.type == "classic"
        assert stage.committed() == {("orders", 0): 5}
        stage.leave("carl", (stage.group.leader, None))
        stage.wait(60_000)
        if first.answer is None:
            raise AssertionError
        anna.join()

        assert stage.group.type == "consumer"
        assert stage.committed() == {("orders", 0): 5}
        stage.restart()
        assert stage.group.type == "consumer"
        assert stage.committed() == {("orders", 0): 5}
