"""Codecs by themselves."""

from __future__ import annotations

from typing import Any

from chart import Bars

from .parts import Drawing, Figure, Section, Table, bars, imports


def shapes(found: list[dict[str, Any]]) -> Drawing:
    """Draw records to bytes and back."""
    ways = {"compiled": "ottla", "python": "ottla, in Python alone", "aiokafka": "aiokafka"}
    first = found[0]["shape"]
    return Drawing(
        [
            Bars(
                f"{row['task']}, values of {row['shape']}",
                "records/s",
                bars({name: row[way] for way, name in ways.items()}),
            )
            for row in found
            if row["shape"] == first
        ],
        [
            Table(
                ["records/s", "", *ways.values()],
                [
                    [row["shape"], row["task"], *(f"{row[way]:,.0f}" for way in ways)]
                    for row in found
                ],
            )
        ],
    )


def messages(found: list[dict[str, Any]]) -> Drawing:
    """Give what messages cost."""
    ways = {"hand": "by hand", "compiled": "compiled", "construct": "construct"}
    return Drawing(
        [],
        [
            Table(
                ["µs for a message", "", *ways.values(), "compiled / by hand"],
                [
                    [
                        row["message"].replace("_", " "),
                        row["way"],
                        *(f"{row[way] * 1e6:,.1f}" for way in ways),
                        f"{row['compiled'] / row['hand']:.2f}",
                    ]
                    for row in found
                ],
            )
        ],
    )


SECTION = Section(
    "The wire",
    "The codecs by themselves, without sockets and files.",
    [
        Figure(
            "Records",
            "records",
            "shapes",
            shapes,
            "To bytes, to objects and to Arrow, CRC checked, in batches of 1,000 or alone.",
        ),
        Figure(
            "Messages",
            "codec",
            "messages",
            messages,
            "Topics × partitions, 16 KiB of records in each. By hand is straight struct code, "
            "which gives bare tuples; construct is what the codecs are compiled from.",
        ),
        Figure(
            "Imports of the protocol",
            "imports",
            "imports",
            imports,
            "Beyond what its dependencies take. A codec is compiled when it is first used.",
        ),
    ],
)
