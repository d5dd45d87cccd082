"""`ottla topic …`: list, describe, create, alter, clone and delete topics."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any

import click

from . import output
from .completion import complete_settings, complete_topics
from .failures import Exit, Failure
from .target import Target, connected, json_option
from .values import pairs

if TYPE_CHECKING:
    from ottla.client.admin import ConfigEntry, TopicDescription
    from ottla.client.types import TopicPartition

topic_argument = click.argument("topic", shell_complete=complete_topics)
topics_argument = click.argument(
    "topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


@click.group()
def topic() -> None:
    """List, describe, create, alter and delete topics."""


@topic.command("list")
@click.argument("pattern", required=False)
@click.option("--internal", is_flag=True, help="The brokers' own topics too.")
@click.option("-q", "--quiet", is_flag=True, help="Names alone, one a line.")
@json_option
@connected
def list_topics(
    target: Target, pattern: str | None, internal: bool, quiet: bool, as_json: bool
) -> None:
    """List topics. With PATTERN those whose names match that regular expression.

    \b
        ottla topic list
        ottla topic list '^orders' --json
    """
    wanted = _expression(pattern)
    with target.admin() as admin:
        listed = admin.list_topics(internal=internal)
    found = [one for one in listed if wanted.search(one.name)]
    if quiet and not as_json:
        click.echo("".join(f"{one.name}\n" for one in found), nl=False)
        return
    output.print_rows(
        ("topic", "partitions", "replication_factor", "without_leader", "is_internal"),
        [
            (
                one.name,
                len(one.partitions),
                one.replication_factor,
                sum(partition.leader < 0 for partition in one.partitions),
                one.is_internal,
            )
            for one in found
        ],
        as_json=as_json,
    )


def _expression(pattern: str | None) -> re.Pattern[str]:
    try:
        return re.compile(pattern or "")
    except re.error as error:
        raise click.BadParameter(f"{pattern!r} is no regular expression: {error}") from error


@topic.command("create")
@topics_argument
@click.option(
    "-p", "--partitions", type=click.IntRange(1), help="How many. [default: the broker's]"
)
@click.option(
    "-r", "--replication-factor", type=click.IntRange(1), help="How many. [default: the broker's]"
)
@click.option("-c", "--config", "configs", metavar="KEY=VALUE", multiple=True, help="A setting.")
@click.option("--if-not-exists", is_flag=True, help="One that is there already is no error.")
@click.option("--dry-run", is_flag=True, help="Only see whether it could be done.")
@json_option
@connected
def create_topics(
    target: Target,
    topics: tuple[str, ...],
    partitions: int | None,
    replication_factor: int | None,
    configs: tuple[str, ...],
    if_not_exists: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Create topics.

    \b
        ottla topic create orders --partitions 6
        ottla topic create prices -p 3 -c cleanup.policy=compact -c min.cleanable.dirty.ratio=0.1
    """
    from ottla.client.admin import NewTopic

    settings = pairs(configs, "--config")
    new = [
        NewTopic(name, partitions or -1, replication_factor or -1, settings)
        for name in dict.fromkeys(topics)
    ]
    with target.admin() as admin:
        if if_not_exists:
            there = {one.name for one in admin.list_topics(internal=True)}
            new = [one for one in new if one.name not in there]
        made = admin.create_topics(*new, validate_only=dry_run)
    verb = "could be created" if dry_run else "created"
    output.print_done(
        [
            {
                "topic": one.name,
                "id": str(one.id),
                "partitions": one.partitions,
                "replication_factor": one.replication_factor,
                "dry_run": dry_run,
            }
            for one in made.values()
        ],
        [
            f"{name}: {verb} with {output.counted(made[name].partitions, 'partition')}"
            if name in made
            else f"{name}: is there already"
            for name in dict.fromkeys(topics)
        ],
        as_json=as_json,
    )


@topic.command("describe")
@topics_argument
@click.option("--all", "show_all", is_flag=True, help="Settings that have their defaults too.")
@json_option
@connected
def describe_topics(target: Target, topics: tuple[str, ...], show_all: bool, as_json: bool) -> None:
    """Show partitions, leaders, offsets and settings of topics.

    \b
        ottla topic describe orders
    """
    with target.admin() as admin:
        found = admin.describe_topics(*topics)
        settings = admin.describe_topic_configs(*topics)
        led = [
            place
            for one in found.values()
            for place, partition in zip(one.places, one.partitions, strict=True)
            if partition.leader >= 0
        ]
        starts, ends = admin.beginning_offsets(*led), admin.end_offsets(*led)
    shown = {
        name: [one for one in of_topic.values() if show_all or one.source.name == "TOPIC"]
        for name, of_topic in settings.items()
    }
    if as_json:
        output.print_json(
            [_described_json(one, starts, ends, shown[name]) for name, one in found.items()]
        )
        return
    for name, one in found.items():
        _print_description(one, starts, ends, shown[name])


def _described_json(
    one: TopicDescription,
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    settings: list[ConfigEntry],
) -> dict[str, Any]:
    return {
        "topic": one.name,
        "id": str(one.id),
        "is_internal": one.is_internal,
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": partition.replicas,
                "isr": partition.isr,
                "start": starts.get(place),
                "end": ends.get(place),
            }
            for place, partition in zip(one.places, one.partitions, strict=True)
        ],
        "configs": {entry.name: entry.value for entry in settings},
    }


def _print_description(
    one: TopicDescription,
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    settings: list[ConfigEntry],
) -> None:
    output.print_facts({"topic": one.name, "id": str(one.id)})
    output.print_table(
        ("partition", "leader", "epoch", "replicas", "in sync", "start", "end", "offsets"),
        (
            (
                partition.partition,
                partition.leader if partition.leader >= 0 else None,
                partition.leader_epoch,
                partition.replicas,
                partition.isr,
                starts.get(place),
                ends.get(place),
                ends[place] - starts[place] if place in ends else None,
            )
            for place, partition in zip(one.places, one.partitions, strict=True)
        ),
    )
    if settings:
        output.print_table(
            ("setting", "value", "from"),
            ((entry.name, entry.value, entry.source.value) for entry in settings),
        )


@topic.command("delete")
@topics_argument
@click.option("--if-exists", is_flag=True, help="One that is not there is no error.")
@yes_option
@json_option
@connected
def delete_topics(
    target: Target, topics: tuple[str, ...], if_exists: bool, yes: bool, as_json: bool
) -> None:
    """Delete topics, with all their records.

    \b
        ottla topic delete orders --yes
    """
    with target.admin() as admin:
        wanted = list(dict.fromkeys(topics))
        if if_exists:
            there = {one.name for one in admin.list_topics(internal=True)}
            wanted = [name for name in wanted if name in there]
        else:
            admin.describe_topics(*wanted)
        if wanted:
            confirm(f"delete {', '.join(wanted)} with all records", yes)
            admin.delete_topics(*wanted)
    output.print_done(
        [{"topic": name} for name in wanted],
        [f"{name}: deleted" for name in wanted],
        as_json=as_json,
    )


@topic.command("alter")
@topic_argument
@click.option(
    "--set",
    "set_to",
    metavar="KEY=VALUE",
    multiple=True,
    shell_complete=complete_settings,
    help="Set a setting.",
)
@click.option("--unset", metavar="KEY", multiple=True, help="Give a setting its default again.")
@click.option("--append", metavar="KEY=VALUE", multiple=True, help="Add to a list.")
@click.option("--subtract", metavar="KEY=VALUE", multiple=True, help="Take from a list.")
@click.option("--dry-run", is_flag=True, help="Only see whether it could be done.")
@json_option
@connected
def alter_topic(
    target: Target,
    topic: str,
    set_to: tuple[str, ...],
    unset: tuple[str, ...],
    append: tuple[str, ...],
    subtract: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change settings of a topic; the others stay as they are.

    \b
        ottla topic alter orders --set retention.ms=86400000 --unset segment.bytes
    """
    if not (set_to or unset or append or subtract):
        raise click.UsageError("there is nothing to alter: say --set KEY=VALUE, or --unset KEY")
    with target.admin() as admin:
        admin.alter_topic_configs(
            topic,
            pairs(set_to, "--set"),
            unset=unset,
            append=pairs(append, "--append"),
            subtract=pairs(subtract, "--subtract"),
            validate_only=dry_run,
        )
    output.print_done(
        [{"topic": topic, "dry_run": dry_run}],
        [f"{topic}: {'could be altered' if dry_run else 'altered'}"],
        as_json=as_json,
    )


@topic.command("add-partitions")
@topic_argument
@click.option("--total", type=click.IntRange(1), help="How many it shall have.")
@click.option("--more", type=click.IntRange(1), help="How many more it shall have.")
@click.option("--dry-run", is_flag=True, help="Only see whether it could be done.")
@json_option
@connected
def add_partitions(
    target: Target,
    topic: str,
    total: int | None,
    more: int | None,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Give a topic more partitions. Records stay where they are.

    \b
        ottla topic add-partitions orders --total 12
    """
    if (total is None) == (more is None):
        raise click.UsageError("say either --total or --more")
    with target.admin() as admin:
        if total is None:
            total = len(admin.describe_topics(topic)[topic].partitions) + (more or 0)
        admin.create_partitions(topic, total, validate_only=dry_run)
    output.print_done(
        [{"topic": topic, "partitions": total, "dry_run": dry_run}],
        [f"{topic}: {'could have' if dry_run else 'has'} {output.counted(total, 'partition')}"],
        as_json=as_json,
    )


def confirm(what: str, yes: bool) -> None:
    """Ask before what cannot be undone; without a terminal somebody must have said yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(f"this would {what}; say --yes if that is meant", Exit.USAGE)
    click.confirm(f"{what[:1].upper()}{what[1:]}?", abort=True, err=True)
