"""ConsumerGroupDescribe: the state of consumer groups, their members and assignments (KIP-848)."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from ottla.coord.consumer.partitions import TopicIdPartition, by_topic
from ottla.protocol.api.consumer_group_describe import (
    Assignment,
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
    DescribedGroup,
    Member,
    TopicPartitions,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DENIED, DESCRIBE, GROUP, TOPIC, allows, authorized_operations

if TYPE_CHECKING:
    from collections.abc import Iterable, Set

    from ottla.coord.consumer.group import ConsumerGroup
    from ottla.coord.consumer.member import ConsumerMember

    from ...broker import Broker
    from ..dispatch import RequestContext

_CLASSIC, _CONSUMER = 0, 1


def handle(
    broker: Broker, context: RequestContext, request: ConsumerGroupDescribeRequest
) -> ConsumerGroupDescribeResponse:
    """Handle ConsumerGroupDescribe."""
    includes_operations = request.include_authorized_operations
    return ConsumerGroupDescribeResponse(
        groups=[
            _describe(broker, context, group_id, includes_operations=includes_operations)
            for group_id in dict.fromkeys(request.group_ids)
        ]
    )


def _describe(
    broker: Broker, context: RequestContext, group_id: str, *, includes_operations: bool
) -> DescribedGroup:
    if not allows(broker, context, DESCRIBE, GROUP, group_id):
        return _error(group_id, DENIED[GROUP])
    code = broker.groups.check_existence(group_id) if group_id else ErrorCode.INVALID_GROUP_ID
    if code is not ErrorCode.NONE:
        return _error(group_id, code)
    group = broker.groups.group(group_id)
    if group is None or group.type != "consumer":
        problem = "not found" if group is None else "not a consumer group"
        return DescribedGroup(
            error_code=ErrorCode.GROUP_ID_NOT_FOUND,
            error_message=f"Group {group_id} is {problem}",
            group_id=group_id,
        )
    assigned = (
        tp
        for member in group.members.values()
        for tp in chain(member.current.held, group.target_of(member.id))
    )
    if not may_see_topics(broker, context, group.subscribed_topics(), assigned):
        return _error(group_id, DENIED[TOPIC])
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=group.preferred_assignor(broker.config.consumer_assignors),
        members=[_member(broker, group, member) for member in group.members.values()],
        authorized_operations=authorized_operations(
            broker, context, GROUP, group_id, is_requested=includes_operations
        ),
    )


def _error(group_id: str, code: ErrorCode) -> DescribedGroup:
    return DescribedGroup(error_code=code, error_message=code.message, group_id=group_id)


def _member(broker: Broker, group: ConsumerGroup, member: ConsumerMember) -> Member:
    metadata, current = member.metadata, member.current
    return Member(
        member_id=member.id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.topics),
        subscribed_topic_regex=metadata.regex or "",
        # With what it has yet to revoke.
        assignment=described_assignment(broker, current.held),
        target_assignment=described_assignment(broker, group.target_of(member.id)),
        member_type=_CLASSIC if member.is_classic else _CONSUMER,
    )


def may_see_topics(
    broker: Broker,
    context: RequestContext,
    subscribed: Set[str],
    assigned: Iterable[TopicIdPartition],
) -> bool:
    """Whether a client may describe all topics in the description of a group.

    Members may still have partitions of topics that nobody subscribes to any more.
    """
    if broker.authorizer is None:
        return True
    topics = broker.topics.image.topics_by_id
    topic_ids = {tp.topic_id for tp in assigned}
    names = subscribed | {topics[topic_id].name for topic_id in topic_ids if topic_id in topics}
    return all(allows(broker, context, DESCRIBE, TOPIC, name) for name in names)


def described_assignment(broker: Broker, partitions: Iterable[TopicIdPartition]) -> Assignment:
    """Return partitions as descriptions of groups have them, without those of deleted topics."""
    topics = broker.topics.image.topics_by_id
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic_id, topic_name=topics[topic_id].name, partitions=indexes)
            for topic_id, indexes in by_topic(partitions).items()
            if topic_id in topics
        ]
    )
