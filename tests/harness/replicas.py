"""Checks of replicated partitions, from the inside: who is in sync, and bytes on disks.

different-bytes         two replicas whose logs differ
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from harness.etcd import StoreCluster
from ottla.client.blocking.admin import Admin

_SIZE = struct.Struct(">i")
_SIZE_AT = 8
_OVERHEAD_BYTES = 12


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
