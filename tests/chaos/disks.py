"""Rows 7 to 9: full disks and I/O errors."""

from __future__ import annotations

import errno
import mmap
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from chaos.matrix import row
from chaos.testbed import TOPIC, FaultyDaemon, Run, Testbed
from harness.attack import MIB
from harness.bombs import produce_error_code
from harness.daemon import Daemon
from harness.history import History
from harness.load import Load, read_everything
from harness.logs import a_batch
from harness.mounts import private_mounts
from harness.wire import BlockingWireClient, fetch_request, fetched_partitions
from ottla.protocol.errors import ErrorCode
from ottla.storage.disk import read_json


@row("7", "disk full", "fills", short=1, normal=15, full=50)
def fill(run: Run) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    with private_mounts(run.folder) as mounts:
        mounts.make_ext4(64 * MIB)
        with run.testbed(data=mounts.path / "data") as testbed:
            broker = testbed.victim
            testbed.create_topic("large", 1, on_victim=True)
            with testbed.load() as load:
                for _ in run.cycles():
                    load.wait_for_acks()
                    ballast = mounts.path / "ballast"
                    _fill_disk(ballast)
                    _check_storage_error(broker)
                    _wait_until_acks_stop(load, testbed.led_by_victim)
                    testbed.wait_for_acks_of_others(load)
                    assert broker.is_running, broker.log_tail()
                    _read_all(testbed)
                    ballast.unlink()
                    load.wait_for_acks()
                    assert _produce_large_batch(broker) == ErrorCode.NONE
            run.verify(testbed, load, may_log=True)


@row("7r", "restart on a full disk, then space", "restarts", short=1, normal=8, full=50)
def restart_on_full_disk(run: Run) -> None:
    """Reads work at once, and writes by themselves when there is space."""
    run.folder.mkdir(parents=True, exist_ok=True)
    with private_mounts(run.folder) as mounts:
        mounts.make_ext4(64 * MIB)
        with run.testbed(data=mounts.path / "data", with_bystander=False) as testbed:
            broker = testbed.victim
            testbed.create_topic("large", 1, on_victim=True)
            with testbed.load() as load:
                for cycle in run.cycles():
                    load.wait_for_acks()
                    ballast = mounts.path / "ballast"
                    _fill_disk(ballast)
                    if cycle % 3 == 2:
                        broker.stop()
                    else:
                        broker.kill()
                    _fill_disk(ballast)
                    broker.start()
                    _read_all(testbed)
                    # Recovery has released the rest of preallocated files.
                    _fill_disk(ballast)
                    _check_storage_error(broker)
                    testbed.wait_for_acks_of_others(load)
                    ballast.unlink()
                    load.wait_for_acks()
                    assert _produce_large_batch(broker) == ErrorCode.NONE
            run.verify(testbed, load, may_log=True)


def _fill_disk(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        for size in (MIB, 4096, 512):
            try:
                while True:
                    file.write(os.urandom(512) * (size // 512))
            except OSError as error:
                assert error.errno == errno.ENOSPC


def _check_storage_error(broker: Daemon) -> None:
    """Assert that a batch larger than a block fails with KAFKA_STORAGE_ERROR."""
    code = _produce_large_batch(broker)
    assert code == ErrorCode.KAFKA_STORAGE_ERROR, f"error code {code} for a full disk"


def _produce_large_batch(broker: Daemon) -> int:
    with BlockingWireClient(broker) as connection:
        return produce_error_code(connection, "large", bytes(a_batch(value=os.urandom(100_000))))


def _wait_until_acks_stop(load: Load, partitions: list[int]) -> int:
    """Wait until there are no new acks; return their number."""
    deadline = time.monotonic() + 20
    acked = -1
    while (now := load.acked_in(partitions)) != acked:
        assert time.monotonic() < deadline, f"still acks in {partitions}"
        acked = now
        time.sleep(1.0)
    return acked


def _read_all(testbed: Testbed) -> None:
    """Read everything with new consumers: reads work while writes fail."""
    read_everything(testbed.address, TOPIC, testbed.partitions, History())


@row("8", "fsync fails once", "failures", short=1, normal=20, full=100)
def fail_sync(run: Run) -> None:
    def fail(broker: FaultyDaemon, where: str) -> None:
        broker.fail("sync", where, errno.EIO, times=1)

    _fail_sync(run, fail)


@row("8c", "checkpoint beside a failing fsync", "failures", short=1, normal=20, full=100)
def fail_sync_beside_checkpoint(run: Run) -> None:
    """The error is reported once, to a checkpoint or to a Produce: neither may hide it."""
    configs = {"log.flush.offset.checkpoint.interval.ms": "5"}
    _fail_sync(run, FaultyDaemon.lose_writes, configs)


def _fail_sync(
    run: Run, fail: Callable[[FaultyDaemon, str], None], configs: Mapping[str, str] | None = None
) -> None:
    with run.testbed(configs or {}, kind=FaultyDaemon) as testbed:
        broker = testbed.victim
        assert isinstance(broker, FaultyDaemon)
        with testbed.load() as load:
            for _ in run.cycles():
                load.wait_for_acks()
                partition = run.random.choice(testbed.led_by_victim)
                fail(broker, f"/{TOPIC}-{partition}/")
                load.wait(lambda: broker.hits > 0, "the injected failure")
                # Wait for acks that were sent before the failure.
                others = [index for index in range(testbed.partitions) if index != partition]
                load.wait_for_acks(5, others)
                acked = _wait_until_acks_stop(load, [partition])
                load.wait_for_acks(5, others)
                assert load.acked_in([partition]) == acked, "acked after a failed fsync"
                log = f"{TOPIC}-{partition}"
                point = _recovery_points(broker)[log]
                time.sleep(0.1)
                assert _recovery_points(broker)[log] == point, "checkpoint after a failed fsync"
                assert broker.is_running, broker.log_tail()
                # The partition stays offline until the broker restarts.
                if run.random.random() < 0.5:
                    broker.kill()
                else:
                    broker.stop()
                broker.start()
            load.wait_for_acks()
        run.verify(testbed, load, may_log=True)


def _recovery_points(broker: Daemon) -> dict[str, int]:
    return read_json(broker.data / "recovery-point") or {}


@row("9", "writes fail, then reads", "failures", short=2, normal=40, full=200)
def fail_writes_and_reads(run: Run) -> None:
    with run.testbed(kind=FaultyDaemon) as testbed:
        broker = testbed.victim
        assert isinstance(broker, FaultyDaemon)
        with testbed.load() as load:
            for cycle in run.cycles():
                load.wait_for_acks()
                partition = run.random.choice(testbed.led_by_victim)
                where, times = f"/{TOPIC}-{partition}/", run.random.randint(1, 5)
                before = broker.hits
                if cycle % 2:
                    broker.fail("read", where, errno.EIO, times=times)
                    broker.fail("map", where, errno.EIO, times=times)
                    _read_all(testbed)
                    assert broker.hits > before, "no read failed"
                else:
                    broker.fail("write", where, errno.EIO, times=times)
                    load.wait(
                        lambda before=before: broker.hits > before,
                        "the injected failure",
                    )
                assert broker.is_running, broker.log_tail()
                broker.heal()
            load.wait_for_acks()
        run.verify(testbed, load, may_log=True)


@row("9m", "mapped file truncated while it is read", "failures", short=1, normal=20, full=100)
def fail_mapped_page(run: Run) -> None:
    """A page that cannot be read is an error of one Fetch; touching it would be a SIGBUS."""
    with run.testbed(segment_bytes="16384") as testbed:
        broker = testbed.victim
        with testbed.load() as load:
            for _ in run.cycles():
                load.wait_for_acks()
                partition = run.random.choice(testbed.led_by_victim)
                log = broker.data / f"{TOPIC}-{partition}"
                load.wait(lambda log=log: len(list(log.glob("*.log"))) >= 4, "segments")
                path = run.random.choice(sorted(log.glob("*.log"))[:-2])
                content, base = path.read_bytes(), int(path.stem)
                _fetch(broker, partition, base)  # so that it is mapped
                # Whole pages: what is behind the end in the last one reads as zeros.
                pages = -(-len(content) // mmap.PAGESIZE)
                os.truncate(path, run.random.randrange(pages) * mmap.PAGESIZE)
                codes = [_fetch(broker, partition, base + n) for n in (0, 5, 20)]
                assert any(code != ErrorCode.NONE for code in codes), "no read failed"
                load.wait_for_acks()
                assert broker.is_running, broker.log_tail()
                with path.open("r+b") as file:
                    file.write(content)
                assert _fetch(broker, partition, base) == ErrorCode.NONE
            load.wait_for_acks()
        run.verify(testbed, load, may_log=True)


def _fetch(broker: Daemon, partition: int, offset: int) -> int | None:
    """Fetch records; return the error code, or None if the connection was closed."""
    request = fetch_request(offset, topic=TOPIC, partition=partition)
    with BlockingWireClient(broker) as connection:
        try:
            (data,) = fetched_partitions(connection.request(request, 12))
        except (EOFError, ConnectionError):
            return None
        return data.error_code
