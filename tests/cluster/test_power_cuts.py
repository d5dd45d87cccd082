"""All brokers lose their power: what was fsynced is not lost, and leads again by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from cluster.test_replication import Replicas, produce, values
from harness.waiting import eventually
from ottla.storage import logdir


async def cut_power(cluster: Replicas, boot: Path) -> None:
    """Stop all brokers as if the machines had lost their power, and boot these."""
    broker_ids = list(cluster.brokers)
    await cluster.stop(*broker_ids)
    for broker_id in broker_ids:
        (cluster.folder / str(broker_id) / "clean-shutdown").unlink()
    boot.write_text(boot.read_text() + "again")


@pytest.fixture
def boot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "boot"
    path.write_text("first")
    monkeypatch.setattr(logdir, "_SYSTEM_BOOT_ID", path)
    return path


async def test_topics_that_are_fsynced_are_led_again(tmp_path: Path, boot: Path) -> None:
    async with asyncio.timeout(60):
        cluster = Replicas(tmp_path)
        await cluster.start(0, 1, 2)
        await cluster.create("fsynced", durability="fsync")
        await cluster.create("cached")
        for topic in ("fsynced", "cached"):
            await produce(cluster, topic, 4)
            await cluster.until_in_sync(topic)
        await cut_power(cluster, boot)

        await cluster.start(0, 1, 2)

        await cluster.until_in_sync("fsynced")
        assert len(await values(cluster, "fsynced", 4)) == 4
        # Nobody knows who has the latest records of the other one: an operator has to decide.
        assert not cluster.state("cached").has_leader
        await cluster.stop(*cluster.brokers)


async def test_a_topic_that_was_altered_meanwhile_counts_as_lost(
    tmp_path: Path, boot: Path
) -> None:
    async with asyncio.timeout(60):
        cluster = Replicas(tmp_path)
        await cluster.start(0, 1, 2)
        await cluster.create("t", factor=2)
        await produce(cluster, "t", 4)
        await cluster.until_in_sync("t", count=2)
        down = next(one for one in cluster.state("t").replicas if one != cluster.leader("t").id)
        await cluster.stop(down)
        (cluster.folder / str(down) / "clean-shutdown").unlink()
        boot.write_text("second")
        await eventually(lambda: cluster.state("t").elr == (down,))
        controller = next(one for one in cluster.brokers.values() if one.cluster.is_controller)
        await controller.controller.alter_topic_configs(
            controller.topics.image.topics["t"], lambda _configs: {"durability": "fsync"}
        )
        await cluster.start(down)
        # It was not fsynced when the power was cut.
        await eventually(lambda: down not in cluster.state("t").elr)
        await cluster.until_in_sync("t", count=2)
        await cluster.stop(*cluster.brokers)


async def test_brokers_that_fsync_by_default_lose_nothing(tmp_path: Path, boot: Path) -> None:
    async with asyncio.timeout(60):
        cluster = Replicas(tmp_path, log_durability="fsync")
        await cluster.start(0, 1, 2)
        await cluster.create("t")
        await produce(cluster, "t", 4)
        await cluster.until_in_sync("t")
        await cut_power(cluster, boot)
        await cluster.start(0, 1, 2)
        await cluster.until_in_sync("t")
        await cut_power(cluster, boot)
        # Another default since then: what it was when the power was cut counts.
        cluster.configs["log.durability"] = "page-cache"
        await cluster.start(0, 1, 2)
        await asyncio.sleep(0.3)
        assert not cluster.state("t").has_leader
        await cluster.stop(*cluster.brokers)
