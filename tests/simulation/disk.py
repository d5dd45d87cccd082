"""A simulated disk: the logs of a data directory in memory, in place of `ottla.storage`.

A `StoredLog` is what the device and the page cache have; it outlives the process. A crash of the
process loses nothing. A power cut loses a random part of what was not fsynced, whole batches from
the end: recovery removes a torn one.

A disk fails in three ways. A failed fsync takes its log offline, until the next start, with what
was not fsynced left in the page cache. A write that fails in the middle is undone, or, if that
fails, too, takes the log offline; the next start removes what it left. A full disk refuses appends
and new logs, until there is space. Names of directories are durable at once, as the storage
layer fsyncs directories before it returns. Segments, indexes and recovery have tests of their own.
"""

from __future__ import annotations

import asyncio
import errno
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from copy import deepcopy
from pathlib import Path
from random import Random
from typing import Any
from uuid import UUID

from ottla.coord.metadata_image import OFFSETS_TOPIC
from ottla.protocol.batch import RecordBatch, build_control_batch
from ottla.storage.config import LogConfig
from ottla.storage.errors import (
    DivergedBatchError,
    LogOfflineError,
    OffsetOutOfRangeError,
    StorageError,
)
from ottla.storage.leader_epochs import LeaderEpochs
from ottla.storage.log import LogAppendInfo
from ottla.storage.partition_metadata import PartitionMetadata
from ottla.storage.producer_memory import ProducerMemory
from ottla.storage.validation import split


class StoredLog:
    """The batches of a log, in the order of their offsets, and how many of them are durable."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.base_offsets: list[int] = []
        self.end_offset = 0
        self.durable = 0
        self.metadata = PartitionMetadata()
        #: The process that has appended in a leader epoch, and epochs in which several have: for
        #: the checks; this is on no disk.
        self.leaders: dict[int, int] = {}
        self.shared_epochs: set[int] = set()

    def keep(self, count: int) -> None:
        """Remove all batches but the first `count`."""
        if count < len(self.batches):
            self.end_offset = self.base_offsets[count]
            del self.batches[count:], self.base_offsets[count:]
        self.durable = min(self.durable, count)


class StoredDirectory:
    """The disk of a machine."""

    def __init__(self) -> None:
        self.logs: dict[str, StoredLog] = {}
        self.set_aside: list[StoredLog] = []
        self.deleted_names: list[tuple[str, StoredLog]] = []
        self.cluster_id: str | None = None
        self.process_count = 0
        self.is_full = False
        #: The boot of the machine, and the one that a process has noted: as `LogDirectory` does.
        self.boot = self.noted_boot = 0
        self.may_have_lost_records = False
        self.high_watermarks: dict[str, int] = {}
        #: Whether logs have replicas, so that a power cut spares none.
        self.has_replicas = False
        #: Truncations below the high watermark.
        self.refused_truncations: list[str] = []
        #: How many of the next operations fail.
        self.failing_fsyncs = 0
        self.failing_writes = 0

    def repair(self) -> None:
        """Have operations succeed again."""
        self.is_full = False
        self.failing_fsyncs = self.failing_writes = 0

    def check_space(self) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def cut_power(self, random: Random) -> None:
        """Lose a random part of what is not durable."""
        self.boot += 1
        for name, log in self.logs.items():
            if name.startswith(OFFSETS_TOPIC) and not self.has_replicas:
                continue  # Its durability is page-cache: commits may be lost.
            log.keep(random.randint(log.durable, len(log.batches)))
            log.durable = len(log.batches)

    def copy(self) -> StoredDirectory:
        """Return a backup."""
        return deepcopy(self)


class _ProducerStates:
    accepts_unknown_sequences = True

    def expire(self, *_args: Any) -> None:
        pass

    def count_in(self, *_args: Any) -> None:
        pass


class SimulatedSlice:
    """The result of a read: whole batches."""

    def __init__(self, data: bytes) -> None:
        self.view = memoryview(data)
        self.segment = self
        self.position = 0

    def read(self, position: int, size: int) -> bytearray:
        return bytearray(self.view[position : position + size])

    def is_in_page_cache(self) -> bool:
        return True


class SimulatedLog:
    """An open log, with the interface of `storage.log.Log`."""

    has_deleted_segments = False
    first_unstable_offset = None  # Nobody reads with read_committed.
    high_watermark: int | None = None  # Of a partition with one replica.
    is_truncating = False
    is_committing = False
    start_offset = 0

    def __init__(
        self,
        name: str,
        stored: StoredLog,
        config: LogConfig,
        disk: StoredDirectory,
        process_number: int,
    ) -> None:
        self.process_number = process_number
        self.directory = Path(name)
        self.stored = stored
        self.disk = disk
        self.config = config
        self.leader_epochs = LeaderEpochs()
        for data in stored.batches:
            batch = RecordBatch(memoryview(data))
            self.leader_epochs.assign(batch.partition_leader_epoch, batch.base_offset)
        self.recovery_point = stored.end_offset
        self.producer_states = _ProducerStates()
        self.offline_reason: str | None = None
        self.last_flush_ms = 0

    @property
    def end_offset(self) -> int:
        return self.stored.end_offset

    @property
    def topic_id(self) -> UUID | None:
        return self.stored.metadata.topic_id

    def set_config(self, config: LogConfig) -> None:
        self.config = config

    def start_leader_epoch(self, epoch: int) -> bool:
        return False  # The epochs are in the batches.

    def append(
        self, data: Any, *, leader_epoch: int, now_ms: int, validates_records: bool = True
    ) -> LogAppendInfo:
        view = memoryview(bytearray(data))
        return self.append_batches(view, split(view), leader_epoch=leader_epoch, now_ms=now_ms)

    def append_marker(
        self,
        *,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        is_commit: bool,
        transaction_version: int,
        leader_epoch: int,
        now_ms: int,
    ) -> LogAppendInfo:
        marker = build_control_batch(
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            coordinator_epoch=coordinator_epoch,
            is_commit=is_commit,
            timestamp=now_ms,
        )
        return self.append(marker, leader_epoch=leader_epoch, now_ms=now_ms)

    def append_batches(
        self, view: memoryview, batches: Sequence[RecordBatch], *, leader_epoch: int, **_: Any
    ) -> LogAppendInfo:
        self._check_online()
        self.disk.check_space()
        if self.disk.failing_writes:
            self.disk.failing_writes -= 1
            if self.disk.failing_writes % 2:
                self.take_offline("a torn write could not be undone")
            raise OSError(errno.EIO, "Input/output error")
        stored, (batch,) = self.stored, batches
        base_offset = stored.end_offset
        batch.assign(base_offset, leader_epoch)
        leader = stored.leaders.setdefault(leader_epoch, self.process_number)
        if leader != self.process_number:
            stored.shared_epochs.add(leader_epoch)
        if leader_epoch > self.leader_epochs.current:
            self.leader_epochs.assign(leader_epoch, base_offset)
        stored.batches.append(bytes(view))
        stored.base_offsets.append(base_offset)
        stored.end_offset = base_offset + batch.last_offset_delta + 1
        return LogAppendInfo(base_offset, stored.end_offset - 1, -1)

    def append_as_follower(self, data: Any, _now_ms: int) -> None:
        self._check_online()
        self.disk.check_space()
        stored = self.stored
        for batch in split(memoryview(bytearray(data))):
            batch.validate()
            epoch = batch.partition_leader_epoch
            if batch.base_offset != stored.end_offset or epoch < self.leader_epochs.current:
                raise DivergedBatchError(f"Offset {batch.base_offset} after {stored.end_offset}")
            if epoch > self.leader_epochs.current:
                self.leader_epochs.assign(epoch, batch.base_offset)
            stored.batches.append(bytes(batch.view))
            stored.base_offsets.append(batch.base_offset)
            stored.end_offset = batch.next_offset

    def read(self, offset: int, max_bytes: int, end_offset: int | None = None) -> SimulatedSlice:
        stored = self.stored
        if not 0 <= offset <= stored.end_offset:
            raise OffsetOutOfRangeError(offset, 0, stored.end_offset)
        end = stored.end_offset if end_offset is None else end_offset
        if offset >= end:
            return SimulatedSlice(b"")
        index = bisect_right(stored.base_offsets, offset) - 1
        data = bytearray(stored.batches[index])
        for later in range(index + 1, len(stored.batches)):
            batch = stored.batches[later]
            if stored.base_offsets[later] >= end or len(data) + len(batch) > max_bytes:
                break
            data += batch
        return SimulatedSlice(bytes(data))

    def truncate(self, offset: int) -> None:
        self._check_online()
        if self.high_watermark is not None and offset < self.high_watermark:
            self.disk.refused_truncations.append(
                f"truncates {self.directory} to {offset}, high watermark {self.high_watermark}"
            )
        ends = [*self.stored.base_offsets[1:], self.stored.end_offset]
        self.stored.keep(sum(end <= offset for end in ends))
        self.recovery_point = min(self.recovery_point, self.end_offset)
        self.leader_epochs.truncate(self.end_offset)

    def flush(self, count: int, end_offset: int) -> int:
        self._check_online()
        self.stored.durable = max(self.stored.durable, min(count, len(self.stored.batches)))
        self.recovery_point = max(self.recovery_point, min(end_offset, self.end_offset))
        return self.recovery_point

    def is_flush_due(self, _now_ms: int) -> bool:
        return False

    def apply_retention(self, _now_ms: int) -> int:
        return 0

    def take_offline(self, reason: str) -> None:
        self.offline_reason = reason

    def _check_online(self) -> None:
        if self.offline_reason is not None:
            raise LogOfflineError(f"Log {self.directory.name} is offline: {self.offline_reason}")


class SimulatedFlusher:
    """Flushes logs after a random delay; one that was asked for covers what is in the log then."""

    def __init__(self, directory: SimulatedLogDirectory) -> None:
        self._directory = directory

    def flush(self, log: SimulatedLog) -> Future[int]:
        future: Future[int] = Future()
        loop = asyncio.get_running_loop()
        count, end_offset = len(log.stored.batches), log.end_offset

        def complete() -> None:
            try:
                if log.disk.failing_fsyncs:
                    log.disk.failing_fsyncs -= 1
                    log.take_offline("fsync failed")
                future.set_result(log.flush(count, end_offset))
            except StorageError as error:
                future.set_exception(error)

        loop.call_later(0.0005 + self._directory.random.random() * 0.01, complete)
        return future


class SimulatedLogDirectory:
    """An open data directory, with the interface of `storage.logdir.LogDirectory`."""

    #: The disks of all machines, by path, and the seeded source of delays; set by the world.
    disks: Mapping[str, StoredDirectory] = {}
    random = Random()
    has_deleted = False
    without_space: Sequence[str] = ()

    def __init__(
        self, path: Path, *, cluster_id: str | None, broker_id: int, disk: Any = None
    ) -> None:
        self.stored = self.disks[str(path)]
        self.stored.process_count += 1
        self.process_number = self.stored.process_count
        self.stored.cluster_id = self.cluster_id = cluster_id or self.stored.cluster_id or "sim"
        self.disk = self
        stored = self.stored
        self.has_fsynced_records = not stored.may_have_lost_records
        if stored.noted_boot != stored.boot and stored.logs:
            stored.may_have_lost_records = True
        stored.noted_boot = stored.boot
        self.logs: dict[str, SimulatedLog] = {}
        self.reports: dict[str, Any] = {}
        self.failed: dict[str, Exception] = {}
        self.producer_memory = ProducerMemory()
        self.flusher = SimulatedFlusher(self)

    def descriptor_limit(self) -> int:
        return 65_536

    def write_file(self, _path: Path, _data: bytes, *, durable: bool) -> None:
        self.stored.check_space()

    def unlink(self, _path: Path) -> None:
        pass

    def _open(self, name: str, stored: StoredLog, config: LogConfig) -> SimulatedLog:
        return SimulatedLog(name, stored, config, self.stored, self.process_number)

    def load_first(self, name: str, config: LogConfig) -> SimulatedLog:
        stored = self.stored.logs.setdefault(name, StoredLog())
        log = self.logs[name] = self._open(name, stored, config)
        return log

    def load(
        self, configs: Mapping[str, LogConfig], default: LogConfig, _progress: Any = None
    ) -> None:
        for name, stored in self.stored.logs.items():
            if name not in self.logs:
                self.logs[name] = self._open(name, stored, configs.get(name, default))

    @property
    def may_have_lost_records(self) -> bool:
        return self.stored.may_have_lost_records

    def note_losses(self) -> None:
        self.stored.may_have_lost_records = True
        self.has_fsynced_records = False

    def forget_losses(self) -> None:
        self.stored.may_have_lost_records = False
        self.has_fsynced_records = True

    def read_high_watermarks(self) -> dict[str, int]:
        return self.stored.high_watermarks

    def checkpoint_high_watermarks(self) -> None:
        self.stored.high_watermarks = {
            name: log.high_watermark
            for name, log in self.logs.items()
            if log.high_watermark is not None
        }

    def create_all(
        self, configs: Mapping[str, LogConfig], metadata: Mapping[str, PartitionMetadata]
    ) -> list[SimulatedLog]:
        self.stored.check_space()
        for name, config in configs.items():
            log = self.logs.get(name)
            if log is None:
                stored = self.stored.logs[name] = StoredLog()
                log = self.logs[name] = self._open(name, stored, config)
                stored.metadata = metadata[name]
            elif name in metadata and log.topic_id != metadata[name].topic_id:
                if log.end_offset > 0:
                    raise StorageError(f"Log {name} exists, and belongs to another topic")
                log.stored.metadata = metadata[name]
        return [self.logs[name] for name in configs]

    def delete(self, name: str) -> None:
        self.logs.pop(name)
        self.stored.deleted_names.append((name, self.stored.logs.pop(name)))

    def set_aside(self, name: str) -> Path:
        self.logs.pop(name)
        self.stored.set_aside.append(self.stored.logs.pop(name))
        return Path(name)

    def purge_deleted(self) -> int:
        return 0

    def checkpoint_recovery_points(self) -> None:
        pass

    def close(self) -> None:
        for log in self.logs.values():
            log.stored.durable = len(log.stored.batches)

    def abandon(self) -> None:
        pass
