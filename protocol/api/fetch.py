"""Fetch (key 1): fetch record batches from partitions, with long polling.

Version 4 adds IsolationLevel, LastStableOffset and AbortedTransactions; the first with magic 2.
Version 5 adds LogStartOffset.
Version 7 adds incremental fetch sessions: SessionId, SessionEpoch and ForgottenTopicsData.
Version 9 adds CurrentLeaderEpoch to the request.
Version 10 allows zstd compression.
Version 11 adds RackId to the request, and PreferredReadReplica to the response.
Version 12 is the first flexible version; adds ClusterId and LastFetchedEpoch to the request, and
    DivergingEpoch, CurrentLeader and SnapshotId to the response.
Version 13 names topics by id.
Version 14 may return OFFSET_MOVED_TO_TIERED_STORAGE.
Version 15 replaces ReplicaId by ReplicaState, with the epoch of the follower.
Version 16 adds NodeEndpoints to the response.
Version 17 adds ReplicaDirectoryId to the request.
Version 18 adds HighWatermark to the request.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..primitives import NIL_UUID
from ..registry import FETCH
from ..schema import (
    Array,
    Buffer,
    Bytes,
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    String,
    Struct,
    Uuid,
    field,
)

#: The last version that names topics; later ones have their ids.
LAST_VERSION_WITH_TOPIC_NAMES = 12
#: The last version with ReplicaId; later ones have ReplicaState.
LAST_VERSION_WITH_REPLICA_ID = 14


class FetchPartition(Message):
    partition: int = field(Int32)
    # leader epoch known to the client, -1 = skip check
    current_leader_epoch: int = field(Int32, since=9, ignorable=True, default=-1)
    fetch_offset: int = field(Int64)  # first offset to fetch
    # leader epoch of last record read, -1 none
    last_fetched_epoch: int = field(Int32, since=12, default=-1)
    # first retained offset
    log_start_offset: int = field(Int64, since=5, ignorable=True, default=-1)
    partition_max_bytes: int = field(Int32)  # max bytes for this partition
    # followers only: the log directory of the replica
    replica_directory_id: UUID = field(Uuid, since=17, tag=0, ignorable=True, default=NIL_UUID)
    # followers only: the high watermark that the replica knows
    high_watermark: int = field(Int64, since=18, tag=1, ignorable=True, default=2**63 - 1)


class FetchTopic(Message):
    topic: str = field(String, until=12, ignorable=True)
    topic_id: UUID = field(Uuid, since=13, default=NIL_UUID, ignorable=True)
    partitions: Sequence[FetchPartition] = field(Array(FetchPartition))


class ForgottenTopic(Message):
    topic: str = field(String, until=12, ignorable=True)
    topic_id: UUID = field(Uuid, since=13, default=NIL_UUID, ignorable=True)
    partitions: Sequence[int] = field(Array(Int32))


class ReplicaState(Message):
    replica_id: int = field(Int32, default=-1)  # -1 for consumers
    replica_epoch: int = field(Int64, default=-1)  # broker epoch of the follower, -1 unknown


class FetchRequest(Message, api=FETCH):
    cluster_id: str | None = field(
        String, since=12, nullable=12, tag=0, ignorable=True, default=None
    )
    replica_id: int = field(Int32, until=14, default=-1)  # -1 for consumers
    replica_state: ReplicaState = field(Struct(ReplicaState), since=15, tag=1)
    max_wait_ms: int = field(Int32)  # long-poll limit
    min_bytes: int = field(Int32)  # respond once this many bytes are available
    max_bytes: int = field(Int32, default=2**31 - 1)  # soft limit for the whole response
    isolation_level: int = field(Int8)  # 0 read_uncommitted 1 read_committed
    session_id: int = field(Int32, since=7, ignorable=True)  # fetch session id, 0 = none
    # fetch session epoch (0 new, -1 close/none)
    session_epoch: int = field(Int32, since=7, ignorable=True, default=-1)
    topics: Sequence[FetchTopic] = field(Array(FetchTopic))
    # partitions to drop from the fetch session
    forgotten_topics_data: Sequence[ForgottenTopic] = field(Array(ForgottenTopic), since=7)
    rack_id: str = field(String, since=11, ignorable=True)  # client rack


class EpochEndOffset(Message):
    epoch: int = field(Int32, default=-1)  # leader epoch
    end_offset: int = field(Int64, default=-1)  # end offset of that epoch


class LeaderIdAndEpoch(Message):
    leader_id: int = field(Int32, default=-1)  # leader node, -1 none
    leader_epoch: int = field(Int32, default=-1)  # leader epoch, -1 unknown


class SnapshotId(Message):
    end_offset: int = field(Int64, default=-1)  # end offset of that epoch
    epoch: int = field(Int32, default=-1)  # leader epoch


class AbortedTransaction(Message):
    producer_id: int = field(Int64)
    first_offset: int = field(Int64)  # first offset of the aborted transaction


class PartitionData(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    high_watermark: int = field(Int64)  # end of readable log (next offset)
    last_stable_offset: int = field(Int64, default=-1)
    # first retained offset
    log_start_offset: int = field(Int64, since=5, ignorable=True, default=-1)
    # truncation hint: epoch + end offset
    diverging_epoch: EpochEndOffset = field(Struct(EpochEndOffset), since=12, tag=0)
    # set on NOT_LEADER_OR_FOLLOWER and FENCED_LEADER_EPOCH
    current_leader: LeaderIdAndEpoch = field(Struct(LeaderIdAndEpoch), since=12, tag=1)
    snapshot_id: SnapshotId = field(Struct(SnapshotId), since=12, tag=2)  # KRaft only
    # aborted transactions in the fetched range (read_committed only)
    aborted_transactions: Sequence[AbortedTransaction] | None = field(
        Array(AbortedTransaction), nullable=4
    )
    # other replica to read from, -1 none
    preferred_read_replica: int = field(Int32, since=11, default=-1)
    records: Buffer | None = field(Bytes, nullable=4)  # record batches; send empty, never null


class FetchableTopicResponse(Message):
    topic: str = field(String, until=12, ignorable=True)
    topic_id: UUID = field(Uuid, since=13, default=NIL_UUID, ignorable=True)
    partitions: Sequence[PartitionData] = field(Array(PartitionData))


class NodeEndpoint(Message):
    node_id: int = field(Int32)
    host: str = field(String)
    port: int = field(Int32)
    rack: str | None = field(String, nullable=16, default=None)


class FetchResponse(Message, api=FETCH):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16, since=7, ignorable=True)
    session_id: int = field(Int32, since=7)  # fetch session id, 0 = none
    responses: Sequence[FetchableTopicResponse] = field(Array(FetchableTopicResponse))
    # addresses of the current leaders
    node_endpoints: Sequence[NodeEndpoint] = field(Array(NodeEndpoint), since=16, tag=0)
