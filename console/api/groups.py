"""Groups and their offsets."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query

from ottla.client import GroupDescription, TopicPartition

from .. import queries, resets
from ..cluster_client import ClusterClient
from ..models import (
    DeleteOffsets,
    Group,
    GroupDetails,
    GroupOffsets,
    OffsetReset,
    Page,
    ResetOffset,
    ResetResult,
)
from .dependencies import ClientDep, NamePath, PagingDep, Writable, require_writable

router = APIRouter(tags=["groups"])


@router.get("/groups")
async def list_groups(
    client: ClientDep,
    paging: PagingDep,
    search: Annotated[str, Query(max_length=249, description="A part of the id.")] = "",
    state: Annotated[str, Query(max_length=50, description="Stable, Empty, …")] = "",
    type: Annotated[  # noqa: A002  # the name in the URL
        str, Query(max_length=50, description="classic, consumer or share.")
    ] = "",
) -> Page[Group]:
    """Return the groups of all brokers."""
    found = [
        one
        for one in await queries.groups(client)
        if search.casefold() in one.group_id.casefold()
        and (not state or one.state.casefold() == state.casefold())
        and (not type or one.type.casefold() == type.casefold())
    ]
    return Page[Group].of(found, paging.offset, paging.limit)


@router.get("/groups/{group:path}/offsets")
async def get_group_offsets(client: ClientDep, group: NamePath) -> GroupOffsets:
    """Return the committed offsets and the lag of a group; of a share group, the start offsets."""
    return await queries.group_offsets(client, group, await _described(client, group))


@router.post("/groups/{group:path}/offsets")
async def reset_offsets(client: ClientDep, group: NamePath, reset: OffsetReset) -> ResetResult:
    """Set committed offsets of a group without members; by default a dry run, which only plans."""
    if not reset.dry_run:
        require_writable()
    is_share = await queries.is_share(client, group)
    planned = await resets.plan(
        client,
        group,
        is_share=is_share,
        to=reset.to,
        value=reset.value,
        topics=reset.topics,
        partitions=[TopicPartition(one.topic, one.partition) for one in reset.partitions],
    )
    if not reset.dry_run and planned:
        after = {one.tp: one.after for one in planned}
        if is_share:
            await client.admin.alter_share_group_offsets(group, after)
        else:
            await client.admin.alter_group_offsets(group, after)
        client.forget()
    return ResetResult(
        dry_run=reset.dry_run,
        items=[
            ResetOffset(
                topic=one.tp.topic, partition=one.tp.partition, before=one.before, after=one.after
            )
            for one in planned
        ],
    )


@router.delete("/groups/{group:path}/offsets", status_code=204, dependencies=[Writable])
async def delete_offsets(client: ClientDep, group: NamePath, request: DeleteOffsets) -> None:
    """Delete committed offsets of partitions that no member is subscribed to.

    A share group forgets all partitions of the topics.
    """
    tps = [TopicPartition(one.topic, one.partition) for one in request.partitions]
    if await queries.is_share(client, group):
        topics = dict.fromkeys(tp.topic for tp in tps)
        await client.admin.delete_share_group_offsets(group, *topics)
    else:
        await client.admin.delete_group_offsets(group, *tps)
    client.forget()


@router.get("/groups/{group:path}")
async def get_group(client: ClientDep, group: NamePath) -> GroupDetails:
    """Return a group and its members."""
    return GroupDetails.described(await _described(client, group))


@router.delete("/groups/{group:path}", status_code=204, dependencies=[Writable])
async def delete_group(client: ClientDep, group: NamePath) -> None:
    """Delete a group without members, and its offsets."""
    await client.admin.delete_groups(group)
    client.forget()


async def _described(client: ClusterClient, group: str) -> GroupDescription:
    return (await client.admin.describe_groups(group))[group]
