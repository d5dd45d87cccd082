"""The static list of brokers: its formats, its errors, and the listeners that follow from it."""

import pytest

from ottla.broker.cluster.cluster_file import parse_cluster_brokers, read_cluster_file
from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.config.loader import load_broker_config
from ottla.broker.net.listeners import Endpoint, Listener

TWO_BROKERS = "0@localhost:9092,1@localhost:9093"


def test_cluster_brokers_lists_the_listeners_of_each_broker():
    cluster_file = parse_cluster_brokers(
        "3@A://log-3:1, 3@B://log-3:2,1@A://log-1:29092,1@B://[::1]:9092"
    )

    assert cluster_file.broker_ids == (1, 3)
    assert cluster_file.brokers[1] == {
        "A": Endpoint("A", "log-1", 29092),
        "B": Endpoint("B", "::1", 9092),
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("localhost:9092", "expected ID@HOST:PORT"),
        ("-1@localhost:9092", "expected ID@HOST:PORT"),
        ("0@localhost", "NAME://HOST:PORT"),
        ("0@localhost:0", "localhost:0"),
        ("0@0.0.0.0:9092", "0.0.0.0:9092"),
        ("0@:9092", "0.0.0.0:9092"),
        ("0@a:1,0@b:1", "Duplicate listener PLAINTEXT of broker 0"),
        ("0@a:1,1@a:1", "Duplicate address a:1 in cluster.brokers: brokers 0 and 1 have it"),
        ("0@A://a:1,1@B://b:1", "all brokers need the same listener names; broker 0 has A"),
    ],
)
def test_an_invalid_broker_in_cluster_brokers_is_an_error(text, reason):
    with pytest.raises(ConfigError, match=reason):
        parse_cluster_brokers(text)


def test_a_cluster_file_sets_broker_configs(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(
        'cluster-id = "paper-trail"\n'
        'inter-broker-listener = "INTERNAL"\n'
        "[[brokers]]\nid = 0\n"
        'listeners = { INTERNAL = "log-0:29092", EXTERNAL = "localhost:9092" }\n'
        "[[brokers]]\nid = 1\n"
        'listeners = { INTERNAL = "log-1:29092", EXTERNAL = "localhost:9093" }\n'
        '[configs]\n"num.partitions" = 6\n"auto.create.topics.enable" = false\n'
    )

    config = load_broker_config({"broker.id": "1"}, {"OTTLA_NUM_PARTITIONS": "7"}, None, path)

    assert config.cluster_id == "paper-trail"
    assert config.inter_broker_listener == "INTERNAL"
    assert config.num_partitions == 7
    assert not config.auto_create_topics_enable
    assert config.cluster_file.broker_ids == (0, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "Invalid TOML"),
        ("", r"Missing brokers: expected a \[\[brokers\]\]"),
        ("[[broker]]\nid = 1", "Unknown key broker of a cluster file: expected one of brokers, cl"),
        ('[[brokers]]\naddress = "a:1"', "Invalid broker id None: expected a number"),
        ('[[brokers]]\nid = "0"\naddress = "a:1"', "Invalid broker id '0': expected a number"),
        ("[[brokers]]\nid = 0", "Invalid broker 0: expected either address"),
        ('[[brokers]]\nid = 0\naddress = "a:1"\nhost = "a"', "Unknown key host of broker 0"),
        ('[[brokers]]\nid = 0\naddress = "a:1"\n' * 2, "Duplicate broker id 0"),
        (
            '[[brokers]]\nid = 0\naddress = "a:1"\n[configs]\nnum.partitions = 1',
            "quote names with dots",
        ),
    ],
)
def test_an_invalid_cluster_file_is_an_error_that_names_the_file(tmp_path, text, reason):
    path = tmp_path / "cluster.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=reason) as caught:
        read_cluster_file(path)

    assert str(caught.value).startswith(f"{path}: ")


def test_a_missing_cluster_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_cluster_file(tmp_path / "cluster.toml")


def test_a_broker_listens_on_its_addresses_in_the_list():
    config = BrokerConfig(broker_id=1, cluster_brokers=TWO_BROKERS)

    assert config.parsed_listeners == (Listener("PLAINTEXT", "localhost", 9093, "localhost", 9093),)


def test_a_broker_that_listens_elsewhere_advertises_its_addresses_in_the_list():
    config = BrokerConfig(
        broker_id=1, cluster_brokers=TWO_BROKERS, listeners="PLAINTEXT://0.0.0.0:19093"
    )

    assert config.parsed_listeners == (Listener("PLAINTEXT", "0.0.0.0", 19093, "localhost", 9093),)


@pytest.mark.parametrize(
    ("configs", "reason"),
    [
        ({"broker_id": 2}, "Invalid value 2 for broker.id: cluster.brokers has only 0, 1"),
        ({"inter_broker_listener_name": "INSIDE"}, "INSIDE .*: expected one of PLAINTEXT"),
        ({"advertised_listeners": "PLAINTEXT://a:1"}, "advertised.listeners cannot be set in a cl"),
        ({"listeners": "OTHER://a:1"}, "OTHER"),
        (
            {"listeners": "PLAINTEXT://a:1,OTHER://a:2"},
            "cluster.brokers has the listeners PLAINTEXT for broker 0",
        ),
    ],
)
def test_configs_that_contradict_the_list_are_refused(configs, reason):
    with pytest.raises(ConfigError, match=reason):
        BrokerConfig(cluster_brokers=TWO_BROKERS, **configs)
