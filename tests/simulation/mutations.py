"""Mutations: bugs put into the real code, each of which the simulation must find."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

from ottla.broker.cluster import controller, elections
from ottla.broker.cluster.store_registration import StoreRegistration
from ottla.broker.coordinators.shard_runtime import ShardRuntime
from ottla.broker.partitions.partition import Partition
from ottla.broker.partitions.topics import Topics
from ottla.coord import election, group
from ottla.coord.follower_progress import FollowerProgress
from ottla.coord.group_shard import GroupShard
from ottla.coord.metadata_image import MetadataImage
from ottla.coord.partition_state import PartitionState
from ottla.coord.records import OffsetRecord
from ottla.coord.transaction_records import TransactionRecord
from ottla.coord.transaction_states import TransactionState

from .checks import Invariant

_append = ShardRuntime._append
_when_flushed = Partition.when_flushed
_next_leader_epoch = Topics.next_leader_epoch


def _append_no_offsets(runtime: ShardRuntime[Any], append: Any) -> Any:
    if isinstance(append.records[0], OffsetRecord):
        return runtime._replay(0, append)
    return _append(runtime, append)


def _append_no_decisions(runtime: ShardRuntime[Any], append: Any) -> Any:
    record = append.records[0]
    undecided = (TransactionState.EMPTY, TransactionState.ONGOING)
    if isinstance(record, TransactionRecord) and record.metadata.state not in undecided:
        return runtime._replay(0, append)
    return _append(runtime, append)


def _append_no_producers(runtime: ShardRuntime[Any], append: Any) -> Any:
    if isinstance(append.records[0], TransactionRecord):
        return runtime._replay(0, append)
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


def _delete_log(topics: Topics, name: str, _topic_id: Any = None) -> None:
    topics._logs.delete(name)


def _high_watermark_of_leader(
    _progress: FollowerProgress, current: int, leader_end_offset: int, _min_isr: int
) -> int:
    return max(current, leader_end_offset)


def _elect_lossy(state: PartitionState, **known: Any) -> PartitionState:
    lossy = known.pop("lossy")
    return _elect(state, **known | {"alive": {*known["alive"], *lossy}})


async def _keep_mark(registration: StoreRegistration, last: Any) -> int:
    return 0


def _elect_outside_isr(state: PartitionState, **known: Any) -> PartitionState:
    elected = _elect(state, **known)
    others = [one for one in state.replicas if one in known["alive"] and one not in state.isr]
    if elected.leader == state.leader or not others:
        return elected
    return replace(elected, leader=others[0], isr=(others[0],))


def _change_in_same_epoch(state: PartitionState, **changes: Any) -> PartitionState:
    return _changed(state, **changes | {"is_new_leader": False})


def _committed_at_once(_partition: Partition, _offset: int, callback: Any) -> None:
    callback(None)


_elect = elections.elect
_changed = election._changed


class Mutation(NamedTuple):
    """A bug, as attributes to replace, and what it must be seen to violate."""

    violates: Invariant
    patches: Sequence[tuple[Any, str, Any]]
    #: Whether it takes a controller that has lost its disk.
    loses_controller: bool = False
    #: Whether it is a bug of clusters with a metadata store.
    is_replicated: bool = False
    #: From which seed on to look for it: one that finds it soon.
    first_seed: int = 0


_COMPARES_LENGTHS = (
    MetadataImage,
    "contains",
    lambda _image, position, end_offset: position.offset <= end_offset,
)
_CHECKS_NO_POSITION = (controller.Controller, "_check_position", lambda _controller, _request: None)

MUTATIONS: dict[str, Mutation] = {
    "followers compare only lengths": Mutation(
        Invariant.METADATA_LOG, [_COMPARES_LENGTHS], loses_controller=True
    ),
    "a follower's position is not checked": Mutation(
        Invariant.METADATA_LOG, [_CHECKS_NO_POSITION], loses_controller=True
    ),
    "followers delete what the controller does not have": Mutation(
        Invariant.DATA_STAYS,
        [_COMPARES_LENGTHS, _CHECKS_NO_POSITION, (Topics, "_remove_log", _delete_log)],
        loses_controller=True,
    ),
    "producer ids are not skipped at start": Mutation(
        Invariant.PRODUCER_IDS,
        [(controller, "_MAX_SKIPPED_PRODUCER_IDS", 1)],
        loses_controller=True,
    ),
    "a commit is acked before it is stored": Mutation(
        Invariant.OFFSETS, [(ShardRuntime, "_append", _append_no_offsets)]
    ),
    "a topic is acked before it is fsynced": Mutation(
        Invariant.TOPICS_STAY, [(Partition, "when_flushed", _flushed_at_once)]
    ),
    "a restart keeps the leader epoch": Mutation(
        Invariant.LEADERS,
        [(Topics, "next_leader_epoch", lambda topics: max(_next_leader_epoch(topics) - 1, 0))],
    ),
    "members get each other's assignments": Mutation(
        Invariant.ASSIGNMENTS, [(group, "sync_response", _whole_assignment)]
    ),
    "a producer is acked before its id is stored": Mutation(
        Invariant.PRODUCER_EPOCHS, [(ShardRuntime, "_append", _append_no_producers)]
    ),
    "a decision is acked before it is stored": Mutation(
        Invariant.DECISIONS, [(ShardRuntime, "_append", _append_no_decisions)]
    ),
    "sessions and rebalances never expire": Mutation(
        Invariant.PROGRESS, [(GroupShard, "expire", _expire_nothing)]
    ),
    "the high watermark does not wait for followers": Mutation(
        Invariant.HIGH_WATERMARK,
        [(FollowerProgress, "high_watermark", _high_watermark_of_leader)],
        is_replicated=True,
        first_seed=6,
    ),
    "acks=all does not wait for followers": Mutation(
        Invariant.ACKED,
        [(Partition, "when_committed", _committed_at_once)],
        is_replicated=True,
        first_seed=32,
    ),
    "a broker that has lost records stays in the ISR": Mutation(
        Invariant.HIGH_WATERMARK,
        [(elections, "elect", _elect_lossy)],
        is_replicated=True,
        first_seed=9,
    ),
    "an older copy of a disk is taken for the latest": Mutation(
        Invariant.ACKED,
        [(StoreRegistration, "_raise_mark", _keep_mark)],
        is_replicated=True,
        first_seed=15,
    ),
    "a broker outside the ISR is elected": Mutation(
        Invariant.STATES,
        [(elections, "elect", _elect_outside_isr)],
        is_replicated=True,
        first_seed=9,
    ),
    "a new leader keeps the leader epoch": Mutation(
        Invariant.STATES, [(election, "_changed", _change_in_same_epoch)], is_replicated=True
    ),
}


@contextmanager
def mutated(name: str) -> Iterator[None]:
    """Run with one of the mutations."""
    with ExitStack() as stack:
        for target, attribute, value in MUTATIONS[name].patches:
            stack.enter_context(patch.object(target, attribute, value))
        yield
