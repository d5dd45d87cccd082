"""A broker that goes away and comes back finds its clients waiting."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest

from compat.agents import Agent
from compat.clients import PATIENCE_SECONDS, Row
from compat.everybody import CLIENTS
from golden.corpus import Record

pytestmark = pytest.mark.real_time

NOW = 1_700_000_000_000
#: kcat gives up when no broker is left; kafkajs has its patience in a consumer of groups.
PATIENT = [name for name in CLIENTS if name not in ("kcat", "kafkajs")]


@pytest.fixture
def leaks() -> Iterator[None]:
    """kafka-python leaves sockets open that could not be connected; let it show here alone."""
    yield
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("leaks")
@pytest.mark.parametrize("client", PATIENT, indirect=True)
def test_a_consumer_goes_on_where_it_was(client, helper, broker, topic):
    helper.write(topic, [Record(None, b"before", (), NOW)])
    rows: list[Row] = []

    def read() -> None:
        rows.extend(client.read({(topic, 0): 0}, 2, max_wait_ms=500)[topic, 0])

    client.has_read.clear()
    reader = threading.Thread(target=read)
    reader.start()
    # A client that has not come so far yet would find no broker to begin with.
    if isinstance(client, Agent):
        time.sleep(3)
    else:
        assert client.has_read.wait(PATIENCE_SECONDS)
    broker.kill()
    time.sleep(0.2)
    broker.start()
    helper.write(topic, [Record(None, b"after", (), NOW)])
    reader.join()

    assert rows == [Row(0, NOW, None, b"before", ()), Row(1, NOW, None, b"after", ())]
