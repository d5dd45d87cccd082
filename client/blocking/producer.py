"""The producer without `await`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from .. import producer as there
from .portal import Blocking, Later, Verb, like

# What is taken from an iterator before it is sent.
_CHUNK_RECORDS = 5000


class Producer(Blocking[there.Producer]):
    """As `ottla.client.Producer`, which says what the verbs do.

    `enqueue` gives a `concurrent.futures.Future`.
    """

    @like(there.Producer)
    def __init__(self, *args: Any, **kwargs: Any) -> None: ...

    send = Verb(there.Producer.send)
    enqueue = Later(there.Producer.enqueue)
    flush = Verb(there.Producer.flush)
    _send_many = Verb(there.Producer.send_many)

    def send_many(self, topic: str, records: Iterable[Any]) -> list[there.Written]:
        """Send many records; what an iterator gives is taken here, in the caller's thread."""
        written: list[there.Written] = []
        for chunk in _chunks(records):
            written += self._send_many(topic, chunk)
        return written


def _chunks(records: Iterable[Any]) -> Iterator[Sequence[Any]]:
    if isinstance(records, Sequence):
        yield records
        return
    iterator = iter(records)
    while chunk := list(islice(iterator, _CHUNK_RECORDS)):
        yield chunk
