"""A group shard: limits, validation and replay. See scenarios/ for rebalances."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness.group_stage import DAY_MS, EPOCH_MS, Stage, a_config, subscription
from ottla.coord.group_shard import MemberIdentity, subscribed_topics
from ottla.coord.metadata_image import TopicPartition
from ottla.coord.records import CommittedOffset, OffsetRecord, decode_record, encode_record
from ottla.coord.states import GroupState
from ottla.protocol.errors import DecodeError, ErrorCode

NO_MEMBER = MemberIdentity("", None, -1)
UNKNOWN_MEMBER = MemberIdentity("anna-1", None, 1)


def a_stage(**configs) -> Stage:
    return Stage(a_config(initial_rebalance_delay_ms=0, **configs))


def a_member(stage: Stage, name: str = "anna", group_id: str = "g", **traits) -> MemberIdentity:
    """The only member of a group."""
    joined = stage.join(name, version=3, group_id=group_id, **traits).answer
    identity = MemberIdentity(joined.member_id, None, joined.generation_id)
    stage.sync(name, identity, group_id=group_id)
    return identity


def codes_of(call) -> list[str]:
    return [code.name for code in call.answer.values()]


def test_an_empty_group_id_is_invalid():
    stage = a_stage()

    assert stage.join("anna", group_id="").code == "INVALID_GROUP_ID"
    assert stage.sync("anna", UNKNOWN_MEMBER, group_id="").code == "INVALID_GROUP_ID"
    assert stage.heartbeat("anna", UNKNOWN_MEMBER, group_id="").code == "INVALID_GROUP_ID"
    assert stage.leave("anna", ("anna-1", None), group_id="").code == "INVALID_GROUP_ID"
    assert codes_of(stage.delete_groups("admin", "")) == ["INVALID_GROUP_ID"]


def test_a_missing_group_has_no_members():
    stage = a_stage()

    assert stage.join("anna", "anna-1").code == "UNKNOWN_MEMBER_ID"
    assert stage.sync("anna", UNKNOWN_MEMBER).code == "UNKNOWN_MEMBER_ID"
    assert stage.heartbeat("anna", UNKNOWN_MEMBER).code == "UNKNOWN_MEMBER_ID"
    assert codes_of(stage.commit("anna", UNKNOWN_MEMBER, {("orders", 0): 1})) == [
        "GROUP_ID_NOT_FOUND"
    ]
    assert stage.shard.groups == {}


def test_leaving_a_missing_group_returns_unknown_member_id_for_each_member():
    answer = a_stage().leave("admin", ("anna-1", None), ("", "b")).answer

    assert answer.error_code == ErrorCode.NONE
    assert [(m.member_id, m.group_instance_id, m.error_code) for m in answer.members] == [
        ("anna-1", None, ErrorCode.UNKNOWN_MEMBER_ID),
        ("", "b", ErrorCode.UNKNOWN_MEMBER_ID),
    ]


def test_several_members_that_leave_get_a_result_each():
    stage = a_stage()
    anna = a_member(stage)
    stage.join("bert", instance_id="b")

    answer = stage.leave("admin", (anna.member_id, None), ("unknown", None), ("", "b")).answer

    assert [m.error_code for m in answer.members] == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.NONE,
    ]
    assert stage.state is GroupState.EMPTY


def test_ids_that_were_not_used_make_room_for_new_groups():
    stage = a_stage(max_groups=2)
    a_member(stage, group_id="one")
    for group_id in ("two", "three", "four"):
        assert stage.join("bert", version=4, group_id=group_id).code == "MEMBER_ID_REQUIRED"

    assert stage.shard.with_members == {"one", "four"}
    assert set(stage.shard.groups) == {"one", "four"}


def test_max_groups_limits_the_groups_with_members():
    stage = a_stage(max_groups=2)
    a_member(stage, group_id="one")
    stage.commit("somebody", NO_MEMBER, {("orders", 0): 1}, group_id="two")
    a_member(stage, group_id="two")

    # Clients try it again; with GROUP_MAX_SIZE_REACHED, some of them give up.
    assert stage.join("anna", group_id="three").code == "COORDINATOR_NOT_AVAILABLE"
    accepted = stage.commit("somebody", NO_MEMBER, {("orders", 0): 1}, group_id="three")
    assert codes_of(accepted) == ["NONE"]


def test_memory_is_charged_for_members_and_offsets_and_released_with_them():
    stage = a_stage()
    shard = stage.shard
    assert shard.size_bytes == 0
    anna = a_member(stage, group_id="one")
    with_member = shard.size_bytes
    assert with_member > 0
    assert shard.with_members == {"one"}
    stage.commit("somebody", NO_MEMBER, {("orders", 0): 1, ("orders", 1): 1}, group_id="two")
    assert shard.size_bytes > with_member
    stage.commit("somebody", NO_MEMBER, {("orders", 0): 2}, group_id="two")
    with_offsets = shard.size_bytes

    shard._has_memory = lambda _size_bytes, _is_member: False
    assert stage.join("bert", group_id="three").code == "COORDINATOR_NOT_AVAILABLE"
    refused = stage.commit("somebody", NO_MEMBER, {("orders", 0): 1}, group_id="three")
    assert codes_of(refused) == ["COORDINATOR_NOT_AVAILABLE"]
    # What is there already can be changed.
    changed = stage.commit("somebody", NO_MEMBER, {("orders", 0): 3}, group_id="two")
    assert codes_of(changed) == ["NONE"]
    assert shard.size_bytes == with_offsets

    stage.leave("admin", (anna.member_id, None), group_id="one")
    assert shard.with_members == set()
    stage.delete_groups("admin", "one", "two")
    assert (shard.size_bytes, shard.groups) == (0, {})


@pytest.mark.parametrize("session_ms", [9, 21])
def test_session_timeouts_outside_the_limits_are_refused(session_ms):
    stage = a_stage(min_session_timeout_ms=10, max_session_timeout_ms=20)

    code = stage.join("anna", version=3, session_ms=session_ms).code

    assert code == "INVALID_SESSION_TIMEOUT"
    assert stage.shard.groups == {}


def test_a_session_timeout_is_checked_before_the_group_is_looked_up():
    stage = a_stage(min_session_timeout_ms=10, max_session_timeout_ms=20)

    assert stage.join("anna", "no-such-member", session_ms=9).code == "INVALID_SESSION_TIMEOUT"


@pytest.mark.parametrize("session_ms", [10, 20])
def test_session_timeouts_at_the_limits_are_accepted(session_ms):
    stage = a_stage(min_session_timeout_ms=10, max_session_timeout_ms=20)

    assert stage.join("anna", version=3, session_ms=session_ms).code == "NONE"


def test_configs_can_change_at_any_time():
    stage = a_stage(max_size=1)
    a_member(stage)
    assert stage.join("bert").code == "GROUP_MAX_SIZE_REACHED"

    stage.shard.config = a_config(max_size=2)

    assert stage.join("bert").code == "MEMBER_ID_REQUIRED"


def test_the_metadata_of_a_commit_is_limited_in_bytes():
    stage = a_stage(offset_metadata_max_bytes=4)

    assert codes_of(stage.commit("somebody", NO_MEMBER, {("orders", 0): 1}, "née")) == ["NONE"]
    refused = stage.commit("somebody", NO_MEMBER, {("orders", 0): 2}, "nées")
    assert codes_of(refused) == ["OFFSET_METADATA_TOO_LARGE"]
    assert stage.shard.offsets.of_group("g")["orders", 0].metadata == "née"


def test_a_commit_that_is_refused_creates_no_group():
    stage = a_stage(offset_metadata_max_bytes=4)

    stage.commit("somebody", NO_MEMBER, {("orders", 0): 1}, "much too long")

    assert stage.shard.groups == {}


def test_a_commit_whose_append_fails_creates_no_group():
    stage = a_stage()
    stage.holds = True
    call = stage.commit("somebody", NO_MEMBER, {("orders", 0): 1})

    stage.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    assert codes_of(call) == ["COORDINATOR_NOT_AVAILABLE"]
    assert stage.shard.groups == {}


def test_a_refused_join_does_not_lose_a_first_commit_in_flight():
    stage = a_stage()
    stage.holds = True
    stage.commit("somebody", NO_MEMBER, {("orders", 0): 1})
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


def test_groups_are_deleted_in_one_append_each_and_answered_together():
    stage = a_stage()
    a_member(stage, group_id="active")
    for group_id in ("first", "second"):
        stage.commit("somebody", NO_MEMBER, {("orders", 0): 1}, group_id=group_id)
    stage.holds = True
    call = stage.delete_groups("admin", "first", "active", "second", "missing")

    stage.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert call.answer is None
    stage.release()

    assert {name: code.name for name, code in call.answer.items()} == {
        "first": "COORDINATOR_NOT_AVAILABLE",
        "active": "NON_EMPTY_GROUP",
        "second": "NONE",
        "missing": "GROUP_ID_NOT_FOUND",
    }
    assert set(stage.shard.groups) == {"first", "active"}


def test_deleting_a_topic_deletes_its_offsets_in_all_groups():
    stage = a_stage()
    for group_id in ("first", "second"):
        offsets = {("orders", 0): 1, ("refunds", 0): 1}
        stage.commit("somebody", NO_MEMBER, offsets, group_id=group_id)
    stage.commit("somebody", NO_MEMBER, {("refunds", 1): 1}, group_id="third")

    stage.delete_topic("orders")

    assert stage.committed("first") == stage.committed("second") == {("refunds", 0): 1}
    assert stage.committed("third") == {("refunds", 1): 1}


@given(st.binary(max_size=20))
@example(b"")
@example(b"\0")
@example(b"\xff\xff")
@example(b"\x7f\xff" + subscription("orders")[2:])
def test_invalid_member_metadata_harms_nobody_else(metadata):
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
def test_the_topics_of_a_subscription_are_decoded_in_any_version(version):
    metadata = bytes([0, version]) + subscription("orders", "refunds")[2:] + b"garbage"
    stage = a_stage()
    a_member(stage, protocols=(("range", metadata),))

    assert subscribed_topics(stage.group) == {"orders", "refunds"}


def test_offsets_without_a_group_record_expire_after_a_reload():
    stage = a_stage(offsets_retention_ms=7 * DAY_MS)
    committed = CommittedOffset(5, -1, "", EPOCH_MS)
    stage.log.append(encode_record(OffsetRecord("g", TopicPartition("orders", 0), committed)))
    stage.restart()

    stage.wait(7 * DAY_MS)
    stage.clean_up()

    assert stage.shard.groups == {}
    assert stage.committed() == {}


def test_records_of_unknown_kinds_are_ignored_and_broken_ones_are_refused():
    assert decode_record(b"\0\x03whatever", b"") is None
    for key in (b"", b"\0\1\0\5"):
        with pytest.raises(DecodeError):
            decode_record(key, b"")
