"""Consumer groups."""

from __future__ import annotations

from typing import Any

from chart import Lines, Series

from .parts import Drawing, Figure, Section, Table


def gather(found: dict[str, dict[str, float]]) -> Drawing:
    """Draw rebalances over the number of members."""
    members = {int(count): each for count, each in found.items()}
    return Drawing(
        [
            Lines(
                title,
                unit,
                "members",
                [Series("ottla", "ottla", [(at, value(at, each)) for at, each in members.items()])],
            )
            for title, unit, value in (
                ("a rebalance", "ms", lambda _at, each: each["best_seconds"] * 1e3),
                (
                    "broker's CPU",
                    "µs for each member",
                    lambda at, each: each["cpu_seconds"] * 1e6 / at,
                ),
            )
        ],
        [
            Table(
                ["members", "best, ms", "median, ms", "CPU, ms"],
                [
                    [
                        f"{at:,}",
                        f"{each['best_seconds'] * 1e3:,.1f}",
                        f"{each['median_seconds'] * 1e3:,.1f}",
                        f"{each['cpu_seconds'] * 1e3:,.1f}",
                    ]
                    for at, each in members.items()
                ],
            )
        ],
    )


def commit(found: dict[str, dict[str, float]]) -> Drawing:
    """Give what commits cost."""
    return Drawing(
        [],
        [
            Table(
                [
                    *("an ack means", "partitions in a commit", "under way of each member"),
                    *("commits/s", "offsets/s", "CPU, µs for a commit"),
                ],
                [
                    [
                        *(durability, count, depth),
                        f"{each['per_second']:,.0f}",
                        f"{each['per_second'] * int(count):,.0f}",
                        f"{each['cpu_seconds'] * 1e6:,.0f}",
                    ]
                    for name, each in found.items()
                    for durability, count, depth in [name.split("/")]
                ],
            )
        ],
    )


def group_start(found: list[dict[str, Any]]) -> Drawing:
    """Give what a start takes after commits."""
    return Drawing(
        [],
        [
            Table(
                [
                    *("commits before", "end", "MB on disk", "records read"),
                    *("answers, ms", "serves a group, ms", "serves all, ms"),
                ],
                [
                    [
                        f"{row['commits']:,}",
                        row["how"],
                        f"{row['bytes'] / 1e6:,.1f}",
                        f"{row['records']:,}",
                        f"{row['answers_seconds'] * 1e3:,.0f}",
                        f"{row['first_seconds'] * 1e3:,.0f}",
                        f"{row['seconds'] * 1e3:,.0f}",
                    ]
                    for row in found
                ],
            )
        ],
    )


SECTION = Section(
    "Consumer groups",
    "Members are spoken for by hand, so that it is the broker that takes the time.",
    [
        Figure(
            "A rebalance against the number of members",
            "groups",
            "gather",
            gather,
            "From the last join until everybody has their assignment.",
        ),
        Figure("Commits", "groups", "commit", commit, "Of 16 members at once."),
        Figure(
            "A start after many commits",
            "groups",
            "start",
            group_start,
            "1,000 groups of ten partitions. Old commits are compacted away.",
        ),
    ],
)
