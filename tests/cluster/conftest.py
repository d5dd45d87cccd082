"""Three brokers for each module, and the clients that talk to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from compat.clients import Client
from compat.everybody import Everybody, Pipes
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
def everybody(cluster_of_the_module: Cluster, pipes: Pipes) -> Iterator[Everybody]:
    # By one address only: the others they have to find out.
    clients = Everybody(cluster_of_the_module[1].address, pipes)
    yield clients
    clients.close()


@pytest.fixture
def client(request: Any, everybody: Everybody, cluster: Cluster) -> Client:
    return everybody[request.param]
