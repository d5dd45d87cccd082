"""One broker, with an authorizer, and one console for most tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("fastapi", reason="the extra ottla[console] is not installed")

from harness.chromium import launched
from harness.console import Console
from ottla.testing import RunningBroker

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def broker() -> Iterator[RunningBroker]:
    """A broker whose ACLs allow everything."""
    configs = {"authorizer_class_name": "acl", "super_users": "User:ANONYMOUS"}
    with RunningBroker(num_partitions=2, **configs) as started:
        yield started


@pytest.fixture(scope="session")
def console(broker: RunningBroker) -> Iterator[Console]:
    """A console without authentication."""
    with Console(broker.bootstrap) as started:
        yield started


@pytest.fixture
def topic(broker: RunningBroker) -> str:
    """A topic with two partitions."""
    return broker.create_topic(partitions=2)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """A browser."""
    with launched() as started:
        yield started
