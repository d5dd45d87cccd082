"""Checks of replicated partitions, from the inside: states in the store, and bytes on disks.

leader-outside-isr      a leader that was in neither the ISR nor the ELR of the state before
same-epoch              two leaders in one leader epoch, or an epoch that went back
skipped-version         a state that does not follow the one before
different-bytes         two replicas whose logs differ
"""

from __future__ import annotations

import asyncio
import itertools
import struct
from collections import defaultdict
from collections.abc import Iterator
from contextlib import aclosing
from pathlib import Path

from harness.etcd import EtcdCluster, StoreCluster
from ottla.broker.cluster.store.etcd_store import EtcdStore
from ottla.broker.cluster.store.store_url import StoreCredentials, parse_store_url
from ottla.client.blocking.admin import Admin
from ottla.coord.partition_state import PartitionState

_SIZE = struct.Struct(">i")
_SIZE_AT = 8
_OVERHEAD_BYTES = 12


async def state_anomalies(etcd: EtcdCluster) -> list[str]:
    """Return what is wrong with the history of all partition states in the store."""
    found = []
    for key, states in (await _history(etcd)).items():
        for before, after in itertools.pairwise(states):
            change = f"{key.decode()}: {before} -> {after}"
            if after.partition_epoch != before.partition_epoch + 1:
                found.append(f"skipped-version: {change}")
            if after.leader_epoch < before.leader_epoch or (
                after.leader != before.leader and after.leader_epoch == before.leader_epoch
            ):
                found.append(f"same-epoch: {change}")
            is_eligible = after.leader in (*before.isr, *before.elr)
            if after.has_leader and after.leader != before.leader and not is_eligible:
                found.append(f"leader-outside-isr: {change}")
            if after.has_leader and after.leader not in after.isr:
                found.append(f"leader-outside-isr: {change}")
    return found


async def _history(etcd: EtcdCluster) -> dict[bytes, list[PartitionState]]:
    store = EtcdStore.open(parse_store_url(etcd.url), StoreCredentials())
    states: dict[bytes, list[PartitionState]] = defaultdict(list)
    try:
        end = (await store.load()).revision
        if end > 1:
            # The store writes a last change, so that the watch ends.
            async with aclosing(store.watch(1, b"")) as changes, asyncio.timeout(30):
                async for change in changes:
                    for entry in change.entries:
                        if entry.key.startswith(b"partition/"):
                            states[entry.key].append(PartitionState.from_json(entry.value))
                    if change.revision >= end:
                        break
    finally:
        await store.close()
    return states


def log_bytes(folder: Path) -> bytes:
    """Return all batches of a log directory; files may be larger than what they contain."""
    return b"".join(
        batch for path in sorted(folder.glob("*.log")) for batch in _batches(path.read_bytes())
    )


def _batches(data: bytes) -> Iterator[bytes]:
    position = 0
    while position + _OVERHEAD_BYTES < len(data):
        (length,) = _SIZE.unpack_from(data, position + _SIZE_AT)
        if length <= 0:
            return
        yield data[position : position + _OVERHEAD_BYTES + length]
        position += _OVERHEAD_BYTES + length


def replica_anomalies(cluster: StoreCluster, topic: str, partitions: int) -> list[str]:
    """Return the partitions whose replicas differ, once nobody produces and all are in sync."""
    found = []
    for index in range(partitions):
        logs = [log_bytes(broker.data / f"{topic}-{index}") for broker in cluster]
        if len(set(logs)) != 1 or not logs[0]:
            sizes = [len(log) for log in logs]
            found.append(f"different-bytes: {topic}-{index} has {sizes} bytes on the brokers")
    return found


def isr_sizes(address: str, topic: str) -> list[int]:
    """Return the size of the ISR of each partition."""
    with Admin(address) as admin:
        (described,) = admin.describe_topics(topic).values()
        return [len(partition.isr) for partition in described.partitions]
