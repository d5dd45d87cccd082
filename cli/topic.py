"""`ottla topic …`: list, describe, create, alter, clone and delete topics."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import click

from . import output
from .available import AvailablePartitions
from .completion import complete_configs, complete_topics
from .errors import Exit, Failure
from .option_types import pairs
from .outcomes import Outcomes
from .target import Target, connected, json_option

if TYPE_CHECKING:
    from ottla.client.admin import (
        ConfigEntry,
        CreatedTopic,
        PartitionDescription,
        ReplicaLogDir,
        TopicDescription,
    )
    from ottla.client.types import TopicPartition

topic_argument = click.argument("topic", shell_complete=complete_topics)
topics_argument = click.argument(
    "topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topics
)
yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


@click.group()
def topic() -> None:
    """List, describe, create, alter and delete topics."""


@topic.command("list")
@click.argument("pattern", required=False)
@click.option("--internal", is_flag=True, help="Include internal topics.")
@click.option("-q", "--quiet", is_flag=True, help="Print names only, one per line.")
@json_option
@connected
def list_topics(
    target: Target, pattern: str | None, internal: bool, quiet: bool, as_json: bool
) -> None:
    """List topics.

    With PATTERN, those whose names match the regular expression.

    \b
        ottla topic list
        ottla topic list '^orders' --json
    """
    expression = _expression(pattern)
    with target.topics_admin() as admin:
        listed = admin.list_topics(internal=internal)
    topics = [topic for topic in listed if expression.search(topic.name)]
    if quiet and not as_json:
        click.echo("".join(f"{topic.name}\n" for topic in topics), nl=False)
        return
    output.print_rows(
        ("topic", "partitions", "replication_factor", "without_leader", "is_internal"),
        [
            (
                topic.name,
                len(topic.partitions),
                topic.replication_factor,
                sum(partition.leader < 0 for partition in topic.partitions),
                topic.is_internal,
            )
            for topic in topics
        ],
        as_json=as_json,
    )


def _expression(pattern: str | None) -> re.Pattern[str]:
    try:
        return re.compile(pattern or "")
    except re.error as error:
        raise click.BadParameter(f"invalid regular expression {pattern!r}: {error}") from error


@topic.command("create")
@topics_argument
@click.option(
    "-p", "--partitions", type=click.IntRange(1), help="Number. [default: num.partitions]"
)
@click.option(
    "-r",
    "--replication-factor",
    type=click.IntRange(1),
    help="Replicas per partition. [default: default.replication.factor]",
)
@click.option(
    "-c",
    "--config",
    "configs",
    metavar="KEY=VALUE",
    multiple=True,
    help="Topic config; repeatable.",
)
@click.option("--if-not-exists", is_flag=True, help="Succeed if the topic already exists.")
@click.option("--dry-run", is_flag=True, help="Validate only.")
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

    overrides = pairs(configs, "--config")
    outcomes = Outcomes("topic", topics)
    with target.admin() as admin:
        names = outcomes.names
        if if_not_exists:
            existing = {topic.name for topic in admin.list_topics(internal=True)}
            names = [name for name in names if name not in existing]
            for name in existing.intersection(outcomes.names):
                outcomes.succeed(name, "already exists", outcome="exists")

        def create(*names: str) -> dict[str, CreatedTopic]:
            new = (
                NewTopic(name, partitions or -1, replication_factor or -1, overrides)
                for name in names
            )
            return admin.create_topics(*new, validate_only=dry_run)

        for name, created in outcomes.attempt(create, names).items():
            assert created is not None
            outcomes.succeed(
                name,
                f"{'valid, not created,' if dry_run else 'created'} with"
                f" {output.counted(created.partitions, 'partition')}",
                id=str(created.id),
                partitions=created.partitions,
                replication_factor=created.replication_factor,
                dry_run=dry_run,
                outcome="valid" if dry_run else "created",
            )
    outcomes.print(as_json=as_json)


@topic.command("describe")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--under-replicated",
    is_flag=True,
    help="Show only partitions with replicas that are not in sync.",
)
@click.option("--offline", is_flag=True, help="Show only partitions without a leader.")
@click.option(
    "--all", "show_all", is_flag=True, help="Include configs that have their default value."
)
@click.option("--log-dirs", is_flag=True, help="Include the directory and size of each replica.")
@json_option
@connected
def describe_topics(
    target: Target,
    topics: tuple[str, ...],
    under_replicated: bool,
    offline: bool,
    show_all: bool,
    log_dirs: bool,
    as_json: bool,
) -> None:
    """Show partitions, replicas, offsets and configs of topics.

    ISR are the in-sync replicas, ELR those besides them that may lead without losing records.
    Without TOPIC, --under-replicated and --offline look at all topics.

    \b
        ottla topic describe orders
        ottla topic describe --under-replicated
    """
    is_filtered = under_replicated or offline
    if not topics and not is_filtered:
        raise click.UsageError("Missing argument 'TOPIC...'.")

    def is_shown(partition: PartitionDescription) -> bool:
        return (under_replicated and partition.is_under_replicated) or (
            offline and partition.is_offline
        )

    with target.admin() as admin:
        if not topics:
            topics = tuple(
                topic.name
                for topic in admin.list_topics(internal=True)
                if any(map(is_shown, topic.partitions))
            )
        outcomes = Outcomes("topic", topics)
        found = outcomes.attempt(admin.describe_topics) if topics else {}
        whole = {name: topic for name, topic in found.items() if topic}
        descriptions = whole
        if is_filtered:
            descriptions = {
                name: replace(topic, partitions=shown_partitions)
                for name, topic in whole.items()
                if (shown_partitions := tuple(filter(is_shown, topic.partitions)))
            }
        configs = admin.describe_topic_configs(*descriptions) if descriptions else {}
        available = AvailablePartitions(
            admin,
            whole,
            [tp for topic in descriptions.values() for tp in topic.topic_partitions],
        )
        starts, ends = available.starts, available.ends
        replicas = admin.describe_log_dirs(*descriptions) if log_dirs and descriptions else None
    shown = {
        name: [
            entry for entry in entries.values() if show_all or entry.source.name == "DYNAMIC_TOPIC"
        ]
        for name, entries in configs.items()
    }
    if as_json:
        output.print_json(
            [
                _described_json(topic, starts, ends, shown[name])
                | ({} if replicas is None else {"log_dirs": _log_dirs_json(topic, replicas)})
                for name, topic in descriptions.items()
            ]
        )
    else:
        for name, topic in descriptions.items():
            _print_description(topic, starts, ends, shown[name])
            if replicas is not None:
                rows = _log_dirs_json(topic, replicas)
                output.print_table(
                    ("partition", "broker", "bytes", "log dir"), ([*row.values()] for row in rows)
                )
    outcomes.finish()


def _log_dirs_json(
    topic: TopicDescription, replicas: dict[TopicPartition, list[ReplicaLogDir]]
) -> list[dict[str, Any]]:
    return [
        {
            "partition": tp.partition,
            "broker": replica.broker,
            "size_bytes": replica.size_bytes,
            "log_dir": replica.log_dir,
        }
        for tp in topic.topic_partitions
        for replica in replicas.get(tp, [])
    ]


def _described_json(
    topic: TopicDescription,
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    configs: list[ConfigEntry],
) -> dict[str, Any]:
    return {
        "topic": topic.name,
        "id": str(topic.id),
        "is_internal": topic.is_internal,
        "partitions": [
            {
                "partition": partition.partition,
                "leader": partition.leader,
                "leader_epoch": partition.leader_epoch,
                "replicas": partition.replicas,
                "isr": partition.isr,
                "elr": partition.elr,
                "start": starts.get(tp),
                "end": ends.get(tp),
            }
            for tp, partition in zip(topic.topic_partitions, topic.partitions, strict=True)
        ],
        "configs": {entry.name: entry.value for entry in configs},
    }


def _print_description(
    topic: TopicDescription,
    starts: dict[TopicPartition, int],
    ends: dict[TopicPartition, int],
    configs: list[ConfigEntry],
) -> None:
    output.print_facts({"topic": topic.name, "id": str(topic.id)})
    output.print_table(
        ("partition", "leader", "epoch", "replicas", "isr", "elr", "start", "end", "offsets"),
        (
            (
                partition.partition,
                partition.leader if partition.leader >= 0 else None,
                partition.leader_epoch,
                partition.replicas,
                partition.isr or None,
                partition.elr or None,
                starts.get(tp),
                ends.get(tp),
                ends[tp] - starts[tp] if tp in ends else None,
            )
            for tp, partition in zip(topic.topic_partitions, topic.partitions, strict=True)
        ),
    )
    if configs:
        output.print_table(
            ("config", "value", "source"),
            ((entry.name, entry.value, entry.source.value) for entry in configs),
        )


@topic.command("delete")
@topics_argument
@click.option("--if-exists", is_flag=True, help="Succeed if the topic does not exist.")
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
    outcomes = Outcomes("topic", topics)
    with target.admin() as admin:
        if if_exists:
            existing = {topic.name for topic in admin.list_topics(internal=True)}
            names = [name for name in outcomes.names if name in existing]
            for name in outcomes.names:
                if name not in existing:
                    outcomes.succeed(name, "does not exist", outcome="missing")
        else:
            names = list(outcomes.attempt(admin.describe_topics))
        if names:
            confirm(f"delete {', '.join(names)} with all records", yes)
            for name in outcomes.attempt(admin.delete_topics, names):
                outcomes.succeed(name, "deleted", outcome="deleted")
    outcomes.print(as_json=as_json)


@topic.command("alter")
@topic_argument
@click.option(
    "--set",
    "set_to",
    metavar="KEY=VALUE",
    multiple=True,
    shell_complete=complete_configs,
    help="Set a config; repeatable.",
)
@click.option(
    "--unset", metavar="KEY", multiple=True, help="Reset a config to its default; repeatable."
)
@click.option("--append", metavar="KEY=VALUE", multiple=True, help="Append to a list config.")
@click.option("--subtract", metavar="KEY=VALUE", multiple=True, help="Remove from a list config.")
@click.option("--dry-run", is_flag=True, help="Validate only.")
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
    """Change configs of a topic; the others keep their values.

    \b
        ottla topic alter orders --set retention.ms=86400000 --unset segment.bytes
    """
    if not (set_to or unset or append or subtract):
        raise click.UsageError("nothing to change: give --set KEY=VALUE or --unset KEY")
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
        [f"{topic}: {'valid, not altered' if dry_run else 'altered'}"],
        as_json=as_json,
    )


@topic.command("add-partitions")
@topic_argument
@click.option("--total", type=click.IntRange(1), help="New number of partitions.")
@click.option("--more", type=click.IntRange(1), help="Number of partitions to add.")
@click.option("--dry-run", is_flag=True, help="Validate only.")
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
    """Add partitions to a topic. Existing records are not moved.

    \b
        ottla topic add-partitions orders --total 12
    """
    if (total is None) == (more is None):
        raise click.UsageError("give either --total or --more")
    with target.admin() as admin:
        if total is None:
            total = len(admin.describe_topics(topic)[topic].partitions) + (more or 0)
        admin.create_partitions(topic, total, validate_only=dry_run)
    output.print_done(
        [{"topic": topic, "partitions": total, "dry_run": dry_run}],
        [f"{topic}: {'would have' if dry_run else 'has'} {output.counted(total, 'partition')}"],
        as_json=as_json,
    )


def confirm(action: str, yes: bool) -> None:
    """Ask for confirmation; without a terminal, --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(f"This would {action}; confirm with --yes", Exit.USAGE)
    click.confirm(f"{action[:1].upper()}{action[1:]}?", abort=True, err=True)
