"""Draws the panels of a figure side by side as SVG, with matplotlib.

A contender has the same color in every figure; color is never the only difference: lines differ in
dashes and markers too, and bars have labels. Text stays text and nothing depends on the date, so
the files are small and their diffs readable.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from itertools import count

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from figures import Bars, Lines, compact

WIDTH_INCHES = 8.8
#: Colors by prefix of a label; they differ for color-blind readers, too.
COLORS = {
    "kafka-python": "#a0307a",
    "kafka": "#d55e00",
    "Spark": "#d55e00",
    "redis": "#a0307a",
    "aiokafka": "#117744",
    "confluent": "#666e78",
    "mock": "#666e78",
    "ottla": "#0072b2",
}
OTHER_COLORS = ("#0072b2", "#8a6d00", "#117744", "#666e78")
DASHES = ("-", "--", ":")
MARKERS = "os^Dv<"
STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ottla",
    "font.size": 9,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#d8dee4",
    "axes.labelcolor": "#57606a",
    "grid.color": "#d8dee4",
    "xtick.color": "#57606a",
    "ytick.color": "#57606a",
}


def color_of(label: str, fallback: int = 0) -> str:
    """Return the color of a contender."""
    other = OTHER_COLORS[fallback % len(OTHER_COLORS)]
    return next((color for prefix, color in COLORS.items() if label.startswith(prefix)), other)


def draw(title: str, panels: Sequence[Bars | Lines]) -> str:
    """Return the SVG of panels side by side, with one legend for all lines."""
    longest = max(len(panel.values) for panel in panels)
    height = 3.4 if isinstance(panels[0], Lines) else 0.9 + 0.25 * longest
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
        for axes, panel in zip(
            figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True
        ):
            axes.set_title(panel.title, fontsize=10 if len(panels) < 4 else 8)
            if isinstance(panel, Bars):
                _draw_bars(axes, panel)
            else:
                _draw_lines(axes, panel)
        if isinstance(panels[0], Lines) and longest > 1:
            handles, labels = figure.axes[0].get_legend_handles_labels()
            figure.legend(handles, labels, loc="outside lower left", ncols=4, frameon=False)
        output = io.StringIO()
        figure.savefig(output, format="svg", metadata={"Title": title, "Date": None})
    return "\n".join(line.rstrip() for line in output.getvalue().splitlines()) + "\n"


def _draw_bars(axes: Axes, panel: Bars) -> None:
    labels, values = list(panel.values), list(panel.values.values())
    drawn = axes.barh(labels, values, color=[color_of(label) for label in labels], height=0.7)
    axes.bar_label(drawn, [compact(value) for value in values], padding=3, color="#57606a")
    axes.invert_yaxis()
    axes.set_xlabel(panel.unit)
    axes.set_xticks([])
    axes.margins(x=0.2)
    axes.tick_params(axis="y", length=0, labelcolor="#24292f")
    axes.spines["bottom"].set_visible(False)


def _draw_lines(axes: Axes, panel: Lines) -> None:
    dashes: dict[str, count[int]] = {}
    for number, (label, points) in enumerate(panel.values.items()):
        color = color_of(label, number)
        dash = DASHES[next(dashes.setdefault(color, count())) % len(DASHES)]
        x, y = zip(*points, strict=True)
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(x, y, dash, color=color, marker=marker, markersize=5, label=label)
    axes.set_xscale("log")
    axes.set_yscale("log")
    positions = sorted({x for points in panel.values.values() for x, _ in points})
    axes.set_xticks(positions, [panel.x_format(x) for x in positions])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(which="minor", length=0)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _position: compact(value)))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.grid(axis="y")
    axes.set_xlabel(panel.x_label)
    axes.set_ylabel(panel.unit)
