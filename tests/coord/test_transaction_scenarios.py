"""Scenarios: each file of transaction_scenarios/ is a dialogue with a transaction shard.

An action starts at the margin; the indented lines below it show the records that are appended, the
markers that are asked for, and the responses. `TEST_REWRITE=1` writes these lines into the files,
to be reviewed as a diff.

Actions, all of them about one transactional id:

    anna initializes                     also: with her epoch
    anna adds t-0 t-1                    also: in version 2
    anna commits; anna aborts            also: in version 2; with epoch 3
    markers are written                  also: to t-0
    3s pass; timeouts are checked; expiration is checked; memory is exhausted
    appends are held; an append completes; an append fails; appends resume
    the epoch is 32766
    the shard is reloaded                from the log alone
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from harness.transaction_stage import ID, TransactionCall, TransactionStage
from ottla.coord.effects import Append, LogMessage, Producer
from ottla.coord.metadata_image import TopicPartition
from ottla.coord.transaction_records import TransactionMetadata, TransactionRecord
from ottla.protocol.errors import ErrorCode

SCENARIOS = sorted((Path(__file__).parent / "transaction_scenarios").glob("*.txt"))
REWRITE = "TEST_REWRITE" in os.environ
UNITS_MS = {"ms": 1, "s": 1000, "min": 60_000, "d": 24 * 3_600_000}


@pytest.mark.parametrize("path", SCENARIOS, ids=lambda path: path.stem)
def test_the_transaction_behaves_as_in_the_scenario(path):
    text = path.read_text()

    runner = ScenarioRunner()
    result = runner.run(text)

    if REWRITE:
        path.write_text(result)
    else:
        assert result == text
    assert runner.stage.waiting == []
    assert not runner.stage.held


class ScenarioRunner:
    """Carries out the actions of a scenario, and collects what follows."""

    def __init__(self) -> None:
        self.stage = TransactionStage()
        self.stage.on_append = self.appending
        self.stage.on_answer = self.answered
        self.stage.on_log = self.logged
        self.producers: dict[str, Producer] = {}
        self.lines: list[str] = []

    def run(self, text: str) -> str:
        result = []
        for line in text.splitlines():
            if line.startswith(" "):
                continue
            result.append(line)
            if line and not line.startswith("#"):
                result += [f"    {outcome}" for outcome in self.do(line)]
        return "\n".join(result) + "\n"

    def do(self, line: str) -> list[str]:
        self.lines = []
        markers = len(self.stage.markers)
        for pattern, action in ACTIONS:
            if match := re.fullmatch(pattern, line):
                call = action(self, *(group or "" for group in match.groups()))
                if isinstance(call, TransactionCall) and call.answer is None:
                    self.lines.append(f"{call.who} waits")
                break
        else:
            raise AssertionError(f"Unknown action: {line}")
        for effect in self.stage.markers[markers:]:
            kind = "commit" if effect.is_commit else "abort"
            self.lines.append(
                f"markers: {kind} {name(effect.producer)}, {listed(effect.partitions)}"
            )
        return self.lines

    # Actions.

    def initializes(self, who: str, knows: str) -> TransactionCall:
        return self.stage.init(who, self.producers[who] if knows else None)

    def adds(self, who: str, partitions: str, version: str) -> TransactionCall:
        tps = [parsed(text) for text in partitions.split()]
        return self.stage.add(who, self.producers[who], *tps, version=2 if version else 0)

    def ends(self, who: str, what: str, version: str, epoch: str) -> TransactionCall:
        producer = self.producers[who]
        if epoch:
            producer = producer._replace(epoch=int(epoch))
        return self.stage.end(who, producer, commit=what == "commits", bumps_epoch=bool(version))

    def write_markers(self, partitions: str) -> None:
        only = [parsed(text) for text in partitions.split()] if partitions else None
        self.stage.write_markers(only)

    def pass_time(self, amount: str, unit: str) -> None:
        self.stage.pass_time(int(amount) * UNITS_MS[unit])

    def check_timeouts(self) -> None:
        self.stage.check_timeouts()

    def check_expiration(self) -> None:
        self.stage.check_expiration()

    def check_idle_ids(self) -> None:
        self.stage.check_idle_ids()

    def hold(self) -> None:
        self.stage.holds = True

    def complete(self) -> None:
        self.stage.complete_append()

    def fail(self) -> None:
        self.stage.complete_append(ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def resume(self) -> None:
        self.stage.holds = False
        while self.stage.held:
            self.stage.complete_append()

    def set_epoch(self, epoch: str) -> None:
        metadata = self.stage.metadata
        assert metadata is not None
        metadata = metadata._replace(producer_epoch=int(epoch))
        self.stage.run([Append([TransactionRecord(ID, metadata)])])
        self.producers = dict.fromkeys(
            self.producers, Producer(metadata.producer_id, metadata.producer_epoch)
        )

    def reload(self) -> None:
        self.stage.reload()

    # What follows.

    def appending(self, append: Append) -> None:
        for _id, metadata in append.records:
            assert metadata is None or isinstance(metadata, TransactionMetadata)
            self.lines.append(f"appending: {described(metadata)}")

    def answered(self, call: TransactionCall) -> None:
        if isinstance(call.answer, ErrorCode):
            self.lines.append(f"{call.who}: {call.answer.name}")
            return
        code, producer = call.answer
        if code is ErrorCode.NONE:
            self.producers[call.who] = producer
            self.lines.append(f"{call.who}: {name(producer)}")
        else:
            self.lines.append(f"{call.who}: {code.name}")

    def logged(self, message: LogMessage) -> None:
        self.lines.append(f"logged: {message.message}")


ACTIONS = [
    (r"(\w+) initializes( with \w+ epoch)?", ScenarioRunner.initializes),
    (r"(\w+) adds ((?:\w+-\d ?)+?)( in version 2)?", ScenarioRunner.adds),
    (r"(\w+) (commits|aborts)( in version 2)?(?: with epoch (\d+))?", ScenarioRunner.ends),
    (r"markers are written(?: to (.+))?", ScenarioRunner.write_markers),
    (r"(\d+)(ms|s|min|d) pass", ScenarioRunner.pass_time),
    (r"timeouts are checked", ScenarioRunner.check_timeouts),
    (r"expiration is checked", ScenarioRunner.check_expiration),
    (r"memory is exhausted", ScenarioRunner.check_idle_ids),
    (r"appends are held", ScenarioRunner.hold),
    (r"an append completes", ScenarioRunner.complete),
    (r"an append fails", ScenarioRunner.fail),
    (r"appends resume", ScenarioRunner.resume),
    (r"the epoch is (\d+)", ScenarioRunner.set_epoch),
    (r"the shard is reloaded", ScenarioRunner.reload),
]


def parsed(text: str) -> TopicPartition:
    topic, _, index = text.rpartition("-")
    return TopicPartition(topic, int(index))


def name(producer: Producer) -> str:
    return f"{producer.id}/{producer.epoch}"


def listed(partitions: frozenset[TopicPartition]) -> str:
    return " ".join(f"{topic}-{index}" for topic, index in sorted(partitions)) or "no partitions"


def described(metadata: TransactionMetadata | None) -> str:
    if metadata is None:
        return "tombstone"
    producer = Producer(metadata.producer_id, metadata.producer_epoch)
    parts = [metadata.state.label, name(producer)]
    if metadata.next_producer_id >= 0:
        parts.append(f"next {metadata.next_producer_id}")
    if metadata.partitions:
        parts.append(listed(metadata.partitions))
    return ", ".join(parts)
