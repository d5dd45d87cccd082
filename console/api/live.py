"""Numbers for charts, cheap enough to be asked for every few seconds."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from .. import live
from ..models import INT64_MAX, GroupOffset, Model, Name, TopicName
from .dependencies import ClientDep

router = APIRouter(tags=["live"])

Since = Annotated[int, Query(ge=0, le=INT64_MAX, description="Only samples after this time.")]
_MAX_NAMES = 100


class Series(Model):
    """Samples of the last minutes: times in milliseconds since 1970, and numbers."""

    #: Null if brokers do not tell, or if there are too many partitions to ask for.
    points: list[tuple[int, float]] | None


class LagSeries(Series):
    """The lag of a group over time, and in each partition now."""

    state: str
    items: list[GroupOffset]


class TopicActivity(Model):
    """A topic's records, and those written per second; null if not known yet."""

    name: str
    records: int | None
    rate: float | None


class GroupActivity(Model):
    """A group's members and lag; null if it cannot be looked up."""

    group_id: str
    state: str
    members: int | None
    lag: int | None


@router.get("/live/end-offsets")
async def get_end_offsets(
    client: ClientDep, topic: Annotated[TopicName | None, Query()] = None, since: Since = 0
) -> Series:
    """Return the sum of the end offsets of a topic, or of all: its growth is the record rate."""
    series = await live.sample_end_offsets(client, topic)
    return Series(points=None if series is None else client.samples.since(series, since))


@router.get("/live/size")
async def get_size(client: ClientDep, since: Since = 0) -> Series:
    """Return the bytes on the disks of all brokers."""
    series = await live.sample_size(client)
    return Series(points=None if series is None else client.samples.since(series, since))


@router.get("/live/lag")
async def get_lag(
    client: ClientDep, group: Annotated[Name, Query()], since: Since = 0
) -> LagSeries:
    """Return the lag of a group."""
    series, described, offsets = await live.sample_lag(client, group)
    return LagSeries(
        points=client.samples.since(series, since), state=described.state, items=offsets.items
    )


@router.get("/live/topics")
async def get_topics(
    client: ClientDep, topic: Annotated[list[TopicName], Query(max_length=_MAX_NAMES)]
) -> list[TopicActivity]:
    """Return the activity of topics; those that do not exist are left out."""
    return [TopicActivity(**one._asdict()) for one in await live.topics(client, topic)]


@router.get("/live/groups")
async def get_groups(
    client: ClientDep, group: Annotated[list[Name], Query(max_length=_MAX_NAMES)]
) -> list[GroupActivity]:
    """Return the activity of groups."""
    return [GroupActivity(**one._asdict()) for one in await live.groups(client, group)]
