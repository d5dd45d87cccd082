"""Forwarding of clients' requests to the controller.

Requests are forwarded unchanged, and so are the responses, in an envelope with the principal and
address of the client: the controller authorizes the client, not this broker. While the controller
is down each topic or resource of a request fails with BROKER_NOT_AVAILABLE and a message that names
the controller: clients do not retry it, and their users see why.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ottla.client.config import ClientConfig, TimeoutConfig
from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientError, ConnectionLostError
from ottla.protocol import registry
from ottla.protocol.api import (
    alter_client_quotas,
    alter_configs,
    alter_partition_reassignments,
    alter_user_scram_credentials,
    create_acls,
    create_partitions,
    create_topics,
    delete_acls,
    delete_topics,
    elect_leaders,
    incremental_alter_configs,
)
from ottla.protocol.api.allocate_producer_ids import (
    AllocateProducerIdsRequest,
    AllocateProducerIdsResponse,
)
from ottla.protocol.api.envelope import EnvelopeRequest, EnvelopeResponse
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.errors import DecodeError, ErrorCode, KafkaError
from ottla.protocol.principal import encode_principal
from ottla.protocol.schema import Message

from ..requests.dispatch import ForwardedContext
from ..requests.errors import ApiError, error_message_of

if TYPE_CHECKING:
    from ..broker import Broker
    from ..config.broker_config import BrokerConfig
    from ..net.listeners import Endpoint
    from ..requests.dispatch import RequestContext
    from .membership import ClusterMembership
    from .registration import BrokerRegistrar

M = TypeVar("M", bound=Message)

_CLIENT_ID = "ottla-broker-"
_SIZE_BYTES = 4
#: Of a client whose address is not known.
_NO_ADDRESS = bytes(4)
#: Added to the client's timeout_ms, of which at most _MAX_TIMEOUT_SECONDS count.
_GRACE_SECONDS = 5.0
_MAX_TIMEOUT_SECONDS = 120.0
_DEFAULT_TIMEOUT_SECONDS = 30.0


class ControllerChannel:
    """A connection to the controller, opened on demand and reopened when it is lost."""

    def __init__(self, cluster: ClusterMembership) -> None:
        self._cluster = cluster
        self._config = client_config(cluster.config)
        #: Registers connections; set when the broker starts.
        self.registrar: BrokerRegistrar | None = None
        self._connection: BrokerConnection | None = None
        self._endpoint: Endpoint | None = None
        self._broker_epoch = -1
        self._connect_lock = asyncio.Lock()

    async def send(
        self,
        request: Message,
        response: type[M],
        *,
        version: int | None = None,
        client: RequestContext | None = None,
    ) -> M:
        """Send a request and return the response. Raises ApiError if the controller is down.

        With `client`, the request is one of this client, and has its rights.
        """
        try:
            connection = await self._connected()
            return await send_for(connection, client, request, response, version)
        except (ClientError, KafkaError, ApiError) as error:
            raise self._unavailable(error) from error

    async def allocate_producer_ids(self) -> range:
        """Request a block of producer ids. Raises ApiError."""
        try:
            connection = await self._connected()
        except (ClientError, KafkaError, ApiError) as error:
            raise self._unavailable(error) from error
        request = AllocateProducerIdsRequest(
            broker_id=self._cluster.broker_id, broker_epoch=self._broker_epoch
        )
        response = await self.send(request, AllocateProducerIdsResponse)
        if response.error_code:
            connection.close()  # The next one registers again.
            raise ApiError(ErrorCode(response.error_code))
        start = response.producer_id_start
        return range(start, start + response.producer_id_len)

    def _unavailable(self, error: Exception) -> ApiError:
        return ApiError(
            ErrorCode.BROKER_NOT_AVAILABLE,
            f"The controller, broker {self._cluster.controller_id}, is not available: {error}",
        )

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()

    async def _connected(self) -> BrokerConnection:
        async with self._connect_lock:
            endpoint = self._cluster.controller_endpoint
            if endpoint != self._endpoint:
                # With a metadata store, the controller changes.
                self.close()
                self._connection = None
            if self._connection is None or not self._connection.is_open:
                connection = await BrokerConnection.open(endpoint.host, endpoint.port, self._config)
                self._endpoint = endpoint
                try:
                    if self.registrar is not None:
                        response = await self.registrar.register(connection)
                        self._broker_epoch = response.broker_epoch
                except BaseException:
                    connection.close()
                    raise
                self._connection = connection
            return self._connection


async def send_for(
    connection: BrokerConnection,
    client: RequestContext | None,
    request: Message,
    response: type[M],
    max_version: int | None,
) -> M:
    """Send a request of this broker; with `client`, one of a client of it, in an envelope."""
    seconds = request_timeout_seconds(request)
    if client is None or registry.ENVELOPE.key not in connection.versions:
        # Brokers that do not know envelopes do not know rights either.
        return await connection.send(request, response, timeout=seconds, max_version=max_version)
    assert request.api is not None
    version = connection.version_for(request.api, max_version)
    parts = encode_request(request, version, client.correlation_id, client.client_id)
    principal = client.principal
    envelope = EnvelopeRequest(
        request_data=b"".join(parts)[_SIZE_BYTES:],
        request_principal=encode_principal(principal.type, principal.name),
        client_host_address=_address_of(client.client_host),
    )
    answer = await connection.send(envelope, EnvelopeResponse, timeout=seconds)
    if answer.error_code:
        raise ApiError(
            ErrorCode.of(answer.error_code),
            f"{connection.address} does not accept requests that this broker forwards:"
            " is its principal one of super.users?",
        )
    try:
        return decode_response(response, version, answer.response_data or b"")[1]
    except DecodeError as error:
        raise ConnectionLostError(
            f"Malformed response from {connection.address}: {error}"
        ) from None


def _address_of(host: str) -> bytes:
    try:
        return ip_address(host.partition("%")[0]).packed
    except ValueError:
        return _NO_ADDRESS


def request_timeout_seconds(request: Message) -> float:
    """Return how long to wait for the controller: the client's timeout, and a little more."""
    timeout_ms: int = getattr(request, "timeout_ms", 0)
    if timeout_ms <= 0:
        return _DEFAULT_TIMEOUT_SECONDS
    return min(timeout_ms / 1000, _MAX_TIMEOUT_SECONDS) + _GRACE_SECONDS


def client_config(config: BrokerConfig) -> ClientConfig:
    """Return the client config for connections between brokers. Raises ConfigError."""
    security = None
    if config.has_security:
        # Most brokers on one machine do not need it.
        from ..security.inter_broker import inter_broker_security  # noqa: PLC0415

        security = inter_broker_security(config)
    return ClientConfig(
        client_id=f"{_CLIENT_ID}{config.broker_id}",
        timeouts=TimeoutConfig(connect=3.0),
        security=security,
    )


def is_from_broker(context: RequestContext) -> bool:
    """Whether a request says that a broker sent it: it must not be forwarded once more."""
    return isinstance(context, ForwardedContext) or (context.client_id or "").startswith(_CLIENT_ID)


async def forward(broker: Broker, context: RequestContext, request: Message) -> Message:
    """Forward a request to the controller and return its response."""
    try:
        if is_from_broker(context):
            raise ApiError(
                ErrorCode.NOT_CONTROLLER,
                f"{context.client_id} expects broker {broker.id} to be the controller, but it is"
                f" broker {broker.cluster.controller_id}"
                + ("" if broker.store else ": cluster.brokers must be the same on all brokers"),
            )
        return await broker.controller_channel.send(
            request, context.api.response, version=context.version, client=context
        )
    except ApiError as error:
        error_response = FORWARDED[context.api.key]
        return error_response(cast(Any, request), error)


def _create_topics_error(
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


def _delete_topics_error(
    request: delete_topics.DeleteTopicsRequest, error: ApiError
) -> delete_topics.DeleteTopicsResponse:
    topics = [(topic.name, topic.topic_id) for topic in request.topics]
    no_id = delete_topics.DeletableTopicResult().topic_id
    return delete_topics.DeleteTopicsResponse(
        responses=[
            delete_topics.DeletableTopicResult(
                name=name,
                topic_id=topic_id,
                error_code=error.code,
                error_message=error_message_of(error),
            )
            for name, topic_id in topics or [(name, no_id) for name in request.topic_names]
        ]
    )


def _create_partitions_error(
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


def _alter_configs_error(
    response: Callable[..., Message], request: Any, error: ApiError
) -> Message:
    """Both APIs that alter configs have the same response fields."""
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


def _create_acls_error(
    request: create_acls.CreateAclsRequest, error: ApiError
) -> create_acls.CreateAclsResponse:
    result = create_acls.AclCreationResult(
        error_code=error.code, error_message=error_message_of(error)
    )
    return create_acls.CreateAclsResponse(results=[result] * len(request.creations))


def _delete_acls_error(
    request: delete_acls.DeleteAclsRequest, error: ApiError
) -> delete_acls.DeleteAclsResponse:
    result = delete_acls.DeleteAclsFilterResult(
        error_code=error.code, error_message=error_message_of(error)
    )
    return delete_acls.DeleteAclsResponse(filter_results=[result] * len(request.filters))


def _alter_client_quotas_error(
    request: alter_client_quotas.AlterClientQuotasRequest, error: ApiError
) -> alter_client_quotas.AlterClientQuotasResponse:
    return alter_client_quotas.AlterClientQuotasResponse(
        entries=[
            alter_client_quotas.AlterClientQuotasEntryResult(
                error_code=error.code, error_message=error_message_of(error), entity=entry.entity
            )
            for entry in request.entries
        ]
    )


def _elect_leaders_error(
    request: elect_leaders.ElectLeadersRequest, error: ApiError
) -> elect_leaders.ElectLeadersResponse:
    return elect_leaders.ElectLeadersResponse(
        error_code=error.code,
        replica_election_results=[
            elect_leaders.ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    elect_leaders.PartitionResult(
                        partition_id=index,
                        error_code=error.code,
                        error_message=error_message_of(error),
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _reassignments_error(
    _request: Message, error: ApiError
) -> alter_partition_reassignments.AlterPartitionReassignmentsResponse:
    return alter_partition_reassignments.AlterPartitionReassignmentsResponse(
        error_code=error.code, error_message=error_message_of(error)
    )


def _alter_credentials_error(
    request: alter_user_scram_credentials.AlterUserScramCredentialsRequest, error: ApiError
) -> alter_user_scram_credentials.AlterUserScramCredentialsResponse:
    names = [one.name for one in request.deletions] + [one.name for one in request.upsertions]
    return alter_user_scram_credentials.AlterUserScramCredentialsResponse(
        results=[
            alter_user_scram_credentials.AlterUserScramCredentialsResult(
                user=name, error_code=error.code, error_message=error_message_of(error)
            )
            for name in dict.fromkeys(names)
        ]
    )


#: The APIs that are forwarded, each with the function that builds its error response.
FORWARDED: Mapping[int, Callable[[Any, ApiError], Message]] = {
    registry.CREATE_TOPICS.key: _create_topics_error,
    registry.DELETE_TOPICS.key: _delete_topics_error,
    registry.CREATE_PARTITIONS.key: _create_partitions_error,
    registry.CREATE_ACLS.key: _create_acls_error,
    registry.DELETE_ACLS.key: _delete_acls_error,
    registry.ALTER_CLIENT_QUOTAS.key: _alter_client_quotas_error,
    registry.ALTER_CONFIGS.key: partial(_alter_configs_error, alter_configs.AlterConfigsResponse),
    registry.INCREMENTAL_ALTER_CONFIGS.key: partial(
        _alter_configs_error, incremental_alter_configs.IncrementalAlterConfigsResponse
    ),
    registry.ELECT_LEADERS.key: _elect_leaders_error,
    registry.ALTER_PARTITION_REASSIGNMENTS.key: _reassignments_error,
    registry.ALTER_USER_SCRAM_CREDENTIALS.key: _alter_credentials_error,
}
