"""Topics, partitions and topic configs."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query

from ottla.client import CreatedTopic

from .. import queries
from ..models import (
    Config,
    ConfigChanges,
    CreatedTopicResponse,
    NewTopicRequest,
    Page,
    Partition,
    PartitionCount,
    Topic,
    TopicConsumer,
    TopicSummary,
    entries_of,
)
from .dependencies import ClientDep, PagingDep, TopicPath, Writable, rejecting_values

router = APIRouter(tags=["topics"])


@router.get("/topics")
async def list_topics(
    client: ClientDep,
    paging: PagingDep,
    search: Annotated[str, Query(max_length=249, description="A part of the name.")] = "",
    internal: Annotated[bool, Query(description="Include internal topics.")] = False,
    unhealthy: Annotated[
        bool, Query(description="Only topics with under-replicated or offline partitions.")
    ] = False,
    sort: queries.TopicSort = "name",
    order: Literal["ascending", "descending"] = "ascending",
) -> Page[TopicSummary]:
    """Return topics, with the numbers of records of those on the page."""
    found = await queries.topics(
        client,
        search=search,
        internal=internal,
        unhealthy=unhealthy,
        sort=sort,
        descending=order == "descending",
    )
    page = Page[TopicSummary].of(found, paging.offset, paging.limit)
    await queries.add_records(client, page.items)
    return page


@router.post("/topics", status_code=201, dependencies=[Writable])
async def create_topic(client: ClientDep, topic: NewTopicRequest) -> CreatedTopicResponse:
    """Create a topic."""
    with rejecting_values():
        created: CreatedTopic = await client.admin.create_topic(
            topic.name,
            partitions=topic.partitions,
            replication_factor=topic.replication_factor,
            configs=topic.configs,
            validate_only=topic.validate_only,
        )
    client.forget()
    return CreatedTopicResponse(
        name=created.name,
        partitions=created.partitions,
        replication_factor=created.replication_factor,
    )


@router.get("/topics/{topic}")
async def get_topic(client: ClientDep, topic: TopicPath) -> Topic:
    """Return a topic and its partitions."""
    return await queries.topic(client, topic)


@router.delete("/topics/{topic}", status_code=204, dependencies=[Writable])
async def delete_topic(client: ClientDep, topic: TopicPath) -> None:
    """Delete a topic with all its records."""
    await client.admin.delete_topics(topic)
    client.forget()


@router.get("/topics/{topic}/partitions")
async def list_partitions(
    client: ClientDep, topic: TopicPath, paging: PagingDep
) -> Page[Partition]:
    """Return the partitions of a topic, with offsets and sizes."""
    found = await queries.topic(client, topic)
    return Page[Partition].of(found.partition_details, paging.offset, paging.limit)


@router.post("/topics/{topic}/partitions", dependencies=[Writable])
async def create_partitions(client: ClientDep, topic: TopicPath, count: PartitionCount) -> Topic:
    """Increase the number of partitions, and return the topic."""
    await client.admin.create_partitions(topic, count.total, validate_only=count.validate_only)
    client.forget()
    return await queries.topic(client, topic)


@router.get("/topics/{topic}/configs")
async def list_topic_configs(client: ClientDep, topic: TopicPath) -> list[Config]:
    """Return the configs of a topic, overridden ones first."""
    configs = (await client.admin.describe_topic_configs(topic))[topic]
    return entries_of(configs.values())


@router.patch("/topics/{topic}/configs", dependencies=[Writable])
async def alter_topic_configs(
    client: ClientDep, topic: TopicPath, changes: ConfigChanges
) -> list[Config]:
    """Change configs of a topic, and return them."""
    with rejecting_values():
        await client.admin.alter_topic_configs(
            topic, changes.set, unset=changes.unset, validate_only=changes.validate_only
        )
    return await list_topic_configs(client, topic)


@router.get("/topics/{topic}/consumers")
async def list_consumers(client: ClientDep, topic: TopicPath) -> list[TopicConsumer]:
    """Return the groups that have committed offsets of a topic, with their lag."""
    return await queries.topic_consumers(client, topic)
