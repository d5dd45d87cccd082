"""Three brokers for each module, and the clients that talk to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from harness.clients.base import Client
from harness.clients.registry import AgentProcesses, Clients
from harness.daemon import Cluster, shown_on_failure


@pytest.fixture(scope="module")
def settings() -> tuple[str, ...]:
    """What the brokers of the module are started with; a module may say otherwise."""
    return ()


@pytest.fixture(scope="module")
def cluster_of_the_module(
    tmp_path_factory: pytest.TempPathFactory, settings: tuple[str, ...]
) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("cluster"), 3, *settings) as started:
        yield started
        started.stop()
        for broker in started:
            assert " ERROR " not in broker.log.read_text(), broker.last_words()


@pytest.fixture
def cluster(request: Any, cluster_of_the_module: Cluster) -> Iterator[Cluster]:
    with shown_on_failure(request, cluster_of_the_module.brokers):
        yield cluster_of_the_module


@pytest.fixture(scope="module")
def clients(cluster_of_the_module: Cluster, agent_processes: AgentProcesses) -> Iterator[Clients]:
    # By one address only: the others they have to find out.
    clients = Clients(cluster_of_the_module[1].address, agent_processes)
    yield clients
    clients.close()


@pytest.fixture
def client(request: Any, clients: Clients, cluster: Cluster) -> Client:
    return clients[request.param]
