"""Every client lists a thousand topics."""

from __future__ import annotations

import time

import pytest

from harness.clients.registry import with_every_client

MANY = [f"topic-{number:04}" for number in range(1000)]


@pytest.fixture(scope="module")
def many(clients) -> None:
    started = time.perf_counter()
    clients.confluent.create_topics(MANY)
    print(f"{len(MANY)} topics created in {time.perf_counter() - started:.2f} s")


@with_every_client("topics")
def test_every_client_lists_all_topics(client, many):
    started = time.perf_counter()

    found = client.topics()

    print(f"{len(found)} topics listed in {time.perf_counter() - started:.2f} s")
    assert found == dict.fromkeys(MANY, 1)
