"""Configuration, markers and fixtures that all tests share.

`pytest --hypothesis-profile=deep` runs more examples, and other ones each time.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings

from harness.markers import sleeps, starts_processes

if TYPE_CHECKING:
    from harness.clients.registry import AgentProcesses

pytest_plugins = ("ottla.testing.pytest_plugin", "pytester")

#: Tests here that start processes kill them, stop them, or depend on wall clocks.
REAL_TIME_FOLDERS = ("chaos", "crash", "groups", "hostile")

settings.register_profile(
    "fast",
    max_examples=10,
    derandomize=True,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("check", parent=settings.get_profile("fast"), max_examples=3)
settings.register_profile("deep", max_examples=300, deadline=None)
settings.load_profile("fast")

# A shell that runs the tests in the background ignores SIGINT; processes of tests would inherit it.
signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add --failures-to, and the options of tests that have a long form."""
    parser.addoption(
        "--failures-to",
        type=Path,
        help="Write a line for each failed test: `real_time` or `other`, and its node id.",
    )
    parser.addoption(
        "--transfers", type=int, help="Orders of each client in compat/test_transfers.py."
    )
    parser.addoption("--transfers-clients", help="Clients in compat/test_transfers.py: a,b.")
    parser.addoption(
        "--failovers",
        type=int,
        help="Kills and stops in cluster/test_clients_through_failovers.py.",
    )
    parser.addoption("--screenshots", type=Path, help="Directory for console/test_screenshots.py.")
    parser.addoption("--transfers-seed", type=int, help="Seed of compat/test_transfers.py.")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that start processes or Spark, or sleep; whole folders are real_time."""
    for item in items:
        folder = item.path.relative_to(Path(__file__).parent).parts[0]
        if folder == "spark" and "spark" in getattr(item, "fixturenames", ()):
            item.add_marker("spark")
        if sleeps(item):
            item.add_marker("sleeps")
        if starts_processes(item):
            item.add_marker("process")
            if folder in REAL_TIME_FOLDERS:
                item.add_marker("real_time")


class FailureList:
    """Writes failed tests to a file, for .ci/run."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.write_text("")

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note a test, setup or teardown that failed."""
        if report.failed:
            is_real_time = "real_time" in report.keywords or _is_about_a_lost_socket(report)
            self._write("real_time" if is_real_time else "other", report.nodeid)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Note a module that cannot be imported."""
        if report.failed:
            self._write("other", report.nodeid)

    def _write(self, marker: str, node_id: str) -> None:
        with self._path.open("a") as file:
            file.write(f"{marker} {node_id}\n")


def _is_about_a_lost_socket(report: pytest.TestReport) -> bool:
    """Whether a setup failed because of a socket that an earlier test did not close.

    A connection that a client opens while the server of a test stops belongs to nobody. Garbage
    collection finds it at any time, and pytest blames the test that runs then.
    """
    text = report.longreprtext
    return (
        report.when == "setup"
        and "PytestUnraisableExceptionWarning" in text
        and "ResourceWarning: unclosed" in text
    )


def pytest_configure(config: pytest.Config) -> None:
    """Note failures where all reports arrive: not in the workers of xdist."""
    path = config.getoption("--failures-to")
    if path is not None and not hasattr(config, "workerinput"):
        config.pluginmanager.register(FailureList(path))


@pytest.fixture
def name(request: pytest.FixtureRequest) -> str:
    """A name for a topic or a group that no other test uses."""
    return re.sub(r"[^a-zA-Z0-9-]+", "-", request.node.name).strip("-")


@pytest.fixture(scope="session")
def agent_processes() -> Iterator[AgentProcesses]:
    """The processes of clients in other languages, shared because they start slowly."""
    from harness.clients.registry import AgentProcesses  # noqa: PLC0415  # imports all other clients

    started = AgentProcesses()
    yield started
    started.close()
