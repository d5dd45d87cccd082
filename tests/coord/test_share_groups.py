"""Share groups: what a heartbeat is answered, and who owns the state of a share partition."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

import pytest

from harness.group_stage import DAY_MS, HOST, MINUTE_MS, Call, Stage, a_config
from ottla.coord.config import ShareGroupConfig
from ottla.coord.consumer.assignors import MemberSubscription
from ottla.coord.consumer.coordinator import ConsumerHeartbeat
from ottla.coord.consumer.partitions import TopicIdPartition, partitions_of
from ottla.coord.effects import Reply
from ottla.coord.group_shard import MemberIdentity
from ottla.coord.share.assignor import assign_simple
from ottla.coord.share.coordinator import ShareHeartbeat
from ottla.coord.share.offset_reset import check_offset_reset, duration_ms_of
from ottla.coord.share.records import (
    ShareEpoch,
    ShareGroupRecord,
    ShareMemberMetadata,
    ShareMemberRecord,
    ShareStateRecord,
    decode_share_record,
    encode_share_record,
)
from ottla.coord.share.state import RecordState, ShareState, StateBatch
from ottla.protocol.errors import ErrorCode


@dataclass
class ShareAgent:
    """A member: what it subscribes to, and what it knows of its membership."""

    stage: Stage
    name: str
    topics: tuple[str, ...] = ("orders",)
    epoch: int = 0

    def send(self, epoch: int | None = None, topics: tuple[str, ...] | None = None) -> str:
        heartbeat = ShareHeartbeat(
            "g", self.name, self.epoch if epoch is None else epoch, self.name, HOST, None, topics
        )
        return self.shown(self.stage.share_heartbeat(self.name, heartbeat))

    def join(self) -> str:
        return self.send(0, self.topics)

    def beat(self) -> str:
        return self.send()

    def leave(self) -> str:
        return self.send(-1)

    def shown(self, call: Call) -> str:
        """An answer as text: the error, or the epoch and the partitions if there are any."""
        if call.answer is None:
            return "waiting"
        if call.answer.error_code:
            return call.code
        self.epoch = call.answer.member_epoch
        if call.answer.assignment is None:
            return f"{self.epoch}"
        partitions = partitions_of(call.answer.assignment.topic_partitions)
        return f"{self.epoch} {sorted(tp.partition for tp in partitions)}"


@pytest.fixture
def stage() -> Stage:
    stage = Stage()
    stage.create_topic("orders", 2)
    return stage


def tp_of(stage: Stage, index: int = 0) -> TopicIdPartition:
    return TopicIdPartition(stage.image.topics["orders"].id, index)


def read(stage: Stage, leader_epoch: int = 0, index: int = 0) -> Call:
    return stage.share_event(
        lambda groups, call: groups.read_state(
            "g",
            tp_of(stage, index),
            leader_epoch,
            lambda code, state: Reply(call, (code.name, state)),
            stage.now,
        )
    )


def write(stage: Stage, epochs: tuple[int, int], start: int, *batches: StateBatch) -> Call:
    return stage.share_event(
        lambda groups, call: groups.write_state(
            "g",
            tp_of(stage),
            epochs,
            start,
            batches,
            lambda code: Reply(call, code.name),
            stage.now,
        )
    )


def alter(stage: Stage, offset: int) -> Call:
    return stage.share_event(
        lambda groups, call: groups.alter_offsets(
            "g", {tp_of(stage): offset}, lambda code: Reply(call, code.name), stage.now
        )
    )


def delete(stage: Stage) -> Call:
    return stage.share_event(
        lambda groups, call: groups.delete_offsets(
            "g", {tp_of(stage).topic_id}, lambda code: Reply(call, code.name)
        )
    )


# Members.


def test_members_share_partitions(stage):
    anna, bert, carl = (ShareAgent(stage, name) for name in ("anna", "bert", "carl"))

    assert anna.join() == "1 [0, 1]"
    assert anna.beat() == "1"
    assert bert.join() == "2 [1]"
    assert anna.beat() == "2 [0]"
    assert carl.join() == "3 [0]", "there are more members than partitions"
    assert anna.beat() == bert.beat() == "3"
    assert stage.state.value == "Stable"
    assert anna.leave() == "-1"
    assert {bert.beat(), carl.beat()} == {"4"}
    stage.create_topic("orders", 4)
    assert bert.beat() == "5 [1, 2]"
    assert carl.beat() == "5 [0, 3]"
    for agent in (bert, carl):
        agent.leave()
    assert stage.state.value == "Empty"
    reasons = [one.fields["reason"] for one in stage.messages]
    assert reasons[-3:] == ["a subscribed topic changed", "member bert left", "member carl left"]


def test_a_member_changes_its_subscription(stage):
    stage.create_topic("bills", 1)
    anna = ShareAgent(stage, "anna")
    anna.join()
    assert anna.send(topics=("bills",)) == "2 [0]"
    assert stage.group.subscribed_topics() == {"bills"}
    assert anna.send(topics=("bills",)) == "2 [0]", "a full request is answered in full"


@pytest.mark.parametrize(
    ("epoch", "topics", "code"),
    [
        (0, None, "INVALID_REQUEST"),
        (0, (), "INVALID_REQUEST"),
        (-2, None, "INVALID_REQUEST"),
        (1, None, "GROUP_ID_NOT_FOUND"),
        (-1, None, "GROUP_ID_NOT_FOUND"),
    ],
)
def test_invalid_first_heartbeats(stage, epoch, topics, code):
    assert ShareAgent(stage, "anna").send(epoch, topics) == code
    assert "g" not in stage.shard.groups


def test_members_are_identified_and_fenced(stage):
    assert ShareAgent(stage, "").join() == "INVALID_REQUEST"
    assert ShareAgent(stage, "m" * 37).join() == "INVALID_REQUEST"
    anna, bert = ShareAgent(stage, "anna"), ShareAgent(stage, "bert")
    anna.join()
    assert bert.send(1) == bert.leave() == "UNKNOWN_MEMBER_ID"
    bert.join()
    assert anna.send(2) == "FENCED_MEMBER_EPOCH"
    assert anna.send(1) == "2 [0]"
    assert anna.send(1) == "2 [0]", "the previous epoch: the response may have been lost"
    ShareAgent(stage, "carl").join()
    anna.beat()
    assert anna.send(1) == "FENCED_MEMBER_EPOCH"
    assert anna.join() == "3 [0]"


def test_a_member_that_is_silent_is_removed(stage):
    anna, bert = ShareAgent(stage, "anna"), ShareAgent(stage, "bert")
    anna.join()
    bert.join()
    stage.wait(30_000)
    anna.beat()
    stage.wait(20_000)
    assert anna.beat() == "3 [0, 1]"
    assert bert.beat() == "UNKNOWN_MEMBER_ID"


def test_members_and_group_are_limited():
    stage = Stage(a_config(share=ShareGroupConfig(max_size=1), max_groups=1))
    stage.create_topic("orders", 1)
    anna = ShareAgent(stage, "anna")
    anna.join()
    assert ShareAgent(stage, "bert").join() == "GROUP_MAX_SIZE_REACHED"
    assert anna.join() == "1 [0]"
    other = ShareHeartbeat("other", "m", 0, topics=("orders",))
    assert stage.share_heartbeat("m", other).code == "COORDINATOR_NOT_AVAILABLE"


def test_a_restart_keeps_members_and_states(stage):
    anna, bert = ShareAgent(stage, "anna"), ShareAgent(stage, "bert")
    anna.join()
    bert.join()
    anna.beat()
    state = read(stage).answer[1]
    stage.restart()
    assert stage.group.states == {tp_of(stage): state}
    assert anna.beat() == "2 [0]"
    assert anna.beat() == "2"
    assert bert.send(7) == "FENCED_MEMBER_EPOCH"
    stage.wait(46_000)
    assert not stage.group.members


def test_an_append_that_fails_changes_nothing(stage):
    anna = ShareAgent(stage, "anna")
    stage.holds = True
    assert anna.join() == "waiting"
    second = stage.share_heartbeat("anna", ShareHeartbeat("g", "anna", 0, topics=("orders",)))
    stage.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert second.answer is None
    stage.release()
    assert anna.shown(second) == "1 [0, 1]"


def test_other_protocols_are_refused(stage):
    anna = ShareAgent(stage, "anna")
    anna.join()
    identity = MemberIdentity("anna", None, 1)
    beat = ConsumerHeartbeat(
        "g", "c", 0, rebalance_timeout_ms=1, topics=("orders",), owned=frozenset()
    )

    assert stage.join("c").code == "INCONSISTENT_GROUP_PROTOCOL"
    assert stage.sync("c", identity).code == "UNKNOWN_MEMBER_ID"
    assert stage.heartbeat("c", identity).code == "UNKNOWN_MEMBER_ID"
    (left,) = stage.leave("c", ("anna", None)).answer.members
    assert left.error_code == ErrorCode.UNKNOWN_MEMBER_ID
    assert stage.consumer_heartbeat("c", beat).code == "GROUP_ID_NOT_FOUND"
    codes = stage.commit("c", MemberIdentity("", None, -1), {("orders", 0): 1}).answer
    assert set(codes.values()) == {ErrorCode.GROUP_ID_NOT_FOUND}
    assert stage.delete_offsets("c", ("orders", 0)).answer[0] is ErrorCode.GROUP_ID_NOT_FOUND
    anna.leave()
    stage.join("c", group_id="classic")
    call = stage.share_heartbeat("m", ShareHeartbeat("classic", "m", 0, topics=("orders",)))
    assert call.code == "GROUP_ID_NOT_FOUND"


def test_delete_groups(stage):
    anna = ShareAgent(stage, "anna")
    anna.join()
    read(stage)
    assert stage.delete_groups("admin", "g").answer == {"g": ErrorCode.NON_EMPTY_GROUP}
    anna.leave()
    stage.holds = True
    read(stage)
    assert stage.delete_groups("admin", "g").answer == {"g": ErrorCode.COORDINATOR_NOT_AVAILABLE}
    stage.holds = False
    stage.release_all()
    assert stage.delete_groups("admin", "g").answer == {"g": ErrorCode.NONE}
    stage.restart()
    assert stage.shard.groups == {}
    assert (stage.shard.size_bytes, read(stage).answer[0]) == (0, "GROUP_ID_NOT_FOUND")


def test_a_group_expires_with_its_states(stage):
    anna = ShareAgent(stage, "anna")
    anna.join()
    read(stage)
    stage.clean_up()
    anna.leave()
    stage.wait(6 * DAY_MS)
    stage.clean_up()
    assert "g" in stage.shard.groups
    stage.wait(DAY_MS + MINUTE_MS)
    stage.clean_up()
    assert stage.shard.groups == {}


# States.


def test_reading_a_state_fences_who_read_it_before(stage):
    assert read(stage).answer == ("GROUP_ID_NOT_FOUND", None)
    ShareAgent(stage, "anna").join()
    code, first = read(stage).answer
    assert (code, first.start_offset, first.batches) == ("NONE", -1, ())
    done = StateBatch(5, 6, RecordState.ACKNOWLEDGED, 1)
    assert write(stage, (first.state_epoch, 0), 4, done).answer == "NONE"
    second = read(stage, leader_epoch=3).answer[1]
    assert (second.start_offset, second.batches, second.done_count) == (4, (done,), 2)
    assert second.state_epoch > first.state_epoch
    assert write(stage, (first.state_epoch, 0), 9).answer == "FENCED_STATE_EPOCH"
    assert write(stage, (second.state_epoch, 2), 9).answer == "FENCED_LEADER_EPOCH"
    assert read(stage, leader_epoch=2).answer[0] == "FENCED_LEADER_EPOCH"
    assert write(stage, (second.state_epoch, 3), 9).answer == "NONE"
    assert stage.group.states[tp_of(stage)].start_offset == 9


def test_a_read_waits_for_a_write_and_a_write_for_a_read(stage):
    ShareAgent(stage, "anna").join()
    epoch = read(stage).answer[1].state_epoch
    stage.holds = True
    written = write(stage, (epoch, 0), 7)
    another = read(stage)
    late = write(stage, (epoch, 0), 8)
    other = read(stage, index=1)
    stage.release()
    assert (written.answer, another.answer, other.answer) == ("NONE", None, None)
    stage.release_all()
    assert another.answer[1].start_offset == 7
    assert late.answer == "FENCED_STATE_EPOCH"
    assert other.answer[0] == "NONE"


def test_altered_and_deleted_offsets_fence_the_leader(stage):
    assert alter(stage, 3).answer == "NONE"
    anna = ShareAgent(stage, "anna")
    anna.join()
    assert alter(stage, 4).answer == delete(stage).answer == "NON_EMPTY_GROUP"
    state = read(stage).answer[1]
    assert state.start_offset == 3
    anna.leave()
    assert alter(stage, 5).answer == "NONE"
    assert write(stage, (state.state_epoch, 0), 9).answer == "FENCED_STATE_EPOCH"
    state = read(stage).answer[1]
    assert (state.start_offset, delete(stage).answer) == (5, "NONE")
    assert stage.group.states == {}
    assert write(stage, (state.state_epoch, 0), 9).answer == "FENCED_STATE_EPOCH"
    stage.wait(1000 * 10)
    again = read(stage).answer[1]
    assert (again.start_offset, again.state_epoch > state.state_epoch) == (-1, True)


def test_states_of_deleted_topics_are_removed(stage):
    ShareAgent(stage, "anna").join()
    read(stage)
    tp = tp_of(stage)
    for effect in stage.shard.delete_share_states(tp.topic_id.__eq__):
        for record in effect.records:
            stage.shard.replay(record)
    assert stage.group.states == {}


# Records, assignor, offset reset.


@pytest.mark.parametrize(
    "record",
    [
        ShareMemberRecord("g", "m", ShareMemberMetadata(None, "c", HOST, ("a", "b"))),
        ShareMemberRecord("g", "m", None),
        ShareGroupRecord("g", ShareEpoch(3, -5)),
        ShareGroupRecord("g", None),
        ShareStateRecord("g", TopicIdPartition(UUID(int=1), 2), None),
        ShareStateRecord(
            "g",
            TopicIdPartition(UUID(int=1), 2),
            ShareState(3, 4, 5, (StateBatch(5, 9, RecordState.AVAILABLE, 2),), 6, 7),
        ),
    ],
    ids=repr,
)
def test_records(record):
    assert decode_share_record(*encode_share_record(record)) == record


def test_the_assignor_gives_every_partition_and_every_member_something():
    topics = [UUID(int=1), UUID(int=2)]
    for member_count in range(1, 8):
        members = {f"m{n}": MemberSubscription(frozenset(topics)) for n in range(member_count)}
        assigned = assign_simple(members, {topics[0]: 3, topics[1]: 1})
        sizes = sorted(map(len, assigned.values()))
        assert sizes[-1] - sizes[0] <= 1
        assert len(frozenset().union(*assigned.values())) == 4
        kept = {n: MemberSubscription(one.topics, assigned[n]) for n, one in members.items()}
        assert assign_simple(kept, {topics[0]: 3, topics[1]: 1}) == assigned
    assert assign_simple({"m": MemberSubscription(frozenset())}, {}) == {"m": frozenset()}


@pytest.mark.parametrize(
    ("text", "ms"),
    [("PT1H", 3_600_000), ("P1DT2M3.5S", 86_523_500), ("pt0s", 0)],
)
def test_offset_reset_by_duration(text, ms):
    assert duration_ms_of(f"by_duration:{text}") == ms


@pytest.mark.parametrize(
    "text", ["", "none", "PT1H", "by_duration:", "by_duration:P", "by_duration:-PT1S"]
)
def test_invalid_offset_resets(text):
    with pytest.raises(ValueError, match="expected earliest"):
        check_offset_reset(text)
