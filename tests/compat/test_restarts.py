"""A broker that goes away and comes back finds its clients waiting."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator

import pytest

from golden.corpus import Record
from harness.clients.agents import Agent
from harness.clients.base import TIMEOUT_SECONDS, ConsumedRecord
from harness.clients.registry import CLIENTS

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
    helper.produce(topic, [Record(None, b"before", (), NOW)])
    rows: list[ConsumedRecord] = []

    def read() -> None:
        rows.extend(client.consume({(topic, 0): 0}, 2, max_wait_ms=500)[topic, 0])

    client.has_consumed.clear()
    reader = threading.Thread(target=read)
    reader.start()
    # A client that has not come so far yet would find no broker to begin with.
    if isinstance(client, Agent):
        time.sleep(3)
    else:
        assert client.has_consumed.wait(TIMEOUT_SECONDS)
    broker.kill()
    time.sleep(0.2)
    broker.start()
    helper.produce(topic, [Record(None, b"after", (), NOW)])
    reader.join()

    assert rows == [
        ConsumedRecord(0, NOW, None, b"before", ()),
        ConsumedRecord(1, NOW, None, b"after", ()),
    ]
