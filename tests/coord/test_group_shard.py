"""What the coordinator allows, and to whom. Who does what when is told in scenarios/."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.group_stage import DAY_MS, EPOCH_MS, Stage, a_config, subscription
from ottla.coord.group_shard import MemberIdentity, subscribed_topics
from ottla.coord.metadata_image import TopicPartition
from ottla.coord.records import CommittedOffset, OffsetRecord, decode_record, encode_record
from ottla.coord.states import GroupState
from ottla.protocol.errors import DecodeError, ErrorCode

NOBODY = MemberIdentity("", None, -1)
SOMEBODY = MemberIdentity("anna-1", None, 1)


def a_stage(**settings) -> Stage:
    return Stage(a_config(initial_rebalance_delay_ms=0, **settings))


def a_member(stage: Stage, name: str = "anna", group_id: str = "g", **traits) -> MemberIdentity:
    """Somebody who has a group to themselves."""
    joined = stage.join(name, version=3, group_id=group_id, **traits).answer
    identity = MemberIdentity(joined.member_id, None, joined.generation_id)
    stage.sync(name, identity, group_id=group_id)
    return identity


def codes_of(call) -> list[str]:
    return [code.name for code in call.answer.values()]


def test_a_group_has_a_name():
    stage = a_stage()

    assert stage.join("anna", group_id="").code == "INVALID_GROUP_ID"
    assert stage.sync("anna", SOMEBODY, group_id="").code == "INVALID_GROUP_ID"
    assert stage.heartbeat("anna", SOMEBODY, group_id="").code == "INVALID_GROUP_ID"
    assert stage.leave("anna", ("anna-1", None), group_id="").code == "INVALID_GROUP_ID"
    assert codes_of(stage.delete_groups("admin", "")) == ["INVALID_GROUP_ID"]


def test_a_group_that_is_not_there_has_no_members():
    stage = a_stage()

    assert stage.join("anna", "anna-1").code == "UNKNOWN_MEMBER_ID"
    assert stage.sync("anna", SOMEBODY).code == "UNKNOWN_MEMBER_ID"
    assert stage.heartbeat("anna", SOMEBODY).code == "UNKNOWN_MEMBER_ID"
    assert codes_of(stage.commit("anna", SOMEBODY, {("orders", 0): 1})) == ["GROUP_ID_NOT_FOUND"]
    assert stage.shard.groups == {}


def test_each_who_leaves_a_group_that_is_not_there_is_told_so():
    answer = a_stage().leave("admin", ("anna-1", None), ("", "b")).answer

    assert answer.error_code == ErrorCode.NONE
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in answer.members] == [
        ("anna-1", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", "b", ErrorCode.UNKNOWN_MEMBER_ID),
    ]


def test_of_several_who_leave_each_gets_an_answer_of_their_own():
    stage = a_stage()
    anna = a_member(stage)
    stage.join("bert", instance_id="b")

    answer = stage.leave("admin", (anna.member_id, None), ("nobody", None), ("", "b")).answer

    assert [m.error_code for m in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert stage.state is GroupState.EMPTY


def test_there_are_only_so_many_groups():
    stage = a_stage(max_groups=2)
    a_member(stage, group_id="one")
    stage.commit("somebody", NOBODY, {("orders", 0): 1}, group_id="two")

    assert stage.join("anna", group_id="three").code == "GROUP_MAX_SIZE_REACHED"
    refused = stage.commit("somebody", NOBODY, {("orders", 0): 1}, group_id="three")
    assert codes_of(refused) == ["GROUP_MAX_SIZE_REACHED"]
    assert stage.join("bert", version=4, group_id="two").code == "MEMBER_ID_REQUIRED"


@pytest.mark.parametrize("session_ms", [9, 21])
def test_a_session_is_neither_too_short_nor_too_long(session_ms):
    stage = a_stage(min_session_timeout_ms=10, max_session_timeout_ms=20)

    code = stage.join("anna", version=3, session_ms=session_ms).code

    assert code == "INVALID_SESSION_TIMEOUT"
    assert stage.shard.groups == {}


@pytest.mark.parametrize("session_ms", [10, 20])
def test_a_session_is_as_short_or_as_long_as_is_allowed(session_ms):
    stage = a_stage(min_session_timeout_ms=10, max_session_timeout_ms=20)

    assert stage.join("anna", version=3, session_ms=session_ms).code == "NONE"


def test_settings_may_change_at_any_time():
    stage = a_stage(max_size=1)
    a_member(stage)
    assert stage.join("bert").code == "GROUP_MAX_SIZE_REACHED"

    stage.shard.config = a_config(max_size=2)

    assert stage.join("bert").code == "MEMBER_ID_REQUIRED"


def test_text_with_a_commit_has_a_largest_size_in_bytes():
    stage = a_stage(offset_metadata_max_bytes=4)

    assert codes_of(stage.commit("somebody", NOBODY, {("orders", 0): 1}, "née")) == ["NONE"]
    refused = stage.commit("somebody", NOBODY, {("orders", 0): 2}, "nées")
    assert codes_of(refused) == ["OFFSET_METADATA_TOO_LARGE"]
    assert stage.shard.offsets.of_group("g")["orders", 0].metadata == "née"


def test_a_group_whose_only_commit_was_refused_is_not_there():
    stage = a_stage(offset_metadata_max_bytes=4)

    stage.commit("somebody", NOBODY, {("orders", 0): 1}, "much too long")

    assert stage.shard.groups == {}


def test_a_group_whose_only_commit_was_not_written_is_not_there():
    stage = a_stage()
    stage.holds = True
    call = stage.commit("somebody", NOBODY, {("orders", 0): 1})

    stage.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    assert codes_of(call) == ["COORDINATOR_NOT_AVAILABLE"]
    assert stage.shard.groups == {}


def test_a_group_that_was_refused_while_its_first_commit_is_written_is_there_for_that():
    stage = a_stage()
    stage.holds = True
    stage.commit("somebody", NOBODY, {("orders", 0): 1})
    stage.join("anna", session_ms=1)

    stage.release()

    assert stage.state is GroupState.EMPTY
    assert stage.committed() == {("orders", 0): 1}


def test_assignments_are_handed_out_when_their_record_is_replayed():
    stage = a_stage()
    anna = a_member(stage)
    joins = [stage.join("bert", version=3), stage.join("anna", anna.member_id)]
    bert, anna = (MemberIdentity(c.answer.member_id, None, c.answer.generation_id) for c in joins)
    stage.holds = True
    call = stage.sync("anna", anna, {anna.member_id: b"new"})
    waiting = stage.sync("bert", bert)
    (append,) = stage.held

    assert [m.assignment for m in append.records[0].metadata.members] == [b"new", b""]
    assert [m.assignment for m in stage.group.members.values()] == [b"", b""]
    assert stage.state is GroupState.COMPLETING_REBALANCE
    stage.release()

    assert stage.state is GroupState.STABLE
    assert [call.answer.assignment, waiting.answer.assignment] == [b"new", b""]


def test_waiting_members_are_refused_when_the_shard_is_unloaded():
    stage = a_stage()
    anna = a_member(stage)
    call = stage.join("bert", version=3)

    effects = stage.shard.refuse_waiting(ErrorCode.NOT_COORDINATOR)

    assert [(e.token, e.response.error_code) for e in effects] == [
        (call, ErrorCode.NOT_COORDINATOR)
    ]
    assert stage.heartbeat("anna", anna).code == "REBALANCE_IN_PROGRESS"


def test_a_record_that_is_replayed_twice_changes_nothing():
    stage = a_stage()
    anna = a_member(stage)
    stage.commit("anna", anna, {("orders", 0): 1})
    group, committed = stage.group, stage.committed()

    for key, value in stage.log:
        stage.shard.replay(decode_record(key, value))

    assert (stage.group, stage.state, stage.group.generation) == (group, GroupState.STABLE, 1)
    assert stage.committed() == committed


def test_groups_are_deleted_one_by_one_and_answered_together():
    stage = a_stage()
    a_member(stage, group_id="lively")
    for group_id in ("first", "second"):
        stage.commit("somebody", NOBODY, {("orders", 0): 1}, group_id=group_id)
    stage.holds = True
    call = stage.delete_groups("admin", "first", "lively", "second", "missing")

    stage.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert call.answer is None
    stage.release()

    assert {name: code.name for name, code in call.answer.items()} == {
        "first": "COORDINATOR_NOT_AVAILABLE",
        "lively": "NON_EMPTY_GROUP",
        "second": "NONE",
        "missing": "GROUP_ID_NOT_FOUND",
    }
    assert set(stage.shard.groups) == {"first", "lively"}


def test_a_topic_that_is_deleted_is_forgotten_by_all_groups():
    stage = a_stage()
    for group_id in ("first", "second"):
        offsets = {("orders", 0): 1, ("refunds", 0): 1}
        stage.commit("somebody", NOBODY, offsets, group_id=group_id)
    stage.commit("somebody", NOBODY, {("refunds", 1): 1}, group_id="third")

    stage.delete_topic("orders")

    assert stage.committed("first") == stage.committed("second") == {("refunds", 0): 1}
    assert stage.committed("third") == {("refunds", 1): 1}


@given(st.binary(max_size=20))
@example(b"")
@example(b"\0")
@example(b"\xff\xff")
@example(b"\x7f\xff" + subscription("orders")[2:])
def test_whatever_members_say_the_others_do_not_suffer(metadata):
    stage = a_stage(offsets_retention_ms=1)
    anna = a_member(stage, protocols=(("range", metadata),), session_ms=60_000)
    stage.commit("anna", anna, {("orders", 0): 1})
    stage.wait(10)

    stage.clean_up()
    (deleted,) = stage.delete_offsets("admin", ("orders", 0)).answer[1].values()

    topics = subscribed_topics(stage.group)
    assert ("orders" in topics if topics is not None else True) == bool(stage.committed())
    assert (deleted is ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC) == bool(stage.committed())


@pytest.mark.parametrize("version", [0, 1, 3, 9])
def test_of_a_subscription_it_matters_how_it_begins(version):
    metadata = bytes([0, version]) + subscription("orders", "refunds")[2:] + b"or not?"
    stage = a_stage()
    a_member(stage, protocols=(("range", metadata),))

    assert subscribed_topics(stage.group) == {"orders", "refunds"}


def test_offsets_of_a_group_that_nothing_else_is_known_of_expire_after_a_restart():
    stage = a_stage(offsets_retention_ms=7 * DAY_MS)
    committed = CommittedOffset(5, -1, "", EPOCH_MS)
    stage.log.append(encode_record(OffsetRecord("g", TopicPartition("orders", 0), committed)))
    stage.restart()

    stage.wait(7 * DAY_MS)
    stage.clean_up()

    assert stage.shard.groups == {}
    assert stage.committed() == {}


def test_records_of_unknown_kinds_are_left_alone_and_broken_ones_are_refused():
    assert decode_record(b"\0\x03whatever", b"") is None
    for key in (b"", b"\0\1\0\5"):
        with pytest.raises(DecodeError):
            decode_record(key, b"")
