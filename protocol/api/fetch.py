"""Fetch (key 1): read record batches, waiting for them if need be.

Version 4 adds the isolation level, and returns batches of magic 2.
Version 5 adds the log start offset.
Version 7 adds fetch sessions, which let a request name only what changed.
Version 9 adds the leader epoch that the client believes in, so that it can be fenced.
Version 10 allows zstd.
Version 11 adds the rack, and the replica that would be better to read from.
Version 12 is the first flexible version, and adds the diverging epoch and the current leader.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..registry import FETCH
from ..schema import Array, Buffer, Bytes, Int8, Int16, Int32, Int64, Message, String, Struct, field


class FetchPartition(Message):
    partition: int = field(Int32)
    # leader epoch client believes; -1 = skip check
    current_leader_epoch: int = field(Int32, since=9, ignorable=True, default=-1)
    fetch_offset: int = field(Int64)  # first offset wanted
    # leader epoch of last record read, -1 none
    last_fetched_epoch: int = field(Int32, since=12, default=-1)
    # first retained offset
    log_start_offset: int = field(Int64, since=5, ignorable=True, default=-1)
    partition_max_bytes: int = field(Int32)  # cap for this partition


class FetchTopic(Message):
    topic: str = field(String)
    partitions: Sequence[FetchPartition] = field(Array(FetchPartition))


class ForgottenTopic(Message):
    topic: str = field(String)
    partitions: Sequence[int] = field(Array(Int32))


class FetchRequest(Message, api=FETCH):
    cluster_id: str | None = field(
        String, since=12, nullable=12, tag=0, ignorable=True, default=None
    )
    replica_id: int = field(Int32, default=-1)  # -1 for consumers
    max_wait_ms: int = field(Int32)  # long-poll limit
    min_bytes: int = field(Int32)  # answer once this many bytes are ready
    max_bytes: int = field(Int32, default=2**31 - 1)  # soft cap on the whole response
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
    first_offset: int = field(Int64)  # first offset of that aborted txn


class PartitionData(Message):
    partition_index: int = field(Int32)
    error_code: int = field(Int16)
    high_watermark: int = field(Int64)  # end of readable log (next offset)
    last_stable_offset: int = field(Int64, default=-1)
    # first retained offset
    log_start_offset: int = field(Int64, since=5, ignorable=True, default=-1)
    # truncation hint: epoch + end offset
    diverging_epoch: EpochEndOffset = field(Struct(EpochEndOffset), since=12, tag=0)
    # leader hint on NOT_LEADER/FENCED errors
    current_leader: LeaderIdAndEpoch = field(Struct(LeaderIdAndEpoch), since=12, tag=1)
    snapshot_id: SnapshotId = field(Struct(SnapshotId), since=12, tag=2)  # KRaft only
    # aborted txns overlapping the returned range (read_committed only)
    aborted_transactions: Sequence[AbortedTransaction] | None = field(
        Array(AbortedTransaction), nullable=4
    )
    # other replica to read from, -1 none
    preferred_read_replica: int = field(Int32, since=11, default=-1)
    records: Buffer | None = field(Bytes, nullable=4)  # batches; send EMPTY, never null


class FetchableTopicResponse(Message):
    topic: str = field(String)
    partitions: Sequence[PartitionData] = field(Array(PartitionData))


class FetchResponse(Message, api=FETCH):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16, since=7, ignorable=True)
    session_id: int = field(Int32, since=7)  # fetch session id, 0 = none
    responses: Sequence[FetchableTopicResponse] = field(Array(FetchableTopicResponse))
