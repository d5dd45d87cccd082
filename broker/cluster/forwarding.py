"""What a broker that is not the controller asks the controller for, on behalf of its clients.

The request goes on as it came, and the answer comes back as it is. While the controller is down
each thing that was asked for is answered with BROKER_NOT_AVAILABLE, and says which broker that is:
clients take it for final, and their user knows.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ottla.client.config import ClientConfig, TimeoutConfig
from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientError
from ottla.protocol import registry
from ottla.protocol.api import (
    alter_configs,
    create_partitions,
    create_topics,
    delete_topics,
    incremental_alter_configs,
)
from ottla.protocol.api.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.schema import Message

from ..requests.errors import ApiError, error_message_of

if TYPE_CHECKING:
    from ..broker import Broker
    from ..requests.dispatch import RequestContext
    from .membership import ClusterMembership

M = TypeVar("M", bound=Message)

_CLIENT_ID = "ottla-broker-"
#: How long the controller may take, beyond what the client allows it; and the most of that.
_GRACE_SECONDS = 5.0
_MOST_SECONDS = 120.0
_REQUEST_SECONDS = 30.0


class ControllerChannel:
    """A connection to the controller, made when it is needed, and again when it was lost."""

    def __init__(self, cluster: ClusterMembership) -> None:
        self._cluster = cluster
        self._config = client_config(cluster.broker_id)
        self._connection: BrokerConnection | None = None
        self._connecting = asyncio.Lock()

    async def request(
        self, request: Message, response: type[M], *, version: int | None = None
    ) -> M:
        """Ask the controller. Raises ApiError if it is down."""
        timeout_ms: int = getattr(request, "timeout_ms", 0)
        allowed = min(timeout_ms / 1000, _MOST_SECONDS)
        seconds = allowed + _GRACE_SECONDS if timeout_ms > 0 else _REQUEST_SECONDS
        try:
            connection = await self._connected()
            return await connection.send(request, response, timeout=seconds, max_version=version)
        except (ClientError, KafkaError) as error:
            raise ApiError(
                ErrorCode.BROKER_NOT_AVAILABLE,
                f"broker {self._cluster.controller_id}, the controller, is not available: {error}",
            ) from error

    async def allocate_producer_ids(self) -> range:
        """Get a block of producer ids. Raises ApiError."""
        request = AllocateProducerIdsRequest(broker_id=self._cluster.broker_id)
        answer = await self.request(request, AllocateProducerIdsResponse)
        if answer.error_code:
            raise ApiError(ErrorCode(answer.error_code))
        return range(answer.producer_id_start, answer.producer_id_start + answer.producer_id_len)

    def close(self) -> None:
        """End."""
        if self._connection is not None:
            self._connection.close()

    async def _connected(self) -> BrokerConnection:
        async with self._connecting:
            if self._connection is None or not self._connection.is_open:
                address = self._cluster.controller_endpoint
                self._connection = await BrokerConnection.open(
                    address.host, address.port, self._config
                )
            return self._connection


def client_config(broker_id: int) -> ClientConfig:
    """Give what a broker is as a client of another one."""
    return ClientConfig(client_id=f"{_CLIENT_ID}{broker_id}", timeouts=TimeoutConfig(connect=3.0))


async def forward(broker: Broker, context: RequestContext, request: Message) -> Message:
    """Have the controller answer a request."""
    try:
        if (context.client_id or "").startswith(_CLIENT_ID):
            raise ApiError(
                ErrorCode.NOT_CONTROLLER,
                f"{context.client_id} takes broker {broker.id} for the controller, which"
                f" {broker.cluster.controller_id} is: the lists of brokers differ",
            )
        return await broker.controller_channel.request(
            request, context.api.response, version=context.version
        )
    except ApiError as error:
        refuse = FORWARDED[context.api.key]
        return refuse(cast(Any, request), error)


def _no_topics(
    request: create_topics.CreateTopicsRequest, error: ApiError
) -> create_topics.CreateTopicsResponse:
    return create_topics.CreateTopicsResponse(
        topics=[
            create_topics.CreatableTopicResult(
                name=topic.name, error_code=error.code, error_message=error_message_of(error)
            )
            for topic in request.topics
        ]
    )


def _no_deletions(
    request: delete_topics.DeleteTopicsRequest, error: ApiError
) -> delete_topics.DeleteTopicsResponse:
    named = [(topic.name, topic.topic_id) for topic in request.topics]
    nil = delete_topics.DeletableTopicResult().topic_id
    return delete_topics.DeleteTopicsResponse(
        responses=[
            delete_topics.DeletableTopicResult(
                name=name,
                topic_id=topic_id,
                error_code=error.code,
                error_message=error_message_of(error),
            )
            for name, topic_id in named or [(name, nil) for name in request.topic_names]
        ]
    )


def _no_partitions(
    request: create_partitions.CreatePartitionsRequest, error: ApiError
) -> create_partitions.CreatePartitionsResponse:
    return create_partitions.CreatePartitionsResponse(
        results=[
            create_partitions.CreatePartitionsTopicResult(
                name=topic.name, error_code=error.code, error_message=error_message_of(error)
            )
            for topic in request.topics
        ]
    )


def _no_configs(response: Callable[..., Message], request: Any, error: ApiError) -> Message:
    """Refuse to alter settings: the two apis for that have the same answer, by other names."""
    results = [
        alter_configs.AlterConfigsResourceResponse(
            error_code=error.code,
            error_message=error_message_of(error),
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )
        for resource in request.resources
    ]
    return response(responses=results)


#: The apis whose requests are for the controller, and how one is refused while that is down.
FORWARDED: Mapping[int, Callable[[Any, ApiError], Message]] = {
    registry.CREATE_TOPICS.key: _no_topics,
    registry.DELETE_TOPICS.key: _no_deletions,
    registry.CREATE_PARTITIONS.key: _no_partitions,
    registry.ALTER_CONFIGS.key: partial(_no_configs, alter_configs.AlterConfigsResponse),
    registry.INCREMENTAL_ALTER_CONFIGS.key: partial(
        _no_configs, incremental_alter_configs.IncrementalAlterConfigsResponse
    ),
}
