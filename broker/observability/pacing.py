"""Work of a thread in small portions, so that the event loop gets the interpreter in between.

A thread that computes keeps the event loop waiting for up to 5 ms, each time the loop wants to go
on (`sys.getswitchinterval`). A thread that sleeps now and then does not.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")

#: Some 0.3 ms of work on samples.
PORTION = 100
_PAUSE_SECONDS = 0.0003


def paced(items: Iterable[T], portion: int = PORTION) -> Iterator[T]:
    """Yield the items, with a pause after each portion."""
    for number, item in enumerate(items, start=1):
        yield item
        if number % portion == 0:
            time.sleep(_PAUSE_SECONDS)
