"""`ottla group reset` and `delete-offsets`: where a group shall go on."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

import click

from . import output
from .completion import complete_groups, complete_topics
from .failures import Exit, Failure
from .group import group, group_argument
from .target import Target, connected, json_option
from .topic import confirm, yes_option
from .values import POSITION, Position, offsets_at

if TYPE_CHECKING:
    from ottla.client.blocking import Admin
    from ottla.client.types import TopicPartition

_PLACE = re.compile(r"(?P<topic>[^:]+)(:(?P<partitions>[0-9]+(,[0-9]+)*))?")


@group.command("reset")
@group_argument
@click.option("--to", type=POSITION, help="start, end, OFFSET, -N (before the end), or a time.")
@click.option("--by", type=int, metavar="N", help="So many offsets on, or back if below zero.")
@click.option("--like", metavar="GROUP", shell_complete=complete_groups, help="As another group.")
@click.option(
    "--file", type=click.File(), help="TOPIC,PARTITION,OFFSET lines, or JSON; - is stdin."
)
@click.option(
    "-t",
    "--topic",
    "topics",
    metavar="TOPIC[:P,…]",
    multiple=True,
    shell_complete=complete_topics,
    help="Where. [default: where the group has committed]",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be committed.")
@yes_option
@json_option
@connected
def reset_group(
    target: Target,
    group: str,
    to: Position | None,
    by: int | None,
    like: str | None,
    file: IO[str] | None,
    topics: tuple[str, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Say where a group that has no members goes on.

    \b
        ottla group reset billing --to start --dry-run
        ottla group reset billing --to 2026-11-16T12:00 --topic orders --topic bills:0,1
        ottla group reset billing --by -100 --yes
        ottla group reset billing --like billing-backup --yes
        ottla group reset billing --file offsets.csv --yes

    What --dry-run --json prints can be given to --file.
    """
    if sum(one is not None for one in (to, by, like, file)) != 1:
        raise click.UsageError("say one of --to, --by, --like and --file")
    with target.admin() as admin:
        before = {place: one.offset for place, one in admin.list_group_offsets(group).items()}
        chosen = _places(admin, topics)
        if to is not None:
            after = offsets_at(admin, _or_committed(group, chosen, before), to)
        elif by is not None:
            after = _shifted(admin, before, chosen, by)
        elif like is not None:
            after = {place: one.offset for place, one in admin.list_group_offsets(like).items()}
        else:
            assert file is not None
            after = read_offsets(file.read())
        if chosen and to is None:
            after = {place: offset for place, offset in after.items() if place in chosen}
        if not after:
            raise Failure("that would commit nothing: no partition is meant", Exit.NOT_FOUND)
        if not dry_run:
            confirm(f"commit offsets of {output.counted(len(after), 'partition')} for {group}", yes)
            admin.alter_group_offsets(group, dict(after))
    output.print_rows(
        ("topic", "partition", "offset_before", "offset"),
        [(*place, before.get(place), after[place]) for place in sorted(after)],
        as_json=as_json,
    )


def _or_committed(
    group: str, chosen: list[TopicPartition], before: Iterable[TopicPartition]
) -> list[TopicPartition]:
    places = chosen or list(before)
    if not places:
        raise Failure(
            f"group {group!r} has committed nothing so far; say which topics are meant: --topic",
            Exit.NOT_FOUND,
        )
    return places


def _places(admin: Admin, topics: tuple[str, ...]) -> list[TopicPartition]:
    """Read TOPIC and TOPIC:0,1; give the partitions that are meant."""
    from ottla.client.types import TopicPartition

    found: list[TopicPartition] = []
    for text in topics:
        match = _PLACE.fullmatch(text)
        if match is None:
            raise click.BadParameter(f"{text!r} is not TOPIC or TOPIC:0,1", param_hint="--topic")
        if match["partitions"]:
            numbers = map(int, match["partitions"].split(","))
            found += (TopicPartition(match["topic"], number) for number in numbers)
        else:
            found += admin.describe_topics(text)[text].places
    return list(dict.fromkeys(found))


def _shifted(
    admin: Admin, before: dict[TopicPartition, int], chosen: list[TopicPartition], by: int
) -> dict[TopicPartition, int]:
    places = [place for place in before if not chosen or place in chosen]
    starts, ends = admin.beginning_offsets(*places), admin.end_offsets(*places)
    return {place: min(max(before[place] + by, starts[place]), ends[place]) for place in places}


def read_offsets(text: str) -> dict[TopicPartition, int]:
    """Read TOPIC,PARTITION,OFFSET lines, or a JSON array of objects with such keys."""
    from ottla.client.types import TopicPartition

    try:
        if text.lstrip().startswith("["):
            rows = [[one["topic"], one["partition"], one["offset"]] for one in json.loads(text)]
        else:
            rows = [row for row in csv.reader(io.StringIO(text)) if row]
        return {
            TopicPartition(str(topic), int(partition)): int(offset)
            for topic, partition, offset in rows
        }
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(
            f"--file: {error}: it is neither TOPIC,PARTITION,OFFSET lines nor a JSON array of"
            ' {"topic": …, "partition": …, "offset": …}',
            Exit.USAGE,
        ) from error


@group.command("delete-offsets")
@group_argument
@click.argument(
    "topics", metavar="TOPIC[:P,…]...", nargs=-1, required=True, shell_complete=complete_topics
)
@yes_option
@json_option
@connected
def delete_offsets(
    target: Target, group: str, topics: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Forget what a group has committed. None of its members may read these topics.

    \b
        ottla group delete-offsets billing orders bills:0 --yes
    """
    with target.admin() as admin:
        admin.describe_groups(group)
        committed = admin.list_group_offsets(group)
        places = [place for place in _places(admin, topics) if place in committed]
        if not places:
            raise Failure(f"group {group!r} has committed nothing there", Exit.NOT_FOUND)
        confirm(f"delete offsets of {output.counted(len(places), 'partition')} of {group}", yes)
        admin.delete_group_offsets(group, *places)
    output.print_done(
        [place._asdict() for place in places],
        [f"{place}: deleted" for place in places],
        as_json=as_json,
    )
