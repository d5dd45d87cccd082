"""Runs all benchmarks in bounded time, and writes docs/benchmarks.md from what they found.

    python bench/run.py [--quick] [--only SCRIPT]… [--minutes N]

Each script runs by itself, one after the other, and gets the time that the others will not need.
One for which too little is left is run with --quick; one that takes longer than it may is told to
end, and leaves what it has measured by then. So the whole takes no longer than it is given.

On a terminal there is a bar for each script, and what it is measuring; in a pipe there are lines.
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
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

import report
from benchmark import RESULTS, ROOT, print_table

FOLDER = Path(__file__).resolve().parent
#: What is left for the last one to stop its servers, and for the report.
GRACE_SECONDS = 30
TICK_SECONDS = 0.25
#: In a pipe, no more than one line in this time says what is being measured.
LINE_SECONDS = 5.0
LAST_WORDS = 15


@dataclass(frozen=True)
class Script:
    """A benchmark, and the seconds that it takes on two quiet cores."""

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
    Script("cluster", 75, 20),
    Script("client", 180, 40),
    Script("spark", 300, 100),
)


@dataclass(frozen=True)
class Outcome:
    """What became of a script."""

    script: Script
    form: str
    seconds: float
    result: str

    @property
    def is_good(self) -> bool:
        """Whether it has measured what it was to measure."""
        return self.result == "done"


class Display(Protocol):
    """What a person, or a log, sees of the work."""

    def begin(self, script: Script, seconds: float) -> None:
        """Say that a script begins, which will take about so long."""

    def tick(self, step: str) -> None:
        """Show how time goes by, and what is being measured."""

    def said(self, line: str) -> None:
        """Show a line of a table."""

    def end(self, outcome: Outcome) -> None:
        """Say what became of it."""


class Lines:
    """Lines, for a pipe."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._name = self._shown = ""
        self._next = 0.0

    def begin(self, script: Script, seconds: float) -> None:
        """Say that a script begins, which will take about so long."""
        self._name = script.name
        self._say(f"begins, for about {clock(seconds)}")

    def tick(self, step: str) -> None:
        """Say what is being measured, now and then."""
        if step != self._shown and time.monotonic() > self._next:
            self._say(step)

    def said(self, line: str) -> None:
        """Show a line of a table."""
        print(line, flush=True)

    def end(self, outcome: Outcome) -> None:
        """Say what became of it."""
        self._say(f"{outcome.result}, after {clock(outcome.seconds)}")

    def _say(self, text: str) -> None:
        now = time.monotonic()
        self._shown, self._next = text, now + LINE_SECONDS
        print(f"[{clock(now - self._start)}] {self._name}: {text}", flush=True)


class Bars:
    """A bar for each script, for a terminal."""

    def __init__(self, console: Console) -> None:
        self.progress = Progress(
            TextColumn("{task.description:8}"),
            BarColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[step]}"),
            console=console,
        )
        self._console = console

    def begin(self, script: Script, seconds: float) -> None:
        """Add a bar that is full when the time is up."""
        self._start = time.monotonic()
        self._total = seconds
        self._task = self.progress.add_task(script.name, total=seconds, step="")

    def tick(self, step: str) -> None:
        """Let it grow; one that takes longer than expected stays short of its end."""
        elapsed = min(time.monotonic() - self._start, 0.97 * self._total)
        self.progress.update(self._task, completed=elapsed, step=step)

    def said(self, line: str) -> None:
        """Show a line of a table above the bars."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def end(self, outcome: Outcome) -> None:
        """Leave the bar with what became of it."""
        self.progress.update(self._task, completed=self._total, step=outcome.result)
        self.progress.stop_task(self._task)


def clock(seconds: float) -> str:
    """Give minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def choose(
    script: Script, later: Sequence[Script], left: float, pace: float, *, is_quick: bool
) -> tuple[str, float]:
    """Give the form in which a script is run, "" if in none, and the seconds that it may take.

    `pace` is how much longer than expected those before it took.
    """
    may_take = left - pace * sum(each.quick_seconds for each in later)
    if may_take >= pace * script.seconds and not is_quick:
        return "full", may_take
    return ("quick" if may_take >= script.quick_seconds else ""), may_take


def run(
    script: Script, form: str, may_take: float, arguments: Sequence[str], display: Display
) -> Outcome:
    """Run a script, show what it says, and end it when its time is up."""
    display.begin(script, script.seconds if form == "full" else script.quick_seconds)
    start = time.monotonic()
    options = [*(["--quick"] if form == "quick" else []), *arguments]
    process = subprocess.Popen(
        [sys.executable, str(FOLDER / f"{script.name}.py"), *options],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Ctrl-C is for this, which then has the script stop its servers.
        start_new_session=True,
    )
    try:
        words, is_late = _follow(process, start + may_take, display)
    finally:
        _end(process)
    if process.returncode and not is_late:
        for line in words:
            display.said(line)
    result = "cut short" if is_late else f"failed ({process.returncode})"
    outcome = Outcome(
        script, form, time.monotonic() - start, "done" if process.returncode == 0 else result
    )
    display.end(outcome)
    return outcome


def _follow(
    process: subprocess.Popen[str], deadline: float, display: Display
) -> tuple[deque[str], bool]:
    """Show what a script says until it has ended; give its last words, and whether it was late."""
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
    words: deque[str] = deque(maxlen=LAST_WORDS)
    while open_streams:
        try:
            line = lines.get(timeout=TICK_SECONDS)
        except queue.Empty:
            if process.poll() is not None:
                break  # somebody whom it has left behind still has its streams
            line = (True, step)
        if line is None:
            open_streams -= 1
        elif line[0]:
            step = line[1]
            if not words or words[-1] != step:
                words.append(step)
        else:
            display.said(line[1])
        display.tick(step)
        if not is_late and time.monotonic() > deadline:
            is_late = True
            process.terminate()
        if is_late and time.monotonic() > deadline + GRACE_SECONDS:
            process.kill()
            break
    return words, is_late


def _end(process: subprocess.Popen[str]) -> None:
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
    """Run scripts in turn, all of them in the time that there is."""
    deadline = time.monotonic() + seconds - GRACE_SECONDS
    outcomes: list[Outcome] = []
    for number, script in enumerate(scripts):
        expected = sum(
            each.script.seconds if each.form == "full" else each.script.quick_seconds
            for each in outcomes
        )
        pace = max(1.0, sum(each.seconds for each in outcomes) / expected) if expected else 1.0
        left = deadline - time.monotonic()
        form, may_take = choose(script, scripts[number + 1 :], left, pace, is_quick=is_quick)
        if form:
            outcomes.append(run(script, form, may_take, arguments, display))
        else:
            outcomes.append(Outcome(script, "quick", 0.0, "no time was left"))
    return outcomes


@click.command(help=(__doc__ or "").splitlines()[0])
@click.option("--quick", is_flag=True, help="One round of everything, for a first look.")
@click.option(
    "--only",
    type=click.Choice([script.name for script in SCRIPTS]),
    multiple=True,
    help="Run this script; may be given more than once.",
)
@click.option("--minutes", type=float, default=20, show_default=True, help="For all of it.")
@click.option("--results", type=click.Path(path_type=Path), default=RESULTS, help="A folder.")
@click.option("--docs", type=click.Path(path_type=Path), default=ROOT / "docs", help="A folder.")
def main(quick: bool, only: tuple[str, ...], minutes: float, results: Path, docs: Path) -> None:
    """Run, report, and fail if something could not be measured."""
    # The script that runs is told to end, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    scripts = [script for script in SCRIPTS if not only or script.name in only]
    arguments = ["--results", str(results.resolve())]
    console = Console()
    display: Display = Lines()
    shown: AbstractContextManager[object] = nullcontext()
    if console.is_terminal:
        display = bars = Bars(console)
        shown = bars.progress
    with shown:
        outcomes = run_all(scripts, minutes * 60, arguments, display, is_quick=quick)
    print_table(
        "what became of them",
        ["", "form", "took", "result"],
        [[each.script.name, each.form, clock(each.seconds), each.result] for each in outcomes],
    )
    for title in report.write(results, docs):
        click.echo(f"not measured: {title}")
    click.echo(f"written to {docs / 'benchmarks.md'}")
    sys.exit(not all(outcome.is_good for outcome in outcomes))


if __name__ == "__main__":
    main()
