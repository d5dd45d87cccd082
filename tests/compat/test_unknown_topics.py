"""A broker that makes no topics unless it is told to."""

from __future__ import annotations

import pytest

from golden.corpus import Record
from harness.clients.base import RequestError
from harness.clients.registry import with_every_client

UNKNOWN_TOPIC = 3
# librdkafka's own: "unknown topic", "unknown partition".
LOCALLY_UNKNOWN = (-188, -190)


@pytest.fixture(scope="module")
def broker_flags():
    return ("--set", "auto.create.topics.enable=false")


@with_every_client("produce")
def test_nobody_writes_to_a_topic_that_is_not_there(client, helper, name):
    client.topic_timeout_seconds = 2.0

    with pytest.raises(RequestError) as refused:
        client.produce(name, [Record(None, b"value")])

    # Java and kafka-python only say that the metadata had no such topic in time.
    told = str(refused.value)
    assert refused.value.code in (UNKNOWN_TOPIC, *LOCALLY_UNKNOWN) or "metadata" in told, told
    assert name not in helper.topics()
