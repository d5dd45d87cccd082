"""Fixtures of folders that test clients: a broker per module, clients of it, a topic per test.

A conftest imports them by name. A module may override `broker_flags`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.clients.base import Client
from harness.clients.confluent import Confluent
from harness.clients.registry import AgentProcesses, Clients
from harness.daemon import Daemon, shown_on_failure


@pytest.fixture(scope="module")
def broker_flags() -> tuple[str, ...]:
    """Command line flags of the module's broker."""
    return ()


@pytest.fixture(scope="module")
def module_broker(
    tmp_path_factory: pytest.TempPathFactory, broker_flags: tuple[str, ...]
) -> Iterator[Daemon]:
    """A broker for the module, which logs no error and stops cleanly at the end."""
    with Daemon(tmp_path_factory.mktemp("broker"), *broker_flags) as started:
        yield started
        code = started.stop()
        assert " ERROR " not in started.log.read_text(), started.log_tail()
        assert code == 0, started.log_tail()


@pytest.fixture
def broker(request: Any, module_broker: Daemon) -> Iterator[Daemon]:
    """The module's broker; its log is printed if the test fails."""
    with shown_on_failure(request, [module_broker]):
        yield module_broker


@pytest.fixture(scope="module")
def clients(module_broker: Daemon, agent_processes: AgentProcesses) -> Iterator[Clients]:
    """All clients of the module's broker."""
    clients = Clients(module_broker.address, agent_processes)
    yield clients
    clients.close()


@pytest.fixture
def client(request: Any, clients: Clients, broker: Daemon) -> Client:
    """The client that `with_every_client` names."""
    return clients[request.param]


@pytest.fixture
def helper(clients: Clients) -> Confluent:
    """A client for what the test needs beside the client under test."""
    return clients.confluent


@pytest.fixture
def topic(name: str, helper: Confluent, broker: Daemon) -> str:
    """A topic with one partition."""
    helper.create_topic(name)
    return name
