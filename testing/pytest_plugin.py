"""pytest fixtures: a broker in this process for tests with any client, started in milliseconds.

    def test_orders_are_billed(ottla_broker):
        ottla_broker.create_topic("orders", partitions=3)
        ...

    @pytest.mark.ottla_broker(num_partitions=3)     # broker configs of one test
    def test_…(ottla_broker): …

pytest loads this module wherever ottla is installed, so it imports nothing else until a fixture is
used. See docs/testing.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .running_broker import RunningBroker

_MARKER = "ottla_broker"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker."""
    doc = "(**configs): configs of the `ottla_broker` fixture's broker, as in num_partitions=3"
    config.addinivalue_line("markers", f"{_MARKER}{doc}")


@pytest.fixture(scope="session")
def ottla_broker_config() -> Mapping[str, Any]:
    """Return the broker configs of all fixtures; override it in a conftest.py."""
    return {}


@pytest.fixture
def ottla_broker_factory(
    ottla_broker_config: Mapping[str, Any],
) -> Iterator[Callable[..., RunningBroker]]:
    """Return a function that starts brokers, which stop after the test."""
    from .running_broker import RunningBroker  # noqa: PLC0415

    with ExitStack() as brokers:

        def start(**configs: Any) -> RunningBroker:
            return brokers.enter_context(RunningBroker(**{**ottla_broker_config, **configs}))

        yield start


@pytest.fixture
def ottla_broker(
    request: pytest.FixtureRequest, ottla_broker_factory: Callable[..., RunningBroker]
) -> RunningBroker:
    """Start a broker for one test."""
    configs: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(_MARKER))):
        if marker.args:
            pytest.fail(f"{_MARKER}{marker.args}: use keyword arguments, as in num_partitions=3")
        configs |= marker.kwargs
    return ottla_broker_factory(**configs)


@pytest.fixture(scope="session")
def ottla_session_broker(ottla_broker_config: Mapping[str, Any]) -> Iterator[RunningBroker]:
    """Start a broker that all tests share; `create_topic()` returns unique topics."""
    from .running_broker import RunningBroker  # noqa: PLC0415

    with RunningBroker(**ottla_broker_config) as broker:
        yield broker
