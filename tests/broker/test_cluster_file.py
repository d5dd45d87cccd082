"""The list of brokers: what can be in it, and what each mistake is answered with."""

import pytest

from ottla.broker.cluster.cluster_file import parse_cluster_brokers, read_cluster_file
from ottla.broker.config.broker_config import BrokerConfig, ConfigError
from ottla.broker.net.listeners import Endpoint, Listener

TWO = "0@localhost:9092,1@localhost:9093"


def test_a_line_lists_brokers_and_their_listeners():
    roster = parse_cluster_brokers(
        "3@A://log-3:1, 3@B://log-3:2,1@A://log-1:29092,1@B://[::1]:9092"
    )

    assert roster.broker_ids == (1, 3)
    assert roster.brokers[1] == {
        "A": Endpoint("A", "log-1", 29092),
        "B": Endpoint("B", "::1", 9092),
    }


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("localhost:9092", "is not ID@HOST:PORT"),
        ("-1@localhost:9092", "is not ID@HOST:PORT"),
        ("0@localhost", "is not NAME://HOST:PORT"),
        ("0@localhost:0", "clients cannot connect to localhost:0"),
        ("0@0.0.0.0:9092", "clients cannot connect to 0.0.0.0:9092"),
        ("0@:9092", "clients cannot connect to 0.0.0.0:9092"),
        ("0@a:1,0@b:1", "broker 0 is there twice"),
        ("0@a:1,1@a:1", "brokers 0 and 1 have the same address, a:1"),
        ("0@A://a:1,1@B://b:1", "all brokers need listeners of the same names: broker 0 has A"),
        ("0@SSL://a:1", "has neither TLS nor SASL"),
    ],
)
def test_what_cannot_be_is_said(text, reason):
    with pytest.raises(ConfigError, match=reason.replace("(", r"\(")):
        parse_cluster_brokers(text)


def test_a_file_becomes_settings(tmp_path):
    path = tmp_path / "cluster.toml"
    path.write_text(
        'cluster-id = "paper-trail"\n'
        'inter-broker-listener = "INTERNAL"\n'
        "[[brokers]]\nid = 0\n"
        'listeners = { INTERNAL = "log-0:29092", EXTERNAL = "localhost:9092" }\n'
        "[[brokers]]\nid = 1\n"
        'listeners = { INTERNAL = "log-1:29092", EXTERNAL = "localhost:9093" }\n'
        '[settings]\n"num.partitions" = 6\n"auto.create.topics.enable" = false\n'
    )

    config = BrokerConfig.load({"broker.id": "1"}, {"OTTLA_NUM_PARTITIONS": "7"}, None, path)

    assert config.cluster_id == "paper-trail"
    assert config.inter_broker_listener == "INTERNAL"
    assert config.num_partitions == 7
    assert not config.auto_create_topics_enable
    assert config.cluster_file.broker_ids == (0, 1)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("nonsense", "it is not TOML"),
        ("", r"there must be a \[\[brokers\]\]"),
        ("[[broker]]\nid = 1", "broker: a cluster file has no such key, only brokers, cluster-id"),
        ('[[brokers]]\naddress = "a:1"', "the id None is not a number"),
        ('[[brokers]]\nid = "0"\naddress = "a:1"', "the id '0' is not a number"),
        ("[[brokers]]\nid = 0", "broker 0: it needs either address"),
        ('[[brokers]]\nid = 0\naddress = "a:1"\nhost = "a"', "host: broker 0 has no such key"),
        ('[[brokers]]\nid = 0\naddress = "a:1"\n' * 2, "two have the id 0"),
        (
            '[[brokers]]\nid = 0\naddress = "a:1"\n[settings]\nnum.partitions = 1',
            "names with dots need quotes",
        ),
    ],
)
def test_a_file_that_makes_no_sense_is_refused(tmp_path, text, reason):
    path = tmp_path / "cluster.toml"
    path.write_text(text)

    with pytest.raises(ConfigError, match=reason) as caught:
        read_cluster_file(path)

    assert str(caught.value).startswith(f"{path}: ")


def test_a_file_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        read_cluster_file(tmp_path / "cluster.toml")


def test_a_broker_listens_where_the_list_says():
    config = BrokerConfig(broker_id=1, cluster_brokers=TWO)

    assert config.parsed_listeners == (Listener("PLAINTEXT", "localhost", 9093, "localhost", 9093),)


def test_or_somewhere_else_and_still_tells_what_the_list_says():
    config = BrokerConfig(broker_id=1, cluster_brokers=TWO, listeners="PLAINTEXT://0.0.0.0:19093")

    assert config.parsed_listeners == (Listener("PLAINTEXT", "0.0.0.0", 19093, "localhost", 9093),)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"broker_id": 2}, "broker.id: 2 is not in cluster.brokers, which has 0, 1"),
        ({"inter_broker_listener_name": "INSIDE"}, "there is no listener INSIDE, only PLAINTEXT"),
        ({"advertised_listeners": "PLAINTEXT://a:1"}, "cluster.brokers says what clients are told"),
        ({"listeners": "OTHER://a:1"}, "there is no listener PLAINTEXT, only OTHER"),
        (
            {"listeners": "PLAINTEXT://a:1,OTHER://a:2"},
            "listeners: OTHER, PLAINTEXT, and in cluster.brokers this broker has PLAINTEXT",
        ),
    ],
)
def test_settings_that_do_not_go_with_the_list_are_refused(settings, reason):
    with pytest.raises(ConfigError, match=reason):
        BrokerConfig(cluster_brokers=TWO, **settings)
