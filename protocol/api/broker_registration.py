"""BrokerRegistration (key 62): register a start of a broker; from a broker to the controller.

Version 0 is the first flexible version. The tagged fields from 10,000 on are ottla's.
"""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from ..primitives import NIL_UUID
from ..registry import BROKER_REGISTRATION
from ..schema import Array, Bool, Int16, Int32, Int64, Message, String, Uuid, field


class BrokerListener(Message):
    name: str = field(String)
    host: str = field(String)
    port: int = field(Int16)  # unsigned in Kafka
    security_protocol: int = field(Int16)


class BrokerFeature(Message):
    name: str = field(String)
    min_supported_version: int = field(Int16)
    max_supported_version: int = field(Int16)


class BrokerRegistrationRequest(Message, api=BROKER_REGISTRATION):
    broker_id: int = field(Int32)
    cluster_id: str = field(String)
    incarnation_id: UUID = field(Uuid)  # of the process
    listeners: Sequence[BrokerListener] = field(Array(BrokerListener))
    features: Sequence[BrokerFeature] = field(Array(BrokerFeature))
    rack: str | None = field(String, nullable=0, default=None)
    # how far the broker has replayed the metadata log, -1 = not at all
    metadata_offset: int = field(Int64, tag=10000, default=-1)
    # the controller epoch in which it did, and the id of that epoch
    metadata_epoch: int = field(Int32, tag=10001, default=-1)
    metadata_epoch_id: UUID = field(Uuid, tag=10002, default=NIL_UUID)
    leader_epoch: int = field(Int32, tag=10003, default=0)  # the lowest that the broker can use
    next_producer_id: int = field(Int64, tag=10004, default=0)  # all below it may be in use
    directory_id: UUID = field(Uuid, tag=10005, default=NIL_UUID)  # of the data directory


class BrokerRegistrationResponse(Message, api=BROKER_REGISTRATION):
    throttle_time_ms: int = field(Int32)
    error_code: int = field(Int16)
    broker_epoch: int = field(Int64, default=-1)
    error_message: str = field(String, tag=10000, default="")
    leader_epoch: int = field(Int32, tag=10001, default=-1)  # of the partitions that it leads
    # the current controller epoch, and its id
    metadata_epoch: int = field(Int32, tag=10002, default=-1)
    metadata_epoch_id: UUID = field(Uuid, tag=10003, default=NIL_UUID)
    # whether the broker had another data directory before, whose logs are lost
    is_directory_lost: bool = field(Bool, tag=10004, default=False)
