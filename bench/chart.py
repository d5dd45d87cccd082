"""Plots as SVG, written by hand: lines over a scale, and bars, a few panels to a picture.

A colour says who, and is never alone in saying it: lines differ in their dashes and markers too,
and bars have their names beside them. The colours are told apart by those who see fewer of them. A
picture has a ground of its own, light or dark as the reader's system is, so that it can be read on
any page. There is nothing in it but text, lines and shapes: it is small, and a change can be seen
in a diff.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

WIDTH = 840
PANEL_HEIGHT = 260
ROW = 22
FONT = 12
#: How wide a character is, about; and how much room a value behind a bar gets.
CHARACTER = 6.7
VALUE_WIDTH = 64
GAP = 20

#: Who has which colour on a light ground, and on a dark one.
COLOURS = {
    "ottla": ("#0072b2", "#56b4e9"),
    "kafka": ("#d55e00", "#ee8844"),
    "redis": ("#a0307a", "#d987b8"),
    "aiokafka": ("#117744", "#44bb88"),
    "librdkafka": ("#666e78", "#9aa4b0"),
    "other": ("#8a6d00", "#d8b93a"),
}
DASHES = ("", "7 3", "2 3")
MARKERS = (
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0z",
    "M-3.5,-3.5h7v7h-7z",
    "M0,-4.5L4.5,3.5h-9z",
    "M0,-5L5,0L0,5L-5,0z",
    "M0,4.5L4.5,-3.5h-9z",
    "M-5,-1.5h3.5v-3.5h3v3.5h3.5v3h-3.5v3.5h-3v-3.5h-3.5z",
)
STYLE = """
text { font: 12px system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif; fill: #24292f }
.ground { fill: #ffffff } .quiet { fill: #57606a } .name { font-weight: 600 }
.grid { stroke: #d8dee4; fill: none } path.line { fill: none; stroke-width: 2 }
"""
DARK = """
text { fill: #e6edf3 } .ground { fill: #0d1117 } .quiet { fill: #9aa4b0 } .grid { stroke: #30363d }
"""


def compact(value: float) -> str:
    """Write a number in few characters."""
    for limit, suffix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:.3g}{suffix}"
    return f"{value:.3g}"


def byte_size(value: float) -> str:
    """Write a number of bytes in few characters."""
    for limit, suffix in ((1024**2, "MiB"), (1024, "KiB")):
        if value >= limit:
            return f"{value / limit:.3g} {suffix}"
    return f"{value:.0f} B"


@dataclass(frozen=True)
class Series:
    """A line: who it is of, and its points."""

    name: str
    who: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Lines:
    """A panel of lines. Both scales are logarithmic."""

    title: str
    y: str
    x: str
    series: Sequence[Series]
    #: How a place on the scale of `x` is called.
    x_name: Callable[[float], str] = compact

    def __bool__(self) -> bool:
        return bool(self.series)


@dataclass(frozen=True)
class Bar:
    """A bar: its name, who it is of, its length, and how that is written."""

    name: str
    who: str
    value: float
    text: str = ""


@dataclass(frozen=True)
class Bars:
    """A panel of bars; `unit` says what their length is."""

    title: str
    unit: str
    bars: Sequence[Bar]

    def __bool__(self) -> bool:
        return bool(self.bars)


def draw(what: str, panels: Sequence[Lines] | Sequence[Bars]) -> str:
    """Draw panels side by side, with one legend for all; `what` is for who cannot see them."""
    width = (WIDTH - GAP * (len(panels) + 1)) / len(panels)
    lines = [panel for panel in panels if isinstance(panel, Lines)]
    bars = [panel for panel in panels if isinstance(panel, Bars)]
    height = PANEL_HEIGHT if lines else max(len(panel.bars) for panel in bars) * ROW + 44
    looks = _looks(lines)
    drawn = [_lines(panel, width, looks) for panel in lines] + [_bars(each, width) for each in bars]
    placed = [
        f'<g transform="translate({GAP + at * (width + GAP):.0f},{GAP})">{body}</g>'
        for at, body in enumerate(drawn)
    ]
    legend, legend_height = _legend(looks, GAP + height) if len(looks) > 1 else ("", 0)
    total = 2 * GAP + height + legend_height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {total:.0f}" '
        f'width="{WIDTH}" height="{total:.0f}" role="img">\n'
        f"<title>{escape(what)}</title>\n<style>{STYLE}{_colours(0)}"
        f"@media (prefers-color-scheme: dark) {{{DARK}{_colours(1)}}}\n</style>\n"
        f'<rect class="ground" width="{WIDTH}" height="{total:.0f}" rx="6"/>\n'
        + "\n".join([*placed, legend])
        + "\n</svg>\n"
    )


def _colours(ground: int) -> str:
    return "".join(
        f".{who} {{ fill: {pair[ground]}; stroke: {pair[ground]} }}\n"
        for who, pair in COLOURS.items()
    )


@dataclass(frozen=True)
class _Look:
    who: str
    dash: str
    marker: str

    def line(self, points: Iterable[tuple[float, float]]) -> str:
        places = list(points)
        path = "M" + "L".join(f"{x:.1f},{y:.1f}" for x, y in places)
        dash = f' stroke-dasharray="{self.dash}"' if self.dash else ""
        markers = "".join(
            f'<path class="{self.who}" d="{self.marker}" transform="translate({x:.1f},{y:.1f})"/>'
            for x, y in places
        )
        return f'<path class="{self.who} line"{dash} d="{path}"/>{markers}'


def _looks(panels: Sequence[Lines]) -> dict[str, _Look]:
    """Say how each line looks, in all panels: one of the same who has another dash."""
    looks: dict[str, _Look] = {}
    for series in (each for panel in panels for each in panel.series):
        if series.name not in looks:
            same = sum(look.who == series.who for look in looks.values())
            marker = MARKERS[len(looks) % len(MARKERS)]
            looks[series.name] = _Look(series.who, DASHES[same % len(DASHES)], marker)
    return looks


def _legend(looks: dict[str, _Look], top: float) -> tuple[str, float]:
    x, y = float(GAP), top + 24.0
    parts = []
    for name, look in looks.items():
        width = 46 + len(name) * CHARACTER
        if x + width > WIDTH and x > GAP:
            x, y = float(GAP), y + ROW
        parts.append(look.line([(x, y), (x + 28, y)]))
        parts.append(_text(x + 36, y + 4, name))
        x += width + 10
    return "".join(parts), y - top + 4


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


# -- lines -----------------------------------------------------------------------------------------


def _lines(panel: Lines, width: float, looks: dict[str, _Look]) -> str:
    left, top, bottom = 48.0, 44.0, PANEL_HEIGHT - 38.0
    places = sorted({x for series in panel.series for x, _ in series.points})
    values = [y for series in panel.series for _, y in series.points]
    x_at = _scale(places[0], places[-1], left + 12, width - 16)
    ticks = _ticks(min(values), max(values))
    y_at = _scale(ticks[0], ticks[-1], bottom, top)
    parts = [_text(0, 12, panel.title, kind="name"), _text(0, 30, panel.y, kind="quiet")]
    for tick in ticks:
        y = y_at(tick)
        parts.append(f'<path class="grid" d="M{left:.0f},{y:.1f}H{width:.0f}"/>')
        parts.append(_text(left - 6, y + 4, compact(tick), "end", "quiet"))
    parts += [
        _text(x_at(place), bottom + 18, panel.x_name(place), "middle", "quiet") for place in places
    ]
    parts.append(_text((left + width) / 2, bottom + 36, panel.x, "middle", "quiet"))
    parts += [
        looks[series.name].line((x_at(x), y_at(y)) for x, y in series.points)
        for series in panel.series
    ]
    return "\n".join(parts)


def _scale(first: float, last: float, start: float, stop: float) -> Callable[[float], float]:
    """Give what turns a value into a place."""
    low, high = math.log10(first), math.log10(last)
    if high == low:
        return lambda _value: (start + stop) / 2
    return lambda value: start + (math.log10(value) - low) / (high - low) * (stop - start)


def _ticks(low: float, high: float) -> list[float]:
    """Give round values around some: as few as will do."""
    first, last = math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9)
    steps = (1,) if last - first > 3 else (1, 2, 5) if last - first < 2 else (1, 3)
    every = [step * 10.0**power for power in range(first, last + 1) for step in steps]
    start = max((at for at, tick in enumerate(every) if tick <= low * 1.0001), default=0)
    stop = min(at for at, tick in enumerate(every) if tick >= high * 0.9999)
    return every[start : max(stop, start + 1) + 1]


# -- bars ------------------------------------------------------------------------------------------


def _bars(panel: Bars, width: float) -> str:
    left = min(max(len(bar.name) for bar in panel.bars) * CHARACTER + 8, width * 0.65)
    longest = max(bar.value for bar in panel.bars) or 1.0
    parts = [_text(0, 12, panel.title, kind="name"), _text(0, 30, panel.unit, kind="quiet")]
    for number, bar in enumerate(panel.bars):
        y = 40 + number * ROW
        length = max(bar.value / longest * (width - left - VALUE_WIDTH), 1)
        parts.append(_text(left - 6, y + 14, bar.name, "end"))
        parts.append(
            f'<rect class="{bar.who}" x="{left:.1f}" y="{y + 3}" width="{length:.1f}" '
            f'height="{ROW - 7}" rx="2"/>'
        )
        text = bar.text or compact(bar.value)
        parts.append(_text(left + length + 6, y + 14, text, kind="quiet"))
    return "\n".join(parts)
