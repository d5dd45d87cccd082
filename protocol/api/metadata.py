"""Metadata (key 3): the brokers of the cluster, the topics, and who leads each partition.

Version 1 lets null ask for all topics (an empty list asks for none), and adds rack, controller and
    internal.
Version 2 adds the cluster id.
Version 3 adds the throttle time to the response.
Version 4 lets the client forbid the creation of missing topics.
Version 5 adds offline replicas.
Version 7 adds leader epochs.
Version 8 adds the authorized operations.
Version 9 is the first flexible version.
Version 10 adds topic ids.
Version 11 drops the authorized operations of the cluster, which DescribeCluster has now.
Version 12 lets a topic be asked for by its id.
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
    isr_nodes: Sequence[int] = field(Array(Int32))  # in-sync replicas
    offline_replicas: Sequence[int] = field(Array(Int32), since=5, ignorable=True)


class MetadataResponseTopic(Message):
    error_code: int = field(Int16)
    # topic name; null only when looked up by unknown id
    name: str | None = field(String, nullable=12)
    topic_id: UUID = field(Uuid, since=10, ignorable=True)
    is_internal: bool = field(Bool, since=1, ignorable=True)
    partitions: Sequence[MetadataResponsePartition] = field(Array(MetadataResponsePartition))
    # ACL op bitfield, INT32_MIN = not requested
    topic_authorized_operations: int = field(Int32, since=8, default=-(2**31))


class MetadataResponse(Message, api=METADATA):
    throttle_time_ms: int = field(Int32, since=3, ignorable=True)
    brokers: Sequence[MetadataResponseBroker] = field(Array(MetadataResponseBroker))  # live brokers
    cluster_id: str | None = field(String, since=2, nullable=2, ignorable=True, default=None)
    controller_id: int = field(Int32, since=1, ignorable=True, default=-1)  # controller node id
    topics: Sequence[MetadataResponseTopic] = field(Array(MetadataResponseTopic))
    # ACL op bitfield, INT32_MIN = not requested
    cluster_authorized_operations: int = field(Int32, since=8, until=10, default=-(2**31))
