"""Demo: a broker, simulated devices that send readings, and the job of alerts.py.

    make spark-demo

The job runs for half a minute. Its throughput is shown meanwhile, as in `make demo`, and its alerts
at the end.
"""

from __future__ import annotations

import json
import sys
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

sys.path.append(str(Path(__file__).resolve().parents[1] / "demo"))

from environment import brokers, stderr_to, temporary_directory
from screen import REFRESH_SECONDS, Counter, Screen
from spark_job import Query, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: How long Spark may take for its first batch, which compiles code.
FIRST_BATCH_SECONDS = 180.0


@contextmanager
def devices(bootstrap: str, topic: str) -> Iterator[None]:
    """Send readings in a thread."""
    stop = threading.Event()
    sending = threading.Thread(target=send_live, args=[bootstrap, topic, stop])
    sending.start()
    try:
        yield
    finally:
        stop.set()
        sending.join()


def watch(query: Query, bootstrap: str, source: str, target: str, seconds: float) -> int:
    """Show the progress of a query after its first batch; return how many readings it read."""
    # Spark reads all that has arrived since its last batch at once.
    sent, taken, alerts = (
        Counter("devices"),
        Counter("Spark", window_seconds=10.0),
        Counter("alerts"),
    )
    deadline = time.monotonic() + FIRST_BATCH_SECONDS
    while not taken.total:
        if time.monotonic() > deadline:
            raise TimeoutError(f"Spark read no records within {FIRST_BATCH_SECONDS:g} s")
        time.sleep(REFRESH_SECONDS)
        query.update(taken)
    screen = Screen([sent, taken, alerts], seconds)
    with Admin(bootstrap) as admin, screen.shown():
        while screen.elapsed < seconds:
            time.sleep(REFRESH_SECONDS)
            query.update(taken)
            sent.total = sum(admin.end_offsets(source).values())
            alerts.total = sum(admin.end_offsets(target).values())
            screen.draw()
    return taken.total


def show_alerts(bootstrap: str, topic: str) -> list[dict[str, Any]]:
    """Print the alerts, and return them."""
    with Admin(bootstrap) as admin:
        count = sum(admin.end_offsets(topic).values())
    with Consumer(bootstrap, topic) as consumer:
        alerts = [json.loads(consumer.getone(timeout=10).value) for _ in range(count)]
    alerts.sort(key=lambda alert: (alert["start"], alert["device"]))
    click.echo(f"{count} alerts" + (" (device too warm in a window):" if count else ""))
    for alert in alerts:
        when = f"{alert['start'][11:19]} to {alert['end'][11:19]}"
        click.echo(
            f"  {when}  {alert['device']:<10} {alert['celsius']:6.2f} °C"
            f"  ({alert['readings']} readings)"
        )
    return alerts


def run(
    spark: SparkSession,
    bootstrap: str,
    checkpoint: Path,
    seconds: float,
    source: str = "readings",
    target: str = "alerts",
) -> tuple[int, list[dict[str, Any]]]:
    """Run devices and the job; return how many readings it read, and the alerts."""
    for topic in (source, target):
        make_topic(bootstrap, topic)
    with devices(bootstrap, source):
        query = Query(
            start(
                spark,
                bootstrap,
                source=source,
                target=target,
                checkpoint=str(checkpoint),
                window="5 seconds",
            )
        )
        try:
            taken = watch(query, bootstrap, source, target, seconds)
        finally:
            query.stop()
    return taken, show_alerts(bootstrap, target)


@click.command(help=__doc__)
@click.option("--seconds", default=30, show_default=True, help="How long to run the job.")
def main(seconds: int) -> None:
    """Run the demo."""
    with temporary_directory() as directory, brokers(directory, 1) as (bootstrap,):
        click.echo(f"broker on {bootstrap}; 12 devices send 200 readings per second")
        click.echo("starting Spark …")
        with stderr_to(directory / "spark.log"):
            spark = session()
            run(spark, bootstrap, directory / "checkpoint", seconds)
            spark.stop()


if __name__ == "__main__":
    main()
