"""Long loops in handlers, in slices between which other connections are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from itertools import islice
from typing import TypeVar

#: Elements that are handled before other connections are served: about a millisecond.
SLICE_ELEMENTS = 256

T = TypeVar("T")


async def in_slices(elements: Iterable[T]) -> AsyncIterator[list[T]]:
    """Yield the elements in lists, giving way to other tasks between two of them."""
    iterator = iter(elements)
    while elements_of_slice := list(islice(iterator, SLICE_ELEMENTS)):
        yield elements_of_slice
        await asyncio.sleep(0)
