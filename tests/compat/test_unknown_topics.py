"""A broker that makes no topics unless it is told to."""

from __future__ import annotations

import pytest

from compat.clients import RefusedError
from compat.everybody import told_of
from golden.corpus import Record

UNKNOWN_TOPIC = 3
# librdkafka's own: "unknown topic", "unknown partition".
LOCALLY_UNKNOWN = (-188, -190)


@pytest.fixture(scope="module")
def settings():
    return ("--set", "auto.create.topics.enable=false")


@told_of("write")
def test_nobody_writes_to_a_topic_that_is_not_there(client, helper, name):
    client.topic_seconds = 2.0

    with pytest.raises(RefusedError) as refused:
        client.write(name, [Record(None, b"value")])

    # Java and kafka-python only say that the metadata had no such topic in time.
    told = str(refused.value)
    assert refused.value.code in (UNKNOWN_TOPIC, *LOCALLY_UNKNOWN) or "metadata" in told, told
    assert name not in helper.topics()
