"""Transactions: list, describe, abort and end them; the producers of partitions."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from ottla.protocol.api.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    TopicRequest,
)
from ottla.protocol.api.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from ottla.protocol.api.list_transactions import (
    ListTransactionsRequest,
    ListTransactionsResponse,
)
from ottla.protocol.api.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.registry import LIST_TRANSACTIONS

from ..errors import ClientError, KafkaError, ProducerFencedError
from ..offsets import group_by_topic, kafka_error
from ..transaction_requests import (
    FENCED,
    NO_PRODUCER,
    Producer,
    end_transaction,
    init_producer_id,
    transaction_version,
)
from ..types import TopicPartition
from .brokers import BrokersAdmin
from .offsets import OffsetsAdmin
from .requests import Outcome, outcome

_LIST_WITH_DURATION = 1
# A producer that was fenced has no transaction: any timeout will do.
_FENCE_TIMEOUT_MS = 60_000
# States in which the coordinator will end the transaction in its partitions.
_OPEN = ("Ongoing", "PrepareCommit", "PrepareAbort", "PrepareEpochFence")
#: The names of the states of a transactional id.
TRANSACTION_STATES = (
    *("Empty", "Ongoing", "PrepareCommit", "PrepareAbort", "CompleteCommit", "CompleteAbort"),
    *("Dead", "PrepareEpochFence"),
)
# The default of transaction.max.timeout.ms: a transaction that is older should have ended.
_MAX_TRANSACTION_SECONDS = 15 * 60.0


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id, as its coordinator lists it."""

    transactional_id: str
    producer_id: int
    #: "Empty", "Ongoing", "PrepareCommit", "CompleteCommit", …
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """A transactional id, and its transaction."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    #: When the last transaction began, in milliseconds since 1970; None before the first one.
    started_ms: int | None
    #: The partitions of the open transaction.
    partitions: tuple[TopicPartition, ...]
    coordinator: int


@dataclass(frozen=True, slots=True)
class ProducerState:
    """A producer that has written to a partition, as the leader knows it."""

    producer_id: int
    producer_epoch: int
    #: -1 if only markers are known.
    last_sequence: int
    #: In milliseconds since 1970; -1 if not known.
    last_timestamp: int
    #: -1 if the coordinator has not ended a transaction yet.
    coordinator_epoch: int
    #: The first offset of the open transaction; None if none is open.
    transaction_start_offset: int | None


@dataclass(frozen=True, slots=True)
class HangingTransaction:
    """A transaction that is open in a partition, and that no coordinator is going to end."""

    partition: TopicPartition
    producer: ProducerState
    #: The transactional id of the producer id; None if no coordinator knows it.
    transactional_id: str | None


class TransactionsAdmin(OffsetsAdmin, BrokersAdmin):
    """Admin requests about transactions."""

    async def list_transactions(
        self,
        *,
        states: Collection[str] = (),
        producer_ids: Collection[int] = (),
        min_duration: float | None = None,
    ) -> list[TransactionListing]:
        """Return all transactional ids, or some, by name. All brokers are asked.

        `states` are "Ongoing", "CompleteCommit", …; `min_duration` selects transactions that are
        open for that many seconds.
        """

        async def send(
            node_id: int, _: list[int]
        ) -> Mapping[int, Outcome[list[TransactionListing]]]:
            connection = await self._cluster.connect(node_id)
            if connection.version_for(LIST_TRANSACTIONS) < _LIST_WITH_DURATION:
                duration_ms = -1
            else:
                duration_ms = -1 if min_duration is None else int(min_duration * 1000)
            response = await self._cluster.send(
                node_id,
                ListTransactionsRequest(
                    state_filters=list(states),
                    producer_id_filters=list(producer_ids),
                    duration_filter=duration_ms,
                ),
                ListTransactionsResponse,
            )
            if unknown := ", ".join(response.unknown_state_filters):
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"Unknown state {unknown}: expected {', '.join(TRANSACTION_STATES)}",
                )
            listed = [
                TransactionListing(
                    one.transactional_id, one.producer_id, one.transaction_state, node_id
                )
                for one in response.transaction_states
            ]
            return {node_id: outcome(response.error_code, None, listed)}

        async def attempt(pending: list[int]) -> Mapping[int, Outcome[list[TransactionListing]]]:
            return await self._by_node({node_id: node_id for node_id in pending}, send)

        brokers = (await self.describe_cluster()).brokers
        alive = [one.id for one in brokers if one.is_alive]
        by_broker = await self._each(alive, attempt, "listing transactions")
        listed = [one for some in by_broker.values() for one in some]
        return sorted(listed, key=lambda one: one.transactional_id)

    async def describe_transactions(
        self, *transactional_ids: str
    ) -> dict[str, TransactionDescription]:
        """Return transactional ids and their transactions, by name.

        Raises TRANSACTIONAL_ID_NOT_FOUND for one that is unknown or has expired.
        """

        async def send(
            node_id: int, some: list[str]
        ) -> Mapping[str, Outcome[TransactionDescription]]:
            request = DescribeTransactionsRequest(transactional_ids=some)
            response = await self._cluster.send(node_id, request, DescribeTransactionsResponse)
            return {
                one.transactional_id: kafka_error(
                    one.error_code, f"transactional id {one.transactional_id!r}"
                )
                or TransactionDescription(
                    one.transactional_id,
                    one.transaction_state,
                    one.producer_id,
                    one.producer_epoch,
                    one.transaction_timeout_ms,
                    None if one.transaction_start_time_ms < 0 else one.transaction_start_time_ms,
                    tuple(
                        sorted(
                            TopicPartition(topic.topic, index)
                            for topic in one.topics
                            for index in topic.partitions
                        )
                    ),
                    node_id,
                )
                for one in response.transaction_states
            }

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[TransactionDescription]]:
            return await self._by_node(await self._transaction_coordinators(pending), send)

        return await self._each(transactional_ids, attempt, "describing transactions")

    async def describe_producers(
        self, *partitions: str | TopicPartition
    ) -> dict[TopicPartition, list[ProducerState]]:
        """Return the producers of partitions, or of all partitions of topics."""

        async def send(
            node_id: int, led: list[TopicPartition]
        ) -> Mapping[TopicPartition, Outcome[list[ProducerState]]]:
            request = DescribeProducersRequest(
                topics=[
                    TopicRequest(name=topic, partition_indexes=[tp.partition for tp in some])
                    for topic, some in group_by_topic(led)
                ]
            )
            response = await self._cluster.send(node_id, request, DescribeProducersResponse)
            return {
                tp: self._from_leader(
                    tp,
                    kafka_error(partition.error_code, str(tp))
                    or [
                        ProducerState(
                            one.producer_id,
                            one.producer_epoch,
                            one.last_sequence,
                            one.last_timestamp,
                            one.coordinator_epoch,
                            None
                            if one.current_txn_start_offset < 0
                            else one.current_txn_start_offset,
                        )
                        for one in partition.active_producers
                    ],
                )
                for topic in response.topics
                for partition in topic.partitions
                for tp in [TopicPartition(topic.name, partition.partition_index)]
            }

        tps = await self._expand_topics(partitions)
        return await self._each_leader(tps, send, "describing producers")

    async def find_hanging_transactions(
        self, *partitions: str | TopicPartition, min_age: float = _MAX_TRANSACTION_SECONDS
    ) -> list[HangingTransaction]:
        """Return transactions that are open in these partitions, though no coordinator has them.

        They hold up read_committed consumers for ever; `abort_transaction` ends them.
        Only producers whose last record is older than `min_age` seconds are looked at.
        """
        tps = await self._expand_topics(partitions)
        open_in = {
            tp: [one for one in producers if one.transaction_start_offset is not None]
            for tp, producers in (await self.describe_producers(*tps)).items()
        }
        newest_ms = (time.time() - min_age) * 1000
        suspects = [
            (tp, one)
            for tp, producers in sorted(open_in.items())
            for one in producers
            if one.last_timestamp <= newest_ms
        ]
        if not suspects:
            return []
        names = {
            one.producer_id: one.transactional_id
            for one in await self.list_transactions(
                producer_ids={one.producer_id for _tp, one in suspects}
            )
        }
        known = await self.describe_transactions(*names.values()) if names else {}
        hanging = []
        for tp, producer in suspects:
            name = names.get(producer.producer_id)
            description = None if name is None else known[name]
            if description is None or not _will_end(description, tp, producer):
                hanging.append(HangingTransaction(tp, producer, name))
        return hanging

    async def abort_transaction(self, partition: TopicPartition, producer: ProducerState) -> None:
        """Abort a hanging transaction in one partition, by a marker without its coordinator.

        For what `find_hanging_transactions` found: a transaction that its coordinator still has may
        be committed in other partitions. Brokers of a cluster accept it on their inter-broker
        listener only. To abort a transaction that is not hanging, use `fence_producers`.
        """
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            transaction_result=False,
            topics=[
                WritableTxnMarkerTopic(
                    name=partition.topic, partition_indexes=[partition.partition]
                )
            ],
            # A transaction that was never ended here has no epoch, and is fenced by none.
            coordinator_epoch=max(0, producer.coordinator_epoch),
        )

        async def send(
            node_id: int, _: list[TopicPartition]
        ) -> Mapping[TopicPartition, Outcome[None]]:
            response = await self._cluster.send(
                node_id, WriteTxnMarkersRequest(markers=[marker]), WriteTxnMarkersResponse
            )
            codes = [
                result.error_code
                for one in response.markers
                for topic in one.topics
                for result in topic.partitions
            ]
            return {partition: kafka_error(codes[0], str(partition)) if codes else None}

        await self._each_leader([partition], send, "aborting a transaction")

    async def fence_producers(self, *transactional_ids: str) -> dict[str, tuple[int, int]]:
        """Fence the producers of transactional ids, and abort their transactions.

        Returns the producer id and epoch that no producer has.
        """

        async def attempt(pending: list[str]) -> Mapping[str, Outcome[Producer]]:
            results: dict[str, Outcome[Producer]] = {}
            for name in pending:
                try:
                    results[name] = await init_producer_id(
                        self._cluster, name, _FENCE_TIMEOUT_MS, NO_PRODUCER
                    )
                except (KafkaError, ClientError) as error:
                    results[name] = error
            return results

        return await self._each(transactional_ids, attempt, "fencing producers")

    async def end_transaction(
        self, transactional_id: str, producer_id: int, producer_epoch: int, *, commit: bool
    ) -> None:
        """Commit or abort a transaction that a producer has opened and detached.

        It may be called again, by any process, until the next transaction with this transactional
        id begins: the same decision succeeds, the opposite one raises KafkaError with
        INVALID_TXN_STATE. That is also raised if there is no transaction, or if it has timed out
        and is to be committed. Raises ProducerFencedError if there is a newer producer.
        """
        producer = (producer_id, producer_epoch)

        async def attempt() -> None:
            version = await transaction_version(self._cluster, transactional_id)
            await end_transaction(
                self._cluster,
                transactional_id,
                producer,
                is_commit=commit,
                transaction_version=version,
            )

        what = f"{'committing' if commit else 'aborting'} the transaction of {transactional_id}"
        try:
            await self._cluster.retry(attempt, what=what)
        except KafkaError as error:
            if error.code not in FENCED:
                raise
            raise ProducerFencedError(
                f"Cannot end the transaction of {transactional_id!r} with producer id"
                f" {producer_id} and epoch {producer_epoch}: a newer producer has replaced it"
            ) from error

    async def _transaction_coordinators(self, names: Iterable[str]) -> dict[str, Outcome[int]]:
        coordinators: dict[str, Outcome[int]] = {}
        for name in names:
            try:
                coordinators[name] = await self._cluster.transaction_coordinator_of(name)
            except (KafkaError, ClientError) as error:
                coordinators[name] = error
        return coordinators


def _will_end(
    description: TransactionDescription, tp: TopicPartition, producer: ProducerState
) -> bool:
    """Whether the coordinator has a partition in its transaction, and so will end it there."""
    return (
        description.state in _OPEN
        and tp in description.partitions
        and description.producer_epoch >= producer.producer_epoch
    )
