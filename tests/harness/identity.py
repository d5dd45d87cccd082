"""Mistakes of operators with the identity of brokers, and what shows that they are noticed."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

from harness.daemon import HOST, TIMEOUT_SECONDS, Cluster, Daemon, free_port
from harness.logs import a_batch
from harness.requests import error_codes, produce_request, send_request
from ottla.protocol.api.init_producer_id import InitProducerIdRequest
from ottla.protocol.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.errors import ErrorCode

FIXED_ID = ("--set", "cluster.id=paper-trail", "--set", "controller.wait.ms=3000")
REFUSED = "not following the controller"


async def until_logged(broker: Daemon, text: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while text not in broker.log.read_text():
        assert time.monotonic() < deadline, f"not logged: {text}\n{broker.log_tail()}"
        await asyncio.sleep(0.02)


def errors_of(broker: Daemon) -> list[str]:
    return [line for line in broker.log.read_text().splitlines() if " ERROR " in line]


def copy_of(broker: Daemon, target: Path) -> Path:
    shutil.copytree(broker.data, target)
    return target


async def new_producer_id(broker: Daemon) -> int:
    response = await send_request(broker, InitProducerIdRequest(transactional_id=None))
    assert response.error_code == ErrorCode.NONE
    return response.producer_id


async def produce_idempotent(
    broker: Daemon, topic: str, producer_id: int, sequence: int, count: int = 1
) -> tuple[int, int]:
    batch = a_batch(count, producer_id=producer_id, producer_epoch=0, base_sequence=sequence)
    request = produce_request(batch, topic=topic, partition=0, acks=-1)
    response = await send_request(broker, request)
    (code,) = error_codes(response)
    return code, response.responses[0].partition_responses[0].base_offset


async def end_of_epoch(broker: Daemon, epoch: int, current: int) -> tuple[int, int, int]:
    partition = OffsetForLeaderPartition(
        partition=0, current_leader_epoch=current, leader_epoch=epoch
    )
    topics = [OffsetForLeaderTopic(topic="orders", partitions=[partition])]
    response = await send_request(broker, OffsetForLeaderEpochRequest(replica_id=-1, topics=topics))
    (data,) = response.topics[0].partitions
    return data.error_code, data.leader_epoch, data.end_offset


def start_without_the_first(cluster: Cluster) -> None:
    """Start all brokers but the first, with a cluster file that does not list it."""
    listed = cluster.describe()
    cluster.folder.mkdir(parents=True, exist_ok=True)
    cluster.file.write_text(listed[listed.index("\n[[brokers]]\nid = 1") :])
    for broker in cluster.brokers[1:]:
        broker.launch()
    for broker in cluster.brokers[1:]:
        broker.wait_until_ready()


def second_process(cluster: Cluster, number: int, *arguments: str) -> Daemon:
    """Return a daemon with the id of a broker of the cluster, and a data directory of its own."""
    port = free_port()
    return Daemon(
        cluster.folder / "second",
        *("--id", str(number), "--cluster", str(cluster.file)),
        *("--listen", f"{HOST}:{port}", *FIXED_ID, *arguments),
        port=port,
    )


def copied_process(cluster: Cluster, number: int, *arguments: str) -> Daemon:
    """Return a daemon on a copy of a broker's data, with an address of its own in its file."""
    folder, port = cluster.folder / "second", free_port()
    shutil.copytree(cluster[number].data, folder / "data")
    file = folder / "cluster.toml"
    file.write_text(cluster.describe().replace(cluster[number].address, f"{HOST}:{port}"))
    return Daemon(
        folder, "--id", str(number), "--cluster", str(file), *FIXED_ID, *arguments, port=port
    )


def assert_refused(
    second: Daemon, number: int, reason: str = "is in use by another process"
) -> None:
    """Assert that a second process with a broker id exits with an error."""
    process = second.spawn()
    try:
        assert process.wait(TIMEOUT_SECONDS) == 1, second.log_tail()
    finally:
        process.kill()
        process.wait()
    assert f"Broker id {number} {reason}" in second.log_tail()
