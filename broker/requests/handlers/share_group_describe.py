"""ShareGroupDescribe: the state of share groups, their members and assignments (KIP-932)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ottla.protocol.api.share_group_describe import (
    DescribedGroup,
    Member,
    ShareGroupDescribeRequest,
    ShareGroupDescribeResponse,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DENIED, DESCRIBE, GROUP, TOPIC, allows, authorized_operations
from .consumer_group_describe import described_assignment, may_see_topics

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ottla.coord.consumer.partitions import TopicIdPartition
    from ottla.coord.share.group import ShareGroup, ShareMember

    from ...broker import Broker
    from ..dispatch import RequestContext

_ASSIGNOR = "simple"


def handle(
    broker: Broker, context: RequestContext, request: ShareGroupDescribeRequest
) -> ShareGroupDescribeResponse:
    """Handle ShareGroupDescribe."""
    includes_operations = request.include_authorized_operations
    return ShareGroupDescribeResponse(
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
    if group is None or group.type != "share":
        problem = "not found" if group is None else "not a share group"
        return _error(group_id, ErrorCode.GROUP_ID_NOT_FOUND, f"Group {group_id} is {problem}")
    assigned = (tp for member in group.members.values() for tp in _assigned(group, member))
    if not may_see_topics(broker, context, group.subscribed_topics(), assigned):
        return _error(group_id, DENIED[TOPIC])
    return DescribedGroup(
        group_id=group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch or group.epoch,
        assignor_name=_ASSIGNOR,
        members=[_member(broker, group, member) for member in group.members.values()],
        authorized_operations=authorized_operations(
            broker, context, GROUP, group_id, is_requested=includes_operations
        ),
    )


def _error(group_id: str, code: ErrorCode, message: str | None = None) -> DescribedGroup:
    return DescribedGroup(error_code=code, error_message=message or code.message, group_id=group_id)


def _member(broker: Broker, group: ShareGroup, member: ShareMember) -> Member:
    metadata = member.metadata
    return Member(
        member_id=member.id,
        rack_id=metadata.rack_id,
        member_epoch=max(member.epoch, 0),
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.topics),
        assignment=described_assignment(broker, _assigned(group, member)),
    )


def _assigned(group: ShareGroup, member: ShareMember) -> Iterable[TopicIdPartition]:
    return member.assigned or group.target_of(member.id)
