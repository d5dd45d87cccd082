"""How many files and maps are open at once.

A log can have thousands of segments, and a process a few thousand descriptors. Segments open their
files when they are used, and tell this; the one that was not used for longest is closed when there
are too many. A reader's views stay valid: they hold the map, and the map holds the pages.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Protocol

from .disk import Disk


class Closable(Protocol):
    """What can be closed to make room."""

    def release(self) -> bool:
        """Close what is open; False if that cannot be now."""
        ...


class OpenFiles:
    """The open ones, in the order of their last use."""

    def __init__(self, disk: Disk | None = None, *, limit: int | None = None) -> None:
        self.disk = disk or Disk()
        # One segment can take four descriptors: its log, and the maps of that and of its indexes.
        self.limit = limit or max(32, self.disk.descriptor_limit() // 8)
        self._open: OrderedDict[Closable, None] = OrderedDict()
        self._lock = threading.Lock()
        self._pausing = 0

    def __len__(self) -> int:
        return len(self._open)

    def used(self, closable: Closable) -> None:
        """Note that this one is open and was just used; close another if there are too many."""
        opened = self._open
        with self._lock:
            if closable in opened:
                opened.move_to_end(closable)
                return
            opened[closable] = None
            surplus = len(opened) - self.limit
            if surplus <= 0 or self._pausing:
                return
            # Some may not be closed now; we do not look through all of them for one that may.
            for candidate in list(islice(opened, surplus + 8)):
                if candidate is not closable and candidate.release():
                    del opened[candidate]

    def closed(self, closable: Closable) -> None:
        """Note that this one was closed."""
        with self._lock:
            self._open.pop(closable, None)

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Close nothing meanwhile: several threads open logs, and one must not close another's."""
        self._pausing += 1
        try:
            yield
        finally:
            self._pausing -= 1
