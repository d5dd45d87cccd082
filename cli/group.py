"""`ottla group …`: groups, how far they are, and where they shall go on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import output
from .completion import complete_groups
from .failures import Exit, Failure
from .target import Target, connected, json_option
from .topic import confirm, yes_option

if TYPE_CHECKING:
    from ottla.client.admin import GroupDescription, MemberDescription, PartitionLag
    from ottla.client.types import TopicPartition

group_argument = click.argument("group", shell_complete=complete_groups)
_groups = click.argument(
    "groups", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups
)


@click.group()
def group() -> None:
    """List, describe, reset and delete consumer groups."""


@group.command("list")
@click.option(
    "--state", "states", multiple=True, help="Only groups in this state: Stable, Empty, …"
)
@click.option("-q", "--quiet", is_flag=True, help="Names alone, one a line.")
@json_option
@connected
def list_groups(target: Target, states: tuple[str, ...], quiet: bool, as_json: bool) -> None:
    """List the groups of all brokers.

    \b
        ottla group list
        ottla group list --state Stable --quiet
    """
    with target.admin() as admin:
        found = admin.list_groups(states=states)
    if quiet and not as_json:
        click.echo("".join(f"{one.group_id}\n" for one in found), nl=False)
        return
    output.print_rows(
        ("group", "state", "protocol_type", "type", "coordinator"),
        [(one.group_id, one.state, one.protocol_type, one.type, one.coordinator) for one in found],
        as_json=as_json,
    )


@group.command("describe")
@_groups
@json_option
@connected
def describe_groups(target: Target, groups: tuple[str, ...], as_json: bool) -> None:
    """Show members, committed offsets and lag of groups.

    \b
        ottla group describe billing
    """
    with target.admin() as admin:
        found = admin.describe_groups(*groups)
        lags = {name: admin.group_lag(name) for name in found}
    if as_json:
        output.print_json([_as_json(one, lags[name]) for name, one in found.items()])
        return
    for name, one in found.items():
        _print_description(one, lags[name])


def _total(lags: dict[TopicPartition, PartitionLag]) -> int:
    return sum(one.lag or 0 for one in lags.values())


def _as_json(one: GroupDescription, lags: dict[TopicPartition, PartitionLag]) -> dict[str, Any]:
    owners = _owners(one)
    return {
        "group": one.group_id,
        "state": one.state,
        "protocol_type": one.protocol_type,
        "assignor": one.assignor,
        "coordinator": one.coordinator,
        "lag": _total(lags),
        "partitions": [
            {
                "topic": place.topic,
                "partition": place.partition,
                "offset": lag.committed,
                "end": lag.end,
                "lag": lag.lag,
                "metadata": lag.metadata,
                "member_id": owners[place].member_id if place in owners else None,
            }
            for place, lag in lags.items()
        ],
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "topics": member.topics,
                "partitions": [
                    {"topic": place.topic, "partition": place.partition}
                    for place in member.assignment
                ],
            }
            for member in one.members
        ],
    }


def _owners(one: GroupDescription) -> dict[TopicPartition, MemberDescription]:
    return {place: member for member in one.members for place in member.assignment}


def _print_description(one: GroupDescription, lags: dict[TopicPartition, PartitionLag]) -> None:
    owners = _owners(one)
    output.print_facts(
        {
            "group": one.group_id,
            "state": one.state,
            "assignor": one.assignor or None,
            "coordinator": one.coordinator,
            "members": len(one.members),
            "lag": _total(lags),
        }
    )
    output.print_table(
        ("topic", "partition", "offset", "end", "lag", "member", "host"),
        (
            (
                *place,
                lag.committed,
                lag.end,
                lag.lag,
                owners[place].member_id if place in owners else None,
                owners[place].host if place in owners else None,
            )
            for place, lag in lags.items()
        ),
    )
    idle = [member for member in one.members if not member.assignment]
    if idle:
        output.print_table(
            ("member without partitions", "host"),
            ((member.member_id, member.host) for member in idle),
        )


@group.command("delete")
@_groups
@yes_option
@json_option
@connected
def delete_groups(target: Target, groups: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Delete groups that have no members. What they have committed goes with them.

    \b
        ottla group delete billing --yes
    """
    wanted = list(dict.fromkeys(groups))
    with target.admin() as admin:
        admin.describe_groups(*wanted)
        confirm(f"delete {', '.join(wanted)} with committed offsets", yes)
        admin.delete_groups(*wanted)
    output.print_done(
        [{"group": name} for name in wanted],
        [f"{name}: deleted" for name in wanted],
        as_json=as_json,
    )


@group.command("clone")
@click.argument("source", shell_complete=complete_groups)
@click.argument("copy")
@click.option("--overwrite", is_flag=True, help="Even if COPY has committed something.")
@json_option
@connected
def clone_group(target: Target, source: str, copy: str, overwrite: bool, as_json: bool) -> None:
    """Copy the offsets of a group. COPY goes on where SOURCE is.

    \b
        ottla group clone billing billing-experiment
    """
    with target.admin() as admin:
        admin.describe_groups(source)
        committed = admin.list_group_offsets(source)
        if not committed:
            raise Failure(f"group {source!r} has committed nothing", Exit.NOT_FOUND)
        if not overwrite and admin.list_group_offsets(copy):
            raise Failure(
                f"group {copy!r} has committed offsets already; say --overwrite if that is meant",
                Exit.EXISTS,
            )
        admin.alter_group_offsets(copy, dict(committed))
    output.print_rows(
        ("topic", "partition", "offset"),
        [(*place, one.offset) for place, one in committed.items()],
        as_json=as_json,
    )
