"""The partition log compared with the system calls it makes.

    python bench/log.py [--quick] [--dir DIR] [--only PART…]

Everything runs in page-cache mode in a temporary directory: nothing waits for the disk, and all
reads are warm. Contenders take turns; "bare" does the same I/O and nothing else.

- append: `Log.append`, with its CRC check, against a loop of os.pwrite; and pwrite after a CRC
- read: `Log.read` and a send of the slice, against sends of equal slices of one mmap
- recovery: a scan of 256 MiB in batches of 16 KiB, against a CRC over the same reads
- checks: the scrubber's pass over a log, against a CRC over the same reads; and the validation of
  records, by codec, against the CRC of their batch
- growth: append, roll and read with N, 10 N and 100 N batches in the log
- load: opening up to 10,000 logs of one small batch, after a clean shutdown, in a new process
"""

from __future__ import annotations

import mmap
import os
import shutil
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crc32c import crc32c

from benchmark import (
    KIB,
    MIB,
    best_seconds,
    command_line,
    data_directory,
    progress,
    recording,
    run_parts,
)
from imports import measure
from ottla.protocol.batch import HEADER_BYTES, Record, RecordBatch, build_batch
from ottla.protocol.compression import Compression
from ottla.protocol.validation import validate_batch
from ottla.storage.config import LogConfig
from ottla.storage.disk import Disk
from ottla.storage.files import OpenFiles
from ottla.storage.log import Log
from ottla.storage.logdir import LogDirectory
from ottla.storage.recovery import open_log
from ottla.storage.scrub import list_segments, verify_segment

NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(max_message_bytes=2 * MIB)

#: By batch size: appends per round, and the target relative to bare pwrite.
APPENDS: dict[int, tuple[int, float | None]] = {
    KIB: (16_000, None),
    16 * KIB: (4_000, 0.6),
    MIB: (96, 0.85),
}
RECOVERY_READ_BYTES = 256 * KIB  # as in the scan
GROWTH_BATCHES = 2_000
#: Of a batch of 16 KiB, with values of 100 bytes.
CHECKED_RECORDS = 150
GROWTH_SEGMENT_BYTES = 256 * KIB


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    #: Divides the appends per round.
    append_divisor: int
    read_bytes: int
    growth: Sequence[int]
    logs: Sequence[int]
    is_quick: bool = False


FULL = Plan(
    rounds=8,
    append_divisor=1,
    read_bytes=256 * MIB,
    growth=(1, 10, 100),
    logs=(100, 1_000, 10_000),
)
QUICK = Plan(
    rounds=1,
    append_divisor=16,
    read_bytes=16 * MIB,
    growth=(1, 10),
    logs=(100,),
    is_quick=True,
)

LOAD_SETUP = """
from pathlib import Path
from ottla.storage.config import LogConfig
from ottla.storage.logdir import LogDirectory
import crc32c, ottla.protocol.batch

path = Path({path!r})
(path / "clean-shutdown").touch()
directory = LogDirectory(path, cluster_id="bench", broker_id=0)
"""
LOAD = """
directory.load({{}}, LogConfig())
assert not directory.failed, next(iter(directory.failed.values()))
assert len(directory.logs) == {count}
"""


class PageCache(Disk):
    """A disk whose fsync does nothing: the device is not measured here."""

    def sync(self, *_args: object, **_options: object) -> None:
        """Do nothing."""

    def sync_directory(self, *_args: object) -> None:
        """Do nothing."""


def batch_of(size: int) -> bytearray:
    """Return a batch of exactly this size, with one record."""
    value = bytes(range(256)) * (size // 256 + 1)
    length = size - HEADER_BYTES
    while True:
        batch = build_batch([Record(0, NOW_MS, None, value[:length])])
        if len(batch) <= size:
            assert len(batch) == size
            return batch
        length -= len(batch) - size


def open_at(path: Path, config: LogConfig = CONFIG, recovery_point: int | None = None) -> Log:
    """Open or create a log."""
    files = OpenFiles(PageCache())
    return open_log(path, config, files, recovery_point=recovery_point)[0]


def fill(log: Log, size: int, total: int) -> None:
    """Append batches of one size, `total` bytes in all, a MiB at a time."""
    batch = batch_of(size)
    block = bytearray(batch * max(1, MIB // size))
    for _ in range(total // len(block)):
        log.append(block, leader_epoch=0, now_ms=NOW_MS)


def take_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Return the best time of each contender; they measure it themselves."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, function in contenders.items():
            best[name] = min(best[name], function())
    return best


# -- append ----------------------------------------------------------------------------------------


def time_log(directory: Path, batch: bytearray, count: int) -> float:
    """Return the seconds of appends to a new log."""
    log = open_at(directory / "append-0")
    append = log.append
    start = time.perf_counter()
    for _ in range(count):
        append(batch, leader_epoch=0, now_ms=NOW_MS)
    elapsed = time.perf_counter() - start
    assert log.end_offset == count
    log.close()
    shutil.rmtree(log.directory)
    return elapsed


def time_bare(directory: Path, batch: bytearray, count: int, *, check: bool) -> float:
    """Return the seconds of writes of the same bytes to a new file."""
    path = directory / "bare"
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
    covered = memoryview(batch)[21:]
    pwrite, position, size = os.pwrite, 0, len(batch)
    start = time.perf_counter()
    for _ in range(count):
        if check:
            crc32c(covered)
        pwrite(fd, batch, position)
        position += size
    elapsed = time.perf_counter() - start
    os.close(fd)
    path.unlink()
    return elapsed


def bench_append(directory: Path, plan: Plan) -> list[dict[str, Any]]:
    """Measure appends."""
    results = []
    for size, (appends, target) in APPENDS.items():
        progress(f"append {size}")
        count = appends // plan.append_divisor
        batch = batch_of(size)
        total = take_turns(
            {
                "log": lambda b=batch, n=count: time_log(directory, b, n),
                "pwrite": lambda b=batch, n=count: time_bare(directory, b, n, check=False),
                "crc+pwrite": lambda b=batch, n=count: time_bare(directory, b, n, check=True),
            },
            plan.rounds,
        )
        seconds = {name: elapsed / count for name, elapsed in total.items()}
        ratio = seconds["pwrite"] / seconds["log"]
        results.append({"size": size, "target": target, "seconds": seconds, "ratio": ratio})
    return results


# -- read ------------------------------------------------------------------------------------------


class Pipe:
    """Both ends of a socket in one thread: sent bytes are received at once."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
        self._near.setblocking(False)
        self._buffer = bytearray(4 * MIB)

    def send(self, view: memoryview) -> None:
        """Send and receive all of it."""
        send, receive, buffer = self._near.send, self._far.recv_into, self._buffer
        while view:
            sent = send(view)
            view = view[sent:]
            while sent:
                sent -= receive(buffer, sent)

    def close(self) -> None:
        """Close both ends."""
        self._near.close()
        self._far.close()


def bench_read(directory: Path, plan: Plan) -> dict[str, Any]:
    """Measure reads."""
    progress("read")
    log = open_at(directory / "read-0")
    fill(log, 16 * KIB, plan.read_bytes)
    pipe = Pipe()
    total = log.size
    with open(log.active_segment.path(".log"), "rb") as file:
        mapped = mmap.mmap(file.fileno(), total, access=mmap.ACCESS_READ)

    def sequential() -> float:
        offset, end, sent = 0, log.end_offset, 0
        start = time.perf_counter()
        while offset < end:
            view = log.read(offset, MIB).view
            # One record per batch, and all batches have one size.
            offset += len(view) // (16 * KIB)
            sent += len(view)
            pipe.send(view)
        assert sent == total
        return time.perf_counter() - start

    def bare() -> float:
        view = memoryview(mapped)
        start = time.perf_counter()
        for position in range(0, total, MIB):
            pipe.send(view[position : position + MIB])
        return time.perf_counter() - start

    seconds = take_turns({"log": sequential, "bare": bare}, plan.rounds)
    small_log = open_at(directory / "small-0")
    fill(small_log, KIB, plan.read_bytes // 4)

    def stepping(source: Log, max_bytes: int) -> Callable[[], object]:
        offset, end = 0, source.end_offset

        def read() -> None:
            nonlocal offset
            offset = (offset + 7919) % end
            source.read(offset, max_bytes)

        return read

    calls = best_seconds(
        {
            "one batch of 16 KiB": stepping(log, 1),
            "one batch of 1 KiB": stepping(small_log, 1),
            "1 MiB in batches of 16 KiB": stepping(log, MIB),
            "1 MiB in batches of 1 KiB": stepping(small_log, MIB),
            "nothing, at the log end": lambda: log.read(log.end_offset, MIB),
        },
        is_quick=plan.is_quick,
    )
    pipe.close()
    mapped.close()
    for used in (log, small_log):
        used.close()
        shutil.rmtree(used.directory)
    return {"sequential": {"bytes": total, "seconds": seconds}, "call_seconds": calls}


# -- recovery --------------------------------------------------------------------------------------


def bench_recovery(directory: Path, plan: Plan) -> dict[str, Any]:
    """Measure the scan after a crash."""
    progress("recovery")
    path = directory / "recovery-0"
    log = open_at(path)
    fill(log, 16 * KIB, plan.read_bytes)
    file, size = log.active_segment.path(".log"), log.size
    log.close()

    def scan() -> float:
        start = time.perf_counter()
        opened = open_at(path, recovery_point=0)
        elapsed = time.perf_counter() - start
        assert opened.size == size
        opened.active_segment.close()
        return elapsed

    def bare() -> float:
        fd = os.open(file, os.O_RDONLY)
        view = memoryview(bytearray(RECOVERY_READ_BYTES))
        start = time.perf_counter()
        for position in range(0, size, RECOVERY_READ_BYTES):
            got = os.preadv(fd, [view], position)
            crc32c(view[:got])
        elapsed = time.perf_counter() - start
        os.close(fd)
        return elapsed

    seconds = take_turns({"log": scan, "bare": bare}, plan.rounds)
    shutil.rmtree(path)
    return {"bytes": size, "seconds": seconds}


# -- checks ----------------------------------------------------------------------------------------


def bench_checks(directory: Path, plan: Plan) -> dict[str, Any]:
    """Measure the scrubber, and the validation of produced records."""
    progress("checks")
    log = open_at(directory / "checks-0")
    fill(log, 16 * KIB, plan.read_bytes)
    log.close()
    segments, disk, size = list_segments(log.directory), PageCache(), log.size

    def scrub() -> float:
        start = time.process_time()
        assert not any(verify_segment(segment, disk) for segment in segments)
        return time.process_time() - start

    def bare() -> float:
        view = memoryview(bytearray(RECOVERY_READ_BYTES))
        start = time.process_time()
        with open(segments[0].path, "rb", buffering=0) as file:
            while got := file.readinto(view):
                crc32c(view[:got])
        return time.process_time() - start

    seconds = take_turns({"scrub": scrub, "bare": bare}, plan.rounds)
    shutil.rmtree(log.directory)
    rows = [Record(n, NOW_MS + n, None, b"%0100d" % n) for n in range(CHECKED_RECORDS)]
    batches = {
        codec.name.lower(): RecordBatch(build_batch(rows, compression=codec))
        for codec in Compression
    }
    validations: dict[str, Callable[[], object]] = {
        name: lambda batch=batch: validate_batch(batch, (0, 2 * NOW_MS))
        for name, batch in batches.items()
    }
    validations["CRC alone"] = lambda: crc32c(batches["none"].view[21:])
    calls = best_seconds(validations, is_quick=plan.is_quick)
    return {
        "scrub": {"bytes": size, "cpu_seconds": seconds},
        "record_seconds": {name: elapsed / CHECKED_RECORDS for name, elapsed in calls.items()},
    }


# -- many logs, and a long one ---------------------------------------------------------------------


def bench_load(directory: Path, plan: Plan) -> list[dict[str, Any]]:
    """Measure the opening of many logs."""
    return [load(directory / f"data-{count}", count) for count in plan.logs]


def load(path: Path, count: int) -> dict[str, Any]:
    """Create logs, and measure how long it takes to open them."""
    directory = LogDirectory(path, cluster_id="bench", broker_id=0, disk=PageCache())
    batch = batch_of(KIB)
    for number in range(count):
        if number % 500 == 0:
            progress(f"load: creating log {number:,} of {count:,}")
        log = directory.create(f"topic-{number}", CONFIG)
        log.append(batch, leader_epoch=0, now_ms=NOW_MS)
        log.flush()  # files with unflushed data would stay open
    directory.close()
    progress(f"load: {count:,} logs")
    run = measure(LOAD_SETUP.format(path=str(path)), LOAD.format(count=count), 1)
    shutil.rmtree(path)
    return {"logs": count, "seconds": run["ms"] / 1e3, "bytes": run["mb"] * 1e6}


def bench_growth(directory: Path, plan: Plan) -> list[dict[str, Any]]:
    """Measure operations on a log as it grows."""
    log = open_at(directory / "growth-0", LogConfig(segment_bytes=GROWTH_SEGMENT_BYTES))
    batch = batch_of(KIB)
    # Half a segment, so that appends do not roll.
    window = GROWTH_SEGMENT_BYTES // KIB // 2

    def roll() -> float:
        start = time.perf_counter()
        log.roll()
        return time.perf_counter() - start

    def append() -> float:
        start = time.perf_counter()
        for _ in range(window):
            log.append(batch, leader_epoch=0, now_ms=NOW_MS)
        return (time.perf_counter() - start) / window

    def read() -> float:
        end = log.end_offset
        start = time.perf_counter()
        for number in range(window):
            log.read(number * 7919 % end, 1)
        return (time.perf_counter() - start) / window

    results = []
    for factor in plan.growth:
        progress(f"growth: {factor} N")
        while log.end_offset < factor * GROWTH_BATCHES:
            log.append(batch, leader_epoch=0, now_ms=NOW_MS)
        length, segments = log.end_offset, len(log.segments)
        operations = {"roll": roll, "append": append, "read": read}
        seconds = take_turns(operations, plan.rounds)
        results.append({"batches": length, "segments": segments, "seconds": seconds})
    log.close()
    shutil.rmtree(log.directory)
    return results


PARTS: dict[str, Callable[[Path, Plan], Any]] = {
    "append": bench_append,
    "read": bench_read,
    "recovery": bench_recovery,
    "checks": bench_checks,
    "growth": bench_growth,
    "load": bench_load,
}


def main() -> None:
    """Measure all parts, or the selected ones."""
    quick = "five seconds instead of sixty"
    options = command_line(__doc__, quick=quick, parts=PARTS, disk="2 GiB").parse_args()
    with recording("log", options) as results, data_directory(options) as directory:
        run_parts("log", options, results, PARTS, directory, QUICK if options.quick else FULL)


if __name__ == "__main__":
    main()
