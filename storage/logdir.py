"""A data directory: its logs, its identity, and whether it was shut down cleanly.

    <data>/meta.json           format version, cluster id and broker id
    <data>/lock                locked while a process uses the directory
    <data>/boot-id             the boot of the machine in which the directory was last used
    <data>/may-have-lost-records    exists until all who must know of a loss do; see loss_marker.py
    <data>/clean-shutdown      exists only after a clean shutdown; removed first thing at start;
                               see log_summary.py
    <data>/recovery-point      for each log, the offset up to which everything is durable
    <data>/high-watermark      for each replicated log, the offset up to which it is committed
    <data>/<topic>-<partition>/     the logs

    <data>/<…>.deleted/        the log of a deleted topic, until file.delete.delay.ms have passed
    <data>/<…>.stray/          a log of no known topic: set aside, and never touched again

A log that cannot be opened is reported and left alone; all others serve.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from ottla.protocol.batch import BatchError

from .config import LogConfig
from .disk import NO_SPACE_ERRORS, Disk, read_json
from .errors import DataDirectoryError, LogOfflineError, StorageError
from .files import OpenFiles
from .flusher import Flusher
from .log import Log
from .log_summary import LogSummary, decode_marker, encode_marker, restore, summarize
from .loss_marker import LossMarker
from .partition_metadata import PartitionMetadata
from .producer_memory import ProducerMemory
from .recovery import open_log
from .segment_recovery import GAPS_FILE, RecoveryReport, read_gaps
from .segments import DELETED_SUFFIX

logger = logging.getLogger(__name__)

#: Version 2 has topic ids in committed offsets, which version 1 cannot read.
FORMAT_VERSION = 2
_READABLE_VERSIONS = (1, FORMAT_VERSION)
_META_FILE = "meta.json"
_CLEAN_SHUTDOWN_FILE = "clean-shutdown"
_RECOVERY_POINT_FILE = "recovery-point"
_HIGH_WATERMARK_FILE = "high-watermark"
_BOOT_ID_FILE = "boot-id"
#: Between two flushes of all logs because too many files are open.
_CLOSING_FLUSH_SECONDS = 0.1
#: Linux: a random id of the current boot. Elsewhere any unclean start counts as a new boot.
_SYSTEM_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_THREADS = 4
_CLEAN = RecoveryReport(was_clean=True)
_STRAY_SUFFIX = ".stray"
_LOG_NAME = re.compile(r"[a-zA-Z0-9._-]{1,249}-\d{1,10}")

#: What reading a log with invalid content raises.
UNREADABLE_LOG_ERRORS = (StorageError, BatchError, ValueError)
#: Called after each log with the number of logs opened so far, and of all.
LoadProgress = Callable[[int, int], None]


class LogDirectory:
    """All logs of one broker.

    Without `cluster_id`, the directory keeps its cluster id, or gets a new one.
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
        self.producer_memory = ProducerMemory()
        self.reports: dict[str, RecoveryReport] = {}
        # Directories of deleted logs, and when each may be removed.
        self._deleted: dict[Path, float] = {}
        #: Logs that could not be opened, with the error.
        self.failed: dict[str, Exception] = {}
        #: Those among them that serve reads: only their recovery had no space for its files.
        self.read_only: dict[str, Log] = {}
        self.disk.make_directory(path)
        self._lock = self._take_lock()
        try:
            self.cluster_id = self._check_identity(cluster_id, broker_id)
        except BaseException:
            self.disk.close(self._lock)
            raise
        self.flusher = Flusher()
        # The same objects for all logs.
        self._before_truncation = self._write_recovery_points
        self._after_roll = self._complete_rolls
        self._next_closing_flush = -math.inf
        self.files.on_surplus = self._flush_to_close_files
        self._recovery_points: dict[str, int] = {}
        self._high_watermarks: dict[str, int] = {}
        self._was_clean = False
        # Of a clean shutdown, until the logs are loaded.
        self._summaries: dict[str, LogSummary] = {}
        self._loss_marker = LossMarker(self.path, self.disk)
        self._is_prepared = False

    def load_first(self, name: str, config: LogConfig) -> Log:
        """Open a log, or create it, before all others: the metadata log, which describes them.

        Raises DataDirectoryError if it is unreadable or has lost records: without them, logs would
        be taken for those of unknown or deleted topics.
        """
        self._prepare()
        try:
            log, report = self._open(name, config)
            if report.space_error is not None:
                raise report.space_error
            self._add(name, log, report)
        except UNREADABLE_LOG_ERRORS as error:
            raise DataDirectoryError(f"{self.path / name} cannot be read: {error}") from error
        self.disk.sync_directory(self.path)
        self._check_no_records_lost(name)
        return self.logs[name]

    def load(
        self,
        configs: Mapping[str, LogConfig],
        default: LogConfig,
        progress: LoadProgress = lambda _done, _all: None,
    ) -> None:
        """Open all logs, several at a time, with `configs` by log name."""
        self._prepare()
        # When leftovers were deleted is not known: their delay starts anew.
        due = time.monotonic() + default.file_delete_delay_ms / 1000
        self._deleted = dict.fromkeys(self._deleted, due)
        names = [name for name in self._directories() if _LOG_NAME.fullmatch(name)]
        names = [name for name in names if name not in self.logs]
        unread, done = [], 0
        for name in names:
            # Not in the threads: it hardly waits for the disk.
            if self._restore(name, configs.get(name, default)):
                done += 1
                progress(done, len(names))
            else:
                unread.append(name)
        self._summaries = {}
        with (
            self.files.suspend_closing(),
            ThreadPoolExecutor(_THREADS, thread_name_prefix="loader") as pool,
        ):
            opening = {
                name: pool.submit(self._open, name, configs.get(name, default)) for name in unread
            }
            for name, future in opening.items():
                try:
                    log, report = future.result()
                    if report.space_error is None:
                        self._add(name, log, report)
                    else:
                        logger.error("Log %s is read-only: %s", name, log.offline_reason)
                        self.read_only[name], self.failed[name] = log, report.space_error
                except (OSError, *UNREADABLE_LOG_ERRORS) as error:
                    logger.exception("Log %s cannot be opened, leaving it alone", name)
                    self.failed[name] = error
                done += 1
                progress(done, len(names))

    @property
    def may_have_lost_records(self) -> bool:
        """Whether records that were in the page cache may be lost, until `forget_losses`.

        A process that was killed leaves the page cache whole; a machine that was booted since does
        not. Damaged batches were set aside in any case.
        """
        return self._loss_marker.is_set

    @property
    def has_fsynced_records(self) -> bool:
        """Whether all records that were fsynced are there."""
        return self._loss_marker.spares_fsynced

    def note_losses(self) -> None:
        """Note that records may be lost, durably. Meant for a thread."""
        self._loss_marker.set()

    def forget_losses(self) -> None:
        """Forget that records may be lost: all who must know do. Meant for a thread."""
        self._loss_marker.clear()

    @property
    def without_space(self) -> list[str]:
        """The logs that could not be opened because recovery had no space for its files."""
        return [
            name
            for name, error in self.failed.items()
            if isinstance(error, OSError) and error.errno in NO_SPACE_ERRORS
        ]

    def open_again(self, name: str, config: LogConfig) -> tuple[Log, RecoveryReport]:
        """Open a log that could not be opened, for `add_opened`. Meant for a thread.

        Raises what it raised before if there still is no space.
        """
        with self.files.suspend_closing():
            log, report = self._open(name, config)
        if report.space_error is not None:
            log.segments.close()
            raise report.space_error
        return log, report

    def add_opened(self, name: str, log: Log, report: RecoveryReport) -> None:
        """Add a log that `open_again` has opened."""
        del self.failed[name]
        if (read_only := self.read_only.pop(name, None)) is not None:
            read_only.segments.close()
        self._add(name, log, report)

    def create(self, name: str, config: LogConfig) -> Log:
        """Create a log, or return the existing one."""
        return self.create_all({name: config})[0]

    def create_all(
        self,
        configs: Mapping[str, LogConfig],
        metadata: Mapping[str, PartitionMetadata] | None = None,
    ) -> list[Log]:
        """Create logs, or return the existing ones: all of them, or none if the disk fails.

        New logs get the `metadata` of their names. May be called in a thread, if nobody else
        creates or deletes logs in the meantime.
        """
        new = [name for name in configs if name not in self.logs]
        if metadata is not None:
            self._reuse(configs.keys() - new, metadata)
        for name in new:
            if name in self.failed:
                raise StorageError(f"Log {name} could not be opened: {self.failed[name]}")
            if not _LOG_NAME.fullmatch(name):
                raise StorageError(f"Invalid log name {name!r}: use TOPIC-PARTITION")
            if (self.path / name).exists():
                raise StorageError(
                    f"Cannot create log {name}: {self.path / name} exists, left by a deletion"
                )
        created: list[tuple[str, Log, RecoveryReport]] = []
        try:
            for name in new:
                log, report = open_log(self.path / name, configs[name], self.files)
                created.append((name, log, report))
                log.active_segment.close()  # There may be more new logs than descriptors.
                if metadata is not None and name in metadata:
                    log.write_metadata(metadata[name])
            self.disk.sync_directory(self.path)
        except OSError:
            for _name, log, _report in created:
                for segment in log.segments:
                    segment.drop()
            for name in new:
                with suppress(OSError):
                    self._remove_directory(self.path / name)
            raise
        for name, log, report in created:
            self._add(name, log, report)
        if any(name in self._recovery_points for name in new):
            self._write_recovery_points()  # Replaces that of a deleted log with the same name.
        return [self.logs[name] for name in configs]

    def delete(self, name: str) -> None:
        """Delete a log: rename its directory, for `purge_deleted` to remove. May run in a thread.

        Until file.delete.delay.ms have passed, an operator can undo the deletion.
        """
        log = self._take(name)
        if log.offline_reason is None:
            log.take_offline("the log was deleted")
        log.wait_for_writers()
        for segment in log.segments:
            segment.drop()
        parent = self._move_to_new_parent(log.directory, DELETED_SUFFIX).parent
        self._deleted[parent] = time.monotonic() + log.config.file_delete_delay_ms / 1000

    def _reuse(self, names: Iterable[str], metadata: Mapping[str, PartitionMetadata]) -> None:
        """Replace the metadata of existing logs that are empty: a failed creation left them."""
        for name in names:
            log = self.logs[name]
            if name in metadata and log.topic_id != metadata[name].topic_id:
                if log.end_offset > 0:
                    raise StorageError(f"Log {name} exists, and belongs to another topic")
                log.write_metadata(metadata[name])

    @property
    def has_deleted(self) -> bool:
        """Whether directories of deleted logs remain to be removed."""
        return bool(self._deleted)

    def purge_deleted(self) -> int:
        """Remove the directories of logs deleted long enough ago; return how many remain.

        May be called in a thread.
        """
        now = time.monotonic()
        for path, due in list(self._deleted.items()):
            if due <= now:
                self._remove_directory(path)
                del self._deleted[path]
        return len(self._deleted)

    def set_aside(self, name: str) -> Path:
        """Move a log of no known topic out of the way, and return its new path."""
        log = self._take(name)
        log.close()
        return self._move_to_new_parent(log.directory, _STRAY_SUFFIX)

    def _move_to_new_parent(self, directory: Path, suffix: str) -> Path:
        """Move the directory of a log into one of its own, and return its new path.

        The log's name may have the maximum length, and can be used again at once.
        """
        target = self.path / f"{uuid.uuid4().hex}{suffix}" / directory.name
        self.disk.make_directory(target.parent)
        self.disk.rename(directory, target)
        self.disk.sync_directory(target.parent)
        self.disk.sync_directory(self.path)
        return target

    def checkpoint_recovery_points(self) -> None:
        """Flush all logs, and write their recovery points. May be called in a thread."""
        for log in list(self.logs.values()):
            is_due = log.checkpointed_recovery_point < log.end_offset
            if log.offline_reason is None and is_due:
                try:
                    # By the flusher, like all flushes of a running broker.
                    self.flusher.flush(log).result()
                except LogOfflineError:
                    pass  # Logged when the log went offline; the others go on.
                except OSError as error:
                    logger.warning("Log %s: flush failed: %s", log.directory.name, error)
        self._write_recovery_points()

    def read_high_watermarks(self) -> dict[str, int]:
        """Return the high watermarks of the replicated logs, as of the last checkpoint."""
        path = self.path / _HIGH_WATERMARK_FILE
        try:
            return read_json(path) or {}
        except ValueError:
            logger.warning("%s is damaged: high watermarks start at the log start offsets", path)
            return {}

    def checkpoint_high_watermarks(self) -> None:
        """Write the high watermarks of the replicated logs. May be called in a thread.

        Without an fsync: an older one is only less than what is committed.
        """
        high_watermarks = {
            name: log.high_watermark
            for name, log in list(self.logs.items())
            if log.high_watermark is not None
        }
        if high_watermarks != self._high_watermarks:
            content = json.dumps(high_watermarks).encode()
            self.disk.replace_file(self.path / _HIGH_WATERMARK_FILE, content, durable=False)
            self._high_watermarks = high_watermarks

    def close(self) -> None:
        """Shut down: flush everything, and write the clean-shutdown marker last."""
        self.flusher.stop()
        with (
            self.files.suspend_closing(),
            ThreadPoolExecutor(_THREADS, thread_name_prefix="closer") as pool,
        ):
            closed = list(pool.map(self._close, self.logs.items()))
        self._close_read_only()
        is_clean = not self.failed and all(closed)
        try:
            self.checkpoint_high_watermarks()
            self._write_recovery_points()
            if is_clean:
                self.disk.replace_file(self.path / _CLEAN_SHUTDOWN_FILE, self._summarize())
        finally:
            self.disk.close(self._lock)

    def _close(self, item: tuple[str, Log]) -> bool:
        """Close a log; return whether that was clean."""
        name, log = item
        try:
            log.close()
        except (OSError, StorageError):
            logger.exception("Log %s could not be closed", name)
            return False
        return log.offline_reason is None

    def _summarize(self) -> bytes:
        """Return the content of the clean-shutdown marker."""
        summaries = {name: summarize(log) for name, log in self.logs.items()}
        return encode_marker(
            {name: found for name, found in summaries.items() if found is not None}
        )

    def abandon(self) -> None:
        """Release the directory without writing anything, after a failed start."""
        self.flusher.stop()
        for log in self.logs.values():
            log.segments.release_files()
        self._close_read_only()
        self.disk.close(self._lock)

    def _close_read_only(self) -> None:
        for log in self.read_only.values():
            log.segments.close()

    def _add(self, name: str, log: Log, report: RecoveryReport) -> None:
        # A recovery point beyond the end of a truncated log would exempt later batches from
        # recovery.
        log.before_truncation = self._before_truncation
        log.after_roll = self._after_roll
        log.producer_states.count_in(self.producer_memory)
        if report.damaged_ranges or report.has_lost_records:
            with suppress(OSError):  # A full disk; until the next start it is known.
                self._loss_marker.set()
        self.logs[name], self.reports[name] = log, report

    def _complete_rolls(self, log: Log) -> None:
        self.flusher.submit(log.try_to_complete_rolls)

    def _flush_to_close_files(self) -> None:
        """Have all logs flushed: a file that is not durable must stay open until its fsync."""
        now = time.monotonic()
        if now < self._next_closing_flush:
            return
        self._next_closing_flush = now + _CLOSING_FLUSH_SECONDS
        with suppress(RuntimeError):  # The flusher is stopped: the logs are being closed.
            for log in self.logs.values():
                if log.offline_reason is None and log.checkpointed_recovery_point < log.end_offset:
                    self.flusher.flush(log)

    def _take(self, name: str) -> Log:
        self.reports.pop(name)
        log = self.logs.pop(name)
        log.producer_states.count_in(None)
        return log

    def _restore(self, name: str, config: LogConfig) -> bool:
        """Open a log as a clean shutdown left it; return False if its files have to be read."""
        summary = self._summaries.pop(name, None)
        if summary is None:
            return False
        log = Log(self.path / name, config, self.files)
        is_lost = summary.segments[-1][2] < self._recovery_points.get(name, 0)
        if is_lost or not restore(log, summary):
            return False
        self._add(name, log, _CLEAN)
        return True

    def _open(self, name: str, config: LogConfig) -> tuple[Log, RecoveryReport]:
        recovery_point = None if self._was_clean else self._recovery_points.get(name, 0)
        log, report = open_log(self.path / name, config, self.files, recovery_point=recovery_point)
        log.set_metadata(PartitionMetadata.read(log.directory))
        self._note_lost_records(name, log, report)
        log.segments.release_files()
        return log, report

    def _note_lost_records(self, name: str, log: Log, report: RecoveryReport) -> None:
        """Log that files of a log are missing; remember it if none of its records are left."""
        recovery_point = self._recovery_points.get(name, 0)
        if log.end_offset >= recovery_point or report.damaged_ranges or report.space_error:
            return
        report.has_lost_records = True
        logger.error(
            "Log %s has lost records (data loss): it ends at offset %d, and was durable up to %d",
            name,
            log.end_offset,
            recovery_point,
        )
        if not any(segment.size for segment in log.segments):
            # Its producers are unknown now: they must not go on as if nothing had happened.
            log.write_metadata(PartitionMetadata(log.topic_id, log_lost=True))

    def _prepare(self) -> None:
        """Read how the directory was shut down, and remove leftovers. Done once."""
        if self._is_prepared:
            return
        self._is_prepared = True
        marker = self.path / _CLEAN_SHUTDOWN_FILE
        self._was_clean = marker.exists()
        if self._was_clean:
            self._summaries = decode_marker(marker, marker.read_bytes())
            self.disk.unlink(marker)
            self.disk.sync_directory(self.path)
        self._note_boot()
        self._recovery_points = self._read_recovery_points()
        for name in self.disk.names(self.path):
            if name.endswith(".tmp"):
                self.disk.unlink(self.path / name)
        for name in self._directories():
            if name.endswith(DELETED_SUFFIX):
                self._deleted[self.path / name] = math.inf

    def _note_boot(self) -> None:
        """Note the boot of the machine, and whether the page cache of an earlier one is lost."""
        path = self.path / _BOOT_ID_FILE
        try:
            current = _SYSTEM_BOOT_ID.read_text().strip()
        except OSError:
            current = ""
        try:
            noted = path.read_text().strip()
        except FileNotFoundError:
            noted = ""
        is_new = any(_LOG_NAME.fullmatch(name) for name in self._directories()) and (
            not current or noted != current
        )
        if is_new and not self._was_clean:
            # Before the boot is noted: the next start finds this one.
            self._loss_marker.set(spares_fsynced=True)
        if noted != current:
            self.disk.replace_file(path, current.encode())

    def _check_no_records_lost(self, name: str) -> None:
        """Raise DataDirectoryError if durable records of a log are missing.

        A torn write was never durable, and may be missing.
        """
        log, recovery_point = self.logs[name], self._recovery_points.get(name, 0)
        if log.end_offset < recovery_point:
            loss = f"it ends at offset {log.end_offset}, and its recovery point is {recovery_point}"
            evidence = self.path / _RECOVERY_POINT_FILE
        elif gaps := read_gaps(log.directory):
            ranges = ", ".join(f"{expected} to {found - 1}" for expected, found in gaps)
            loss = f"offsets {ranges} are missing"
            evidence = log.directory / GAPS_FILE
        else:
            return
        raise DataDirectoryError(
            f"{log.directory} has lost records: {loss}. Damaged bytes were set aside in it."
            f" Restore it from a backup, or remove {evidence} to start without those records"
        )

    def _directories(self) -> list[str]:
        return self.disk.directory_names(self.path)

    def _remove_directory(self, directory: Path) -> None:
        for name in self.disk.names(directory):
            path = directory / name
            if path.is_dir():
                self._remove_directory(path)
            else:
                self.disk.unlink(path)
        directory.rmdir()

    def _take_lock(self) -> int:
        try:
            return self.disk.lock(self.path / "lock")
        except BlockingIOError:
            raise DataDirectoryError(f"{self.path} is in use by another process") from None

    def _check_identity(self, cluster_id: str | None, broker_id: int) -> str:
        meta = _read_meta(self.path)
        version = FORMAT_VERSION
        if cluster_id is None:
            cluster_id = meta["cluster_id"] if meta else new_cluster_id()
        expected: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "cluster_id": cluster_id,
            "broker_id": broker_id,
        }
        if meta is None:
            self.disk.replace_file(self.path / _META_FILE, json.dumps(expected).encode())
            return cluster_id
        if meta.get("format_version") in _READABLE_VERSIONS:
            meta["format_version"], version = FORMAT_VERSION, meta["format_version"]
        for key, value in expected.items():
            if meta.get(key) != value:
                raise DataDirectoryError(
                    f"{self.path} has {key.replace('_', ' ')} {meta.get(key)!r}, not {value!r}"
                )
        if version != FORMAT_VERSION:
            self.disk.replace_file(self.path / _META_FILE, json.dumps(expected).encode())
        return cluster_id

    def _read_recovery_points(self) -> dict[str, int]:
        path = self.path / _RECOVERY_POINT_FILE
        try:
            return read_json(path) or {}
        except ValueError:
            logger.warning("%s is damaged: recovering all logs from their start", path)
            return {}

    def _write_recovery_points(self) -> None:
        points = {name: log.checkpointed_recovery_point for name, log in list(self.logs.items())}
        self.disk.replace_file(self.path / _RECOVERY_POINT_FILE, json.dumps(points).encode())
        self._recovery_points = points


def read_cluster_id(path: Path) -> str | None:
    """Return the cluster id of a data directory; None if it is new. Raises DataDirectoryError."""
    meta = _read_meta(path)
    return meta["cluster_id"] if meta else None


def read_identity(path: Path) -> tuple[str, int] | None:
    """Return the cluster id and the broker id of a data directory; None if it is new.

    Raises DataDirectoryError.
    """
    meta = _read_meta(path)
    return (meta["cluster_id"], meta["broker_id"]) if meta else None


def _read_meta(path: Path) -> dict[str, Any] | None:
    try:
        meta = read_json(path / _META_FILE)
    except ValueError:
        meta = ()
    if meta is not None and not (isinstance(meta, dict) and meta.get("cluster_id")):
        raise DataDirectoryError(f"{path / _META_FILE} is damaged")
    return meta


def new_cluster_id() -> str:
    """Return a random id in Kafka's form: 22 characters, without a leading '-'."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith(
        "-"
    ):
        pass
    return text
