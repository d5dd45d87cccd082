"""Transaction markers: how they get into the partitions of a decided transaction.

A coordinator hands over the markers of a transaction to the `MarkerSender`, which writes those of
its own broker at once, and sends the others with WriteTxnMarkers: one request per broker in flight,
with everything that is due. What fails is tried again for ever, with the leader looked up anew; a
broker that is down holds up its own partitions only. Markers are idempotent, so that a restart just
starts over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from ottla.coord.effects import Producer, SendMarkers
from ottla.coord.metadata_image import OFFSETS_TOPIC, TopicPartition
from ottla.coord.partition_state import NO_LEADER
from ottla.protocol.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.errors import ErrorCode

from ..observability.logging import log_limited
from ..requests.errors import EXPECTED_ERRORS, ApiError, error_code_of
from .shard_runtime import ShardRuntime, TransactionMarker, append_marker, current_time

if TYPE_CHECKING:
    from ottla.coord.transaction_shard import TransactionShard

    from ..broker import Broker

logger = logging.getLogger(__name__)

_VERSION = 2
_MIN_BACKOFF_SECONDS = 0.02
_MAX_BACKOFF_SECONDS = 1.0
#: Partitions in one WriteTxnMarkers request.
_MAX_PARTITIONS = 5000
#: The partition has no marker, and needs none: it is gone for good, or refuses it for good.
_CROSSED_OFF = (ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT, ErrorCode.UNSUPPORTED_VERSION)
#: Another coordinator has taken over.
_FENCED = (ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.TRANSACTION_COORDINATOR_FENCED)


def write_marker(
    broker: Broker,
    tp: TopicPartition,
    marker: TransactionMarker,
    complete: Callable[[ErrorCode], None],
) -> None:
    """Append a marker to a partition of this broker; call `complete` when it is durable."""

    def flushed(error: Exception | None) -> None:
        complete(ErrorCode.NONE if error is None else error_code_of(error))

    try:
        partition = broker.topics.find(*tp)
        broker.transactions.verifications.invalidate(tp, marker.producer.id)
        if tp.topic == OFFSETS_TOPIC:
            runtime = broker.groups.shards.get(tp.partition)
            if runtime is None:  # It is being loaded; the sender tries again.
                raise ApiError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            runtime.append_marker(marker, flushed)
            return
        appended = append_marker(partition, marker, current_time().time_ms)
    except EXPECTED_ERRORS as error:
        complete(error_code_of(error))
        return
    partition.when_committed(appended.last_offset, flushed)


class _DueMarker(NamedTuple):
    """A marker of a transaction, for one partition."""

    runtime: ShardRuntime[TransactionShard]
    transactional_id: str
    marker: SendMarkers
    tp: TopicPartition
    attempts: int = 0


class MarkerSender:
    """Writes the markers of the transactions that this broker coordinates."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        # Markers for other brokers, by broker id.
        self._due: dict[int, list[_DueMarker]] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._is_stopped = False

    def send(self, runtime: ShardRuntime[TransactionShard], effect: SendMarkers) -> None:
        """Write the markers of a transaction, and report them to its shard."""
        if not effect.partitions:
            # All are written, but not the record of that: report once more.
            asyncio.get_running_loop().call_later(
                _MAX_BACKOFF_SECONDS, self._report, runtime, effect, ()
            )
            return
        self._write(
            [_DueMarker(runtime, effect.transactional_id, effect, tp) for tp in effect.partitions]
        )

    def stop(self) -> None:
        """Stop sending. The next start continues."""
        self._is_stopped = True
        for task in self._tasks.values():
            task.cancel()

    def _write(self, markers: Iterable[_DueMarker]) -> None:
        """Write markers here, or queue them for the brokers that lead their partitions."""
        if self._is_stopped:
            return
        broker = self._broker
        for due in markers:
            if due.runtime.is_closed:
                continue
            topic = broker.topics.image.topics.get(due.tp.topic)
            if topic is None or not 0 <= due.tp.partition < len(topic.replicas):
                self._report(due.runtime, due.marker, (due.tp,))  # The topic was deleted.
                continue
            leader_id = broker.topics.image.leader_of(topic, due.tp.partition)
            if leader_id == NO_LEADER:
                self._completed(due, ErrorCode.LEADER_NOT_AVAILABLE)
            elif leader_id == broker.id:
                write_marker(broker, due.tp, _marker(due), partial(self._completed, due))
            else:
                self._due.setdefault(leader_id, []).append(due)
                self._start(leader_id)

    def _completed(self, due: _DueMarker, code: ErrorCode) -> None:
        """Handle the result of one marker."""
        if code is ErrorCode.NONE or code in _CROSSED_OFF:
            self._report(due.runtime, due.marker, (due.tp,))
        elif code in _FENCED:
            log_limited(
                logger,
                "A transaction marker was refused: another coordinator has taken over",
                extra={
                    "transactional_id": due.transactional_id,
                    "partition": f"{due.tp.topic}-{due.tp.partition}",
                    "error": code.name,
                },
            )
        elif not self._is_stopped:
            asyncio.get_running_loop().call_later(
                _backoff_seconds(due.attempts),
                self._write,
                [due._replace(attempts=due.attempts + 1)],
            )

    @staticmethod
    def _report(
        runtime: ShardRuntime[TransactionShard],
        marker: SendMarkers,
        partitions: tuple[TopicPartition, ...],
    ) -> None:
        if not runtime.is_closed:
            effects = runtime.shard.markers_written(
                marker.transactional_id, marker.producer, partitions, current_time()
            )
            runtime.run(effects)

    # Other brokers.

    def _start(self, leader_id: int) -> None:
        task = self._tasks.get(leader_id)
        if task is None or task.done():
            loop = asyncio.get_running_loop()
            self._tasks[leader_id] = loop.create_task(self._send_all(leader_id))

    async def _send_all(self, leader_id: int) -> None:
        """Send everything that is due for a broker, until nothing is."""
        attempts = 0
        while due := self._due.pop(leader_id, []):
            if len(due) > _MAX_PARTITIONS:
                self._due[leader_id] = due[_MAX_PARTITIONS:]
                del due[_MAX_PARTITIONS:]
            try:
                codes = await self._request(leader_id, due)
            except ApiError as error:
                logger.debug("WriteTxnMarkers to broker %d failed: %s", leader_id, error)
                self._due[leader_id] = due + self._due.get(leader_id, [])
                await asyncio.sleep(_backoff_seconds(attempts))
                attempts += 1
                # Topics may have been deleted meanwhile.
                due = self._due.pop(leader_id)
                self._write(due)
                continue
            attempts = 0
            for one in due:
                self._completed(
                    one, codes.get((one.marker.producer, one.tp), ErrorCode.UNKNOWN_SERVER_ERROR)
                )

    async def _request(
        self, leader_id: int, markers: list[_DueMarker]
    ) -> dict[tuple[Producer, TopicPartition], ErrorCode]:
        """Send one WriteTxnMarkers request, and return its results."""
        by_marker: dict[tuple[SendMarkers, int], dict[str, list[int]]] = {}
        for due in markers:
            topics = by_marker.setdefault((due.marker, due.runtime.partition.leader_epoch), {})
            topics.setdefault(due.tp.topic, []).append(due.tp.partition)
        request = WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(
                    producer_id=marker.producer.id,
                    producer_epoch=marker.producer.epoch,
                    transaction_result=marker.is_commit,
                    topics=[
                        WritableTxnMarkerTopic(name=name, partition_indexes=indexes)
                        for name, indexes in topics.items()
                    ],
                    coordinator_epoch=coordinator_epoch,
                    transaction_version=marker.transaction_version,
                )
                for (marker, coordinator_epoch), topics in by_marker.items()
            ]
        )
        response = await self._broker.channels.send(
            leader_id, request, WriteTxnMarkersResponse, _VERSION
        )
        # In the order of the request: a producer id may be in several markers.
        return {
            (marker.producer, TopicPartition(topic.name, partition.partition_index)): ErrorCode.of(
                partition.error_code
            )
            for (marker, _epoch), result in zip(by_marker, response.markers, strict=False)
            for topic in result.topics
            for partition in topic.partitions
        }


def _marker(due: _DueMarker) -> TransactionMarker:
    marker = due.marker
    return TransactionMarker(
        marker.producer,
        marker.is_commit,
        due.runtime.partition.leader_epoch,
        marker.transaction_version,
    )


def _backoff_seconds(attempts: int) -> float:
    return min(_MIN_BACKOFF_SECONDS * (1 << min(attempts, 10)), _MAX_BACKOFF_SECONDS)
