"""Output of commands: tables, JSON and progress bars.

On a terminal, tables and bars use rich if it is installed (`pip install ottla[cli]`). Elsewhere
tables are plain text and there are no bars. Messages for people go to stderr.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

Cell = str | int | float | None
_GAP = "  "
_PLAIN_REFRESH_SECONDS = 0.2


def print_json(value: Any) -> None:
    """Print a JSON document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: Any) -> bytes:
    """Encode an object as one line of JSON."""
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: 1 record, 2,000 records."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


# Prints above the progress bar that is shown, if there is one.
_print_above_bar: Callable[[str], None] | None = None


def note(message: str) -> None:
    """Print a message to stderr, above the progress bar if one is shown."""
    if _print_above_bar is not None:
        _print_above_bar(message)
    else:
        click.echo(message, err=True)


@contextmanager
def _above_bar(print_line: Callable[[str], None]) -> Iterator[None]:
    global _print_above_bar  # noqa: PLW0603  # a terminal has one bar
    before, _print_above_bar = _print_above_bar, print_line
    try:
        yield
    finally:
        _print_above_bar = before


@contextmanager
def show_warnings() -> Iterator[None]:
    """Print the warnings that the SDK logs, such as a broker that does not answer."""
    import logging

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            note(f"warning: {record.getMessage()}")

    logger = logging.getLogger("ottla.client")
    handler = Handler(logging.WARNING)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, to_stderr: bool = False
) -> None:
    """Print a table; numbers are right-aligned, None is a dash."""
    cells = [[_cell(value) for value in row] for row in rows]
    is_number = [
        any(row[index] is not None for row in cells)
        and all(isinstance(row[index], int | float | None) for row in cells)
        for index in range(len(columns))
    ]
    console = _console(sys.stderr if to_stderr else sys.stdout)
    if console is None:
        _print_plain(columns, cells, is_number, to_stderr=to_stderr)
    else:
        _print_rich(console, columns, cells, is_number)


def print_rows(
    keys: Sequence[str],
    rows: Iterable[Sequence[Any]],
    *,
    as_json: bool,
    to_stderr: bool = False,
) -> None:
    """Print rows as a table, or as a JSON array of objects with these keys."""
    if as_json:
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        columns = [key.removeprefix("is_").replace("_", " ") for key in keys]
        print_table(columns, rows, to_stderr=to_stderr)


def print_done(
    results: Sequence[Mapping[str, Any]], lines: Iterable[str], *, as_json: bool
) -> None:
    """Print results, as lines of text or as a JSON array."""
    if as_json:
        print_json(results)
    else:
        for line in lines:
            click.echo(line)


def print_facts(facts: Mapping[str, Cell]) -> None:
    """Print key-value pairs, one per line."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name:<{width}}{_GAP}{_text(value)}")


def _print_plain(
    columns: Sequence[str], rows: list[list[Cell]], is_number: list[bool], *, to_stderr: bool
) -> None:
    lines = [
        [column.upper() for column in columns],
        *([_text(cell) for cell in row] for row in rows),
    ]
    widths = [max(len(line[index]) for line in lines) for index in range(len(columns))]
    for line in lines:
        cells = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, is_number, strict=True)
        )
        click.echo(_GAP.join(cells).rstrip(), err=to_stderr)


def _print_rich(
    console: Console,
    columns: Sequence[str],
    rows: list[list[Cell]],
    is_number: list[bool],
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column, number in zip(columns, is_number, strict=True):
        table.add_column(column, justify="right" if number else "left", overflow="fold")
    for row in rows:
        # Text, not str: rich reads [brackets] in a str as markup.
        table.add_row(*(Text(_text(cell)) for cell in row))
    console.print(table)


def _cell(value: Any) -> Cell:
    if isinstance(value, bool):
        return "yes" if value else ""
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return value if isinstance(value, str | int | float | None) else str(value)


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    # Escape control characters: data must not send escape codes to a terminal or break lines.
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in str(cell)
    )


class Progress(Protocol):
    """Progress of a long operation."""

    def advance(self, by: int = 1) -> None:
        """Advance the bar."""


@contextmanager
def progress(label: str, total: int | None = None, *, is_shown: bool = True) -> Iterator[Progress]:
    """Show a progress bar on a terminal; `total` is None if the end is unknown."""
    if not (is_shown and sys.stderr.isatty()):
        yield _Silent()
        return
    console = _console(sys.stderr)
    if console is None:
        plain = _Plain(label, total)
        with _above_bar(plain.print_above):
            try:
                yield plain
            finally:
                plain.end()
        return
    from rich import progress as bars

    with (
        bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.MofNCompleteColumn(),
            bars.TimeRemainingColumn() if total is not None else bars.TimeElapsedColumn(),
            console=console,
            transient=True,
        ) as bar,
        _above_bar(lambda line: console.print(line, markup=False, highlight=False)),
    ):
        yield _Rich(bar, bar.add_task(label, total=total))


class _Silent:
    def advance(self, by: int = 1) -> None:
        """Print nothing."""


class _Rich:
    def __init__(self, bar: RichProgress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def advance(self, by: int = 1) -> None:
        """Advance the bar."""
        self._bar.advance(self._task, by)


class _Plain:
    def __init__(self, label: str, total: int | None) -> None:
        self._label = label
        self._end = "" if total is None else f" of {total:,}"
        self._done = 0
        self._next = 0.0

    def advance(self, by: int = 1) -> None:
        """Count, and print the count a few times per second."""
        self._done += by
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PLAIN_REFRESH_SECONDS
            sys.stderr.write(f"\r{self._label}  {self._done:,}{self._end}")
            sys.stderr.flush()

    def print_above(self, line: str) -> None:
        """Print a line instead of the count, which follows with the next advance."""
        sys.stderr.write(f"\r\033[K{line}\n")
        self._next = 0.0

    def end(self) -> None:
        """Clear the line."""
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


def _console(stream: Any) -> Console | None:
    """Return a rich console if `stream` is a terminal and rich is installed."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream)
