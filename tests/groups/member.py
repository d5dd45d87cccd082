"""A member of a group: reads, says what it got, commits, says that it did. A process of its own.

    python member_CLIENT.py SETTINGS

SETTINGS are JSON: see `Settings`. This is what the members in Python share. What happens is said in
a journal, a file that all members of a group share. Each line is one write to its end, so that the
order is that in which things happened, whoever says it, and kill -9 loses nothing:

    a assigned 0,1,2
    a got 1 17 value
    a committing 1 18
    a committed 1 18
    a refused 22
    a revoked 0,1,2
    a ends

SIGTERM lets it leave as one should.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable
from typing import Any


class Settings:
    """What a member is told."""

    def __init__(self, text: str) -> None:
        said = json.loads(text)
        self.name: str = said["name"]
        self.bootstrap: str = said["bootstrap"]
        self.group: str = said["group"]
        self.topic: str = said["topic"]
        self.events: str = said["journal"]
        #: Range, roundrobin, sticky or cooperative-sticky.
        self.assignors: list[str] = said["assignors"]
        self.instance: str | None = said["instance"]
        self.session_ms: int = said["session_ms"]
        self.heartbeat_ms: int = said["heartbeat_ms"]
        self.rebalance_ms: int = said["rebalance_ms"]


class EventLog:
    """Where it says what happens."""

    def __init__(self, settings: Settings) -> None:
        self._name = settings.name
        self._file = os.open(settings.events, os.O_WRONLY | os.O_APPEND)

    def say(self, verb: str, *words: object) -> None:
        line = " ".join(map(str, (self._name, verb, *words)))
        os.write(self._file, line.encode() + b"\n")

    def say_partitions(self, verb: str, partitions: Iterable[Any]) -> None:
        self.say(verb, ",".join(str(number) for number in sorted(p.partition for p in partitions)))

    def say_got(self, records: Iterable[tuple[int, int, bytes]]) -> dict[int, int]:
        """Say what was delivered, and give how far that is in each partition."""
        reached: dict[int, int] = {}
        lines = []
        for partition, offset, value in records:
            reached[partition] = offset + 1
            lines.append(f"{self._name} got {partition} {offset} {value.decode()}\n")
        if lines:
            os.write(self._file, "".join(lines).encode())
        return reached

    def committing(self, reached: dict[int, int], commit: Callable[[], Any]) -> None:
        """Commit, and say so before and after."""
        for partition, offset in reached.items():
            self.say("committing", partition, offset)
        commit()
        for partition, offset in reached.items():
            self.say("committed", partition, offset)


def main(run: Callable[[Settings, EventLog, threading.Event], None]) -> None:
    """Be a member, until SIGTERM."""
    # What clients have to say of brokers that go and come.
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    settings = Settings(sys.argv[1])
    journal = EventLog(settings)
    stopping = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stopping.set())
    run(settings, journal, stopping)
    journal.say("ends")
