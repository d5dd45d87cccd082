"""Verification of transactional batches, on the leader of their partition (KIP-890).

The first batch of a transaction in a partition is appended only if the transaction's coordinator
knows the partition: otherwise nobody would ever write its marker. Since Produce version 12 the
leader adds the partition instead of asking.

The coordinator may be another broker, and while it is asked, the transaction may end. A `Guard`
holds what was verified for one request, and a marker revokes it: what counts is what the guard says
when the batch is appended, in the same step of the event loop.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

from ottla.coord.effects import Producer
from ottla.coord.metadata_image import TopicPartition
from ottla.protocol.api.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from ottla.protocol.errors import ErrorCode

from ..requests.errors import ApiError

if TYPE_CHECKING:
    from ..broker import Broker

logger = logging.getLogger(__name__)

#: The result of each partition.
PartitionErrors = dict[TopicPartition, ErrorCode]

_VERSION = 5


class Guard:
    """The partitions that were verified for one request, with their results."""

    __slots__ = ("asked", "results")

    def __init__(self) -> None:
        self.asked: set[TopicPartition] = set()
        self.results: PartitionErrors = {}

    def revoke(self, tp: TopicPartition) -> None:
        """Forget that a partition was verified, or is about to be."""
        self.asked.discard(tp)
        self.results.pop(tp, None)


class Verifications:
    """The guards of all requests in progress, and the coordinators that they ask."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._guards: dict[int, set[Guard]] = {}
        self._remote: dict[int, _CoordinatorQueue] = {}

    @contextmanager
    def guard(self, producer_id: int) -> Iterator[Guard]:
        """Provide a guard for a request of a producer."""
        guard = Guard()
        guards = self._guards.setdefault(producer_id, set())
        guards.add(guard)
        try:
            yield guard
        finally:
            guards.discard(guard)
            if not guards:
                self._guards.pop(producer_id, None)

    def invalidate(self, tp: TopicPartition, producer_id: int) -> None:
        """Revoke what was verified: a marker of the producer is appended to the partition."""
        for guard in self._guards.get(producer_id, ()):
            guard.revoke(tp)

    async def verify(
        self,
        guard: Guard,
        transactional_id: str,
        producer: Producer,
        partitions: Collection[TopicPartition],
        *,
        adds: bool,
    ) -> None:
        """Ask the coordinator whether partitions are in a transaction, or to add them."""
        guard.asked.update(partitions)
        question = Question(transactional_id, producer, tuple(partitions), adds)
        results = await self._ask(question)
        for tp in question.partitions:
            if tp in guard.asked:
                guard.asked.discard(tp)
                guard.results[tp] = results.get(tp, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    async def _ask(self, question: Question) -> PartitionErrors:
        """Ask, and again for a while if the transaction before is not complete yet."""
        config = self._broker.config
        deadline = time.monotonic() + config.add_partitions_to_txn_retry_backoff_max_ms / 1000
        while True:
            results = await self._ask_once(question)
            if (
                not question.adds
                or ErrorCode.CONCURRENT_TRANSACTIONS not in results.values()
                or time.monotonic() >= deadline
            ):
                return results
            await asyncio.sleep(config.add_partitions_to_txn_retry_backoff_ms / 1000)

    async def _ask_once(self, question: Question) -> PartitionErrors:
        coordinator_id = self._broker.transactions.coordinator_of(question.transactional_id)
        if coordinator_id == self._broker.id:
            return await ask_here(self._broker, question)
        if coordinator_id < 0:
            return dict.fromkeys(question.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        queue = self._remote.get(coordinator_id)
        if queue is None:
            queue = self._remote[coordinator_id] = _CoordinatorQueue(self._broker, coordinator_id)
        return await queue.ask(question)

    def stop(self) -> None:
        """Stop asking."""
        for queue in self._remote.values():
            queue.stop()


class Question(NamedTuple):
    """Whether partitions are in a transaction, or a request to add them."""

    transactional_id: str
    producer: Producer
    partitions: tuple[TopicPartition, ...]
    adds: bool


async def ask_here(broker: Broker, question: Question) -> PartitionErrors:
    """Answer a question about a transaction that this broker coordinates."""
    transactional_id, producer, partitions, adds = question
    code = broker.transactions.check(transactional_id)
    runtime = broker.transactions.shard_of(transactional_id)
    if runtime is None:
        return dict.fromkeys(partitions, code)
    if not adds:
        return runtime.shard.verify_partitions(transactional_id, producer, partitions)
    result: ErrorCode | asyncio.Future[ErrorCode] = runtime.submit(
        lambda shard, token, now: shard.add_partitions(
            transactional_id, producer, partitions, token, now, transaction_version=2
        )
    )
    code = await result if isinstance(result, asyncio.Future) else result
    return dict.fromkeys(partitions, code)


class _CoordinatorQueue:
    """Questions for one other broker: one request in flight, with all that wait."""

    def __init__(self, broker: Broker, coordinator_id: int) -> None:
        self._broker = broker
        self._coordinator_id = coordinator_id
        self._waiting: list[tuple[Question, asyncio.Future[PartitionErrors]]] = []
        self._task: asyncio.Task[None] | None = None

    def ask(self, question: Question) -> asyncio.Future[PartitionErrors]:
        """Ask, and return a future of the answer."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[PartitionErrors] = loop.create_future()
        self._waiting.append((question, future))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._send_all())
        return future

    def stop(self) -> None:
        """Stop asking. Questions that wait fail."""
        if self._task is not None:
            self._task.cancel()
        for question, future in self._waiting:
            _answer(question, future, {})

    async def _send_all(self) -> None:
        while self._waiting:
            batch: dict[str, tuple[Question, asyncio.Future[PartitionErrors]]] = {}
            # A request names a transactional id once.
            self._waiting = [
                entry
                for entry in self._waiting
                if batch.setdefault(entry[0].transactional_id, entry) is not entry
            ]
            answers: dict[str, PartitionErrors] = {}
            try:
                answers = await self._request([question for question, _ in batch.values()])
            except ApiError as error:
                logger.debug(
                    "AddPartitionsToTxn to broker %d failed: %s", self._coordinator_id, error
                )
            finally:
                for transactional_id, (question, future) in batch.items():
                    _answer(question, future, answers.get(transactional_id, {}))

    async def _request(self, questions: Collection[Question]) -> dict[str, PartitionErrors]:
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=question.transactional_id,
                    producer_id=question.producer.id,
                    producer_epoch=question.producer.epoch,
                    verify_only=not question.adds,
                    topics=[
                        AddPartitionsToTxnTopic(name=name, partitions=indexes)
                        for name, indexes in _by_topic(question.partitions).items()
                    ],
                )
                for question in questions
            ]
        )
        response = await self._broker.channels.send(
            self._coordinator_id, request, AddPartitionsToTxnResponse, _VERSION
        )
        return {
            result.transactional_id: {
                TopicPartition(topic.name, partition.partition_index): ErrorCode.of(
                    partition.partition_error_code
                )
                for topic in result.topic_results
                for partition in topic.results_by_partition
            }
            for result in response.results_by_transaction
        }


def _by_topic(partitions: Collection[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for name, index in partitions:
        topics.setdefault(name, []).append(index)
    return topics


def _answer(
    question: Question, future: asyncio.Future[PartitionErrors], results: PartitionErrors
) -> None:
    if not future.done():
        unanswered = dict.fromkeys(question.partitions, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        future.set_result(unanswered | results)
