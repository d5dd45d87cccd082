"""Spark."""

from __future__ import annotations

from typing import Any

from chart import Bars

from .parts import Drawing, Figure, Section, Table, bars

JOBS = ("count", "aggregate")


def spark_reads(found: dict[str, Any]) -> Drawing:
    """Draw rows that Spark reads in a second, and what they cost."""
    names = sorted(found["count"], key=lambda name: found["count"][name]["elapsed"])
    return Drawing(
        [
            Bars(
                job, "records/s", bars({name: 1e6 / found[job][name]["elapsed"] for name in names})
            )
            for job in JOBS
        ],
        [
            Table(
                [
                    f"{found['records']:,} records",
                    *(text for job in JOBS for text in (f"{job}, records/s", "CPU, s per million")),
                ],
                [
                    [
                        name,
                        *(
                            text
                            for job in JOBS
                            for text in (
                                f"{1e6 / found[job][name]['elapsed']:,.0f}",
                                f"{found[job][name]['cpu']:.2f}",
                            )
                        ),
                    ]
                    for name in names
                ],
            )
        ],
    )


def spark_writes(found: dict[str, Any]) -> Drawing:
    """Draw rows that Spark writes in a second, and what they cost."""
    best = found["best"]
    return Drawing(
        [Bars("write", "records/s", bars({name: 1e6 / best[name]["elapsed"] for name in best}))],
        [
            Table(
                [f"{found['records']:,} rows with keys", "records/s", "CPU, s per million"],
                [
                    [name, f"{1e6 / cost['elapsed']:,.0f}", f"{cost['cpu']:.2f}"]
                    for name, cost in best.items()
                ],
            )
        ],
    )


def micro_batches(found: dict[str, dict[str, float]]) -> Drawing:
    """Draw what a micro-batch takes."""
    steps = list(next(iter(found.values())))
    whole = {name: each["triggerExecution"] for name, each in found.items()}
    return Drawing(
        [Bars("a micro-batch of one record", "ms", bars(whole))],
        [
            Table(
                ["ms", *steps],
                [[name, *(f"{each[step]:,.0f}" for step in steps)] for name, each in found.items()],
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
            "Ours hands over Arrow batches; tuples are how sources in Python usually do it. As it "
            "comes, Spark's connector asks where a partition begins and ends after each 500 "
            "records. CPU is that of Spark, its workers and the broker.",
        ),
        Figure(
            "Writing a topic",
            "spark",
            "write",
            spark_writes,
            "Rows with a key and a value of 100 bytes, which Spark makes; acks=all.",
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
