"""Test data: readings of devices, for the jobs in this directory.

A reading is JSON, `{"device": "boiler-3", "celsius": 61.2}`, with the device as the key and the
time of the measurement as the timestamp. Some devices run hot for a while. With `--faulty`, some
readings are in Fahrenheit by mistake, or truncated.

    python examples/spark/readings.py --count 10000
"""

from __future__ import annotations

import json
import math
import random
import threading
import time
from collections.abc import Iterator

import click

from ottla.client import ErrorCode, KafkaError, ProducerRecord
from ottla.client.blocking import Admin, Producer

HOT_SECONDS = 20


def reading(number: int, when_ms: int, devices: int, faulty: float = 0.0) -> ProducerRecord:
    """Return a reading; every third device is hot half of the time."""
    index = number % devices
    is_hot = index % 3 == 0 and int(when_ms / 1000 / HOT_SECONDS) % 2 == 0
    celsius = 60 + 5 * math.sin(index) + random.gauss(0, 1) + (25 if is_hot else 0)
    value = {"device": f"boiler-{index}", "celsius": round(celsius, 2)}
    chance = random.random()
    if chance < faulty / 2:
        value = {"device": f"boiler-{index}", "fahrenheit": round(celsius * 9 / 5 + 32, 2)}
    text = json.dumps(value).encode()
    if faulty / 2 <= chance < faulty:
        text = text[: len(text) // 2]
    headers = (("firmware", b"1.%d" % (index % 4)),)
    return ProducerRecord(text, f"boiler-{index}".encode(), headers, timestamp=when_ms)


def past_readings(count: int, devices: int = 12, faulty: float = 0.0) -> Iterator[ProducerRecord]:
    """Yield readings up to now, 100 per second."""
    start = int(time.time() * 1000) - count * 10
    for number in range(count):
        yield reading(number, start + number * 10, devices, faulty)


def make_topic(bootstrap: str, topic: str, partitions: int = 3) -> None:
    """Create a topic unless it exists."""
    with Admin(bootstrap) as admin:
        try:
            admin.create_topic(topic, partitions=partitions)
        except KafkaError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                raise


def send_past(bootstrap: str, topic: str, count: int, devices: int, faulty: float) -> None:
    """Send readings of the past, all at once."""
    make_topic(bootstrap, topic)
    with Producer(bootstrap, compression="zstd") as producer:
        producer.send_many(topic, past_readings(count, devices, faulty))


def send_live(
    bootstrap: str, topic: str, stop: threading.Event, rate: int = 200, devices: int = 12
) -> None:
    """Send `rate` readings per second until `stop` is set."""
    sent, started = 0, time.time()
    with Producer(bootstrap) as producer:
        while not stop.wait(0.05):
            due = range(sent, int((time.time() - started) * rate))
            now = int(time.time() * 1000)
            producer.send_many(topic, [reading(number, now, devices) for number in due])
            sent += len(due)


@click.command(help=__doc__)
@click.option("--bootstrap", default="localhost:9092", show_default=True)
@click.option("--topic", default="readings", show_default=True)
@click.option("--count", default=10_000, show_default=True, help="Number of readings.")
@click.option("--devices", default=12, show_default=True)
@click.option("--faulty", default=0.0, show_default=True, help="Share of faulty readings.")
def main(bootstrap: str, topic: str, count: int, devices: int, faulty: float) -> None:
    """Send readings."""
    send_past(bootstrap, topic, count, devices, faulty)
    click.echo(f"sent {count} readings of {devices} devices to {topic}")


if __name__ == "__main__":
    main()
