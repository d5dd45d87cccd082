"""Mutations: bugs put into the real code, each of which the simulation must find."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from ottla.broker.cluster import controller
from ottla.broker.coordinators.shard_runtime import ShardRuntime
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.topics import Topics
from ottla.coord import group
from ottla.coord.group_shard import GroupShard
from ottla.coord.metadata_image import MetadataImage
from ottla.coord.records import OffsetRecord

_append = ShardRuntime._append
_when_flushed = Partition.when_flushed
_next_leader_epoch = Topics.next_leader_epoch


def _append_no_offsets(runtime: ShardRuntime, append: Any) -> Any:
    if isinstance(append.records[0], OffsetRecord):
        return runtime._appended(append)
    return _append(runtime, append)


def _flushed_at_once(partition: Partition, offset: int, callback: Any) -> None:
    if partition.topic == "__cluster_metadata":
        partition.log.recovery_point = max(partition.log.recovery_point, offset + 1)
        callback(None)
    else:
        _when_flushed(partition, offset, callback)


def _expire_nothing(shard: GroupShard, now: Any) -> list[Any]:
    for _timer in shard.deadlines.due(now.tick_ms):
        pass
    return []


def _whole_assignment(of_group: Any, _member: Any) -> Any:
    first = next(iter(of_group.members.values()))
    return _sync_response(of_group, first)


_sync_response = group.sync_response

#: The attribute that is replaced, and by what.
MUTATIONS: dict[str, tuple[Any, str, Any]] = {
    "followers compare only lengths": (
        MetadataImage,
        "contains",
        lambda _image, position, end_offset: position.offset <= end_offset,
    ),
    "a follower's position is not checked": (
        controller.Controller,
        "_check_position",
        lambda _controller, _request: None,
    ),
    "producer ids are not skipped at start": (controller, "_MAX_SKIPPED_PRODUCER_IDS", 1),
    "a commit is acked before it is stored": (ShardRuntime, "_append", _append_no_offsets),
    "a topic is acked before it is fsynced": (Partition, "when_flushed", _flushed_at_once),
    "a restart keeps the leader epoch": (
        Topics,
        "next_leader_epoch",
        lambda topics: max(_next_leader_epoch(topics) - 1, 0),
    ),
    "members get each other's assignments": (group, "sync_response", _whole_assignment),
    "sessions and rebalances never expire": (GroupShard, "expire", _expire_nothing),
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Run with one of the mutations."""
    with patch.object(*MUTATIONS[name]):
        yield
