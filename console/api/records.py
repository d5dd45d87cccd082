"""Records: browse, tail, export, produce, delete."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from ottla.client import TopicPartition

from ..browse import MAX_CURSOR_CHARACTERS, Isolation, Reader, Start
from ..browse import Query as RecordQuery
from ..cluster_client import ClusterClient
from ..models import (
    INT32_MAX,
    DeleteRecords,
    NewRecords,
    Produced,
    ReadBytes,
    Record,
    Records,
    bytes_of,
)
from ..problems import Problem, problem_of
from ..record_filter import (
    MAX_FILTER_CHARACTERS,
    FilterField,
    FilterKind,
    RecordFilter,
    filter_of,
)
from .dependencies import ClientDep, TopicPath, Writable, rejecting_values

router = APIRouter(tags=["records"])

# An event without data keeps proxies from closing a quiet stream.
_KEEP_ALIVE = ": no new records\n\n"
# Some spreadsheets take the wide forms for the same characters.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
_CSV_COLUMNS = ("partition", "offset", "time", "key", "value", "headers")


class _Stream(StreamingResponse):
    """Closes its source at the end; otherwise a garbage collection would, some time later."""

    def __init__(self, source: AsyncGenerator[str, None], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._source.aclose()


class Selection:
    """Which records to read."""

    def __init__(
        self,
        topic: TopicPath,
        partition: Annotated[
            int | None, Query(ge=0, le=INT32_MAX, description="Only this partition.")
        ] = None,
        start: Annotated[
            str,
            Query(
                max_length=64,
                description="newest, start, an offset, an ISO 8601 time, or @MILLISECONDS.",
                openapi_examples={"newest": {"value": "newest"}, "offset": {"value": "0"}},
            ),
        ] = "newest",
        filter: Annotated[  # noqa: A002  # the name in the URL
            str,
            Query(
                max_length=MAX_FILTER_CHARACTERS,
                description="Text, a regular expression, or a JSON condition: $.user.id == 7.",
            ),
        ] = "",
        filter_kind: FilterKind = "text",
        filter_field: FilterField = "any",
        isolation: Isolation = "read_uncommitted",
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.start = Start.parse(start)
        self.isolation = isolation
        self._filter = (filter, filter_kind, filter_field)

    def query(self, limit: int, cursor: str | None = None) -> RecordQuery:
        """Return the query for the reader."""
        return RecordQuery(
            topic=self.topic,
            partition=self.partition,
            start=self.start,
            cursor=cursor,
            limit=limit,
            isolation=self.isolation,
        )

    async def filter_of(self, client: ClusterClient) -> RecordFilter:
        """Return the filter, which the caller closes. Raises Problem."""
        return await filter_of(*self._filter, client.config.limits.regex_seconds)


SelectionDep = Annotated[Selection, Depends()]


def reader_of(request: Request, client: ClientDep) -> Reader:
    """Return the reader of records, with the bound that all queries share."""
    return Reader(client, request.app.state.queries)


ReaderDep = Annotated[Reader, Depends(reader_of)]


@router.get("/topics/{topic}/records")
async def browse_records(
    client: ClientDep,
    reader: ReaderDep,
    selection: SelectionDep,
    limit: Annotated[int, Query(ge=1, le=1000, description="Records to return.")] = 50,
    cursor: Annotated[
        str | None,
        Query(max_length=MAX_CURSOR_CHARACTERS, description="`cursor` of the page before."),
    ] = None,
) -> Records:
    """Return a page of records: the newest ones, or those from a position on.

    A query ends when it has enough records, is at the end of the log, or has read as much as one
    query may; `stop` says which, and `cursor` continues it: the newest records with older ones.
    With a filter, these are searched for 10,000 at a time.
    """
    selected = await selection.filter_of(client)
    try:
        found = await reader.page(selection.query(limit, cursor), selected)
    finally:
        await selected.close()
    max_bytes = client.config.limits.field_bytes
    return Records(
        items=[Record.of(one, max_bytes) for one in found.records],
        cursor=found.cursor,
        stop=found.stop,
        scanned=found.scanned,
        scanned_bytes=found.scanned_bytes,
    )


@router.get(
    "/topics/{topic}/records/tail",
    response_class=StreamingResponse,
    responses={200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}},
)
async def tail_records(
    request: Request, client: ClientDep, reader: ReaderDep, selection: SelectionDep
) -> StreamingResponse:
    """Stream new records as server-sent events: `record` with a record, `problem` with an error.

    The event `ready` comes first: records that are written after it are sent.
    """
    tails = request.app.state.tails
    await client.admin.describe_topics(selection.topic)
    selected = await selection.filter_of(client)

    async def events() -> AsyncGenerator[str, None]:
        if tails.locked():
            raise Problem(429, "Too many live tails at a time; close one")
        async with tails:
            try:
                async with aclosing(reader.tail(selection.query(1), selected)) as batches:
                    is_ready = False
                    async for records in batches:
                        if not is_ready:
                            is_ready = True
                            yield _event("ready", {})
                        for one in records:
                            record = Record.of(one, client.config.limits.field_bytes)
                            yield _event("record", record.model_dump())
                        if not records:
                            yield _KEEP_ALIVE
            except Exception as error:
                problem = problem_of(error)
                if problem is None:
                    raise
                yield _event("problem", problem.body())
            finally:
                await selected.close()

    return await _streamed(events(), "text/event-stream")


@router.get(
    "/topics/{topic}/records/export",
    response_class=StreamingResponse,
    responses={
        200: {
            "content": {
                "application/x-ndjson": {"schema": {"type": "string"}},
                "text/csv": {"schema": {"type": "string"}},
            }
        }
    },
)
async def export_records(
    client: ClientDep,
    reader: ReaderDep,
    selection: SelectionDep,
    format: Annotated[Literal["jsonl", "csv"], Query()] = "jsonl",  # noqa: A002
    limit: Annotated[int, Query(ge=1, le=100_000)] = 10_000,
) -> StreamingResponse:
    """Download records as JSON lines or CSV. Producing the lines again restores the records.

    CSV has keys and values as text; bytes that are not UTF-8 are `base64:` and Base64. An
    apostrophe precedes what a spreadsheet would take for a formula.
    """
    await client.admin.describe_topics(selection.topic)
    selected = await selection.filter_of(client)

    async def lines() -> AsyncGenerator[str, None]:
        head = _csv([_CSV_COLUMNS]) if format == "csv" else ""
        try:
            async with aclosing(reader.export(selection.query(limit), selected)) as batches:
                async for records in batches:
                    documents = [Record.of(one, None) for one in records]
                    if format == "csv":
                        yield head + _csv([_csv_row(one) for one in documents])
                        head = ""
                    else:
                        yield "".join(one.model_dump_json() + "\n" for one in documents)
            yield head
        finally:
            await selected.close()

    types = {"jsonl": "application/x-ndjson", "csv": "text/csv; charset=utf-8"}
    name = f"{selection.topic}.{format}"
    headers = {"content-disposition": f'attachment; filename="{name}"'}
    return await _streamed(lines(), types[format], headers)


async def _streamed(
    parts: AsyncGenerator[str, None], media_type: str, headers: Mapping[str, str] | None = None
) -> StreamingResponse:
    """Return a response that begins with the first part: an error before it has its own status."""
    first = await anext(parts, "")

    async def body() -> AsyncIterator[str]:
        yield first
        async for part in parts:
            yield part

    return _Stream(parts, body(), media_type=media_type, headers=headers)


@router.post("/topics/{topic}/records", status_code=201, dependencies=[Writable])
async def produce_records(client: ClientDep, topic: TopicPath, new: NewRecords) -> list[Produced]:
    """Produce records, and return where they are when all in-sync replicas have them.

    A key or value is null, a string, or `{"encoding": "base64", "data": …}`. If one fails, others
    may have been written.
    """
    await client.admin.describe_topics(topic)
    with rejecting_values():
        prepared = [
            (
                bytes_of(one.value),
                {
                    "key": bytes_of(one.key),
                    "headers": [(header.name, bytes_of(header.value)) for header in one.headers],
                    "partition": one.partition,
                    "timestamp": one.timestamp,
                },
            )
            for one in new.records
        ]
    producer = await client.producer()
    futures = []
    with rejecting_values():
        for value, options in prepared:
            futures.append(await producer.enqueue(topic, value, **options))  # type: ignore[arg-type]
    await producer.flush()
    failures = [error for one in futures if (error := one.exception()) is not None]
    if failures:
        raise failures[0]
    written = [one.result() for one in futures]
    return [Produced(partition=one.partition, offset=one.offset) for one in written]


@router.delete("/topics/{topic}/records", dependencies=[Writable])
async def delete_records(
    client: ClientDep, topic: TopicPath, request: DeleteRecords
) -> dict[int, int]:
    """Delete the records before an offset, and return the new first offsets by partition."""
    before = {TopicPartition(topic, one): offset for one, offset in request.before.items()}
    beginnings = await client.admin.delete_records(before)
    return {tp.partition: offset for tp, offset in sorted(beginnings.items())}


def _event(name: str, data: object) -> str:
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue()


def _csv_row(record: Record) -> list[object]:
    # A name may be there more than once.
    headers = [[one.name, _csv_text(one.value)] for one in record.headers]
    return [
        record.partition,
        record.offset,
        record.time,
        _csv_text(record.key),
        _csv_text(record.value),
        json.dumps(headers) if headers else "",
    ]


def _csv_text(field: ReadBytes | None) -> str:
    """Return bytes for a cell, which spreadsheets must not take for a formula."""
    if field is None:
        return ""
    if field.encoding == "base64":
        return f"base64:{field.data}"
    is_formula = field.data.startswith(_FORMULA_STARTS) and not _NUMBER.fullmatch(field.data)
    return f"'{field.data}" if is_formula else field.data
