"""ConsumerGroupHeartbeat: join, stay in or leave a group of the consumer protocol (KIP-848).

Version 1 requires that the client generates the member id; before, the coordinator does.
"""

from __future__ import annotations

import asyncio
from base64 import urlsafe_b64encode
from typing import TYPE_CHECKING
from uuid import uuid4

from ottla.coord.consumer.coordinator import ConsumerHeartbeat, heartbeat_error
from ottla.coord.consumer.partitions import partitions_of
from ottla.protocol.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from ottla.protocol.errors import ErrorCode

from ..authorization import DENIED, DESCRIBE, TOPIC, allows

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

_FIRST_WITH_CLIENT_MEMBER_IDS = 1


def handle(
    broker: Broker, context: RequestContext, request: ConsumerGroupHeartbeatRequest
) -> ConsumerGroupHeartbeatResponse | asyncio.Future[ConsumerGroupHeartbeatResponse]:
    """Handle ConsumerGroupHeartbeat."""
    if "consumer" not in broker.config.group_protocols:
        return heartbeat_error(
            ErrorCode.UNSUPPORTED_VERSION,
            "The consumer group protocol is not enabled: see group.coordinator.rebalance.protocols",
        )
    for name in ("group_id", "instance_id", "rack_id"):
        if getattr(request, name) == "":
            label = "".join(word.capitalize() for word in name.split("_"))
            return heartbeat_error(ErrorCode.INVALID_REQUEST, f"{label} must not be empty")
    member_id = request.member_id
    if not member_id:
        if context.version >= _FIRST_WITH_CLIENT_MEMBER_IDS or request.member_epoch != 0:
            return heartbeat_error(ErrorCode.INVALID_REQUEST, "MemberId must not be empty")
        member_id = _new_member_id()
    may_see = None
    if broker.authorizer is not None:

        def may_see(name: str) -> bool:
            return allows(broker, context, DESCRIBE, TOPIC, name, logs=False)

        for name in request.subscribed_topic_names or ():
            if not allows(broker, context, DESCRIBE, TOPIC, name):
                return heartbeat_error(DENIED[TOPIC])
    owned = request.topic_partitions
    topics = request.subscribed_topic_names
    heartbeat = ConsumerHeartbeat(
        group_id=request.group_id,
        member_id=member_id,
        epoch=request.member_epoch,
        client_id=context.client_id or "",
        client_host=f"/{context.connection.peer}",
        instance_id=request.instance_id,
        rack_id=request.rack_id,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        topics=None if topics is None else tuple(topics),
        regex=request.subscribed_topic_regex,
        assignor=request.server_assignor,
        owned=None if owned is None else partitions_of(owned),
        may_see=may_see,
    )
    return broker.groups.submit(
        request.group_id,
        lambda shard, token, now: shard.consumer_heartbeat(heartbeat, token, now),
        heartbeat_error,
    )


def _new_member_id() -> str:
    """Return a random id in the form of Kafka's: 22 characters of base64."""
    member_id = urlsafe_b64encode(uuid4().bytes).rstrip(b"=").decode()
    return _new_member_id() if member_id.startswith("-") else member_id
