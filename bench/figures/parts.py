"""What figures are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from chart import Bar, Bars, Lines, compact

NAMES = {"kafka": "Apache Kafka", "redis": "Redis", "ottla": "ottla"}
#: By what names of contenders begin with: who they are.
WHO = {
    "kafka-python": "redis",  # no figure has both
    "kafka": "kafka",
    "Spark": "kafka",
    "redis": "redis",
    "aiokafka": "aiokafka",
    "confluent": "librdkafka",
    "mock": "librdkafka",
    "ottla": "ottla",
}
#: A percentile as one in so many, which a logarithmic scale shows as it should be.
ONE_IN = {"p50": 2, "p90": 10, "p99": 100, "p99.9": 1000}


class Table(NamedTuple):
    """A table, of which the first column is to the left."""

    header: list[str]
    rows: list[list[str]]


class Drawing(NamedTuple):
    """What is to be seen of a figure."""

    panels: Sequence[Lines] | Sequence[Bars]
    tables: Sequence[Table]


class Figure(NamedTuple):
    """One figure: what it is called, which part of which script it is from, and what it shows."""

    title: str
    bench: str
    part: str
    make: Callable[[Any], Drawing]
    text: str

    @property
    def plot(self) -> str:
        """The name of the file with its plot."""
        return self.title.lower().replace(" ", "-") + ".svg"


class Section(NamedTuple):
    """Figures that are read together."""

    title: str
    text: str
    figures: list[Figure]


def who(label: str) -> str:
    """Tell who a contender is."""
    return next((found for start, found in WHO.items() if label.startswith(start)), "other")


def bars(values: Mapping[str, float], write: Callable[[float], str] = compact) -> list[Bar]:
    """Give a bar for each contender."""
    return [Bar(label, who(label), value, write(value)) for label, value in values.items()]


def labels_of(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Give the contenders of some rows, each once."""
    return list(dict.fromkeys(label for row in rows for label in row["best"]))


def imports(found: dict[str, Any]) -> Drawing:
    """Give what imports cost."""
    return Drawing(
        [],
        [
            Table(
                ["import", "ms", "MB"],
                [[name, f"{row['ms']:.0f}", f"{row['mb']:.1f}"] for name, row in found.items()],
            )
        ],
    )
