"""Long loops in handlers, in slices between which other connections are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from itertools import islice
from typing import Any, Protocol, TypeVar

#: Elements that are handled before other connections are served: about a millisecond.
SLICE_ELEMENTS = 256

T = TypeVar("T")
R = TypeVar("R")


class _HasPartitions(Protocol):
    @property
    def partitions(self) -> Sequence[Any]: ...


def is_large(topics: Sequence[_HasPartitions]) -> bool:
    """Whether the partitions of a request are more than a slice."""
    return (
        len(topics) > SLICE_ELEMENTS
        or sum(len(topic.partitions) for topic in topics) > SLICE_ELEMENTS
    )


async def map_in_slices(function: Callable[[T], R], elements: Iterable[T]) -> list[R]:
    """Call a function with each of the elements, giving way to other tasks; return the results."""
    results: list[R] = []
    async for elements_of_slice in in_slices(elements):
        results += map(function, elements_of_slice)
    return results


async def in_slices(elements: Iterable[T]) -> AsyncIterator[list[T]]:
    """Yield the elements in lists, giving way to other tasks between two of them."""
    iterator = iter(elements)
    while elements_of_slice := list(islice(iterator, SLICE_ELEMENTS)):
        yield elements_of_slice
        if len(elements_of_slice) == SLICE_ELEMENTS:
            await asyncio.sleep(0)
