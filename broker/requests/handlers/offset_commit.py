"""OffsetCommit: commit the offsets of a group. Acknowledged once they are in the log.

Version 9 introduces GROUP_ID_NOT_FOUND; before it is ILLEGAL_GENERATION. Since version 10, topics
are given by id.
"""

from __future__ import annotations

import asyncio
from collections.abc import (
    Callable,
    Collection,
    Container,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ottla.coord.effects import Reply
from ottla.coord.group_shard import MemberIdentity, PartitionErrors
from ottla.coord.metadata_image import MetadataImage, TopicPartition
from ottla.coord.records import CommittedOffset
from ottla.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from ottla.protocol.api.txn_offset_commit import (
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DENIED, GROUP, READ, TOPIC, allows
from ..slices import in_slices, is_large, map_in_slices

if TYPE_CHECKING:
    from ottla.protocol.api.txn_offset_commit import TxnOffsetCommitRequest

    from ...broker import Broker
    from ..dispatch import RequestContext

T = TypeVar("T")

_FIRST_WITH_TOPIC_IDS = 10
#: Stands for the name of a topic whose id is unknown: no topic can have it.
_NO_TOPIC = "?"

_Topic = OffsetCommitRequestTopic | TxnOffsetCommitRequestTopic
_Partition = OffsetCommitRequestPartition | TxnOffsetCommitRequestPartition


def handle(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> (
    OffsetCommitResponse
    | asyncio.Future[OffsetCommitResponse]
    | Coroutine[Any, Any, OffsetCommitResponse]
):
    """Handle OffsetCommit."""
    group_id = request.group_id
    if is_large(request.topics):
        return _handle_in_slices(broker, context, request)
    if context.version >= _FIRST_WITH_TOPIC_IDS:
        named = partial(_with_name, broker.topics.image)
        request = _with_topics(request, list(map(named, request.topics)))
    code = _check_group(broker, context, group_id)
    if code is not ErrorCode.NONE:
        return _response(request, _Results(default=code))
    denied = _denied(broker, context, request.topics)
    offsets = _existing(broker, partitions_of(request), denied)
    return _commit(
        broker,
        context,
        request,
        offsets,
        lambda codes, code: _response(request, _Results(codes, code, denied)),
    )


async def _handle_in_slices(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest
) -> OffsetCommitResponse:
    code = _check_group(broker, context, request.group_id)
    results = _Results(default=code)
    if context.version >= _FIRST_WITH_TOPIC_IDS:
        named = partial(_with_name, broker.topics.image)
        request = _with_topics(request, await map_in_slices(named, request.topics))
    if code is ErrorCode.NONE:
        denied = await denied_topics(broker, context, request)
        offsets = await offsets_of_existing_partitions(broker, request, denied)
        committed = _commit(
            broker,
            context,
            request,
            offsets,
            lambda codes, code: _Results(codes, code, denied),
        )
        results = await committed if isinstance(committed, asyncio.Future) else committed
    of_topics: list[list[OffsetCommitResponsePartition]] = [[] for _topic in request.topics]
    entries = (
        (topic, of_topic, partition.partition_index)
        for topic, of_topic in zip(request.topics, of_topics, strict=True)
        for partition in topic.partitions
    )
    async for entries_of_slice in in_slices(entries):
        for topic, of_topic, index in entries_of_slice:
            of_topic.append(_partition_response(topic, index, results))
    topics = await map_in_slices(
        lambda pair: OffsetCommitResponseTopic(
            name=pair[0].name, topic_id=pair[0].topic_id, partitions=pair[1]
        ),
        zip(request.topics, of_topics, strict=True),
    )
    return OffsetCommitResponse(topics=topics)


def _with_name(image: MetadataImage, topic: OffsetCommitRequestTopic) -> OffsetCommitRequestTopic:
    """Return a topic with its name."""
    found = image.topics_by_id.get(topic.topic_id)
    return OffsetCommitRequestTopic(
        name=_NO_TOPIC if found is None else found.name,
        topic_id=topic.topic_id,
        partitions=topic.partitions,
    )


def _with_topics(
    request: OffsetCommitRequest, topics: Sequence[OffsetCommitRequestTopic]
) -> OffsetCommitRequest:
    return OffsetCommitRequest(
        group_id=request.group_id,
        generation_id_or_member_epoch=request.generation_id_or_member_epoch,
        member_id=request.member_id,
        group_instance_id=request.group_instance_id,
        topics=topics,
    )


def _check_group(broker: Broker, context: RequestContext, group_id: str) -> ErrorCode:
    if not group_id:
        return ErrorCode.INVALID_GROUP_ID
    is_allowed = allows(broker, context, READ, GROUP, group_id)
    return ErrorCode.NONE if is_allowed else DENIED[GROUP]


class _Results(NamedTuple):
    """The result of each partition, or else `default`, except for topics that are denied."""

    codes: Mapping[TopicPartition, ErrorCode] = MappingProxyType({})
    default: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    denied: Collection[str] = ()


def _commit(
    broker: Broker,
    context: RequestContext,
    request: OffsetCommitRequest,
    offsets: Mapping[TopicPartition, CommittedOffset],
    respond: Callable[[PartitionErrors, ErrorCode], T],
) -> T | asyncio.Future[T]:
    group_id = request.group_id
    identity = MemberIdentity(
        request.member_id, request.group_instance_id, request.generation_id_or_member_epoch
    )
    return broker.groups.submit(
        group_id,
        lambda shard, token, now: shard.commit(
            group_id,
            identity,
            offsets,
            lambda codes: Reply(token, respond(codes, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)),
            now,
            version=context.version,
        ),
        lambda code: respond({}, code),
    )


def partitions_of(
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
) -> Iterator[tuple[str, _Partition]]:
    """Yield the partitions of a request, each with its topic."""
    for topic in request.topics:
        for partition in topic.partitions:
            yield topic.name, partition


async def denied_topics(
    broker: Broker, context: RequestContext, request: OffsetCommitRequest | TxnOffsetCommitRequest
) -> set[str]:
    """Return the topics that the client may not read."""
    denied: set[str] = set()
    if broker.authorizer is not None:
        topics: Sequence[_Topic] = request.topics
        async for topics_of_slice in in_slices(topics):
            denied |= _denied(broker, context, topics_of_slice)
    return denied


def _denied(broker: Broker, context: RequestContext, topics: Iterable[_Topic]) -> set[str]:
    if broker.authorizer is None:
        return set()
    names = {topic.name for topic in topics}
    return {name for name in names if not allows(broker, context, READ, TOPIC, name)}


async def offsets_of_existing_partitions(
    broker: Broker,
    request: OffsetCommitRequest | TxnOffsetCommitRequest,
    denied: Container[str] = (),
) -> dict[TopicPartition, CommittedOffset]:
    """Return the offsets to commit, without those of partitions that are denied or do not exist."""
    offsets: dict[TopicPartition, CommittedOffset] = {}
    async for partitions in in_slices(partitions_of(request)):
        offsets |= _existing(broker, partitions, denied)
    return offsets


def _existing(
    broker: Broker, partitions: Iterable[tuple[str, _Partition]], denied: Container[str]
) -> dict[TopicPartition, CommittedOffset]:
    time_ms = broker.now_ms()
    image = broker.topics.image
    return {
        TopicPartition(topic, partition.partition_index): CommittedOffset(
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.committed_metadata or "",
            time_ms,
            image.topics[topic].id,
        )
        for topic, partition in partitions
        if image.has_partition(topic, partition.partition_index) and topic not in denied
    }


def _response(request: OffsetCommitRequest, results: _Results) -> OffsetCommitResponse:
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    _partition_response(topic, partition.partition_index, results)
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _partition_response(
    topic: OffsetCommitRequestTopic, index: int, results: _Results
) -> OffsetCommitResponsePartition:
    code = results.default
    if topic.name == _NO_TOPIC:
        if code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            code = ErrorCode.UNKNOWN_TOPIC_ID
    elif topic.name in results.denied:
        code = DENIED[TOPIC]
    else:
        code = results.codes.get(TopicPartition(topic.name, index), code)
    return OffsetCommitResponsePartition(partition_index=index, error_code=code)
