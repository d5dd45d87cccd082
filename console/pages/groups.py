"""Groups: the lists, and a group's members and lag."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from .. import live, queries
from ..api.dependencies import ClientDep
from ..models import GroupDetails
from .rendering import paged, render

router = APIRouter()

Search = Annotated[str, Query(max_length=249)]


@router.get("/groups")
async def show_groups(request: Request, client: ClientDep, search: Search = "") -> Response:
    """Show the groups with committed offsets."""
    found = [
        one
        for one in await queries.groups(client)
        if one.type != queries.SHARE and search.casefold() in one.group_id.casefold()
    ]
    return render(
        request,
        "groups.html",
        section="groups",
        title="Groups",
        search=search,
        **paged(request, found),
    )


@router.get("/share-groups")
async def show_share_groups(request: Request, client: ClientDep, search: Search = "") -> Response:
    """Show the share groups."""
    found = [
        one
        for one in await queries.groups(client)
        if one.type == queries.SHARE and search.casefold() in one.group_id.casefold()
    ]
    return render(
        request,
        "groups.html",
        section="share-groups",
        title="Share groups",
        search=search,
        **paged(request, found),
    )


@router.get("/groups/{group:path}")
async def show_group(request: Request, client: ClientDep, group: str) -> Response:
    """Show a group: members, offsets and lag."""
    _, described, offsets = await live.sample_lag(client, group)
    is_share = described.type == queries.SHARE
    return render(
        request,
        "group.html",
        section="share-groups" if is_share else "groups",
        is_share=is_share,
        group=GroupDetails.described(described),
        offsets=offsets,
        **paged(request, offsets.items),
    )
