"""One broker for all commands, and a topic per test."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import pytest

from harness.command import Command
from ottla.testing import RunningBroker


@pytest.fixture
def run(ottla_session_broker: RunningBroker, tmp_path: Path) -> Command:
    """The command line, with OTTLA_BOOTSTRAP set to the broker."""
    return Command(ottla_session_broker.bootstrap, str(tmp_path))


@pytest.fixture
def name() -> str:
    """A unique topic name."""
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
def topic(run: Command, name: str) -> str:
    """A topic with two partitions."""
    run("topic", "create", name, "--partitions", "2")
    return name
