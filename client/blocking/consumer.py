"""The consumer without `await`."""

from __future__ import annotations

from typing import Any, Self

from ..consumer import consumer as there
from ..errors import ClosedError
from ..types import ConsumerRecord, TopicPartition
from .portal import Blocking, Plain, Stream, Verb, like


class Consumer(Blocking[there.Consumer]):
    """As `ottla.client.Consumer`, which says what the verbs do; it is an iterator.

    Callbacks are called in the client's own thread, and must not use the consumer.
    """

    @like(there.Consumer)
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    subscribe = Plain(there.Consumer.subscribe)
    unsubscribe = Verb(there.Consumer.unsubscribe)
    assign = Plain(there.Consumer.assign)
    getone = Verb(there.Consumer.getone)
    getmany = Verb(there.Consumer.getmany)
    batches = Stream(there.Consumer.batches)
    arrow_batches = Stream(there.Consumer.arrow_batches)
    seek = Plain(there.Consumer.seek)
    seek_to_beginning = Plain(there.Consumer.seek_to_beginning)
    seek_to_end = Plain(there.Consumer.seek_to_end)
    position = Verb(there.Consumer.position)
    pause = Plain(there.Consumer.pause)
    resume = Plain(there.Consumer.resume)
    commit = Verb(there.Consumer.commit)
    committed = Verb(there.Consumer.committed)
    beginning_offsets = Verb(there.Consumer.beginning_offsets)
    end_offsets = Verb(there.Consumer.end_offsets)
    offsets_for_times = Verb(there.Consumer.offsets_for_times)
    lag = Verb(there.Consumer.lag)
    _next = Verb(there.Consumer.__anext__)

    @property
    def group(self) -> str | None:
        """The group, if it is a member of one."""
        return self._client.group

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are read."""
        return self._ask(lambda consumer: consumer.assignment)

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions of which nothing is delivered for now."""
        return self._ask(lambda consumer: consumer.paused)

    @property
    def topics(self) -> frozenset[str]:
        """The topics that are subscribed to, as far as they are known."""
        return self._ask(lambda consumer: consumer.topics)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> ConsumerRecord:
        # What is at hand is taken without going to the other thread, as it is there without
        # waiting. How far we are is seen from this iterator, whoever looks.
        for record in self._client._delivery.iterator:
            return record
        try:
            return self._next()
        except StopAsyncIteration:
            raise StopIteration from None
        except ClosedError:
            if self._end.alive:
                raise
            raise StopIteration from None
