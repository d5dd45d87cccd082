"""The loss marker of a data directory: records may be lost, and nobody who must know knows yet.

A restart may find that records are lost: the machine has lost its power, or recovery has set
damaged batches aside. The next restart does not find it any more. So a file says it until the
controller has taken the broker out of all in-sync replicas (`LogDirectory.forget_losses`).
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

    def set(self) -> None:
        """Note that records may be lost. If it raises OSError, only this process knows."""
        if not self.is_set:
            self.is_set = True
            self._disk.replace_file(self._directory / _FILE, b"")

    def clear(self) -> None:
        """Forget it. Fsyncs: meant for a thread."""
        if self.is_set:
            self._disk.unlink(self._directory / _FILE)
            self._disk.sync_directory(self._directory)
            self.is_set = False
