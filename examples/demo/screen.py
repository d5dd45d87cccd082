"""Counters, and a screen that shows them: a live table, or a line every few seconds in a pipe."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

#: Between two updates of the table, and between two lines.
REFRESH_SECONDS, LINE_SECONDS = 0.25, 5.0
SPARKLINE_LENGTH = 30
_SPARKLINE = "▁▂▃▄▅▆▇█"


@dataclass
class Counter:
    """A growing number and its rate, which is sampled at irregular times."""

    name: str
    total: int = 0
    remark: str = ""
    #: The rate is that of this time span.
    window_seconds: float = 2.0
    rates: deque[float] = field(default_factory=lambda: deque(maxlen=SPARKLINE_LENGTH))
    _samples: deque[tuple[float, int]] = field(default_factory=deque)

    @property
    def rate(self) -> float:
        """Growth per second at the last sample."""
        return self.rates[-1] if self.rates else 0.0

    @property
    def sparkline(self) -> str:
        """The last rates as bars."""
        highest = max(self.rates, default=0.0) or 1.0
        return "".join(_SPARKLINE[round(rate / highest * 7)] for rate in self.rates)

    def sample(self) -> None:
        """Update the rate."""
        now = time.monotonic()
        self._samples.append((now, self.total))
        while now - self._samples[0][0] > self.window_seconds:
            self._samples.popleft()
        since, before = self._samples[0]
        if now > since:
            self.rates.append((self.total - before) / (now - since))


class Screen:
    """Shows counters for some time."""

    def __init__(self, counters: Sequence[Counter], seconds: float) -> None:
        self._counters = counters
        self._seconds = seconds
        self._start = time.monotonic()
        self._console = Console(highlight=False)
        self._live: Live | None = None
        self._next_line = 0.0

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show the counters; the last state stays on the terminal."""
        self._start = time.monotonic()
        if not self._console.is_terminal:
            yield
            return
        with Live(self._table(), console=self._console, auto_refresh=False) as self._live:
            yield

    def draw(self) -> None:
        """Show the current state."""
        for counter in self._counters:
            counter.sample()
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif self.elapsed >= self._next_line:
            self._next_line = self.elapsed + LINE_SECONDS
            rates = ", ".join(f"{each.name} {each.rate:,.0f}/s" for each in self._counters)
            self._console.print(f"{self.elapsed:3.0f} s  {rates}", soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, title_justify="left", header_style="bold")
        table.add_column("", min_width=12)
        table.add_column("rate", justify="right", min_width=10)
        table.add_column("", min_width=30, style="cyan")
        table.add_column("total", justify="right", min_width=10)
        table.add_column("", style="dim", overflow="ellipsis", no_wrap=True)
        for counter in self._counters:
            row = f"{counter.rate:,.0f}/s", counter.sparkline, f"{counter.total:,}", counter.remark
            table.add_row(counter.name, *row)
        bar = ProgressBar(total=self._seconds, completed=min(self.elapsed, self._seconds), width=30)
        table.add_section()
        table.add_row("", f"{self.elapsed:.0f} s", bar, f"of {self._seconds:.0f} s", "")
        return table
