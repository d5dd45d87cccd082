"""What the benchmarks share: options, fair repetition, tables, and a line of JSON for the record.

These machines are noisy, so figures that are to be compared are taken in turns, round after round,
and the best round of each counts: noise only ever adds. README.md says more.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
#: What figures may depend on, where it is installed.
PACKAGES = (
    *("ottla", "uvloop", "crc32c", "cramjam", "construct", "pyarrow", "pyspark"),
    *("aiokafka", "confluent-kafka", "kafka-python"),
)
#: Options whose values are folders.
PLACES = ("--dir", "--results", "--kafka-libs", "--connector")


def command_line(
    doc: str | None, *, quick: str, parts: Iterable[str] = (), files: str = ""
) -> argparse.ArgumentParser:
    """Give the options that all scripts have; `files` says what room theirs need."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    if parts := list(parts):
        parser.add_argument("--only", choices=parts, nargs="+", help="leave the other parts out")
    if files:
        parser.add_argument("--dir", type=Path, help=f"where the files go; needs {files}")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where the results go")
    return parser


@contextmanager
def recording(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Take results, by part, and write them down when all is done, or was cut short.

    A part that is done stays good: a script that is told to end, or fails, leaves those.
    """
    # What is started is also stopped when this is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    record = _circumstances(name, options.quick)
    start = time.perf_counter()
    results: dict[str, Any] = {}
    try:
        yield results
    finally:
        progress("")
        if results:
            record |= {"seconds": time.perf_counter() - start, "results": results}
            options.results.mkdir(parents=True, exist_ok=True)
            path = options.results / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
            path.write_text(json.dumps(record) + "\n")
            print(f"\nwritten to {path}", flush=True)


def best_seconds(
    contenders: Mapping[str, Callable[[], object]], *, is_quick: bool = False
) -> dict[str, float]:
    """Give the seconds that one call of each contender takes."""
    rounds, seconds = (2, 0.002) if is_quick else (12, 0.02)
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
    """Say what is being measured, to a person who waits or to whoever reads the lines."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def _circumstances(name: str, is_quick: bool) -> dict[str, Any]:
    """Give what the figures depend on, besides the code that is measured."""
    return {
        "bench": name,
        "command": _command(sys.argv),
        "quick": is_quick,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "cpu": _cpu(),
        "system": platform.platform(),
        # Whoever else is at work makes all figures worse, and not all of them alike.
        "load": os.getloadavg()[0],
        "versions": {"python": platform.python_version()} | _versions(),
    }


def _command(arguments: Sequence[str]) -> str:
    """Give the command line, without the places that are another's on another machine."""
    words, rest = ["python", f"bench/{Path(arguments[0]).name}"], iter(arguments[1:])
    for word in rest:
        if word.partition("=")[0] not in PLACES:
            words.append(word)
        elif "=" not in word:
            next(rest)
    return shlex.join(words)


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


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
