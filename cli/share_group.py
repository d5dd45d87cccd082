"""Share groups in `ottla group …`: their start offsets instead of committed ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import output
from .errors import Exit, Failure

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ottla.client.admin import GroupDescription, ShareOffset
    from ottla.client.blocking import Admin
    from ottla.client.types import TopicPartition

_SHARE = "share"


def is_share(admin: Admin, group: str) -> bool:
    """Whether a group is a share group; one that does not exist is not."""
    return any(one.group_id == group and one.type == _SHARE for one in admin.list_groups())


def is_share_description(description: GroupDescription) -> bool:
    """Whether a description is that of a share group."""
    return description.type == _SHARE


def start_offsets(admin: Admin, group: str) -> dict[TopicPartition, int]:
    """Return the start offsets of a share group that are known."""
    return {
        tp: one.start_offset
        for tp, one in admin.list_share_group_offsets(group).items()
        if one.start_offset is not None
    }


def total_lag(offsets: Mapping[TopicPartition, ShareOffset]) -> int:
    """Return the records still to be finished."""
    return sum(one.lag or 0 for one in offsets.values())


def partitions_json(
    description: GroupDescription, offsets: Mapping[TopicPartition, ShareOffset]
) -> list[dict[str, Any]]:
    """Return the partitions of a share group as JSON: several members may have each."""
    return [
        {
            "topic": tp.topic,
            "partition": tp.partition,
            "start_offset": one.start_offset,
            "lag": one.lag,
            "member_ids": [
                member.member_id for member in description.members if tp in member.assignment
            ],
        }
        for tp, one in offsets.items()
    ]


def print_partitions(
    description: GroupDescription, offsets: Mapping[TopicPartition, ShareOffset]
) -> None:
    """Print the partitions and the members of a share group."""
    output.print_table(
        ("topic", "partition", "start offset", "lag", "members"),
        (
            (
                *tp,
                one.start_offset,
                one.lag,
                sum(tp in member.assignment for member in description.members),
            )
            for tp, one in offsets.items()
        ),
    )
    if description.members:
        output.print_table(
            ("member", "host", "client id", "partitions"),
            (
                (member.member_id, member.host, member.client_id, len(member.assignment))
                for member in description.members
            ),
        )


def delete_offsets(admin: Admin, group: str, topics: tuple[str, ...]) -> list[str]:
    """Return the topics to delete from a share group. Raises Failure if it reads none of them."""
    if any(":" in topic for topic in topics):
        raise click.UsageError(f"{group} is a share group: name whole topics, without partitions")
    known = {tp.topic for tp in admin.list_share_group_offsets(group)}
    found = [topic for topic in dict.fromkeys(topics) if topic in known]
    if not found:
        raise Failure(f"Group {group!r} has no start offsets for these topics", Exit.NOT_FOUND)
    return found
