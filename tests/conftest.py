"""Settings and fixtures that all tests share.

`pytest --hypothesis-profile=deep` looks longer, and elsewhere each time.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from compat.everybody import Pipes

pytest_plugins = ("ottla.testing.pytest_plugin", "pytester")

settings.register_profile(
    "fast",
    max_examples=10,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("deep", max_examples=300, deadline=None)
settings.load_profile("fast")

# A shell that runs the tests in the background has this ignored, in the processes of tests too.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, for a topic or a group."""
    return re.sub(r"[^a-zA-Z0-9-]+", "-", request.node.name).strip("-")


@pytest.fixture(scope="session")
def pipes() -> Iterator[Pipes]:
    """The processes of clients that are not in Python: they take long to start."""
    from compat.everybody import Pipes  # noqa: PLC0415  # imports all other clients

    started = Pipes()
    yield started
    started.close()
