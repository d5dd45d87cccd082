"""Topics, configs and the cluster, with the admin client of every library."""

from __future__ import annotations

import json

import pytest

from golden.corpus import Record
from harness.clients.base import RequestError
from harness.clients.registry import with_every_client

OFFSET_OUT_OF_RANGE = 1
UNKNOWN_TOPIC = 3
MESSAGE_TOO_LARGE = 10
INVALID_TOPIC = 17
TOPIC_EXISTS = 36
INVALID_PARTITIONS = 37
INVALID_CONFIG = 40
FEW = tuple(Record(b"key %d" % n, b"value %d" % n) for n in range(5))


@with_every_client("cluster")
def test_the_cluster_is_described(client, broker):
    cluster = client.cluster()

    meta = json.loads((broker.data / "meta.json").read_text())
    assert cluster.brokers == [(0, broker.address)]
    assert cluster.controller == 0
    assert cluster.id == ("" if client.name == "kcat" else meta["cluster_id"])


@with_every_client("create_topic")
def test_a_topic_is_created_with_partitions_and_configs(client, name):
    client.create_topic(name, 3, {"retention.ms": "86400000", "cleanup.policy": "compact,delete"})

    assert client.topics()[name] == 3
    configs = client.configs(name)
    assert configs["retention.ms"] == "86400000"
    assert configs["cleanup.policy"] == "compact,delete"
    assert configs["segment.bytes"] == str(2**30)


@with_every_client("create_topic")
def test_creating_an_existing_topic_fails(client, topic):
    with pytest.raises(RequestError) as error:
        client.create_topic(topic)

    assert error.value.code == TOPIC_EXISTS, error.value


@with_every_client("create_topic")
@pytest.mark.parametrize(
    ("topic_name", "partitions", "configs", "code"),
    [
        ("no spaces", 1, {}, INVALID_TOPIC),
        ("no-partitions", 0, {}, INVALID_PARTITIONS),
        ("no-such-config", 1, {"no.such": "1"}, INVALID_CONFIG),
        ("no-such-value", 1, {"retention.ms": "soon"}, INVALID_CONFIG),
    ],
)
def test_an_invalid_topic_is_not_created(client, topic_name, partitions, configs, code):
    with pytest.raises(RequestError) as error:
        client.create_topic(topic_name, partitions, configs)

    assert error.value.code == code, error.value
    assert topic_name not in client.topics()


@with_every_client("alter_configs")
def test_an_altered_config_applies_at_once(client, helper, name):
    helper.create_topic(name, configs={"retention.ms": "86400000"})
    helper.produce(name, [Record(None, b"x" * 2000)])

    client.alter_configs(name, {"max.message.bytes": "1000"})

    configs = client.configs(name)
    assert configs["max.message.bytes"] == "1000"
    is_kept = configs["retention.ms"] == "86400000"
    assert is_kept != client.replaces_all_configs
    with pytest.raises(RequestError) as error:
        helper.produce(name, [Record(None, b"x" * 2000)])
    assert error.value.code == MESSAGE_TOO_LARGE
    helper.produce(name, [Record(None, b"x" * 500)])


@with_every_client("alter_configs")
def test_an_invalid_config_changes_nothing(client, name, helper):
    helper.create_topic(name, configs={"max.message.bytes": "1000"})

    for wrong in ({"retention.ms": "soon"}, {"no.such": "1"}):
        with pytest.raises(RequestError) as error:
            client.alter_configs(name, wrong)
        assert error.value.code == INVALID_CONFIG, error.value

    assert helper.configs(name)["max.message.bytes"] == "1000"


@with_every_client("create_partitions")
def test_partitions_can_be_added_but_not_removed(client, helper, topic):
    helper.produce(topic, FEW)

    client.create_partitions(topic, 3)

    assert client.topics()[topic] == 3
    helper.produce(topic, FEW[:2], partition=2)
    found = helper.consume({(topic, partition): None for partition in range(3)}, 7)
    assert [len(found[topic, partition]) for partition in range(3)] == [5, 0, 2]
    for total in (3, 2):
        with pytest.raises(RequestError) as error:
            client.create_partitions(topic, total)
        assert error.value.code == INVALID_PARTITIONS, error.value


@with_every_client("delete_records")
def test_records_are_deleted_up_to_an_offset(client, helper, topic):
    helper.produce(topic, FEW)

    assert client.delete_records(topic, 3) == 3

    assert client.watermarks(topic) == (3, 5)
    rows = client.consume({(topic, 0): None}, 2)[topic, 0]
    assert [(row.offset, row.value) for row in rows] == [(3, b"value 3"), (4, b"value 4")]
    with pytest.raises(RequestError) as error:
        client.delete_records(topic, 100)
    assert error.value.code == OFFSET_OUT_OF_RANGE, error.value
    assert client.delete_records(topic, -1) == 5
    assert client.watermarks(topic) == (5, 5)


@with_every_client("delete_topic")
def test_a_topic_created_after_deletion_is_empty(client, helper, topic):
    helper.produce(topic, FEW)

    client.delete_topic(topic)

    assert topic not in client.topics()
    client.create_topic(topic, 2)
    assert client.topics()[topic] == 2
    assert client.watermarks(topic) == (0, 0)


@with_every_client("delete_topic")
def test_changing_an_unknown_topic_fails(client):
    for attempt in (
        lambda: client.delete_topic("missing"),
        lambda: client.create_partitions("missing", 2),
        lambda: client.configs("missing"),
        lambda: client.alter_configs("missing", {"retention.ms": "1"}),
    ):
        with pytest.raises(RequestError) as error:
            attempt()
        assert error.value.code == UNKNOWN_TOPIC, error.value
    assert "missing" not in client.topics()
