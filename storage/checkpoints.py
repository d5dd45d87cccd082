"""The small files beside the segments: leader epochs and producer states, by offset.

    leader-epoch-checkpoint              see leader_epochs.py
    00000000000000001000.snapshot        the producer states at offset 1000; see producer_states.py

Both are only optimizations: the batches of a log contain the same facts, and recovery reads them
again where a file is missing or damaged.
"""

from __future__ import annotations

import logging
from pathlib import Path

from .disk import Disk
from .leader_epochs import LeaderEpochs
from .producer_states import ProducerStates

logger = logging.getLogger(__name__)

LEADER_EPOCH_CHECKPOINT = "leader-epoch-checkpoint"
_KEPT_SNAPSHOTS_OF_SEGMENTS = 2


class LeaderEpochCheckpoint:
    """The file of a log's leader epochs."""

    __slots__ = ("_directory", "_disk", "_written", "is_dirty")

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        #: Whether the file was written and not fsynced.
        self.is_dirty = False
        # What was written without an fsync.
        self._written: bytes | None = None

    def read(self) -> LeaderEpochs:
        """Read the file; no epochs if it is missing or damaged."""
        try:
            return LeaderEpochs.decode(self._path.read_bytes())
        except FileNotFoundError:
            return LeaderEpochs()
        except ValueError as error:
            logger.warning("%s is damaged, ignoring it: %s", self._path, error)
            return LeaderEpochs()

    def write(self, epochs: LeaderEpochs) -> None:
        """Write the file without an fsync; `flush` follows before records count as durable."""
        self.is_dirty = True
        content, self._written = epochs.encode(), None
        self._disk.replace_file(self._path, content, durable=False)
        self._written = content

    def flush(self, epochs: LeaderEpochs) -> None:
        """Make the file durable, if it is dirty."""
        if not self.is_dirty:
            return
        self.is_dirty = False
        content, written = epochs.encode(), self._written
        try:
            if content == written:
                # Another file would need space: records that were appended in between, and cannot
                # be made durable, are stored twice by a producer that sends them as new ones.
                self._disk.sync_path(self._path)
                self._disk.sync_directory(self._path.parent)
            else:
                self._disk.replace_file(self._path, content)
        except OSError:
            self.is_dirty, self._written = True, None
            raise

    @property
    def _path(self) -> Path:
        return self._directory / LEADER_EPOCH_CHECKPOINT


class ProducerSnapshots:
    """The snapshots of a log's producer states.

    Three are kept: the last one, and the last two at or before the start of the active segment,
    from which recovery and truncation replay that segment.
    """

    __slots__ = ("_directory", "_disk", "offsets")

    def __init__(self, directory: Path, disk: Disk) -> None:
        self._directory = directory
        self._disk = disk
        #: Offsets of the snapshots, in order.
        self.offsets: list[int] = []

    def write(self, offset: int, snapshot: bytes, segment_offset: int) -> None:
        """Write a snapshot of the states at an offset, and remove old ones.

        `segment_offset` is the base offset of the active segment at that offset.
        """
        # No fsync: it has a checksum, and recovery can start from an older one.
        self._disk.replace_file(self._path(offset), snapshot, durable=False)
        before = [known for known in self.offsets if known < offset]
        of_segments = [known for known in before if known <= segment_offset]
        kept = of_segments[-_KEPT_SNAPSHOTS_OF_SEGMENTS:]
        if offset == segment_offset:
            kept = kept[1 - _KEPT_SNAPSHOTS_OF_SEGMENTS :]
        self.offsets = [*kept, offset]
        for known in before:
            if known not in kept:
                self._disk.unlink(self._path(known))

    def restore(self, offset: int) -> tuple[ProducerStates, int]:
        """Read the last snapshot at or before an offset; return the states and its offset.

        Without a usable snapshot, there are no states, at offset 0.
        """
        for known in reversed(self.offsets):
            if known <= offset:
                path = self._path(known)
                try:
                    written_ms = int(path.stat().st_mtime * 1000)
                    return ProducerStates.restore(path.read_bytes(), written_ms), known
                except ValueError as error:
                    # Expected after a power cut: snapshots are not fsynced.
                    logger.info("%s is damaged, ignoring it: %s", path, error)
        return ProducerStates(), 0

    def remove_after(self, offset: int) -> None:
        """Remove snapshots of offsets that were truncated."""
        for known in [known for known in self.offsets if known > offset]:
            self._disk.unlink(self._path(known))
            self.offsets.remove(known)

    def _path(self, offset: int) -> Path:
        return self._directory / f"{offset:020d}.snapshot"
