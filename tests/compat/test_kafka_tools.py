"""Apache Kafka's command line tools: all are answered, if only with a clear error."""

from __future__ import annotations

import json
import re

import pytest

from harness.apache_kafka import ApacheKafka
from harness.kafka_tools import KafkaTools


@pytest.fixture(scope="module")
def tools(module_broker, tmp_path_factory):
    if reason := ApacheKafka.missing():
        pytest.skip(reason)
    with KafkaTools(module_broker.address) as tools:
        created = tools("kafka-topics", "--create", "--topic", "t", "--partitions", "2")
        assert created.text.splitlines()[0] == "Created topic t."
        yield tools


@pytest.fixture
def run(tools, broker):
    """Run a tool, and return what it prints; it must exit with `status`."""

    def call(line: str, status: int = 0) -> str:
        done = tools(*line.split())
        assert done.status == status, done.text
        return done.text

    return call


def test_topics(run):
    assert run("kafka-topics --list").split() == ["t"]
    run("kafka-topics --alter --topic t --partitions 3")
    described = run("kafka-topics --describe --topic t")
    assert "PartitionCount: 3\tReplicationFactor: 1" in described
    for state in ("under-replicated", "unavailable", "under-min-isr"):
        assert not run(f"kafka-topics --describe --{state}-partitions").strip()
    assert "Topic 'no' does not exist" in run("kafka-topics --describe --topic no", 1)
    run("kafka-topics --create --topic temporary")
    run("kafka-topics --delete --topic temporary")
    assert "temporary" not in run("kafka-topics --list")


@pytest.mark.parametrize(
    ("entity", "config"),
    [
        ("--entity-type topics --entity-name t", "segment.ms=1000"),
        ("--entity-type brokers --entity-default", "log.retention.ms=100000"),
        ("--entity-type brokers --entity-name 0", "log.retention.ms=200000"),
        ("--entity-type groups --entity-name g", "share.auto.offset.reset=earliest"),
        ("--entity-type users --entity-name u", "producer_byte_rate=1000.0"),
        ("--entity-type ips --entity-name 10.0.0.1", "connection_creation_rate=7.0"),
    ],
)
def test_configs(run, entity, config):
    assert "Completed updating" in run(f"kafka-configs --alter {entity} --add-config {config}")
    assert config in run(f"kafka-configs --describe {entity}")
    name = config.partition("=")[0]
    assert "Completed updating" in run(f"kafka-configs --alter {entity} --delete-config {name}")
    assert config not in run(f"kafka-configs --describe {entity}")


def test_scram_users(run):
    user = "--entity-type users --entity-name alice"
    run(f"kafka-configs --alter {user} --add-config SCRAM-SHA-256=[password=secret]")
    assert "SCRAM-SHA-256=iterations=4096" in run(f"kafka-configs --describe {user}")
    run(f"kafka-configs --alter {user} --delete-config SCRAM-SHA-256")


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("kafka-configs --alter --entity-type topics --entity-name t --add-config no=1", "no"),
        (
            "kafka-configs --describe --entity-type broker-loggers --entity-name 0",
            "Unsupported resource type 8: expected TOPIC",
        ),
        (
            "kafka-configs --alter --entity-type client-metrics --entity-name m"
            " --add-config interval.ms=1000",
            "Unsupported resource type 16: expected TOPIC",
        ),
        ("kafka-client-metrics --alter --name m --interval 1000", "Unsupported resource type 16"),
        ("kafka-features upgrade --feature transaction.version=3", "cannot be changed to 3"),
        ("kafka-features downgrade --feature transaction.version=1", "cannot be changed to 1"),
        ("kafka-features disable --feature share.version", "cannot be changed to 0"),
        ("kafka-cluster unregister --id 0", "Broker 0 cannot be unregistered: the brokers are a"),
        ("kafka-cluster unregister --id 9", "Unknown broker 9: expected one of 0"),
        (
            "kafka-metadata-quorum remove-controller --controller-id 0"
            " --controller-directory-id AAAAAAAAAAAAAAAAAAAAAQ",
            "does not support REMOVE_RAFT_VOTER",
        ),
        ("kafka-acls --list", "No authorizer is configured: set authorizer.class.name"),
        (
            "kafka-leader-election --election-type preferred --topic no --partition 0",
            "the topic or partition does not exist",
        ),
        ("kafka-streams-groups --describe --group g", "does not support STREAMS_GROUP_DESCRIBE"),
        (
            "kafka-delegation-tokens --describe --command-config /dev/null",
            "does not support DESCRIBE_DELEGATION_TOKEN",
        ),
        (
            "kafka-transactions abort --topic t --partition 0 --start-offset 0",
            "Could not find any open transactions starting at offset 0",
        ),
    ],
    ids=lambda value: value[:60],
)
def test_what_is_not_supported_is_a_clear_error(run, line, error):
    assert error in run(line, 1)


def test_consumer_groups(run):
    group = "kafka-consumer-groups --group app"
    assert "app" in run(f"{group} --topic t --reset-offsets --to-earliest --execute")
    assert run("kafka-consumer-groups --list").split() == ["app"]
    assert re.search(r"app +t +0 +0 +0 +0", run(f"{group} --describe"))
    assert "Empty" in run("kafka-consumer-groups --describe --all-groups --state")
    assert "no active members" in run(f"{group} --describe --members --verbose")
    assert "Group no is not found" in run("kafka-consumer-groups --describe --group no")
    assert "is valid" in run("kafka-consumer-groups --validate-regex --regex a.*")
    assert "Successful" in run(f"{group} --delete-offsets --topic t")
    assert "was successful" in run(f"{group} --delete")


def test_share_groups(run):
    group = "kafka-share-groups --group workers"
    assert "workers" in run(f"{group} --topic t --reset-offsets --to-earliest --execute")
    assert run("kafka-share-groups --list").split() == ["workers"]
    assert re.search(r"workers +t +0 +0 +0", run(f"{group} --describe"))
    assert "Empty" in run(f"{group} --describe --state")
    assert "no active members" in run(f"{group} --describe --members --verbose")
    assert re.search(r"workers +Share +share", run("kafka-groups --list --share"))
    assert "Successful" in run(f"{group} --delete-offsets --topic t")
    assert "was successful" in run(f"{group} --delete")
    assert run("kafka-groups --list").split() == ["GROUP", "TYPE", "PROTOCOL"]


def test_features_and_the_quorum(run):
    assert "FinalizedVersionLevel: 2" in run("kafka-features describe")
    run("kafka-features upgrade --feature transaction.version=2")
    status = run("kafka-metadata-quorum describe --status")
    assert re.search(r"LeaderId: +0\n", status)
    assert re.search(r"\n0 .*\tLeader", run("kafka-metadata-quorum describe --replication"))


def test_the_cluster(run, broker):
    assert "Cluster ID: " in run("kafka-cluster cluster-id")
    assert re.search(rf"0 +127.0.0.1 {broker.port}", run("kafka-cluster list-endpoints"))
    assert "Produce(0): 0 to 13" in run("kafka-broker-api-versions")
    assert '"partition":"t-0"' in run("kafka-log-dirs --describe --topic-list t")
    assert not run("kafka-client-metrics --list").strip()


def test_partitions_stay_where_they_are(run, broker, tmp_path):
    topics, plan = tmp_path / "topics.json", tmp_path / "plan.json"
    topics.write_text('{"version":1,"topics":[{"topic":"t"}]}')
    generated = run(
        f"kafka-reassign-partitions --generate --broker-list 0 --topics-to-move-json-file {topics}"
    )
    current = json.loads(generated.splitlines()[1])
    # With the log directories: it is what the tool prints to go back.
    (directory,) = {path for one in current["partitions"] for path in one["log_dirs"]}
    plan.write_text(json.dumps(current))
    reassign = f"kafka-reassign-partitions --reassignment-json-file {plan}"
    assert "Successfully started" in run(f"{reassign} --execute")
    assert "is completed" in run(f"{reassign} --verify")
    assert "None of the specified" in run(f"{reassign} --cancel")
    assert "No partition reassignments found" in run("kafka-reassign-partitions --list")
    plan.write_text(plan.read_text().replace(directory, "/elsewhere"))
    assert "Failed to alter dir" in run(f"{reassign} --execute", 1)
    elect = "kafka-leader-election --election-type"
    assert "already elected" in run(f"{elect} unclean --topic t --partition 0")
    run(f"{elect} preferred --all-topic-partitions")


def test_offsets_and_transactions(run, tmp_path):
    assert run("kafka-get-offsets --topic t --partitions 0").strip() == "t:0:0"
    for time in ("earliest", "earliest-local"):
        assert "t:0:0" in run(f"kafka-get-offsets --topic t --time {time}")
    for time in ("max-timestamp", "latest-tiered", "earliest-pending-upload"):
        assert not run(f"kafka-get-offsets --topic t --time {time}").strip()
    deleted = tmp_path / "deleted.json"
    deleted.write_text('{"version":1,"partitions":[{"topic":"t","partition":0,"offset":-1}]}')
    assert "low_watermark: 0" in run(f"kafka-delete-records --offset-json-file {deleted}")
    run("kafka-transactions forceTerminateTransaction --transactionalId x")
    assert re.search(r"\nx .*Empty", run("kafka-transactions list"))
    assert re.search(r"\tx .*Empty", run("kafka-transactions describe --transactional-id x"))
    assert "ProducerId" in run("kafka-transactions describe-producers --topic t --partition 0")
    assert "StartOffset" in run("kafka-transactions find-hanging --broker-id 0")
