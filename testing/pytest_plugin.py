"""pytest's fixtures: a broker in this process, in milliseconds, for any client.

    def test_orders_are_billed(ottla_broker):
        ottla_broker.create_topic("orders", partitions=3)
        ...

    @pytest.mark.ottla_broker(num_partitions=3)     # settings of the broker of one test
    def test_…(ottla_broker): …

pytest loads this wherever ottla is installed, so that nothing but pytest is imported until a
fixture is used. docs/testing.md has the rest.
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
    """Let pytest know of the marker."""
    says = "(**settings): settings of the broker that `ottla_broker` gives, as in num_partitions=3"
    config.addinivalue_line("markers", f"{_MARKER}{says}")


@pytest.fixture(scope="session")
def ottla_broker_config() -> Mapping[str, Any]:
    """Give settings of all brokers; a conftest.py may have its own fixture of this name."""
    return {}


@pytest.fixture
def ottla_broker_factory(
    ottla_broker_config: Mapping[str, Any],
) -> Iterator[Callable[..., RunningBroker]]:
    """Start brokers with settings of their own, which end with the test."""
    from .running_broker import RunningBroker  # noqa: PLC0415  # see above

    with ExitStack() as brokers:

        def start(**settings: Any) -> RunningBroker:
            return brokers.enter_context(RunningBroker(**{**ottla_broker_config, **settings}))

        yield start


@pytest.fixture
def ottla_broker(
    request: pytest.FixtureRequest, ottla_broker_factory: Callable[..., RunningBroker]
) -> RunningBroker:
    """Give a broker that this test has for itself."""
    settings: dict[str, Any] = {}
    for marker in reversed(list(request.node.iter_markers(_MARKER))):
        if marker.args:
            pytest.fail(f"{_MARKER}{marker.args}: settings have names, as in num_partitions=3")
        settings |= marker.kwargs
    return ottla_broker_factory(**settings)


@pytest.fixture(scope="session")
def ottla_session_broker(ottla_broker_config: Mapping[str, Any]) -> Iterator[RunningBroker]:
    """Give a broker that all tests of the session share: each has topics of its own."""
    from .running_broker import RunningBroker  # noqa: PLC0415

    with RunningBroker(**ottla_broker_config) as broker:
        yield broker
