"""Acknowledgements in ShareFetch and ShareAcknowledge: applied at once, answered when stored."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from ottla.coord.consumer.partitions import TopicIdPartition
from ottla.coord.errors import GroupError
from ottla.coord.share.partition import AcknowledgementBatch, AcknowledgeType
from ottla.protocol.errors import ErrorCode

from ..requests.authorization import READ, TOPIC, check
from ..requests.errors import EXPECTED_ERRORS, ApiError
from ..requests.slices import in_slices
from .led_share_partition import as_api_error, now_ms
from .persister import SharePartitionKey
from .share_sessions import SessionKey

if TYPE_CHECKING:
    from ottla.coord.config import ShareGroupConfig
    from ottla.protocol.api.share_acknowledge import AcknowledgementBatch as WireBatch

    from ..broker import Broker
    from ..requests.dispatch import RequestContext
    from .share_partitions import SharePartitions

#: What becomes of the acknowledgements of a partition: an error, or that they are being stored.
Outcome = ApiError | asyncio.Future[None]


class AcknowledgedPartition(Protocol):
    """A partition of a request."""

    @property
    def partition_index(self) -> int:
        """The partition."""

    @property
    def acknowledgement_batches(self) -> Sequence[WireBatch]:
        """What is acknowledged."""


class AcknowledgedTopic(Protocol):
    """A topic of a request."""

    @property
    def topic_id(self) -> UUID:
        """The topic."""

    @property
    def partitions(self) -> Sequence[AcknowledgedPartition]:
        """Its partitions."""


def check_topic(broker: Broker, context: RequestContext, topic_id: UUID) -> None:
    """Raise ApiError if the client may not read a topic; nothing if no topic has the id."""
    topic = broker.topics.image.topics_by_id.get(topic_id)
    if topic is not None:
        check(broker, context, READ, TOPIC, topic.name)


def acknowledge(
    broker: Broker,
    context: RequestContext,
    session: SessionKey,
    topics: Iterable[AcknowledgedTopic],
    *,
    is_renew_ack: bool,
) -> dict[TopicIdPartition, Outcome]:
    """Apply the acknowledgements of a request; return the outcome of each partition with some.

    A partition that a request names twice is acknowledged twice, and gets the later outcome.
    """
    config = broker.shares.config_of(session.group_id)
    may_renew = is_renew_ack and config.may_renew
    return {
        tp: _acknowledge(broker, context, session, tp, batches, config, may_renew=may_renew)
        for tp, batches in _acknowledged(topics)
    }


async def acknowledge_in_slices(
    broker: Broker,
    context: RequestContext,
    session: SessionKey,
    topics: Iterable[AcknowledgedTopic],
    *,
    is_renew_ack: bool,
) -> dict[TopicIdPartition, Outcome]:
    """Do the same for a large request, giving way to other tasks."""
    config = broker.shares.config_of(session.group_id)
    may_renew = is_renew_ack and config.may_renew
    outcomes: dict[TopicIdPartition, Outcome] = {}
    async for partitions in in_slices(_acknowledged(topics)):
        for tp, batches in partitions:
            outcomes[tp] = _acknowledge(
                broker, context, session, tp, batches, config, may_renew=may_renew
            )
    return outcomes


def _acknowledged(
    topics: Iterable[AcknowledgedTopic],
) -> Iterator[tuple[TopicIdPartition, Sequence[WireBatch]]]:
    for topic in topics:
        for partition in topic.partitions:
            if partition.acknowledgement_batches:
                tp = TopicIdPartition(topic.topic_id, partition.partition_index)
                yield tp, partition.acknowledgement_batches


def _acknowledge(
    broker: Broker,
    context: RequestContext,
    session: SessionKey,
    tp: TopicIdPartition,
    batches: Sequence[WireBatch],
    config: ShareGroupConfig,
    *,
    may_renew: bool,
) -> Outcome:
    shares = broker.shares
    try:
        check_topic(broker, context, tp.topic_id)
        led = shares.find(SharePartitionKey(session.group_id, tp))
        if led is None or led.records is None or led.error is not None:
            # Whatever the member had acquired, it was from an earlier leader.
            raise ApiError(ErrorCode.INVALID_RECORD_STATE)
        led.configure(config)
        counts = led.records.acknowledge(
            session.member_id,
            [
                AcknowledgementBatch(one.first_offset, one.last_offset, one.acknowledge_types)
                for one in batches
            ],
            now_ms(),
            may_renew=may_renew,
        )
    except GroupError as error:
        return ApiError(error.code, str(error))
    except EXPECTED_ERRORS as error:
        return as_api_error(error)
    _count(shares, counts)
    stored = led.store()
    led.wake()  # Released records, or room for others.
    return stored


def _count(shares: SharePartitions, counts: Mapping[AcknowledgeType, int]) -> None:
    for kind, count in counts.items():
        shares.counts.acknowledged[kind.name.lower()] += count


async def error_of(outcome: Outcome) -> ApiError | None:
    """Wait until acknowledgements are stored; return the error if they are not."""
    if isinstance(outcome, ApiError):
        return outcome
    try:
        await asyncio.shield(outcome)
    except ApiError as error:
        return error
    return None
