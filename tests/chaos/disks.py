"""Rows 7 to 9: disks that are full, or fail."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from chaos.matrix import row
from chaos.stage import TOPIC, Frail, Run, Stage
from crash.mounts import private_mounts
from harness.daemon import Daemon
from harness.history import History
from harness.load import Load, read_everything
from harness.logs import a_batch
from harness.wire import BlockingWireClient
from hostile.attack import MIB
from hostile.bombs import produce_error_code
from ottla.protocol.errors import ErrorCode


@row("7", "disk full", "fills", short=2, normal=15, full=50)
def fill(run: Run) -> None:
    run.folder.mkdir(parents=True, exist_ok=True)
    with private_mounts(run.folder) as mounts:
        mounts.make_ext4(64 * MIB)
        with run.stage(data=mounts.path / "data") as stage:
            broker = stage.victim
            stage.create_topic("by-hand", 1, on_victim=True)
            with stage.load() as load:
                for _ in run.cycles():
                    load.wait_for_acks()
                    ballast = mounts.path / "ballast"
                    _take_all_room(ballast)
                    _wait_until_refused(broker)
                    _wait_until_silent(load, stage.owned)
                    stage.others_serve(load)
                    assert broker.is_running, broker.last_words()
                    _read_all(stage)
                    ballast.unlink()
                    load.wait_for_acks()
                    assert _produce_by_hand(broker) == ErrorCode.NONE
            run.judge(stage, load, may_log=True)


def _take_all_room(path: Path) -> None:
    with path.open("ab", buffering=0) as file:
        for size in (MIB, 4096, 512):
            try:
                while True:
                    file.write(os.urandom(512) * (size // 512))
            except OSError as error:
                assert error.errno == errno.ENOSPC


def _wait_until_refused(broker: Daemon) -> None:
    """What is too large for whatever room there is in the last block is refused, with one code."""
    code = _produce_by_hand(broker)
    assert code == ErrorCode.KAFKA_STORAGE_ERROR, f"a full disk is told as {code}"


def _produce_by_hand(broker: Daemon) -> int:
    with BlockingWireClient(broker) as connection:
        return produce_error_code(connection, "by-hand", bytes(a_batch(value=os.urandom(100_000))))


def _wait_until_silent(load: Load, partitions: list[int]) -> int:
    """Wait until nothing is acked any more, and give how much was."""
    deadline = time.monotonic() + 20
    acked = -1
    while (now := load.acked_in(partitions)) != acked:
        assert time.monotonic() < deadline, f"acks go on in {partitions}"
        acked = now
        time.sleep(1.0)
    return acked


def _read_all(stage: Stage) -> None:
    """Read everything with clients that are new: that goes on, whatever becomes of writes."""
    read_everything(stage.address, TOPIC, stage.partitions, History())


@row("8", "fsync fails once", "failures", short=2, normal=20, full=100)
def fail_sync(run: Run) -> None:
    with run.stage(kind=Frail) as stage:
        broker = stage.victim
        assert isinstance(broker, Frail)
        with stage.load() as load:
            for _ in run.cycles():
                load.wait_for_acks()
                partition = run.chance.choice(stage.owned)
                broker.fail("sync", f"/{TOPIC}-{partition}/", errno.EIO, times=1)
                load.wait(lambda: broker.hits > 0, "the failure that was ordered")
                # Acks that left before it are on their way; those of others come behind them.
                others = [number for number in range(stage.partitions) if number != partition]
                load.wait_for_acks(5, others)
                acked = _wait_until_silent(load, [partition])
                load.wait_for_acks(5, others)
                assert load.acked_in([partition]) == acked, "acked after a sync that failed"
                assert broker.is_running, broker.last_words()
                # It stays so until somebody looks after it.
                if run.chance.random() < 0.5:
                    broker.kill()
                else:
                    broker.stop()
                broker.start()
            load.wait_for_acks()
        run.judge(stage, load, may_log=True)


@row("9", "writes fail, then reads", "failures", short=4, normal=40, full=200)
def fail_writes_and_reads(run: Run) -> None:
    with run.stage(kind=Frail) as stage:
        broker = stage.victim
        assert isinstance(broker, Frail)
        with stage.load() as load:
            for cycle in run.cycles():
                load.wait_for_acks()
                partition = run.chance.choice(stage.owned)
                where, times = f"/{TOPIC}-{partition}/", run.chance.randint(1, 5)
                before = broker.hits
                if cycle % 2:
                    broker.fail("read", where, errno.EIO, times=times)
                    broker.fail("map", where, errno.EIO, times=times)
                    _read_all(stage)
                    assert broker.hits > before, "nobody noticed"
                else:
                    broker.fail("write", where, errno.EIO, times=times)
                    load.wait(
                        lambda before=before: broker.hits > before,
                        "the failure that was ordered",
                    )
                assert broker.is_running, broker.last_words()
                broker.heal()
            load.wait_for_acks()
        run.judge(stage, load, may_log=True)
