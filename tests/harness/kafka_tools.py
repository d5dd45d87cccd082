"""The command line tools of Apache Kafka, in one JVM: see KafkaTools.java."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, Self

from harness.clients.agents import JAVA, AgentProcess
from harness.clients.base import kafka_libs

_PACKAGE = "org.apache.kafka.tools."
#: The classes behind the scripts that people know.
_CLASSES = {
    "kafka-acls": _PACKAGE + "AclCommand",
    "kafka-broker-api-versions": _PACKAGE + "BrokerApiVersionsCommand",
    "kafka-client-metrics": _PACKAGE + "ClientMetricsCommand",
    "kafka-cluster": _PACKAGE + "ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-consumer-groups": _PACKAGE + "consumer.group.ConsumerGroupCommand",
    "kafka-delegation-tokens": _PACKAGE + "DelegationTokenCommand",
    "kafka-delete-records": _PACKAGE + "DeleteRecordsCommand",
    "kafka-features": _PACKAGE + "FeatureCommand",
    "kafka-get-offsets": _PACKAGE + "GetOffsetShell",
    "kafka-groups": _PACKAGE + "GroupsCommand",
    "kafka-leader-election": _PACKAGE + "LeaderElectionCommand",
    "kafka-log-dirs": _PACKAGE + "LogDirsCommand",
    "kafka-metadata-quorum": _PACKAGE + "MetadataQuorumCommand",
    "kafka-reassign-partitions": _PACKAGE + "reassign.ReassignPartitionsCommand",
    "kafka-share-groups": _PACKAGE + "consumer.group.ShareGroupCommand",
    "kafka-streams-groups": _PACKAGE + "streams.StreamsGroupCommand",
    "kafka-topics": _PACKAGE + "TopicCommand",
    "kafka-transactions": _PACKAGE + "TransactionsCommand",
}
#: Where a stack trace begins that a tool prints with an error.
_TRACE = re.compile(r"^\tat .*\n?|^Caused by: .*\n?|^\t\.\.\. \d+ more\n?", re.MULTILINE)


class Done(NamedTuple):
    """What a tool has printed, without stack traces, and its exit code."""

    status: int
    text: str


class KafkaTools:
    """Runs tools against a broker, one after another."""

    def __init__(self, address: str) -> None:
        self._address = address
        program = Path(__file__).with_name("KafkaTools.java")
        self._process = AgentProcess([*JAVA, "-cp", f"{kafka_libs()}/*", str(program)], {})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.close()

    def __call__(self, tool: str, *arguments: str) -> Done:
        """Run a tool; `--bootstrap-server` is added."""
        # kafka-cluster has it as an option of its commands, others before theirs.
        position = 1 if tool == "kafka-cluster" else 0
        words = [*arguments]
        words[position:position] = ["--bootstrap-server", self._address]
        result = self._process.call({"tool": _CLASSES[tool], "arguments": words})
        text = _TRACE.sub("", result["output"] + result["errors"])
        return Done(result["status"], text)
