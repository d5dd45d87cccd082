"""Names that want to be more than names."""

from __future__ import annotations

import re
from pathlib import Path

from harness.daemon import Daemon
from harness.wire import BlockingWireClient
from ottla.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest

#: No name that a topic can have.
IMPOSSIBLE = [
    "",
    ".",
    "..",
    "../x",
    "../../../../tmp/x",
    "..\\x",
    "/tmp/x",
    "x/../../y",
    "x/y",
    "x\x00y",
    "x\ny",
    "x y",
    "~",
    "$HOME",
    "%2e%2e%2f",
    "x" * 250,
    "x" * 30_000,
    "größe",
    "\u202egnp",
    "ｔｏｐｉｃ",  # wide letters, which a case fold would make plain
    "t\u0430",  # a Cyrillic a
    "\ufeffx",
    "🎈",
    "\ud7ff",
    "x:y",
    "x*",
    "-0/..",
]
#: Names that are odd and fine.
POSSIBLE = ["...", "x" * 249, "-", "_", "-0", "x-0", "x-0-1", "CON", "lock.", "a..b", "--help"]
#: Names that mean something to us. They may be topics or not; our files stay ours.
OURS = ["lock", "meta.json", "clean-shutdown", "recovery-point", "x.deleted", "x.tmp", "x.stray"]


def create(connection: BlockingWireClient, *names: str, version: int = 7) -> list[int]:
    wanted = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    answer = connection.request(CreateTopicsRequest(topics=wanted, timeout_ms=5000), version)
    return [topic.error_code for topic in answer.topics]


def paths(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def only_ours(broker: Daemon) -> bool:
    """Whether all folders in the data directory are logs by name, and nothing is elsewhere."""
    around = [path for path in paths(broker.folder.parent) if not path.startswith("home/data/")]
    logs = [path.name for path in broker.data.iterdir() if path.is_dir()]
    return around == ["home", "home/broker.log", "home/data"] and all(
        re.fullmatch(r"[a-zA-Z0-9._-]{1,249}-\d+", name) for name in logs
    )
