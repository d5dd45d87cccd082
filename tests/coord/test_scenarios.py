"""Groups as dialogues: each file of scenarios/ is a story, told by what is done and what follows.

A line at the margin is something that somebody does; the indented lines below it say what everybody
gets, what is written, and the state of the group if it is another one. `TEST_REWRITE=1` writes
what follows into the files, to be read as a diff.

What can be done:

    with max_size 2                      a setting, before anything else
    anna joins                           and again with an id, if she is given one
    anna joins (instance a, v3)          from now on; also offers, topics, session, rebalance, type
    anna asks for an id                  and does not come back with it
    anna starts anew                     a new process of hers, which knows nothing, joins
    anna assigns anna=0 bert=1,2         the leader's sync
    anna syncs, beats, leaves            also: as of generation 7; as nobody-9; by sticky
    anna commits orders-0 at 5
    somebody commits orders-0 at 5       who is no member
    admin deletes g; admin deletes the offset of orders-0; admin removes the instance a
    the topic orders is deleted; housekeeping
    3s pass                              and each deadline is noticed; or, late: 3s pass at once
    writes are held; a write is done; a write fails; writes go on
    the coordinator restarts             with nothing but what was written
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
#: In scenarios that are about something else, nobody waits for more members.
DEFAULTS = {"initial_rebalance_delay_ms": 0}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_it_goes_as_the_scenario_says(path):
    text = path.read_text()

    play = Play()
    told = play.tell(text)

    if REWRITE:
        path.write_text(told)
    else:
        assert told == text
    assert play.stage.waiting == []
    assert not play.stage.held


@dataclass
class Person:
    """A client, with what it remembers of its group, and what it says of itself."""

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

    def as_of(self, exceptions: str) -> MemberIdentity:
        """Who they say they are, which may not be true."""
        who = MemberIdentity(self.member_id, self.instance_id, self.generation)
        if found := re.search(r"as of generation (\S+)", exceptions):
            who = who._replace(generation=int(found[1]))
        if found := re.search(r"as (\S+-\d+)", exceptions):
            who = who._replace(member_id=found[1])
        return who


@dataclass
class Play:
    """Does what a scenario says, and tells what follows."""

    stage: Stage = field(default_factory=lambda: Stage(a_config(**DEFAULTS)))
    people: dict[str, Person] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=lambda: dict(DEFAULTS))
    lines: list[str] = field(default_factory=list)

    def tell(self, text: str) -> str:
        self.listen()
        told = []
        for line in text.splitlines():
            if line.startswith(" "):
                continue
            told.append(line)
            if line and not line.startswith("#"):
                told += [f"    {happened}" for happened in self.do(line)]
        return "\n".join(told) + "\n"

    def listen(self) -> None:
        self.stage.on_answer = self.answered
        self.stage.on_append = self.appended

    def do(self, line: str) -> list[str]:
        self.lines = []
        before = self.stage.state
        for pattern, method in PHRASES:
            if found := re.fullmatch(pattern, line):
                method(self, *(group or "" for group in found.groups()))
                break
        else:
            raise AssertionError(f"nobody knows how to do this: {line}")
        if self.stage.state is not before:
            state = self.stage.state
            self.lines.append(f"[{'no group' if state is None else state.value}]")
        return self.lines

    # What can be done.

    def set(self, name: str, value: str) -> None:
        self.settings[name] = int(value) if value.isdigit() else milliseconds(value)
        self.stage = Stage(a_config(**self.settings))
        self.listen()

    def join(self, name: str, options: str) -> None:
        person = self.person(name)
        if options:
            person.change(options)
        call = self.ask(person)
        if call.answer is not None and call.code == "MEMBER_ID_REQUIRED":
            self.lines.pop()
            call = self.ask(person)
        self.waits(call)

    def ask_for_id(self, name: str) -> None:
        self.ask(self.person(name))

    def start_anew(self, name: str, options: str) -> None:
        person = self.person(name)
        person.member_id, person.generation = "", -1
        self.join(name, options)

    def assign(self, name: str, shares: str) -> None:
        person = self.person(name)
        given = {}
        for share in shares.split():
            who, _, what = share.partition("=")
            given[self.person(who).member_id] = what.encode()
        self.waits(self.stage.sync(name, person.as_of(""), given))

    def sync(self, name: str, exceptions: str) -> None:
        protocol = re.search(r"by (\S+)", exceptions)
        self.waits(
            self.stage.sync(
                name,
                self.person(name).as_of(exceptions),
                protocol=(None, protocol[1] if protocol else None),
            )
        )

    def beat(self, name: str, exceptions: str) -> None:
        self.stage.heartbeat(name, self.person(name).as_of(exceptions))

    def leave(self, name: str, exceptions: str) -> None:
        who = self.person(name).as_of(exceptions)
        self.stage.leave(name, (who.member_id, who.instance_id))

    def commit(self, name: str, topic_partitions: str, offset: str, exceptions: str) -> None:
        nobody = MemberIdentity("", None, -1)
        who = nobody if name == "somebody" else self.person(name).as_of(exceptions)
        version = 8 if "(v8)" in exceptions else 9
        offsets = {parse_tp(text): int(offset) for text in topic_partitions.split()}
        self.waits(self.stage.commit(name, who, offsets, version=version))

    def remove_instance(self, instance: str) -> None:
        self.stage.leave("admin", ("", instance))

    def delete_group(self, *group_ids: str) -> None:
        self.waits(self.stage.delete_groups("admin", *" ".join(group_ids).split()))

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
            seen = len(self.lines)
            passed_ms = milliseconds(time) - end_ms + next_ms
            self.stage.jump(next_ms - self.stage.tick_ms)
            self.lines[seen:] = [f"{seconds(passed_ms)}: {line}" for line in self.lines[seen:]]
        self.stage.jump(end_ms - self.stage.tick_ms)

    def hold(self) -> None:
        self.stage.holds = True

    def go_on(self) -> None:
        self.stage.holds = False
        self.stage.release_all()

    def write(self, how: str) -> None:
        self.stage.release(
            ErrorCode.NONE if how == "is done" else ErrorCode.COORDINATOR_NOT_AVAILABLE
        )

    def restart(self) -> None:
        for call in self.stage.restart():
            self.lines.append(f"{call.who} loses the connection")
        self.show()

    def show(self) -> None:
        group = self.stage.shard.groups.get("g")
        if group is None:
            self.lines.append("there is no group")
            return
        self.lines.append(f"{group.state.value}, generation {group.generation}")
        for member in group.members.values():
            title = ", the leader," if member.id == group.leader else ""
            self.lines.append(f"{member.id}{title} has {shown(member.assignment)}")
        for tp, offset in sorted(self.stage.committed().items()):
            self.lines.append(f"{shown_tp(tp)} at {offset}")

    # What follows.

    def ask(self, person: Person) -> Call:
        return self.stage.join(
            person.name,
            person.member_id,
            instance_id=person.instance_id,
            protocols=person.protocols,
            version=person.version,
            session_ms=person.session_ms,
            rebalance_ms=person.rebalance_ms,
            protocol_type=person.type,
        )

    def waits(self, call: Call) -> None:
        if call.answer is None:
            self.lines.append(f"{call.who} waits")

    def appended(self, append: Append) -> None:
        self.lines.append(written(append, held=self.stage.holds))

    def answered(self, call: Call) -> None:
        tell = getattr(self, "answered_" + call.what.replace(" ", "_"))
        self.lines += tell(call)

    def answered_join(self, call: Call) -> list[str]:
        who, answer = self.person(call.who), call.answer
        if call.code == "MEMBER_ID_REQUIRED":
            who.member_id = answer.member_id
            return [f"{call.who} is to be {answer.member_id}"]
        if answer.error_code:
            return [f"{call.who} cannot join: {call.code}"]
        who.member_id, who.generation = answer.member_id, answer.generation_id
        generation = f"generation {answer.generation_id}, {answer.protocol_name}"
        if answer.leader != answer.member_id:
            return [f"{call.who} is {answer.member_id} in {generation}, led by {answer.leader}"]
        members = ", ".join(member.member_id for member in answer.members)
        but = " and is not to assign" if answer.skip_assignment else ""
        return [f"{call.who} leads {generation}{but}: {members}"]

    def answered_sync(self, call: Call) -> list[str]:
        if call.answer.error_code:
            return [f"{call.who} has no assignment: {call.code}"]
        return [f"{call.who} has {shown(call.answer.assignment)}"]

    def answered_heartbeat(self, call: Call) -> list[str]:
        return [f"{call.who} hears {call.code}" if call.answer.error_code else "fine"]

    def answered_leave(self, call: Call) -> list[str]:
        codes = {ErrorCode(call.answer.error_code)} | {m.error_code for m in call.answer.members}
        return [told("gone", max(codes))]

    def answered_commit(self, call: Call) -> list[str]:
        return [
            f"{call.who}: {shown_tp(tp)} {told('is committed', code)}"
            for tp, code in call.answer.items()
        ]

    def answered_delete_groups(self, call: Call) -> list[str]:
        return [f"{name}: {told('deleted', code)}" for name, code in call.answer.items()]

    def answered_delete_offsets(self, call: Call) -> list[str]:
        code, codes = call.answer
        if code:
            return [code.name]
        return [f"{shown_tp(tp)}: {told('deleted', code)}" for tp, code in codes.items()]

    def person(self, name: str) -> Person:
        return self.people.setdefault(name, Person(name))


NAME, SOME = r"(\w+)", r"(?: \((.+)\))?"
PHRASES = [
    (r"with (\w+) (\w+)", Play.set),
    (rf"{NAME} joins{SOME}", Play.join),
    (rf"{NAME} asks for an id", Play.ask_for_id),
    (rf"{NAME} starts anew{SOME}", Play.start_anew),
    (rf"{NAME} assigns(.*)", Play.assign),
    (rf"{NAME} syncs(.*)", Play.sync),
    (rf"{NAME} beats(.*)", Play.beat),
    (rf"{NAME} leaves(.*)", Play.leave),
    (rf"{NAME} commits (.+) at (\d+)(.*)", Play.commit),
    (r"admin removes the instance (\w+)", Play.remove_instance),
    (r"admin deletes the offsets? of (.+)", Play.delete_offsets),
    (r"admin deletes (.+)", Play.delete_group),
    (r"the topic (\w+) is deleted", Play.delete_topic),
    (r"housekeeping", Play.clean_up),
    (r"(\w+) pass(?:es)?( at once)?", Play.wait),
    (r"writes are held", Play.hold),
    (r"writes go on", Play.go_on),
    (r"a write (is done|fails)", Play.write),
    (r"the coordinator restarts", Play.restart),
    (r"the group", Play.show),
]


def written(append: Append, *, held: bool) -> str:
    shown_records = []
    for record in append.records:
        if isinstance(record, OffsetRecord):
            tp, committed = shown_tp(record.topic_partition), record.committed
            shown_records.append(
                f"{tp} is gone" if committed is None else f"{tp} at {committed.offset}"
            )
        elif record.metadata is None:
            shown_records.append(f"{record.group_id} is gone")
        else:
            group = record.metadata
            members = [f"{m.member_id} has {shown(m.assignment)}" for m in group.members]
            shown_records.append(f"generation {group.generation}, {', '.join(members) or 'nobody'}")
    return f"{'to be written' if held else 'written'}: {', '.join(shown_records)}"


def told(good: str, code: int) -> str:
    return ErrorCode(code).name if code else good


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
