"""The message browser."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from starlette.responses import Response

from ottla.client import ConsumerRecord

from ..api.dependencies import ClientDep, TopicPath
from ..api.records import ReaderDep, Selection
from ..browse import Found, Isolation
from ..models import INT32_MAX
from ..problems import Problem
from ..record_filter import FilterField, FilterKind
from ..rendering import Shown, iso_time, show, visible
from .rendering import render

router = APIRouter()

View = Literal["auto", "json", "text", "hex"]

# Of all keys, values and headers on a page, and of one of them at least, at most, and if the page
# has one record only.
_PAGE_BYTES = 4 * 1024 * 1024
_LEAST_BYTES = 256
_MOST_BYTES = 64 * 1024
_SINGLE_BYTES = 1024 * 1024
# Of a record.
_SHOWN_HEADERS = 20
_PLACEHOLDERS = {"text": "contains …", "regex": "^user-[0-9]+$", "json": '$.user.name == "ann"'}


@router.get("/topics/{topic}/records")
async def show_records(
    request: Request,
    client: ClientDep,
    reader: ReaderDep,
    topic: TopicPath,
    partition: Annotated[str, Query(pattern="^[0-9]{0,10}$")] = "",
    start: Annotated[str, Query(max_length=64)] = "newest",
    position: Annotated[str, Query(max_length=64)] = "",
    limit: Annotated[int, Query(ge=1, le=500)] = 50,
    filter: Annotated[str, Query()] = "",  # noqa: A002
    filter_kind: FilterKind = "text",
    filter_field: FilterField = "any",
    isolation: Isolation = "read_uncommitted",
    view: View = "auto",
    cursor: Annotated[str | None, Query()] = None,
) -> Response:
    """Show a page of records, and what is wrong with the query if it fails."""
    partitions = len((await client.admin.describe_topics(topic))[topic].partitions)
    found, error = Found(), ""
    try:
        number = int(partition) if partition and int(partition) <= INT32_MAX else None
        where = position if start in ("offset", "time") and position else start
        selection = Selection(topic, number, where, filter, filter_kind, filter_field, isolation)
        selected = await selection.filter_of(client)
        try:
            found = await reader.page(selection.query(limit, cursor), selected)
        finally:
            await selected.close()
    except Problem as problem:
        error = problem.detail
    return render(
        request,
        "records.html",
        status=422 if error else 200,
        section="topics",
        tab="records",
        topic={"name": topic},
        partitions=partitions,
        form={
            "partition": partition,
            "start": start,
            "position": position,
            "limit": limit,
            "filter": filter,
            "filter_kind": filter_kind,
            "filter_field": filter_field,
            "isolation": isolation,
            "view": view,
        },
        found=found,
        is_backward=start == "newest",
        cursor=cursor,
        rows=_rows(found.records, view),
        is_single=len(found.records) == 1,
        placeholders=_PLACEHOLDERS,
        error=error,
    )


def _rows(records: Sequence[ConsumerRecord], view: View) -> list[dict[str, object]]:
    """Return the rows of the table; the more there are, the less is shown of each field."""
    fields = sum(2 + min(len(one.headers), _SHOWN_HEADERS) for one in records)
    most = _SINGLE_BYTES if len(records) == 1 else _MOST_BYTES
    max_bytes = min(max(_PAGE_BYTES // max(1, fields), _LEAST_BYTES), most)
    return [_row(one, view, max_bytes) for one in records]


def _row(record: ConsumerRecord, view: View, max_bytes: int) -> dict[str, object]:
    headers: list[tuple[str, Shown]] = [
        (visible(name[:_LEAST_BYTES]), show(value, max_bytes))
        for name, value in record.headers[:_SHOWN_HEADERS]
    ]
    return {
        "partition": record.partition,
        "offset": record.offset,
        "time": iso_time(record.timestamp),
        "key": show(record.key, max_bytes, view),
        "value": show(record.value, max_bytes, view),
        "headers": headers,
        "header_count": len(record.headers),
    }
