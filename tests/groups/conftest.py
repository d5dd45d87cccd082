"""A broker for each module that lets members be impatient, and a group for each test."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from groups.company import BROKER, remove_java_classes
from harness.daemon import Daemon, shown_on_failure


@pytest.fixture(scope="module")
def broker_of_the_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("broker"), *BROKER) as started:
        yield started


@pytest.fixture
def broker(request: Any, broker_of_the_module: Daemon) -> Iterator[Daemon]:
    with shown_on_failure(request, [broker_of_the_module]):
        yield broker_of_the_module


@pytest.fixture(scope="session", autouse=True)
def _classes() -> Iterator[None]:
    yield
    remove_java_classes()
