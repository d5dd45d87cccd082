"""Which apis ottla speaks, and in which versions: the only list.

An entry names a module of `protocol/api/`, which is imported when one of its messages is first
needed: a process pays for the apis that it uses. A broker advertises those entries that it serves.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

from .schema import Versions

if TYPE_CHECKING:
    from .schema import Message


@dataclass(frozen=True)
class Api:
    """One kind of request and its response: Kafka's key and name for it."""

    key: int
    name: str
    versions: Versions
    #: What ApiVersions says is the first version, where that is a white lie.
    advertised_since: int | None = None

    @property
    def advertised(self) -> Versions:
        """The range that ApiVersions tells clients."""
        if self.advertised_since is None:
            return self.versions
        return replace(self.versions, first=self.advertised_since)

    @property
    def module_name(self) -> str:
        """The module in `protocol/api/` that declares the messages."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()

    @cached_property
    def request(self) -> type[Message]:
        """The class of the request."""
        return self._message("Request")

    @cached_property
    def response(self) -> type[Message]:
        """The class of the response."""
        return self._message("Response")

    def request_header_version(self, version: int) -> int:
        """Version of the request header: 2, with tags, for a flexible request; else 1."""
        return 2 if self.versions.is_flexible(version) else 1

    def response_header_version(self, version: int) -> int:
        """Version of the response header: 1, with tags, for a flexible response; else 0.

        ApiVersions has 0 always: a client asks before it knows what the broker understands, and
        must be able to read the answer of a broker that is older than its question (KIP-511).
        """
        return 1 if self.versions.is_flexible(version) and self is not API_VERSIONS else 0

    def _message(self, suffix: str) -> type[Message]:
        module = import_module(f".api.{self.module_name}", __package__)
        message: type[Message] = getattr(module, self.name + suffix)
        return message


# Lower ends are the baseline that Kafka 4.0 set (KIP-896). The upper ends are those with which all
# clients that we know of work; a higher one may switch a client to behaviour that needs more.
#
# Produce is advertised from 0, as Kafka 4 does, and 0 to 2 are refused: librdkafka before 2.12
# looks at the lower end to decide whether the broker can take compressed batches.
PRODUCE = Api(0, "Produce", Versions(3, 11, 9), advertised_since=0)
FETCH = Api(1, "Fetch", Versions(4, 12, 12))
LIST_OFFSETS = Api(2, "ListOffsets", Versions(1, 9, 6))
METADATA = Api(3, "Metadata", Versions(0, 12, 9))
OFFSET_COMMIT = Api(8, "OffsetCommit", Versions(2, 9, 8))
OFFSET_FETCH = Api(9, "OffsetFetch", Versions(1, 9, 6))
FIND_COORDINATOR = Api(10, "FindCoordinator", Versions(0, 6, 3))
JOIN_GROUP = Api(11, "JoinGroup", Versions(0, 9, 6))
HEARTBEAT = Api(12, "Heartbeat", Versions(0, 4, 4))
LEAVE_GROUP = Api(13, "LeaveGroup", Versions(0, 5, 4))
SYNC_GROUP = Api(14, "SyncGroup", Versions(0, 5, 4))
DESCRIBE_GROUPS = Api(15, "DescribeGroups", Versions(0, 5, 5))
LIST_GROUPS = Api(16, "ListGroups", Versions(0, 5, 3))
SASL_HANDSHAKE = Api(17, "SaslHandshake", Versions(0, 1))
API_VERSIONS = Api(18, "ApiVersions", Versions(0, 4, 3))
CREATE_TOPICS = Api(19, "CreateTopics", Versions(2, 7, 5))
DELETE_TOPICS = Api(20, "DeleteTopics", Versions(1, 6, 4))
DELETE_RECORDS = Api(21, "DeleteRecords", Versions(0, 2, 2))
INIT_PRODUCER_ID = Api(22, "InitProducerId", Versions(0, 5, 2))
OFFSET_FOR_LEADER_EPOCH = Api(23, "OffsetForLeaderEpoch", Versions(2, 4, 4))
# From version 4 on brokers ask in batches, and a client that sees it offered asks so too.
ADD_PARTITIONS_TO_TXN = Api(24, "AddPartitionsToTxn", Versions(0, 3, 3))
ADD_OFFSETS_TO_TXN = Api(25, "AddOffsetsToTxn", Versions(0, 4, 3))
END_TXN = Api(26, "EndTxn", Versions(0, 4, 3))
TXN_OFFSET_COMMIT = Api(28, "TxnOffsetCommit", Versions(0, 4, 3))
DESCRIBE_ACLS = Api(29, "DescribeAcls", Versions(1, 3, 2))
CREATE_ACLS = Api(30, "CreateAcls", Versions(1, 3, 2))
DELETE_ACLS = Api(31, "DeleteAcls", Versions(1, 3, 2))
DESCRIBE_CONFIGS = Api(32, "DescribeConfigs", Versions(1, 4, 4))
# Version 2 only adds flexibility, and sarama writes it wrongly.
ALTER_CONFIGS = Api(33, "AlterConfigs", Versions(0, 1, 2))
DESCRIBE_LOG_DIRS = Api(35, "DescribeLogDirs", Versions(1, 4, 2))
SASL_AUTHENTICATE = Api(36, "SaslAuthenticate", Versions(0, 2, 2))
CREATE_PARTITIONS = Api(37, "CreatePartitions", Versions(0, 3, 2))
DELETE_GROUPS = Api(42, "DeleteGroups", Versions(0, 2, 2))
INCREMENTAL_ALTER_CONFIGS = Api(44, "IncrementalAlterConfigs", Versions(0, 1, 1))
OFFSET_DELETE = Api(47, "OffsetDelete", Versions(0, 0))
DESCRIBE_CLUSTER = Api(60, "DescribeCluster", Versions(0, 1, 0))
DESCRIBE_PRODUCERS = Api(61, "DescribeProducers", Versions(0, 0, 0))
DESCRIBE_TRANSACTIONS = Api(65, "DescribeTransactions", Versions(0, 0, 0))
LIST_TRANSACTIONS = Api(66, "ListTransactions", Versions(0, 1, 0))
ALLOCATE_PRODUCER_IDS = Api(67, "AllocateProducerIds", Versions(0, 0, 0))
CONSUMER_GROUP_HEARTBEAT = Api(68, "ConsumerGroupHeartbeat", Versions(0, 1, 0))
CONSUMER_GROUP_DESCRIBE = Api(69, "ConsumerGroupDescribe", Versions(0, 1, 0))
DESCRIBE_TOPIC_PARTITIONS = Api(75, "DescribeTopicPartitions", Versions(0, 0, 0))

#: All of the above by key.
APIS = {entry.key: entry for entry in list(globals().values()) if isinstance(entry, Api)}
