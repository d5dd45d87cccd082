"""The state of share partitions, which their leaders read and write at the group's coordinator.

The coordinator may be this broker: then nothing goes over the network.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple

from ottla.coord.effects import Reply
from ottla.coord.share.state import RecordState, ShareState, StateBatch
from ottla.protocol.api.read_share_group_state import (
    PartitionData as ReadPartition,
)
from ottla.protocol.api.read_share_group_state import (
    ReadShareGroupStateRequest,
    ReadShareGroupStateResponse,
    ReadStateData,
)
from ottla.protocol.api.read_share_group_state import (
    StateBatch as WireBatch,
)
from ottla.protocol.api.write_share_group_state import (
    PartitionData as WritePartition,
)
from ottla.protocol.api.write_share_group_state import (
    WriteShareGroupStateRequest,
    WriteShareGroupStateResponse,
    WriteStateData,
)
from ottla.protocol.errors import ErrorCode

from ..requests.errors import ApiError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ottla.coord.consumer.partitions import TopicIdPartition

    from ..broker import Broker

_READ_VERSION = 0
_WRITE_VERSION = 1


class SharePartitionKey(NamedTuple):
    """A group, and a partition that it reads."""

    group_id: str
    partition: TopicIdPartition


class WrittenState(NamedTuple):
    """What a leader writes: the epochs of its ownership, and the state."""

    state_epoch: int
    leader_epoch: int
    start_offset: int
    batches: Sequence[StateBatch]


async def read_state(broker: Broker, key: SharePartitionKey, leader_epoch: int) -> ShareState:
    """Become the owner of a state, and return it. Raises ApiError."""
    coordinator_id = _coordinator_of(broker, key.group_id)
    if coordinator_id == broker.id:
        code, state = await read_here(broker, key, leader_epoch)
        if state is None:
            raise ApiError(code)
        return state
    topic_id, index = key.partition
    request = ReadShareGroupStateRequest(
        group_id=key.group_id,
        topics=[
            ReadStateData(
                topic_id=topic_id,
                partitions=[ReadPartition(partition=index, leader_epoch=leader_epoch)],
            )
        ],
    )
    response = await broker.channels.send(
        coordinator_id, request, ReadShareGroupStateResponse, _READ_VERSION
    )
    result = response.results[0].partitions[0]
    if result.error_code:
        raise ApiError(ErrorCode.of(result.error_code), result.error_message)
    return ShareState(
        result.state_epoch, leader_epoch, result.start_offset, batches_of(result.state_batches)
    )


async def write_state(broker: Broker, key: SharePartitionKey, state: WrittenState) -> None:
    """Store a state as its owner. Raises ApiError."""
    coordinator_id = _coordinator_of(broker, key.group_id)
    if coordinator_id == broker.id:
        code = await write_here(broker, key, state)
        if code is not ErrorCode.NONE:
            raise ApiError(code)
        return
    topic_id, index = key.partition
    partition = WritePartition(
        partition=index,
        state_epoch=state.state_epoch,
        leader_epoch=state.leader_epoch,
        start_offset=state.start_offset,
        delivery_complete_count=sum(
            one.last - one.first + 1 for one in state.batches if one.state.is_final
        ),
        state_batches=wire_batches(state.batches),
    )
    request = WriteShareGroupStateRequest(
        group_id=key.group_id,
        topics=[WriteStateData(topic_id=topic_id, partitions=[partition])],
    )
    response = await broker.channels.send(
        coordinator_id, request, WriteShareGroupStateResponse, _WRITE_VERSION
    )
    result = response.results[0].partitions[0]
    if result.error_code:
        raise ApiError(ErrorCode.of(result.error_code), result.error_message)


async def read_here(
    broker: Broker, key: SharePartitionKey, leader_epoch: int
) -> tuple[ErrorCode, ShareState | None]:
    """Read a state of a group that this broker coordinates."""
    result: (
        tuple[ErrorCode, ShareState | None] | asyncio.Future[tuple[ErrorCode, ShareState | None]]
    ) = broker.groups.submit(
        key.group_id,
        lambda shard, token, now: shard.share_groups.read_state(
            *key, leader_epoch, lambda code, state: Reply(token, (code, state)), now
        ),
        lambda code: (code, None),
    )
    return await result if isinstance(result, asyncio.Future) else result


async def write_here(broker: Broker, key: SharePartitionKey, state: WrittenState) -> ErrorCode:
    """Write a state of a group that this broker coordinates."""
    result: ErrorCode | asyncio.Future[ErrorCode] = broker.groups.submit(
        key.group_id,
        lambda shard, token, now: shard.share_groups.write_state(
            *key,
            (state.state_epoch, state.leader_epoch),
            state.start_offset,
            state.batches,
            lambda code: Reply(token, code),
            now,
        ),
        lambda code: code,
    )
    return await result if isinstance(result, asyncio.Future) else result


def batches_of(batches: Iterable[WireBatch]) -> tuple[StateBatch, ...]:
    """Return the batches of a message. Raises ApiError."""
    try:
        return tuple(
            StateBatch(
                one.first_offset,
                one.last_offset,
                RecordState(one.delivery_state),
                one.delivery_count,
            )
            for one in batches
        )
    except ValueError as error:
        raise ApiError(ErrorCode.INVALID_REQUEST, str(error)) from None


def wire_batches(batches: Iterable[StateBatch]) -> list[WireBatch]:
    """Return batches as a message has them."""
    return [
        WireBatch(
            first_offset=one.first,
            last_offset=one.last,
            delivery_state=one.state,
            delivery_count=one.delivery_count,
        )
        for one in batches
    ]


def _coordinator_of(broker: Broker, group_id: str) -> int:
    coordinator_id = broker.groups.coordinator_of(group_id)
    if coordinator_id < 0:
        raise ApiError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return coordinator_id
