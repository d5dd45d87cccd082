"""Metric families, and how they are written for Prometheus: its text format, and OpenMetrics.

Samples are kept as the lines that they become. That is several times cheaper than an object per
sample, which counts for a broker with thousands of partitions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import accumulate

from .metrics import Histogram

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
#: The last line of OpenMetrics.
END = "# EOF\n"

_ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class Family:
    """A metric with its samples: one for each combination of its labels."""

    type = "gauge"
    _suffix = ""

    def __init__(
        self, name: str, doc: str, value: float | None = None, *, labels: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.doc = doc
        self._labels = labels
        self.lines: list[str] = []
        if value is not None:
            self.add((), value)

    def add(self, values: Iterable[object], value: float) -> None:
        """Add a sample with the values of its labels."""
        self.add_labelled(label_text(self._labels, values), value)

    def add_labelled(self, labels: str, value: float) -> None:
        """Add a sample with the `label_text` of its labels, which several families may share."""
        # Not as True; an int and a float print as they are.
        value = int(value) if isinstance(value, bool) else value
        self.lines.append(f"{self.name}{self._suffix}{labels} {value}\n")

    def header(self, *, is_openmetrics: bool) -> str:
        """Return the lines above the samples. In the text format, counters end in `_total`."""
        name = self.name if is_openmetrics else self.name + self._suffix
        return f"# HELP {name} {self.doc}\n# TYPE {name} {self.type}\n"


class Gauge(Family):
    """A value that goes up and down."""


class Counter(Family):
    """A count of events since the start. Its name is without `_total`."""

    type = "counter"
    _suffix = "_total"


class HistogramFamily(Family):
    """Histograms: how many observations were up to each bound."""

    type = "histogram"

    def add_histogram(self, values: Iterable[object], histogram: Histogram) -> None:
        """Add the samples of a histogram."""
        labels = label_text(self._labels, values)
        prefix = f"{labels[:-1]}," if labels else "{"
        counts = list(accumulate(histogram.counts))
        self.lines += [
            f'{self.name}_bucket{prefix}le="{bound}"}} {count}\n'
            for bound, count in zip((*histogram.bounds, "+Inf"), counts, strict=True)
        ]
        self.lines.append(f"{self.name}_count{labels} {counts[-1]}\n")
        self.lines.append(f"{self.name}_sum{labels} {histogram.sum}\n")


def label_text(names: Iterable[str], values: Iterable[object]) -> str:
    """Return labels as they are written: `{topic="orders",partition="0"}`."""
    pairs = [
        f'{name}="{str(value).translate(_ESCAPES)}"'
        for name, value in zip(names, values, strict=True)
    ]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def accepts_openmetrics(accept: str) -> bool:
    """Whether a scraper prefers OpenMetrics, according to its Accept header."""
    kinds = [kind.partition(";")[0].strip() for kind in accept.split(",")]
    return "application/openmetrics-text" in kinds


def render(families: Iterable[Family], *, is_openmetrics: bool) -> Iterator[str]:
    """Yield the text of families."""
    for family in families:
        yield family.header(is_openmetrics=is_openmetrics)
        yield "".join(family.lines)
    if is_openmetrics:
        yield END
