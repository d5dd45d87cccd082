"""Broker configs: sources and their precedence, valid values, error messages."""

import dataclasses
import pickle

import pytest

from ottla.broker.config.broker_config import BROKER_CONFIGS, BrokerConfig, ConfigError
from ottla.broker.config.dynamic_configs import ConfigDescriber, ConfigSource
from ottla.broker.config.loader import load_broker_config
from ottla.broker.daemon import check_listeners
from ottla.broker.net.listeners import Listener
from ottla.coord.metadata_image import MetadataImage
from ottla.storage.config import TOPIC_CONFIGS, LogConfig


def listeners(text, advertised=""):
    return BrokerConfig(listeners=text, advertised_listeners=advertised).parsed_listeners


def write_properties(tmp_path, *lines):
    path = tmp_path / "server.properties"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_without_configs_the_defaults_apply():
    config = load_broker_config({}, {})

    assert config == BrokerConfig()
    assert (config.broker_id, config.log_dir, config.num_partitions) == (0, "ottla-data", 1)
    assert config.topic_defaults == LogConfig()
    assert config.static_configs == {}


def test_flags_override_the_environment_and_the_environment_overrides_the_file(tmp_path):
    file = write_properties(tmp_path, "broker.id=1", "num.partitions=1", "fetch.max.bytes=1111")
    environ = {"OTTLA_BROKER_ID": "2", "OTTLA_NUM_PARTITIONS": "2", "HOME": "/"}

    config = load_broker_config({"broker.id": "3"}, environ, file)

    assert (config.broker_id, config.num_partitions, config.fetch_max_bytes) == (3, 2, 1111)
    assert config.static_configs == {
        "broker.id": "3",
        "num.partitions": "2",
        "fetch.max.bytes": "1111",
    }


def test_a_properties_file_may_have_comments_blank_lines_and_spaces(tmp_path):
    file = write_properties(
        tmp_path, "# one", "! two", "", "  num.partitions = 4  ", "cluster.id=a=b"
    )

    config = load_broker_config({}, {}, file)

    assert (config.num_partitions, config.cluster_id) == (4, "a=b")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("num.partition=3", "Unknown config num.partition; did you mean num.partitions?"),
        ("num.partitions=0", "Invalid value 0 for num.partitions: the minimum is 1"),
        ("num.partitions", "Invalid line 'num.partitions': expected KEY=VALUE"),
        ("broker.id=2", "Duplicate config broker.id"),
    ],
)
def test_an_error_in_a_properties_file_names_the_line(tmp_path, line, message):
    file = write_properties(tmp_path, "# A comment.", "broker.id=1", line)

    with pytest.raises(ConfigError) as caught:
        load_broker_config({}, {}, file)

    assert str(caught.value) == f"{file}:3: {message}"


def test_an_unreadable_properties_file_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="missing: No such file or directory"):
        load_broker_config({}, {}, tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(ConfigError, match="binary: Invalid encoding: expected UTF-8"):
        load_broker_config({}, {}, tmp_path / "binary")


def test_an_error_in_the_environment_names_the_variable():
    with pytest.raises(ConfigError, match=r"OTTLA_NUM_PARTITIONS: Invalid value 'x' for num\.part"):
        load_broker_config({}, {"OTTLA_NUM_PARTITIONS": "x"})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("log.dirs", "x", "Unknown config log.dirs; did you mean log.dir"),
        ("retention.ms", "1", "is a topic config; the broker config of its default is log.retenti"),
        ("log.segment.bytes", "1", "Invalid value 1 for log.segment.bytes: the minimum is 1024"),
        ("auto.create.topics.enable", "yes", "expected type bool, allowed: true, false"),
        ("default.replication.factor", "0", "the minimum is 1"),
        ("min.insync.replicas", "0", "the minimum is 1"),
        ("compression.type", "rar", "expected one of producer, uncompressed, gzip"),
        ("log.level", "LOUD", "expected one of DEBUG, INFO, WARNING, ERROR"),
        ("broker.id", "-1", "Invalid value -1 for broker.id: the minimum is 0"),
        ("log.dir", "", "Invalid value for log.dir: it must name a directory"),
        ("log.cleaner.io.max.bytes.per.second", "nan", "Invalid value nan .* the minimum is 1"),
        ("queued.max.request.bytes", "2048", "the minimum is socket.request.max.bytes"),
        ("metrics.listener", "here", "Invalid value 'here' for metrics.listener: expected HOST"),
    ],
)
def test_an_invalid_value_is_an_error_that_names_the_allowed_values(name, text, message):
    with pytest.raises(ConfigError, match=message):
        BrokerConfig.of({name: text})


@pytest.mark.parametrize("text", ["false", "False", " FALSE "])
def test_booleans_are_case_insensitive(text):
    assert BrokerConfig.of({"delete.topic.enable": text}).delete_topic_enable is False


def test_values_are_validated_like_text():
    with pytest.raises(ConfigError, match=r"Invalid value 0 for num\.partitions"):
        BrokerConfig(num_partitions=0)
    with pytest.raises(ConfigError, match="nowhere"):
        BrokerConfig(listeners="nowhere")


def test_topic_defaults_have_broker_config_names():
    config = BrokerConfig.of(
        {
            "message.max.bytes": "5000",
            "log.cleanup.policy": "compact",
            "log.cleaner.min.cleanable.ratio": "0.1",
            "log.durability": "fsync",
        }
    )

    assert config.topic_defaults == LogConfig(
        max_message_bytes=5000,
        cleanup_policy="compact",
        min_cleanable_dirty_ratio=0.1,
        durability="fsync",
    )
    assert config.text_of("message.max.bytes") == "5000"
    assert config.text_of("log.segment.bytes") == "1073741824"


def test_every_topic_config_has_a_broker_config_for_its_default():
    keys = {key.topic_name: key for key in BROKER_CONFIGS.values() if key.topic_name}

    fixed = {name for name, key in TOPIC_CONFIGS.items() if key.fixed_because}
    assert TOPIC_CONFIGS.keys() - keys.keys() == fixed | {
        "follower.replication.throttled.replicas",
        "leader.replication.throttled.replicas",
        "message.downconversion.enable",
    }
    for topic_name, key in keys.items():
        assert key.default == TOPIC_CONFIGS[topic_name].default
        assert key.is_dynamic


@pytest.mark.parametrize(
    ("configs", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.hours": "2"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_smaller_time_units_override_larger_ones(configs, retention_ms):
    config = BrokerConfig.of(configs)

    assert config.topic_defaults.retention_ms == retention_ms
    assert config.text_of("log.retention.ms") == str(retention_ms)
    assert config.is_static("log.retention.ms")
    assert not config.is_static("log.roll.ms")


def test_a_source_of_higher_precedence_wins_in_any_time_unit(tmp_path):
    file = write_properties(tmp_path, "log.retention.ms=1000", "log.roll.hours=1")

    config = load_broker_config({"log.retention.hours": "1"}, {"OTTLA_LOG_ROLL_MS": "5"}, file)

    assert config.topic_defaults.retention_ms == 3_600_000
    assert config.topic_defaults.segment_ms == 5
    assert config.static_configs == {"log.retention.hours": "1", "log.roll.ms": "5"}
    assert config.text_of("log.retention.hours") == "1"
    assert config.text_of("log.retention.minutes") == ""


def test_overrides_change_the_dynamic_configs_and_keep_the_static_ones():
    config = BrokerConfig.of({"log.retention.ms": "1000", "num.partitions": "2"})

    once = config.with_overrides({"log.retention.hours": "1"})
    twice = once.with_overrides({"num.partitions": "5"})

    assert once.topic_defaults.retention_ms == 3_600_000
    assert (twice.topic_defaults.retention_ms, twice.num_partitions) == (3_600_000, 5)
    assert twice.static_configs == config.static_configs
    assert twice.dynamic_configs == {"log.retention.hours": "1", "num.partitions": "5"}
    assert config.with_overrides({}) == config


def test_overrides_keep_values_that_were_not_text():
    config = BrokerConfig(log_dir="d", topic_defaults=LogConfig(retention_ms=7))

    changed = config.with_overrides({"num.partitions": "2"})

    assert (changed.log_dir, changed.topic_defaults.retention_ms) == ("d", 7)
    assert changed.static_configs == {"log.dir": "d", "log.retention.ms": "7"}
    assert dataclasses.replace(config, broker_id=3).static_configs["broker.id"] == "3"


def test_read_only_configs_cannot_be_overridden():
    config = BrokerConfig()

    with pytest.raises(ConfigError, match="listeners cannot be altered while the broker runs"):
        config.with_overrides({"listeners": "PLAINTEXT://:1"})
    with pytest.raises(ConfigError, match=r"Invalid value 0 for num\.partitions"):
        config.with_overrides({"num.partitions": "0"})


def test_every_config_is_documented():
    assert all(name == key.name for name, key in BROKER_CONFIGS.items())
    assert all(key.doc for key in BROKER_CONFIGS.values())
    types = {key.type for key in BROKER_CONFIGS.values()}
    assert types == {"bool", "string", "int", "long", "double", "list"}
    assert BROKER_CONFIGS["auto.create.topics.enable"].default == "true"
    assert BROKER_CONFIGS["num.partitions"].is_dynamic
    assert not BROKER_CONFIGS["log.dir"].is_dynamic
    assert BROKER_CONFIGS["log.roll.ms"].topic_name == "segment.ms"


@pytest.mark.parametrize("key", BROKER_CONFIGS.values(), ids=lambda key: key.name)
def test_every_default_is_valid_text(key):
    config = BrokerConfig()

    assert config.text_of(key.name) == key.default
    if key.default_value is not None:
        assert BrokerConfig.of({key.name: key.default}) == config


def test_a_config_can_be_pickled():
    config = BrokerConfig.of({"log.retention.hours": "1"})

    copy = pickle.loads(pickle.dumps(config))

    assert copy == config
    assert copy.static_configs == config.static_configs


def test_a_listener_advertises_itself():
    assert listeners("PLAINTEXT://127.0.0.1:9092") == (
        Listener("PLAINTEXT", "127.0.0.1", 9092, "127.0.0.1", 9092),
    )


def test_listeners_with_and_without_advertised_addresses():
    parsed = listeners(
        "INTERNAL://10.0.0.5:9092, EXTERNAL://:9093, SIX://[::1]:0",
        advertised="EXTERNAL://logs.example.org:19093",
    )

    assert parsed == (
        Listener("INTERNAL", "10.0.0.5", 9092, "10.0.0.5", 9092),
        Listener("EXTERNAL", "0.0.0.0", 9093, "logs.example.org", 19093),
        Listener("SIX", "::1", 0, "::1", None),
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]", ""])
def test_a_wildcard_listener_advertises_the_address_that_the_client_connected_to(host):
    (listener,) = listeners(f"PLAINTEXT://{host}:9092")

    assert (listener.advertised_host, listener.advertised_port) == (None, 9092)


@pytest.mark.parametrize(
    ("text", "advertised", "message"),
    [
        ("", "", "listeners: at least one is required"),
        ("localhost:9092", "", "'localhost:9092' in listeners: expected NAME://HOST:PORT"),
        ("A://::1:9092", "", "'A://::1:9092' in listeners: expected NAME://HOST:PORT"),
        ("A://h", "", "'A://h' in listeners: expected NAME://HOST:PORT"),
        ("a://h:1", "", "Invalid listener name 'a' in listeners: use A-Z, 0-9 and _"),
        ("A://h:65536", "", "'A://h:65536' in listeners: port 65536 is above 65535"),
        ("A://[h]:1", "", r"'A://\[h\]:1' in listeners: 'h' is not an IPv6 address"),
        ("A://h:1,A://h:2", "", "Duplicate listener name A in listeners"),
        ("A://h:1", "B://h:1", "Unknown listener B in advertised.listeners: listeners has A"),
        ("A://h:1", "A://0.0.0.0:1", "0.0.0.0:1 in advertised.listeners: clients cannot connect"),
        ("A://h:1", "A://h:0", "h:0 in advertised.listeners: clients cannot connect"),
    ],
)
def test_an_invalid_listener_is_an_error(text, advertised, message):
    with pytest.raises(ConfigError, match=message):
        listeners(text, advertised)


@pytest.mark.parametrize(
    ("configs", "is_safe"),
    [
        ({}, True),
        ({"listeners": "PLAINTEXT://:9092"}, False),
        ({"listeners": "PLAINTEXT://:9092", "allow.insecure.listeners": "true"}, True),
        ({"listeners": "PLAINTEXT://localhost:9092,SASL_SSL://:9093"}, True),
        ({"listeners": "PLAINTEXT://[::1]:9092,SSL://:9093"}, False),
        ({"listeners": "SSL://:9093", "ssl.client.auth": "requested"}, False),
        ({"listeners": "SSL://:9093", "ssl.client.auth": "required"}, True),
        ({"listeners": "SSL://:9093", "listener.name.ssl.ssl.client.auth": "required"}, True),
        ({"listeners": "SASL_SSL://:1", "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER"}, True),
        (
            {
                "listeners": "SASL_SSL://:1",
                "sasl.enabled.mechanisms": "PLAIN,OAUTHBEARER",
                "sasl.oauthbearer.unsecured.tokens": "true",
            },
            False,
        ),
        (
            {"listeners": "X://10.0.0.1:1", "listener.security.protocol.map": "X:SASL_PLAINTEXT"},
            True,
        ),
    ],
)
def test_a_listener_that_others_can_reach_has_to_authenticate(configs, is_safe):
    config = BrokerConfig.of(configs)

    if is_safe:
        check_listeners(config)
    else:
        with pytest.raises(ConfigError, match=r"set allow\.insecure\.listeners=true"):
            check_listeners(config)


def test_secrets_are_in_no_text():
    secret = "s3cret"
    config = BrokerConfig.of(
        {
            "listeners": "SASL_SSL://localhost:9092",
            "ssl.key.password": secret,
            "ssl.keystore.key": secret,
            "sasl.bootstrap.users": f"SCRAM-SHA-256=[name=a,password={secret}]",
            "listener.name.sasl_ssl.plain.sasl.jaas.config": secret,
            "listener.name.sasl_ssl.ssl.key.password": secret,
        }
    )
    described = list(ConfigDescriber(config, MetadataImage()).broker())

    assert secret not in repr(config) + str(config)
    assert secret not in repr(described)
    sensitive = {one.key.name: one for one in described if one.key.is_sensitive}
    assert len(sensitive) == 5
    assert {one.value for one in sensitive.values()} == {None}
    assert {one.source for one in sensitive.values()} == {ConfigSource.STATIC_BROKER}
    for name in sensitive:
        with pytest.raises(ConfigError, match="is a secret"):
            config.with_overrides({name: "x"})
