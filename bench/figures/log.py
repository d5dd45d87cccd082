"""The log by itself."""

from __future__ import annotations

from typing import Any

from chart import Lines, Series, byte_size

from .parts import Drawing, Figure, Section, Table


def append(found: list[dict[str, Any]]) -> Drawing:
    """Draw appends beside what they are made of."""
    ways = {"log": "ottla", "pwrite": "other", "crc+pwrite": "librdkafka"}
    titles = {"log": "Log.append", "pwrite": "a bare pwrite", "crc+pwrite": "a CRC and a pwrite"}
    return Drawing(
        [
            Lines(
                title,
                unit,
                "size of a batch",
                [
                    Series(
                        titles[way],
                        looks,
                        [(row["size"], value(row["size"], row["seconds"][way])) for row in found],
                    )
                    for way, looks in ways.items()
                ],
                byte_size,
            )
            for title, unit, value in (
                ("one append", "µs", lambda _size, seconds: seconds * 1e6),
                ("throughput", "MB/s", lambda size, seconds: size / seconds / 1e6),
            )
        ],
        [
            Table(
                ["batch", *(f"{titles[way]}, µs" for way in ways), "of pwrite", "aim"],
                [
                    [
                        byte_size(row["size"]),
                        *(f"{row['seconds'][way] * 1e6:.1f}" for way in ways),
                        f"{row['seconds']['pwrite'] / row['seconds']['log']:.2f}",
                        f"{row['aim']:.2f}" if row["aim"] else "",
                    ]
                    for row in found
                ],
            )
        ],
    )


def growth(found: list[dict[str, Any]]) -> Drawing:
    """Draw costs over the length of a log."""
    ways = ("append", "read", "roll")
    return Drawing(
        [
            Lines(
                "one append, one read, one roll to another segment",
                "µs",
                "batches in the log",
                [
                    Series(
                        way,
                        colour,
                        [(row["batches"], row["seconds"][way] * 1e6) for row in found],
                    )
                    for way, colour in zip(ways, ("ottla", "aiokafka", "librdkafka"), strict=True)
                ],
            )
        ],
        [
            Table(
                ["batches", "segments", *(f"{way}, µs" for way in ways)],
                [
                    [
                        f"{row['batches']:,}",
                        f"{row['segments']:,}",
                        *(f"{row['seconds'][way] * 1e6:,.1f}" for way in ways),
                    ]
                    for row in found
                ],
            )
        ],
    )


def many_logs(found: list[dict[str, Any]]) -> Drawing:
    """Draw a start over the number of logs."""
    return Drawing(
        [
            Lines(
                title,
                unit,
                "partitions on disk",
                [Series("ottla", "ottla", [(row["logs"], value(row)) for row in found])],
            )
            for title, unit, value in (
                ("start after a clean stop", "seconds", lambda row: row["seconds"]),
                ("memory", "MB more", lambda row: max(row["bytes"], 1e3) / 1e6),
            )
        ],
        [
            Table(
                ["partitions", "seconds", "µs for each", "MB more", "KB for each"],
                [
                    [
                        f"{row['logs']:,}",
                        f"{row['seconds']:.3f}",
                        f"{row['seconds'] / row['logs'] * 1e6:.0f}",
                        f"{row['bytes'] / 1e6:.1f}",
                        f"{row['bytes'] / row['logs'] / 1e3:.1f}",
                    ]
                    for row in found
                ],
            )
        ],
    )


def reading(found: dict[str, Any]) -> Drawing:
    """Give what reads cost."""
    whole = found["sequential"]
    rates = {way: whole["bytes"] / seconds / 1e6 for way, seconds in whole["seconds"].items()}
    return Drawing(
        [],
        [
            Table(
                ["in slices of 1 MiB, read and sent", "MB/s"],
                [
                    ["the log", f"{rates['log']:,.0f}"],
                    ["a map of the file, and nothing else", f"{rates['bare']:,.0f}"],
                ],
            ),
            Table(
                ["one Log.read, at changing offsets", "µs"],
                [[name, f"{each * 1e6:.1f}"] for name, each in found["call_seconds"].items()],
            ),
        ],
    )


def recovery(found: dict[str, Any]) -> Drawing:
    """Give how fast a log is looked through after a crash."""
    rates = {way: found["bytes"] / each / 1e6 for way, each in found["seconds"].items()}
    return Drawing(
        [],
        [
            Table(
                ["looked through", "MB/s"],
                [
                    ["the log, after a crash", f"{rates['log']:,.0f}"],
                    ["a CRC over the same reads", f"{rates['bare']:,.0f}"],
                ],
            )
        ],
    )


SECTION = Section(
    "The log",
    "Everything in page-cache mode and warm: nothing waits for the device.",
    [
        Figure(
            "An append beside its system calls",
            "log",
            "append",
            append,
            "`Log.append` checks the CRC, gives offsets, and keeps the indexes.",
        ),
        Figure(
            "Cost against the length of a log",
            "log",
            "growth",
            growth,
            "Batches of 1 KiB in small segments: a long log must not cost more than a short one.",
        ),
        Figure(
            "Start against the number of partitions",
            "log",
            "load",
            many_logs,
            "Each has one small batch.",
        ),
        Figure("Reads", "log", "read", reading, "A fetch sends what it reads."),
        Figure("Recovery", "log", "recovery", recovery, "Batches of 16 KiB."),
    ],
)
