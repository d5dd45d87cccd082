"""What the benchmarks share: fair repetition, tables, and a line of JSON for the record.

These machines are noisy, so figures that are to be compared are taken in turns, round after round,
and the best round of each counts: noise only ever adds.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent


def best_seconds(
    contenders: Mapping[str, Callable[[], object]], *, rounds: int = 12, seconds: float = 0.02
) -> dict[str, float]:
    """Give the seconds that one call of each contender takes."""
    calls = {name: _calls_in(function, seconds) for name, function in contenders.items()}
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, function in contenders.items():
            repetitions = range(calls[name])
            start = time.perf_counter()
            for _ in repetitions:
                function()
            elapsed = time.perf_counter() - start
            best[name] = min(best[name], elapsed / calls[name])
    return best


def _calls_in(function: Callable[[], object], seconds: float) -> int:
    function()
    start = time.perf_counter()
    function()
    return max(1, int(seconds / max(time.perf_counter() - start, 1e-7)))


def turns(contenders: Sequence[T], rounds: int) -> Iterator[tuple[int, T]]:
    """Give contenders in turn, from another one on in each round.

    What comes first after a change of load is slower: it touches memory that nobody had yet.
    """
    for number in range(rounds):
        first = number * len(contenders) // rounds
        for contender in (*contenders[first:], *contenders[:first]):
            yield number, contender


def ratio(value: float | None, other: float | None, digits: int = 2) -> str:
    """Give one as a part of another, if both are there."""
    return f"{value / other:,.{digits}f}" if value is not None and other else ""


def print_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Print a table, the first column to the left, all others to the right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    print(f"\n{title}\n")
    for row in [header, *rows]:
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  " + "  ".join(cells).rstrip())


def progress(text: str) -> None:
    """Say what is being measured, to a person who waits."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def save(name: str, results: Any) -> None:
    """Write the results, with what they depend on, to bench/results/ as a line of JSON."""
    record = {
        "bench": name,
        "commit": _commit(),
        "cpu": _cpu(),
        "python": platform.python_version(),
        "results": results,
    }
    folder = ROOT / "bench" / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(record) + "\n")
    print(f"\nwritten to {path.relative_to(ROOT)}")


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} × {models[0]}" if models else platform.machine()
