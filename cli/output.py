"""What commands print: tables, JSON, and how far something has come.

On a terminal tables and bars are rich's, if that is installed (`pip install ottla[cli]`); elsewhere
they are plain text, and there are no bars. What is meant for people alone goes to stderr.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """Print a document."""
    click.echo(json.dumps(value, indent=2, ensure_ascii=False))


def json_line(value: Any) -> bytes:
    """Write one of many objects, on a line of its own."""
    return json.dumps(value, ensure_ascii=False).encode(errors="surrogatepass") + b"\n"


def counted(number: int, noun: str) -> str:
    """Say how many there are of something: 1 record, 2,000 records."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def note(message: str) -> None:
    """Say something to whoever sits there; it is no result."""
    click.echo(message, err=True)


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Let people know what the SDK finds odd, such as a broker that does not answer for now."""
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


def print_table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print rows under headings; numbers stand to the right, nothing is a dash."""
    kept = [[_cell(value) for value in row] for row in rows]
    is_number = [
        any(row[at] is not None for row in kept)
        and all(isinstance(row[at], int | float | None) for row in kept)
        for at in range(len(columns))
    ]
    console = _console(sys.stdout)
    if console is None:
        _print_plain(columns, kept, is_number)
    else:
        _print_rich(console, columns, kept, is_number)


def print_rows(keys: Sequence[str], rows: Iterable[Sequence[Any]], *, as_json: bool) -> None:
    """Print rows as a table, or as a JSON array of objects with these keys."""
    if as_json:
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        print_table([key.removeprefix("is_").replace("_", " ") for key in keys], rows)


def print_done(things: Sequence[Mapping[str, Any]], lines: Iterable[str], *, as_json: bool) -> None:
    """Say what was done: in sentences, or as a JSON array of what it was done to."""
    if as_json:
        print_json(things)
    else:
        for line in lines:
            click.echo(line)


def print_facts(facts: Mapping[str, Cell]) -> None:
    """Print what is known of one thing, a line for each fact."""
    width = max(map(len, facts), default=0)
    for name, value in facts.items():
        click.echo(f"{name:<{width}}{_GAP}{_text(value)}")


def _print_plain(columns: Sequence[str], rows: list[list[Cell]], is_number: list[bool]) -> None:
    lines = [
        [column.upper() for column in columns],
        *([_text(cell) for cell in row] for row in rows),
    ]
    widths = [max(len(line[at]) for line in lines) for at in range(len(columns))]
    for line in lines:
        cells = (
            text.rjust(width) if number else text.ljust(width)
            for text, width, number in zip(line, widths, is_number, strict=True)
        )
        click.echo(_GAP.join(cells).rstrip())


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
        # Text, not str: a name in brackets is a name, not a colour.
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
    # What comes from elsewhere must not write to the terminal, or begin a line.
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in str(cell)
    )


class Progress(Protocol):
    """How far something has come."""

    def advance(self, by: int = 1) -> None:
        """Say that it has come further."""


@contextmanager
def progress(label: str, total: int | None = None, *, is_shown: bool = True) -> Iterator[Progress]:
    """Show a bar on a terminal while something runs; `total` is None if nobody knows the end."""
    if not (is_shown and sys.stderr.isatty()):
        yield _Silent()
        return
    console = _console(sys.stderr)
    if console is None:
        plain = _Plain(label, total)
        try:
            yield plain
        finally:
            plain.end()
        return
    from rich import progress as bars

    with bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeRemainingColumn() if total is not None else bars.TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bar:
        yield _Rich(bar, bar.add_task(label, total=total))


class _Silent:
    def advance(self, by: int = 1) -> None:
        """Say nothing."""


class _Rich:
    def __init__(self, bar: RichProgress, task: TaskID) -> None:
        self._bar = bar
        self._task = task

    def advance(self, by: int = 1) -> None:
        """Move the bar."""
        self._bar.advance(self._task, by)


class _Plain:
    def __init__(self, label: str, total: int | None) -> None:
        self._label = label
        self._end = "" if total is None else f" of {total:,}"
        self._done = 0
        self._next = 0.0

    def advance(self, by: int = 1) -> None:
        """Count, and write the number now and then."""
        self._done += by
        now = time.monotonic()
        if now >= self._next:
            self._next = now + _PLAIN_REFRESH_SECONDS
            sys.stderr.write(f"\r{self._label}  {self._done:,}{self._end}")
            sys.stderr.flush()

    def end(self) -> None:
        """Wipe the line."""
        sys.stderr.write("\r\033[K")
        sys.stderr.flush()


def _console(stream: Any) -> Console | None:
    """Give rich's console, if this is a terminal and rich is there."""
    if not stream.isatty():
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream)
