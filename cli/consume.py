"""`ottla consume`: records of topics, to stdout."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import Any

import click

from . import output
from .completion import complete_groups, complete_topics
from .filters import Filter
from .following import Bounds, Printer, consume_as_member, consume_between, print_last
from .rows import as_json as row_of
from .rows import formatter, unescaped
from .target import Target, connected, json_option
from .topic_records import places_of
from .values import POSITION, Kind, Position, offsets_at

_DEFAULT_FROM = Position(Kind.START)


@click.command()
@click.argument(
    "topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics
)
@click.option("--from", "start", type=POSITION, help="Where to begin: see above.  [default: start]")
@click.option("--until", type=POSITION, help="Where to end, exclusively.  [default: end]")
@click.option("--last", type=click.IntRange(1), metavar="N", help="The N newest records.")
@click.option("-n", "--max-count", type=click.IntRange(1), metavar="N", help="End after N records.")
@click.option(
    "-f/-e",
    "--follow/--exit-at-end",
    default=None,
    help="Wait for more, or end when there is no more.  [default: end; with --group: wait]",
)
@click.option(
    "-p", "--partition", "partitions", type=int, multiple=True, help="Which. [default: all]"
)
@click.option("-g", "--group", shell_complete=complete_groups, help="As a member; commits.")
@click.option("--key", metavar="REGEX", help="Only records whose key matches.")
@click.option("--value", metavar="REGEX", help="Only records whose value matches.")
@click.option("--header", metavar="NAME[=REGEX]", multiple=True, help="Only records that have it.")
@click.option("--committed", is_flag=True, help="Leave out what is not, or not yet, committed.")
@click.option("-F", "--format", "layout", metavar="TEXT", help="How to print: see above.")
@click.option("-K", "--key-separator", metavar="TEXT", help="Print keys too, and this between.")
@json_option
@connected
def consume(target: Target, topics: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Print the records of topics.

    \b
        ottla consume orders                               all that is there
        ottla consume orders --follow --from end           what comes from now on
        ottla consume orders --last 10
        ottla consume orders --from 2h --until 1h --value error
        ottla consume orders --partition 0 --from 1200 --max-count 1
        ottla consume orders --group billing --json        as a member of a group

    --from and --until take start, end, an OFFSET, -N (before the end), 2026-11-16T12:00, 15m (ago)
    or @MILLISECONDS. The letters of --format are kcat's; \\n, \\t and \\xHH are what they are
    elsewhere:

    \b
        %t topic    %p partition    %o offset       %T milliseconds since 1970    %d date and time
        %k key      %s value        %h headers      %K and %S sizes, -1: none     %% a per cent sign
    """
    options["printer"] = Printer(
        _writer(options, as_json=as_json),
        Filter.of(options["key"], options["value"], options["header"]),
        options["max_count"],
    )
    if options["group"] is None:
        _consume_alone(target, topics, options)
    else:
        _consume_in_group(target, topics, options)


def _writer(options: dict[str, Any], *, as_json: bool) -> Callable[[Any], bytes]:
    layout, separator = options["layout"], options["key_separator"]
    if sum((as_json, layout is not None, separator is not None)) > 1:
        raise click.UsageError("--json, --format and --key-separator exclude one another")
    if as_json:
        return lambda record: output.json_line(row_of(record))
    if layout is not None:
        return formatter(layout)
    if separator is not None:
        between = unescaped(separator)
        return lambda record: b"%b%b%b\n" % (record.key or b"", between, record.value or b"")
    return lambda record: (record.value or b"") + b"\n"


def _consume_alone(target: Target, topics: tuple[str, ...], options: dict[str, Any]) -> None:
    last, start, until = options["last"], options["start"], options["until"]
    if last is not None and (start or until):
        raise click.UsageError("--last says where to begin and to end")
    if until is not None and options["follow"]:
        raise click.UsageError("--until says where to end, and --follow that there is no end")
    start = Position(Kind.BEFORE_END, last) if last else start or _DEFAULT_FROM
    with target.admin() as admin:
        places = [
            place
            for one in admin.describe_topics(*topics).values()
            for place in places_of(one, options["partitions"])
        ]
        starts = offsets_at(admin, places, start)
        ends = offsets_at(admin, places, until or Position(Kind.END))
    printer: Printer = options["printer"]
    is_shown = not sys.stdout.isatty() and not options["follow"]

    async def run() -> None:
        async with target.consumer(is_committed=options["committed"]) as consumer:
            if options["committed"]:
                # What is behind a transaction that is still open cannot be read yet.
                for place, end in (await consumer.end_offsets(*places)).items():
                    ends[place] = min(ends[place], end)
            bounds: Bounds = {place: (starts[place], ends[place]) for place in places}
            total = sum(max(0, ends[place] - starts[place]) for place in places)
            with output.progress("reading", total, is_shown=is_shown) as bar:
                if last:
                    await print_last(consumer, bounds, last, printer)
                else:
                    await consume_between(consumer, bounds, printer, bar)
            if options["follow"] and not printer.is_done:
                await consume_between(
                    consumer, {place: (end, None) for place, end in ends.items()}, printer
                )

    asyncio.run(run())


def _consume_in_group(target: Target, topics: tuple[str, ...], options: dict[str, Any]) -> None:
    start: Position = options["start"] or _DEFAULT_FROM
    if start.kind not in (Kind.START, Kind.END):
        raise click.UsageError(
            "--from: a group begins where it has committed, or at start or end; to go elsewhere:"
            " ottla group reset"
        )
    for name in ("until", "last", "partitions"):
        if options[name]:
            option = "--partition" if name == "partitions" else f"--{name}"
            raise click.UsageError(f"{option} is not for members of a group")
    with target.admin() as admin:
        admin.describe_topics(*topics)
    is_endless = options["follow"] is not False
    is_shown = not sys.stdout.isatty() and not is_endless

    async def run() -> None:
        async with target.consumer(
            *topics,
            group=options["group"],
            reset="earliest" if start.kind is Kind.START else "latest",
            is_committed=options["committed"],
        ) as consumer:
            with output.progress("reading", is_shown=is_shown) as bar:
                await consume_as_member(consumer, options["printer"], bar, is_endless=is_endless)

    asyncio.run(run())
