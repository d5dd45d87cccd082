"""A broker for each module, the clients that talk to it, and a topic for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from compat.clients import Client
from compat.confluent import Confluent
from compat.everybody import Everybody, Pipes
from harness.daemon import Daemon, shown_on_failure


@pytest.fixture(scope="module")
def settings() -> tuple[str, ...]:
    """What the broker of the module is started with; a module may say otherwise."""
    return ()


@pytest.fixture(scope="module")
def broker_of_the_module(
    tmp_path_factory: pytest.TempPathFactory, settings: tuple[str, ...]
) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("broker"), *settings) as started:
        yield started
        code = started.stop()
        # Whatever clients did, none of it was a bug of the broker's.
        assert " ERROR " not in started.log.read_text(), started.last_words()
        assert code == 0, started.last_words()


@pytest.fixture
def broker(request: Any, broker_of_the_module: Daemon) -> Iterator[Daemon]:
    with shown_on_failure(request, [broker_of_the_module]):
        yield broker_of_the_module


@pytest.fixture(scope="module")
def everybody(broker_of_the_module: Daemon, pipes: Pipes) -> Iterator[Everybody]:
    clients = Everybody(broker_of_the_module.address, pipes)
    yield clients
    clients.close()


@pytest.fixture
def client(request: Any, everybody: Everybody, broker: Daemon) -> Client:
    return everybody[request.param]


@pytest.fixture
def helper(everybody: Everybody) -> Confluent:
    """A client that does what the story needs beside what it is about."""
    return everybody.confluent


@pytest.fixture
def topic(name: str, helper: Confluent, broker: Daemon) -> str:
    """A topic of one partition."""
    helper.create_topic(name)
    return name
