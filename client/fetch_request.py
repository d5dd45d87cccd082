"""Fetch requests, as the consumer, Spark tasks and brokers that follow the metadata log send them.

No fetch session is used: each request names all of its partitions.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic

_CONSUMER = -1
_UNLIMITED = 2**31 - 1


class PartitionFetch(NamedTuple):
    """A partition to fetch from `offset` on. Epochs of -1 are not checked."""

    topic: str
    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1
    #: The leader epoch of the record before `offset`.
    last_fetched_epoch: int = -1


def fetch_request(
    partitions: Iterable[PartitionFetch],
    *,
    max_wait_ms: int,
    min_bytes: int = 1,
    max_bytes: int = _UNLIMITED,
    read_committed: bool = False,
    replica_id: int = _CONSUMER,
) -> FetchRequest:
    """Build a Fetch request; the broker serves the partitions in the order given."""
    topics: dict[str, list[FetchPartition]] = {}
    for topic, partition, offset, partition_max_bytes, leader_epoch, last_epoch in partitions:
        topics.setdefault(topic, []).append(
            FetchPartition(
                partition=partition,
                current_leader_epoch=leader_epoch,
                fetch_offset=offset,
                last_fetched_epoch=last_epoch,
                partition_max_bytes=partition_max_bytes,
            )
        )
    return FetchRequest(
        replica_id=replica_id,
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=int(read_committed),
        topics=[FetchTopic(topic=topic, partitions=some) for topic, some in topics.items()],
    )
