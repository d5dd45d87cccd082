"""Fixtures for tests of share consumers: clusters with short locks, groups, records."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from harness.apache_kafka import ApacheKafka
from harness.daemon import Daemon
from harness.waiting import eventually
from ottla.broker.requests.dispatch import SUPPORTED_APIS
from ottla.client import (
    Admin,
    ClientConfig,
    Producer,
    RetryConfig,
    ShareConfig,
    ShareConsumer,
    ShareRecord,
)
from ottla.client.config import TimeoutConfig
from ottla.protocol.registry import SHARE_FETCH

CLIENT = ClientConfig(
    retry=RetryConfig(backoff=0.02, max_backoff=0.2),
    timeouts=TimeoutConfig(connect=5, request=10, operation=30),
)
BRISK = ShareConfig(max_wait=0.1, acknowledge_interval=0.05)
LOCK_SECONDS = 2.0
PATIENCE = 30.0
SHARE_CONFIGS = {
    "group.share.heartbeat.interval.ms": "200",
    "group.share.min.heartbeat.interval.ms": "200",
    "group.share.session.timeout.ms": "5000",
    "group.share.min.session.timeout.ms": "1000",
    "group.share.record.lock.duration.ms": str(int(LOCK_SECONDS * 1000)),
    "group.share.min.record.lock.duration.ms": "1000",
}
_KAFKA_CONFIGS = {
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "1",
}


@contextmanager
def a_share_cluster(kind: str, folder: Path) -> Iterator[ApacheKafka | Daemon]:
    """Start Apache Kafka or ottla, with short locks; skip the test if it has no share groups."""
    if kind == "kafka":
        if reason := ApacheKafka.missing():
            pytest.skip(reason)
        with ApacheKafka(folder, **SHARE_CONFIGS, **_KAFKA_CONFIGS) as kafka:
            yield kafka
        return
    if SHARE_FETCH.key not in SUPPORTED_APIS:
        pytest.skip("the broker has no share groups")
    flags = [word for name, value in SHARE_CONFIGS.items() for word in ("--set", f"{name}={value}")]
    with Daemon(folder, *flags) as daemon:
        yield daemon


async def a_topic_and_group(address: str, partitions: int = 1, **configs: str) -> tuple[str, str]:
    """Return a new topic, and a new group that reads it from the start."""
    topic, group = f"t-{uuid4().hex[:8]}", f"g-{uuid4().hex[:8]}"
    async with Admin(address, client=CLIENT) as admin:
        await admin.create_topic(topic, partitions=partitions)
        names = {name.replace("_", "."): value for name, value in configs.items()}
        await admin.alter_group_configs(group, {"share.auto.offset.reset": "earliest", **names})

        async def is_known() -> bool:
            return topic in {one.name for one in await admin.list_topics()}

        await eventually(is_known, PATIENCE)
    return topic, group


async def fill(address: str, topic: str, count: int, start: int = 0) -> None:
    """Produce values "0", "1", … in batches of ten."""
    async with Producer(address, client=CLIENT) as producer:
        for first in range(start, start + count, 10):
            last = min(first + 10, start + count)
            await producer.send_many(topic, [b"%d" % number for number in range(first, last)])


def a_share_consumer(address: str, topic: str, group: str, **arguments: Any) -> ShareConsumer:
    """A share consumer with short timeouts."""
    return ShareConsumer(
        address, topic, group=group, **{"share": BRISK, "client": CLIENT, **arguments}
    )


async def take(consumer: ShareConsumer, count: int) -> list[ShareRecord]:
    """Return the next records."""
    records = []
    async with asyncio.timeout(PATIENCE):
        while len(records) < count:
            record = await consumer.getone()
            assert record is not None
            records.append(record)
    return records


def numbers(records: list[ShareRecord]) -> list[int]:
    """Return what was produced, in the order in which it came."""
    return [int(record.value) for record in records]
