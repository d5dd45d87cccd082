"""The block of a transaction: `async with producer.transaction()`."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from ..errors import ClientError, KafkaError
from ..types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from ..consumer.consumer import Consumer
    from .producer import Producer

logger = logging.getLogger(__name__)


class OffsetSource(Protocol):
    """A consumer, or what a blocking consumer has delivered."""

    def transaction_offsets(
        self,
    ) -> tuple[ConsumerGroupMetadata, dict[TopicPartition, OffsetAndMetadata]]:
        """Return what was delivered and is not committed, and the member that commits it."""

    def mark_transaction_committed(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Record that a transaction has committed offsets."""


class Transaction:
    """Commits at the end of the block, and aborts if an exception leaves it."""

    def __init__(self, producer: Producer[Any, Any], consumer: Consumer | None = None) -> None:
        self._producer = producer
        self._consumer = consumer

    async def commit_offsets(
        self,
        source: OffsetSource | Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata | None = None,
    ) -> None:
        """Add offsets of a group to the transaction; see `Producer.commit_offsets`."""
        await self._producer.commit_offsets(source, group)

    async def __aenter__(self) -> Self:
        await self._producer.begin_transaction()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            await self._abort()
            return
        try:
            if self._consumer is not None:
                await self._producer.commit_offsets(self._consumer)
            await self._producer.commit_transaction()
        except BaseException:
            await self._abort()
            raise

    async def _abort(self) -> None:
        try:
            await abort_and_log(self._producer)
        finally:
            if self._consumer is not None:
                self._consumer.seek_to_committed()


async def abort_and_log(producer: Producer[Any, Any]) -> None:
    """Abort if that is possible; log a failure, as another exception is on its way.

    A transaction whose outcome is not known cannot be aborted.
    """
    if not producer.is_in_transaction:
        return
    try:
        await producer.abort_transaction()
    except (KafkaError, ClientError) as error:
        logger.warning("Cannot abort the transaction of %s: %s", producer.transactional_id, error)
