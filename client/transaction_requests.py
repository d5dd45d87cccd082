"""Requests of transactional producers, which producer and admin share.

Each is sent once, to the broker responsible, and raises the error of the response. Callers retry.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from ottla.protocol.api.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from ottla.protocol.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.api.end_txn import EndTxnRequest, EndTxnResponse
from ottla.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.api.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
)
from ottla.protocol.errors import ErrorCode, KafkaError
from ottla.protocol.registry import END_TXN, INIT_PRODUCER_ID, TXN_OFFSET_COMMIT
from ottla.protocol.schema import Message

from .cluster import Cluster, M
from .offsets import group_by_topic, kafka_error
from .types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

#: A producer id and epoch.
Producer = tuple[int, int]

NO_PRODUCER: Producer = (-1, -1)
#: What a coordinator answers a producer that was replaced; the first one in old versions.
FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED)
#: The finalized feature that says which of the two transaction protocols to use (KIP-890).
_FEATURE = "transaction.version"
# EndTxn waits for markers; other requests must not wait for that.
_CHANNEL = "transaction"
# The first version of InitProducerId with the current producer id and epoch.
_INIT_WITH_PRODUCER = 3
# Later versions of AddPartitionsToTxn are for brokers.
_LAST_ADD_PARTITIONS_OF_CLIENTS = 3
# The first versions of the protocol with transaction.version 2.
_END_TXN_2, _TXN_OFFSET_COMMIT_2 = 5, 5
# The first version of TxnOffsetCommit with the generation and member id.
_COMMIT_WITH_MEMBER = 3


async def transaction_version(cluster: Cluster, transactional_id: str) -> int:
    """Return the transaction protocol of the cluster: 2 if that is finalized, or 1."""
    node_id = await cluster.transaction_coordinator_of(transactional_id)
    connection = await cluster.connect(node_id, _CHANNEL)
    is_second = connection.features.get(_FEATURE, 0) >= 2
    has_end_txn = connection.versions.get(END_TXN.key, (0, 0))[1] >= _END_TXN_2
    return 2 if is_second and has_end_txn else 1


async def init_producer_id(
    cluster: Cluster, transactional_id: str, timeout_ms: int, current: Producer = NO_PRODUCER
) -> Producer:
    """Return a producer id and epoch, after the end of a transaction that is open.

    With the `current` ones, the epoch is bumped if that is still the current one (KIP-360).
    Without, any other producer with this transactional id is fenced.
    """
    node_id = await cluster.transaction_coordinator_of(transactional_id)
    connection = await cluster.connect(node_id, _CHANNEL)
    if connection.version_for(INIT_PRODUCER_ID) < _INIT_WITH_PRODUCER:
        current = NO_PRODUCER
    request = InitProducerIdRequest(
        transactional_id=transactional_id,
        transaction_timeout_ms=timeout_ms,
        producer_id=current[0],
        producer_epoch=current[1],
    )
    response = await cluster.send(node_id, request, InitProducerIdResponse, channel=_CHANNEL)
    _check(response.error_code, transactional_id)
    return response.producer_id, response.producer_epoch


async def add_partitions(
    cluster: Cluster, transactional_id: str, producer: Producer, tps: Collection[TopicPartition]
) -> None:
    """Add partitions to the transaction, all of them or none."""
    request = AddPartitionsToTxnRequest(
        v3_and_below_transactional_id=transactional_id,
        v3_and_below_producer_id=producer[0],
        v3_and_below_producer_epoch=producer[1],
        v3_and_below_topics=[
            AddPartitionsToTxnTopic(name=topic, partitions=[tp.partition for tp in some])
            for topic, some in group_by_topic(tps)
        ],
    )
    response = await _send_to_coordinator(
        cluster,
        transactional_id,
        request,
        AddPartitionsToTxnResponse,
        max_version=_LAST_ADD_PARTITIONS_OF_CLIENTS,
    )
    _raise_worst(
        {
            TopicPartition(topic.name, result.partition_index): result.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for result in topic.results_by_partition
        },
        transactional_id,
    )


async def add_offsets(
    cluster: Cluster, transactional_id: str, producer: Producer, group: str
) -> None:
    """Add the offsets of a group to the transaction."""
    request = AddOffsetsToTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        group_id=group,
    )
    response = await _send_to_coordinator(
        cluster, transactional_id, request, AddOffsetsToTxnResponse
    )
    _check(response.error_code, transactional_id)


async def commit_transaction_offsets(
    cluster: Cluster,
    transactional_id: str,
    producer: Producer,
    group: ConsumerGroupMetadata,
    offsets: Mapping[TopicPartition, OffsetAndMetadata],
    *,
    transaction_version: int,
) -> None:
    """Commit offsets of a group as part of the transaction."""
    node_id = await cluster.coordinator_of(group.group_id)
    connection = await cluster.connect(node_id, "group")
    max_version = _TXN_OFFSET_COMMIT_2 if transaction_version > 1 else _TXN_OFFSET_COMMIT_2 - 1
    version = connection.version_for(TXN_OFFSET_COMMIT, max_version)
    if version < _COMMIT_WITH_MEMBER:
        # As it cannot be checked, a member that was removed is fenced by the producer epoch alone.
        group = ConsumerGroupMetadata(group.group_id)
    request = TxnOffsetCommitRequest(
        transactional_id=transactional_id,
        group_id=group.group_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        generation_id=group.generation_id,
        member_id=group.member_id,
        group_instance_id=group.instance_id,
        topics=[
            TxnOffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    TxnOffsetCommitRequestPartition(
                        partition_index=tp.partition,
                        committed_offset=offsets[tp].offset,
                        committed_leader_epoch=offsets[tp].leader_epoch,
                        committed_metadata=offsets[tp].metadata,
                    )
                    for tp in some
                ],
            )
            for topic, some in group_by_topic(offsets)
        ],
    )
    response = await cluster.send(
        node_id, request, TxnOffsetCommitResponse, channel="group", max_version=max_version
    )
    _raise_worst(
        {
            TopicPartition(topic.name, result.partition_index): result.error_code
            for topic in response.topics
            for result in topic.partitions
        },
        f"{transactional_id!r}, group {group.group_id!r}",
    )


async def end_transaction(
    cluster: Cluster,
    transactional_id: str,
    producer: Producer,
    *,
    is_commit: bool,
    transaction_version: int,
) -> Producer:
    """Commit or abort; return the producer id and epoch of the next transaction.

    It can be sent again after a lost response, until the next transaction begins.
    """
    request = EndTxnRequest(
        transactional_id=transactional_id,
        producer_id=producer[0],
        producer_epoch=producer[1],
        committed=is_commit,
    )
    response = await _send_to_coordinator(
        cluster,
        transactional_id,
        request,
        EndTxnResponse,
        max_version=_END_TXN_2 if transaction_version > 1 else _END_TXN_2 - 1,
    )
    _check(response.error_code, transactional_id)
    next_producer = (response.producer_id, response.producer_epoch)
    return producer if next_producer[0] < 0 else next_producer


async def _send_to_coordinator(
    cluster: Cluster,
    transactional_id: str,
    request: Message,
    response: type[M],
    *,
    max_version: int | None = None,
) -> M:
    node_id = await cluster.transaction_coordinator_of(transactional_id)
    return await cluster.send(node_id, request, response, channel=_CHANNEL, max_version=max_version)


def _check(code: int, transactional_id: str) -> None:
    error = kafka_error(code, f"transactional id {transactional_id!r}")
    if error is not None:
        raise error


def _raise_worst(codes: Mapping[TopicPartition, int], context: str) -> None:
    """Raise an error that is not retriable, or else any; "not attempted" has another as its cause.

    A retry is of no use if it can only fail for another partition.
    """
    errors: list[KafkaError] = [
        error
        for tp, code in codes.items()
        if (error := kafka_error(code, f"transactional id {context}, {tp}")) is not None
    ]
    if errors:
        raise min(
            errors,
            key=lambda error: (error.code is ErrorCode.OPERATION_NOT_ATTEMPTED, error.retriable),
        )
