"""The metadata that a broker has on its disk, read while the broker is stopped.

Nothing in the data directory is changed: the next start of the broker must find out by itself
whether it has lost records.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ottla.coord.metadata_image import KeyValue, MetadataImage
from ottla.coord.restoration import MetadataCopy, RestorationError, parse_copy
from ottla.storage.checkpoints import LeaderEpochCheckpoint
from ottla.storage.disk import Disk
from ottla.storage.dump import dump
from ottla.storage.errors import DataDirectoryError
from ottla.storage.logdir import read_identity

from .metadata_log import LOG_NAME


def read_copy(path: Path) -> MetadataCopy:
    """Read the copy in a data directory, or in an exported file.

    Raises DataDirectoryError, RestorationError or OSError.
    """
    if path.is_dir():
        return _read_directory(path)
    try:
        content = json.loads(path.read_bytes())
    except ValueError:
        raise RestorationError(f"{path} is neither a data directory nor an exported file") from None
    return parse_copy(str(path), content)


def _read_directory(path: Path) -> MetadataCopy:
    identity = read_identity(path)
    if identity is None or not (path / LOG_NAME).is_dir():
        raise DataDirectoryError(f"{path} is not the data directory of a broker")
    with _locked(path):
        image, end_offset = _replay(path / LOG_NAME)
        epochs = {
            directory.name: LeaderEpochCheckpoint(directory, Disk()).read().current
            for directory in sorted(path.iterdir())
            if (directory / "partition.metadata").exists()
        }
    position = None if image.store_position is not None else image.own_position(end_offset)
    cluster_id, broker_id = identity
    return MetadataCopy(str(path), cluster_id, broker_id, image, position, epochs)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a data directory, so that no broker starts with it meanwhile."""
    disk = Disk()
    try:
        lock = disk.lock(path / "lock")
    except BlockingIOError:
        raise DataDirectoryError(f"{path} is in use: stop the broker first") from None
    try:
        yield
    finally:
        disk.close(lock)


def _replay(directory: Path) -> tuple[MetadataImage, int]:
    """Replay a metadata log; return the image, and the log end offset.

    A kill can leave an incomplete batch at the end: it was not applied.
    """
    # Segments may overlap after an interrupted compaction: the highest offset of a key counts.
    latest: dict[bytes, tuple[int, KeyValue]] = {}
    end_offset = 0
    damage = ""
    for path in sorted(directory.glob("*.log")):
        for batch in dump(path, records=True):
            if damage:
                raise DataDirectoryError(damage)
            if batch.error is not None:
                damage = f"{path} is damaged at position {batch.position}: {batch.error}"
                continue
            for record in batch.records:
                assert record.key is not None
                if record.offset >= latest.get(record.key, (-1,))[0]:
                    latest[record.key] = (record.offset, (record.key, record.value))
            end_offset = max(end_offset, batch.header["last_offset"] + 1)
    image = MetadataImage()
    for _offset, (key, value) in sorted(latest.values(), key=lambda one: one[0]):
        image.replay(bytes(key), None if value is None else bytes(value))
    return image, end_offset
