"""A server.properties of Apache Kafka: what applies, what is ignored, and what is refused."""

import pytest

from harness.daemon import Daemon
from ottla.broker.config.loader import load_broker_config
from ottla.protocol.configdef import ConfigError

# The keys of the file that Kafka is shipped with.
SHIPPED = """\
# Server basics
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=localhost:9093
listeners=PLAINTEXT://127.0.0.1:9092,CONTROLLER://127.0.0.1:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
num.io.threads=8
socket.send.buffer.bytes=102400
socket.receive.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs={directory}
num.partitions=2
num.recovery.threads.per.data.dir=2
offsets.topic.replication.factor=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
log.retention.hours=168
log.segment.bytes=1073741824
log.retention.check.interval.ms=300000
zookeeper.connect=localhost:2181
zookeeper.connection.timeout.ms=18000
log4j.rootLogger=INFO
"""


@pytest.fixture
def load(tmp_path):
    def load(text, warn=lambda _text: None):
        path = tmp_path / "server.properties"
        path.write_text(text)
        return load_broker_config({}, {}, path, warn=warn)

    return load


def test_the_shipped_file_applies_and_one_line_names_what_is_ignored(load):
    warnings = []

    config = load(SHIPPED.format(directory="/data"), warnings.append)

    assert (config.broker_id, config.log_dir, config.num_partitions) == (1, "/data", 2)
    assert config.socket_send_buffer_bytes == 102400
    assert [listener.name for listener in config.parsed_listeners] == ["PLAINTEXT"]
    (warning,) = warnings
    for name in ("num.network.threads", "process.roles", "zookeeper.connect", "log4j.rootLogger"):
        assert name in warning
    assert "num.partitions" not in warning


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ssl.keystore.password=x", "server.properties:2: ssl.keystore.password is not supported"),
        ("sasl.kerberos.service.name=kafka", "the broker may be less protected than this file"),
        (
            "listener.name.plaintext.ssl.keystore.password=x",
            "listener.name.plaintext.ssl.keystore.password is not supported",
        ),
        ("listener.name.external.ssl.keystore.location=/k", "there is no listener EXTERNAL"),
        (
            "authorizer.class.name=a.B",
            "Invalid value a.B for authorizer.class.name: expected one of",
        ),
        ("principal.builder.class=a.B", "principal.builder.class is not supported"),
        ("security.inter.broker.protocol=TLS", "expected one of"),
        ("listener.security.protocol.map=OUT:TLS", "Invalid security protocol 'TLS'"),
        (
            "listeners=OUT://:9092\nlistener.security.protocol.map=IN:SSL",
            "Listener OUT is missing in listener.security.protocol.map",
        ),
        ("log.dirs=/a,/b", "a broker has one data directory"),
        ("log.dir=/a\nlog.dirs=/b", "Conflicting values: log.dirs=/b and log.dir=/a"),
        ("log.dir=/a\nmetadata.log.dir=/b", "the metadata log is in log.dir"),
        ("node.id=1\nbroker.id=2", "Conflicting values: node.id=1 and broker.id=2"),
        ("process.roles=controller", "ottla has no separate controllers"),
        ("num.partition=1", "Unknown config num.partition; did you mean num.partitions?"),
        (
            "replication.factor.policy=reject\noffsets.topic.replication.factor=3",
            "Invalid value 3 for offsets.topic.replication.factor: a partition has one replica",
        ),
        (
            "listeners=PLAINTEXT://:9092\ndefault.replication.factor=3",
            "Invalid value 3 for default.replication.factor: a partition has one replica",
        ),
    ],
)
def test_refused_configs(load, text, message):
    with pytest.raises(ConfigError) as refused:
        load(f"num.network.threads=3\n{text}\n")

    assert message in str(refused.value)


def test_replication_factors_are_clamped_on_loopback(load):
    config = load("default.replication.factor=3\noffsets.topic.replication.factor=3\n")

    assert config.clamps_replication_factor
    assert not load("listeners=PLAINTEXT://:9092\n").clamps_replication_factor
    assert not load(
        "cluster.brokers=0@localhost:9092, 1@localhost:9093\n"
    ).clamps_replication_factor


def test_a_daemon_starts_with_the_shipped_file_beside_a_kubernetes_service(tmp_path):
    path = tmp_path / "server.properties"
    path.write_text(SHIPPED.format(directory=tmp_path / "unused"))
    variables = {"OTTLA_PORT": "tcp://10.0.0.1:9092", "OTTLA_NUM_PARTITION": "3"}
    daemon = Daemon(tmp_path, "--config", str(path), **variables).start()
    try:
        lines = daemon.log.read_text().splitlines()
    finally:
        daemon.kill()

    warnings = [line for line in lines if " WARNING " in line]
    assert len(warnings) == 3, lines
    assert "did you mean OTTLA_NUM_PARTITIONS?" in warnings[0]
    assert "Kubernetes" in warnings[1]
    assert "OTTLA_PORT" in warnings[1]
    assert "num.network.threads, num.io.threads" in warnings[2]
