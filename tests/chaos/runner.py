"""Runs the matrix of faults and prints a table."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from random import SystemRandom
from typing import Any

import click
import pytest
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from chaos import rows as _rows  # noqa: F401  # registers the rows
from chaos.matrix import REPLICATED_ROWS, ROWS, Row, Size
from chaos.testbed import Figures, Run

#: The environment variable with the seed, for pytest and for the command.
SEED = "CHAOS_SEED"


def random_seed() -> int:
    """Return the seed in the environment, or a random one."""
    return int(os.environ.get(SEED) or SystemRandom().randrange(2**32))


@dataclass
class Result:
    """The result of a row."""

    row: Row
    figures: Figures
    seconds: float
    #: Empty on success.
    failure: str = ""
    #: Why it was skipped.
    reason: str = ""


def play(row: Row, folder: Path, **options: Any) -> Result:
    """Run a row and return its result, also if it fails."""
    run = Run(folder, **options)
    started = time.monotonic()
    failure = reason = ""
    try:
        row.play(run)
    except pytest.skip.Exception as skipped:
        reason = str(skipped)
    except Exception:  # noqa: BLE001  # the other rows still run
        failure = traceback.format_exc()
    return Result(row, run.figures, time.monotonic() - started, failure, reason)


def chosen(text: str, rows: Mapping[str, Row] = ROWS) -> list[Row]:
    """Return the rows of a list such as 1,7-9,2c; all for an empty one."""
    wanted: set[str] = set()
    for part in filter(None, text.split(",")):
        if found := re.fullmatch(r"(\d+)-(\d+)", part):
            first, last = map(int, found.groups())
            wanted |= {n for n in rows if first <= int(re.match(r"\d*", n)[0] or 0) <= last}
        elif part in rows:
            wanted.add(part)
        else:
            raise click.BadParameter(f"Unknown row {part}; rows are {', '.join(rows)}")
    found = [row for number, row in rows.items() if not text or number in wanted]
    return sorted(found, key=_position)


def _position(row: Row) -> tuple[int, str]:
    """Sort rows without a number last."""
    number = re.match(r"\d*", row.number)
    return int(number[0]) if number and number[0] else 99, row.number


def table_of(results: list[Result]) -> Table:
    """Return the table of results."""
    table = Table(title="Fault matrix")
    for name in ("#", "fault"):
        table.add_column(name, no_wrap=name == "#")
    for name in (
        *("cycles", "acked", "lost", "dup", "worst wait", "bystander p99", "control", "silence"),
        *("MiB before", "after", "took"),
    ):
        table.add_column(name, justify="right")
    table.add_column("")
    for result in results:
        row, figures = result.row, result.figures
        verdict = "[red]failed[/]" if result.failure else "ok"
        if result.reason:
            verdict = f"[yellow]skipped: {result.reason}[/]"
        elif figures.notes:
            verdict += f"; {'; '.join(figures.notes)}"
        table.add_row(
            row.number,
            row.name,
            f"{figures.cycles:,} {row.unit}",
            f"{figures.acked:,}",
            f"{figures.lost:,}",
            f"{figures.duplicated:,}",
            f"{figures.worst_seconds:.1f} s",
            *(
                "" if ms is None else f"{ms:.1f} ms"
                for ms in (figures.bystander_p99_ms, figures.control_p99_ms)
            ),
            "" if figures.longest_silence is None else f"{figures.longest_silence:.2f} s",
            *(
                "" if mib is None else f"{mib:.0f}"
                for mib in (figures.memory_before, figures.memory_after)
            ),
            f"{result.seconds:.0f} s",
            verdict,
        )
    return table


@click.command("run")
@click.option("--rows", "text", default="", help="Rows to run, such as 1,7-9,2c. [default: all]")
@click.option("--seed", type=int, envvar=SEED, help=f"Random seed, or {SEED}. [default: random]")
@click.option("--cycles", type=int, help="Number of cycles, instead of that of the size.")
@click.option(
    "--size", type=click.Choice([size.value for size in Size]), default="normal", show_default=True
)
@click.option("--brokers", default=1, show_default=True, help="Number of brokers.")
@click.option("--replicated", is_flag=True, help="Failures of a replicated cluster with etcd.")
@click.option("--transactions", is_flag=True, help="Load the brokers with transactions.")
@click.option("--dir", "base", type=Path, help="Working directory. [default: a temporary one]")
@click.option("--json", "file", type=Path, help="Also write the results to this file as JSON.")
def run(
    text: str,
    seed: int | None,
    cycles: int | None,
    size: str,
    brokers: int,
    replicated: bool,
    transactions: bool,
    base: Path | None,
    file: Path | None,
) -> None:
    """Run the matrix of faults and print a table.

    \b
        make chaos CHAOS="--rows 1,7-9 --seed 5 --cycles 100"

        make chaos CHAOS="--replicated --rows 1-9"

    The size sets how often each fault is injected; short is what the tests run. Fails if an
    invariant of a row does not hold; the data of that row is kept.
    """
    seed = random_seed() if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="ottla-chaos-", dir=base))
    console = Console(width=None if sys.stdout.isatty() else 160)
    results: list[Result] = []
    console.print(f"seed {seed}")
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        for row in chosen(text, REPLICATED_ROWS if replicated else ROWS):
            if transactions and row.is_plain:
                continue
            task = progress.add_task(str(row), total=None)

            def tell(done: int, of: int, task: Any = task, row: Row = row) -> None:
                progress.update(task, description=f"{row}: {done:,} of {of:,} {row.unit}")

            path = folder / f"row{row.number}"
            count = cycles or row.counts[Size(size)]
            result = play(
                row,
                path,
                seed=seed,
                count=count,
                brokers=brokers,
                is_transactional=transactions,
                progress=tell,
            )
            progress.remove_task(task)
            results.append(result)
            if result.failure:
                console.print(f"[red]{row} failed[/] with --seed {seed}; its data is in {path}")
                console.print(result.failure, markup=False, highlight=False)
            else:
                shutil.rmtree(path, ignore_errors=True)
    console.print(table_of(results))
    if file is not None:
        file.write_text(json.dumps([_as_json(result, seed) for result in results], indent=2))
    if any(result.failure for result in results):
        sys.exit(1)
    shutil.rmtree(folder, ignore_errors=True)


def _as_json(result: Result, seed: int) -> dict[str, Any]:
    return {
        "row": result.row.number,
        "fault": result.row.name,
        "unit": result.row.unit,
        "seed": seed,
        "seconds": round(result.seconds, 1),
        "failure": result.failure,
        "not_run": result.reason,
        **asdict(result.figures),
    }
