"""Consumers resume after a broker restart."""

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
#: kcat exits when all brokers are down; kafkajs retries in its group consumer only.
RETRYING = [name for name in CLIENTS if name not in ("kcat", "kafkajs")]


@pytest.fixture
def leaks() -> Iterator[None]:
    """kafka-python leaks sockets of failed connections; collect them in this test."""
    yield
    gc.collect()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.usefixtures("leaks")
@pytest.mark.parametrize("client", RETRYING, indirect=True)
def test_a_consumer_resumes_after_a_broker_crash(client, helper, broker, topic):
    helper.produce(topic, [Record(None, b"before", (), NOW)])
    records: list[ConsumedRecord] = []

    def consume() -> None:
        records.extend(client.consume({(topic, 0): 0}, 2, max_wait_ms=500)[topic, 0])

    client.has_consumed.clear()
    reader = threading.Thread(target=consume)
    reader.start()
    # The client must have connected before the broker is killed.
    if isinstance(client, Agent):
        time.sleep(3)
    else:
        assert client.has_consumed.wait(TIMEOUT_SECONDS)
    broker.kill()
    time.sleep(0.2)
    broker.start()
    helper.produce(topic, [Record(None, b"after", (), NOW)])
    reader.join()

    assert records == [
        ConsumedRecord(0, NOW, None, b"before", ()),
        ConsumedRecord(1, NOW, None, b"after", ()),
    ]
