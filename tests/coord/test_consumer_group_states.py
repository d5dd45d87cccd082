"""The outcome of each request and each timer in each state of a consumer group, as a table.

The group has a dynamic member (anna) and a static one (stan, with instance id s). In Assigning a
new target is due, in Reconciling the first member has yet to revoke what the other one gets. In
Empty both have left, and None is no group. `TEST_REWRITE=1` prints the table anew.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from harness.consumer_agents import Agent
from harness.group_stage import Stage, a_config, subscription
from ottla.coord.errors import GroupError
from ottla.coord.group_shard import MemberIdentity
from ottla.coord.group_timers import Timer

#: The error codes in cells.
SHORT = {
    "NONE": "ok",
    "UNKNOWN_MEMBER_ID": "unknown",
    "FENCED_MEMBER_EPOCH": "epoch",
    "FENCED_INSTANCE_ID": "fenced",
    "GROUP_ID_NOT_FOUND": "no group",
    "ILLEGAL_GENERATION": "generation",
    "INVALID_REGULAR_EXPRESSION": "regex",
    "INVALID_REQUEST": "invalid",
    "NON_EMPTY_GROUP": "members",
    "STALE_MEMBER_EPOCH": "stale",
    "UNRELEASED_INSTANCE_ID": "unreleased",
    "UNSUPPORTED_ASSIGNOR": "assignor",
    "UNSUPPORTED_VERSION": "version",
}

#: A cell: the error code of the response, and the new state if it changes.
TABLE = """
event                       None          Empty         Assigning     Reconciling   Stable
a new member joins          ok→Stable     ok→Stable     ok            ok            ok→Reconciling
a new static member joins   ok→Stable     ok→Stable     ok            ok            ok→Reconciling
a member joins again        ok→Stable     ok→Stable     ok            ok            ok
a static member, other id   ok→Stable     ok→Stable     unreleased    unreleased    unreleased
no subscription             invalid       invalid       invalid       invalid       invalid
unknown assignor            assignor      assignor      assignor      assignor      assignor
invalid expression          regex         regex         regex         regex         regex
heartbeat                   invalid       unknown       ok            ok            ok
heartbeat, static           invalid       unknown       ok            ok            ok
heartbeat, other topics     invalid       unknown       ok            ok            ok→Reconciling
heartbeat, older epoch      invalid       unknown       invalid       invalid       epoch
heartbeat, larger epoch     no group      unknown       epoch         epoch         epoch
heartbeat, unknown member   no group      unknown       unknown       unknown       unknown
heartbeat, fenced instance  invalid       unknown       fenced        fenced        fenced
heartbeat, no such instance invalid       unknown       unknown       unknown       unknown
leaves                      no group      unknown       ok            ok            ok→Reconciling
leaves, static              no group      unknown       ok            ok            ok→Reconciling
leaves, unknown             no group      unknown       unknown       unknown       unknown
JoinGroup, new              ok→classic    ok→classic    ok            ok            ok→Reconciling
SyncGroup                   unknown       unknown       unknown       unknown       unknown
Heartbeat                   unknown       unknown       unknown       unknown       unknown
LeaveGroup                  unknown       unknown       ok            ok            ok→Reconciling
commits                     no group      unknown       ok            ok            ok
commits, larger epoch       no group      unknown       stale         stale         stale
commits, unknown member     no group      unknown       unknown       unknown       unknown
commits, no member          ok→classic    ok            unknown       unknown       unknown
commits, version 8          generation    unknown       version       version       version
fetches                     ok            unknown       ok            ok            ok
fetches, other epoch        ok            unknown       stale         stale         stale
fetches, no member          ok            ok            ok            ok            ok
DeleteGroups                no group      ok→None       members       members       members
session expires             –             –             due           due           due→Reconciling
static session expires      –             –             due           due           due→Reconciling
rebalance timeout           –             –             –             due           –
assignment is due           –             –             due           –             –
"""


@dataclass
class Cast:
    """A group in some state, and its members."""

    stage: Stage
    anna: Agent
    stan: Agent


def a_cast(interval_ms: int = 0) -> Cast:
    stage = Stage(a_config(assignment_interval_ms=interval_ms, initial_rebalance_delay_ms=0))
    stage.create_topic("orders", 4)
    return Cast(stage, Agent(stage, "anna"), Agent(stage, "stan", instance_id="s"))


def no_group() -> Cast:
    return a_cast()


def empty() -> Cast:
    cast = stable()
    epochs = cast.anna.epoch, cast.stan.epoch
    cast.anna.leave()
    cast.stan.leave()
    cast.anna.epoch, cast.stan.epoch = epochs
    return cast


def assigning() -> Cast:
    cast = a_cast(1000)
    cast.anna.join()
    cast.stan.join()
    return cast


def reconciling() -> Cast:
    cast = a_cast()
    cast.anna.join()
    cast.stan.join()
    cast.anna.step()
    return cast


def stable() -> Cast:
    cast = reconciling()
    for agent in (cast.anna, cast.anna, cast.stan, cast.anna):
        agent.step()
    return cast


STATES = {
    "None": no_group,
    "Empty": empty,
    "Assigning": assigning,
    "Reconciling": reconciling,
    "Stable": stable,
}


def heartbeat(who: str, **changes: object) -> Callable[[Cast], str]:
    return lambda cast: getattr(cast, who).send(**changes).code


def joins(**changes: object) -> Callable[[Cast], str]:
    def event(cast: Cast) -> str:
        fields = {
            "epoch": 0,
            "rebalance_timeout_ms": 1000,
            "topics": ("orders",),
            "owned": frozenset(),
        }
        return cast.anna.send(**(fields | changes)).code

    return event


def relative(offset: int, **changes: object) -> Callable[[Cast], str]:
    return lambda cast: cast.anna.send(epoch=max(cast.anna.epoch, 1) + offset, **changes).code


def classic_join(cast: Cast) -> str:
    call = cast.stage.join("carl", protocols=(("range", subscription("orders")),), version=3)
    return "waits" if call.answer is None else call.code


def classic_request(what: str) -> Callable[[Cast], str]:
    def event(cast: Cast) -> str:
        identity = MemberIdentity(cast.anna.member_id, None, cast.anna.epoch)
        if what == "leave":
            call = cast.stage.leave("anna", ("anna", None))
            return max(member.error_code for member in call.answer.members).name
        return getattr(cast.stage, what)("anna", identity).code

    return event


def commit(member_id: str | None, offset: int = 0, version: int = 9) -> Callable[[Cast], str]:
    def event(cast: Cast) -> str:
        epoch = -1 if member_id is None else cast.anna.epoch + offset
        identity = MemberIdentity(member_id or "", None, epoch)
        call = cast.stage.commit("anna", identity, {("orders", 0): 1}, version=version)
        return call.answer["orders", 0].name

    return event


def fetch(member_id: str | None, offset: int = 0) -> Callable[[Cast], str]:
    def event(cast: Cast) -> str:
        group = cast.stage.shard.groups.get("g")
        if group is None:
            return "NONE"
        try:
            group.check_fetch(member_id, -1 if member_id is None else cast.anna.epoch + offset)
        except GroupError as error:
            return error.code.name
        return "NONE"

    return event


def expires(kind: str, member_id: str) -> Callable[[Cast], str]:
    def event(cast: Cast) -> str:
        timer = Timer("g", kind, member_id)
        if timer not in cast.stage.shard.deadlines:
            return "–"
        cast.stage.shard.deadlines.set(timer, cast.stage.tick_ms)
        cast.stage.jump(0)
        return "due"

    return event


EVENTS: dict[str, Callable[[Cast], str]] = {
    "a new member joins": joins(member_id="bert"),
    "a new static member joins": joins(member_id="bert", instance_id="b"),
    "a member joins again": joins(),
    "a static member, other id": joins(member_id="bert", instance_id="s"),
    "no subscription": joins(topics=None),
    "unknown assignor": joins(assignor="sticky"),
    "invalid expression": joins(regex="("),
    "heartbeat": heartbeat("anna"),
    "heartbeat, static": heartbeat("stan"),
    "heartbeat, other topics": heartbeat("anna", topics=("bills",)),
    "heartbeat, older epoch": relative(-1),
    "heartbeat, larger epoch": relative(5),
    "heartbeat, unknown member": heartbeat("anna", member_id="bert", epoch=1),
    "heartbeat, fenced instance": heartbeat("anna", instance_id="s"),
    "heartbeat, no such instance": heartbeat("anna", instance_id="x"),
    "leaves": heartbeat("anna", epoch=-1),
    "leaves, static": heartbeat("stan", epoch=-2),
    "leaves, unknown": heartbeat("anna", member_id="bert", epoch=-1),
    "JoinGroup, new": classic_join,
    "SyncGroup": classic_request("sync"),
    "Heartbeat": classic_request("heartbeat"),
    "LeaveGroup": classic_request("leave"),
    "commits": commit("anna"),
    "commits, larger epoch": commit("anna", 5),
    "commits, unknown member": commit("bert"),
    "commits, no member": commit(None),
    "commits, version 8": commit("anna", version=8),
    "fetches": fetch("anna"),
    "fetches, other epoch": fetch("anna", 1),
    "fetches, no member": fetch(None),
    "DeleteGroups": lambda cast: cast.stage.delete_groups("admin", "g").answer["g"].name,
    "session expires": expires("session", "anna"),
    "static session expires": expires("session", "stan"),
    "rebalance timeout": expires("rebalance", "anna"),
    "assignment is due": expires("assignment", ""),
}


def state_of(cast: Cast) -> str:
    group = cast.stage.shard.groups.get("g")
    if group is None:
        return "None"
    return group.state.value if group.type == "consumer" else "classic"


def outcome(event: str, state: str) -> str:
    cast = STATES[state]()
    assert state_of(cast) == state
    code = EVENTS[event](cast)
    after = state_of(cast)
    short = SHORT.get(code, code)
    cast.stage.restart()
    return short if after == state else f"{short}→{after}"


def rows() -> dict[str, list[str]]:
    lines = [line for line in TABLE.splitlines() if line.strip()][1:]
    return {line[:28].strip(): line[28:].split("  ") for line in lines}


@pytest.mark.parametrize("event", EVENTS)
def test_the_outcome_is_that_of_the_table(event):
    expected = [cell.strip() for cell in rows().get(event, []) if cell.strip()]

    actual = [outcome(event, state) for state in STATES]

    if "TEST_REWRITE" in os.environ:
        print("ROW " + event.ljust(28) + "  ".join(cell.ljust(13) for cell in actual).rstrip())
    else:
        assert actual == expected


def test_every_event_is_in_the_table():
    assert list(rows()) == list(EVENTS)
