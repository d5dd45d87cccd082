"""The blocking consumer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ..consumer.consumer import Consumer as AsyncConsumer
from ..types import ConsumerGroupMetadata, ConsumerRecord, OffsetAndMetadata, TopicPartition
from .client import blocking, signature_of
from .record_iterator import RecordIterator


class Consumer(RecordIterator[AsyncConsumer, ConsumerRecord]):
    """Like `ottla.client.Consumer`, where the methods are documented; an iterator of records.

    Callbacks run in the client's own thread, and must not use the consumer.
    """

    @signature_of(AsyncConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    subscribe = blocking(AsyncConsumer.subscribe)
    unsubscribe = blocking(AsyncConsumer.unsubscribe)
    assign = blocking(AsyncConsumer.assign)
    getone = blocking(AsyncConsumer.getone)
    getmany = blocking(AsyncConsumer.getmany)
    batches = blocking(AsyncConsumer.batches)
    arrow_batches = blocking(AsyncConsumer.arrow_batches)
    seek = blocking(AsyncConsumer.seek)
    seek_to_beginning = blocking(AsyncConsumer.seek_to_beginning)
    seek_to_end = blocking(AsyncConsumer.seek_to_end)
    seek_to_committed = blocking(AsyncConsumer.seek_to_committed)
    position = blocking(AsyncConsumer.position)
    pause = blocking(AsyncConsumer.pause)
    resume = blocking(AsyncConsumer.resume)
    commit = blocking(AsyncConsumer.commit)
    committed = blocking(AsyncConsumer.committed)
    beginning_offsets = blocking(AsyncConsumer.beginning_offsets)
    end_offsets = blocking(AsyncConsumer.end_offsets)
    offsets_for_times = blocking(AsyncConsumer.offsets_for_times)
    lag = blocking(AsyncConsumer.lag)
    _next = blocking(AsyncConsumer.__anext__)

    @property
    def group(self) -> str | None:
        """The group id, if any."""
        return self._client.group

    @property
    def group_metadata(self) -> ConsumerGroupMetadata:
        """The group and this member of it."""
        return self._read(lambda consumer: consumer.group_metadata)

    def transaction_offsets(
        self,
    ) -> tuple[ConsumerGroupMetadata, dict[TopicPartition, OffsetAndMetadata]]:
        """Return what a transaction commits (internal)."""
        return self._read(lambda consumer: consumer.transaction_offsets())

    def mark_transaction_committed(
        self, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> None:
        """Have offsets recorded as committed before the next call (internal)."""
        mark = partial(self._client.mark_transaction_committed, offsets)
        self._loop_thread.call_soon(mark)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The assigned partitions."""
        return self._read(lambda consumer: consumer.assignment)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The paused partitions."""
        return self._read(lambda consumer: consumer.paused)

    @property
    def topics(self) -> frozenset[str]:
        """The subscribed topics that are known."""
        return self._read(lambda consumer: consumer.topics)

    def _decoded(self) -> Iterator[ConsumerRecord]:
        return self._client._delivery.iterator
