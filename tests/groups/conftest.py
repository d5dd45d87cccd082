"""A broker per module that allows short session timeouts, and clients of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.fixtures import broker, client, clients, module_broker  # noqa: F401
from harness.group_members import BROKER_FLAGS, remove_java_classes


@pytest.fixture(scope="module")
def broker_flags() -> tuple[str, ...]:
    return BROKER_FLAGS


@pytest.fixture(scope="session", autouse=True)
def _classes() -> Iterator[None]:
    yield
    remove_java_classes()
