"""What the console knows about a cluster: shared by the REST API and the pages."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from ottla.client import (
    ClientError,
    GroupDescription,
    KafkaError,
    PartialError,
    TopicDescription,
    TopicPartition,
)

from .cluster_client import ClusterClient
from .models import (
    Broker,
    Cluster,
    Group,
    GroupOffset,
    GroupOffsets,
    Partition,
    Topic,
    TopicConsumer,
    TopicSummary,
)

TopicSort = Literal["name", "partitions", "replication_factor", "size", "records", "health"]

#: The type of share groups.
SHARE = "share"
_CONCURRENT_GROUPS = 8


async def cluster(client: ClusterClient) -> Cluster:
    """Return the cluster as a whole."""
    description = await client.cluster()
    topics = await client.topics()
    partitions = [one for topic in topics for one in topic.partitions]
    known = {broker.id for broker in description.brokers}
    missing = {broker for one in partitions for broker in one.replicas} - known
    return Cluster(
        cluster_id=description.cluster_id,
        controller=description.controller,
        brokers=len(known) + len(missing),
        brokers_alive=sum(broker.is_alive for broker in description.brokers),
        topics=sum(not topic.is_internal for topic in topics),
        internal_topics=sum(topic.is_internal for topic in topics),
        partitions=len(partitions),
        under_replicated_partitions=sum(one.is_under_replicated for one in partitions),
        offline_partitions=sum(one.is_offline for one in partitions),
    )


async def brokers(client: ClusterClient) -> list[Broker]:
    """Return all brokers, those included that only are in lists of replicas."""
    description = await client.cluster()
    partitions = [one for topic in await client.topics() for one in topic.partitions]
    leaders = Counter(one.leader for one in partitions)
    replicas = Counter(broker for one in partitions for broker in one.replicas)
    in_sync = Counter(broker for one in partitions for broker in one.isr)
    sizes: defaultdict[int, int] = defaultdict(int)
    for found_replicas in (await client.replicas() or {}).values():
        for one in found_replicas:
            sizes[one.broker] += one.size_bytes

    def counts(broker: int) -> dict[str, Any]:
        return {
            "leaders": leaders[broker],
            "replicas": replicas[broker],
            "in_sync": in_sync[broker],
            "size_bytes": sizes.get(broker),
        }

    found = [Broker.of(one, **counts(one.id)) for one in description.brokers]
    missing = replicas.keys() - {one.id for one in description.brokers}
    found += [
        Broker(
            id=one,
            host="",
            port=-1,
            rack=None,
            is_controller=False,
            is_alive=False,
            **counts(one),
        )
        for one in missing
    ]
    return sorted(found, key=lambda one: one.id)


async def topics(
    client: ClusterClient,
    *,
    search: str = "",
    internal: bool = False,
    unhealthy: bool = False,
    sort: TopicSort = "name",
    descending: bool = False,
) -> list[TopicSummary]:
    """Return topics without their numbers of records, unless they are sorted by them."""
    described = await client.topics()
    sizes = await client.sizes()
    found = [
        TopicSummary.of(topic, size_of(topic, sizes))
        for topic in described
        if (internal or not topic.is_internal) and search.casefold() in topic.name.casefold()
    ]
    if unhealthy:
        found = [one for one in found if one.under_replicated_partitions or one.offline_partitions]
    if sort == "records":
        await add_records(client, found)
    found.sort(key=_TOPIC_KEYS[sort], reverse=descending)
    return found


_TOPIC_KEYS: dict[str, Callable[[TopicSummary], Any]] = {
    "name": lambda one: one.name,
    "partitions": lambda one: (one.partitions, one.name),
    "replication_factor": lambda one: (one.replication_factor, one.name),
    "size": lambda one: (one.size_bytes or 0, one.name),
    "records": lambda one: (-1 if one.records is None else one.records, one.name),
    "health": lambda one: (one.offline_partitions, one.under_replicated_partitions, one.name),
}


def size_of(topic: TopicDescription, sizes: Mapping[TopicPartition, int] | None) -> int | None:
    """Return the bytes of all replicas of a topic."""
    if sizes is None:
        return None
    return sum(sizes.get(tp, 0) for tp in topic.topic_partitions)


async def add_records(client: ClusterClient, found: list[TopicSummary]) -> None:
    """Look up the numbers of records of topics, up to the limit of partitions."""
    described = {topic.name: topic for topic in await client.topics()}
    remaining = client.config.limits.summed_partitions
    chosen: list[TopicSummary] = []
    for one in found:
        remaining -= one.partitions
        if remaining < 0:
            break
        if one.name in described:
            chosen.append(one)
    tps = [tp for one in chosen for tp in described[one.name].topic_partitions]
    offsets = await client.offsets(tps)
    for one in chosen:
        mine = [offsets[tp] for tp in described[one.name].topic_partitions]
        one.records = _records(mine)
        if all(end is not None for _, end in mine):
            total = sum(end for _, end in mine if end is not None)
            client.samples.add(end_offsets_series(one.name), total)


def end_offsets_series(topic: str | None) -> str:
    """Return the name of the series of the sum of end offsets of a topic, or of all."""
    return "end offsets" if topic is None else f"end offsets of {topic}"


def _records(offsets: Iterable[tuple[int | None, int | None]]) -> int | None:
    ranges = [(start, end) for start, end in offsets if start is not None and end is not None]
    return sum(end - start for start, end in ranges) if ranges else None


async def topic(client: ClusterClient, name: str) -> Topic:
    """Return a topic with its partitions. Raises KafkaError."""
    described = (await client.admin.describe_topics(name))[name]
    offsets, sizes = await asyncio.gather(
        client.offsets(described.topic_partitions), client.sizes()
    )
    summary = TopicSummary.of(described, size_of(described, sizes))
    summary.records = _records(offsets.values())
    return Topic(
        **summary.model_dump(),
        id=str(described.id),
        partition_details=[
            Partition.of(
                one,
                offsets[TopicPartition(name, one.partition)],
                None if sizes is None else sizes.get(TopicPartition(name, one.partition)),
            )
            for one in described.partitions
        ],
    )


async def groups(client: ClusterClient) -> list[Group]:
    """Return all groups."""

    async def read() -> list[Group]:
        try:
            found = await client.admin.list_groups()
        except PartialError as error:
            found = [one for some in error.done.values() for one in some]
        return sorted(map(Group.of, found), key=lambda one: one.group_id)

    return await client.cached("groups", read)


async def group_offsets(
    client: ClusterClient, group_id: str, described: GroupDescription
) -> GroupOffsets:
    """Return the committed offsets of a group with its lag, and who has which partition.

    Those of a share group are its start offsets; several members may have a partition.
    """
    if described.type == SHARE:
        return await _share_group_offsets(client, group_id)
    try:
        lags = await client.admin.group_lag(group_id)
    except PartialError as error:
        lags = error.done
    owners = {tp: member for member in described.members for tp in member.assignment}
    items = [
        GroupOffset(
            topic=tp.topic,
            partition=tp.partition,
            committed=one.committed,
            end=one.end,
            lag=one.lag,
            metadata=one.metadata,
            member_id=owners[tp].member_id if tp in owners else None,
            client_id=owners[tp].client_id if tp in owners else None,
        )
        for tp, one in sorted(lags.items())
    ]
    return GroupOffsets(group_id=group_id, lag=sum(one.lag or 0 for one in items), items=items)


async def _share_group_offsets(client: ClusterClient, group_id: str) -> GroupOffsets:
    items = [
        GroupOffset(
            topic=tp.topic,
            partition=tp.partition,
            committed=one.start_offset,
            end=None,
            lag=one.lag,
            metadata="",
        )
        for tp, one in (await client.admin.list_share_group_offsets(group_id)).items()
    ]
    return GroupOffsets(group_id=group_id, lag=sum(one.lag or 0 for one in items), items=items)


async def is_share(client: ClusterClient, group_id: str) -> bool:
    """Whether there is a share group of this name."""
    return any(one.group_id == group_id and one.type == SHARE for one in await groups(client))


async def topic_consumers(client: ClusterClient, name: str) -> list[TopicConsumer]:
    """Return the groups with committed offsets of a topic, and their lag."""
    described = (await client.admin.describe_topics(name))[name]
    ends = {tp: end for tp, (_, end) in (await client.offsets(described.topic_partitions)).items()}
    limit = asyncio.Semaphore(_CONCURRENT_GROUPS)

    async def look_up(group: Group) -> TopicConsumer | None:
        async with limit:
            try:
                lags = await lags_of(group)
            except (KafkaError, ClientError):
                return None
        if not lags:
            return None
        return TopicConsumer(
            group_id=group.group_id,
            state=group.state,
            type=group.type,
            lag=sum(lags),
            partitions=len(lags),
        )

    async def lags_of(group: Group) -> list[int]:
        if group.type == SHARE:
            offsets = await client.admin.list_share_group_offsets(group.group_id)
            return [one.lag or 0 for tp, one in offsets.items() if tp.topic == name]
        committed = await client.admin.list_group_offsets(group.group_id)
        return [
            max(0, (ends.get(tp) or one.offset) - one.offset)
            for tp, one in committed.items()
            if tp.topic == name
        ]

    chosen = (await groups(client))[: client.config.limits.groups]
    found = await asyncio.gather(*map(look_up, chosen))
    return [one for one in found if one is not None]
