"""Consumer groups under random events: joins, crashes, slow revocations, restarts of the broker.

Dynamic, static and classic members share a group, which changes its protocol with them. At any time
a partition has one owner at most, and the log says what the shard knows; when members behave for
long enough, every partition has an owner; and no commit that was acknowledged is lost.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.consumer_agents import Agent, Classic, step_together
from harness.group_stage import Stage, a_config, loaded
from ottla.coord.consumer import coordinator
from ottla.coord.group_shard import MemberIdentity
from ottla.protocol.errors import ErrorCode

names = st.sampled_from(["a", "b", "c", "d"])


class ConsumerGroupMachine(RuleBasedStateMachine):
    #: Whether targets are computed in a thread.
    computes = False

    @initialize(interval_ms=st.sampled_from([0, 1000]))
    def begin(self, interval_ms: int) -> None:
        self.stage = Stage(
            a_config(assignment_interval_ms=interval_ms, initial_rebalance_delay_ms=0)
        )
        self.stage.computes = self.computes
        self.patch = pytest.MonkeyPatch()
        if self.computes:
            self.patch.setattr(coordinator, "_MAX_WORK", 0)
        self.stage.create_topic("orders", 3)
        self.agents: dict[str, Agent] = {}
        self.classic: dict[str, Classic] = {}
        self.committed: dict[tuple[str, int], int] = {}
        self.commits: list[tuple[Any, tuple[str, int], int]] = []
        self.count = 0
        #: The group as it was last seen, and its assignment epoch.
        self.last: tuple[Any, int] = None, 0

    # Members.

    @rule(
        name=names,
        is_static=st.booleans(),
        regex=st.booleans(),
        assignor=st.sampled_from([None, "range"]),
    )
    def a_member_starts(
        self, name: str, is_static: bool, regex: bool, assignor: str | None
    ) -> None:
        self.classic.pop(name, None)
        self.count += 1
        agent = self.agents[name] = Agent(
            self.stage,
            name,
            topics=None if regex else ("orders", "bills"),
            regex="orders|bills" if regex else None,
            instance_id=name if is_static else None,
            assignor=assignor,
            member_id=f"{name}{self.count}",
            rebalance_ms=20_000,
        )
        agent.step()

    @rule(name=names, is_static=st.booleans())
    def a_classic_member_starts(self, name: str, is_static: bool) -> None:
        self.agents.pop(name, None)
        member = self.classic[name] = Classic(self.stage, name, name if is_static else None)
        member.join()

    @rule()
    def members_go_on(self) -> None:
        for agent in self.agents.values():
            if not self.stage.holds:
                agent.step()
        for member in self.classic.values():
            self.follow(member)

    @rule()
    @precondition(lambda self: not self.stage.holds)
    def members_send_heartbeats_at_once(self) -> None:
        step_together(self.stage, self.agents.values())

    def follow(self, member: Classic) -> None:
        """Do what a client does next."""
        if self.stage.holds:
            return
        if member.joining is not None and member.joining.answer is None:
            return
        if member.joining is not None:
            if member.joined() != "NONE":
                member.member_id = ""
                member.join()
                return
            leads = member.joining.answer.leader == member.member_id
            answer, member.joining = member.joining.answer, None
            ids = [one.member_id for one in answer.members]
            assignments = {one: [] for one in ids}
            for index in range(3):
                assignments[ids[index % len(ids)]].append(index) if ids else None
            code = member.sync(assignments if leads else None) if self.syncs(member) else "waits"
        else:
            code = member.beat()
        if code not in ("NONE", "waits"):
            member.assigned = []
            if code != "REBALANCE_IN_PROGRESS":
                member.member_id = ""
            member.join()

    def syncs(self, member: Classic) -> bool:
        """Whether a sync is answered at once; others are not sent here."""
        group = self.stage.shard.groups.get("g")
        return (
            group is None
            or group.type == "consumer"
            or (
                member.joining is None
                and (group.state.value != "CompletingRebalance" or group.leader == member.member_id)
            )
        )

    @rule(name=names)
    def a_member_reports_without_revoking(self, name: str) -> None:
        agent = self.agents.get(name)
        if agent is not None and agent.epoch > 0 and not self.stage.holds:
            agent.owned = agent.owned | agent.assigned
            if agent.beat().code in ("UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"):
                agent.epoch, agent.owned, agent.assigned = 0, frozenset(), frozenset()

    @rule(name=names, epoch=st.sampled_from([-1, -2]))
    def a_member_leaves(self, name: str, epoch: int) -> None:
        agent = self.agents.pop(name, None)
        if agent is not None:
            agent.leave(epoch if agent.instance_id else -1)

    @rule(name=names)
    def a_member_crashes(self, name: str) -> None:
        self.agents.pop(name, None)
        self.classic.pop(name, None)

    @rule(name=names, partition=st.integers(0, 2), is_late=st.booleans())
    def a_member_commits(self, name: str, partition: int, is_late: bool) -> None:
        agent = self.agents.get(name)
        if agent is None or agent.epoch <= 0:
            return
        identity = MemberIdentity(agent.member_id, agent.instance_id, agent.epoch - is_late)
        self.count += 1
        tp = "orders", partition
        call = self.stage.commit(name, identity, {tp: self.count})
        self.commits.append((call, tp, self.count))

    # Surroundings.

    @rule(seconds=st.sampled_from([0.5, 1, 5, 20, 46]))
    def time_passes(self, seconds: float) -> None:
        self.stage.wait(int(seconds * 1000))

    @rule(name=st.sampled_from(["orders", "bills"]))
    def a_topic_grows(self, name: str) -> None:
        topic = self.stage.image.topics.get(name)
        self.stage.create_topic(name, min(3 if topic is None else len(topic.replicas) + 1, 6))

    @precondition(lambda self: self.computes)
    @rule(work=st.sampled_from([0, 9]))
    def another_amount_is_much_work(self, work: int) -> None:
        self.patch.setattr(coordinator, "_MAX_WORK", work)

    @precondition(lambda self: self.stage.computing)
    @rule()
    def a_computation_ends(self) -> None:
        self.stage.complete_computation()

    @precondition(lambda self: not self.stage.holds)
    @rule()
    def appends_are_held(self) -> None:
        self.stage.holds = True

    @precondition(lambda self: self.stage.held)
    @rule(fails=st.booleans())
    def an_append_ends(self, fails: bool) -> None:
        self.stage.release(ErrorCode.COORDINATOR_NOT_AVAILABLE if fails else ErrorCode.NONE)

    @precondition(lambda self: self.stage.holds)
    @rule()
    def appends_resume(self) -> None:
        self.stage.holds = False
        self.stage.release_all()
        for agent in self.agents.values():
            if agent.last is not None:
                agent.read(agent.last)

    @rule(survivors=st.integers(0, 3))
    def the_broker_restarts(self, survivors: int) -> None:
        self.stage.holds = False
        self.stage.restart(survivors)
        for member in self.classic.values():
            member.joining = None
        for agent in self.agents.values():
            agent.reported = None
        self.note_commits()

    # What always holds.

    def note_commits(self) -> None:
        for call, tp, offset in self.commits:
            if call.answer is not None and call.answer[tp] is ErrorCode.NONE:
                self.committed[tp] = offset
        # One without an answer may have been stored, or not: it is no longer known which is last.
        for call, tp, _offset in self.commits:
            if call.answer is None and not self.stage.held:
                self.committed.pop(tp, None)
        self.commits = [one for one in self.commits if one[0].answer is None and self.stage.held]

    @invariant()
    def every_partition_has_one_owner_at_most(self) -> None:
        group = self.group
        if group is None:
            return
        held: dict[Any, str] = {}
        for member in group.members.values():
            for tp in member.current.held:
                assert tp not in held, f"{tp} is held by {held[tp]} and {member.id}"
                held[tp] = member.id
        assert held == group.holders
        for agent in self.agents.values():
            member = group.members.get(agent.member_id)
            if member is not None and member.current.epoch == agent.epoch and not self.stage.held:
                assert agent.owned & agent.assigned <= member.current.held

    @invariant()
    def epochs_do_not_go_back(self) -> None:
        group, (before, epoch) = self.group, self.last
        if group is not None:
            assert group is not before or group.assignment_epoch >= epoch
            self.last = group, group.assignment_epoch

    @invariant()
    def the_log_has_the_group(self) -> None:
        if self.stage.held:
            return
        self.note_commits()
        for tp, offset in self.committed.items():
            assert self.stage.committed()[tp] == offset
        group = self.group
        reloaded = loaded(self.stage.log, self.stage.config, self.stage.now, self.stage.image)
        again = reloaded.groups.get("g")
        if group is None:
            assert again is None or again.type == "classic"
            return
        assert again is not None
        assert again.type == "consumer"
        for name in (
            *("epoch", "assignment_epoch", "members", "subscriber_counts"),
            *("targets", "holders", "regexes"),
        ):
            assert getattr(again, name) == getattr(group, name), name
        assert again.size_bytes == group.size_bytes
        assert again.static_members == group.static_members
        assert again.unreconciled == group.unreconciled

    @property
    def group(self) -> Any:
        group = self.stage.shard.groups.get("g")
        return group if group is not None and group.type == "consumer" else None

    def teardown(self) -> None:
        """Let the members behave: in the end every partition has an owner, also a new one."""
        if not hasattr(self, "stage"):
            return
        self.appends_resume()
        self.classic.clear()
        if self.agents:
            self.let_members_behave(seconds=70)  # Longer than all timeouts.
            self.stage.create_topic("orders", 8)
            self.let_members_behave(seconds=8)
        self.patch.undo()

    def let_members_behave(self, seconds: int) -> None:
        for _second in range(seconds):
            for agent in self.agents.values():
                agent.step()
            while self.stage.computing:
                self.stage.complete_computation()
            self.stage.wait(1000)
        group = self.group
        assert group is not None
        assert group.state.value == "Stable", group
        topics = self.stage.image.topics
        every = sorted(
            (name, index)
            for name in ("bills", "orders")
            if name in topics
            for index in range(len(topics[name].replicas))
        )
        owned = sorted(
            (self.stage.image.topics_by_id[tp.topic_id].name, tp.partition)
            for agent in self.agents.values()
            for tp in agent.owned
        )
        assert owned == every


class LargeGroupMachine(ConsumerGroupMachine):
    computes = True


TestConsumerGroupMachine = ConsumerGroupMachine.TestCase
TestLargeGroupMachine = LargeGroupMachine.TestCase
