"""Three brokers per module, and clients connected to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.clients.base import Client
from harness.clients.registry import AgentProcesses, Clients
from harness.daemon import Cluster, shown_on_failure


@pytest.fixture(scope="module")
def broker_arguments() -> tuple[str, ...]:
    """Command-line arguments of the brokers; modules may override it."""
    return ()


@pytest.fixture(scope="module")
def module_cluster(
    tmp_path_factory: pytest.TempPathFactory, broker_arguments: tuple[str, ...]
) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 3, *broker_arguments) as started:
        yield started
        started.stop()
        for broker in started:
            assert " ERROR " not in broker.log.read_text(), broker.log_tail()


@pytest.fixture
def cluster(request: Any, module_cluster: Cluster) -> Iterator[Cluster]:
    with shown_on_failure(request, module_cluster.brokers):
        yield module_cluster


@pytest.fixture(scope="module")
def clients(module_cluster: Cluster, agent_processes: AgentProcesses) -> Iterator[Clients]:
    # One bootstrap address: clients discover the others.
    clients = Clients(module_cluster[1].address, agent_processes)
    yield clients
    clients.close()


@pytest.fixture
def client(request: Any, clients: Clients, cluster: Cluster) -> Client:
    return clients[request.param]
