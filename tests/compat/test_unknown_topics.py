"""Producing to an unknown topic without auto-creation."""

from __future__ import annotations

import pytest

from golden.corpus import Record
from harness.clients.base import RequestError
from harness.clients.registry import with_every_client

UNKNOWN_TOPIC = 3
# librdkafka's own codes: unknown topic, unknown partition.
LOCALLY_UNKNOWN = (-188, -190)


@pytest.fixture(scope="module")
def broker_flags():
    return ("--set", "auto.create.topics.enable=false")


@with_every_client("produce")
def test_producing_to_an_unknown_topic_fails(client, helper, name):
    client.topic_timeout_seconds = 2.0

    with pytest.raises(RequestError) as error:
        client.produce(name, [Record(None, b"value")])

    # Java and kafka-python report a timeout of the metadata.
    text = str(error.value)
    assert error.value.code in (UNKNOWN_TOPIC, *LOCALLY_UNKNOWN) or "metadata" in text, text
    assert name not in helper.topics()
