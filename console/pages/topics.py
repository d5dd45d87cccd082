"""Topics: the list, and a topic's partitions, configs and consumers."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from .. import live, queries
from ..api.dependencies import ClientDep, TopicPath
from ..models import entries_of
from .rendering import paged, render

router = APIRouter()


@router.get("/topics")
async def show_topics(
    request: Request,
    client: ClientDep,
    search: Annotated[str, Query(max_length=249)] = "",
    internal: bool = False,
    unhealthy: bool = False,
    sort: queries.TopicSort = "name",
    order: Literal["ascending", "descending"] = "ascending",
) -> Response:
    """Show the topics."""
    found = await queries.topics(
        client,
        search=search,
        internal=internal,
        unhealthy=unhealthy,
        sort=sort,
        descending=order == "descending",
    )
    context = paged(request, found)
    await queries.add_records(client, context["rows"])
    rates = {one.name: live.rate(client, one.name) for one in context["rows"]}
    return render(
        request,
        "topics.html",
        section="topics",
        search=search,
        internal=internal,
        unhealthy=unhealthy,
        sort=sort,
        order=order,
        rates=rates,
        is_empty=not await client.topics(),
        **context,
    )


@router.get("/topics/{topic}")
async def show_topic(request: Request, client: ClientDep, topic: TopicPath) -> Response:
    """Show the partitions of a topic."""
    found = await queries.topic(client, topic)
    return render(
        request,
        "topic.html",
        section="topics",
        tab="partitions",
        topic=found,
        **paged(request, found.partition_details),
    )


@router.get("/topics/{topic}/configs")
async def show_configs(request: Request, client: ClientDep, topic: TopicPath) -> Response:
    """Show the configs of a topic."""
    configs = (await client.admin.describe_topic_configs(topic))[topic]
    return render(
        request,
        "topic_configs.html",
        section="topics",
        tab="configs",
        topic={"name": topic},
        configs=entries_of(configs.values()),
        api=f"/api/v1/topics/{topic}/configs",
    )


@router.get("/topics/{topic}/consumers")
async def show_consumers(request: Request, client: ClientDep, topic: TopicPath) -> Response:
    """Show the groups that consume a topic."""
    return render(
        request,
        "topic_consumers.html",
        section="topics",
        tab="consumers",
        topic={"name": topic},
        consumers=await queries.topic_consumers(client, topic),
    )
