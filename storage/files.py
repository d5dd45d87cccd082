"""A limit on the number of open files and maps.

A log can have thousands of segments, and a process only a few thousand file descriptors. Segments
open their files on first use and register here; when there are too many, the least recently used
ones are closed. Views that readers hold stay valid: a view holds its map, and the map its pages.

Only the thread that created `OpenFiles` closes files: it is the one that reads and appends, so no
descriptor is closed, and its number reused, between the moment it is looked up and its use. What
other threads open beyond the limit is closed at the next use in that thread.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Protocol

from .disk import Disk


class Closable(Protocol):
    """Something that can be closed to make room."""

    def release(self) -> bool:
        """Close what is open; return False if that is not possible now."""
        ...


class OpenFiles:
    """The open segments, least recently used first."""

    def __init__(self, disk: Disk | None = None, *, limit: int | None = None) -> None:
        self.disk = disk or Disk()
        # A segment uses two descriptors: its log file, and the map of it. Readers hold further
        # maps, of segments that were closed, and so does the interpreter.
        allowed = min(self.disk.descriptor_limit() // 8, self.disk.map_limit() // 4)
        self.limit = limit or max(32, allowed)
        self._open: OrderedDict[Closable, None] = OrderedDict()
        self._lock = threading.Lock()
        self._thread = threading.get_ident()
        self._suspensions = 0
        #: Called if too many are open and none of the oldest can be closed: they are not durable.
        self.on_surplus: Callable[[], None] | None = None

    def __len__(self) -> int:
        return len(self._open)

    def touch(self, closable: Closable) -> None:
        """Record that this one is open and in use; close others if there are too many."""
        opened = self._open
        with self._lock:
            if closable in opened:
                opened.move_to_end(closable)
            else:
                opened[closable] = None
            surplus = len(opened) - self.limit
            if surplus <= 0 or self._suspensions or threading.get_ident() != self._thread:
                return
            # Some cannot be closed now. Looking through all for one that can would take too long.
            for candidate in list(islice(opened, surplus + 8)):
                if candidate is not closable and candidate.release():
                    del opened[candidate]
            has_surplus = len(opened) > self.limit
        if has_surplus and self.on_surplus is not None:
            self.on_surplus()

    def forget(self, closable: Closable) -> None:
        """Record that this one was closed."""
        with self._lock:
            self._open.pop(closable, None)

    @contextmanager
    def suspend_closing(self) -> Iterator[None]:
        """Close nothing for a while: threads that open logs must not close each other's files."""
        self._suspensions += 1
        try:
            yield
        finally:
            self._suspensions -= 1
