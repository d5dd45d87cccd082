"""Registration of this broker with the controller, on each connection to it.

The broker reports how far it has replayed the metadata log, and in which controller epoch. A
controller without that epoch, or with less of it, has another log: it was restored from an old
copy, lost its data directory, or is new. It is not followed, because its topics would replace the
ones on this broker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import uuid4

from ottla.protocol.api.broker_registration import (
    BrokerRegistrationRequest,
    BrokerRegistrationResponse,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import NIL_UUID

from ..requests.errors import ApiError

if TYPE_CHECKING:
    from ottla.client.connection import BrokerConnection

    from ..partitions.topics import Topics
    from .membership import ClusterMembership

_REQUEST_SECONDS = 5.0


class OtherMetadataLogError(ApiError):
    """The controller's metadata log is not the one that this broker has followed."""


class DuplicateBrokerError(ApiError):
    """Another process is registered with the id of this broker."""


class BrokerRegistrar:
    """Registers connections of this broker with the controller."""

    def __init__(self, cluster: ClusterMembership, topics: Topics, cluster_id: str) -> None:
        self._cluster = cluster
        self._topics = topics
        self._cluster_id = cluster_id
        #: The id of the data directory; a new one is stored with the first metadata.
        self.directory = topics.image.directory or uuid4()
        #: Whether the controller ever accepted this process.
        self.was_registered = False

    async def register(self, connection: BrokerConnection) -> BrokerRegistrationResponse:
        """Register a connection, and lead in the epoch that the controller assigns.

        Raises OtherMetadataLogError, DuplicateBrokerError, or ApiError.
        """
        topics, cluster = self._topics, self._cluster
        position = topics.image.own_position(topics.metadata_log.end_offset)
        request = BrokerRegistrationRequest(
            broker_id=cluster.broker_id,
            cluster_id=self._cluster_id,
            incarnation_id=cluster.incarnation,
            metadata_offset=-1 if position is None else position.offset,
            metadata_epoch=-1 if position is None else position.epoch,
            metadata_epoch_id=NIL_UUID if position is None else position.epoch_id,
            leader_epoch=topics.leader_epoch,
            next_producer_id=topics.image.next_producer_id,
            directory_id=self.directory,
        )
        response = await connection.send(
            request, BrokerRegistrationResponse, timeout=_REQUEST_SECONDS
        )
        if response.error_code:
            raise self._error(connection, ErrorCode(response.error_code), response.error_message)
        self.was_registered = True
        topics.start_leader_epoch(max(response.leader_epoch, topics.leader_epoch))
        return response

    def _error(self, connection: BrokerConnection, code: ErrorCode, message: str) -> ApiError:
        broker_id, address = self._cluster.broker_id, connection.address
        if code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
            return ApiError(
                code,
                f"{address} does not know broker {broker_id}: cluster.brokers must be the same on"
                f" all brokers, and super.users name them ({message})",
            )
        if code == ErrorCode.UNKNOWN_LEADER_EPOCH:
            return OtherMetadataLogError(
                code,
                f"The controller at {address} has another metadata log: it has lost data, was"
                f" restored from an older copy, or is new ({message}). This broker keeps its"
                " topics and data, and serves them. Stop the controller, and restore its latest"
                " data directory; or, if it is a new broker, give it a higher id than the brokers"
                " that have the metadata",
            )
        if code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:
            return DuplicateBrokerError(
                code,
                f"{message}: the controller at {address} accepts one process per broker id. Stop"
                " the other process, or give this one an id of its own",
            )
        return ApiError(code, message or None)
