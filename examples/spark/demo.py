"""Everything at once: a broker, devices that send readings, and the job that watches them.

    make spark-demo

A broker is started in a folder of its own, devices are simulated, and the job of alerts.py runs for
half a minute beside them; what it does is shown meanwhile, and what it found at the end.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from alerts import start
from readings import make_topic, send_live

from ottla.client.blocking import Admin, Consumer
from ottla.client.spark import builder, lag, register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

BAR = 30
#: How long Spark may take for its first batch: it compiles code.
PATIENCE_SECONDS = 180
#: How often the display changes, on a terminal and elsewhere.
LIVELY_SECONDS, CALM_SECONDS = 0.25, 5.0


@contextmanager
def broker(folder: Path) -> Iterator[str]:
    """Run a broker, and give its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, "-m", "ottla", "broker", "start"]
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(  # noqa: S603
            [*command, "--data-dir", str(folder / "data"), "--listen", address],
            stdout=log,
            stderr=log,
        )
    try:
        yield address
    finally:
        process.terminate()
        process.wait()


@contextmanager
def devices(bootstrap: str, topic: str) -> Iterator[None]:
    """Let devices send readings meanwhile."""
    over = threading.Event()
    sending = threading.Thread(target=send_live, args=[bootstrap, topic, over])
    sending.start()
    try:
        yield
    finally:
        over.set()
        sending.join()


@contextmanager
def silence(log: Path) -> Iterator[None]:
    """Let what Spark and Java say of themselves go into a file: it would tear the display."""
    stderr = os.dup(2)
    with log.open("wb") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


class Display:
    """A line that changes; where there is no terminal, a line now and then."""

    def __init__(self) -> None:
        self._is_lively = sys.stdout.isatty()
        self._next = 0.0

    def show(self, line: str) -> None:
        """Show a line, if it is time for the next."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + (LIVELY_SECONDS if self._is_lively else CALM_SECONDS)
            click.echo(f"\r\033[K{line}" if self._is_lively else line, nl=not self._is_lively)

    def end(self, line: str) -> None:
        """Show the last line."""
        click.echo(f"\r\033[K{line}" if self._is_lively else line)


def watch(query: StreamingQuery, bootstrap: str, target: str, seconds: float) -> int:
    """Show what a query does for some seconds after its first batch; give the readings it took."""
    display, rows = Display(), dict[int, int]()
    began = deadline = time.monotonic() + PATIENCE_SECONDS
    line = ""
    with Admin(bootstrap) as admin:
        while (now := time.monotonic()) < deadline and query.isActive:
            progress = query.recentProgress
            rows.update((one.batchId, one.numInputRows) for one in progress)
            taken = sum(rows.values())
            if not taken:
                display.show(f"Spark starts … {now - began + PATIENCE_SECONDS:.0f} s")
            else:
                began = min(began, now)
                deadline = began + seconds
                alerts = sum(admin.end_offsets(target).values())
                done = int(BAR * min(1.0, (now - began) / seconds))
                line = (
                    f"{'█' * done}{'░' * (BAR - done)} {now - began:3.0f} s"
                    f"  {taken:,} readings, {sum(lag(progress[-1]).values()):,} behind;"
                    f" {alerts} alerts"
                )
                display.show(line)
            time.sleep(LIVELY_SECONDS)
    display.end(line)
    if (error := query.exception()) is not None:
        raise error
    return sum(rows.values())


def show_alerts(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """Print the alerts that were written, and give them."""
    with Admin(bootstrap) as admin:
        count = sum(admin.end_offsets(topic).values())
    with Consumer(bootstrap, topic) as consumer:
        found = [json.loads(consumer.getone(timeout=10).value) for _ in range(count)]
    found.sort(key=lambda one: (one["start"], one["device"]))
    click.echo(f"{count} alerts" + (": windows in which a device was too warm" if count else ""))
    for alert in found:
        when = f"{alert['start'][11:19]} to {alert['end'][11:19]}"
        click.echo(
            f"  {when}  {alert['device']:<10} {alert['celsius']:6.2f} °C"
            f"  ({alert['readings']} readings)"
        )
    return found


def run(
    spark: SparkSession,
    bootstrap: str,
    checkpoint: Path,
    seconds: float,
    source: str = "readings",
    target: str = "alerts",
) -> tuple[int, list[dict[str, Any]]]:
    """Run devices and the job for a while; give how many readings it took, and the alerts."""
    for topic in (source, target):
        make_topic(bootstrap, topic)
    with devices(bootstrap, source):
        query = start(
            spark,
            bootstrap,
            source=source,
            target=target,
            checkpoint=str(checkpoint),
            window="5 seconds",
        )
        try:
            taken = watch(query, bootstrap, target, seconds)
        finally:
            query.stop()
    return taken, show_alerts(bootstrap, target)


@click.command(help=__doc__)
@click.option("--seconds", default=30, show_default=True, help="How long the job runs.")
def main(seconds: int) -> None:
    """Run everything."""
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as name:
        folder = Path(name)
        try:
            with broker(folder) as bootstrap, silence(folder / "spark.log"):
                click.echo(
                    f"a broker listens on {bootstrap}; 12 devices send 200 readings a second"
                )
                spark = register(
                    builder()
                    .master("local[2]")
                    .appName("ottla-demo")
                    .config("spark.sql.shuffle.partitions", "2")
                    .config("spark.ui.enabled", "false")
                    .config("spark.ui.showConsoleProgress", "false")
                    .getOrCreate()
                )
                run(spark, bootstrap, folder / "checkpoint", seconds)
                spark.stop()
        except Exception:
            for log in sorted(folder.glob("*.log")):
                last = log.read_text(errors="replace").splitlines()[-20:]
                click.echo("\n".join([f"--- the end of {log.name}", *last]), err=True)
            raise


if __name__ == "__main__":
    main()
