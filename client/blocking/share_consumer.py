"""The blocking share consumer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..share.consumer import ShareConsumer as AsyncShareConsumer
from ..types import ShareRecord, TopicPartition
from .client import blocking, signature_of
from .record_iterator import RecordIterator


class ShareConsumer(RecordIterator[AsyncShareConsumer, ShareRecord]):
    """Like `ottla.client.ShareConsumer`, where the methods are documented; an iterator of records.

    `on_acknowledged` runs in the client's own thread, and must not use the consumer.
    """

    @signature_of(AsyncShareConsumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    subscribe = blocking(AsyncShareConsumer.subscribe)
    getone = blocking(AsyncShareConsumer.getone)
    getmany = blocking(AsyncShareConsumer.getmany)
    accept = blocking(AsyncShareConsumer.accept)
    release = blocking(AsyncShareConsumer.release)
    reject = blocking(AsyncShareConsumer.reject)
    renew = blocking(AsyncShareConsumer.renew)
    commit = blocking(AsyncShareConsumer.commit)
    _next = blocking(AsyncShareConsumer.__anext__)

    def _decoded(self) -> Iterator[ShareRecord]:
        return self._client._iterator

    @property
    def group(self) -> str:
        """The group id."""
        return self._client.group

    @property
    def topics(self) -> frozenset[str]:
        """The subscribed topics."""
        return self._read(lambda consumer: consumer.topics)

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that this consumer fetches from; others may have them, too."""
        return self._read(lambda consumer: consumer.assignment)

    @property
    def lock_duration(self) -> float | None:
        """How many seconds records are acquired for; None before the first fetch."""
        return self._read(lambda consumer: consumer.lock_duration)
