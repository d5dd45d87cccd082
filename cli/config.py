"""`ottla config …`: topic configs and broker configs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import output
from .completion import complete_brokers_or_topics, complete_configs
from .option_types import pairs
from .target import Target, connected, json_option

if TYPE_CHECKING:
    from ottla.client.admin import ConfigEntry
    from ottla.client.blocking import Admin

_kind = click.argument("kind", type=click.Choice(("topic", "broker")))
_name = click.argument("name", shell_complete=complete_brokers_or_topics)


@click.group()
def config() -> None:
    """Show and change topic configs and broker configs."""


@config.command("describe")
@_kind
@_name
@click.argument("filter", required=False, default="")
@click.option(
    "--all", "show_all", is_flag=True, help="Include configs that have their default value."
)
@click.option("--docs", is_flag=True, help="Show the documentation of each config.")
@json_option
@connected
def describe_config(
    target: Target,
    kind: str,
    name: str,
    filter: str,  # noqa: A002
    show_all: bool,
    docs: bool,
    as_json: bool,
) -> None:
    """Show the configs of a topic or broker that were set.

    With FILTER, all configs whose name contains it, whether they were set or not.

    \b
        ottla config describe topic orders
        ottla config describe broker 0 retention --docs
    """
    with target.admin() as admin:
        configs = _described(admin, kind, name)
    shown = [
        entry
        for entry in configs.values()
        if filter in entry.name and (filter or show_all or not _is_unset(entry, kind))
    ]
    keys = ["name", "value", "source", "type", "is_read_only"]
    rows = [
        [entry.name, entry.value, entry.source.value, entry.type, entry.is_read_only]
        for entry in sorted(shown, key=lambda entry: entry.name)
    ]
    if docs or as_json:
        keys.append("documentation")
        for row in rows:
            row.append(configs[str(row[0])].documentation)
    output.print_rows(keys, rows, as_json=as_json)
    if not shown and not as_json:
        output.note("no config was set; show the defaults with --all")


def _is_unset(entry: ConfigEntry, kind: str) -> bool:
    return entry.source.name != "DYNAMIC_TOPIC" if kind == "topic" else entry.is_default


def _described(admin: Admin, kind: str, name: str) -> dict[str, ConfigEntry]:
    if kind == "topic":
        return admin.describe_topic_configs(name)[name]
    broker = _broker_id(name)
    if broker is None:
        return admin.describe_configs_of_all_brokers()
    return admin.describe_broker_configs(broker)[broker]


def _broker_id(name: str) -> int | None:
    """Return a broker id; None for all brokers."""
    if name == "all":
        return None
    if not name.isdecimal():
        raise click.BadParameter(
            f"invalid broker id {name!r}: expected a number, or all", param_hint="NAME"
        )
    return int(name)


@config.command("set")
@_kind
@_name
@click.argument("configs", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=complete_configs)
@click.option(
    "--unset", metavar="KEY", multiple=True, help="Reset a config to its default; repeatable."
)
@click.option("--dry-run", is_flag=True, help="Validate only.")
@json_option
@connected
def set_config(
    target: Target,
    kind: str,
    name: str,
    configs: tuple[str, ...],
    unset: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change configs of a topic or broker.

    The other configs keep their values.

    \b
        ottla config set topic orders retention.ms=86400000
        ottla config set broker 0 log.level=DEBUG
        ottla config set broker all log.retention.ms=86400000
        ottla config set topic orders --unset retention.ms
    """
    if not (configs or unset):
        raise click.UsageError("nothing to change: give KEY=VALUE or --unset KEY")
    changes = pairs(configs, "KEY=VALUE")
    with target.admin() as admin:
        if kind == "topic":
            admin.alter_topic_configs(name, changes, unset=unset, validate_only=dry_run)
        else:
            broker = _broker_id(name)
            admin.alter_broker_configs(broker, changes, unset=unset, validate_only=dry_run)
    output.print_done(
        [{kind: name, "dry_run": dry_run}],
        [f"{kind} {name}: {'valid, not altered' if dry_run else 'altered'}"],
        as_json=as_json,
    )
