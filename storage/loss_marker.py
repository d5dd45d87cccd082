"""The loss marker of a data directory: records may be lost, and nobody who must know knows yet.

A restart may find that records are lost: the machine has lost its power, or recovery has set
damaged batches aside. The next restart does not find it any more. So a file says it until the
controller has taken the broker out of all in-sync replicas (`LogDirectory.forget_losses`).

A lost page cache spares what was fsynced. Only the process that finds it out relies on that: the
next one does not know what was fsynced at the time.
"""

from __future__ import annotations

from pathlib import Path

from .disk import Disk

_FILE = "may-have-lost-records"


class LossMarker:
    """Whether records may be lost. Durable when `set` or `clear` returns."""

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        self.is_set = (directory / _FILE).exists()
        #: Whether everything that was fsynced is there.
        self.spares_fsynced = not self.is_set

    def set(self, *, spares_fsynced: bool = False) -> None:
        """Note that records may be lost. If it raises OSError, only this process knows."""
        self.spares_fsynced = self.spares_fsynced and spares_fsynced
        if not self.is_set:
            self.is_set = True
            self._disk.replace_file(self._directory / _FILE, b"")

    def clear(self) -> None:
        """Forget it. Fsyncs: meant for a thread."""
        if self.is_set:
            self._disk.unlink(self._directory / _FILE)
            self._disk.sync_directory(self._directory)
            self.is_set, self.spares_fsynced = False, True
