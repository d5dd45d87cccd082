"""`ottla group …`: list, describe, clone and delete consumer groups and share groups."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from . import output, share_group
from .available import reason_of, unavailable, warn_of
from .completion import complete_groups
from .errors import Exit, Failure
from .outcomes import Outcomes
from .target import Target, connected, json_option
from .topic import confirm, yes_option

if TYPE_CHECKING:
    from ottla.client.admin import (
        GroupDescription,
        MemberDescription,
        PartitionLag,
        ShareOffset,
    )
    from ottla.client.blocking import Admin
    from ottla.client.types import TopicPartition

group_argument = click.argument("group", shell_complete=complete_groups)
_groups = click.argument(
    "groups", metavar="GROUP...", nargs=-1, required=True, shell_complete=complete_groups
)


@click.group()
def group() -> None:
    """List, describe, reset and delete consumer groups and share groups."""


@group.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    help="Only groups in this state (Stable, Empty, …); repeatable.",
)
@click.option("-q", "--quiet", is_flag=True, help="Print names only, one per line.")
@json_option
@connected
def list_groups(target: Target, states: tuple[str, ...], quiet: bool, as_json: bool) -> None:
    """List the groups of all brokers.

    \b
        ottla group list
        ottla group list --state Stable --quiet
    """
    with target.admin() as admin:
        groups = admin.list_groups(states=states)
    if quiet and not as_json:
        click.echo("".join(f"{group.group_id}\n" for group in groups), nl=False)
        return
    output.print_rows(
        ("group", "state", "protocol_type", "type", "coordinator"),
        [
            (group.group_id, group.state, group.protocol_type, group.type, group.coordinator)
            for group in groups
        ],
        as_json=as_json,
    )


@group.command("describe")
@_groups
@click.option("-w", "--watch", is_flag=True, help="Show them again and again, until Ctrl-C.")
@click.option(
    "--interval",
    metavar="SECONDS",
    type=click.FloatRange(0, min_open=True),
    default=2.0,
    show_default=True,
    help="Interval of --watch.",
)
@json_option
@connected
def describe_groups(
    target: Target, groups: tuple[str, ...], watch: bool, interval: float, as_json: bool
) -> None:
    """Show the members, committed offsets and lag of groups.

    Share groups have start offsets: the first record that is not finished.

    \b
        ottla group describe billing
        ottla group describe billing --watch --interval 5
    """
    with target.admin() as admin:
        while True:
            outcomes = Outcomes("group", groups)
            descriptions = {
                name: found
                for name, found in outcomes.attempt(admin.describe_groups).items()
                if found
            }
            missing = 0
            lags = {}
            shares = {}
            for name, description in descriptions.items():
                if share_group.is_share_description(description):
                    shares[name] = admin.list_share_group_offsets(name)
                else:
                    lags[name], failed = _lag(admin, name)
                    missing += failed
            if watch and not as_json and sys.stdout.isatty():
                click.clear()
            if as_json:
                output.print_json(
                    [
                        _share_as_json(one, shares[name])
                        if name in shares
                        else _as_json(one, lags[name])
                        for name, one in descriptions.items()
                    ]
                )
            else:
                for name, description in descriptions.items():
                    if name in shares:
                        _print_share(description, shares[name])
                    else:
                        _print_description(description, lags[name])
            if not watch or not descriptions:
                outcomes.finish()
                if missing:
                    raise unavailable(missing, sum(map(len, lags.values())), Exit.PARTIAL)
                return
            sys.stdout.flush()
            time.sleep(interval)


def _lag(admin: Admin, group: str) -> tuple[dict[TopicPartition, PartitionLag], int]:
    """Return the lag of a group, and the number of partitions whose leader does not answer."""
    from ottla.client.admin import PartialError

    try:
        return admin.group_lag(group), 0
    except PartialError as error:
        for tp, reason in error.failed.items():
            warn_of(tp, reason_of(reason))
        return error.done, len(error.failed)


def _total(lags: dict[TopicPartition, PartitionLag]) -> int:
    return sum(partition.lag or 0 for partition in lags.values())


def _as_json(
    description: GroupDescription, lags: dict[TopicPartition, PartitionLag]
) -> dict[str, Any]:
    assigned_to = _assignments(description)
    partitions = [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "offset": lag.committed,
            "end": lag.end,
            "lag": lag.lag,
            "metadata": lag.metadata,
            "member_id": assigned_to[tp].member_id if tp in assigned_to else None,
        }
        for tp, lag in lags.items()
    ]
    return _group_as_json(description, _total(lags), partitions)


def _share_as_json(
    description: GroupDescription, offsets: dict[TopicPartition, ShareOffset]
) -> dict[str, Any]:
    partitions = share_group.partitions_json(description, offsets)
    return _group_as_json(description, share_group.total_lag(offsets), partitions)


def _group_as_json(
    description: GroupDescription, lag: int, partitions: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "group": description.group_id,
        "state": description.state,
        "protocol_type": description.protocol_type,
        "type": description.type,
        "assignor": description.assignor,
        "epoch": description.epoch,
        "assignment_epoch": description.assignment_epoch,
        "coordinator": description.coordinator,
        "lag": lag,
        "partitions": partitions,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "type": member.type,
                "epoch": member.epoch,
                "topics": member.topics,
                "regex": member.regex,
                "partitions": [
                    {"topic": tp.topic, "partition": tp.partition} for tp in member.assignment
                ],
            }
            for member in description.members
        ],
    }


def _assignments(description: GroupDescription) -> dict[TopicPartition, MemberDescription]:
    return {tp: member for member in description.members for tp in member.assignment}


def _epochs(description: GroupDescription) -> str | None:
    """Return the group epoch, and how far the assignment is behind; None for a classic group."""
    if description.epoch == description.assignment_epoch:
        return None if description.epoch is None else str(description.epoch)
    return f"{description.epoch} (assignment {description.assignment_epoch})"


def _print_share(description: GroupDescription, offsets: dict[TopicPartition, ShareOffset]) -> None:
    _print_facts(description, share_group.total_lag(offsets))
    share_group.print_partitions(description, offsets)


def _print_facts(description: GroupDescription, lag: int) -> None:
    output.print_facts(
        {
            "group": description.group_id,
            "state": description.state,
            "type": description.type,
            "assignor": description.assignor or None,
            "epoch": _epochs(description),
            "coordinator": description.coordinator,
            "members": len(description.members),
            "lag": lag,
        }
    )


def _print_description(
    description: GroupDescription, lags: dict[TopicPartition, PartitionLag]
) -> None:
    assigned_to = _assignments(description)
    _print_facts(description, _total(lags))
    output.print_table(
        ("topic", "partition", "offset", "end", "lag", "member", "host"),
        (
            (
                *tp,
                lag.committed,
                lag.end,
                lag.lag,
                assigned_to[tp].member_id if tp in assigned_to else None,
                assigned_to[tp].host if tp in assigned_to else None,
            )
            for tp, lag in lags.items()
        ),
    )
    behind = [
        member
        for member in description.members
        if member.epoch is not None and member.epoch != description.assignment_epoch
    ]
    if behind:
        output.print_table(
            ("member in a rebalance", "epoch", "partitions to come"),
            (
                (
                    member.member_id,
                    member.epoch,
                    ", ".join(map(str, sorted({*member.target} - {*member.assignment}))) or None,
                )
                for member in behind
            ),
        )
    idle = [member for member in description.members if not member.assignment]
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
    """Delete groups that have no members.

    Their committed offsets are deleted too; of share groups, the start offsets.

    \b
        ottla group delete billing --yes
    """
    outcomes = Outcomes("group", groups)
    with target.admin() as admin:
        names = list(outcomes.attempt(admin.describe_groups))
        if names:
            confirm(f"delete {', '.join(names)} and their offsets", yes)
            for name in outcomes.attempt(admin.delete_groups, names):
                outcomes.succeed(name, "deleted", outcome="deleted")
    outcomes.print(as_json=as_json)


@group.command("clone")
@click.argument("source", shell_complete=complete_groups)
@click.argument("copy")
@click.option("--overwrite", is_flag=True, help="Replace committed offsets of COPY.")
@json_option
@connected
def clone_group(target: Target, source: str, copy: str, overwrite: bool, as_json: bool) -> None:
    """Copy the committed offsets of SOURCE to the group COPY.

    \b
        ottla group clone billing billing-experiment
    """
    with target.admin() as admin:
        admin.describe_groups(source)
        committed = admin.list_group_offsets(source)
        if not committed:
            raise Failure(f"Group {source!r} has no committed offsets", Exit.NOT_FOUND)
        if not overwrite and admin.list_group_offsets(copy):
            raise Failure(
                f"Group {copy!r} already has committed offsets; replace them with --overwrite",
                Exit.EXISTS,
            )
        admin.alter_group_offsets(copy, dict(committed))
    output.print_rows(
        ("topic", "partition", "offset"),
        [(*tp, offset.offset) for tp, offset in committed.items()],
        as_json=as_json,
    )
