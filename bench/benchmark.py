"""Shared by the benchmark scripts: options, repetition in turns, tables, and the result file.

Machines are noisy, so contenders are measured in turns, round after round: the median counts, and
the spread is shown. README.md explains the method.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from figures import tables

T = TypeVar("T")

KIB, MIB, GIB = 1024, 1024**2, 1024**3
ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench" / "results"
#: Packages whose versions are recorded, if they are installed.
PACKAGES = (
    *("ottla", "uvloop", "crc32c", "cramjam", "construct", "pyarrow", "pyspark"),
    *("aiokafka", "confluent-kafka", "kafka-python"),
)
#: Options with directories, which are left out of the recorded command.
DIRECTORY_OPTIONS = ("--dir", "--results", "--kafka-libs", "--connector")
MAX_OPEN_FILES = 16_384


def command_line(
    doc: str | None, *, quick: str, parts: Iterable[str] = (), disk: str = ""
) -> argparse.ArgumentParser:
    """Return a parser with the options of all scripts; `disk` is the space that one needs."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help=quick)
    if parts := list(parts):
        parser.add_argument("--only", choices=parts, nargs="+", help="run only these parts")
    if disk:
        parser.add_argument("--dir", type=Path, help=f"directory for data; needs {disk}")
    parser.add_argument("--results", type=Path, default=RESULTS, help="directory for results")
    return parser


@contextmanager
def recording(name: str, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Collect results by part; write them to a file at the end, even after an error or SIGTERM."""
    # Exit through the context managers, which stop the servers.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    record = _environment(name, options.quick)
    others = OtherProcesses()
    results: dict[str, Any] = {}
    try:
        yield results
    finally:
        progress("")
        if results:
            record |= {"seconds": others.elapsed, "other_cores": others.cores()}
            record |= {"results": results}
            options.results.mkdir(parents=True, exist_ok=True)
            path = options.results / f"{name}-{time.strftime('%Y%m%d-%H%M%S')}.json"
            path.write_text(json.dumps(record) + "\n")
            print(f"\nResults written to {path}", flush=True)


def run_parts(
    bench: str,
    options: argparse.Namespace,
    results: dict[str, Any],
    parts: Mapping[str, Callable[..., Any]],
    *arguments: Any,
) -> None:
    """Measure the selected parts, and print the tables of each."""
    for part in getattr(options, "only", None) or parts:
        results[part] = parts[part](*arguments)
        show(bench, part, results[part])


def show(bench: str, part: str, results: Any) -> None:
    """Print the tables of a part as on the page."""
    progress("")
    for title, found in tables(bench, part, results):
        print_table(title, found.header, found.rows)


@contextmanager
def data_directory(options: argparse.Namespace) -> Iterator[Path]:
    """Create a temporary directory for data, and raise the limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, MAX_OPEN_FILES), hard), hard))
    with tempfile.TemporaryDirectory(dir=options.dir, prefix="ottla-bench-") as name:
        yield Path(name)


def best_seconds(
    contenders: Mapping[str, Callable[[], object]], *, is_quick: bool = False
) -> dict[str, float]:
    """Return the seconds that one call of each contender takes."""
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
    """Yield each contender once per round; every round starts with another one.

    The first contender after a change of load is slower: it touches new memory.
    """
    for number in range(rounds):
        first = number * len(contenders) // rounds
        for contender in (*contenders[first:], *contenders[:first]):
            yield number, contender


def median_throughput(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the medians of throughput and CPU time per record, and the spread of throughput."""
    rates = [run["records"] / run["seconds"] for run in runs]
    found: dict[str, Any] = {
        "records_per_second": statistics.median(rates),
        "spread": spread_of(rates),
    }
    for side in ("client", "server"):
        if f"{side}_cpu" in runs[0]:
            cpu = [run[f"{side}_cpu"] / run["records"] for run in runs]
            found[f"{side}_cpu"] = statistics.median(cpu)
            cores = [run[f"{side}_cpu"] / run["seconds"] for run in runs]
            found[f"{side}_cores"] = statistics.median(cores)
    if "memory" in runs[0]:
        found["anonymous"] = max(run["memory"]["anonymous"] for run in runs)
    return found | {"runs": list(runs)}


def spread_of(values: Sequence[float]) -> float:
    """Return how far values are apart, relative to their median."""
    return (max(values) - min(values)) / statistics.median(values)


def median_run(runs: Sequence[T], value: Callable[[T], float]) -> T:
    """Return the run with the median of a value, or the one below it."""
    return sorted(runs, key=value)[(len(runs) - 1) // 2]


class OtherProcesses:
    """The CPU time of processes that are not ours, which slow everything down.

    All of our own have to be waited for before `cores` is called.
    """

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._own_cpu = self._own_seconds()
        self._all_cpu = self._all_seconds()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._start

    def cores(self) -> float:
        """Return how many cores the others have used since the start, on average."""
        own_cpu = self._own_seconds() - self._own_cpu
        return max(0.0, self._all_seconds() - self._all_cpu - own_cpu) / self.elapsed

    @staticmethod
    def _own_seconds() -> float:
        usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return sum(usage.ru_utime + usage.ru_stime for usage in usages)

    @staticmethod
    def _all_seconds() -> float:
        """Return the CPU time of all processes since the start of the system; 0 if unknown."""
        try:
            fields = Path("/proc/stat").read_text().split(maxsplit=8)[1:8]
        except OSError:
            return 0.0
        user, nice, system, _idle, _wait, interrupts, soft_interrupts = map(int, fields)
        ticks = user + nice + system + interrupts + soft_interrupts
        return ticks / os.sysconf("SC_CLK_TCK")


def print_table(title: str, header: list[str], rows: list[list[str]]) -> None:
    """Print a table, the first column left-aligned, the others right-aligned."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]
    print(f"\n{title}\n")
    for row in [header, *rows]:
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  " + "  ".join(cells).rstrip())


def progress(text: str) -> None:
    """Print the current step to stderr: in place on a terminal, as a line elsewhere."""
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)
    elif text:
        print(text, file=sys.stderr, flush=True)


def _environment(name: str, is_quick: bool) -> dict[str, Any]:
    """Return what the figures depend on, besides the measured code."""
    versions = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {
        "bench": name,
        "command": _command(sys.argv),
        "quick": is_quick,
        "date": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": _commit(),
        "cpu": _cpu(),
        "system": platform.platform(),
        "versions": versions,
    }


def _command(arguments: Sequence[str]) -> str:
    """Return the command line without directories, which differ between machines."""
    words, rest = ["python", f"bench/{Path(arguments[0]).name}"], iter(arguments[1:])
    for word in rest:
        if word.partition("=")[0] not in DIRECTORY_OPTIONS:
            words.append(word)
        elif "=" not in word:
            next(rest)
    return shlex.join(words)


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
