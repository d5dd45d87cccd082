"""Topic names that are invalid, unusual, or names of the broker's own files."""

from __future__ import annotations

import re
from pathlib import Path

from harness.daemon import Daemon
from harness.wire import BlockingWireClient
from ottla.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest

#: Invalid topic names.
INVALID_NAMES = [
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
    "ｔｏｐｉｃ",  # Full-width letters, which normalization turns into ASCII.
    "t\u0430",  # A Cyrillic a.
    "\ufeffx",
    "🎈",
    "\ud7ff",
    "x:y",
    "x*",
    "-0/..",
]
#: Unusual but valid topic names.
UNUSUAL_NAMES = ["...", "x" * 249, "-", "_", "-0", "x-0", "x-0-1", "CON", "lock.", "a..b", "--help"]
#: Names of files in the data directory, and their suffixes.
FILE_NAMES = [
    "lock",
    "meta.json",
    "clean-shutdown",
    "recovery-point",
    "x.deleted",
    "x.tmp",
    "x.stray",
]


def create(connection: BlockingWireClient, *names: str, version: int = 7) -> list[int]:
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    response = connection.request(CreateTopicsRequest(topics=topics, timeout_ms=5000), version)
    return [topic.error_code for topic in response.topics]


def paths(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def has_only_log_directories(broker: Daemon) -> bool:
    """Whether all directories of the data directory are logs, and nothing is outside of it."""
    outside = [path for path in paths(broker.folder.parent) if not path.startswith("home/data/")]
    logs = [path.name for path in broker.data.iterdir() if path.is_dir()]
    return outside == ["home", "home/broker.log", "home/data"] and all(
        re.fullmatch(r"[a-zA-Z0-9._-]{1,249}-\d+", name) for name in logs
    )
