"""Several brokers."""

from __future__ import annotations

from typing import Any

from chart import Bars, Lines, Series

from .parts import Drawing, Figure, Section, Table, bars


def throughput(found: list[dict[str, Any]]) -> Drawing:
    """Draw what one broker and several take and give, and what that costs them."""
    rows = {f"{row['verb']}, {row['partitions']} partitions": row for row in found}
    first = found[0]["acks"]
    return Drawing(
        [
            Bars(
                title,
                "brokers' CPU, s per million",
                bars({label: best["server_cpu"] * 1e6 for label, best in row["best"].items()}),
            )
            for title, row in rows.items()
            if row["acks"] == first or row["verb"] == "consume"
        ],
        [
            Table(
                [
                    f"{row['verb']}, {row['partitions']} partitions, acks={row['acks']}",
                    *("records/s", "brokers' CPU, s per million"),
                    *("brokers' cores", "client's cores"),
                ],
                [
                    [
                        label,
                        f"{best['records_per_second']:,.0f}",
                        f"{best['server_cpu'] * 1e6:.2f}",
                        f"{best['server_cores']:.2f}",
                        f"{best['client_cores']:.2f}",
                    ]
                    for label, best in row["best"].items()
                ],
            )
            for row in found
        ],
    )


def create(found: list[dict[str, Any]]) -> Drawing:
    """Give how soon a new topic is everywhere."""
    return Drawing(
        [],
        [
            Table(
                [
                    *("a topic is created", "partitions", "answered, ms", "p95"),
                    *("seen by all brokers, ms", "p95"),
                ],
                [
                    [
                        f"{row['label']}, by {row['way']}",
                        f"{row['partitions']}",
                        *(f"{row['answered'][name] * 1e3:.1f}" for name in ("p50", "p95")),
                        *(f"{row['seen'][name] * 1e3:.1f}" for name in ("p50", "p95")),
                    ]
                    for row in found
                ],
            )
        ],
    )


def metadata(found: list[dict[str, Any]]) -> Drawing:
    """Draw answers over the number of partitions."""
    measures = {
        "all topics": lambda row: row["all"]["p50"],
        "one topic": lambda row: row["one"]["p50"],
        "CPU, all topics": lambda row: row["cpu_seconds"],
    }
    return Drawing(
        [
            Lines(
                "an answer to Metadata",
                "ms",
                "partitions",
                [
                    Series(name, who, [(row["partitions"], value(row) * 1e3) for row in found])
                    for (name, value), who in zip(
                        measures.items(), ("ottla", "librdkafka", "other"), strict=True
                    )
                ],
            )
        ],
        [
            Table(
                [
                    *("partitions", "bytes", "all topics, ms", "CPU, ms"),
                    *("another client waits, ms", "one topic, ms", "librdkafka's list, ms"),
                ],
                [
                    [
                        f"{row['partitions']:,}",
                        f"{row['bytes']:,}",
                        f"{row['all']['p50'] * 1e3:.1f}",
                        f"{row['cpu_seconds'] * 1e3:.1f}",
                        f"{row['waits']['p50'] * 1e3:.1f}",
                        f"{row['one']['p50'] * 1e3:.2f}",
                        f"{row['listed_seconds'] * 1e3:.1f}",
                    ]
                    for row in found
                ],
            )
        ],
    )


SECTION = Section(
    "A cluster",
    "Three brokers beside one, on the same cores as their client: what they cost can be seen, and"
    " what machines of their own would gain cannot.",
    [
        Figure(
            "One broker and three",
            "cluster",
            "throughput",
            throughput,
            "librdkafka sends each batch to the owner of its partition. Smaller batches for each"
            " broker are more requests for all.",
        ),
        Figure(
            "How soon a topic is everywhere",
            "cluster",
            "create",
            create,
            "Every broker is asked again and again, from the request on. The median, and the 95th"
            " percentile.",
        ),
        Figure(
            "Metadata against the number of partitions",
            "cluster",
            "metadata",
            metadata,
            "Three brokers, topics of 100 partitions each.",
        ),
    ],
)
