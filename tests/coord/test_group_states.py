"""The outcome of each request and each timer in each state of a group, as a table.

The group has a leader (lea), a follower (fay) and a static member (stan, with instance id s); pia
has a pending member id. In Delay, the first rebalance of an empty group, all of them have joined;
in Preparing, a later one, only newt has, who started it. Completing waits for the leader's
assignment. In Empty and Dead, all have left.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from harness.group_stage import Call, Stage, subscription
from ottla.coord.group import Group
from ottla.coord.group_shard import MemberIdentity
from ottla.coord.group_timers import Timer
from ottla.coord.states import PREDECESSORS, GroupState

#: A cell of the table: the error code of the response, and the new state if it changes.
CODES = {
    "ok": "NONE",
    "id": "MEMBER_ID_REQUIRED",
    "unknown": "UNKNOWN_MEMBER_ID",
    "fenced": "FENCED_INSTANCE_ID",
    "generation": "ILLEGAL_GENERATION",
    "rebalance": "REBALANCE_IN_PROGRESS",
    "protocol": "INCONSISTENT_GROUP_PROTOCOL",
    "session": "INVALID_SESSION_TIMEOUT",
    "dead": "COORDINATOR_NOT_AVAILABLE",
}
LETTERS = {
    GroupState.EMPTY: "E",
    GroupState.PREPARING_REBALANCE: "P",
    GroupState.COMPLETING_REBALANCE: "C",
    GroupState.STABLE: "S",
    GroupState.DEAD: "D",
}

TABLE = """
JoinGroup                     Empty       Delay       Preparing   Completing  Stable      Dead
  new, version 3              waits→P     waits       waits       waits→P     waits→P     dead
  new, version 4              id          id          id          id          id          dead
  new, static                 waits→P     waits       waits       waits→P     waits→P     dead
  new, other protocol         waits→P     protocol    protocol    protocol    protocol    dead
  new, other type             waits→P     protocol    protocol    protocol    protocol    dead
  new, session too short      session     session     session     session     session     session
  pending                     waits→P     waits       waits       waits→P     waits→P     dead
  unknown id                  unknown     unknown     unknown     unknown     unknown     dead
  leader, unchanged           unknown     waits       waits       ok          waits→P     dead
  leader, changed             unknown     waits       waits       waits→P     waits→P     dead
  follower, unchanged         unknown     waits       waits       ok          ok          dead
  follower, changed           unknown     waits       waits       waits→P     waits→P     dead
  follower, other protocol    unknown     protocol    protocol    protocol    protocol    dead
  static, unchanged           unknown     waits       waits       ok          ok          dead
  static, changed             unknown     waits       waits       waits→P     waits→P     dead
  static, restarted           waits→P     waits       waits       waits→P     ok          dead
  static, fenced              unknown     fenced      fenced      fenced      fenced      dead

SyncGroup
  leader syncs                unknown     rebalance   rebalance   ok→S        ok          dead
  follower syncs              unknown     rebalance   rebalance   waits       ok          dead
  static syncs                unknown     rebalance   rebalance   waits       ok          dead
  old generation syncs        unknown     generation  generation  generation  generation  dead
  other protocol syncs        unknown     protocol    protocol    protocol    protocol    dead
  other type syncs            unknown     protocol    protocol    protocol    protocol    dead
  pending syncs               unknown     unknown     unknown     unknown     unknown     dead
  unknown syncs               unknown     unknown     unknown     unknown     unknown     dead
  fenced syncs                unknown     fenced      fenced      fenced      fenced      dead

Heartbeat
  member heartbeat            unknown     rebalance   rebalance   ok          ok          dead
  static heartbeat            unknown     rebalance   rebalance   ok          ok          dead
  old generation heartbeat    unknown     generation  generation  generation  generation  dead
  pending heartbeat           unknown     unknown     unknown     unknown     unknown     dead
  unknown heartbeat           unknown     unknown     unknown     unknown     unknown     dead
  fenced heartbeat            unknown     fenced      fenced      fenced      fenced      dead

LeaveGroup
  leader leaves               unknown     ok          ok          ok→P        ok→P        dead
  follower leaves             unknown     ok          ok          ok→P        ok→P        dead
  static leaves               unknown     ok          ok          ok→P        ok→P        dead
  instance removed            unknown     ok          ok          ok→P        ok→P        dead
  no such instance            unknown     unknown     unknown     unknown     unknown     dead
  pending leaves              ok          ok          ok          ok          ok          dead
  unknown leaves              unknown     unknown     unknown     unknown     unknown     dead
  fenced leaves               unknown     fenced      fenced      fenced      fenced      dead

OffsetCommit
  no member commits           ok          unknown     unknown     unknown     unknown     dead
  generation -1 commits       ok          generation  generation  generation  generation  dead
  member commits              unknown     ok          ok          rebalance   ok          dead
  old generation commits      unknown     generation  generation  generation  generation  dead
  pending commits             unknown     unknown     unknown     unknown     unknown     dead
  unknown commits             unknown     unknown     unknown     unknown     unknown     dead
  fenced commits              unknown     fenced      fenced      fenced      fenced      dead

Timers
  leader's session            –           due         due         due→P       due→P       –
  static's session            –           due         due         due→P       due→P       –
  pending id expires          due         due         due         due         due         –
  join timeout                –           due         due→C       –           –           –
  sync timeout                –           –           –           due→E       due→P       –
"""

CHANGED = (("range", subscription("orders", "refunds")),)
OTHER = (("other", b""),)


@dataclass
class Cast:
    """A group in some state, and its members."""

    stage: Stage = field(default_factory=Stage)
    ids: dict[str, str] = field(default_factory=dict)
    generation: int = 1

    def identity(self, name: str, generation: int | None = None) -> MemberIdentity:
        instance = "s" if name == "stan" else None
        return MemberIdentity(
            self.ids[name], instance, self.generation if generation is None else generation
        )

    def joined(self, name: str, call: Call) -> None:
        self.ids[name] = call.answer.member_id


def delay() -> Cast:
    cast = Cast(generation=0)
    stage = cast.stage
    stage.join("lea", version=3)
    stage.join("fay", version=3)
    stage.join("stan", instance_id="s")
    cast.ids = dict(zip(("lea", "fay", "stan"), stage.group.members, strict=True))
    add_pending(cast)
    return cast


def completing() -> Cast:
    cast = delay()
    cast.stage.leave("pia", (cast.ids["pia"], None))
    cast.stage.wait(6_000)
    cast.generation = 1
    add_pending(cast)
    return cast


def stable() -> Cast:
    cast = completing()
    cast.stage.sync("lea", cast.identity("lea"))
    cast.stage.sync("fay", cast.identity("fay"))
    return cast


def preparing() -> Cast:
    cast = stable()
    cast.stage.join("newt", version=3)
    return cast


def empty() -> Cast:
    cast = stable()
    cast.stage.leave("all", *((member_id, None) for member_id in cast.ids.values()))
    cast.generation = 2
    add_pending(cast)
    return cast


def dead() -> Cast:
    cast = empty()
    cast.stage.group.die()
    return cast


def add_pending(cast: Cast) -> None:
    cast.joined("pia", cast.stage.join("pia"))


STATES: dict[str, Callable[[], Cast]] = {
    "Empty": empty,
    "Delay": delay,
    "Preparing": preparing,
    "Completing": completing,
    "Stable": stable,
    "Dead": dead,
}

UNKNOWN, FENCED = MemberIdentity("nobody-9", None, 1), MemberIdentity("nobody-9", "s", 1)

Action = Callable[[Cast], Call]
REQUESTS: dict[str, Action] = {
    # JoinGroup.
    "new, version 3": lambda c: c.stage.join("nan", version=3),
    "new, version 4": lambda c: c.stage.join("nan", version=4),
    "new, static": lambda c: c.stage.join("nan", instance_id="n"),
    "new, other protocol": lambda c: c.stage.join("nan", version=3, protocols=OTHER),
    "new, other type": lambda c: c.stage.join("nan", version=3, protocol_type="connect"),
    "new, session too short": lambda c: c.stage.join("nan", version=3, session_ms=10),
    "pending": lambda c: c.stage.join("pia", c.ids["pia"]),
    "unknown id": lambda c: c.stage.join("nan", "nobody-9"),
    "leader, unchanged": lambda c: c.stage.join("lea", c.ids["lea"]),
    "leader, changed": lambda c: c.stage.join("lea", c.ids["lea"], protocols=CHANGED),
    "follower, unchanged": lambda c: c.stage.join("fay", c.ids["fay"]),
    "follower, changed": lambda c: c.stage.join("fay", c.ids["fay"], protocols=CHANGED),
    "follower, other protocol": lambda c: c.stage.join("fay", c.ids["fay"], protocols=OTHER),
    "static, unchanged": lambda c: c.stage.join("stan", c.ids["stan"], instance_id="s"),
    "static, changed": lambda c: c.stage.join(
        "stan", c.ids["stan"], instance_id="s", protocols=CHANGED
    ),
    "static, restarted": lambda c: c.stage.join("stan", instance_id="s"),
    "static, fenced": lambda c: c.stage.join("stan", "nobody-9", instance_id="s"),
    # SyncGroup.
    "leader syncs": lambda c: c.stage.sync("lea", c.identity("lea")),
    "follower syncs": lambda c: c.stage.sync("fay", c.identity("fay")),
    "static syncs": lambda c: c.stage.sync("stan", c.identity("stan")),
    "old generation syncs": lambda c: c.stage.sync("fay", c.identity("fay", c.generation - 1)),
    "other protocol syncs": lambda c: c.stage.sync(
        "fay", c.identity("fay"), protocol=(None, "other")
    ),
    "other type syncs": lambda c: c.stage.sync("fay", c.identity("fay"), protocol=("other", None)),
    "pending syncs": lambda c: c.stage.sync("pia", c.identity("pia")),
    "unknown syncs": lambda c: c.stage.sync("nan", UNKNOWN),
    "fenced syncs": lambda c: c.stage.sync("stan", FENCED),
    # Heartbeat.
    "member heartbeat": lambda c: c.stage.heartbeat("fay", c.identity("fay")),
    "static heartbeat": lambda c: c.stage.heartbeat("stan", c.identity("stan")),
    "old generation heartbeat": lambda c: c.stage.heartbeat(
        "fay", c.identity("fay", c.generation - 1)
    ),
    "pending heartbeat": lambda c: c.stage.heartbeat("pia", c.identity("pia")),
    "unknown heartbeat": lambda c: c.stage.heartbeat("nan", UNKNOWN),
    "fenced heartbeat": lambda c: c.stage.heartbeat("stan", FENCED),
    # LeaveGroup.
    "leader leaves": lambda c: c.stage.leave("lea", (c.ids["lea"], None)),
    "follower leaves": lambda c: c.stage.leave("fay", (c.ids["fay"], None)),
    "static leaves": lambda c: c.stage.leave("stan", (c.ids["stan"], "s")),
    "instance removed": lambda c: c.stage.leave("admin", ("", "s")),
    "no such instance": lambda c: c.stage.leave("admin", ("", "t")),
    "pending leaves": lambda c: c.stage.leave("pia", (c.ids["pia"], None)),
    "unknown leaves": lambda c: c.stage.leave("nan", ("nobody-9", None)),
    "fenced leaves": lambda c: c.stage.leave("stan", ("nobody-9", "s")),
    # OffsetCommit.
    "no member commits": lambda c: commit(c, MemberIdentity("", None, -1)),
    "generation -1 commits": lambda c: commit(c, c.identity("fay", -1)),
    "member commits": lambda c: commit(c, c.identity("fay")),
    "old generation commits": lambda c: commit(c, c.identity("fay", c.generation - 1)),
    "pending commits": lambda c: commit(c, c.identity("pia")),
    "unknown commits": lambda c: commit(c, UNKNOWN),
    "fenced commits": lambda c: commit(c, FENCED),
}

#: The kind of each timer, and its member; none for those of the group.
TIMERS = {
    "leader's session": ("session", "lea"),
    "static's session": ("session", "stan"),
    "pending id expires": ("pending", "pia"),
    "join timeout": ("join", ""),
    "sync timeout": ("sync", ""),
}


def commit(cast: Cast, identity: MemberIdentity) -> Call:
    return cast.stage.commit("somebody", identity, {("orders", 0): 5})


def outcome(cast: Cast, row: str) -> str:
    before = cast.stage.state
    answer = fire(cast, *TIMERS[row]) if row in TIMERS else shown(REQUESTS[row](cast))
    after = cast.stage.state
    return answer if after is before else f"{answer}→{LETTERS[after]}"


def fire(cast: Cast, kind: str, name: str) -> str:
    timer = Timer("g", kind, cast.ids.get(name, ""))
    if timer not in cast.stage.shard.deadlines:
        return "–"
    cast.stage.shard.deadlines.set(timer, cast.stage.tick_ms)
    cast.stage.wait(0)
    return "due"


def shown(call: Call) -> str:
    if call.answer is None:
        return "waits"
    if call.what == "commit":
        (code,) = {code.name for code in call.answer.values()}
    elif call.what == "leave":
        (member,) = call.answer.members
        code = member.error_code.name
    else:
        code = call.code
    return next(word for word, name in CODES.items() if name == code)


def rows() -> dict[str, list[str]]:
    """The cells of the table by request or timer."""
    lines = [re.split(r" {2,}", line.strip()) for line in TABLE.splitlines()]
    return {name: cells for name, *cells in lines if cells and name != "JoinGroup"}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("row", [*REQUESTS, *TIMERS])
def test_each_request_and_timer_has_the_outcome_of_the_table(row, state):
    expected = dict(zip(STATES, rows()[row], strict=True))[state]

    assert outcome(STATES[state](), row) == expected


def test_the_table_is_complete():
    assert list(rows()) == [*REQUESTS, *TIMERS]
    assert TABLE.splitlines()[1].split() == ["JoinGroup", *STATES]


def test_all_transitions_between_states_occur_and_no_others(monkeypatch):
    transitions = set()
    become = Group._become

    def watched(group: Group, state: GroupState) -> None:
        before = group.state
        become(group, state)
        transitions.add((before, state))

    monkeypatch.setattr(Group, "_become", watched)
    for make in STATES.values():
        for row in (*REQUESTS, *TIMERS):
            outcome(make(), row)

    assert transitions == {(old, new) for new, olds in PREDECESSORS.items() for old in olds}


@pytest.mark.parametrize("state", ["Delay", "Preparing", "Completing", "Stable"])
def test_a_group_becomes_empty_from_every_state_when_all_members_leave(state):
    cast = STATES[state]()
    member_ids = [*cast.stage.group.members, *cast.stage.group.pending]

    cast.stage.leave("admin", *((member_id, None) for member_id in member_ids))
    cast.stage.wait(60_000)

    assert cast.stage.state is GroupState.EMPTY
    assert cast.stage.waiting == []
    assert len(cast.stage.shard.deadlines) == 0


@pytest.mark.parametrize("state", STATES)
def test_a_group_becomes_empty_from_every_state_when_all_sessions_expire(state):
    cast = STATES[state]()

    cast.stage.wait(10 * 60_000)

    assert cast.stage.state in (GroupState.EMPTY, GroupState.DEAD)
    assert cast.stage.waiting == []
    assert len(cast.stage.shard.deadlines) == 0
