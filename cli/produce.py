"""`ottla produce`: send lines, JSON rows or files to a topic."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import output
from .completion import complete_topics
from .errors import Exit, Failure
from .produce_report import Report
from .record_format import Row, header_pairs, parse_json, unescaped
from .record_source import Chunk, InputError, Source, read
from .target import Target, connected, json_option

if TYPE_CHECKING:
    from ottla.client.producer.producer import Producer
    from ottla.client.types import RecordMetadata

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ACKS = ("all", "1", "0")
ACKS_HELP = "Required acknowledgements: all in-sync replicas, the leader, none."


@click.command()
@click.argument("topic", shell_complete=complete_topics)
@click.argument("files", metavar="[FILE]...", nargs=-1, type=click.Path(path_type=Path))
@click.option("-k", "--key", help="Key of all records.")
@click.option("-K", "--key-separator", metavar="TEXT", help="Separator between key and value.")
@click.option(
    "-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="Header; repeatable."
)
@click.option("-p", "--partition", type=click.IntRange(0), help="Partition. [default: by key]")
@click.option("-Z", "--tombstones", is_flag=True, help="Send empty values as null (tombstones).")
@click.option(
    "-D", "--delimiter", default="\\n", show_default=True, help="Separator between records."
)
@click.option("--rows", "is_json", is_flag=True, help="Read JSON rows: see above.")
@click.option("--whole-files", is_flag=True, help="Send each FILE as one record.")
@click.option("--rate", type=click.FloatRange(0, min_open=True), help="Maximum records per second.")
@click.option(
    "--repeat", "times", type=click.IntRange(1), default=1, help="Send everything N times."
)
@click.option(
    "-z", "--compression", type=click.Choice(CODECS), default="none", help="Compression codec."
)
@click.option("--acks", type=click.Choice(ACKS), default="all", show_default=True, help=ACKS_HELP)
@click.option("--create", is_flag=True, help="Create the topic if it does not exist.")
@click.option(
    "--on-error",
    type=click.Choice(("stop", "skip")),
    default="stop",
    show_default=True,
    help="What to do about an invalid or rejected record.",
)
@click.option("-q", "--quiet", is_flag=True, help="Do not print partitions and offsets.")
@json_option
@connected
def produce(target: Target, topic: str, as_json: bool, quiet: bool, **options: Any) -> None:
    """Send records from stdin or files to a topic.

    Prints the partition and offset of each record, in order.

    \b
        echo hello | ottla produce greetings
        ottla produce orders --key-separator : < orders.txt
        ottla produce thumbnails --whole-files *.jpg
        ottla consume orders --json | ottla produce copy --rows
        seq 1000 | ottla produce ticks --rate 100 --repeat 3 --quiet

    With --rows, each line is a JSON object as printed by ottla consume --json:

    \b
        {"key": "k", "value": "v", "headers": {"a": "b"}, "partition": 0, "timestamp": 17000000}

    Only the value is required. A null value is a tombstone; values that are not strings are sent
    as JSON. Binary data goes into value_base64 and key_base64.

    The first record that is invalid or rejected stops the command; the records before it are sent.
    With --on-error skip, the records after it as well. The exit code is 9 if some records were
    sent and some failed.
    """
    if options["whole_files"] and not options["files"]:
        raise click.UsageError("--whole-files requires at least one FILE")
    if options["is_json"] and (options["key"] or options["key_separator"]):
        raise click.UsageError("--rows cannot be combined with --key or --key-separator")
    printed = None if quiet else _printed_json if as_json else _printed
    prepare_topic(target, topic, create=options["create"])
    asyncio.run(_produce(target, topic, options, printed))


async def _produce(
    target: Target,
    topic: str,
    options: dict[str, Any],
    printed: Callable[[RecordMetadata], None] | None,
) -> None:
    report = Report(printed, skips=options["on_error"] == "skip")
    async with target.producer(
        acks=options["acks"], compression=options["compression"]
    ) as producer:
        with output.progress("sending", is_shown=printed is None) as bar:
            feed = asyncio.create_task(_feed(producer, topic, options, report, bar))
            ends: set[asyncio.Future[Any]] = {feed, report.stopped}
            try:
                await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            finally:
                feed.cancel()
            await asyncio.wait([feed])
            # Everything that was read before an error is sent.
            await producer.flush()
    error = None if feed.cancelled() else feed.exception()
    total = _source(options).count() if error is not None or report.stopped.done() else None
    report.finish(error, None if total is None else total * options["times"])


def prepare_topic(target: Target, topic: str, *, create: bool) -> None:
    """Check that a topic exists: a mistyped name must not create one."""
    from ottla.client.errors import ErrorCode, KafkaError

    with target.admin() as admin:
        try:
            if create:
                admin.create_topic(topic)
            else:
                admin.describe_topics(topic)
        except KafkaError as error:
            if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                advice = f"create it: ottla topic create {topic}, or use --create"
                raise Failure(
                    f"Topic {topic!r} does not exist; {advice}", Exit.NOT_FOUND
                ) from error
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


async def _feed(
    producer: Producer,
    topic: str,
    options: dict[str, Any],
    report: Report,
    bar: output.Progress,
) -> None:
    from ottla.client.errors import ClientError, KafkaError

    headers = header_pairs(options["headers"])
    rate, started, count = options["rate"], time.monotonic(), 0
    async for chunk in read(_repeated(_source(options), options["times"])):
        for index, row in enumerate(chunk.rows):
            if isinstance(row, InputError):
                report.fail(row)
            else:
                if rate is not None and (delay := started + count / rate - time.monotonic()) > 0:
                    await asyncio.sleep(delay)
                count += 1
                try:
                    future = await producer.enqueue(
                        topic,
                        row.value,
                        key=row.key,
                        headers=[*headers, *row.headers],
                        partition=options["partition"] if row.partition is None else row.partition,
                        timestamp=row.timestamp,
                    )
                except (KafkaError, ClientError) as error:
                    report.fail(error, chunk.location(index))
                else:
                    report.expect(future, chunk, index)
                if rate is not None:
                    bar.advance()
            if report.stopped.done():
                return
        if rate is None:
            bar.advance(len(chunk.rows))


def _repeated(source: Source, times: int) -> Iterator[Chunk]:
    kept: list[Chunk] = []
    for chunk in source.chunks():
        if times > 1:
            kept.append(chunk)
        yield chunk
    for _ in range(times - 1):
        yield from kept


def _source(options: dict[str, Any]) -> Source:
    return Source(
        options["files"],
        options["whole_files"],
        unescaped(options["delimiter"]),
        parse_json if options["is_json"] else _line_parser(options),
    )


def _line_parser(options: dict[str, Any]) -> Callable[[bytes], Row]:
    fixed = None if options["key"] is None else options["key"].encode()
    separator = unescaped(options["key_separator"] or "")
    has_tombstones = options["tombstones"]

    def parse(line: bytes) -> Row:
        key, value = fixed, line
        if separator:
            before, has_separator, after = line.partition(separator)
            if not has_separator:
                raise ValueError(f"no separator {separator.decode()!r} between key and value")
            key, value = before, after
        return Row(None if has_tombstones and not value else value, key)

    return parse


def _printed(metadata: RecordMetadata) -> None:
    click.echo(f"{metadata.partition}\t{metadata.offset}")


def _printed_json(metadata: RecordMetadata) -> None:
    click.echo(output.json_line(metadata._asdict()), nl=False)
