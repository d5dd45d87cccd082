"""The APIs and versions that ottla supports: the only list of them.

An entry names a module of `protocol/api/`, which is imported on first use: a process pays only for
the APIs it uses. A broker advertises the entries that it serves.
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
    """A Kafka API: a request and its response."""

    key: int
    name: str
    versions: Versions
    #: The first version that ApiVersions advertises, if it is not the first that is supported.
    advertised_since: int | None = None
    #: The last version that ApiVersions advertises, if it is not the last that is supported.
    advertised_until: int | None = None

    @cached_property
    def advertised(self) -> Versions:
        """The versions that ApiVersions advertises to clients."""
        first, last = self.advertised_since, self.advertised_until
        return replace(
            self.versions,
            first=self.versions.first if first is None else first,
            last=self.versions.last if last is None else last,
        )

    @property
    def module_name(self) -> str:
        """The module of `protocol/api/` that declares the messages."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", self.name).lower()

    @cached_property
    def request(self) -> type[Message]:
        """The request class."""
        return self._message("Request")

    @cached_property
    def response(self) -> type[Message]:
        """The response class."""
        return self._message("Response")

    def request_header_version(self, version: int) -> int:
        """Return the version of the request header: 2 (tagged fields) if flexible, else 1."""
        return 2 if self.versions.is_flexible(version) else 1

    def response_header_version(self, version: int) -> int:
        """Return the version of the response header: 1 (tagged fields) if flexible, else 0.

        Always 0 for ApiVersions: a client sends it before it knows the versions of the broker, and
        must be able to read the response of a broker older than its request (KIP-511).
        """
        return 1 if self.versions.is_flexible(version) and self is not API_VERSIONS else 0

    def _message(self, suffix: str) -> type[Message]:
        module = import_module(f".api.{self.module_name}", __package__)
        message: type[Message] = getattr(module, self.name + suffix)
        return message


# The minimum versions are the baseline of Kafka 4.0 (KIP-896). The maximum versions are the highest
# that work with all tested clients: a higher one may make a client rely on features not served.
#
# Produce is advertised from version 0, as in Kafka 4, but 0 to 2 are rejected: librdkafka before
# 2.12 derives from the minimum version whether the broker accepts compressed batches.
PRODUCE = Api(0, "Produce", Versions(3, 13, 9), advertised_since=0)
FETCH = Api(1, "Fetch", Versions(4, 18, 12))
LIST_OFFSETS = Api(2, "ListOffsets", Versions(1, 11, 6))
METADATA = Api(3, "Metadata", Versions(0, 13, 9))
OFFSET_COMMIT = Api(8, "OffsetCommit", Versions(2, 10, 8))
OFFSET_FETCH = Api(9, "OffsetFetch", Versions(1, 10, 6))
FIND_COORDINATOR = Api(10, "FindCoordinator", Versions(0, 6, 3))
JOIN_GROUP = Api(11, "JoinGroup", Versions(0, 9, 6))
HEARTBEAT = Api(12, "Heartbeat", Versions(0, 4, 4))
LEAVE_GROUP = Api(13, "LeaveGroup", Versions(0, 5, 4))
SYNC_GROUP = Api(14, "SyncGroup", Versions(0, 5, 4))
DESCRIBE_GROUPS = Api(15, "DescribeGroups", Versions(0, 6, 5))
LIST_GROUPS = Api(16, "ListGroups", Versions(0, 5, 3))
SASL_HANDSHAKE = Api(17, "SaslHandshake", Versions(0, 1))
API_VERSIONS = Api(18, "ApiVersions", Versions(0, 4, 3))
CREATE_TOPICS = Api(19, "CreateTopics", Versions(2, 7, 5))
DELETE_TOPICS = Api(20, "DeleteTopics", Versions(1, 6, 4))
DELETE_RECORDS = Api(21, "DeleteRecords", Versions(0, 2, 2))
INIT_PRODUCER_ID = Api(22, "InitProducerId", Versions(0, 5, 2))
OFFSET_FOR_LEADER_EPOCH = Api(23, "OffsetForLeaderEpoch", Versions(2, 4, 4))
# Since version 4 for brokers only, several transactions at once. Clients would use it if it were
# advertised.
ADD_PARTITIONS_TO_TXN = Api(24, "AddPartitionsToTxn", Versions(0, 5, 3), advertised_until=3)
ADD_OFFSETS_TO_TXN = Api(25, "AddOffsetsToTxn", Versions(0, 4, 3))
END_TXN = Api(26, "EndTxn", Versions(0, 5, 3))
WRITE_TXN_MARKERS = Api(27, "WriteTxnMarkers", Versions(1, 2, 1))
TXN_OFFSET_COMMIT = Api(28, "TxnOffsetCommit", Versions(0, 5, 3))
DESCRIBE_ACLS = Api(29, "DescribeAcls", Versions(1, 3, 2))
CREATE_ACLS = Api(30, "CreateAcls", Versions(1, 3, 2))
DELETE_ACLS = Api(31, "DeleteAcls", Versions(1, 3, 2))
DESCRIBE_CONFIGS = Api(32, "DescribeConfigs", Versions(1, 4, 4))
# Version 2 only adds flexible encoding, and sarama encodes it incorrectly.
ALTER_CONFIGS = Api(33, "AlterConfigs", Versions(0, 1, 2))
ALTER_REPLICA_LOG_DIRS = Api(34, "AlterReplicaLogDirs", Versions(1, 2, 2))
DESCRIBE_LOG_DIRS = Api(35, "DescribeLogDirs", Versions(1, 4, 2))
SASL_AUTHENTICATE = Api(36, "SaslAuthenticate", Versions(0, 2, 2))
CREATE_PARTITIONS = Api(37, "CreatePartitions", Versions(0, 3, 2))
DELETE_GROUPS = Api(42, "DeleteGroups", Versions(0, 2, 2))
ELECT_LEADERS = Api(43, "ElectLeaders", Versions(0, 2, 2))
INCREMENTAL_ALTER_CONFIGS = Api(44, "IncrementalAlterConfigs", Versions(0, 1, 1))
ALTER_PARTITION_REASSIGNMENTS = Api(45, "AlterPartitionReassignments", Versions(0, 1, 0))
LIST_PARTITION_REASSIGNMENTS = Api(46, "ListPartitionReassignments", Versions(0, 0, 0))
OFFSET_DELETE = Api(47, "OffsetDelete", Versions(0, 0))
DESCRIBE_CLIENT_QUOTAS = Api(48, "DescribeClientQuotas", Versions(0, 1, 1))
ALTER_CLIENT_QUOTAS = Api(49, "AlterClientQuotas", Versions(0, 1, 1))
DESCRIBE_USER_SCRAM_CREDENTIALS = Api(50, "DescribeUserScramCredentials", Versions(0, 0, 0))
ALTER_USER_SCRAM_CREDENTIALS = Api(51, "AlterUserScramCredentials", Versions(0, 0, 0))
# Between brokers only.
ENVELOPE = Api(58, "Envelope", Versions(0, 0, 0))
DESCRIBE_QUORUM = Api(55, "DescribeQuorum", Versions(0, 2, 0))
UPDATE_FEATURES = Api(57, "UpdateFeatures", Versions(0, 2, 0))
DESCRIBE_CLUSTER = Api(60, "DescribeCluster", Versions(0, 2, 0))
DESCRIBE_PRODUCERS = Api(61, "DescribeProducers", Versions(0, 0, 0))
# Between brokers only, as AllocateProducerIds.
BROKER_REGISTRATION = Api(62, "BrokerRegistration", Versions(0, 0, 0))
BROKER_HEARTBEAT = Api(63, "BrokerHeartbeat", Versions(0, 0, 0))
UNREGISTER_BROKER = Api(64, "UnregisterBroker", Versions(0, 0, 0))
DESCRIBE_TRANSACTIONS = Api(65, "DescribeTransactions", Versions(0, 0, 0))
LIST_TRANSACTIONS = Api(66, "ListTransactions", Versions(0, 2, 0))
ALLOCATE_PRODUCER_IDS = Api(67, "AllocateProducerIds", Versions(0, 0, 0))
CONSUMER_GROUP_HEARTBEAT = Api(68, "ConsumerGroupHeartbeat", Versions(0, 1, 0))
CONSUMER_GROUP_DESCRIBE = Api(69, "ConsumerGroupDescribe", Versions(0, 1, 0))
LIST_CONFIG_RESOURCES = Api(74, "ListConfigResources", Versions(0, 1, 0))
DESCRIBE_TOPIC_PARTITIONS = Api(75, "DescribeTopicPartitions", Versions(0, 0, 0))
# Version 0 of the four was early access, and is not served by Kafka either.
SHARE_GROUP_HEARTBEAT = Api(76, "ShareGroupHeartbeat", Versions(1, 1, 0))
SHARE_GROUP_DESCRIBE = Api(77, "ShareGroupDescribe", Versions(1, 1, 0))
SHARE_FETCH = Api(78, "ShareFetch", Versions(1, 2, 0))
SHARE_ACKNOWLEDGE = Api(79, "ShareAcknowledge", Versions(1, 2, 0))
# Between brokers only: the state of share partitions.
INITIALIZE_SHARE_GROUP_STATE = Api(83, "InitializeShareGroupState", Versions(0, 0, 0))
READ_SHARE_GROUP_STATE = Api(84, "ReadShareGroupState", Versions(0, 0, 0))
WRITE_SHARE_GROUP_STATE = Api(85, "WriteShareGroupState", Versions(0, 1, 0))
DELETE_SHARE_GROUP_STATE = Api(86, "DeleteShareGroupState", Versions(0, 0, 0))
READ_SHARE_GROUP_STATE_SUMMARY = Api(87, "ReadShareGroupStateSummary", Versions(0, 1, 0))
DESCRIBE_SHARE_GROUP_OFFSETS = Api(90, "DescribeShareGroupOffsets", Versions(0, 1, 0))
ALTER_SHARE_GROUP_OFFSETS = Api(91, "AlterShareGroupOffsets", Versions(0, 0, 0))
DELETE_SHARE_GROUP_OFFSETS = Api(92, "DeleteShareGroupOffsets", Versions(0, 0, 0))

#: All APIs by key.
APIS = {entry.key: entry for entry in list(globals().values()) if isinstance(entry, Api)}
