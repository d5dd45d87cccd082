"""What each API needs, as rows: a request, the rights that it needs, and how a client is denied.

`tests/broker/test_authorization.py` sends the request of each row in each version, with every right
missing in turn, and with all of them. A new API needs a row, or a place in NEEDS_NOTHING.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from harness.acls import allow, binding, revoke_all
from harness.group_requests import commit_request, find
from harness.logs import a_batch
from harness.transaction_requests import TransactionalProducer, find_coordinator, init
from harness.wire import WireClient, produce_request
from ottla.broker import Broker
from ottla.protocol import registry
from ottla.protocol.acls import AclOperation, PatternType, PermissionType, ResourceType
from ottla.protocol.api.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.api.allocate_producer_ids import AllocateProducerIdsRequest
from ottla.protocol.api.alter_client_quotas import (
    AlterClientQuotasEntry,
    AlterClientQuotasRequest,
    OpData,
)
from ottla.protocol.api.alter_configs import AlterableConfig as SetConfig
from ottla.protocol.api.alter_configs import AlterConfigsRequest
from ottla.protocol.api.alter_configs import AlterConfigsResource as SetConfigsResource
from ottla.protocol.api.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.api.broker_registration import BrokerRegistrationRequest
from ottla.protocol.api.create_acls import AclCreation, CreateAclsRequest
from ottla.protocol.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.api.delete_acls import DeleteAclsFilter, DeleteAclsRequest
from ottla.protocol.api.delete_groups import DeleteGroupsRequest
from ottla.protocol.api.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from ottla.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.api.describe_acls import DescribeAclsRequest
from ottla.protocol.api.describe_client_quotas import DescribeClientQuotasRequest, EntityData
from ottla.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.api.describe_groups import DescribeGroupsRequest
from ottla.protocol.api.describe_log_dirs import DescribeLogDirsRequest
from ottla.protocol.api.describe_producers import DescribeProducersRequest
from ottla.protocol.api.describe_producers import TopicRequest as ProducersOfTopic
from ottla.protocol.api.describe_topic_partitions import (
    DescribeTopicPartitionsRequest,
)
from ottla.protocol.api.describe_topic_partitions import TopicRequest as PartitionsOfTopic
from ottla.protocol.api.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.api.end_txn import EndTxnRequest
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest
from ottla.protocol.api.heartbeat import HeartbeatRequest
from ottla.protocol.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.api.init_producer_id import InitProducerIdRequest
from ottla.protocol.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.api.list_groups import ListGroupsRequest
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.api.list_transactions import ListTransactionsRequest
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.api.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from ottla.protocol.api.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from ottla.protocol.api.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from ottla.protocol.api.produce import ProduceRequest
from ottla.protocol.api.sync_group import SyncGroupRequest
from ottla.protocol.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from ottla.protocol.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import NIL_UUID
from ottla.protocol.registry import Api
from ottla.protocol.schema import Message

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
CLUSTER, TRANSACTIONAL_ID = ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID
READ, WRITE, CREATE = AclOperation.READ, AclOperation.WRITE, AclOperation.CREATE
DELETE, ALTER, DESCRIBE = AclOperation.DELETE, AclOperation.ALTER, AclOperation.DESCRIBE
CLUSTER_ACTION = AclOperation.CLUSTER_ACTION
DESCRIBE_CONFIGS = AclOperation.DESCRIBE_CONFIGS
ALTER_CONFIGS = AclOperation.ALTER_CONFIGS
IDEMPOTENT_WRITE = AclOperation.IDEMPOTENT_WRITE

CODES = {
    TOPIC: ErrorCode.TOPIC_AUTHORIZATION_FAILED,
    GROUP: ErrorCode.GROUP_AUTHORIZATION_FAILED,
    CLUSTER: ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    TRANSACTIONAL_ID: ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
}


class Names(NamedTuple):
    """The resources that a request names."""

    topic: str
    group: str
    transactional_id: str

    def of(self, resource_type: ResourceType) -> tuple[str, ...]:
        return {
            TOPIC: (self.topic,),
            GROUP: (self.group,),
            TRANSACTIONAL_ID: (self.transactional_id,),
        }.get(resource_type, ())


#: Which name is that of a resource of a type.
_FIELDS = {TOPIC: "topic", GROUP: "group", TRANSACTIONAL_ID: "transactional_id"}
#: They exist, and they do not. As long as each other: responses must not differ in anything else.
KNOWN = Names("topic-known", "group-known", "txn-known")
UNKNOWN = Names("topic-other", "group-other", "txn-other")


def with_unknown(resource_type: ResourceType) -> Names:
    """Return the known names, but for resources of a type."""
    field = _FIELDS.get(resource_type)
    return KNOWN if field is None else KNOWN._replace(**{field: getattr(UNKNOWN, field)})


class Right(NamedTuple):
    """A right that a request needs, and what a client without it is told."""

    operation: AclOperation
    resource_type: ResourceType
    #: None: what the client may not see is left out.
    code: ErrorCode | None

    def bindings(self) -> list[Any]:
        principal = "User:client"
        names = [*KNOWN.of(self.resource_type), *UNKNOWN.of(self.resource_type)]
        if not names:
            return [binding(principal, self.operation, self.resource_type)]
        return [binding(principal, self.operation, self.resource_type, name) for name in names]


def right(
    operation: AclOperation, resource_type: ResourceType, code: ErrorCode | None = None
) -> Right:
    return Right(operation, resource_type, code or CODES[resource_type])


def filtered(operation: AclOperation, resource_type: ResourceType) -> Right:
    return Right(operation, resource_type, None)


class World:
    """A broker with the known topic, group and transactional id."""

    def __init__(self, broker: Broker, admin: WireClient) -> None:
        self.broker = broker
        self.admin = admin
        self.producer: TransactionalProducer

    async def prepare(self, *, with_transaction: bool = True) -> None:
        """Make everything exist again that a request may have deleted, and nothing else."""
        broker, topics = self.broker, self.broker.topics.image.topics
        if UNKNOWN.topic in topics:
            await broker.controller.delete_topic(topics[UNKNOWN.topic])
        await find(self.admin, KNOWN.group)
        await find_coordinator(self.admin, KNOWN.transactional_id)
        while broker.groups.is_loading or broker.transactions.is_loading:
            await asyncio.sleep(0.001)
        if KNOWN.topic not in topics:
            await broker.controller.create_topics(
                [broker.controller.plan_topic(KNOWN.topic, 1, {})]
            )
            await self.admin.request(produce_request(a_batch(), topic=KNOWN.topic), 3)
        offsets = {(KNOWN.topic, 0): 1}
        await self.admin.request(commit_request(KNOWN.group, offsets), 8)
        if not with_transaction:
            return
        while (await init(self.admin, KNOWN.transactional_id))[0] != ErrorCode.NONE:
            await asyncio.sleep(0.001)  # The transaction before is being aborted.
        self.producer = TransactionalProducer(self.admin, KNOWN.transactional_id)
        await self.producer.init()
        assert await self.producer.add((KNOWN.topic, 0)) == ErrorCode.NONE

    def topic_id(self, names: Names) -> UUID:
        topic = self.broker.topics.image.topics.get(names.topic)
        return uuid4() if topic is None else topic.id

    def fingerprint(self) -> object:
        """Return what changes with anything durable."""
        topics = self.broker.topics
        return topics.metadata_log.end_offset, {
            (one.topic, one.index): (one.log.start_offset, one.log.end_offset)
            for one in topics.online_partitions()
        }


#: APIs of a transactional id, whatever they need.
_TRANSACTIONAL = {registry.ADD_PARTITIONS_TO_TXN.key, registry.DESCRIBE_TRANSACTIONS.key}

Build = Callable[[World, Names, int], Message]


@dataclass(frozen=True)
class Row:
    """A request of an API in some versions."""

    api: Api
    build: Build
    needs: tuple[Right, ...]
    name: str = ""
    #: Any of them does instead of the first right.
    instead: tuple[Right, ...] = ()
    first: int = 0
    last: int = 99
    #: Error codes of the request with all rights: it is not always a useful one.
    tolerated: frozenset[ErrorCode] = frozenset()
    #: The names in the request with all rights.
    granted: Names = KNOWN
    #: The first version that names topics by id: the unknown id is no secret.
    first_by_id: int = 99

    @property
    def versions(self) -> Iterator[int]:
        return (one for one in self.api.versions if self.first <= one <= self.last)

    @property
    def uses_transaction(self) -> bool:
        return self.api.key in _TRANSACTIONAL or any(
            one.resource_type is TRANSACTIONAL_ID for one in self.needs
        )

    def __str__(self) -> str:
        return f"{self.api.name}{self.name and ' ' + self.name}"


def codes_of(message: Any) -> set[int]:
    """Return all error codes in a response."""
    codes: set[int] = set()
    for name in message.fields:
        value = getattr(message, name)
        if name.endswith("error_code") and name != "topic_config_error_code":
            codes.add(value)
        elif isinstance(value, Message):
            codes |= codes_of(value)
        elif isinstance(value, list):
            for one in value:
                if isinstance(one, Message):
                    codes |= codes_of(one)
    return codes


# The requests.


def _produce(world: World, names: Names, version: int, **header: Any) -> ProduceRequest:
    request = produce_request(a_batch(**header), topic=names.topic)
    if version > 12:
        request.topic_data[0].topic_id = world.topic_id(names)
    return request


def _produce_transactional(world: World, names: Names, version: int) -> ProduceRequest:
    producer = world.producer
    header = {
        "producer_id": producer.id,
        "producer_epoch": producer.epoch,
        "base_sequence": 0,
        "transactional": True,
    }
    request = _produce(world, names, version, **header)
    request.transactional_id = names.transactional_id
    return request


def _fetch(world: World, names: Names, version: int) -> FetchRequest:
    partition = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=10_000)
    topic = FetchTopic(topic=names.topic, partitions=[partition])
    if version > 12:
        topic.topic_id = world.topic_id(names)
    return FetchRequest(max_wait_ms=0, min_bytes=0, topics=[topic])


def _fetch_as_follower(world: World, names: Names, version: int) -> FetchRequest:
    request = _fetch(world, names, version)
    if version > 14:
        request.replica_state = ReplicaState(replica_id=1, replica_epoch=1)
    else:
        request.replica_id = 1
    return request


def _list_offsets(_world: World, names: Names, _version: int) -> ListOffsetsRequest:
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    return ListOffsetsRequest(topics=[ListOffsetsTopic(name=names.topic, partitions=[partition])])


def _metadata(_world: World, names: Names, version: int) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=names.topic)]
    # Before version 4, topics are always created.
    return MetadataRequest(topics=topics, allow_auto_topic_creation=version < 4)


def _metadata_by_id(world: World, names: Names, _version: int) -> MetadataRequest:
    topics = [MetadataRequestTopic(name=None, topic_id=world.topic_id(names))]
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def _metadata_of_all(_world: World, _names: Names, version: int) -> MetadataRequest:
    return MetadataRequest(topics=[] if version == 0 else None)


def _auto_creation(_world: World, _names: Names, _version: int) -> MetadataRequest:
    return MetadataRequest(
        topics=[MetadataRequestTopic(name=UNKNOWN.topic)], allow_auto_topic_creation=True
    )


def _offset_commit(world: World, names: Names, version: int) -> Message:
    request = commit_request(names.group, {(names.topic, 0): 1}, version=version)
    if version > 9:
        request.topics[0].topic_id = world.topic_id(names)
    return request


def _offset_fetch(world: World, names: Names, version: int) -> OffsetFetchRequest:
    if version < 8:
        topics = [OffsetFetchRequestTopic(name=names.topic, partition_indexes=[0])]
        return OffsetFetchRequest(group_id=names.group, topics=topics)
    topic = OffsetFetchRequestTopics(name=names.topic, partition_indexes=[0])
    if version > 9:
        topic.topic_id = world.topic_id(names)
    return OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=names.group, topics=[topic])]
    )


def _offset_fetch_of_all(_world: World, names: Names, version: int) -> OffsetFetchRequest:
    if version < 8:
        return OffsetFetchRequest(group_id=names.group, topics=None)
    return OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=names.group, topics=None)])


def _find_coordinator(kind: int) -> Build:
    def build(_world: World, names: Names, version: int) -> FindCoordinatorRequest:
        key = names.transactional_id if kind else names.group
        if version >= 4:
            return FindCoordinatorRequest(coordinator_keys=[key], key_type=kind)
        return FindCoordinatorRequest(key=key, key_type=kind)

    return build


def _join_group(_world: World, names: Names, _version: int) -> JoinGroupRequest:
    # With a session timeout that is not allowed: nobody joins.
    protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    return JoinGroupRequest(
        group_id=names.group,
        session_timeout_ms=1,
        rebalance_timeout_ms=1,
        protocol_type="consumer",
        protocols=protocols,
    )


def _sync_group(_world: World, names: Names, version: int) -> SyncGroupRequest:
    kind, name = ("consumer", "range") if version >= 5 else (None, None)
    return SyncGroupRequest(
        group_id=names.group, member_id="m", protocol_type=kind, protocol_name=name
    )


def _leave_group(_world: World, names: Names, version: int) -> LeaveGroupRequest:
    if version < 3:
        return LeaveGroupRequest(group_id=names.group, member_id="m")
    return LeaveGroupRequest(group_id=names.group, members=[MemberIdentity(member_id="m")])


def _create_topics(_world: World, names: Names, _version: int) -> CreateTopicsRequest:
    topic = CreatableTopic(name=names.topic, num_partitions=1, replication_factor=1)
    return CreateTopicsRequest(topics=[topic])


def _delete_topics(_world: World, names: Names, version: int) -> DeleteTopicsRequest:
    if version < 6:
        return DeleteTopicsRequest(topic_names=[names.topic])
    return DeleteTopicsRequest(topics=[DeleteTopicState(name=names.topic)])


def _delete_topics_by_id(world: World, names: Names, _version: int) -> DeleteTopicsRequest:
    topic = DeleteTopicState(name=None, topic_id=world.topic_id(names))
    return DeleteTopicsRequest(topics=[topic])


def _delete_records(_world: World, names: Names, _version: int) -> DeleteRecordsRequest:
    partitions = [DeleteRecordsPartition(partition_index=0, offset=0)]
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=names.topic, partitions=partitions)]
    )


def _init_producer_id(is_transactional: bool) -> Build:
    def build(_world: World, names: Names, _version: int) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=names.transactional_id if is_transactional else None,
            transaction_timeout_ms=60_000,
        )

    return build


def _offset_for_leader_epoch(
    _world: World, names: Names, _version: int
) -> OffsetForLeaderEpochRequest:
    partition = OffsetForLeaderPartition(partition=0, leader_epoch=0)
    topic = OffsetForLeaderTopic(topic=names.topic, partitions=[partition])
    return OffsetForLeaderEpochRequest(topics=[topic])


def _add_partitions(world: World, names: Names, version: int) -> AddPartitionsToTxnRequest:
    producer = world.producer
    topics = [AddPartitionsToTxnTopic(name=names.topic, partitions=[0])]
    if version < 4:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=names.transactional_id,
            v3_and_below_producer_id=producer.id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=topics,
        )
    transaction = AddPartitionsToTxnTransaction(
        transactional_id=names.transactional_id,
        producer_id=producer.id,
        producer_epoch=producer.epoch,
        verify_only=True,
        topics=topics,
    )
    return AddPartitionsToTxnRequest(transactions=[transaction])


def _add_offsets(world: World, names: Names, _version: int) -> AddOffsetsToTxnRequest:
    return AddOffsetsToTxnRequest(
        transactional_id=names.transactional_id,
        producer_id=world.producer.id,
        producer_epoch=world.producer.epoch,
        group_id=names.group,
    )


def _end_txn(world: World, names: Names, _version: int) -> EndTxnRequest:
    return EndTxnRequest(
        transactional_id=names.transactional_id,
        producer_id=world.producer.id,
        producer_epoch=world.producer.epoch,
        committed=False,
    )


def _write_txn_markers(world: World, names: Names, _version: int) -> WriteTxnMarkersRequest:
    marker = WritableTxnMarker(
        producer_id=4711,
        producer_epoch=0,
        transaction_result=False,
        topics=[WritableTxnMarkerTopic(name=names.topic, partition_indexes=[0])],
        coordinator_epoch=0,
    )
    return WriteTxnMarkersRequest(markers=[marker])


def _txn_offset_commit(world: World, names: Names, _version: int) -> TxnOffsetCommitRequest:
    partition = TxnOffsetCommitRequestPartition(
        partition_index=0, committed_offset=1, committed_metadata=""
    )
    return TxnOffsetCommitRequest(
        transactional_id=names.transactional_id,
        group_id=names.group,
        producer_id=world.producer.id,
        producer_epoch=world.producer.epoch,
        topics=[TxnOffsetCommitRequestTopic(name=names.topic, partitions=[partition])],
    )


def _describe_acls(_world: World, _names: Names, _version: int) -> DescribeAclsRequest:
    return DescribeAclsRequest(
        resource_type_filter=ResourceType.ANY,
        resource_name_filter=None,
        pattern_type_filter=PatternType.ANY,
        principal_filter=None,
        host_filter=None,
        operation=AclOperation.ANY,
        permission_type=PermissionType.ANY,
    )


def _create_acls(_world: World, _names: Names, _version: int) -> CreateAclsRequest:
    creation = AclCreation(
        resource_type=TOPIC,
        resource_name="some",
        principal="User:client",
        host="*",
        operation=READ,
        permission_type=PermissionType.ALLOW,
    )
    return CreateAclsRequest(creations=[creation])


def _delete_acls(_world: World, _names: Names, _version: int) -> DeleteAclsRequest:
    wanted = DeleteAclsFilter(
        resource_type_filter=TOPIC,
        resource_name_filter="some",
        principal_filter=None,
        host_filter=None,
        operation=AclOperation.ANY,
        permission_type=PermissionType.ANY,
    )
    return DeleteAclsRequest(filters=[wanted])


def _describe_configs(kind: int, name_of: Callable[[Names], str]) -> Build:
    def build(_world: World, names: Names, _version: int) -> DescribeConfigsRequest:
        resource = DescribeConfigsResource(
            resource_type=kind, resource_name=name_of(names), configuration_keys=None
        )
        return DescribeConfigsRequest(resources=[resource])

    return build


def _alter_configs(kind: int, name_of: Callable[[Names], str], config: str) -> Build:
    def build(_world: World, names: Names, _version: int) -> AlterConfigsRequest:
        resource = SetConfigsResource(
            resource_type=kind,
            resource_name=name_of(names),
            configs=[SetConfig(name=config, value="123456")],
        )
        return AlterConfigsRequest(resources=[resource])

    return build


def _edit_configs(kind: int, name_of: Callable[[Names], str], config: str) -> Build:
    def build(_world: World, names: Names, _version: int) -> IncrementalAlterConfigsRequest:
        resource = AlterConfigsResource(
            resource_type=kind,
            resource_name=name_of(names),
            configs=[AlterableConfig(name=config, config_operation=0, value="123456")],
        )
        return IncrementalAlterConfigsRequest(resources=[resource])

    return build


def _topic_of(names: Names) -> str:
    return names.topic


def _group_of(names: Names) -> str:
    return names.group


def _broker_of(_names: Names) -> str:
    return "0"


def _create_partitions(world: World, names: Names, _version: int) -> CreatePartitionsRequest:
    count = len(world.broker.topics.image.topics[KNOWN.topic].replicas) + 1
    topic = CreatePartitionsTopic(name=names.topic, count=count, assignments=None)
    return CreatePartitionsRequest(topics=[topic], timeout_ms=5000)


def _offset_delete(_world: World, names: Names, _version: int) -> OffsetDeleteRequest:
    partitions = [OffsetDeleteRequestPartition(partition_index=0)]
    topics = [OffsetDeleteRequestTopic(name=names.topic, partitions=partitions)]
    return OffsetDeleteRequest(group_id=names.group, topics=topics)


def _alter_client_quotas(_world: World, _names: Names, _version: int) -> AlterClientQuotasRequest:
    entry = AlterClientQuotasEntry(
        entity=[EntityData(entity_type="user", entity_name="nobody")],
        ops=[OpData(key="producer_byte_rate", value=1e9)],
    )
    return AlterClientQuotasRequest(entries=[entry])


def _describe_topic_partitions(
    _world: World, names: Names, _version: int
) -> DescribeTopicPartitionsRequest:
    return DescribeTopicPartitionsRequest(topics=[PartitionsOfTopic(name=names.topic)])


def _describe_producers(_world: World, names: Names, _version: int) -> DescribeProducersRequest:
    topics = [ProducersOfTopic(name=names.topic, partition_indexes=[0])]
    return DescribeProducersRequest(topics=topics)


def _registration(_world: World, _names: Names, _version: int) -> BrokerRegistrationRequest:
    return BrokerRegistrationRequest(broker_id=1, cluster_id="c", incarnation_id=NIL_UUID)


def _tolerating(*codes: ErrorCode) -> frozenset[ErrorCode]:
    return frozenset(codes)


_CLUSTER_DENIED = _tolerating(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)

ROWS: tuple[Row, ...] = (
    Row(registry.PRODUCE, _produce, (right(WRITE, TOPIC),), first_by_id=13),
    Row(
        registry.PRODUCE,
        _produce_transactional,
        (right(WRITE, TRANSACTIONAL_ID), right(WRITE, TOPIC)),
        name="in a transaction",
        first_by_id=13,
    ),
    Row(registry.FETCH, _fetch, (right(READ, TOPIC),), first_by_id=13),
    Row(
        registry.FETCH,
        _fetch_as_follower,
        (right(CLUSTER_ACTION, CLUSTER, ErrorCode.TOPIC_AUTHORIZATION_FAILED),),
        name="of a follower",
        tolerated=_CLUSTER_DENIED,
        first_by_id=13,
    ),
    Row(
        registry.LIST_OFFSETS,
        _list_offsets,
        (right(DESCRIBE, TOPIC),),
        instead=(right(CLUSTER_ACTION, CLUSTER),),
    ),
    Row(registry.METADATA, _metadata, (right(DESCRIBE, TOPIC),)),
    Row(
        registry.METADATA,
        _metadata_by_id,
        (right(DESCRIBE, TOPIC),),
        name="by id",
        first=12,
        first_by_id=12,
    ),
    Row(registry.METADATA, _metadata_of_all, (filtered(DESCRIBE, TOPIC),), name="of all topics"),
    Row(
        registry.METADATA,
        _auto_creation,
        (right(CREATE, TOPIC), right(DESCRIBE, TOPIC)),
        name="that creates topics",
        instead=(right(CREATE, CLUSTER),),
        granted=UNKNOWN,
    ),
    Row(
        registry.OFFSET_COMMIT,
        _offset_commit,
        (right(READ, GROUP), right(READ, TOPIC)),
        first_by_id=10,
    ),
    Row(
        registry.OFFSET_FETCH,
        _offset_fetch,
        (right(DESCRIBE, GROUP), right(DESCRIBE, TOPIC)),
        first_by_id=10,
    ),
    Row(
        registry.OFFSET_FETCH,
        _offset_fetch_of_all,
        (filtered(DESCRIBE, TOPIC), right(DESCRIBE, GROUP)),
        name="of all topics",
        first=2,
        last=9,
    ),
    Row(
        registry.OFFSET_FETCH,
        _offset_fetch_of_all,
        (right(DESCRIBE, GROUP),),
        name="of all topics by id",
        first=10,
    ),
    Row(
        registry.FIND_COORDINATOR,
        _find_coordinator(0),
        (right(DESCRIBE, GROUP),),
    ),
    Row(
        registry.FIND_COORDINATOR,
        _find_coordinator(1),
        (right(DESCRIBE, TRANSACTIONAL_ID),),
        name="of a transactional id",
        first=1,
    ),
    Row(
        registry.JOIN_GROUP,
        _join_group,
        (right(READ, GROUP),),
        tolerated=_tolerating(ErrorCode.INVALID_SESSION_TIMEOUT),
    ),
    Row(
        registry.SYNC_GROUP,
        _sync_group,
        (right(READ, GROUP),),
        tolerated=_tolerating(ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    Row(
        registry.HEARTBEAT,
        lambda _world, names, _version: HeartbeatRequest(group_id=names.group, member_id="m"),
        (right(READ, GROUP),),
        tolerated=_tolerating(ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    Row(
        registry.LEAVE_GROUP,
        _leave_group,
        (right(READ, GROUP),),
        tolerated=_tolerating(ErrorCode.UNKNOWN_MEMBER_ID),
    ),
    Row(
        registry.DESCRIBE_GROUPS,
        lambda _world, names, _version: DescribeGroupsRequest(groups=[names.group]),
        (right(DESCRIBE, GROUP),),
        tolerated=_tolerating(ErrorCode.GROUP_ID_NOT_FOUND),
    ),
    Row(
        registry.LIST_GROUPS,
        lambda _world, _names, _version: ListGroupsRequest(),
        (filtered(DESCRIBE, GROUP),),
        instead=(right(DESCRIBE, CLUSTER),),
    ),
    Row(
        registry.CREATE_TOPICS,
        _create_topics,
        (right(CREATE, TOPIC),),
        instead=(right(CREATE, CLUSTER),),
        granted=UNKNOWN,
    ),
    Row(registry.DELETE_TOPICS, _delete_topics, (right(DELETE, TOPIC),)),
    Row(
        registry.DELETE_TOPICS,
        _delete_topics_by_id,
        (right(DELETE, TOPIC),),
        name="by id",
        first=6,
        first_by_id=6,
    ),
    Row(registry.DELETE_RECORDS, _delete_records, (right(DELETE, TOPIC),)),
    Row(
        registry.INIT_PRODUCER_ID,
        _init_producer_id(False),
        (right(WRITE, TOPIC, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),),
        instead=(right(IDEMPOTENT_WRITE, CLUSTER),),
    ),
    Row(
        registry.INIT_PRODUCER_ID,
        _init_producer_id(True),
        (right(WRITE, TRANSACTIONAL_ID),),
        name="of a transactional id",
        # The transaction that is open is aborted first.
        tolerated=_tolerating(ErrorCode.CONCURRENT_TRANSACTIONS),
    ),
    Row(
        registry.OFFSET_FOR_LEADER_EPOCH,
        _offset_for_leader_epoch,
        (right(DESCRIBE, TOPIC),),
        instead=(right(CLUSTER_ACTION, CLUSTER),),
    ),
    Row(
        registry.ADD_PARTITIONS_TO_TXN,
        _add_partitions,
        (right(WRITE, TRANSACTIONAL_ID), right(WRITE, TOPIC)),
        last=3,
    ),
    Row(
        registry.ADD_PARTITIONS_TO_TXN,
        _add_partitions,
        (right(CLUSTER_ACTION, CLUSTER),),
        name="between brokers",
        first=4,
    ),
    Row(
        registry.ADD_OFFSETS_TO_TXN,
        _add_offsets,
        (right(WRITE, TRANSACTIONAL_ID), right(READ, GROUP)),
    ),
    Row(registry.END_TXN, _end_txn, (right(WRITE, TRANSACTIONAL_ID),)),
    Row(
        registry.WRITE_TXN_MARKERS,
        _write_txn_markers,
        (right(CLUSTER_ACTION, CLUSTER),),
        instead=(right(ALTER, CLUSTER),),
    ),
    Row(
        registry.TXN_OFFSET_COMMIT,
        _txn_offset_commit,
        (right(WRITE, TRANSACTIONAL_ID), right(READ, GROUP), right(READ, TOPIC)),
        # The group's offsets are not in the transaction.
        tolerated=_tolerating(ErrorCode.INVALID_TXN_STATE, ErrorCode.TRANSACTION_ABORTABLE),
    ),
    Row(registry.DESCRIBE_ACLS, _describe_acls, (right(DESCRIBE, CLUSTER),)),
    Row(registry.CREATE_ACLS, _create_acls, (right(ALTER, CLUSTER),)),
    Row(registry.DELETE_ACLS, _delete_acls, (right(ALTER, CLUSTER),)),
    Row(
        registry.DESCRIBE_CONFIGS,
        _describe_configs(2, _topic_of),
        (right(DESCRIBE_CONFIGS, TOPIC),),
    ),
    Row(
        registry.DESCRIBE_CONFIGS,
        _describe_configs(4, _broker_of),
        (right(DESCRIBE_CONFIGS, CLUSTER),),
        name="of a broker",
    ),
    Row(
        registry.DESCRIBE_CONFIGS,
        _describe_configs(32, _group_of),
        (right(DESCRIBE_CONFIGS, GROUP),),
        name="of a group",
        tolerated=_tolerating(ErrorCode.INVALID_REQUEST),
    ),
    Row(
        registry.ALTER_CONFIGS,
        _alter_configs(2, _topic_of, "retention.ms"),
        (right(ALTER_CONFIGS, TOPIC),),
    ),
    Row(
        registry.ALTER_CONFIGS,
        _alter_configs(4, _broker_of, "log.retention.ms"),
        (right(ALTER_CONFIGS, CLUSTER),),
        name="of a broker",
    ),
    Row(
        registry.INCREMENTAL_ALTER_CONFIGS,
        _edit_configs(2, _topic_of, "retention.ms"),
        (right(ALTER_CONFIGS, TOPIC),),
    ),
    Row(
        registry.INCREMENTAL_ALTER_CONFIGS,
        _edit_configs(4, _broker_of, "log.retention.ms"),
        (right(ALTER_CONFIGS, CLUSTER),),
        name="of a broker",
    ),
    Row(
        registry.INCREMENTAL_ALTER_CONFIGS,
        _edit_configs(32, _group_of, "consumer.session.timeout.ms"),
        (right(ALTER_CONFIGS, GROUP),),
        name="of a group",
        tolerated=_tolerating(ErrorCode.INVALID_REQUEST, ErrorCode.INVALID_CONFIG),
    ),
    Row(
        registry.DESCRIBE_LOG_DIRS,
        lambda _world, _names, _version: DescribeLogDirsRequest(topics=None),
        (right(DESCRIBE, CLUSTER),),
        first=3,
    ),
    Row(
        registry.DESCRIBE_LOG_DIRS,
        lambda _world, _names, _version: DescribeLogDirsRequest(topics=None),
        (filtered(DESCRIBE, CLUSTER),),
        name="without an error code",
        last=2,
    ),
    Row(registry.CREATE_PARTITIONS, _create_partitions, (right(ALTER, TOPIC),)),
    Row(
        registry.DELETE_GROUPS,
        lambda _world, names, _version: DeleteGroupsRequest(groups_names=[names.group]),
        (right(DELETE, GROUP),),
    ),
    Row(registry.OFFSET_DELETE, _offset_delete, (right(DELETE, GROUP), right(READ, TOPIC))),
    Row(
        registry.DESCRIBE_CLIENT_QUOTAS,
        lambda _world, _names, _version: DescribeClientQuotasRequest(),
        (right(DESCRIBE_CONFIGS, CLUSTER),),
    ),
    Row(registry.ALTER_CLIENT_QUOTAS, _alter_client_quotas, (right(ALTER_CONFIGS, CLUSTER),)),
    Row(registry.DESCRIBE_PRODUCERS, _describe_producers, (right(READ, TOPIC),)),
    Row(
        registry.BROKER_REGISTRATION,
        _registration,
        (right(CLUSTER_ACTION, CLUSTER),),
        # A broker on its own has no inter-broker listener.
        tolerated=_CLUSTER_DENIED,
    ),
    Row(
        registry.BROKER_HEARTBEAT,
        lambda _world, _names, _version: BrokerHeartbeatRequest(broker_id=1, broker_epoch=1),
        (right(CLUSTER_ACTION, CLUSTER),),
        tolerated=_CLUSTER_DENIED,
    ),
    Row(
        registry.ALLOCATE_PRODUCER_IDS,
        lambda _world, _names, _version: AllocateProducerIdsRequest(broker_id=1, broker_epoch=1),
        (right(CLUSTER_ACTION, CLUSTER),),
        tolerated=_CLUSTER_DENIED,
    ),
    Row(
        registry.DESCRIBE_TRANSACTIONS,
        lambda _world, names, _version: DescribeTransactionsRequest(
            transactional_ids=[names.transactional_id]
        ),
        (right(DESCRIBE, TRANSACTIONAL_ID),),
    ),
    Row(
        registry.DESCRIBE_TRANSACTIONS,
        lambda _world, names, _version: DescribeTransactionsRequest(
            transactional_ids=[names.transactional_id]
        ),
        (filtered(DESCRIBE, TOPIC), right(DESCRIBE, TRANSACTIONAL_ID)),
        name="with topics",
    ),
    Row(
        registry.LIST_TRANSACTIONS,
        lambda _world, _names, _version: ListTransactionsRequest(),
        (filtered(DESCRIBE, TRANSACTIONAL_ID),),
    ),
    Row(
        registry.DESCRIBE_TOPIC_PARTITIONS,
        _describe_topic_partitions,
        (right(DESCRIBE, TOPIC),),
    ),
    Row(
        registry.DESCRIBE_TOPIC_PARTITIONS,
        lambda _world, _names, _version: DescribeTopicPartitionsRequest(),
        (filtered(DESCRIBE, TOPIC),),
        name="of all topics",
    ),
)

#: APIs that every client may use, also before it has authenticated.
NEEDS_NOTHING = frozenset(
    {
        registry.API_VERSIONS.key,
        registry.SASL_HANDSHAKE.key,
        registry.SASL_AUTHENTICATE.key,
        # Its authorized-operations field depends on rights.
        registry.DESCRIBE_CLUSTER.key,
    }
)


async def grant(world: World, rights: Iterable[Right]) -> None:
    """Let the client have these rights, and no others."""
    wanted = [one for each in rights for one in each.bindings()]
    await revoke_all(world.broker)
    if wanted:
        await allow(world.broker, *wanted)
