"""How many files and maps are open at once.

A log can have thousands of segments, and a process a few thousand descriptors. Segments open their
files when they are used, and tell this; the one that was not used for longest is closed when there
are too many. A reader's views stay valid: they hold the map, and the map holds the pages.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from .disk import Disk


class Closable(Protocol):
    """What can be closed to make room."""

    def release(self) -> bool:
        """Close what is open; False if that cannot be now."""
        ...


class OpenFiles:
    """The open ones, in the order of their last use."""

    def __init__(self, disk: Disk | None = None, *, limit: int = 2000) -> None:
        self.disk = disk or Disk()
        self.limit = limit
        self._open: OrderedDict[Closable, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def used(self, closable: Closable) -> None:
        """Note that this one is open and was just used; close another if there are too many."""
        opened = self._open
        if closable in opened:
            opened.move_to_end(closable)
            return
        opened[closable] = None
        if len(opened) > self.limit:
            for candidate in list(opened)[: len(opened) - self.limit]:
                if candidate is not closable and candidate.release():
                    opened.pop(candidate, None)

    def closed(self, closable: Closable) -> None:
        """Note that this one was closed."""
        self._open.pop(closable, None)
