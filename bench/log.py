"""The log against the bare system calls that it is made of.

    python bench/log.py [--quick] [--dir FOLDER] [--only PART…]

Everything is measured in page-cache mode, in a temporary directory: nothing waits for the device,
and all reads are warm. What is compared takes turns; "bare" does the same I/O and nothing else.

- append: `Log.append`, CRC check included, against a loop of os.pwrite; and pwrite after a CRC
- read: `Log.read` and a send of what it gives, against sends of equal slices of one map
- open: a log of 1 GiB that was closed cleanly
- recovery: a scan of 256 MiB in batches of 16 KiB, against a CRC over the same reads
- growth: an append to, a roll of, and a read of a log that has N, 10 N and 100 N batches
- load: up to 10,000 logs of one small batch each, after a clean stop, in a process of their own
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crc32c import crc32c

from benchmark import best_seconds, command_line, print_table, progress, recording
from ottla.protocol.batch import HEADER_BYTES, Record, build_batch
from ottla.storage.config import LogConfig
from ottla.storage.disk import Disk
from ottla.storage.files import OpenFiles
from ottla.storage.log import Log
from ottla.storage.logdir import LogDirectory
from ottla.storage.recovery import open_log

KIB, MIB, GIB = 1024, 1024**2, 1024**3
NOW_MS = 1_700_000_000_000
CONFIG = LogConfig(max_message_bytes=2 * MIB)

#: Bytes of a batch: how many appends make a round, and what part of bare pwrite is aimed at.
APPENDS: dict[int, tuple[int, float | None]] = {
    KIB: (16_000, None),
    16 * KIB: (4_000, 0.6),
    MIB: (96, 0.85),
}
RECOVERY_READ_BYTES = 256 * KIB  # as the scan does
GROWTH_BATCHES = 2_000
GROWTH_SEGMENT_BYTES = 256 * KIB


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    #: Of the appends of a round, one in so many is done.
    append_divisor: int
    read_bytes: int
    open_bytes: int
    growth: Sequence[int]
    logs: Sequence[int]
    is_quick: bool = False


FULL = Plan(
    rounds=8,
    append_divisor=1,
    read_bytes=256 * MIB,
    open_bytes=GIB,
    growth=(1, 10, 100),
    logs=(100, 1_000, 10_000),
)
QUICK = Plan(
    rounds=1,
    append_divisor=16,
    read_bytes=16 * MIB,
    open_bytes=64 * MIB,
    growth=(1, 10),
    logs=(100,),
    is_quick=True,
)

LOAD_PROBE = """
import json, sys, time
from pathlib import Path
from ottla.storage.config import LogConfig
from ottla.storage.logdir import LogDirectory
import crc32c, ottla.protocol.batch

def resident():
    try:
        with open("/proc/self/statm") as statm:
            return int(statm.read().split()[1]) * 4096
    except OSError:
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

directory = LogDirectory(Path(sys.argv[1]), cluster_id="bench", broker_id=0)
memory, start = resident(), time.perf_counter()
directory.load({}, LogConfig())
elapsed = time.perf_counter() - start
assert not directory.failed, next(iter(directory.failed.values()))
print(json.dumps([len(directory.logs), elapsed, resident() - memory]))
"""


class PageCache(Disk):
    """A disk that never waits for the device: that is not what is measured here."""

    def sync(self, *_args: object, **_options: object) -> None:
        """Say that it is done."""

    def sync_directory(self, *_args: object) -> None:
        """Say that it is done."""


def batch_of(size: int) -> bytearray:
    """Make a batch of exactly this size, of one record."""
    value = bytes(range(256)) * (size // 256 + 1)
    length = size - HEADER_BYTES
    while True:
        batch = build_batch([Record(0, NOW_MS, None, value[:length])])
        if len(batch) <= size:
            assert len(batch) == size
            return batch
        length -= len(batch) - size


def open_at(path: Path, config: LogConfig = CONFIG, recovery_point: int | None = None) -> Log:
    """Open a log, or make it."""
    files = OpenFiles(PageCache())
    return open_log(path, config, files, recovery_point=recovery_point)[0]


def fill(log: Log, size: int, total: int) -> None:
    """Append batches of a size until there are `total` bytes more, a MiB at a time."""
    batch = batch_of(size)
    block = bytearray(batch * max(1, MIB // size))
    for _ in range(total // len(block)):
        log.append(block, leader_epoch=0, now_ms=NOW_MS)


def take_turns(contenders: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Give the best of what contenders, which look at the clock themselves, say."""
    best = dict.fromkeys(contenders, float("inf"))
    for _ in range(rounds):
        for name, function in contenders.items():
            best[name] = min(best[name], function())
    return best


# -- append ----------------------------------------------------------------------------------------


def time_log(folder: Path, batch: bytearray, count: int) -> float:
    """Give the seconds that appends to a fresh log take."""
    log = open_at(folder / "append-0")
    append = log.append
    start = time.perf_counter()
    for _ in range(count):
        append(batch, leader_epoch=0, now_ms=NOW_MS)
    elapsed = time.perf_counter() - start
    assert log.end_offset == count
    log.close()
    shutil.rmtree(log.directory)
    return elapsed


def time_bare(folder: Path, batch: bytearray, count: int, *, check: bool) -> float:
    """Give the seconds that writes of the same bytes to a fresh file take."""
    path = folder / "bare"
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


def bench_append(folder: Path, plan: Plan) -> list[dict[str, Any]]:
    """Measure appends, and print the table."""
    results = []
    for size, (most, aim) in APPENDS.items():
        progress(f"append {size}")
        count = most // plan.append_divisor
        batch = batch_of(size)
        seconds = take_turns(
            {
                "log": lambda b=batch, n=count: time_log(folder, b, n),
                "pwrite": lambda b=batch, n=count: time_bare(folder, b, n, check=False),
                "crc+pwrite": lambda b=batch, n=count: time_bare(folder, b, n, check=True),
            },
            plan.rounds,
        )
        each = {name: elapsed / count for name, elapsed in seconds.items()}
        results.append({"size": size, "aim": aim, "seconds": each})
    progress("")
    print_table(
        "append to the page cache",
        [
            *("batch", "log MB/s", "pwrite MB/s", "log µs", "pwrite µs", "CRC + pwrite µs"),
            *("of pwrite", "aim", "of CRC + pwrite"),
        ],
        [
            [
                f"{row['size'] // KIB} KiB",
                *(f"{row['size'] / row['seconds'][name] / 1e6:,.0f}" for name in ("log", "pwrite")),
                *(f"{each * 1e6:.1f}" for each in row["seconds"].values()),
                f"{row['seconds']['pwrite'] / row['seconds']['log']:.2f}",
                "" if row["aim"] is None else f"{row['aim']:.2f}",
                f"{row['seconds']['crc+pwrite'] / row['seconds']['log']:.2f}",
            ]
            for row in results
        ],
    )
    return results


# -- read ------------------------------------------------------------------------------------------


class Pipe:
    """A socket and its other end, in one thread: what goes in is taken out at once."""

    def __init__(self) -> None:
        self._near, self._far = socket.socketpair()
        self._near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * MIB)
        self._near.setblocking(False)
        self._buffer = bytearray(4 * MIB)

    def send(self, view: memoryview) -> None:
        """Send all of it."""
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


def bench_read(folder: Path, plan: Plan) -> dict[str, Any]:
    """Measure reads, and print the tables."""
    progress("read")
    log = open_at(folder / "read-0")
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
            # As many records as batches, which are all of one size.
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

    big = take_turns({"log": sequential, "bare": bare}, plan.rounds)
    small_log = open_at(folder / "small-0")
    fill(small_log, KIB, plan.read_bytes // 4)

    def stepping(source: Log, most: int) -> Callable[[], object]:
        offset, end = 0, source.end_offset

        def read() -> None:
            nonlocal offset
            offset = (offset + 7919) % end
            source.read(offset, most)

        return read

    calls = best_seconds(
        {
            "one batch of 16 KiB": stepping(log, 1),
            "one batch of 1 KiB": stepping(small_log, 1),
            "1 MiB in batches of 16 KiB": stepping(log, MIB),
            "1 MiB in batches of 1 KiB": stepping(small_log, MIB),
            "none, at the end": lambda: log.read(log.end_offset, MIB),
        },
        is_quick=plan.is_quick,
    )
    pipe.close()
    mapped.close()
    for used in (log, small_log):
        used.close()
        shutil.rmtree(used.directory)
    progress("")
    print_table(
        "read in slices of 1 MiB and send, warm",
        ["", "log MB/s", "bare MB/s", "of bare"],
        [
            [
                f"{total // MIB} MiB",
                f"{total / big['log'] / 1e6:,.0f}",
                f"{total / big['bare'] / 1e6:,.0f}",
                f"{big['bare'] / big['log']:.2f}",
            ]
        ],
    )
    print_table(
        "one Log.read, at changing offsets",
        ["", "µs"],
        [[name, f"{seconds * 1e6:.1f}"] for name, seconds in calls.items()],
    )
    return {"sequential": {"bytes": total, "seconds": big}, "call_seconds": calls}


# -- open and recovery -----------------------------------------------------------------------------


def bench_open(folder: Path, plan: Plan) -> dict[str, Any]:
    """Measure the opening of a large log, and print it."""
    progress("open")
    path = folder / "open-0"
    log = open_at(path)
    fill(log, 16 * KIB, plan.open_bytes)
    size, segments = log.size, len(log.segments)
    log.close()

    def once() -> float:
        start = time.perf_counter()
        opened = open_at(path)
        elapsed = time.perf_counter() - start
        assert opened.size == size
        opened.close()
        return elapsed

    best = take_turns({"log": once}, plan.rounds)["log"]
    shutil.rmtree(path)
    progress("")
    print_table(
        "open after a clean stop",
        ["", "segments", "ms", "aim"],
        [[f"{size / GIB:.2f} GiB", str(segments), f"{best * 1e3:.2f}", "5.00"]],
    )
    return {"bytes": size, "segments": segments, "seconds": best}


def bench_recovery(folder: Path, plan: Plan) -> dict[str, Any]:
    """Measure the scan after a crash, and print it."""
    progress("recovery")
    path = folder / "recovery-0"
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
    progress("")
    print_table(
        "recovery scan, batches of 16 KiB, warm",
        ["", "log MB/s", "bare MB/s", "of bare", "aim", "µs per batch"],
        [
            [
                f"{size // MIB} MiB",
                f"{size / seconds['log'] / 1e6:,.0f}",
                f"{size / seconds['bare'] / 1e6:,.0f}",
                f"{seconds['bare'] / seconds['log']:.2f}",
                "0.50",
                f"{seconds['log'] / (size // (16 * KIB)) * 1e6:.1f}",
            ]
        ],
    )
    return {"bytes": size, "seconds": seconds}


# -- many logs, and a long one ---------------------------------------------------------------------


def bench_load(folder: Path, plan: Plan) -> list[dict[str, Any]]:
    """Measure starts with many logs, and print them."""
    results = [load(folder / f"data-{count}", count) for count in plan.logs]
    progress("")
    print_table(
        "start with many logs, after a clean stop",
        ["logs", "s", "µs per log", "MB more", "KB per log"],
        [
            [
                f"{row['logs']:,}",
                f"{row['seconds']:.3f}",
                f"{row['seconds'] / row['logs'] * 1e6:.0f}",
                f"{row['bytes'] / 1e6:.1f}",
                f"{row['bytes'] / row['logs'] / 1e3:.1f}",
            ]
            for row in results
        ],
    )
    return results


def load(path: Path, count: int) -> dict[str, Any]:
    """Make so many logs, and give what it takes to load them."""
    directory = LogDirectory(path, cluster_id="bench", broker_id=0, disk=PageCache())
    batch = batch_of(KIB)
    for number in range(count):
        if number % 500 == 0:
            progress(f"load: making log {number:,} of {count:,}")
        log = directory.create(f"topic-{number}", CONFIG)
        log.append(batch, leader_epoch=0, now_ms=NOW_MS)
        # A file with content that is not on the device stays open.
        log.flush()
    directory.close()
    progress(f"load: {count:,} logs")
    command = [sys.executable, "-c", LOAD_PROBE, str(path)]
    runs = []
    for _ in range(2):
        (path / "clean-shutdown").touch()
        output = subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout
        runs.append(json.loads(output))
    loaded, seconds, memory = min(runs, key=lambda run: run[1])
    assert loaded == count
    progress(f"load: removing {count:,} logs")
    shutil.rmtree(path)
    return {"logs": count, "seconds": seconds, "bytes": memory}


def bench_growth(folder: Path, plan: Plan) -> list[dict[str, Any]]:
    """Measure appends to a log that gets longer, and print it."""
    log = open_at(folder / "growth-0", LogConfig(segment_bytes=GROWTH_SEGMENT_BYTES))
    batch = batch_of(KIB)
    # Fewer than a segment takes, so that the rolls in a window are those that are timed.
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
        ways = {"roll": roll, "append": append, "read": read}
        seconds = take_turns(ways, plan.rounds)
        results.append({"batches": length, "segments": segments, "seconds": seconds})
    log.close()
    shutil.rmtree(log.directory)
    progress("")
    first = results[0]["seconds"]
    print_table(
        f"batches of 1 KiB in a log of {GROWTH_SEGMENT_BYTES // KIB} KiB segments",
        ["batches", "segments", *(text for way in ways for text in (f"{way} µs", "of the first"))],
        [
            [
                f"{row['batches']:,}",
                f"{row['segments']:,}",
                *(
                    text
                    for way in ways
                    for text in (
                        f"{row['seconds'][way] * 1e6:,.1f}",
                        f"{row['seconds'][way] / first[way]:.2f}",
                    )
                ),
            ]
            for row in results
        ],
    )
    return results


PARTS: dict[str, Callable[[Path, Plan], Any]] = {
    "append": bench_append,
    "read": bench_read,
    "open": bench_open,
    "recovery": bench_recovery,
    "growth": bench_growth,
    "load": bench_load,
}


def main() -> None:
    """Measure all of it, or what was named."""
    quick = "five seconds instead of ninety"
    options = command_line(__doc__, quick=quick, parts=PARTS, files="2 GiB").parse_args()
    plan = QUICK if options.quick else FULL
    # What a log has open is bounded, but at more than what many shells allow.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 16_384), hard), hard))
    with (
        recording("log", options) as results,
        tempfile.TemporaryDirectory(dir=options.dir, prefix="ottla-bench-") as folder,
    ):
        for name in options.only or PARTS:
            results[name] = PARTS[name](Path(folder), plan)


if __name__ == "__main__":
    main()
