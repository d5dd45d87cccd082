"""Shows counts: as a table that changes, or where there is no terminal as a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rates import Count
from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

LIVELY_SECONDS, CALM_SECONDS = 0.25, 5.0


class Screen:
    """Shows counts for a while."""

    def __init__(self, counts: Sequence[Count], seconds: float) -> None:
        self._counts = counts
        self._seconds = seconds
        self._began = time.monotonic()
        self._console = Console(highlight=False)
        self._live: Live | None = None
        self._next_line = 0.0

    @property
    def elapsed(self) -> float:
        """How long it has been shown."""
        return time.monotonic() - self._began

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Show counts from now on; the last that was seen of them stays."""
        self._began = time.monotonic()
        if not self._console.is_terminal:
            yield
            return
        with Live(self._table(), console=self._console, auto_refresh=False) as self._live:
            yield

    def draw(self) -> None:
        """Show how things are now."""
        for count in self._counts:
            count.look()
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
        elif self.elapsed >= self._next_line:
            self._next_line = self.elapsed + CALM_SECONDS
            figures = ", ".join(f"{count.name} {count.rate:,.0f}/s" for count in self._counts)
            self._console.print(f"{self.elapsed:3.0f} s  {figures}", soft_wrap=True)

    def _table(self) -> Table:
        table = Table(box=None, pad_edge=False, title_justify="left", header_style="bold")
        table.add_column("", min_width=12)
        table.add_column("now", justify="right", min_width=10)
        table.add_column("", min_width=30, style="cyan")
        table.add_column("in all", justify="right", min_width=10)
        table.add_column("", style="dim", overflow="ellipsis", no_wrap=True)
        for count in self._counts:
            row = f"{count.rate:,.0f}/s", count.curve, f"{count.total:,}", count.remark
            table.add_row(count.name, *row)
        bar = ProgressBar(total=self._seconds, completed=min(self.elapsed, self._seconds), width=30)
        table.add_section()
        table.add_row("", f"{self.elapsed:.0f} s", bar, f"of {self._seconds:.0f} s", "")
        return table
