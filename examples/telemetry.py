"""Telemetry: devices send their temperature; who is too warm for a while raises an alert.

    readings ──▶ monitor ──▶ alerts

Devices are simulated, and the monitor is a consumer group. What it teaches:

- Event time: a reading counts when it was taken, which its record says, not when it was read.
- State that survives a restart without being stored: the monitor commits after each batch, and the
  commit's metadata say at which offset the oldest reading is that an average is still made of. Who
  is given the partition next begins there, and raises no alert until it is where the last one was.
- A hundred small records a second cost little if their receipts are not waited for one by one.

An alert is a change: "hot" when the average of a device's readings within the window goes over the
limit, "normal" when it is back. A device that was silent for a window starts anew. Alerts are
written at least once; each has the offset of its reading, so that a second one can be told.

    python examples/telemetry.py
    python examples/telemetry.py --devices 0      # only monitor what others have sent
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import defaultdict, deque
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

import click

from ottla.client import (
    ClientError,
    Consumer,
    ConsumerRecord,
    KafkaError,
    OffsetAndMetadata,
    Producer,
    TopicPartition,
)
from ottla.client.serializers import deserialize_json, serialize_json


@dataclass
class Device:
    """What the monitor knows of a device."""

    readings: deque[ConsumerRecord] = field(default_factory=deque)
    average: float = 0.0
    is_hot: bool = False

    def add(self, reading: ConsumerRecord, window_ms: int, limit: float) -> bool:
        """Take a reading in; say whether the device has become hot or normal."""
        while self.readings and self.readings[0].timestamp <= reading.timestamp - window_ms:
            self.readings.popleft()
        was_hot = self.is_hot and bool(self.readings)
        self.readings.append(reading)
        self.average = fmean(one.value["celsius"] for one in self.readings)
        self.is_hot = self.average > limit
        return self.is_hot != was_hot


@dataclass
class Partition:
    """The devices whose readings are in a partition; before `resume_at` they are old news."""

    resume_at: int = 0
    devices: defaultdict[str, Device] = field(default_factory=lambda: defaultdict(Device))

    def progress(self, last: ConsumerRecord, window_ms: int) -> OffsetAndMetadata:
        """Say what to commit: where to go on, and where to begin in order to know the averages."""
        horizon = last.timestamp - window_ms
        heard = [one.readings for one in self.devices.values()]
        oldest = min(
            (readings[0].offset for readings in heard if readings[-1].timestamp > horizon),
            default=last.offset + 1,
        )
        # While it catches up with the last one, it must not take back what that has committed.
        return OffsetAndMetadata(max(last.offset + 1, self.resume_at), metadata=str(oldest))


async def simulate(producer: Producer, topic: str, device: str, count: int, pause: float) -> None:
    """Send readings of one device, which becomes warmer and cooler by turns."""
    phase = random.uniform(0, math.tau)
    for number in range(count):
        celsius = round(60 + 25 * math.sin(phase + number / 10) + random.gauss(), 1)
        await producer.enqueue(topic, serialize_json({"celsius": celsius}), key=device.encode())
        await asyncio.sleep(pause)


async def monitor(
    bootstrap: str, prefix: str, window_ms: int, limit: float, silence: asyncio.Event
) -> None:
    """Raise alerts until the devices are silent and all that they sent has been looked at."""
    partitions: dict[TopicPartition, Partition] = {}

    async def resume(places: frozenset[TopicPartition]) -> None:
        for place, committed in (await consumer.committed(*places)).items():
            partitions[place] = Partition(committed.offset if committed else 0)
            if committed and committed.metadata:
                consumer.seek(place, int(committed.metadata))

    consumer = Consumer(
        bootstrap,
        f"{prefix}.readings",
        group=f"{prefix}.monitor",
        instance_id=f"{prefix}.monitor-1",
        auto_commit=None,
        key_deserializer=bytes.decode,
        value_deserializer=deserialize_json,
        on_assigned=resume,
        on_bad_record=lambda record, error: click.echo(f"skipped {record.offset}: {error}"),
    )
    async with consumer, Producer(bootstrap) as producer:
        while True:
            alerts, progress = [], {}
            for place, readings in (await consumer.getmany(0.2)).items():
                partition = partitions[place]
                for reading in readings:
                    device = partition.devices[reading.key]
                    if device.add(reading, window_ms, limit) and (
                        reading.offset >= partition.resume_at
                    ):
                        alert = {
                            "device": reading.key,
                            "state": "hot" if device.is_hot else "normal",
                            "average": round(device.average, 2),
                            "offset": reading.offset,
                        }
                        click.echo("{device} is {state}: {average}".format(**alert))
                        alerts.append(serialize_json(alert))
                progress[place] = partition.progress(readings[-1], window_ms)
            await producer.send_many(f"{prefix}.alerts", alerts)
            await consumer.commit(progress)
            is_idle = silence.is_set() and not progress and consumer.assignment
            if is_idle and not any((await consumer.lag()).values()):
                return


async def run(
    bootstrap: str,
    prefix: str,
    devices: int,
    readings: int,
    pause: float,
    window: float,
    limit: int,
) -> None:
    """Let devices send, and the monitor look at it."""
    silence = asyncio.Event()
    async with Producer(bootstrap) as producer, asyncio.TaskGroup() as tasks:
        tasks.create_task(monitor(bootstrap, prefix, int(window * 1000), limit, silence))
        simulated = [
            simulate(producer, f"{prefix}.readings", f"device-{number}", readings, pause)
            for number in range(devices)
        ]
        await asyncio.gather(*map(tasks.create_task, simulated))
        await producer.flush()
        silence.set()


@click.command(help=(__doc__ or "").replace("\n\n", "\n\n\b\n"))
@click.option("--bootstrap", default="localhost:9092", show_default=True, help="A broker.")
@click.option("--prefix", default="telemetry", show_default=True, help="Of topics and group.")
@click.option("--devices", default=5, show_default=True, help="How many are simulated.")
@click.option("--readings", default=200, show_default=True, help="How many each of them sends.")
@click.option("--pause", default=0.02, show_default=True, help="Seconds between two of them.")
@click.option("--window", default=0.5, show_default=True, help="Seconds that are averaged.")
@click.option("--limit", default=70.0, show_default=True, help="Degrees that are too many.")
def main(bootstrap: str, **options: Any) -> None:
    """Run it."""
    try:
        asyncio.run(run(bootstrap, **options))
    except* (ClientError, KafkaError) as errors:
        raise click.ClickException(str(errors.exceptions[0])) from None


if __name__ == "__main__":
    main()
