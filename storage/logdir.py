"""A data directory: the logs in it, whose it is, and how it was left.

    <data>/meta.json           format version, cluster id, broker id: whose it is
    <data>/lock                held while a process uses it
    <data>/clean-shutdown      there only after a clean stop; removed before anything else at start
    <data>/recovery-point      for each log, the offset up to which the device has everything
    <data>/<topic>-<partition>/     the logs

A log that cannot be opened is reported and left alone; all others serve.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from .config import LogConfig
from .disk import Disk, read_json
from .errors import DataDirectoryError, LogOfflineError, StorageError
from .files import OpenFiles
from .flusher import Flusher
from .log import DELETED, Log
from .recovery import Report, open_log

log = logging.getLogger(__name__)

FORMAT_VERSION = 1
_CLEAN = "clean-shutdown"
_RECOVERY_POINT = "recovery-point"
_LOADERS = 4
_LOG_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}-\d{1,10}")

#: Told after each log: how many are open, and how many there are.
Progress = Callable[[int, int], None]


class LogDirectory:
    """All logs of one broker."""

    def __init__(
        self,
        path: Path,
        *,
        cluster_id: str,
        broker_id: int,
        disk: Disk | None = None,
        max_open_segments: int | None = None,
    ) -> None:
        self.path = path
        self.files = OpenFiles(disk, limit=max_open_segments)
        self.disk = self.files.disk
        self.logs: dict[str, Log] = {}
        self.reports: dict[str, Report] = {}
        #: Logs that could not be opened, and why.
        self.failed: dict[str, Exception] = {}
        self.disk.make_directory(path)
        self._lock = self._take_lock()
        try:
            self._check_owner(cluster_id, broker_id)
        except BaseException:
            self.disk.close(self._lock)
            raise
        self.flusher = Flusher()
        self._recovery_points: dict[str, int] = {}
        self._was_clean = False

    def load(
        self,
        configs: Mapping[str, LogConfig],
        default: LogConfig,
        progress: Progress = lambda _done, _all: None,
    ) -> None:
        """Open all logs, several at a time. `configs` are by the name of the log."""
        self._was_clean = (self.path / _CLEAN).exists()
        if self._was_clean:
            self.disk.unlink(self.path / _CLEAN)
            self.disk.sync_directory(self.path)
        self._recovery_points = self._read_recovery_points()
        for name in self.disk.names(self.path):
            if name.endswith(".tmp"):
                self.disk.unlink(self.path / name)
        names = [name for name in self.disk.names(self.path) if (self.path / name).is_dir()]
        for name in names:
            if name.endswith(DELETED):
                self._remove(self.path / name)
        names = [name for name in names if _LOG_NAME.fullmatch(name)]
        with (
            self.files.pausing(),
            ThreadPoolExecutor(_LOADERS, thread_name_prefix="loader") as pool,
        ):
            opening = {
                name: pool.submit(self._open, name, configs.get(name, default)) for name in names
            }
            for done, (name, future) in enumerate(opening.items(), start=1):
                try:
                    self._add(name, *future.result())
                except (OSError, StorageError, ValueError) as error:
                    log.exception("%s cannot be opened, and is left alone", name)
                    self.failed[name] = error
                progress(done, len(names))

    def create(self, name: str, config: LogConfig) -> Log:
        """Make a log, or give the one that is there."""
        if name in self.failed:
            raise StorageError(f"{name} could not be opened: {self.failed[name]}")
        if name not in self.logs:
            if not _LOG_NAME.fullmatch(name):
                raise StorageError(f"{name!r} is no name for a log")
            opened, report = open_log(self.path / name, config, self.files)
            self._add(name, opened, report)
            self.disk.sync_directory(self.path)
            if name in self._recovery_points:
                self._write_recovery_points()  # which has one of another log of this name
        return self.logs[name]

    def delete(self, name: str) -> None:
        """Delete a log: at once by name, its files when they can be."""
        gone = self.logs.pop(name)
        for segment in gone.segments:
            segment.drop()
        target = self.path / f"{name}{DELETED}"
        if target.exists():
            self._remove(target)
        self.disk.rename(gone.directory, target)
        self.disk.sync_directory(self.path)
        self._remove(target)

    def checkpoint(self) -> None:
        """Sync all logs, and write down up to where a start after a crash need not look.

        May be called in a thread.
        """
        for opened in list(self.logs.values()):
            if opened.failure is None and opened.flushed_offset < opened.end_offset:
                with suppress(LogOfflineError):  # which has been said, and is that log's alone
                    opened.sync()
        self._write_recovery_points()

    def close(self) -> None:
        """Stop: everything on the device, and the marker that says so written last."""
        self.flusher.stop()
        clean = not self.failed
        for name, opened in self.logs.items():
            try:
                opened.close()
                clean = clean and opened.failure is None
            except (OSError, StorageError):
                log.exception("%s could not be closed", name)
                clean = False
        try:
            self._write_recovery_points()
            if clean:
                self.disk.replace_file(self.path / _CLEAN, b"")
        finally:
            self.disk.close(self._lock)

    def _add(self, name: str, opened: Log, report: Report) -> None:
        # A recovery point behind the end of a log would spare batches that come there later.
        opened.before_truncation = self._write_recovery_points
        self.logs[name], self.reports[name] = opened, report

    def _open(self, name: str, config: LogConfig) -> tuple[Log, Report]:
        point = None if self._was_clean else self._recovery_points.get(name, 0)
        opened, report = open_log(self.path / name, config, self.files, recovery_point=point)
        opened.release_files()
        return opened, report

    def _remove(self, directory: Path) -> None:
        for name in self.disk.names(directory):
            self.disk.unlink(directory / name)
        directory.rmdir()

    def _take_lock(self) -> int:
        try:
            return self.disk.lock(self.path / "lock")
        except BlockingIOError:
            raise DataDirectoryError(f"another process uses {self.path}") from None

    def _check_owner(self, cluster_id: str, broker_id: int) -> None:
        wanted: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "cluster_id": cluster_id,
            "broker_id": broker_id,
        }
        found = read_json(self.path / "meta.json")
        if found is None:
            self.disk.replace_file(self.path / "meta.json", json.dumps(wanted).encode())
        for key, value in wanted.items():
            if found is not None and found.get(key) != value:
                raise DataDirectoryError(
                    f"{self.path} has {key.replace('_', ' ')} {found.get(key)!r}, not {value!r}"
                )

    def _read_recovery_points(self) -> dict[str, int]:
        try:
            points = read_json(self.path / _RECOVERY_POINT)
        except ValueError:
            log.warning("%s is damaged: all logs are read from the start", _RECOVERY_POINT)
            return {}
        return points or {}

    def _write_recovery_points(self) -> None:
        points = {name: opened.flushed_offset for name, opened in list(self.logs.items())}
        self.disk.replace_file(self.path / _RECOVERY_POINT, json.dumps(points).encode())
        self._recovery_points = points
