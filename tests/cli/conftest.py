"""One broker for all commands, and a topic for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import pytest

from cli.command import Command
from daemon import Daemon, shown_on_failure


@pytest.fixture(scope="session")
def broker_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    settings = ("--set", "group.initial.rebalance.delay.ms=0", "--set", "log.durability=page-cache")
    with Daemon(tmp_path_factory.mktemp("broker"), *settings) as started:
        yield started


@pytest.fixture
def broker(request: Any, broker_of_the_session: Daemon) -> Iterator[Daemon]:
    with shown_on_failure(request, [broker_of_the_session]):
        yield broker_of_the_session


@pytest.fixture
def run(broker: Daemon, tmp_path: Any) -> Command:
    """The command line, with the broker's address in its environment."""
    return Command(broker.address, str(tmp_path))


@pytest.fixture
def name() -> str:
    """A name that nobody else has."""
    return f"t-{uuid4().hex[:12]}"


@pytest.fixture
def topic(run: Command, name: str) -> str:
    """A topic with two partitions."""
    run("topic", "create", name, "--partitions", "2")
    return name
