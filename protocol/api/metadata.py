"""Metadata (key 3): describe the brokers, the topics, and the leaders of their partitions.

Version 1 makes Topics nullable: null is all topics, and empty is none. Adds Rack, ControllerId and
    IsInternal to the response.
Version 2 adds ClusterId to the response.
Version 3 adds ThrottleTimeMs to the response.
Version 4 adds AllowAutoTopicCreation to the request.
Version 5 adds OfflineReplicas to the response.
Version 7 adds LeaderEpoch to the response.
Version 8 adds the authorized operations of cluster and topics.
Version 9 is the first flexible version.
Version 10 adds TopicId, and makes Name nullable in the request.
Version 11 removes the authorized operations of the cluster: see DescribeCluster.
Version 12 allows requests by TopicId.
Version 13 adds a top-level ErrorCode to the response.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..registry import METADATA
from ..schema import Array, Bool, Int16, Int32, Message, String, Uuid, field


class MetadataRequestTopic(Message):
    topic_id: UUID = field(Uuid, since=10, ignorable=True)
    name: str | None = field(String, nullable=10)


class MetadataRequest(Message, api=METADATA):
    # null = all topics (v1+); empty = none (v1+), all (v0)
    topics: Sequence[MetadataRequestTopic] | None = field(Array(MetadataRequestTopic), nullable=1)
    # may create missing topics
    allow_auto_topic_creation: bool = field(Bool, since=4, default=True)
    # fill the ACL bitfield
    include_cluster_authorized_operations: bool = field(Bool, since=8, until=10)
    include_topic_authorized_operations: bool = field(Bool, since=8)  # fill the ACL bitfield


class MetadataResponseBroker(Message):
    node_id: int = field(Int32)
    host: str = field(String)
    port: int = field(Int32)
    rack: str | None = field(String, since=1, nullable=1, ignorable=True, default=None)


class MetadataResponsePartition(Message):
    error_code: int = field(Int16)
    partition_index: int = field(Int32)
    leader_id: int = field(Int32)  # leader node, -1 none
    # leader epoch, -1 unknown
    leader_epoch: int = field(Int32, since=7, ignorable=True, default=-1)
    replica_nodes: Sequence[int] = field(Array(Int32))
    isr_nodes: Sequence[int] = field(Array(Int32))
    offline_replicas: Sequence[int] = field(Array(Int32), since=5, ignorable=True)


class MetadataResponseTopic(Message):
    error_code: int = field(Int16)
    # topic name; null only when looked up by unknown id
    name: str | None = field(String, nullable=12)
    topic_id: UUID = field(Uuid, since=10, ignorable=True)
    is_internal: bool = field(Bool, since=1, ignorable=True)
    partitions: Sequence[MetadataResponsePartition] = field(Array(MetadataResponsePartition))
    # ACL operation bitfield, INT32_MIN = not requested
    topic_authorized_operations: int = field(Int32, since=8, default=-(2**31))


class MetadataResponse(Message, api=METADATA):
    throttle_time_ms: int = field(Int32, since=3, ignorable=True)
    brokers: Sequence[MetadataResponseBroker] = field(Array(MetadataResponseBroker))  # live brokers
    cluster_id: str | None = field(String, since=2, nullable=2, ignorable=True, default=None)
    controller_id: int = field(Int32, since=1, ignorable=True, default=-1)
    topics: Sequence[MetadataResponseTopic] = field(Array(MetadataResponseTopic))
    # ACL operation bitfield, INT32_MIN = not requested
    cluster_authorized_operations: int = field(Int32, since=8, until=10, default=-(2**31))
    # REBOOTSTRAP_REQUIRED: ask the bootstrap servers again
    error_code: int = field(Int16, since=13, ignorable=True)
