"""Model test of a group: any number of consumers, in any order, with any failures.

Consumers follow the protocol, crash, retry requests, or are slow; timers are handled in time or
late; appends take long, or fail; the shard is reloaded from the log.

Safety: each request is answered once; in a generation each partition has one owner; a commit that
was acknowledged is committed; whatever is waited for has a deadline.

Liveness: once everything works again, all live consumers share all partitions, and nobody waits.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from harness.group_stage import MINUTE_MS, Call, Stage, a_config, loaded
from ottla.coord.group_shard import MemberIdentity
from ottla.coord.group_timers import Timer
from ottla.coord.records import (
    GroupMetadataKey,
    GroupRecord,
    OffsetCommitKey,
    decode_key,
    decode_offset,
)
from ottla.coord.states import GroupState
from ottla.protocol.errors import ErrorCode

PARTITIONS = 4
#: Names of consumers; those in capitals are static members.
NAMES = ["anna", "bert", "carl", "DORA", "ERIK"]
PREFERENCES = st.sampled_from([("range", "sticky"), ("sticky", "range")])
TRAITS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(NAMES),
        "version": st.sampled_from([3, 8, 9]),
        "preferences": PREFERENCES,
        "session_ms": st.sampled_from([6_000, 10_000]),
        "rebalance_ms": st.sampled_from([8_000, 20_000]),
    }
)
TRAIT_NAMES = ["name", "version", "preferences", "session_ms", "rebalance_ms"]
PICK, PARTITION = st.integers(0, 9), st.integers(0, PARTITIONS - 1)


@dataclass(eq=False)
class Consumer:
    """One process. It ignores responses to all requests but its last."""

    name: str
    version: int
    preferences: tuple[str, ...]
    session_ms: int
    rebalance_ms: int
    stage: Stage
    number: int
    on_assigned: Callable[[Consumer, Call], None]
    member_id: str = ""
    generation: int = -1
    #: Its next request: join, sync or heartbeat; die after it was fenced.
    next: str = "join"
    call: Call | None = None
    interest: int = 0
    #: The members that it assigns to, if it leads.
    members: list[str] = field(default_factory=list)
    turns: int = 0
    owned: list[int] = field(default_factory=list)

    @property
    def instance_id(self) -> str | None:
        return self.name if self.name.isupper() else None

    @property
    def owner(self) -> str:
        """The owner of its partitions: a static member keeps them when it restarts."""
        return self.instance_id or f"{self.name} {self.number}"

    @property
    def identity(self) -> MemberIdentity:
        return MemberIdentity(self.member_id, self.instance_id, self.generation)

    def act(self) -> None:
        """Send the next request, unless one is waiting."""
        if self.call is None:
            self.send()

    def send(self) -> None:
        """Send the next request, and give up on the one that waits."""
        if self.next == "die":
            return
        self.call = None
        call = {"join": self.join, "sync": self.sync, "heartbeat": self.heartbeat}[self.next]()
        if call.answer is None:
            self.call = call
        else:
            self.handle(call)

    def join(self) -> Call:
        self.owned = []
        return self.stage.join(
            self.name,
            self.member_id,
            instance_id=self.instance_id,
            protocols=tuple((name, b"%d" % self.interest) for name in self.preferences),
            version=self.version,
            session_ms=self.session_ms,
            rebalance_ms=self.rebalance_ms,
        )

    def sync(self) -> Call:
        # A different assignment each time, so that it matters which one counts.
        self.turns += 1
        shares = defaultdict(list)
        for partition in range(PARTITIONS) if self.members else ():
            owner = self.members[(partition + self.turns) % len(self.members)]
            shares[owner].append(str(partition))
        assignments = {name: ",".join(share).encode() for name, share in shares.items()}
        return self.stage.sync(self.name, self.identity, assignments)

    def heartbeat(self) -> Call:
        return self.stage.heartbeat(self.name, self.identity)

    def handle(self, call: Call) -> None:
        """Handle a response."""
        self.call = None
        if call.code in ("UNKNOWN_MEMBER_ID", "FENCED_INSTANCE_ID"):
            self.member_id, self.generation = "", -1
        if call.code == "MEMBER_ID_REQUIRED":
            self.member_id = call.answer.member_id
        if call.code == "FENCED_INSTANCE_ID":
            self.next = "die"
        elif call.code != "NONE":
            assert call.code in (
                "MEMBER_ID_REQUIRED",
                "UNKNOWN_MEMBER_ID",
                "ILLEGAL_GENERATION",
                "REBALANCE_IN_PROGRESS",
                "COORDINATOR_NOT_AVAILABLE",
            )
            self.next, self.owned = "join", []
        elif call.what == "join":
            answer = call.answer
            self.member_id, self.generation = answer.member_id, answer.generation_id
            leads = answer.leader == answer.member_id and not answer.skip_assignment
            self.members = [member.member_id for member in answer.members] if leads else []
            self.next = "sync"
        elif call.what == "sync":
            text = bytes(call.answer.assignment).decode()
            self.owned = [int(number) for number in text.split(",") if number]
            self.next = "heartbeat"
            self.on_assigned(self, call)


class GroupMachine(RuleBasedStateMachine):
    @initialize(
        delay_ms=st.sampled_from([0, 3_000]),
        consumers=st.lists(TRAITS, max_size=4),
        is_slow=st.booleans(),
    )
    def begin(self, delay_ms, consumers, is_slow):
        self.stage = Stage(a_config(initial_rebalance_delay_ms=delay_ms))
        self.stage.on_answer = self.answered
        self.alive: list[Consumer] = []
        self.numbers = count()
        # The generations of a group that was deleted start over.
        self.life = 0
        self.group = None
        self.owners: dict[tuple[int, int, int], str] = {}
        self.protocols: dict[tuple[int, int], str] = {}
        self.commits: dict[Call, tuple[tuple[str, int], int]] = {}
        self.failed_at = 0
        for traits in consumers:
            self.start(traits)
        self.run_for_a_while(10, gives_up=False)
        self.stage.holds = is_slow

    # Consumers.

    @rule(traits=TRAITS)
    def start(self, traits):
        consumer = Consumer(
            **traits, stage=self.stage, number=next(self.numbers), on_assigned=self.assigned
        )
        self.alive.append(consumer)
        consumer.act()

    @precondition(lambda self: self.alive)
    @rule(pick=PICK, times=st.integers(1, 3))
    def act(self, pick, times):
        for _ in range(times):
            self.pick(pick).act()

    @precondition(lambda self: self.alive)
    @rule(times=st.integers(1, 6), gives_up=st.booleans())
    def run_for_a_while(self, times, gives_up):
        for _ in range(times):
            for consumer in list(self.alive):
                consumer.send() if gives_up else consumer.act()
            self.stage.wait(500)
            if self.stage.held:
                self.stage.release()

    @precondition(lambda self: self.alive)
    @rule(pick=PICK)
    def retry(self, pick):
        self.pick(pick).send()

    @precondition(lambda self: self.alive)
    @rule(pick=PICK, preferences=PREFERENCES)
    def change_subscription(self, pick, preferences):
        consumer = self.pick(pick)
        consumer.interest += 1
        consumer.preferences = preferences
        consumer.next = "join"
        consumer.send()

    @precondition(lambda self: self.alive)
    @rule(pick=PICK)
    def leave(self, pick):
        consumer = self.pick(pick)
        self.alive.remove(consumer)
        self.stage.leave(consumer.name, (consumer.member_id, consumer.instance_id))

    @precondition(lambda self: self.alive)
    @rule(pick=PICK)
    def crash(self, pick):
        self.alive.remove(self.pick(pick))

    @precondition(lambda self: self.alive)
    @rule(pick=PICK, partition=PARTITION)
    def restart(self, pick, partition):
        """Start a new process of a consumer, after the old one crashed, or while it still runs."""
        consumer = self.pick(pick)
        traits = {name: getattr(consumer, name) for name in TRAIT_NAMES}
        if partition:
            self.alive.remove(consumer)
        self.start(traits)

    @rule(pick=PICK, partition=PARTITION)
    def commit(self, pick, partition):
        no_member = MemberIdentity("", None, -1)
        identity = self.pick(pick).identity if self.alive and pick else no_member
        offset = next(self.numbers)
        tp = ("orders", partition)
        call = self.stage.commit("somebody", identity, {tp: offset})
        if call.answer is None:
            self.commits[call] = tp, offset
        else:
            self.committed(call, tp, offset)

    @rule(what=st.sampled_from(["expired", "group", "offset", "topic"]), partition=PARTITION)
    def delete(self, what, partition):
        if what == "expired":
            self.stage.clean_up()
        elif what == "group":
            self.stage.delete_groups("admin", "g")
        elif what == "offset":
            self.stage.delete_offsets("admin", ("orders", partition))
        else:
            self.stage.delete_topic("orders")

    # Time.

    @rule(ms=st.integers(1, 5_000))
    def wait(self, ms):
        self.stage.wait(ms)

    @rule()
    def wait_for_the_next_timer(self):
        next_ms = self.stage.shard.deadlines.next()
        if next_ms is not None:
            self.stage.jump(next_ms - self.stage.tick_ms)

    @rule(ms=st.sampled_from([7_000, 30_000, 10 * MINUTE_MS]))
    def handle_timers_late(self, ms):
        self.stage.jump(ms)

    # Appends and reloads.

    @rule()
    def appends_are_held(self):
        self.stage.holds = True

    @rule()
    def appends_resume(self):
        self.stage.holds = False
        self.stage.release_all()

    @precondition(lambda self: self.stage.held)
    @rule()
    def an_append_completes(self):
        self.stage.release()

    @precondition(lambda self: self.stage.held)
    @rule()
    def an_append_fails(self):
        if isinstance(self.stage.held[0].records[-1], GroupRecord):
            self.failed_at = len(self.stage.log)
        self.stage.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    @rule(survivors=st.integers(0, 3))
    def the_shard_is_reloaded(self, survivors):
        for call in self.stage.restart(survivors):
            self.commits.pop(call, None)
            for consumer in self.alive:
                if consumer.call is call:
                    consumer.call = None
        self.failed_at = 0
        if not any(value is not None for value in self.group_records()[-1:]):
            self.life += 1
        self.group = self.stage.shard.groups.get("g")

    # Safety.

    @invariant()
    def offsets_are_those_of_the_log(self):
        appended = {}
        for key, value in self.stage.log:
            decoded = decode_key(key)
            if isinstance(decoded, OffsetCommitKey):
                appended[decoded.topic, decoded.partition] = value
        assert self.stage.committed() == {
            tp: decode_offset(value).offset for tp, value in appended.items() if value is not None
        }

    @invariant()
    def a_stable_group_is_that_of_the_log(self):
        group = self.stage.shard.groups.get("g")
        is_recorded = self.failed_at == 0 or self.group_records(self.failed_at)
        if self.stage.held or not is_recorded or self.stage.state is not GroupState.STABLE:
            return
        reloaded = loaded(self.stage.log, self.stage.config, self.stage.now).groups["g"]
        assert (reloaded.generation, reloaded.protocol) == (group.generation, group.protocol)
        assert reloaded.leader == group.leader
        assert {m.id: m.assignment for m in reloaded.members.values()} == {
            m.id: m.assignment for m in group.members.values()
        }

    @invariant()
    def whatever_is_waited_for_has_a_timer(self):
        timers = self.stage.shard.deadlines
        group = self.stage.shard.groups.get("g")
        due = set()
        if group is not None:
            due |= {Timer("g", "session", member_id) for member_id in group.members}
            due |= {Timer("g", "pending", member_id) for member_id in group.pending}
            if group.state is GroupState.PREPARING_REBALANCE:
                due.add(Timer("g", "join"))
            if group.state is GroupState.COMPLETING_REBALANCE and not self.stage.held:
                due.add(Timer("g", "sync"))
        assert all(timer in timers for timer in due)
        # Members that have not synced yet keep their timer when the others get their assignments.
        others = {Timer("g", "sync")} - due
        assert len(timers) == len(due) + len([timer for timer in others if timer in timers])
        if self.stage.state in (None, GroupState.EMPTY, GroupState.PREPARING_REBALANCE):
            assert Timer("g", "sync") not in timers
        assert len(timers._heap) <= 2 * len(timers) + 65

    @invariant()
    def waiting_calls_belong_to_members(self):
        tokens = set()
        for group in self.stage.shard.groups.values():
            for member in group.members.values():
                tokens |= {member.waiting_join, member.waiting_sync} - {None}
        waiting = {call for call in self.stage.waiting if call.what in ("join", "sync")}
        assert tokens == waiting
        assert self.stage.held or len(waiting) == len(self.stage.waiting)

    @invariant()
    def a_group_that_is_created_again_starts_over(self):
        group = self.stage.shard.groups.get("g")
        if group is not self.group:
            self.life += self.group is not None
            self.group = group

    # Liveness.

    def teardown(self):
        if not hasattr(self, "stage"):
            return
        self.appends_resume()
        self.check_safety()
        for _second in range(120):
            if self.is_settled():
                break
            for consumer in list(self.alive):
                consumer.act()
            self.check_safety()
            self.stage.wait(1_000)
        assert self.is_settled(), [vars(consumer) for consumer in self.alive]

        for consumer in self.alive[::2]:
            self.stage.leave(consumer.name, (consumer.member_id, consumer.instance_id))
        self.stage.wait(10 * MINUTE_MS)
        assert self.stage.state in (None, GroupState.EMPTY)
        assert self.stage.waiting == []
        assert self.stage.shard.deadlines.next() is None

    def is_settled(self) -> bool:
        """Whether the live consumers, and nobody else, share all partitions, and nobody waits."""
        self.alive = [consumer for consumer in self.alive if consumer.next != "die"]
        if not self.alive:
            return True
        if self.stage.waiting or self.stage.state is not GroupState.STABLE:
            return False
        group = self.stage.group
        return (
            all(c.next == "heartbeat" and c.generation == group.generation for c in self.alive)
            and {consumer.member_id for consumer in self.alive} == set(group.members)
            and sorted(p for c in self.alive for p in c.owned) == list(range(PARTITIONS))
        )

    def check_safety(self) -> None:
        self.a_group_that_is_created_again_starts_over()
        self.offsets_are_those_of_the_log()
        self.a_stable_group_is_that_of_the_log()
        self.whatever_is_waited_for_has_a_timer()
        self.waiting_calls_belong_to_members()

    # Helpers.

    def pick(self, number: int) -> Consumer:
        return self.alive[number % len(self.alive)]

    def answered(self, call: Call) -> None:
        if call.what == "commit":
            if call in self.commits:
                self.committed(call, *self.commits.pop(call))
            return
        for consumer in self.alive:
            if consumer.call is call:
                consumer.handle(call)

    def assigned(self, consumer: Consumer, call: Call) -> None:
        generation = (self.life, consumer.generation)
        protocol = call.answer.protocol_name
        assert self.protocols.setdefault(generation, protocol) == protocol
        for partition in consumer.owned:
            key = (*generation, partition)
            assert self.owners.setdefault(key, consumer.owner) == consumer.owner

    def committed(self, call: Call, tp: tuple[str, int], offset: int) -> None:
        if call.answer[tp].name == "NONE":
            assert self.stage.committed()[tp] == offset

    def group_records(self, start: int = 0) -> list[bytes | None]:
        records = self.stage.log[start:]
        return [value for key, value in records if isinstance(decode_key(key), GroupMetadataKey)]


TestGroupMachine = GroupMachine.TestCase
