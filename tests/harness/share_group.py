"""A share group of real clients, as `GroupMembers`, and what its event log must not show.

- A record that was accepted or rejected, and whose member knows that, is not delivered again.
- No record is delivered more often than the limit, or twice with the same delivery count.
- None is lost: it was accepted or rejected, or delivered as often as the limit says.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from harness.group_members import MEMBERS, EventLog, GroupMembers, java_command, missing

_FINAL = frozenset({"accept", "reject"})


class ShareEventLog(EventLog):
    """The events of the members of a share group; members/share_member.py lists them."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        #: By partition and offset: delivery counts, what was said, and what a broker confirmed.
        self.deliveries: dict[tuple[int, int], list[int]] = defaultdict(list)
        self.said: dict[tuple[int, int], set[str]] = defaultdict(set)
        self.done: dict[tuple[int, int], str] = {}

    def _apply(self, member: str, event: str, arguments: list[str]) -> None:
        if event == "left":
            return
        at = int(arguments[0]), int(arguments[1])
        if event == "received":
            self.count[member] += 1
            delivery_count = int(arguments[2])
            if at in self.done:
                self.problems.append(f"{member} received {at}, {self._told(at)}")
            if delivery_count in self.deliveries[at]:
                self.problems.append(f"{member} received {at} again, {self._told(at)}")
            self.deliveries[at].append(delivery_count)
            before = self.received.setdefault(at, arguments[3])
            if before != arguments[3]:
                self.problems.append(f"{member} received {arguments}, before it was {before}")
        elif event == "sending":
            self.said[at].add(arguments[2])
        elif event == "acknowledged" and arguments[2] in _FINAL:
            self.done[at] = f"{member}: {arguments[2]}"

    def _told(self, at: tuple[int, int]) -> str:
        """Return the events of a record."""
        own = [str(at[0]), str(at[1])]
        lines = [line for line in self.lines if line[2][:2] == own]
        return "; ".join(f"{member} {event} {words[2:]}" for member, event, words in lines)


class ShareMembers(GroupMembers):
    """The members of a share group, by name."""

    event_log = ShareEventLog
    events: ShareEventLog

    def __init__(self, address: str, folder: Path, group: str, topic: str) -> None:
        super().__init__(address, folder, group, topic, assignors=[])

    def join(self, name: str, client: str, mode: str = "implicit") -> None:
        """Start a member: java or ottla, in the mode implicit, explicit or stalled."""
        if reason := missing(client):
            pytest.skip(reason)
        config = {
            "name": name,
            "bootstrap": self.address,
            "group": self.group,
            "topic": self.topic,
            "events": str(self.events.path),
            "mode": mode,
        }
        program = [sys.executable, str(MEMBERS / "share_member.py")]
        command = java_command("ShareMember") if client == "java" else program
        self._spawn(name, [*command, json.dumps(config)], {})

    def check(self, values: dict[tuple[int, int], str], delivery_limit: int) -> None:
        """Compare the events with the records of the topic that the group must have processed."""
        self.events.read()
        events = self.events
        assert events.problems == [], "\n".join(events.problems)
        assert events.received == values, events.received.items() ^ values.items()
        for at, counts in events.deliveries.items():
            assert max(counts) <= delivery_limit, f"{at} was delivered {counts}"
            is_done = events.said[at] & _FINAL or delivery_limit in counts
            assert is_done, f"{at} is lost: {counts}, {events.said[at]}"
