"""Everything at once: a broker, devices that send readings, and the job that watches them.

    make spark-demo

A broker is started in a folder of its own, devices are simulated, and the job of alerts.py runs for
half a minute beside them; what it does is shown meanwhile, and what it found at the end.
"""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click
from alerts import start
from readings import make_topic, send_live

from ottla.client.blocking import Admin, Consumer
from ottla.client.spark import builder, lag, register

BAR = 30


@contextmanager
def broker() -> Iterator[str]:
    """Run a broker, and give its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory(prefix="ottla-demo-") as folder:
        command = [sys.executable, "-m", "ottla", "broker", "start", "--data-dir", folder]
        process = subprocess.Popen(  # noqa: S603
            [*command, "--listen", address], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            yield address
        finally:
            process.terminate()
            process.wait()


def watch(query: object, bootstrap: str, seconds: int) -> None:
    """Show what a query does."""
    began, rows, seen = time.monotonic(), 0, None
    with Admin(bootstrap) as admin:
        while (elapsed := time.monotonic() - began) < seconds:
            time.sleep(0.5)
            progress = query.lastProgress  # type: ignore[attr-defined]
            behind = 0
            if progress is not None:
                if progress.batchId != seen:
                    seen, rows = progress.batchId, rows + progress.numInputRows
                behind = sum(lag(progress).values())
            alerts = sum(admin.end_offsets("alerts").values())
            done = int(BAR * min(1.0, elapsed / seconds))
            line = f"{'█' * done}{'░' * (BAR - done)} {elapsed:3.0f} s"
            line += f"  {rows} readings read, {behind} behind, {alerts} alerts"
            click.echo(
                f"\r\033[K{line}" if sys.stdout.isatty() else line, nl=not sys.stdout.isatty()
            )
    click.echo()


def show_alerts(bootstrap: str) -> None:
    """Print the alerts that were written."""
    with Admin(bootstrap) as admin:
        count = sum(admin.end_offsets("alerts").values())
    click.echo(f"{count} alerts" + (": windows in which a device was too warm" if count else ""))
    with Consumer(bootstrap, "alerts") as consumer:
        found = [json.loads(consumer.getone(timeout=10).value) for _ in range(count)]
    for alert in sorted(found, key=lambda one: (one["start"], one["device"])):
        when = f"{alert['start'][11:19]} to {alert['end'][11:19]}"
        click.echo(
            f"  {when}  {alert['device']:<10} {alert['celsius']:6.2f} °C"
            f"  ({alert['readings']} readings)"
        )


@click.command(help=__doc__)
@click.option("--seconds", default=30, show_default=True, help="How long the job runs.")
def main(seconds: int) -> None:
    """Run everything."""
    with broker() as bootstrap, tempfile.TemporaryDirectory() as checkpoint:
        click.echo(f"a broker listens on {bootstrap}; starting Spark …")
        for topic in ("readings", "alerts"):
            make_topic(bootstrap, topic)
        spark = register(
            builder()
            .master("local[2]")
            .appName("ottla-demo")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.ui.enabled", "false")
            .getOrCreate()
        )
        spark.sparkContext.setLogLevel("OFF")
        devices = threading.Thread(
            target=send_live, args=[bootstrap, "readings", seconds + 15], daemon=True
        )
        devices.start()
        query = start(spark, bootstrap, checkpoint=checkpoint, window="5 seconds")
        watch(query, bootstrap, seconds)
        query.stop()
        show_alerts(bootstrap)
        spark.stop()


if __name__ == "__main__":
    main()
