"""Blocking iteration over the records of a consumer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Self, TypeVar

from ..errors import ClosedError
from .client import BlockingClient

C = TypeVar("C")
R = TypeVar("R")


class RecordIterator(BlockingClient[C], Generic[C, R]):
    """A blocking consumer, an iterator of records, which ends when it is closed."""

    def _decoded(self) -> Iterator[R]:
        """Return the iterator of the records that are already decoded."""
        raise NotImplementedError

    def _next(self) -> R:
        """Wait for the next record."""
        raise NotImplementedError

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> R:
        # Records that are already decoded are returned without a round trip to the other thread.
        # The position follows from this iterator, whichever thread advances it.
        for record in self._decoded():
            return record
        try:
            return self._next()
        except StopAsyncIteration:
            raise StopIteration from None
        except ClosedError:
            if self._finalizer.alive:
                raise
            raise StopIteration from None
