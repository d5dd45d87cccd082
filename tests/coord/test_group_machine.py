"""Any number of consumers, in any order, with any luck: what holds always, and what holds at last.

Consumers do what they are told, or crash, or say something again, or take their time; the clock
runs, or is looked at late; writes take long, or fail; the coordinator starts anew from what was
written.

Always: each request is answered once; in a generation each partition is one consumer's; what was
acked is committed; for whatever is waited for there is a deadline.

At last, when everything works again: all who live share all partitions, and nobody waits.
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
#: Consumers by name; those in capitals are static.
NAMES = ["anna", "bert", "carl", "DORA", "ERIK"]
FAVOURITES = st.sampled_from([("range", "sticky"), ("sticky", "range")])
TRAITS = st.fixed_dictionaries(
    {
        "name": st.sampled_from(NAMES),
        "version": st.sampled_from([3, 8, 9]),
        "favourites": FAVOURITES,
        "session_ms": st.sampled_from([6_000, 10_000]),
        "rebalance_ms": st.sampled_from([8_000, 20_000]),
    }
)
TRAIT_NAMES = ["name", "version", "favourites", "session_ms", "rebalance_ms"]
PICK, PARTITION = st.integers(0, 9), st.integers(0, PARTITIONS - 1)


@dataclass(eq=False)
class Consumer:
    """One process. It believes what it is told, if it is the answer to the last that it asked."""

    name: str
    version: int
    favourites: tuple[str, ...]
    session_ms: int
    rebalance_ms: int
    stage: Stage
    number: int
    on_assigned: Callable[[Consumer, Call], None]
    member_id: str = ""
    generation: int = -1
    #: join, sync or beat: what it does next.
    next: str = "join"
    call: Call | None = None
    interest: int = 0
    #: Whom it has to assign to, if it leads.
    charges: list[str] = field(default_factory=list)
    turns: int = 0
    owned: list[int] = field(default_factory=list)

    @property
    def instance_id(self) -> str | None:
        return self.name if self.name.isupper() else None

    @property
    def owner(self) -> str:
        """Who has what it has: a static one that is started anew has it still."""
        return self.instance_id or f"{self.name} {self.number}"

    @property
    def identity(self) -> MemberIdentity:
        return MemberIdentity(self.member_id, self.instance_id, self.generation)

    def act(self) -> None:
        """Do what comes next; nothing while waiting."""
        if self.call is None:
            self.ask()

    def ask(self) -> None:
        """Ask, and forget about what was asked before."""
        if self.next == "die":
            return
        self.call = None
        call = {"join": self.join, "sync": self.sync, "beat": self.beat}[self.next]()
        if call.answer is None:
            self.call = call
        else:
            self.hear(call)

    def join(self) -> Call:
        self.owned = []
        return self.stage.join(
            self.name,
            self.member_id,
            instance_id=self.instance_id,
            protocols=tuple((name, b"%d" % self.interest) for name in self.favourites),
            version=self.version,
            session_ms=self.session_ms,
            rebalance_ms=self.rebalance_ms,
        )

    def sync(self) -> Call:
        # Each time in another way, so that it matters which time counts.
        self.turns += 1
        shares = defaultdict(list)
        for partition in range(PARTITIONS) if self.charges else ():
            owner = self.charges[(partition + self.turns) % len(self.charges)]
            shares[owner].append(str(partition))
        given = {name: ",".join(share).encode() for name, share in shares.items()}
        return self.stage.sync(self.name, self.identity, given)

    def beat(self) -> Call:
        return self.stage.heartbeat(self.name, self.identity)

    def hear(self, call: Call) -> None:
        """Believe an answer."""
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
            self.charges = [member.member_id for member in answer.members] if leads else []
            self.next = "sync"
        elif call.what == "sync":
            text = bytes(call.answer.assignment).decode()
            self.owned = [int(number) for number in text.split(",") if number]
            self.next = "beat"
            self.on_assigned(self, call)


class GroupMachine(RuleBasedStateMachine):
    @initialize(
        delay_ms=st.sampled_from([0, 3_000]),
        crew=st.lists(TRAITS, max_size=4),
        is_slow=st.booleans(),
    )
    def begin(self, delay_ms, crew, is_slow):
        self.stage = Stage(a_config(initial_rebalance_delay_ms=delay_ms))
        self.stage.on_answer = self.answered
        self.living: list[Consumer] = []
        self.numbers = count()
        # A group that was deleted counts its generations anew.
        self.life = 0
        self.group = None
        self.owners: dict[tuple[int, int, int], str] = {}
        self.protocols: dict[tuple[int, int], str] = {}
        self.commits: dict[Call, tuple[tuple[str, int], int]] = {}
        self.failed_at = 0
        for traits in crew:
            self.start(traits)
        self.go_on(10, is_impatient=False)
        self.stage.holds = is_slow

    # Consumers.

    @rule(traits=TRAITS)
    def start(self, traits):
        consumer = Consumer(
            **traits, stage=self.stage, number=next(self.numbers), on_assigned=self.assigned
        )
        self.living.append(consumer)
        consumer.act()

    @precondition(lambda self: self.living)
    @rule(pick=PICK, times=st.integers(1, 3))
    def act(self, pick, times):
        for _ in range(times):
            self.one(pick).act()

    @precondition(lambda self: self.living)
    @rule(times=st.integers(1, 6), is_impatient=st.booleans())
    def go_on(self, times, is_impatient):
        for _ in range(times):
            for consumer in list(self.living):
                consumer.ask() if is_impatient else consumer.act()
            self.stage.wait(500)
            if self.stage.held:
                self.stage.release()

    @precondition(lambda self: self.living)
    @rule(pick=PICK)
    def ask_again(self, pick):
        self.one(pick).ask()

    @precondition(lambda self: self.living)
    @rule(pick=PICK, favourites=FAVOURITES)
    def want_something_else(self, pick, favourites):
        consumer = self.one(pick)
        consumer.interest += 1
        consumer.favourites = favourites
        consumer.next = "join"
        consumer.ask()

    @precondition(lambda self: self.living)
    @rule(pick=PICK)
    def leave(self, pick):
        consumer = self.one(pick)
        self.living.remove(consumer)
        self.stage.leave(consumer.name, (consumer.member_id, consumer.instance_id))

    @precondition(lambda self: self.living)
    @rule(pick=PICK)
    def crash(self, pick):
        self.living.remove(self.one(pick))

    @precondition(lambda self: self.living)
    @rule(pick=PICK, partition=PARTITION)
    def start_anew(self, pick, partition):
        """Crash, and come back as somebody who knows nothing; or only seem to have crashed."""
        consumer = self.one(pick)
        traits = {name: getattr(consumer, name) for name in TRAIT_NAMES}
        if partition:
            self.living.remove(consumer)
        self.start(traits)

    @rule(pick=PICK, partition=PARTITION)
    def commit(self, pick, partition):
        nobody = MemberIdentity("", None, -1)
        identity = self.one(pick).identity if self.living and pick else nobody
        offset = next(self.numbers)
        place = ("orders", partition)
        call = self.stage.commit("somebody", identity, {place: offset})
        if call.answer is None:
            self.commits[call] = place, offset
        else:
            self.committed(call, place, offset)

    @rule(what=st.sampled_from(["housekeeping", "group", "offset", "topic"]), partition=PARTITION)
    def delete(self, what, partition):
        if what == "housekeeping":
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
    def wait_for_the_next_deadline(self):
        next_ms = self.stage.shard.deadlines.next()
        if next_ms is not None:
            self.stage.jump(next_ms - self.stage.tick_ms)

    @rule(ms=st.sampled_from([7_000, 30_000, 10 * MINUTE_MS]))
    def look_at_the_clock_late(self, ms):
        self.stage.jump(ms)

    # Trouble.

    @rule()
    def writes_take_long(self):
        self.stage.holds = True

    @rule()
    def writes_go_on(self):
        self.stage.holds = False
        self.stage.release_all()

    @precondition(lambda self: self.stage.held)
    @rule()
    def a_write_is_done(self):
        self.stage.release()

    @precondition(lambda self: self.stage.held)
    @rule()
    def a_write_fails(self):
        if isinstance(self.stage.held[0].records[-1], GroupRecord):
            self.failed_at = len(self.stage.log)
        self.stage.release(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    @rule(survivors=st.integers(0, 3))
    def the_coordinator_restarts(self, survivors):
        for call in self.stage.restart(survivors):
            self.commits.pop(call, None)
            for consumer in self.living:
                if consumer.call is call:
                    consumer.call = None
        self.failed_at = 0
        if not any(value is not None for value in self.written_groups()[-1:]):
            self.life += 1
        self.group = self.stage.shard.groups.get("g")

    # What is always so.

    @invariant()
    def offsets_are_what_was_written(self):
        written = {}
        for key, value in self.stage.log:
            found = decode_key(key)
            if isinstance(found, OffsetCommitKey):
                written[found.topic, found.partition] = value
        assert self.stage.committed() == {
            place: decode_offset(value).offset
            for place, value in written.items()
            if value is not None
        }

    @invariant()
    def a_stable_group_is_what_was_written(self):
        group = self.stage.shard.groups.get("g")
        is_written = self.failed_at == 0 or self.written_groups(self.failed_at)
        if self.stage.held or not is_written or self.stage.state is not GroupState.STABLE:
            return
        again = loaded(self.stage.log, self.stage.config, self.stage.now).groups["g"]
        assert (again.generation, again.protocol) == (group.generation, group.protocol)
        assert again.leader == group.leader
        assert {m.id: m.assignment for m in again.members.values()} == {
            m.id: m.assignment for m in group.members.values()
        }

    @invariant()
    def whatever_is_waited_for_has_a_deadline(self):
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
        # Those who have not synced yet have time to do so when the others are assigned to.
        others = {Timer("g", "sync")} - due
        assert len(timers) == len(due) + len([timer for timer in others if timer in timers])
        if self.stage.state in (None, GroupState.EMPTY, GroupState.PREPARING_REBALANCE):
            assert Timer("g", "sync") not in timers
        assert len(timers._heap) <= 2 * len(timers) + 65

    @invariant()
    def whoever_waits_is_known(self):
        parked = set()
        for group in self.stage.shard.groups.values():
            for member in group.members.values():
                parked |= {member.waiting_join, member.waiting_sync} - {None}
        waiting = {call for call in self.stage.waiting if call.what in ("join", "sync")}
        assert parked == waiting
        assert self.stage.held or len(waiting) == len(self.stage.waiting)

    @invariant()
    def a_group_that_is_made_again_is_another_one(self):
        group = self.stage.shard.groups.get("g")
        if group is not self.group:
            self.life += self.group is not None
            self.group = group

    # What is so at last.

    def teardown(self):
        if not hasattr(self, "stage"):
            return
        self.writes_go_on()
        self.check()
        for _second in range(120):
            if self.is_settled():
                break
            for consumer in list(self.living):
                consumer.act()
            self.check()
            self.stage.wait(1_000)
        assert self.is_settled(), [vars(consumer) for consumer in self.living]

        for consumer in self.living[::2]:
            self.stage.leave(consumer.name, (consumer.member_id, consumer.instance_id))
        self.stage.wait(10 * MINUTE_MS)
        assert self.stage.state in (None, GroupState.EMPTY)
        assert self.stage.waiting == []
        assert self.stage.shard.deadlines.next() is None

    def is_settled(self) -> bool:
        """Whether all who live, and nobody else, have everything, and nobody waits."""
        self.living = [consumer for consumer in self.living if consumer.next != "die"]
        if not self.living:
            return True
        if self.stage.waiting or self.stage.state is not GroupState.STABLE:
            return False
        group = self.stage.group
        return (
            all(c.next == "beat" and c.generation == group.generation for c in self.living)
            and {consumer.member_id for consumer in self.living} == set(group.members)
            and sorted(p for c in self.living for p in c.owned) == list(range(PARTITIONS))
        )

    def check(self) -> None:
        self.a_group_that_is_made_again_is_another_one()
        self.offsets_are_what_was_written()
        self.a_stable_group_is_what_was_written()
        self.whatever_is_waited_for_has_a_deadline()
        self.whoever_waits_is_known()

    # Small things.

    def one(self, pick: int) -> Consumer:
        return self.living[pick % len(self.living)]

    def answered(self, call: Call) -> None:
        if call.what == "commit":
            if call in self.commits:
                self.committed(call, *self.commits.pop(call))
            return
        for consumer in self.living:
            if consumer.call is call:
                consumer.hear(call)

    def assigned(self, consumer: Consumer, call: Call) -> None:
        generation = (self.life, consumer.generation)
        protocol = call.answer.protocol_name
        assert self.protocols.setdefault(generation, protocol) == protocol
        for partition in consumer.owned:
            place = (*generation, partition)
            assert self.owners.setdefault(place, consumer.owner) == consumer.owner

    def committed(self, call: Call, place: tuple[str, int], offset: int) -> None:
        if call.answer[place].name == "NONE":
            assert self.stage.committed()[place] == offset

    def written_groups(self, start: int = 0) -> list[bytes | None]:
        records = self.stage.log[start:]
        return [value for key, value in records if isinstance(decode_key(key), GroupMetadataKey)]


TestGroupMachine = GroupMachine.TestCase
