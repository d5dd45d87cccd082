"""The block of a transaction, without `await`: `with producer.transaction()`."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from ..producer.transaction import abort_and_log
from ..types import ConsumerGroupMetadata, OffsetAndMetadata, TopicPartition
from .consumer import Consumer

if TYPE_CHECKING:
    from .producer import Producer


class Transaction:
    """Like `ottla.client.Transaction`."""

    def __init__(self, producer: Producer[Any, Any], consumer: Consumer | None) -> None:
        self._producer = producer
        self._consumer = consumer

    def commit_offsets(
        self,
        source: Consumer | Mapping[TopicPartition, int | OffsetAndMetadata],
        group: str | ConsumerGroupMetadata | None = None,
    ) -> None:
        """Add offsets of a group to the transaction."""
        self._producer.commit_offsets(source, group)

    def __enter__(self) -> Self:
        self._producer.begin_transaction()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        if error is not None:
            self._abort()
            return
        try:
            if self._consumer is not None:
                self._producer.commit_offsets(self._consumer)
            self._producer.commit_transaction()
        except BaseException:
            self._abort()
            raise

    def _abort(self) -> None:
        self._producer.run(abort_and_log)
        if self._consumer is not None:
            self._consumer.seek_to_committed()


class ConsumerSnapshot:
    """What a blocking consumer has delivered, as the asynchronous producer asks for it.

    The two have event loops of their own, and neither waits for the other.
    """

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._error: Exception | None = None
        try:
            self._offsets = consumer.transaction_offsets()
        except Exception as error:  # noqa: BLE001  # raised to the producer
            self._error = error

    def transaction_offsets(
        self,
    ) -> tuple[ConsumerGroupMetadata, dict[TopicPartition, OffsetAndMetadata]]:
        """Return what was delivered when this was created. Raises KafkaError."""
        if self._error is not None:
            raise self._error
        return self._offsets

    def mark_transaction_committed(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Have the consumer record that offsets were committed, before its next call."""
        self._consumer.mark_transaction_committed(offsets)
