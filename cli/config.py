"""`ottla config …`: the settings of topics and of brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import output
from .completion import complete_brokers_or_topics, complete_settings
from .target import Target, connected, json_option
from .values import pairs

if TYPE_CHECKING:
    from ottla.client.admin import ConfigEntry
    from ottla.client.blocking import Admin

_kind = click.argument("kind", type=click.Choice(("topic", "broker")))
_name = click.argument("name", shell_complete=complete_brokers_or_topics)


@click.group()
def config() -> None:
    """Show and change the settings of topics and brokers."""


@config.command("describe")
@_kind
@_name
@click.argument("filter", required=False, default="")
@click.option("--all", "show_all", is_flag=True, help="Those that have their defaults too.")
@click.option("--docs", is_flag=True, help="Say what each setting does.")
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
    """Show settings of a topic or of a broker. Those that somebody has set.

    With FILTER those that have it in their names, whether somebody has set them or not.

    \b
        ottla config describe topic orders
        ottla config describe broker 0 retention --docs
    """
    with target.admin() as admin:
        found = _described(admin, kind, name)
    shown = [
        entry
        for entry in found.values()
        if filter in entry.name and (filter or show_all or not _is_untouched(entry, kind))
    ]
    keys = ["name", "value", "source", "type", "is_read_only"]
    rows = [
        [entry.name, entry.value, entry.source.value, entry.type, entry.is_read_only]
        for entry in sorted(shown, key=lambda entry: entry.name)
    ]
    if docs or as_json:
        keys.append("documentation")
        for row in rows:
            row.append(found[str(row[0])].documentation)
    output.print_rows(keys, rows, as_json=as_json)
    if not shown and not as_json:
        output.note("nothing is set; see the defaults with --all")


def _is_untouched(entry: ConfigEntry, kind: str) -> bool:
    return entry.source.name != "TOPIC" if kind == "topic" else entry.is_default


def _described(admin: Admin, kind: str, name: str) -> dict[str, ConfigEntry]:
    if kind == "topic":
        return admin.describe_topic_configs(name)[name]
    broker = _broker_id(name)
    return admin.describe_broker_configs(broker)[broker]


def _broker_id(name: str) -> int:
    if not name.isdecimal():
        raise click.BadParameter(f"{name!r} is not the number of a broker", param_hint="NAME")
    return int(name)


@config.command("set")
@_kind
@_name
@click.argument("settings", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=complete_settings)
@click.option("--unset", metavar="KEY", multiple=True, help="Give a setting its default again.")
@click.option("--dry-run", is_flag=True, help="Only see whether it could be done.")
@json_option
@connected
def set_config(
    target: Target,
    kind: str,
    name: str,
    settings: tuple[str, ...],
    unset: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Change settings of a topic or of a broker. The others stay as they are.

    \b
        ottla config set topic orders retention.ms=86400000
        ottla config set broker 0 log.level=DEBUG
        ottla config set topic orders --unset retention.ms
    """
    if not (settings or unset):
        raise click.UsageError("there is nothing to set: say KEY=VALUE, or --unset KEY")
    wanted = pairs(settings, "KEY=VALUE")
    with target.admin() as admin:
        if kind == "topic":
            admin.alter_topic_configs(name, wanted, unset=unset, validate_only=dry_run)
        else:
            broker = _broker_id(name)
            admin.alter_broker_configs(broker, wanted, unset=unset, validate_only=dry_run)
    output.print_done(
        [{kind: name, "dry_run": dry_run}],
        [f"{kind} {name}: {'could be altered' if dry_run else 'altered'}"],
        as_json=as_json,
    )
