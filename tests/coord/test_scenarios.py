"""Scenarios: each file of scenarios/ is a dialogue between clients and a group shard.

An action starts at the margin; the indented lines below it show the responses, the records that are
appended, and the state of the group if it changes. `TEST_REWRITE=1` writes these lines into the
files, to be reviewed as a diff.

Actions:

    config max_size 2                    before anything else
    anna joins                           and again with her member id, if she gets one
    anna joins (instance a, v3)          from now on; also offers, topics, session, rebalance, type
    anna requests a member id            and does not join with it
    anna restarts                        a new process, without a member id, joins
    anna assigns anna=0 bert=1,2         the SyncGroup of the leader
    anna syncs                           also: as of generation 7; as nobody-9; with protocol sticky
    anna sends a heartbeat; anna leaves  also: as of generation 7; as nobody-9
    anna commits orders-0 at 5
    somebody commits orders-0 at 5       without being a member
    admin deletes group g; admin deletes offsets of orders-0; admin removes instance a
    topic orders is deleted; clean-up runs
    3s pass                              with each timer handled in time; or late: 3s pass at once
    appends are held; an append completes; an append fails; appends resume
    the shard is reloaded                from the log alone
    describe the group
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from harness.group_stage import DAY_MS, Call, Stage, a_config, subscription
from ottla.coord.effects import Append
from ottla.coord.group_shard import MemberIdentity
from ottla.coord.member import Protocols
from ottla.coord.metadata_image import TopicPartition
from ottla.coord.records import OffsetRecord
from ottla.protocol.errors import ErrorCode

SCENARIOS = sorted((Path(__file__).parent / "scenarios").glob("*.txt"))
REWRITE = "TEST_REWRITE" in os.environ

UNITS_MS = {"ms": 1, "s": 1000, "min": 60_000, "h": 3_600_000, "d": DAY_MS}
#: No initial delay, unless the scenario is about it.
DEFAULTS = {"initial_rebalance_delay_ms": 0}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_group_behaves_as_in_the_scenario(path):
    text = path.read_text()

    runner = ScenarioRunner()
    result = runner.run(text)

    if REWRITE:
        path.write_text(result)
    else:
        assert result == text
    assert runner.stage.waiting == []
    assert not runner.stage.held


@dataclass
class Client:
    """A client: what it sends when it joins, and what it knows of its membership."""

    name: str
    member_id: str = ""
    generation: int = -1
    instance_id: str | None = None
    version: int = 9
    offers: tuple[str, ...] = ("range",)
    topics: tuple[str, ...] = ("orders",)
    session_ms: int = 10_000
    rebalance_ms: int = 60_000
    type: str = "consumer"

    @property
    def protocols(self) -> Protocols:
        metadata = b"?" if self.topics == ("?",) else subscription(*self.topics)
        return tuple((name, metadata) for name in self.offers)

    def change(self, options: str) -> None:
        for option in re.split(r",\s*", options):
            name, _, rest = option.partition(" ")
            if name == "instance":
                self.instance_id = rest
            elif name in ("offers", "topics"):
                setattr(self, name, tuple(rest.split()))
            elif name in ("session", "rebalance"):
                setattr(self, f"{name}_ms", milliseconds(rest))
            elif name == "type":
                self.type = rest
            else:
                self.version = int(name.removeprefix("v"))

    def identity(self, exceptions: str) -> MemberIdentity:
        """The identity that a request claims, which may be wrong."""
        identity = MemberIdentity(self.member_id, self.instance_id, self.generation)
        if match := re.search(r"as of generation (\S+)", exceptions):
            identity = identity._replace(generation=int(match[1]))
        if match := re.search(r"as (\S+-\d+)", exceptions):
            identity = identity._replace(member_id=match[1])
        return identity


@dataclass
class ScenarioRunner:
    """Carries out the actions of a scenario, and collects what follows."""

    stage: Stage = field(default_factory=lambda: Stage(a_config(**DEFAULTS)))
    clients: dict[str, Client] = field(default_factory=dict)
    configs: dict[str, Any] = field(default_factory=lambda: dict(DEFAULTS))
    lines: list[str] = field(default_factory=list)

    def run(self, text: str) -> str:
        self.listen()
        result = []
        for line in text.splitlines():
            if line.startswith(" "):
                continue
            result.append(line)
            if line and not line.startswith("#"):
                result += [f"    {outcome}" for outcome in self.do(line)]
        return "\n".join(result) + "\n"

    def listen(self) -> None:
        self.stage.on_answer = self.answered
        self.stage.on_append = self.appended

    def do(self, line: str) -> list[str]:
        self.lines = []
        before = self.stage.state
        for pattern, action in ACTIONS:
            if match := re.fullmatch(pattern, line):
                action(self, *(group or "" for group in match.groups()))
                break
        else:
            raise AssertionError(f"Unknown action: {line}")
        if self.stage.state is not before:
            state = self.stage.state
            self.lines.append(f"[{'no group' if state is None else state.value}]")
        return self.lines

    # Actions.

    def set(self, name: str, value: str) -> None:
        self.configs[name] = int(value) if value.isdigit() else milliseconds(value)
        self.stage = Stage(a_config(**self.configs))
        self.listen()

    def join(self, name: str, options: str) -> None:
        client = self.client(name)
        if options:
            client.change(options)
        call = self.send_join(client)
        if call.answer is not None and call.code == "MEMBER_ID_REQUIRED":
            self.lines.pop()
            call = self.send_join(client)
        self.waits(call)

    def request_id(self, name: str) -> None:
        self.send_join(self.client(name))

    def restart_client(self, name: str, options: str) -> None:
        client = self.client(name)
        client.member_id, client.generation = "", -1
        self.join(name, options)

    def assign(self, name: str, text: str) -> None:
        assignments = {}
        for part in text.split():
            member_name, _, assignment = part.partition("=")
            assignments[self.client(member_name).member_id] = assignment.encode()
        self.waits(self.stage.sync(name, self.client(name).identity(""), assignments))

    def sync(self, name: str, exceptions: str) -> None:
        protocol = re.search(r"with protocol (\S+)", exceptions)
        self.waits(
            self.stage.sync(
                name,
                self.client(name).identity(exceptions),
                protocol=(None, protocol[1] if protocol else None),
            )
        )

    def heartbeat(self, name: str, exceptions: str) -> None:
        self.stage.heartbeat(name, self.client(name).identity(exceptions))

    def leave(self, name: str, exceptions: str) -> None:
        identity = self.client(name).identity(exceptions)
        self.stage.leave(name, (identity.member_id, identity.instance_id))

    def commit(self, name: str, topic_partitions: str, offset: str, exceptions: str) -> None:
        no_member = MemberIdentity("", None, -1)
        identity = no_member if name == "somebody" else self.client(name).identity(exceptions)
        version = 8 if "(v8)" in exceptions else 9
        offsets = {parse_tp(text): int(offset) for text in topic_partitions.split()}
        self.waits(self.stage.commit(name, identity, offsets, version=version))

    def remove_instance(self, instance: str) -> None:
        self.stage.leave("admin", ("", instance))

    def delete_groups(self, group_ids: str) -> None:
        self.waits(self.stage.delete_groups("admin", *group_ids.split()))

    def delete_offsets(self, topic_partitions: str) -> None:
        self.waits(self.stage.delete_offsets("admin", *map(parse_tp, topic_partitions.split())))

    def delete_topic(self, name: str) -> None:
        self.stage.delete_topic(name)

    def clean_up(self) -> None:
        self.stage.clean_up()

    def wait(self, time: str, at_once: str) -> None:
        if at_once:
            self.stage.jump(milliseconds(time))
            return
        end_ms = self.stage.tick_ms + milliseconds(time)
        while (next_ms := self.stage.shard.deadlines.next()) is not None and next_ms <= end_ms:
            start = len(self.lines)
            passed_ms = milliseconds(time) - end_ms + next_ms
            self.stage.jump(next_ms - self.stage.tick_ms)
            self.lines[start:] = [f"{seconds(passed_ms)}: {line}" for line in self.lines[start:]]
        self.stage.jump(end_ms - self.stage.tick_ms)

    def hold(self) -> None:
        self.stage.holds = True

    def resume(self) -> None:
        self.stage.holds = False
        self.stage.release_all()

    def complete(self, outcome: str) -> None:
        self.stage.release(
            ErrorCode.NONE if outcome == "completes" else ErrorCode.COORDINATOR_NOT_AVAILABLE
        )

    def reload(self) -> None:
        for call in self.stage.restart():
            self.lines.append(f"{call.who} gets no response")
        self.describe()

    def describe(self) -> None:
        group = self.stage.shard.groups.get("g")
        if group is None:
            self.lines.append("no group")
            return
        self.lines.append(f"{group.state.value}, generation {group.generation}")
        for member in group.members.values():
            role = " (leader)" if member.id == group.leader else ""
            self.lines.append(f"{member.id}{role} is assigned {shown(member.assignment)}")
        for tp, offset in sorted(self.stage.committed().items()):
            self.lines.append(f"{shown_tp(tp)} at {offset}")

    # Outcomes.

    def send_join(self, client: Client) -> Call:
        return self.stage.join(
            client.name,
            client.member_id,
            instance_id=client.instance_id,
            protocols=client.protocols,
            version=client.version,
            session_ms=client.session_ms,
            rebalance_ms=client.rebalance_ms,
            protocol_type=client.type,
        )

    def waits(self, call: Call) -> None:
        if call.answer is None:
            self.lines.append(f"{call.who} waits")

    def appended(self, append: Append) -> None:
        self.lines.append(shown_append(append, held=self.stage.holds))

    def answered(self, call: Call) -> None:
        show = getattr(self, "answered_" + call.what.replace(" ", "_"))
        self.lines += show(call)

    def answered_join(self, call: Call) -> list[str]:
        client, answer = self.client(call.who), call.answer
        if call.code == "MEMBER_ID_REQUIRED":
            client.member_id = answer.member_id
            return [f"{call.who} gets member id {answer.member_id}"]
        if answer.error_code:
            return [f"{call.who} cannot join: {call.code}"]
        client.member_id, client.generation = answer.member_id, answer.generation_id
        generation = f"generation {answer.generation_id}, {answer.protocol_name}"
        if answer.leader != answer.member_id:
            return [f"{call.who} is {answer.member_id} in {generation}, led by {answer.leader}"]
        members = ", ".join(member.member_id for member in answer.members)
        skip = " and skips the assignment" if answer.skip_assignment else ""
        return [f"{call.who} leads {generation}{skip}: {members}"]

    def answered_sync(self, call: Call) -> list[str]:
        if call.answer.error_code:
            return [f"{call.who} cannot sync: {call.code}"]
        return [f"{call.who} is assigned {shown(call.answer.assignment)}"]

    def answered_heartbeat(self, call: Call) -> list[str]:
        return [f"{call.who}: {call.code}"]

    def answered_leave(self, call: Call) -> list[str]:
        codes = {ErrorCode(call.answer.error_code)} | {m.error_code for m in call.answer.members}
        return [f"{call.who}: {shown_code('left', max(codes))}"]

    def answered_commit(self, call: Call) -> list[str]:
        return [
            f"{call.who}: {shown_tp(tp)} {shown_code('committed', code)}"
            for tp, code in call.answer.items()
        ]

    def answered_delete_groups(self, call: Call) -> list[str]:
        return [f"{name}: {shown_code('deleted', code)}" for name, code in call.answer.items()]

    def answered_delete_offsets(self, call: Call) -> list[str]:
        code, codes = call.answer
        if code:
            return [code.name]
        return [f"{shown_tp(tp)}: {shown_code('deleted', code)}" for tp, code in codes.items()]

    def client(self, name: str) -> Client:
        return self.clients.setdefault(name, Client(name))


NAME, OPTIONS = r"(\w+)", r"(?: \((.+)\))?"
ACTIONS = [
    (r"config (\w+) (\w+)", ScenarioRunner.set),
    (rf"{NAME} joins{OPTIONS}", ScenarioRunner.join),
    (rf"{NAME} requests a member id", ScenarioRunner.request_id),
    (rf"{NAME} restarts{OPTIONS}", ScenarioRunner.restart_client),
    (rf"{NAME} assigns(.*)", ScenarioRunner.assign),
    (rf"{NAME} syncs(.*)", ScenarioRunner.sync),
    (rf"{NAME} sends a heartbeat(.*)", ScenarioRunner.heartbeat),
    (rf"{NAME} leaves(.*)", ScenarioRunner.leave),
    (rf"{NAME} commits (.+) at (\d+)(.*)", ScenarioRunner.commit),
    (r"admin removes instance (\w+)", ScenarioRunner.remove_instance),
    (r"admin deletes offsets of (.+)", ScenarioRunner.delete_offsets),
    (r"admin deletes group (.+)", ScenarioRunner.delete_groups),
    (r"topic (\w+) is deleted", ScenarioRunner.delete_topic),
    (r"clean-up runs", ScenarioRunner.clean_up),
    (r"(\w+) pass(?:es)?( at once)?", ScenarioRunner.wait),
    (r"appends are held", ScenarioRunner.hold),
    (r"appends resume", ScenarioRunner.resume),
    (r"an append (completes|fails)", ScenarioRunner.complete),
    (r"the shard is reloaded", ScenarioRunner.reload),
    (r"describe the group", ScenarioRunner.describe),
]


def shown_append(append: Append, *, held: bool) -> str:
    shown_records = []
    for record in append.records:
        if isinstance(record, OffsetRecord):
            tp, committed = shown_tp(record.topic_partition), record.committed
            shown_records.append(
                f"tombstone of {tp}" if committed is None else f"{tp} at {committed.offset}"
            )
        elif record.metadata is None:
            shown_records.append(f"tombstone of {record.group_id}")
        else:
            group = record.metadata
            members = [f"{m.member_id}={shown(m.assignment)}" for m in group.members]
            shown_records.append(
                f"generation {group.generation}, {', '.join(members) or 'no members'}"
            )
    return f"{'appending' if held else 'appended'}: {', '.join(shown_records)}"


def shown_code(success: str, code: int) -> str:
    return ErrorCode(code).name if code else success


def shown(assignment: Any) -> str:
    return bytes(assignment).decode() or "nothing"


def shown_tp(tp: TopicPartition) -> str:
    return f"{tp.topic}-{tp.partition}"


def parse_tp(text: str) -> TopicPartition:
    topic, _, partition = text.rpartition("-")
    return TopicPartition(topic, int(partition))


def milliseconds(text: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([a-z]+)", text).groups()
    return int(number) * UNITS_MS[unit]


def seconds(ms: int) -> str:
    return f"{ms / 1000:g}s"
