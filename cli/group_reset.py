"""`ottla group reset` and `delete-offsets`: change the committed offsets of a group."""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from collections.abc import Iterable
from typing import IO, TYPE_CHECKING

import click

from . import output, share_group
from .completion import complete_groups, complete_topics
from .errors import Exit, Failure
from .group import group, group_argument
from .option_types import POSITION, Position, offsets_at
from .target import Target, connected, json_option
from .topic import confirm, yes_option

if TYPE_CHECKING:
    from ottla.client.blocking import Admin
    from ottla.client.types import TopicPartition

_KEYS = ("topic", "partition", "offset_before", "offset")
_TOPIC_PARTITIONS = re.compile(r"(?P<topic>[^:]+)(:(?P<partitions>[0-9]+(,[0-9]+)*))?")


@group.command("reset")
@group_argument
@click.option(
    "--to",
    "--from",
    "to",
    type=POSITION,
    help="start, end, OFFSET, -N (before the end), or a time.",
)
@click.option("--by", type=int, metavar="N", help="Shift by N offsets; backwards if negative.")
@click.option(
    "--like",
    metavar="GROUP",
    shell_complete=complete_groups,
    help="Copy the offsets of another group.",
)
@click.option(
    "--file", type=click.File(), help="TOPIC,PARTITION,OFFSET lines or JSON; - reads stdin."
)
@click.option(
    "-t",
    "--topic",
    "topics",
    metavar="TOPIC[:P,…]",
    multiple=True,
    shell_complete=complete_topics,
    help="Topic or partitions. [default: all committed]",
)
@click.option("--dry-run", is_flag=True, help="Show the plan only.")
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
    """Set the committed offsets of a group without members.

    Of a share group, the start offsets are set.

    \b
        ottla group reset billing --to start --dry-run
        ottla group reset billing --to 2026-11-16T12:00 --topic orders --topic bills:0,1
        ottla group reset billing --by -100 --yes
        ottla group reset billing --like billing-backup --yes
        ottla group reset billing --file offsets.csv --yes

    --file accepts the output of --dry-run --json.
    """
    if sum(option is not None for option in (to, by, like, file)) != 1:
        raise click.UsageError("give exactly one of --to, --by, --like and --file")
    with target.admin() as admin:
        is_share = share_group.is_share(admin, group)
        before = _offsets(admin, group, is_share=is_share)
        selected = _parse_partitions(admin, topics)
        if to is not None:
            after = offsets_at(admin, _or_all_committed(group, selected, before), to)
        elif by is not None:
            after = _shifted(admin, before, selected, by)
        elif like is not None:
            after = _offsets(admin, like, is_share=share_group.is_share(admin, like))
        else:
            assert file is not None
            after = read_offsets(file.read())
        if selected and to is None:
            after = {tp: offset for tp, offset in after.items() if tp in selected}
        if not after:
            raise Failure("No partition selected: nothing to commit", Exit.NOT_FOUND)
        rows = [(*tp, before.get(tp), after[tp]) for tp in sorted(after)]
        if not (dry_run or yes) and sys.stdin.isatty():
            # The plan is what is asked about; the result is printed to stdout.
            output.print_rows(_KEYS, rows, as_json=False, to_stderr=True)
        if not dry_run:
            verb = "set start" if is_share else "commit"
            confirm(f"{verb} offsets of {output.counted(len(after), 'partition')} for {group}", yes)
            if is_share:
                admin.alter_share_group_offsets(group, after)
            else:
                admin.alter_group_offsets(group, dict(after))
    output.print_rows(_KEYS, rows, as_json=as_json)


def _offsets(admin: Admin, group: str, *, is_share: bool) -> dict[TopicPartition, int]:
    if is_share:
        return share_group.start_offsets(admin, group)
    return {tp: one.offset for tp, one in admin.list_group_offsets(group).items()}


def _or_all_committed(
    group: str, selected: list[TopicPartition], before: Iterable[TopicPartition]
) -> list[TopicPartition]:
    partitions = selected or list(before)
    if not partitions:
        raise Failure(
            f"Group {group!r} has no committed offsets; select topics with --topic",
            Exit.NOT_FOUND,
        )
    return partitions


def _parse_partitions(admin: Admin, topics: tuple[str, ...]) -> list[TopicPartition]:
    """Parse TOPIC and TOPIC:0,1."""
    from ottla.client.types import TopicPartition

    partitions: list[TopicPartition] = []
    for text in topics:
        match = _TOPIC_PARTITIONS.fullmatch(text)
        if match is None:
            raise click.BadParameter(
                f"invalid value {text!r}: expected TOPIC or TOPIC:0,1", param_hint="--topic"
            )
        if match["partitions"]:
            numbers = map(int, match["partitions"].split(","))
            partitions += (TopicPartition(match["topic"], number) for number in numbers)
        else:
            partitions += admin.describe_topics(text)[text].topic_partitions
    return list(dict.fromkeys(partitions))


def _shifted(
    admin: Admin, before: dict[TopicPartition, int], selected: list[TopicPartition], by: int
) -> dict[TopicPartition, int]:
    partitions = [tp for tp in before if not selected or tp in selected]
    starts, ends = admin.beginning_offsets(*partitions), admin.end_offsets(*partitions)
    return {tp: min(max(before[tp] + by, starts[tp]), ends[tp]) for tp in partitions}


def read_offsets(text: str) -> dict[TopicPartition, int]:
    """Parse TOPIC,PARTITION,OFFSET lines, or a JSON array of objects with such keys."""
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
            f"Invalid --file: {error}: expected TOPIC,PARTITION,OFFSET lines or a JSON array of"
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
    """Delete committed offsets of a group.

    No member of the group may be subscribed to the topics. Of a share group, which must have no
    members, start offsets are deleted, of whole topics.

    \b
        ottla group delete-offsets billing orders bills:0 --yes
    """
    with target.admin() as admin:
        if share_group.is_share_description(admin.describe_groups(group)[group]):
            names = share_group.delete_offsets(admin, group, topics)
            confirm(f"delete start offsets of {', '.join(names)} of {group}", yes)
            admin.delete_share_group_offsets(group, *names)
            output.print_done(
                [{"topic": name} for name in names],
                [f"{name}: deleted" for name in names],
                as_json=as_json,
            )
            return
        committed = admin.list_group_offsets(group)
        partitions = [tp for tp in _parse_partitions(admin, topics) if tp in committed]
        if not partitions:
            raise Failure(
                f"Group {group!r} has no committed offsets for these partitions", Exit.NOT_FOUND
            )
        confirm(f"delete offsets of {output.counted(len(partitions), 'partition')} of {group}", yes)
        admin.delete_group_offsets(group, *partitions)
    output.print_done(
        [tp._asdict() for tp in partitions],
        [f"{tp}: deleted" for tp in partitions],
        as_json=as_json,
    )
