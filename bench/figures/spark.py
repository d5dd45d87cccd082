"""Spark."""

from __future__ import annotations

from typing import Any

from chart import Bars

from .parts import Drawing, Figure, Section, Table, bars


def spark_reads(found: dict[str, Any]) -> Drawing:
    """Draw rows that Spark reads in a second."""
    jobs = found["rates"]
    names = sorted({name for rates in jobs.values() for name in rates})
    return Drawing(
        [
            Bars(job, "records/s", bars({name: rates[name] for name in names if name in rates}))
            for job, rates in jobs.items()
        ],
        [
            Table(
                [f"{found['records']:,} records, records/s", *jobs],
                [
                    [name, *(f"{rates.get(name, 0):,.0f}" for rates in jobs.values())]
                    for name in names
                ],
            )
        ],
    )


def micro_batches(found: dict[str, dict[str, float]]) -> Drawing:
    """Draw what a micro-batch takes."""
    names = {"ottla": "ottla", "kafka": "Spark's connector"}
    steps = list(next(iter(found.values())))
    whole = {names.get(kind, kind): each["triggerExecution"] for kind, each in found.items()}
    return Drawing(
        [Bars("a micro-batch of one record", "ms", bars(whole))],
        [
            Table(
                ["ms", *steps],
                [
                    [names.get(kind, kind), *(f"{each[step]:,.0f}" for step in steps)]
                    for kind, each in found.items()
                ],
            )
        ],
    )


SECTION = Section(
    "Spark",
    "One session with two cores reads records of 100 bytes in six partitions from ottla.",
    [
        Figure(
            "Reading a topic",
            "spark",
            "read",
            spark_reads,
            "Ours hands over Arrow batches; tuples are how sources in Python usually do it.",
        ),
        Figure(
            "A micro-batch",
            "spark",
            "batches",
            micro_batches,
            "One record for each batch of a stream into nothing: what a batch takes that has "
            "nothing to do.",
        ),
    ],
)
