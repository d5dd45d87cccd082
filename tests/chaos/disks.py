"""Rows 7 to 9: full disks and I/O errors."""

from __future__ import annotations

import errno
import os
import time
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
from harness.wire import BlockingWireClient
from ottla.protocol.errors import ErrorCode


@row("7", "disk full", "fills", short=2, normal=15, full=50)
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


@row("8", "fsync fails once", "failures", short=2, normal=20, full=100)
def fail_sync(run: Run) -> None:
    with run.testbed(kind=FaultyDaemon) as testbed:
        broker = testbed.victim
        assert isinstance(broker, FaultyDaemon)
        with testbed.load() as load:
            for _ in run.cycles():
                load.wait_for_acks()
                partition = run.random.choice(testbed.led_by_victim)
                broker.fail("sync", f"/{TOPIC}-{partition}/", errno.EIO, times=1)
                load.wait(lambda: broker.hits > 0, "the injected failure")
                # Wait for acks that were sent before the failure.
                others = [index for index in range(testbed.partitions) if index != partition]
                load.wait_for_acks(5, others)
                acked = _wait_until_acks_stop(load, [partition])
                load.wait_for_acks(5, others)
                assert load.acked_in([partition]) == acked, "acked after a failed fsync"
                assert broker.is_running, broker.log_tail()
                # The partition stays offline until the broker restarts.
                if run.random.random() < 0.5:
                    broker.kill()
                else:
                    broker.stop()
                broker.start()
            load.wait_for_acks()
        run.verify(testbed, load, may_log=True)


@row("9", "writes fail, then reads", "failures", short=4, normal=40, full=200)
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
