"""A data directory: the logs in it, whose it is, and how it was left.

    <data>/meta.json           format version, cluster id, broker id: whose it is
    <data>/lock                held while a process uses it
    <data>/clean-shutdown      there only after a clean stop; removed before anything else at start
    <data>/recovery-point      for each log, the offset up to which the device has everything
    <data>/<topic>-<partition>/     the logs

    <data>/<…>.stray/          logs that nobody knows: set aside, and never touched again

A log that cannot be opened is reported and left alone; all others serve.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ottla.protocol.batch import BatchError

from .config import LogConfig
from .disk import Disk, read_json
from .errors import DataDirectoryError, LogOfflineError, StorageError
from .files import OpenFiles
from .flusher import Flusher
from .log import DELETED, Log
from .recovery import GAPS_FILE, RecoveryReport, open_log, read_gaps

logger = logging.getLogger(__name__)

FORMAT_VERSION = 1
_CLEAN = "clean-shutdown"
_RECOVERY_POINT = "recovery-point"
_LOADERS = 4
_STRAY = ".stray"
_LOG_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}-\d{1,10}")

#: What reading a log raises that makes no sense.
UNREADABLE_LOG_ERRORS = (StorageError, BatchError, ValueError)
#: Told after each log: how many are open, and how many there are.
LoadProgress = Callable[[int, int], None]


class LogDirectory:
    """All logs of one broker.

    Where no cluster id is given, it is the one that the directory has, or a new one.
    """

    def __init__(
        self,
        path: Path,
        *,
        cluster_id: str | None = None,
        broker_id: int,
        disk: Disk | None = None,
        max_open_segments: int | None = None,
    ) -> None:
        self.path = path
        self.files = OpenFiles(disk, limit=max_open_segments)
        self.disk = self.files.disk
        self.logs: dict[str, Log] = {}
        self.reports: dict[str, RecoveryReport] = {}
        #: Logs that could not be opened, and why.
        self.failed: dict[str, Exception] = {}
        self.disk.make_directory(path)
        self._lock = self._take_lock()
        try:
            self.cluster_id = self._check_owner(cluster_id, broker_id)
        except BaseException:
            self.disk.close(self._lock)
            raise
        self.flusher = Flusher()
        self._recovery_points: dict[str, int] = {}
        self._was_clean = False
        self._is_tidy = False

    def load_first(self, name: str, config: LogConfig) -> Log:
        """Open a log, or make it, before all others: it may say what they are.

        Raises DataDirectoryError if it makes no sense, or if some of it is lost: who believed the
        rest would take logs for those of no topic, or of one that was deleted.
        """
        self._tidy()
        try:
            self._add(name, *self._open(name, config))
        except UNREADABLE_LOG_ERRORS as error:
            raise DataDirectoryError(f"{self.path / name} cannot be read: {error}") from error
        self.disk.sync_directory(self.path)
        self._check_whole(name)
        return self.logs[name]

    def load(
        self,
        configs: Mapping[str, LogConfig],
        default: LogConfig,
        progress: LoadProgress = lambda _done, _all: None,
    ) -> None:
        """Open all logs, several at a time. `configs` are by the name of the log."""
        self._tidy()
        names = [name for name in self._folders() if _LOG_NAME.fullmatch(name)]
        names = [name for name in names if name not in self.logs]
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
                except (OSError, *UNREADABLE_LOG_ERRORS) as error:
                    logger.exception("%s cannot be opened, and is left alone", name)
                    self.failed[name] = error
                progress(done, len(names))

    def create(self, name: str, config: LogConfig) -> Log:
        """Make a log, or give the one that is there."""
        return self.create_all({name: config})[0]

    def create_all(self, configs: Mapping[str, LogConfig]) -> list[Log]:
        """Make logs, or give those that are there: all of them, or none if the disk fails one.

        May be called in a thread, if nobody else makes or deletes logs meanwhile.
        """
        new = [name for name in configs if name not in self.logs]
        for name in new:
            if name in self.failed:
                raise StorageError(f"{name} could not be opened: {self.failed[name]}")
            if not _LOG_NAME.fullmatch(name):
                raise StorageError(f"{name!r} is no name for a log")
            if (self.path / name).exists():
                raise StorageError(f"{self.path / name} is in the way: a deleted log, not removed")
        made: list[tuple[str, Log, RecoveryReport]] = []
        try:
            for name in new:
                opened, report = open_log(self.path / name, configs[name], self.files)
                made.append((name, opened, report))
            self.disk.sync_directory(self.path)
        except OSError:
            for _name, opened, _report in made:
                for segment in opened.segments:
                    segment.drop()
            for name in new:
                with suppress(OSError):
                    self._remove(self.path / name)
            raise
        for name, opened, report in made:
            self._add(name, opened, report)
        if any(name in self._recovery_points for name in new):
            self._write_recovery_points()  # which has one of another log of this name
        return [self.logs[name] for name in configs]

    def delete(self, name: str) -> None:
        """Delete a log: at once by name, its files when they can be. May be called in a thread."""
        gone = self.logs.pop(name)
        self.reports.pop(name)
        for segment in gone.segments:
            segment.drop()
        # Not by its own name, which may be as long as a name can be.
        target = self.path / f"{uuid.uuid4().hex}{DELETED}"
        self.disk.rename(gone.directory, target)
        self.disk.sync_directory(self.path)
        self._remove(target)

    def set_aside(self, name: str) -> Path:
        """Put a log that nobody knows out of the way, and give where it is now."""
        gone = self.logs.pop(name)
        self.reports.pop(name)
        gone.close()
        target = self.path / f"{uuid.uuid4().hex}{_STRAY}" / name
        self.disk.make_directory(target.parent)
        self.disk.rename(gone.directory, target)
        self.disk.sync_directory(self.path)
        return target

    def checkpoint_recovery_points(self) -> None:
        """Sync all logs, and write down up to where a start after a crash need not look.

        May be called in a thread.
        """
        for opened in list(self.logs.values()):
            if opened.offline_reason is None and opened.recovery_point < opened.end_offset:
                try:
                    opened.flush()
                except LogOfflineError:
                    pass  # which has been said, and is that log's alone
                except OSError as error:
                    logger.warning("%s: not synced: %s", opened.directory.name, error)
        self._write_recovery_points()

    def close(self) -> None:
        """Stop: everything on the device, and the marker that says so written last."""
        self.flusher.stop()
        with ThreadPoolExecutor(_LOADERS, thread_name_prefix="closer") as pool:
            closed = list(pool.map(self._close, self.logs.items()))
        clean = not self.failed and all(closed)
        try:
            self._write_recovery_points()
            if clean:
                self.disk.replace_file(self.path / _CLEAN, b"")
        finally:
            self.disk.close(self._lock)

    def _close(self, named: tuple[str, Log]) -> bool:
        """Close a log; whether all is well with it."""
        name, opened = named
        try:
            opened.close()
        except (OSError, StorageError):
            logger.exception("%s could not be closed", name)
            return False
        return opened.offline_reason is None

    def abandon(self) -> None:
        """Let go of the directory as it is: a start that failed has nothing to write down."""
        self.flusher.stop()
        for opened in self.logs.values():
            opened.release_files()
        self.disk.close(self._lock)

    def _add(self, name: str, opened: Log, report: RecoveryReport) -> None:
        # A recovery point behind the end of a log would spare batches that come there later.
        opened.before_truncation = self._write_recovery_points
        self.logs[name], self.reports[name] = opened, report

    def _open(self, name: str, config: LogConfig) -> tuple[Log, RecoveryReport]:
        point = None if self._was_clean else self._recovery_points.get(name, 0)
        opened, report = open_log(self.path / name, config, self.files, recovery_point=point)
        opened.release_files()
        return opened, report

    def _tidy(self) -> None:
        """Read how the directory was left, and finish what was interrupted. Once."""
        if self._is_tidy:
            return
        self._is_tidy = True
        self._was_clean = (self.path / _CLEAN).exists()
        if self._was_clean:
            self.disk.unlink(self.path / _CLEAN)
            self.disk.sync_directory(self.path)
        self._recovery_points = self._read_recovery_points()
        for name in self.disk.names(self.path):
            if name.endswith(".tmp"):
                self.disk.unlink(self.path / name)
        for name in self._folders():
            if name.endswith(DELETED):
                self._remove(self.path / name)

    def _check_whole(self, name: str) -> None:
        """See that nothing is missing of what a log had on the device. Raises DataDirectoryError.

        A torn write was never there, and may be missing.
        """
        opened, reached = self.logs[name], self._recovery_points.get(name, 0)
        if opened.end_offset < reached:
            loss = f"it ends at offset {opened.end_offset}, and reached {reached}"
            note = self.path / _RECOVERY_POINT
        elif gaps := read_gaps(opened.directory):
            loss = "offsets are missing: " + ", ".join(f"{one} to {two - 1}" for one, two in gaps)
            note = opened.directory / GAPS_FILE
        else:
            return
        raise DataDirectoryError(
            f"{opened.directory} has lost records, {loss}. Damaged bytes were put beside it."
            f" Bring it back from a copy; or remove {note}, to start without what the records said"
        )

    def _folders(self) -> list[str]:
        return [name for name in self.disk.names(self.path) if (self.path / name).is_dir()]

    def _remove(self, directory: Path) -> None:
        for name in self.disk.names(directory):
            self.disk.unlink(directory / name)
        directory.rmdir()

    def _take_lock(self) -> int:
        try:
            return self.disk.lock(self.path / "lock")
        except BlockingIOError:
            raise DataDirectoryError(f"another process uses {self.path}") from None

    def _check_owner(self, cluster_id: str | None, broker_id: int) -> str:
        found = _read_owner(self.path)
        if cluster_id is None:
            cluster_id = found["cluster_id"] if found else _new_cluster_id()
        wanted: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "cluster_id": cluster_id,
            "broker_id": broker_id,
        }
        if found is None:
            self.disk.replace_file(self.path / "meta.json", json.dumps(wanted).encode())
        for key, value in wanted.items():
            if found is not None and found.get(key) != value:
                raise DataDirectoryError(
                    f"{self.path} has {key.replace('_', ' ')} {found.get(key)!r}, not {value!r}"
                )
        return cluster_id

    def _read_recovery_points(self) -> dict[str, int]:
        try:
            points = read_json(self.path / _RECOVERY_POINT)
        except ValueError:
            logger.warning("%s is damaged: all logs are read from the start", _RECOVERY_POINT)
            return {}
        return points or {}

    def _write_recovery_points(self) -> None:
        points = {name: opened.recovery_point for name, opened in list(self.logs.items())}
        self.disk.replace_file(self.path / _RECOVERY_POINT, json.dumps(points).encode())
        self._recovery_points = points


def read_cluster_id(path: Path) -> str | None:
    """Say of which cluster a data directory is; None: it is new. Raises DataDirectoryError."""
    found = _read_owner(path)
    return found["cluster_id"] if found else None


def _read_owner(path: Path) -> dict[str, Any] | None:
    try:
        found = read_json(path / "meta.json")
    except ValueError:
        found = ()
    if found is not None and not (isinstance(found, dict) and found.get("cluster_id")):
        raise DataDirectoryError(f"{path / 'meta.json'} is damaged")
    return found


def _new_cluster_id() -> str:
    """Make up an id of the form that Kafka's tools know: 22 characters, and no '-' in front."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith(
        "-"
    ):
        pass
    return text
