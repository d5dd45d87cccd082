"""Telemetry: devices send their temperature, and a monitor raises an alert when one is too warm.

    readings ──▶ monitor ──▶ alerts

Devices are simulated, and the monitor is a consumer group. It demonstrates:

- Event time: a reading counts at the timestamp of its record, not at the time it is read.
- State that survives a restart without being stored: the monitor commits after each batch, and the
  commit metadata is the offset of the oldest reading that is still part of an average. The next
  member with the partition starts there, and raises no alert before the committed offset.
- Cheap small records: a hundred a second, without waiting for each acknowledgement.

An alert is a change of state: "hot" when the average of a device's readings within the window
exceeds the limit, "normal" when it falls below. After a window without readings a device starts
over. Alerts are written at least once; each has the offset of its reading, to detect duplicates.

    python examples/telemetry.py
    python examples/telemetry.py --devices 0      # only monitor existing readings
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
    """The recent readings of a device."""

    readings: deque[ConsumerRecord] = field(default_factory=deque)
    average: float = 0.0
    is_hot: bool = False

    def add(self, reading: ConsumerRecord, window_ms: int, limit: float) -> bool:
        """Add a reading; return whether the state of the device changed."""
        while self.readings and self.readings[0].timestamp <= reading.timestamp - window_ms:
            self.readings.popleft()
        was_hot = self.is_hot and bool(self.readings)
        self.readings.append(reading)
        self.average = fmean(each.value["celsius"] for each in self.readings)
        self.is_hot = self.average > limit
        return self.is_hot != was_hot


@dataclass
class Partition:
    """The devices of a partition; no alerts are raised before the offset `resume_at`."""

    resume_at: int = 0
    devices: defaultdict[str, Device] = field(default_factory=lambda: defaultdict(Device))

    def commit_position(self, last: ConsumerRecord, window_ms: int) -> OffsetAndMetadata:
        """Return the next offset, with the offset where a replay has to start as metadata."""
        horizon = last.timestamp - window_ms
        windows = [device.readings for device in self.devices.values()]
        oldest = min(
            (readings[0].offset for readings in windows if readings[-1].timestamp > horizon),
            default=last.offset + 1,
        )
        # During the replay the committed offset must not move backwards.
        return OffsetAndMetadata(max(last.offset + 1, self.resume_at), metadata=str(oldest))


async def simulate(producer: Producer, topic: str, device: str, count: int, pause: float) -> None:
    """Send readings of one device, whose temperature rises and falls."""
    phase = random.uniform(0, math.tau)
    for number in range(count):
        celsius = round(60 + 25 * math.sin(phase + number / 10) + random.gauss(), 1)
        await producer.enqueue(topic, serialize_json({"celsius": celsius}), key=device.encode())
        await asyncio.sleep(pause)


async def monitor(
    bootstrap: str, prefix: str, window_ms: int, limit: float, devices_done: asyncio.Event
) -> None:
    """Raise alerts until the devices are done and all readings are processed."""
    partitions: dict[TopicPartition, Partition] = {}

    async def resume(assigned: frozenset[TopicPartition]) -> None:
        for tp, committed in (await consumer.committed(*assigned)).items():
            partitions[tp] = Partition(committed.offset if committed else 0)
            if committed and committed.metadata:
                consumer.seek(tp, int(committed.metadata))

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
            alerts, positions = [], {}
            for tp, readings in (await consumer.getmany(0.2)).items():
                partition = partitions[tp]
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
                positions[tp] = partition.commit_position(readings[-1], window_ms)
            await producer.send_many(f"{prefix}.alerts", alerts)
            await consumer.commit(positions)
            is_idle = devices_done.is_set() and not positions and consumer.assignment
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
    """Run the devices and the monitor."""
    devices_done = asyncio.Event()
    async with Producer(bootstrap) as producer, asyncio.TaskGroup() as tasks:
        tasks.create_task(monitor(bootstrap, prefix, int(window * 1000), limit, devices_done))
        simulated = [
            simulate(producer, f"{prefix}.readings", f"device-{number}", readings, pause)
            for number in range(devices)
        ]
        await asyncio.gather(*map(tasks.create_task, simulated))
        await producer.flush()
        devices_done.set()


@click.command(help=(__doc__ or "").replace("\n\n", "\n\n\b\n"))
@click.option("--bootstrap", default="localhost:9092", show_default=True, help="Bootstrap servers.")
@click.option("--prefix", default="telemetry", show_default=True, help="Prefix of topics.")
@click.option("--devices", default=5, show_default=True, help="Number of simulated devices.")
@click.option("--readings", default=200, show_default=True, help="Readings per device.")
@click.option("--pause", default=0.02, show_default=True, help="Seconds between readings.")
@click.option("--window", default=0.5, show_default=True, help="Averaging window, seconds.")
@click.option("--limit", default=70.0, show_default=True, help="Alert above this average, °C.")
def main(bootstrap: str, **options: Any) -> None:
    """Run the example."""
    try:
        asyncio.run(run(bootstrap, **options))
    except* (ClientError, KafkaError) as errors:
        raise click.ClickException(str(errors.exceptions[0])) from None


if __name__ == "__main__":
    main()
