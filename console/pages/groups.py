"""Groups: the list, and a group's members and lag."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from .. import queries
from ..api.dependencies import ClientDep
from ..models import GroupDetails
from .rendering import paged, render

router = APIRouter()


@router.get("/groups")
async def show_groups(
    request: Request, client: ClientDep, search: Annotated[str, Query(max_length=249)] = ""
) -> Response:
    """Show the groups."""
    found = [
        one for one in await queries.groups(client) if search.casefold() in one.group_id.casefold()
    ]
    return render(request, "groups.html", section="groups", search=search, **paged(request, found))


@router.get("/groups/{group:path}")
async def show_group(request: Request, client: ClientDep, group: str) -> Response:
    """Show a group: members, offsets and lag."""
    described = (await client.admin.describe_groups(group))[group]
    offsets = await queries.group_offsets(client, group, described)
    return render(
        request,
        "group.html",
        section="groups",
        group=GroupDetails.described(described),
        offsets=offsets,
        **paged(request, offsets.items),
    )
