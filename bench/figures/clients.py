"""Clients beside one another."""

from __future__ import annotations

from typing import Any

from chart import Bars

from .parts import Drawing, Figure, Section, Table, bars, imports


def clients(found: list[dict[str, Any]]) -> Drawing:
    """Draw what clients do in a second, and what CPU they take for it."""
    plain = found[0]["best"]
    return Drawing(
        [
            Bars(
                "throughput",
                "records/s",
                bars({label: each["records_per_second"] for label, each in plain.items()}),
            ),
            Bars(
                "the client's CPU",
                "seconds for a million records",
                bars({label: each["client_cpu"] * 1e6 for label, each in plain.items()}),
            ),
        ],
        [
            Table(
                [
                    f"{row['verb']}{row['load']}",
                    *("records/s", "slowest round", "client's CPU s for a million"),
                    *("broker's", "client's memory, MB"),
                ],
                [
                    [
                        label,
                        f"{each['records_per_second']:,.0f}",
                        f"−{each['spread']:.0%}",
                        f"{each['client_cpu'] * 1e6:.2f}",
                        f"{each['server_cpu'] * 1e6:.2f}",
                        f"{each['anonymous'] / 1e6:,.0f}",
                    ]
                    for label, each in row["best"].items()
                ],
            )
            for row in found
        ],
    )


SECTION = Section(
    "Clients, all on a broker of ours",
    "Six partitions, values of 100 bytes, acks=all and idempotence where there is such a "
    "thing; each run is a process of its own. Topics are not synced before an ack.",
    [
        Figure(
            "Produce",
            "client",
            "produce",
            clients,
            "Until the last receipt has been looked at: one for each record, or one for all "
            "(send_many, send_arrow).",
        ),
        Figure(
            "Consume",
            "client",
            "consume",
            clients,
            "From the assignment to the last record; the length of each value is looked at.",
        ),
        Figure("Imports of clients", "client", "imports", imports, "With all they need."),
    ],
)
