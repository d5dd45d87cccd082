"""Requests of transactional producers, each in any version, over a `WireClient`.

    producer = TransactionalProducer(client, "my-id")
    await producer.init()
    await producer.add(("t", 0))
    await producer.produce("t", 0)
    assert await producer.end(commit=True) == ErrorCode.NONE

Methods return error codes. A producer counts its sequences, and follows the epochs that it is told.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from harness.group_requests import find
from harness.logs import a_batch
from harness.wire import WireClient, produce_results
from ottla.protocol.api.add_offsets_to_txn import AddOffsetsToTxnRequest
from ottla.protocol.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from ottla.protocol.api.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.api.end_txn import EndTxnRequest
from ottla.protocol.api.init_producer_id import InitProducerIdRequest
from ottla.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
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

TopicPartitions = tuple[str, int]


async def find_coordinator(client: WireClient, transactional_id: str) -> None:
    """Find the coordinator of a transactional id, which creates the topic."""
    (found,) = await find(client, transactional_id, kind=1)
    assert found.error_code == ErrorCode.NONE


async def init(
    client: WireClient,
    transactional_id: str,
    expected: tuple[int, int] = (-1, -1),
    *,
    timeout_ms: int = 60_000,
    version: int = 5,
) -> tuple[int, int, int]:
    """Return the error code, producer id and epoch of an InitProducerId."""
    fields = {}
    if version >= 3:
        fields = {"producer_id": expected[0], "producer_epoch": expected[1]}
    response = await client.request(
        InitProducerIdRequest(
            transactional_id=transactional_id, transaction_timeout_ms=timeout_ms, **fields
        ),
        version,
    )
    return response.error_code, response.producer_id, response.producer_epoch


async def describe(client: WireClient, transactional_id: str) -> Any:
    """Return the state of a transactional id."""
    request = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    return (await client.request(request)).transaction_states[0]


async def write_markers(
    client: WireClient,
    *tps: TopicPartitions,
    producer: tuple[int, int],
    coordinator_epoch: int,
    commit: bool = False,
    version: int = 1,
) -> list[int]:
    """Return the error code of each partition of a WriteTxnMarkers."""
    marker = WritableTxnMarker(
        producer_id=producer[0],
        producer_epoch=producer[1],
        transaction_result=commit,
        topics=[WritableTxnMarkerTopic(name=name, partition_indexes=[at]) for name, at in tps],
        coordinator_epoch=coordinator_epoch,
    )
    response = await client.request(WriteTxnMarkersRequest(markers=[marker]), version)
    return [part.error_code for topic in response.markers[0].topics for part in topic.partitions]


class TransactionalProducer:
    """A producer with a transactional id. `id` and `epoch` may be set to send others."""

    def __init__(self, client: WireClient, transactional_id: str) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.id, self.epoch = -1, -1
        self.sequences: defaultdict[TopicPartitions, int] = defaultdict(int)

    async def init(self, **options: Any) -> None:
        """Initialize, which begins a new epoch."""
        code, self.id, self.epoch = await init(self.client, self.transactional_id, **options)
        assert code == ErrorCode.NONE, ErrorCode(code)
        self.sequences.clear()

    async def add(self, *tps: TopicPartitions, version: int = 3) -> int:
        """Add partitions; return the only error code."""
        (code,) = set((await self.try_add(*tps, version=version)).values())
        return code

    async def try_add(self, *tps: TopicPartitions, version: int = 3) -> dict[TopicPartitions, int]:
        """Add partitions; return the error code of each."""
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name=name, partitions=[at]) for name, at in tps
            ],
        )
        response = await self.client.request(request, version)
        return {
            (topic.name, part.partition_index): part.partition_error_code
            for topic in response.results_by_topic_v3_and_below
            for part in topic.results_by_partition
        }

    async def add_offsets(self, group: str, *, version: int = 4) -> int:
        """Add the offsets of a group."""
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return (await self.client.request(request, version)).error_code

    async def produce(
        self,
        topic: str,
        partition: int = 0,
        *,
        version: int = 11,
        transactional: bool = True,
        named: bool = True,
        sequence: int | None = None,
        value: bytes = b"value",
    ) -> int:
        """Produce one record; return the error code."""
        return (
            await self.try_produce(
                topic,
                partition,
                version=version,
                transactional=transactional,
                named=named,
                sequence=sequence,
                value=value,
            )
        ).error_code

    async def try_produce(
        self,
        topic: str,
        partition: int = 0,
        *,
        version: int = 11,
        transactional: bool = True,
        named: bool = True,
        sequence: int | None = None,
        value: bytes = b"value",
    ) -> Any:
        """Produce one record, in a request with or without the transactional id."""
        tp = topic, partition
        batch = a_batch(
            value=value,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences[tp] if sequence is None else sequence,
            transactional=transactional,
        )
        data = PartitionProduceData(index=partition, records=batch)
        request = ProduceRequest(
            transactional_id=self.transactional_id if named else None,
            acks=-1,
            timeout_ms=5000,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )
        (result,) = produce_results(await self.client.request(request, version))
        if result.error_code == ErrorCode.NONE and sequence is None:
            self.sequences[tp] += 1
        return result

    async def commit_offset(
        self,
        group: str,
        tp: TopicPartitions,
        offset: int,
        *,
        version: int = 4,
        member: tuple[str, int] = ("", -1),
    ) -> int:
        """Commit an offset of a group in the transaction."""
        fields: dict[str, Any] = {}
        if version >= 3:
            fields = {"member_id": member[0], "generation_id": member[1]}
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=tp[0],
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=tp[1], committed_offset=offset, committed_metadata=""
                        )
                    ],
                )
            ],
            **fields,
        )
        response = await self.client.request(request, version)
        return response.topics[0].partitions[0].error_code

    async def end(self, *, commit: bool = True, version: int = 4) -> int:
        """End the transaction; follow the new epoch of version 5."""
        response = await self.try_end(commit=commit, version=version)
        if version >= 5 and response.error_code == ErrorCode.NONE:
            self.id, self.epoch = response.producer_id, response.producer_epoch
            self.sequences.clear()
        return response.error_code

    async def try_end(self, *, commit: bool = True, version: int = 4) -> Any:
        """End the transaction, and return the response."""
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        return await self.client.request(request, version)
