"""The reference of the REST API, without files of other sites."""

from __future__ import annotations

from itertools import groupby

from fastapi import APIRouter, Request
from starlette.responses import Response

from ..reference import operations
from .rendering import render

router = APIRouter()


@router.get("/docs")
async def show_reference(request: Request) -> Response:
    """Show the endpoints."""
    found = operations(request.app.openapi())
    groups = [(tag, list(some)) for tag, some in groupby(found, key=lambda one: one.tag)]
    return render(request, "reference.html", section="docs", groups=groups)
