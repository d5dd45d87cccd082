"""Rows K and R: compaction, and replays from the disk, while others produce and consume."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from random import Random

from chaos.matrix import row
from chaos.testbed import Run, Testbed
from harness.attack import MIB, append
from harness.bombs import produce_error_code
from harness.daemon import Daemon
from harness.waiting import wait_until
from harness.wire import BlockingWireClient, batches_of, fetch_request, fetched_partitions
from ottla.protocol.batch import Record, build_batch

KEYS = 2000


@contextmanager
def _under_load(run: Run, **configs: str) -> Iterator[tuple[Testbed, Daemon]]:
    named = {name.replace("_", "."): text for name, text in configs.items()}
    with run.testbed(named) as testbed:
        with testbed.load(per_second=300) as load:
            yield testbed, testbed.victim
            load.wait_for_acks()
        run.verify(testbed, load, growth_mib=64.0)


@row(
    "R", "replay of records that are not in the page cache", "replays", short=1, normal=20, full=200
)
def replay_cold_records(run: Run) -> None:
    size = 16 if run.count <= 2 else 200
    with _under_load(run) as (testbed, broker):
        testbed.create_topic("backlog", 1, on_victim=True, segment_bytes=str(32 * MIB))
        append(broker, os.urandom(500_000), times=2 * size, topic="backlog")
        for _ in run.cycles():
            _drop_from_page_cache(broker.data / "backlog-0")
            with run.undisturbed(testbed):
                assert _records(broker, "backlog") == 2 * size


def _drop_from_page_cache(log: Path) -> None:
    for path in log.glob("*.log"):
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _records(broker: Daemon, topic: str) -> int:
    """Read a topic from start to end; return the number of records."""
    offset = count = 0
    with BlockingWireClient(broker) as connection:
        while True:
            request = fetch_request(offset, topic=topic, partition_max_bytes=8 * MIB)
            (data,) = fetched_partitions(connection.request(request, 12))
            assert data.error_code == 0, data.error_code
            if not (batches := batches_of(data)):
                return count
            count += sum(batch.next_offset - batch.base_offset for batch in batches)
            offset = batches[-1].next_offset


@row("K", "compaction", "rounds", short=1, normal=20, full=200)
def compact(run: Run) -> None:
    """The last value of every key stays, and others are served in time."""
    size = 10 if run.count <= 2 else 60
    expected: dict[bytes, bytes] = {}
    config = {
        "cleanup_policy": "compact",
        "min_cleanable_dirty_ratio": "0.01",
        "segment_bytes": str(2 * MIB),
        "durability": "page-cache",
    }
    with _under_load(run, log_cleaner_backoff_ms="50") as (testbed, broker):
        testbed.create_topic("compacted", 1, on_victim=True, **config)
        for cycle in run.cycles():
            with run.undisturbed(testbed):
                for number in range(size):
                    expected |= _append_keys(broker, run.random, f"{cycle}.{number}")
                time.sleep(0.3)
        # In all segments but the active one: about one record of each key.
        wait_until(lambda: _sealed_bytes(broker.data / "compacted-0") < MIB, "compaction")
        assert _last_values(broker, "compacted") == expected


def _sealed_bytes(log: Path) -> int:
    """Return the size of all segments but the active one."""
    size = 0
    for path in sorted(log.glob("*.log"))[:-1]:
        with suppress(FileNotFoundError):  # Replaced meanwhile.
            size += path.stat().st_size
    return size


def _append_keys(broker: Daemon, random: Random, value: str) -> dict[bytes, bytes]:
    keys = [b"key %d" % random.randrange(KEYS) for _ in range(1000)]
    text = value.encode() * 40
    now = int(time.time() * 1000)
    rows = [Record(n, now, key, b"%d %b" % (n, text)) for n, key in enumerate(keys)]
    with BlockingWireClient(broker) as connection:
        assert produce_error_code(connection, "compacted", bytes(build_batch(rows))) == 0
    return {key: record.value or b"" for key, record in zip(keys, rows, strict=True)}


def _last_values(broker: Daemon, topic: str) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    offset = 0
    with BlockingWireClient(broker) as connection:
        while True:
            request = fetch_request(offset, topic=topic, partition_max_bytes=8 * MIB)
            (data,) = fetched_partitions(connection.request(request, 12))
            if not (batches := batches_of(data)):
                return found
            for batch in batches:
                found |= {record.key: record.value for record in batch.records()}
            offset = batches[-1].next_offset
