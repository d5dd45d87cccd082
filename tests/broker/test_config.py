"""Settings of a broker: where they come from, what they may be, and errors that help."""

import dataclasses
import pickle

import pytest

from ottla.broker.config.broker_config import BrokerConfig, ConfigError, broker_configs
from ottla.broker.net.listeners import Listener
from ottla.storage.config import TOPIC_CONFIGS, LogConfig


def listeners(text, advertised=""):
    return BrokerConfig(listeners=text, advertised_listeners=advertised).parsed_listeners


def a_file(tmp_path, *lines):
    path = tmp_path / "server.properties"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_no_settings_are_the_defaults():
    config = BrokerConfig.load({}, {})

    assert config == BrokerConfig()
    assert (config.broker_id, config.log_dir, config.num_partitions) == (0, "ottla-data", 1)
    assert config.topic_defaults == LogConfig()
    assert config.static_configs == {}


def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path):
    file = a_file(tmp_path, "broker.id=1", "num.partitions=1", "fetch.max.bytes=1111")
    environ = {"OTTLA_BROKER_ID": "2", "OTTLA_NUM_PARTITIONS": "2", "HOME": "/"}

    config = BrokerConfig.load({"broker.id": "3"}, environ, file)

    assert (config.broker_id, config.num_partitions, config.fetch_max_bytes) == (3, 2, 1111)
    assert config.static_configs == {
        "broker.id": "3",
        "num.partitions": "2",
        "fetch.max.bytes": "1111",
    }


def test_a_file_has_comments_blanks_and_spaces(tmp_path):
    file = a_file(tmp_path, "# one", "! two", "", "  num.partitions = 4  ", "cluster.id=a=b")

    config = BrokerConfig.load({}, {}, file)

    assert (config.num_partitions, config.cluster_id) == (4, "a=b")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("num.partition=3", "Unknown config num.partition; did you mean num.partitions?"),
        ("num.partitions=0", "Invalid value 0 for num.partitions: the minimum is 1"),
        ("num.partitions", "'num.partitions' is not KEY=VALUE"),
        ("broker.id=2", "broker.id is set a second time"),
    ],
)
def test_an_error_in_a_file_names_the_line(tmp_path, line, message):
    file = a_file(tmp_path, "# A comment.", "broker.id=1", line)

    with pytest.raises(ConfigError) as caught:
        BrokerConfig.load({}, {}, file)

    assert str(caught.value) == f"{file}:3: {message}"


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    with pytest.raises(ConfigError, match="missing: No such file or directory"):
        BrokerConfig.load({}, {}, tmp_path / "missing")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x80")
    with pytest.raises(ConfigError, match="binary: it is not text in UTF-8"):
        BrokerConfig.load({}, {}, tmp_path / "binary")


def test_an_error_in_the_environment_names_the_variable():
    with pytest.raises(ConfigError, match="OTTLA_NUM_PARTITION; did you mean OTTLA_NUM_PARTITIONS"):
        BrokerConfig.load({}, {"OTTLA_NUM_PARTITION": "3"})
    with pytest.raises(ConfigError, match=r"OTTLA_NUM_PARTITIONS: Invalid value 'x' for num"):
        BrokerConfig.load({}, {"OTTLA_NUM_PARTITIONS": "x"})


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("log.dirs", "x", "Unknown config log.dirs; did you mean log.dir"),
        ("retention.ms", "1", "a setting of topics; its default is set by log.retention.ms"),
        ("log.segment.bytes", "1", "Invalid value 1 for log.segment.bytes: the minimum is 1024"),
        (
            "auto.create.topics.enable",
            "yes",
            "expected type bool, allowed: true, false",
        ),
        ("default.replication.factor", "3", "only 1 is supported: a partition has one"),
        ("min.insync.replicas", "2", "only 1 is supported: a partition has one replica"),
        ("compression.type", "zstd", "only producer is supported"),
        ("log.level", "LOUD", "expected one of DEBUG, INFO, WARNING, ERROR"),
        ("broker.id", "-1", "Invalid value -1 for broker.id: the minimum is 0"),
        ("log.dir", "", "log.dir: it must name a directory"),
        (
            "log.cleaner.io.max.bytes.per.second",
            "nan",
            "Invalid value nan for log.*: the minimum is 1",
        ),
        ("queued.max.request.bytes", "2048", "2048 is less than socket.request.max.bytes"),
    ],
)
def test_what_cannot_be_is_an_error_that_says_what_could(name, text, message):
    with pytest.raises(ConfigError, match=message):
        BrokerConfig.of({name: text})


@pytest.mark.parametrize("text", ["false", "False", " FALSE "])
def test_booleans_come_in_any_case(text):
    assert BrokerConfig.of({"delete.topic.enable": text}).delete_topic_enable is False


def test_values_are_validated_as_well_as_texts():
    with pytest.raises(ConfigError, match=r"Invalid value 0 for num\.partitions"):
        BrokerConfig(num_partitions=0)
    with pytest.raises(ConfigError, match="listeners: 'nowhere' is not NAME://HOST:PORT"):
        BrokerConfig(listeners="nowhere")


def test_defaults_of_topics_have_the_brokers_names():
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


def test_every_setting_of_a_topic_has_one_of_the_broker_that_says_its_default():
    described = {setting.topic_name: setting for setting in broker_configs() if setting.topic_name}

    assert described.keys() == TOPIC_CONFIGS.keys()
    for name, setting in described.items():
        assert setting.default == TOPIC_CONFIGS[name].default
        assert setting.is_dynamic


@pytest.mark.parametrize(
    ("given", "retention_ms"),
    [
        ({"log.retention.hours": "2"}, 7_200_000),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.hours": "2"}, 180_000),
        ({"log.retention.minutes": "3", "log.retention.ms": "4"}, 4),
        ({"log.retention.hours": "-1"}, -1),
    ],
)
def test_smaller_units_win_over_larger_ones(given, retention_ms):
    config = BrokerConfig.of(given)

    assert config.topic_defaults.retention_ms == retention_ms
    assert config.text_of("log.retention.ms") == str(retention_ms)
    assert config.is_static("log.retention.ms")
    assert not config.is_static("log.roll.ms")


def test_a_higher_source_wins_in_whatever_unit(tmp_path):
    file = a_file(tmp_path, "log.retention.ms=1000", "log.roll.hours=1")

    config = BrokerConfig.load({"log.retention.hours": "1"}, {"OTTLA_LOG_ROLL_MS": "5"}, file)

    assert config.topic_defaults.retention_ms == 3_600_000
    assert config.topic_defaults.segment_ms == 5
    assert config.static_configs == {"log.retention.hours": "1", "log.roll.ms": "5"}
    assert config.text_of("log.retention.hours") == "1"
    assert config.text_of("log.retention.minutes") == ""


def test_a_running_brokers_settings_change_and_what_it_was_given_stays():
    config = BrokerConfig.of({"log.retention.ms": "1000", "num.partitions": "2"})

    once = config.with_overrides({"log.retention.hours": "1"})
    twice = once.with_overrides({"num.partitions": "5"})

    assert once.topic_defaults.retention_ms == 3_600_000
    assert (twice.topic_defaults.retention_ms, twice.num_partitions) == (3_600_000, 5)
    assert twice.static_configs == config.static_configs
    assert twice.dynamic_configs == {"log.retention.hours": "1", "num.partitions": "5"}
    assert config.with_overrides({}) == config


def test_values_given_as_such_survive_a_change():
    config = BrokerConfig(log_dir="d", topic_defaults=LogConfig(retention_ms=7))

    changed = config.with_overrides({"num.partitions": "2"})

    assert (changed.log_dir, changed.topic_defaults.retention_ms) == ("d", 7)
    assert changed.static_configs == {"log.dir": "d", "log.retention.ms": "7"}
    assert dataclasses.replace(config, broker_id=3).static_configs["broker.id"] == "3"


def test_what_is_fixed_at_the_start_cannot_change():
    config = BrokerConfig()

    with pytest.raises(ConfigError, match="listeners: it cannot change while the broker runs"):
        config.with_overrides({"listeners": "PLAINTEXT://:1"})
    with pytest.raises(ConfigError, match=r"Invalid value 0 for num\.partitions"):
        config.with_overrides({"num.partitions": "0"})


def test_settings_are_described():
    known = {setting.name: setting for setting in broker_configs()}

    assert len(known) == len(broker_configs())
    assert all(setting.doc for setting in known.values())
    types = {setting.type for setting in known.values()}
    assert types == {"bool", "string", "int", "long", "double", "list"}
    assert known["auto.create.topics.enable"].default == "true"
    assert known["num.partitions"].is_dynamic
    assert not known["log.dir"].is_dynamic
    assert known["log.roll.ms"].topic_name == "segment.ms"


@pytest.mark.parametrize("setting", broker_configs(), ids=lambda setting: setting.name)
def test_every_default_is_a_text_that_can_be_given(setting):
    config = BrokerConfig()

    assert config.text_of(setting.name) == setting.default
    if setting.default_value is not None:
        assert BrokerConfig.of({setting.name: setting.default}) == config


def test_a_config_goes_to_another_process():
    config = BrokerConfig.of({"log.retention.hours": "1"})

    copy = pickle.loads(pickle.dumps(config))

    assert copy == config
    assert copy.static_configs == config.static_configs


def test_a_listener_advertises_itself():
    assert listeners("PLAINTEXT://127.0.0.1:9092") == (
        Listener("PLAINTEXT", "127.0.0.1", 9092, "127.0.0.1", 9092),
    )


def test_several_listeners_with_what_they_advertise():
    found = listeners(
        "INTERNAL://10.0.0.5:9092, EXTERNAL://:9093, SIX://[::1]:0",
        advertised="EXTERNAL://logs.example.org:19093",
    )

    assert found == (
        Listener("INTERNAL", "10.0.0.5", 9092, "10.0.0.5", 9092),
        Listener("EXTERNAL", "0.0.0.0", 9093, "logs.example.org", 19093),
        Listener("SIX", "::1", 0, "::1", None),
    )


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "[0:0:0:0:0:0:0:0]", ""])
def test_a_wildcard_tells_each_client_where_it_connected_to(host):
    (found,) = listeners(f"PLAINTEXT://{host}:9092")

    assert (found.advertised_host, found.advertised_port) == (None, 9092)


@pytest.mark.parametrize(
    ("text", "advertised", "message"),
    [
        ("", "", "listeners: there must be one"),
        ("localhost:9092", "", "'localhost:9092' is not NAME://HOST:PORT"),
        ("A://::1:9092", "", "'A://::1:9092' is not NAME://HOST:PORT"),
        ("A://h", "", "'A://h' is not NAME://HOST:PORT"),
        ("a://h:1", "", "the name 'a' is not of A-Z, 0-9 and _"),
        ("A://h:65536", "", "the port 65536 in 'A://h:65536' is more than 65535"),
        ("A://[h]:1", "", "'h' in 'A://\\[h\\]:1' is not an IPv6 address"),
        ("A://h:1,A://h:2", "", "two are called A; each needs its own name"),
        ("SSL://h:1", "", "SSL is not there, a listener has neither TLS nor SASL"),
        ("A://h:1", "B://h:1", "advertised.listeners: there is no listener B, only A"),
        ("A://h:1", "A://0.0.0.0:1", "clients cannot connect to 0.0.0.0:1; say a host"),
        ("A://h:1", "A://h:0", "clients cannot connect to h:0"),
    ],
)
def test_a_listener_that_cannot_be_is_an_error_that_says_why(text, advertised, message):
    with pytest.raises(ConfigError, match=message):
        listeners(text, advertised)
