"""Apache Kafka's tools read the records of groups of both protocols."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator

import pytest
from confluent_kafka import Consumer, TopicPartition

from harness.clients.agents import JAVA, Java
from harness.clients.base import kafka_libs
from harness.clients.confluent import Confluent
from harness.daemon import Daemon

TOPIC = "orders"


def kafka_tool(*arguments: str) -> str:
    """Run a tool of Apache Kafka, and return its output."""
    command = [*JAVA, "-cp", f"{kafka_libs()}/*", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def broker(tmp_path_factory) -> Iterator[Daemon]:
    """A broker with a consumer group, and its log on disk."""
    if reason := Java.missing():
        pytest.skip(reason)
    configs = ("--set", "offsets.topic.num.partitions=1")
    with Daemon(tmp_path_factory.mktemp("records"), *configs) as started:
        Confluent(started.address).create_topic(TOPIC, 2)
        for protocol in ("consumer", "classic"):
            consumer = Consumer(
                {
                    "bootstrap.servers": started.address,
                    "group.id": f"g-{protocol}",
                    "group.protocol": protocol,
                    "client.id": "billing",
                }
            )
            consumer.subscribe([f"^{TOPIC}" if protocol == "consumer" else TOPIC])
            while not consumer.assignment():
                consumer.poll(0.1)
            consumer.commit(offsets=[TopicPartition(TOPIC, 0, 7)], asynchronous=False)
            consumer.close()
        yield started


def test_dump_log_segments_decodes_every_record(broker):
    (segment,) = broker.folder.rglob("__consumer_offsets-0/00000000000000000000.log")

    output = kafka_tool(
        "org.apache.kafka.tools.DumpLogSegments",
        "--offsets-decoder",
        "--files",
        str(segment),
    )

    records = [line for line in output.splitlines() if "payload" in line]
    assert records, output
    for kind in (3, 5, 6, 7, 8, 16, 2, 1):
        assert any(f'"type":"{kind}"' in line for line in records), f"{kind}:\n{output}"
    # librdkafka joins the expressions of a subscription.
    assert any('"subscribedTopicRegex":"(^orders)"' in line for line in records), output
    assert any('"memberEpoch":1' in line for line in records), output


def test_the_console_consumers_formatter_reads_groups(broker):
    output = kafka_tool(
        "org.apache.kafka.tools.consumer.ConsoleConsumer",
        "--bootstrap-server",
        broker.address,
        "--topic",
        "__consumer_offsets",
        "--from-beginning",
        "--timeout-ms",
        "15000",
        "--formatter",
        "org.apache.kafka.tools.consumer.GroupMetadataMessageFormatter",
    )

    assert '"group":"g-classic"' in output.replace(" ", ""), output
