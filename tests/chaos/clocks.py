"""Row 14: jumps of the wall clock."""

from __future__ import annotations

import asyncio
import time

from chaos.matrix import row
from chaos.testbed import TOPIC, FaultyDaemon, Run
from harness.bombs import produce_error_code
from harness.load import LoopThread
from harness.logs import a_batch
from harness.wire import BlockingWireClient
from ottla.client import Consumer, GroupConfig
from ottla.protocol.errors import ErrorCode

HOUR, DAY = 3600, 86_400
#: The broker's clock: shift in seconds, whether it is frozen.
JUMPS = ((HOUR, False), (-DAY, False), (0, True), (0, False))


@row("14", "clock +1 h, -1 day, frozen", "jumps", short=4, normal=20, full=60)
def jump(run: Run) -> None:
    """Retention deletes nothing early, and group members keep their assignment."""
    configs = {
        "log.retention.check.interval.ms": "100",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.retention.check.interval.ms": "100",
    }
    with run.testbed(
        configs,
        kind=FaultyDaemon,
        retention_ms=str(2 * HOUR * 1000),
        message_timestamp_type="LogAppendTime",
    ) as testbed:
        broker = testbed.victim
        assert isinstance(broker, FaultyDaemon)
        testbed.create_topic("by-producers-time", 1, on_victim=True)
        with testbed.load() as load, _Member(testbed.address) as member:
            load.wait(lambda: member.records > 0, "the member reads")
            for cycle in run.cycles():
                shift, is_frozen = JUMPS[cycle % len(JUMPS)]
                broker.set_clock(shift, is_frozen=is_frozen)
                load.wait_for_acks()
                time.sleep(0.3)
                # A timestamp a day in the broker's future is invalid.
                with BlockingWireClient(broker) as connection:
                    batch = bytes(a_batch(time=int(time.time() * 1000)))
                    code = produce_error_code(connection, "by-producers-time", batch)
                expected = ErrorCode.INVALID_TIMESTAMP if shift < -HOUR else ErrorCode.NONE
                assert code == expected, f"{shift}: {code}"
            broker.set_clock(0)
            load.wait_for_acks()
            assert member.assignments == 1, (
                f"{member.assignments} assignments: the member was removed"
            )
            assert member.records > 0
        run.verify(testbed, load)


class _Member:
    """A group member that counts its assignments."""

    def __init__(self, address: str) -> None:
        self.assignments = 0
        self.records = 0
        self._loop_thread = LoopThread()
        self._stopping = False
        self._address = address

    async def _run(self) -> None:
        def assigned(_partitions: object) -> None:
            self.assignments += 1

        async with Consumer(
            self._address,
            TOPIC,
            group="undisturbed",
            on_assigned=assigned,
            group_config=GroupConfig(session_timeout=20.0, heartbeat_interval=0.5),
        ) as consumer:
            while not self._stopping:
                for records in (await consumer.getmany(timeout=0.1)).values():
                    self.records += len(records)

    def __enter__(self) -> _Member:
        self._work = asyncio.run_coroutine_threadsafe(self._run(), self._loop_thread.loop)
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._work.result(30)
        self._loop_thread.close()
