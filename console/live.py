"""What the live parts of the pages show: each read is shared by all who look, and is a sample."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from ottla.client import ClientError, GroupDescription, KafkaError

from . import queries
from .cluster_client import ClusterClient
from .models import GroupOffsets, TopicSummary

_CONCURRENT_GROUPS = 8


class TopicActivity(NamedTuple):
    """What changes about a topic all the time."""

    name: str
    records: int | None
    rate: float | None


class GroupActivity(NamedTuple):
    """What changes about a group all the time; None if it cannot be looked up."""

    group_id: str
    state: str
    members: int | None
    lag: int | None


async def sample_end_offsets(client: ClusterClient, topic: str | None) -> str | None:
    """Sample the sum of the end offsets of a topic or of all: its growth is the rate of records.

    Returns the name of the series; None if there are too many partitions to ask for.
    """
    described = await client.topics()
    tps = [tp for one in described if topic in (None, one.name) for tp in one.topic_partitions]
    if len(tps) > client.config.limits.sampled_partitions:
        return None
    series = queries.end_offsets_series(topic)

    async def read() -> None:
        client.samples.add(series, sum((await client.end_offsets(tps)).values()))

    await client.cached(series, read, lambda _: len(tps))
    return series


async def sample_size(client: ClusterClient) -> str | None:
    """Sample the bytes on the disks of all brokers; None if brokers do not tell."""
    return None if await client.replicas() is None else client.SIZE_SERIES


async def sample_lag(
    client: ClusterClient, group: str
) -> tuple[str, GroupDescription, GroupOffsets]:
    """Sample the lag of a group, and return its series, members and offsets."""
    series = f"lag of {group}"

    async def read() -> tuple[GroupDescription, GroupOffsets]:
        described = (await client.admin.describe_groups(group))[group]
        offsets = await queries.group_offsets(client, group, described)
        client.samples.add(series, offsets.lag)
        return described, offsets

    return series, *await client.cached(series, read)


async def topics(client: ClusterClient, names: Sequence[str]) -> list[TopicActivity]:
    """Return the activity of topics that exist, up to the limit of partitions."""
    wanted = set(names)

    async def read() -> list[TopicActivity]:
        described = [one for one in await client.topics() if one.name in wanted]
        summaries = [TopicSummary.of(one, None) for one in described]
        await queries.add_records(client, summaries)
        return [TopicActivity(one.name, one.records, rate(client, one.name)) for one in summaries]

    return await client.cached(f"activity {sorted(wanted)}", read)


def rate(client: ClusterClient, topic: str) -> float | None:
    """Return the records written per second to a topic; None if not known yet."""
    return client.samples.rate(queries.end_offsets_series(topic))


async def groups(client: ClusterClient, names: Sequence[str]) -> list[GroupActivity]:
    """Return the activity of groups."""
    limit = asyncio.Semaphore(_CONCURRENT_GROUPS)

    async def look_up(name: str) -> GroupActivity:
        async with limit:
            try:
                _, described, offsets = await sample_lag(client, name)
            except (KafkaError, ClientError):
                return GroupActivity(name, "", None, None)
        return GroupActivity(name, described.state, len(described.members), offsets.lag)

    return await asyncio.gather(*map(look_up, dict.fromkeys(names)))
