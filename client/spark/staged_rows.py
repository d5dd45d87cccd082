"""Rows in transactions that were ended by somebody else: whether they are visible, and a copy.

A transaction with the rows of a committed batch may have been aborted before the driver could
commit it: by its timeout, or by a task that came back and took its transactional id. The
coordinator does not remember that for long, but the log does: the marker that follows the records
says how the transaction ended, and aborted records stay where they were until retention or
compaction removes them.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator

import pyarrow as pa

from ottla.protocol.api.fetch import LAST_VERSION_WITH_TOPIC_NAMES, FetchResponse, PartitionData
from ottla.protocol.batch import RecordBatch, parse_marker, split_batches

from ..arrow.decoder import ArrowDecoder
from ..errors import ErrorCode
from ..fetch_request import PartitionFetch, fetch_request
from ..offsets import kafka_error
from ..producer.producer import Producer
from ..types import TopicPartition
from .broker_client import BrokerClient
from .errors import LostRowsError
from .progress import Ranges, StagedTransaction

_MAX_WAIT_MS = 500
_FETCH_BYTES = 4 * 1024 * 1024
_DELETED = (
    "the transactions of a batch timed out before it was completed, and retention, compaction or"
    " an administrator has deleted their records since"
)
_COLUMNS = ["key", "value", "headers", "partition", "timestamp"]


def aborted_ones(
    client: BrokerClient, transactions: Iterable[StagedTransaction]
) -> list[StagedTransaction]:
    """Return the transactions that were aborted, of some that are not open any more.

    Waits for their markers. Raises LostRowsError if a marker does not come, because records and
    marker were deleted.
    """
    by_partition: dict[TopicPartition, list[StagedTransaction]] = {}
    for transaction in transactions:
        tp = TopicPartition(transaction.topic, transaction.partition)
        by_partition.setdefault(tp, []).append(transaction)
    return [
        transaction
        for tp, some in by_partition.items()
        for transaction in _aborted_in(client, tp, some)
    ]


def _aborted_in(
    client: BrokerClient, tp: TopicPartition, transactions: Iterable[StagedTransaction]
) -> Iterator[StagedTransaction]:
    pending = {transaction.producer_id: transaction for transaction in transactions}
    position = min(transaction.offset for transaction in pending.values())
    deadline = time.monotonic() + client.cluster.config.timeouts.operation
    while pending:
        for batch in _fetch(client, tp, position):
            position = batch.next_offset
            transaction = pending.get(batch.producer_id)
            if (
                batch.is_control
                and transaction is not None
                and batch.base_offset > transaction.offset
            ):
                # A producer has one transaction at a time: the first marker is that of this one.
                del pending[batch.producer_id]
                if not parse_marker(batch).is_commit:
                    yield transaction
        if pending and time.monotonic() > deadline:
            ids = ", ".join(one.transactional_id for one in pending.values())
            raise LostRowsError(
                f"Cannot find out whether the transaction of {ids} was committed: {tp} has no"
                f" marker of it from offset {position} on"
            )


async def copy_rows(
    client: BrokerClient,
    producer: Producer,
    transactions: Collection[StagedTransaction],
    ranges: Ranges,
) -> None:
    """Send the records of aborted transactions again, to the same partitions.

    Raises LostRowsError if some of them do not exist any more.
    """
    producers = {transaction.producer for transaction in transactions}
    expected = sum(transaction.record_count for transaction in transactions)
    decoder = ArrowDecoder(timestamp=pa.timestamp("us", "UTC"), headers=True)
    copied = 0
    for tp, (first, end) in ranges.items():
        position = first
        while position < end:
            fetched = await _fetch_async(client, tp, position)
            if not fetched:
                break  # the log ends before the range
            position = fetched[-1].next_offset
            chosen = [
                batch
                for batch in fetched
                if not batch.is_control
                and batch.base_offset < end
                and (batch.producer_id, batch.producer_epoch) in producers
            ]
            rows = decoder.decode(chosen, topic=tp.topic, partition=tp.partition)
            for batch in rows:
                await producer.send_arrow(tp.topic, batch.select(_COLUMNS))
                copied += batch.num_rows
    if copied != expected:
        raise LostRowsError(
            f"{expected - copied} of {expected} rows of aborted transactions in"
            f" {', '.join(map(str, ranges))} do not exist any more: {_DELETED}"
        )


def _fetch(client: BrokerClient, tp: TopicPartition, offset: int) -> list[RecordBatch]:
    return client.wait_for(_fetch_async(client, tp, offset))


async def _fetch_async(client: BrokerClient, tp: TopicPartition, offset: int) -> list[RecordBatch]:
    """Return batches from an offset on, in open and aborted transactions too, and markers."""
    cluster = client.cluster

    async def attempt() -> list[RecordBatch]:
        node = await cluster.leader_of(tp)
        epoch = cluster.metadata.topics[tp.topic].partitions[tp.partition].leader_epoch
        request = fetch_request(
            [PartitionFetch(*tp, offset, _FETCH_BYTES, epoch)],
            max_wait_ms=_MAX_WAIT_MS,
            max_bytes=_FETCH_BYTES,
        )
        response = await cluster.send(
            node, request, FetchResponse, max_version=LAST_VERSION_WITH_TOPIC_NAMES
        )
        data = response.responses[0].partitions[0] if response.responses else PartitionData()
        error = kafka_error(response.error_code or data.error_code, f"{tp} at offset {offset}")
        if error is not None and error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            raise LostRowsError(f"Offset {offset} of {tp} does not exist any more: {_DELETED}")
        if error is not None:
            raise error
        return list(split_batches(data.records or b""))

    return await cluster.retry(attempt, what=f"reading {tp} at offset {offset}")
