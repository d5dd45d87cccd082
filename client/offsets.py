"""What brokers know of offsets: the ends of logs, times, and what a group has committed.

Each question is asked once of whoever has to be asked, and answered for each partition, with its
offset or with what went wrong; who asks decides what to try again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping
from itertools import groupby
from typing import TypeVar

from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from ottla.protocol.api.offset_commit import (
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

# The last version that asks for a single group, and the first that can refuse unstable offsets.
_FETCH_OF_ONE_GROUP = 7
_FETCH_STABLE = 7


async def list_offsets(
    cluster: Cluster, times: Mapping[TopicPartition, int], *, is_committed: bool
) -> dict[TopicPartition, OffsetAndTimestamp | Failure]:
    """Look offsets up by time in milliseconds, or by LATEST or EARLIEST; -1 where there is none."""
    found: dict[TopicPartition, OffsetAndTimestamp | Failure] = {}
    by_node: dict[int, dict[TopicPartition, int]] = {}
    for place, leader in (await cluster.leaders_of(times)).items():
        if isinstance(leader, int):
            by_node.setdefault(leader, {})[place] = times[place]
        else:
            found[place] = leader
    for some in await asyncio.gather(
        *(
            list_offsets_of(cluster, node, its, is_committed=is_committed)
            for node, its in by_node.items()
        )
    ):
        found |= some
    return found


async def list_offsets_of(
    cluster: Cluster, node: int, times: Mapping[TopicPartition, int], *, is_committed: bool
) -> dict[TopicPartition, OffsetAndTimestamp | Failure]:
    """Look offsets up as above, of partitions that one node leads."""
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=int(is_committed),
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(partition_index=place.partition, timestamp=times[place])
                    for place in some
                ],
            )
            for topic, some in by_topic(times)
        ],
    )
    try:
        answer = await cluster.send(node, request, ListOffsetsResponse)
    except (KafkaError, ClientError) as error:
        return dict.fromkeys(times, error)
    return {
        place: failure_of(one.error_code, str(place))
        or OffsetAndTimestamp(one.offset, one.timestamp)
        for topic in answer.topics
        for one in topic.partitions
        for place in [TopicPartition(topic.name, one.partition_index)]
    }


async def fetch_committed(
    cluster: Cluster,
    group: str,
    places: Collection[TopicPartition] | None,
    *,
    is_stable: bool = True,
) -> dict[TopicPartition, OffsetAndMetadata | KafkaError | None]:
    """Look up what a group has committed; None where that is nothing. Raises KafkaError.

    Without partitions, it is asked for all that it has committed. What a transaction may still take
    back is waited for if it must be `is_stable`, where the broker can do that.
    """
    node = await cluster.coordinator_of(group)
    connection = await cluster.connect(node, "group")
    version = connection.version_for(OFFSET_FETCH, _FETCH_OF_ONE_GROUP)
    request = OffsetFetchRequest(
        group_id=group,
        topics=None
        if places is None
        else [
            OffsetFetchRequestTopic(
                name=topic, partition_indexes=[place.partition for place in some]
            )
            for topic, some in by_topic(places)
        ],
        require_stable=is_stable and version >= _FETCH_STABLE,
    )
    answer = await cluster.send(
        node, request, OffsetFetchResponse, channel="group", max_version=_FETCH_OF_ONE_GROUP
    )
    if (error := failure_of(answer.error_code, f"group {group!r}")) is not None:
        raise error
    found: dict[TopicPartition, OffsetAndMetadata | KafkaError | None] = {}
    for topic in answer.topics:
        for one in topic.partitions:
            place = TopicPartition(topic.name, one.partition_index)
            failure = failure_of(one.error_code, f"group {group!r}, {place}")
            if failure is None and one.committed_offset >= 0:
                found[place] = OffsetAndMetadata(
                    one.committed_offset, one.metadata or "", one.committed_leader_epoch
                )
            else:
                found[place] = failure
    return found


async def commit(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    member: tuple[int, str, str | None] = (-1, "", None),
) -> dict[TopicPartition, KafkaError | None]:
    """Commit; `member` is generation, member id and instance id, if a member does."""
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
                        partition_index=place.partition,
                        committed_offset=offsets[place].offset,
                        committed_leader_epoch=offsets[place].leader_epoch,
                        committed_metadata=offsets[place].metadata,
                    )
                    for place in some
                ],
            )
            for topic, some in by_topic(offsets)
        ],
    )
    answer = await cluster.send_to_coordinator(group, request, OffsetCommitResponse)
    return {
        TopicPartition(topic.name, one.partition_index): failure_of(
            one.error_code, f"group {group!r}, {topic.name}-{one.partition_index}"
        )
        for topic in answer.topics
        for one in topic.partitions
    }


def whole(found: Mapping[TopicPartition, T | Exception]) -> dict[TopicPartition, T]:
    """Give the answers for all partitions, or raise the first error."""
    good: dict[TopicPartition, T] = {}
    for place, one in found.items():
        if isinstance(one, Exception):
            raise one
        good[place] = one
    return good


def by_topic(
    places: Iterable[TopicPartition],
) -> Iterable[tuple[str, list[TopicPartition]]]:
    """Group partitions by their topics."""
    for topic, some in groupby(sorted(places), key=lambda place: place.topic):
        yield topic, list(some)


def failure_of(code: int, where: str) -> KafkaError | None:
    """Give the exception for an error code, which says where it went wrong; None for no error."""
    return error_of(code, f"{where}: {ErrorCode.of(code).message}")
