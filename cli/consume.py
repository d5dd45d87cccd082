"""`ottla consume`: print the records of topics."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from . import output
from .available import AvailablePartitions
from .completion import complete_groups, complete_topics
from .errors import Exit, Failure
from .option_types import POSITION, Kind, Position, offset_between
from .record_filter import Filter
from .record_format import as_json as row_of
from .record_format import formatter, unescaped
from .record_reader import (
    Printer,
    consume_as_member,
    consume_as_share_member,
    consume_between,
    print_last,
)
from .target import Target, connected, json_option
from .topic_records import partitions_of

if TYPE_CHECKING:
    from ottla.client.admin import TopicDescription
    from ottla.client.blocking import Admin

_DEFAULT_FROM = Position(Kind.START)
_NOT_IN_A_GROUP = {"until": "--to", "last": "--last", "partitions": "--partition"}
_NOT_IN_A_SHARE_GROUP = {**_NOT_IN_A_GROUP, "group": "--group", "regex": "--regex"}


@click.command()
@click.argument(
    "topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics
)
@click.option("--regex", is_flag=True, help="TOPIC is a regular expression for whole names.")
@click.option(
    "-o", "--from", "start", type=POSITION, help="Start position: see above.  [default: start]"
)
@click.option(
    "--to", "--until", "until", type=POSITION, help="End position, exclusive.  [default: end]"
)
@click.option("--last", type=click.IntRange(1), metavar="N", help="Print the N newest records.")
@click.option(
    "-n", "--max-count", type=click.IntRange(1), metavar="N", help="Exit after N records."
)
@click.option(
    "-f/-e",
    "--follow/--exit-at-end",
    default=None,
    help="Wait for new records, or exit at the end.  [default: exit; in groups: wait]",
)
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=int,
    multiple=True,
    help="Partition; repeatable. [default: all]",
)
@click.option(
    "-g", "--group", shell_complete=complete_groups, help="Join this group and commit offsets."
)
@click.option(
    "--share",
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Join this share group and acknowledge records.",
)
@click.option(
    "--acknowledge",
    type=click.Choice(["accept", "release", "reject"]),
    help="With --share: what becomes of a printed record.  [default: accept]",
)
@click.option(
    "--dead-letter",
    metavar="TOPIC",
    shell_complete=complete_topics,
    help="With --share: topic for records rejected or delivered too often.",
)
@click.option("--key", metavar="REGEX", help="Only records whose key matches.")
@click.option("--value", metavar="REGEX", help="Only records whose value matches.")
@click.option(
    "--header", metavar="NAME[=REGEX]", multiple=True, help="Only records with this header."
)
@click.option(
    "--isolation",
    type=click.Choice(["read_uncommitted", "read_committed"]),
    default="read_uncommitted",
    help="read_committed: skip records of open and aborted transactions.",
)
@click.option(
    "--committed",
    "isolation",
    flag_value="read_committed",
    help="The same as --isolation read_committed.",
)
@click.option("-F", "--format", "layout", metavar="TEXT", help="Output format: see above.")
@click.option(
    "-K", "--key-separator", metavar="TEXT", help="Print keys, separated from values by TEXT."
)
@json_option
@connected
def consume(target: Target, topics: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Print the records of topics.

    \b
        ottla consume orders                               all records
        ottla consume orders --follow --from end           new records only
        ottla consume orders --last 10
        ottla consume orders --from 2h --to 1h --value error
        ottla consume 'orders-.*' --regex -o -5            the last 5 of each partition
        ottla consume orders --partition 0 --from 1200 --max-count 1
        ottla consume orders --group billing --json        as a member of a group
        ottla consume orders --share workers --from start  as a member of a share group

    --from and --to accept start, end, an OFFSET, -N (before the end), 2026-11-16T12:00, 15m
    (ago) or @MILLISECONDS. --format uses kcat's letters, and \\n, \\t and \\xHH escapes:

    \b
        %t topic    %p partition    %o offset       %T milliseconds since 1970    %d date and time
        %k key      %s value        %h headers      %K and %S sizes, -1: null     %% a percent sign
    """
    options["printer"] = Printer(
        _writer(options, as_json=as_json),
        Filter.of(options["key"], options["value"], options["header"]),
        options["max_count"],
    )
    if options["share"] is not None:
        _consume_share(target, topics, options)
        return
    for name, option in {"acknowledge": "--acknowledge", "dead_letter": "--dead-letter"}.items():
        if options[name] is not None:
            raise click.UsageError(f"{option} requires --share")
    if options["group"] is None:
        _consume_alone(target, topics, options)
    else:
        _consume_in_group(target, topics, options)


def _writer(options: dict[str, Any], *, as_json: bool) -> Callable[[Any], bytes]:
    layout, separator = options["layout"], options["key_separator"]
    if sum((as_json, layout is not None, separator is not None)) > 1:
        raise click.UsageError("--json, --format and --key-separator are mutually exclusive")
    if as_json and options["share"] is not None:
        return lambda record: output.json_line(
            {**row_of(record), "delivery_count": record.delivery_count}
        )
    if as_json:
        return lambda record: output.json_line(row_of(record))
    if layout is not None:
        return formatter(layout)
    if separator is not None:
        separator_bytes = unescaped(separator)
        return lambda record: (
            b"%b%b%b\n" % (record.key or b"", separator_bytes, record.value or b"")
        )
    return lambda record: (record.value or b"") + b"\n"


def _consume_alone(target: Target, topics: tuple[str, ...], options: dict[str, Any]) -> None:
    last, start, until = options["last"], options["start"], options["until"]
    if last is not None and (start or until):
        raise click.UsageError("--last cannot be combined with --from or --to")
    if until is not None and options["follow"]:
        raise click.UsageError("--to and --follow are mutually exclusive")
    start = Position(Kind.BEFORE_END, last) if last else start or _DEFAULT_FROM
    with target.admin() as admin:
        described = _described(admin, topics, options)
        available = AvailablePartitions(
            admin,
            described,
            [
                tp
                for topic in described.values()
                for tp in partitions_of(topic, options["partitions"])
            ],
            isolation=options["isolation"],
        )
        partitions = list(available.ends)
        starts = offset_between(admin, available.starts, available.ends, start)
        ends = offset_between(admin, available.starts, available.ends, until or Position(Kind.END))
    printer: Printer = options["printer"]
    is_shown = not sys.stdout.isatty() and not options["follow"]

    async def run() -> None:
        async with target.consumer(isolation=options["isolation"]) as consumer:
            bounds = {tp: (starts[tp], ends[tp]) for tp in partitions}
            total = sum(max(0, ends[tp] - starts[tp]) for tp in partitions)
            with output.progress("reading", total, is_shown=is_shown) as bar:
                if last:
                    await print_last(consumer, bounds, available.starts, last, printer)
                else:
                    await consume_between(consumer, bounds, printer, bar)
            if options["follow"] and not printer.is_done:
                await consume_between(
                    consumer, {tp: (end, None) for tp, end in ends.items()}, printer
                )

    if partitions:
        asyncio.run(run())
    available.check()


def _described(
    admin: Admin, topics: tuple[str, ...], options: dict[str, Any]
) -> dict[str, TopicDescription]:
    if not options["regex"]:
        return admin.describe_topics(*topics)
    pattern = _pattern(topics)
    found = {one.name: one for one in admin.list_topics() if pattern.fullmatch(one.name)}
    if not found:
        raise Failure(
            f"No topic matches {' or '.join(map(repr, topics))}; list topics: ottla topic list",
            Exit.NOT_FOUND,
        )
    return found


def _pattern(texts: tuple[str, ...]) -> re.Pattern[str]:
    try:
        return re.compile("|".join(f"(?:{text})" for text in texts))
    except re.error as error:
        raise click.BadParameter(
            f"invalid regular expression: {error}", param_hint="TOPIC"
        ) from error


def _consume_in_group(target: Target, topics: tuple[str, ...], options: dict[str, Any]) -> None:
    start: Position = options["start"] or _DEFAULT_FROM
    if start.kind not in (Kind.START, Kind.END):
        raise click.UsageError(
            "--from: a group resumes at its committed offsets, or at start or end; to move it:"
            " ottla group reset"
        )
    _check_unset(options, "--group", _NOT_IN_A_GROUP)
    with target.admin() as admin:
        _described(admin, topics, options)
    is_endless = options["follow"] is not False
    is_shown = not sys.stdout.isatty() and not is_endless

    async def run() -> None:
        async with target.consumer(
            *(() if options["regex"] else topics),
            pattern=_pattern(topics) if options["regex"] else None,
            group=options["group"],
            reset="earliest" if start.kind is Kind.START else "latest",
            isolation=options["isolation"],
        ) as consumer:
            with output.progress("reading", is_shown=is_shown) as bar:
                await consume_as_member(consumer, options["printer"], bar, is_endless=is_endless)

    asyncio.run(run())


def _check_unset(options: dict[str, Any], with_option: str, others: dict[str, str]) -> None:
    for name, option in others.items():
        if options[name]:
            raise click.UsageError(f"{option} cannot be combined with {with_option}")


def _consume_share(target: Target, topics: tuple[str, ...], options: dict[str, Any]) -> None:
    start: Position | None = options["start"]
    if start is not None and start.kind not in (Kind.START, Kind.END):
        raise click.UsageError(
            "--from: a new share group begins at start or end; to move it: ottla group reset"
        )
    _check_unset(options, "--share", _NOT_IN_A_SHARE_GROUP)
    if options["isolation"] != "read_uncommitted":
        raise click.UsageError(
            "--isolation: that of a share group is its config share.isolation.level"
        )
    group: str = options["share"]
    with target.admin() as admin:
        _described(admin, topics, options)
        if start is not None:
            reset = "earliest" if start.kind is Kind.START else "latest"
            admin.alter_group_configs(group, {"share.auto.offset.reset": reset})
    is_endless = options["follow"] is not False
    is_shown = not sys.stdout.isatty() and not is_endless
    printer: Printer = options["printer"]

    async def run() -> None:
        async with target.share_consumer(
            *topics,
            group=group,
            dead_letter=options["dead_letter"],
            max_records=options["max_count"],
        ) as consumer:
            acknowledge = getattr(consumer, options["acknowledge"] or "accept")
            with output.progress("reading", is_shown=is_shown) as bar:
                await consume_as_share_member(
                    consumer, printer, bar, acknowledge, is_endless=is_endless
                )

    asyncio.run(run())
