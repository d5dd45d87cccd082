"""Runs all benchmarks in a limited time, and writes docs/benchmarks.md from their results.

    python bench/run.py [--quick] [--only SCRIPT]… [--minutes N]

Scripts run one after the other; each gets the time that the later ones do not need. A script that
has too little time left runs with --quick; one that exceeds its time is terminated, and keeps the
parts it has finished. So a run never takes longer than --minutes. The comparisons of replicated
clusters (replication) and of secured listeners (security), and a broker with very many partitions,
members and connections (scale), run only with --only.
"""

from __future__ import annotations

import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

import report
from benchmark import RESULTS, ROOT, print_table

SCRIPT_DIRECTORY = Path(__file__).resolve().parent
#: Time for the last script to stop its servers, and for the report.
GRACE_SECONDS = 30
TICK_SECONDS = 0.25
#: Minimum time between two lines of progress, without a terminal.
LINE_SECONDS = 5.0
ERROR_LINES = 15


@dataclass(frozen=True)
class Script:
    """A benchmark script, and its duration on two idle cores."""

    name: str
    seconds: float
    quick_seconds: float


SCRIPTS = (
    Script("codec", 20, 2),
    Script("records", 20, 5),
    Script("imports", 25, 5),
    Script("log", 60, 5),
    Script("broker", 330, 70),
    Script("groups", 120, 20),
    Script("transactions", 75, 20),
    Script("cluster", 75, 20),
    Script("client", 165, 40),
    Script("spark", 270, 100),
)
#: There is no time for these; they run only if they are named.
LONG_SCRIPTS = (
    Script("replication", 420, 120),
    Script("security", 270, 40),
    Script("scale", 150, 15),
)


@dataclass(frozen=True)
class Outcome:
    """The outcome of a script."""

    script: Script
    mode: str
    seconds: float
    result: str

    @property
    def expected_seconds(self) -> float:
        """The expected duration."""
        return self.script.seconds if self.mode == "full" else self.script.quick_seconds


class Display:
    """Shows tables and progress: a bar for each script on a terminal, lines elsewhere."""

    def __init__(self) -> None:
        self._start = self._script_start = time.monotonic()
        self._name = self._last_line = ""
        self._next_line = self._total = 0.0
        self._task = TaskID(0)
        self.progress = Progress(
            TextColumn("{task.description:8}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[step]}"),
            console=Console(),
        )
        self._is_terminal = self.progress.console.is_terminal
        self.progress.disable = not self._is_terminal

    def begin(self, script: Script, seconds: float) -> None:
        """Show that a script starts."""
        self._script_start, self._total, self._name = time.monotonic(), seconds, script.name
        self._task = self.progress.add_task(script.name, total=seconds, step="")
        self._print_line(f"started, takes about {clock(seconds)}")

    def step(self, text: str) -> None:
        """Show the current step; a bar stays short of its end until the script has ended."""
        elapsed = min(time.monotonic() - self._script_start, 0.97 * self._total)
        self.progress.update(self._task, completed=elapsed, step=text)
        if text != self._last_line and time.monotonic() > self._next_line:
            self._print_line(text)

    def output(self, line: str) -> None:
        """Show a line of a table."""
        self.progress.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def end(self, outcome: Outcome) -> None:
        """Show the outcome of a script."""
        self.progress.update(self._task, completed=self._total, step=outcome.result)
        self.progress.stop_task(self._task)
        self._print_line(f"{outcome.result} after {clock(outcome.seconds)}")

    def _print_line(self, text: str) -> None:
        now = time.monotonic()
        self._last_line, self._next_line = text, now + LINE_SECONDS
        if not self._is_terminal:
            print(f"[{clock(now - self._start)}] {self._name}: {text}", flush=True)


def clock(seconds: float) -> str:
    """Format minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def choose(
    script: Script, later: Sequence[Script], remaining: float, pace: float, *, is_quick: bool
) -> tuple[str, float]:
    """Return the mode of a script ("" for not at all), and the seconds it may take.

    `pace` is how much longer than expected the scripts before it took.
    """
    limit = remaining - pace * sum(each.quick_seconds for each in later)
    if limit >= pace * script.seconds and not is_quick:
        return "full", limit
    return ("quick" if limit >= script.quick_seconds else ""), limit


def run(
    script: Script, mode: str, limit: float, arguments: Sequence[str], display: Display
) -> Outcome:
    """Run a script, show its output, and terminate it when its time is up."""
    display.begin(script, script.seconds if mode == "full" else script.quick_seconds)
    start = time.monotonic()
    options = [*(["--quick"] if mode == "quick" else []), *arguments]
    process = subprocess.Popen(
        [sys.executable, str(SCRIPT_DIRECTORY / f"{script.name}.py"), *options],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C is for this process, which then terminates the script.
        start_new_session=True,
    )
    try:
        errors, is_late = _follow(process, start + limit, display)
    finally:
        _terminate(process)
    result = "done"
    if is_late:
        result = "timed out"
    elif process.returncode:
        result = f"failed ({process.returncode})"
        for line in errors:
            display.output(line)
    outcome = Outcome(script, mode, time.monotonic() - start, result)
    display.end(outcome)
    return outcome


def _follow(
    process: subprocess.Popen[str], deadline: float, display: Display
) -> tuple[deque[str], bool]:
    """Show the output of a script; return the end of its stderr, and whether it timed out."""
    lines: queue.Queue[tuple[bool, str] | None] = queue.Queue()

    def read(stream: IO[str], is_step: bool) -> None:
        with stream:
            for line in stream:
                lines.put((is_step, line.rstrip("\n")))
        lines.put(None)

    assert process.stdout is not None
    assert process.stderr is not None
    for stream, is_step in ((process.stdout, False), (process.stderr, True)):
        threading.Thread(target=read, args=(stream, is_step), daemon=True).start()
    step, open_streams, is_late = "", 2, False
    errors: deque[str] = deque(maxlen=ERROR_LINES)
    while open_streams:
        try:
            line = lines.get(timeout=TICK_SECONDS)
        except queue.Empty:
            if process.poll() is not None:
                break  # a process that it left behind still has its streams
            line = (True, step)
        if line is None:
            open_streams -= 1
        elif line[0]:
            step = line[1]
            if not errors or errors[-1] != step:
                errors.append(step)
        else:
            display.output(line[1])
        display.step(step)
        if not is_late and time.monotonic() > deadline:
            is_late = True
            process.terminate()
        if is_late and time.monotonic() > deadline + GRACE_SECONDS:
            break
    return errors, is_late


def _terminate(process: subprocess.Popen[str]) -> None:
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def run_all(
    scripts: Sequence[Script],
    seconds: float,
    arguments: Sequence[str],
    display: Display,
    *,
    is_quick: bool,
) -> list[Outcome]:
    """Run scripts one after the other, all of them in the given time."""
    deadline = time.monotonic() + seconds - GRACE_SECONDS
    outcomes: list[Outcome] = []
    for number, script in enumerate(scripts):
        expected = sum(outcome.expected_seconds for outcome in outcomes)
        elapsed = sum(outcome.seconds for outcome in outcomes)
        pace = max(1.0, elapsed / expected) if expected else 1.0
        remaining = deadline - time.monotonic()
        mode, limit = choose(script, scripts[number + 1 :], remaining, pace, is_quick=is_quick)
        if mode:
            outcomes.append(run(script, mode, limit, arguments, display))
        else:
            outcomes.append(Outcome(script, "quick", 0.0, "no time left"))
    return outcomes


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--quick", is_flag=True, help="Run one round of everything.")
@click.option(
    "--only",
    type=click.Choice([script.name for script in (*SCRIPTS, *LONG_SCRIPTS)]),
    multiple=True,
    help="Run only this script; can be repeated.",
)
@click.option("--minutes", type=float, default=20, show_default=True, help="Time limit.")
@click.option(
    "--results", type=click.Path(path_type=Path), default=RESULTS, help="Directory for results."
)
@click.option(
    "--docs", type=click.Path(path_type=Path), default=ROOT / "docs", help="Directory for the page."
)
def main(quick: bool, only: tuple[str, ...], minutes: float, results: Path, docs: Path) -> None:
    """Run the scripts and write the report; exit with 1 if a script did not finish."""
    # Exit through `run`, which terminates the running script.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    scripts: Sequence[Script] = SCRIPTS
    if only:
        scripts = [script for script in (*SCRIPTS, *LONG_SCRIPTS) if script.name in only]
    arguments = ["--results", str(results.resolve())]
    display = Display()
    with display.progress:
        outcomes = run_all(scripts, minutes * 60, arguments, display, is_quick=quick)
    print_table(
        "Summary",
        ["script", "mode", "time", "result"],
        [[each.script.name, each.mode, clock(each.seconds), each.result] for each in outcomes],
    )
    for title in report.write(results, docs):
        click.echo(f"Not measured: {title}")
    click.echo(f"Written to {docs / 'benchmarks.md'}")
    sys.exit(not all(outcome.result == "done" for outcome in outcomes))


if __name__ == "__main__":
    main()
