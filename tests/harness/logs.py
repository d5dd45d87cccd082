"""Builders of batches and logs for the tests of storage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ottla.protocol.batch import Record, RecordBatch, build_batch, split_batches
from ottla.storage.cleaner import MAX_KEYS, CleanerStats, RewrittenLog, rewrite
from ottla.storage.compaction import commit_next_segment, plan
from ottla.storage.config import LogConfig
from ottla.storage.disk import Disk
from ottla.storage.files import OpenFiles
from ottla.storage.log import Log, LogAppendInfo
from ottla.storage.recovery import open_log

NOW = 1_700_000_000_000


class NoSyncDisk(Disk):
    """A disk without fsync, for speed."""

    def sync(self, fd: int, *, metadata: bool = False) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


def a_batch(
    count: int = 1, *, value: bytes = b"value", time: int = NOW, **header: Any
) -> bytearray:
    records = [Record(n, time + n, b"key %d" % n, value) for n in range(count)]
    return build_batch(records, **header)


def a_log(path: Path, *, files: OpenFiles | None = None, **config: Any) -> Log:
    """A log of small segments, opened as after a clean shutdown."""
    fields = {"segment_bytes": 2000, "index_interval_bytes": 200} | config
    return open_log(path / "t-0", LogConfig(**fields), OpenFiles() if files is None else files)[0]


def append(log: Log, count: int = 1, *, times: int = 1, **batch: Any) -> LogAppendInfo:
    for _ in range(times):
        result = log.append(a_batch(count, **batch), leader_epoch=0, now_ms=NOW)
    return result


def offsets(log: Log, start: int | None = None, max_bytes: int = 700) -> list[int]:
    """All offsets from `start` on, as a consumer reads them."""
    offset = log.start_offset if start is None else start
    read: list[int] = []
    while offset < log.end_offset:
        batches: list[RecordBatch] = list(split_batches(bytes(log.read(offset, max_bytes).view)))
        if not batches:
            break
        for batch in batches:
            batch.validate()
            read += [record.offset for record in batch.records() if record.offset >= offset]
            offset = batch.next_offset
    return read


def compact(log: Log, now_ms: int, *, max_keys: int = MAX_KEYS) -> CleanerStats | None:
    """Compact a log in one pass; None if there is too little to do."""
    planned = plan(log, now_ms)
    return None if planned is None else commit(log, rewrite(planned, max_keys=max_keys))


def commit(log: Log, rewritten: RewrittenLog) -> CleanerStats | None:
    """Put rewritten segments in place; None if the log has changed too much."""
    while commit_next_segment(log, rewritten):
        pass
    return None if rewritten.is_abandoned else rewritten.stats


def count_flushes(log: Log) -> list[int]:
    """Return a list that gets the result of each flush of a log from now on."""
    results: list[int] = []

    class CountedLog(Log):
        __slots__ = ()

        def flush(self) -> int:
            results.append(super().flush())
            return results[-1]

    log.__class__ = CountedLog
    return results
