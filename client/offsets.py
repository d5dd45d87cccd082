"""Offset requests that consumer, admin and Spark share: ListOffsets, OffsetFetch, OffsetCommit.

Each request is sent once to the broker responsible and returns a result per partition: an offset,
or the error. Callers decide what to retry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import NamedTuple, TypeVar

from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.api.offset_commit import (
    LAST_VERSION_WITH_TOPIC_NAMES,
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from ottla.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
)
from ottla.protocol.errors import ErrorCode, error_of
from ottla.protocol.registry import OFFSET_FETCH

from .cluster import Cluster
from .errors import ClientError, KafkaError
from .types import OffsetAndMetadata, OffsetAndTimestamp, TopicPartition

T = TypeVar("T")
Failure = KafkaError | ClientError

# The last version of OffsetFetch with a single group, and the first with require_stable.
_LAST_OF_ONE_GROUP = 7
_FIRST_WITH_REQUIRE_STABLE = 7


class ListedOffset(NamedTuple):
    """An offset, and the leader epoch of its record; that of the leader if there is no record."""

    offset: int
    timestamp: int
    leader_epoch: int


async def list_offsets(
    cluster: Cluster, timestamps: Mapping[TopicPartition, int], *, read_committed: bool
) -> dict[TopicPartition, OffsetAndTimestamp | Failure]:
    """Look up offsets by timestamp in milliseconds, or by LATEST or EARLIEST; -1 if none."""
    results: dict[TopicPartition, OffsetAndTimestamp | Failure] = {}
    by_node: dict[int, dict[TopicPartition, int]] = {}
    for tp, leader in (await cluster.leaders_of(timestamps)).items():
        if isinstance(leader, int):
            by_node.setdefault(leader, {})[tp] = timestamps[tp]
        else:
            results[tp] = leader
    for node_results in await asyncio.gather(
        *(
            list_offsets_from(cluster, node, partitions, read_committed=read_committed)
            for node, partitions in by_node.items()
        )
    ):
        for tp, found in node_results.items():
            if isinstance(found, ListedOffset):
                results[tp] = OffsetAndTimestamp(found.offset, found.timestamp)
            else:
                results[tp] = found
    return results


async def list_offsets_from(
    cluster: Cluster,
    node: int,
    timestamps: Mapping[TopicPartition, int],
    *,
    read_committed: bool,
) -> dict[TopicPartition, ListedOffset | Failure]:
    """Look up offsets like `list_offsets`, of partitions that one node leads."""
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(read_committed),
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(partition_index=tp.partition, timestamp=timestamps[tp])
                    for tp in partitions
                ],
            )
            for topic, partitions in group_by_topic(timestamps)
        ],
    )
    try:
        response = await cluster.send(node, request, ListOffsetsResponse)
    except (KafkaError, ClientError) as error:
        return dict.fromkeys(timestamps, error)
    return {
        tp: kafka_error(partition.error_code, str(tp))
        or ListedOffset(partition.offset, partition.timestamp, partition.leader_epoch)
        for topic in response.topics
        for partition in topic.partitions
        for tp in [TopicPartition(topic.name, partition.partition_index)]
    }


async def fetch_committed_offsets(
    cluster: Cluster,
    group: str,
    partitions: Collection[TopicPartition] | None,
    *,
    require_stable: bool = True,
) -> dict[TopicPartition, OffsetAndMetadata | KafkaError | None]:
    """Return a group's committed offsets; None for a partition without one. Raises KafkaError.

    With `partitions=None`, all offsets that the group has committed. With `require_stable`, the
    broker waits for transactions with pending offsets, if it supports that.
    """
    node = await cluster.coordinator_of(group)
    connection = await cluster.connect(node, "group")
    version = connection.version_for(OFFSET_FETCH, _LAST_OF_ONE_GROUP)
    request = OffsetFetchRequest(
        group_id=group,
        topics=None
        if partitions is None
        else [
            OffsetFetchRequestTopic(name=topic, partition_indexes=[tp.partition for tp in tps])
            for topic, tps in group_by_topic(partitions)
        ],
        require_stable=require_stable and version >= _FIRST_WITH_REQUIRE_STABLE,
    )
    response = await cluster.send(
        node, request, OffsetFetchResponse, channel="group", max_version=_LAST_OF_ONE_GROUP
    )
    if (error := kafka_error(response.error_code, f"group {group!r}")) is not None:
        raise error
    results: dict[TopicPartition, OffsetAndMetadata | KafkaError | None] = {}
    for topic in response.topics:
        for partition in topic.partitions:
            tp = TopicPartition(topic.name, partition.partition_index)
            error = kafka_error(partition.error_code, f"group {group!r}, {tp}")
            if error is None and partition.committed_offset >= 0:
                results[tp] = OffsetAndMetadata(
                    partition.committed_offset,
                    partition.metadata or "",
                    partition.committed_leader_epoch,
                )
            else:
                results[tp] = error
    return results


async def commit_offsets(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    member: tuple[int, str, str | None] = (-1, "", None),
) -> dict[TopicPartition, KafkaError | None]:
    """Commit offsets. A member passes its generation, member id and group instance id."""
    generation_id, member_id, instance_id = member
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation_id,
        member_id=member_id,
        group_instance_id=instance_id,
        topics=[
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=tp.partition,
                        committed_offset=offsets[tp].offset,
                        committed_leader_epoch=offsets[tp].leader_epoch,
                        committed_metadata=offsets[tp].metadata,
                    )
                    for tp in partitions
                ],
            )
            for topic, partitions in group_by_topic(offsets)
        ],
    )
    response = await cluster.send_to_coordinator(
        group, request, OffsetCommitResponse, max_version=LAST_VERSION_WITH_TOPIC_NAMES
    )
    return {
        TopicPartition(topic.name, partition.partition_index): kafka_error(
            partition.error_code, f"group {group!r}, {topic.name}-{partition.partition_index}"
        )
        for topic in response.topics
        for partition in topic.partitions
    }


def values_or_raise(results: Mapping[TopicPartition, T | Exception]) -> dict[TopicPartition, T]:
    """Return the values of all partitions, or raise the first error among them."""
    values: dict[TopicPartition, T] = {}
    for tp, result in results.items():
        if isinstance(result, Exception):
            raise result
        values[tp] = result
    return values


def group_by_topic(
    partitions: Iterable[TopicPartition],
) -> Iterable[tuple[str, list[TopicPartition]]]:
    """Yield each topic with its partitions, in order."""
    for topic, group in groupby(sorted(partitions), key=lambda tp: tp.topic):
        yield topic, list(group)


def kafka_error(code: int, context: str) -> KafkaError | None:
    """Return the exception for an error code, with `context` in its message; None for no error."""
    return error_of(code, f"{context}: {ErrorCode.of(code).message}")
