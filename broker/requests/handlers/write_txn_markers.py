"""WriteTxnMarkers: end transactions in partitions, as their coordinator decided.

For other brokers. Also for admin tools: those that may alter the cluster or, without an authorizer,
on a broker without a cluster.
"""

from __future__ import annotations

import asyncio
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from ottla.coord.effects import Producer
from ottla.coord.metadata_image import TRANSACTIONS_TOPIC, TopicPartition
from ottla.protocol.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.errors import ErrorCode

from ...coordinators.markers import write_marker
from ...coordinators.shard_runtime import TransactionMarker
from ..authorization import ALTER, CLUSTER, CLUSTER_ACTION, allows, check
from ..errors import ApiError
from ..slices import in_slices
from .broker_registration import check_inter_broker_listener

if TYPE_CHECKING:
    from ...broker import Broker
    from ..dispatch import RequestContext

#: The topic, partition and outcome of a marker.
_Result = tuple[str, int, asyncio.Future[ErrorCode]]


async def handle(
    broker: Broker, context: RequestContext, request: WriteTxnMarkersRequest
) -> WriteTxnMarkersResponse:
    """Handle WriteTxnMarkers: append all markers, then wait until they are durable."""
    code = ErrorCode.NONE
    try:
        if broker.authorizer is None or not allows(broker, context, ALTER, CLUSTER, logs=False):
            check_cluster_action(broker, context)
    except ApiError as error:
        code = error.code
    # By position: a partition may be in several markers.
    results: list[list[_Result]] = [[] for _marker in request.markers]
    entries = (
        (of_marker, marker, topic.name, index)
        for of_marker, marker in zip(results, request.markers, strict=True)
        for topic in marker.topics
        for index in topic.partition_indexes
    )
    async for entries_of_slice in in_slices(entries):
        for of_marker, marker, name, index in entries_of_slice:
            result = _write(broker, TopicPartition(name, index), marker, code)
            of_marker.append((name, index, result))
    async for results_of_slice in in_slices(chain.from_iterable(results)):
        for _name, _index, result in results_of_slice:
            await result
    return WriteTxnMarkersResponse(
        markers=[
            WritableTxnMarkerResult(
                producer_id=marker.producer_id,
                topics=[
                    WritableTxnMarkerTopicResult(
                        name=name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(
                                partition_index=index, error_code=result.result()
                            )
                            for _name, index, result in of_topic
                        ],
                    )
                    for name, of_topic in groupby(of_marker, key=itemgetter(0))
                ],
            )
            for marker, of_marker in zip(request.markers, results, strict=True)
        ]
    )


def check_cluster_action(broker: Broker, context: RequestContext) -> None:
    """Raise ApiError unless a request comes from a broker, as far as that can be known."""
    if broker.authorizer is not None:
        check(broker, context, CLUSTER_ACTION, CLUSTER)
    elif broker.config.is_clustered:
        check_inter_broker_listener(broker, context)


def _write(
    broker: Broker, tp: TopicPartition, marker: WritableTxnMarker, code: ErrorCode
) -> asyncio.Future[ErrorCode]:
    """Write a marker, unless the request is refused with `code`; return its result."""
    future: asyncio.Future[ErrorCode] = asyncio.get_running_loop().create_future()

    def complete(code: ErrorCode) -> None:
        if not future.done():
            future.set_result(code)

    if code is not ErrorCode.NONE:
        complete(code)
    elif tp.topic == TRANSACTIONS_TOPIC:
        complete(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    else:
        ended = TransactionMarker(
            Producer(marker.producer_id, marker.producer_epoch),
            marker.transaction_result,
            marker.coordinator_epoch,
            marker.transaction_version,
        )
        write_marker(broker, tp, ended, complete)
    return future
