"""Row 14: jumps of the wall clock."""

from __future__ import annotations

import asyncio
import time

from confluent_kafka import TopicPartition as ConfluentPartition

from chaos.matrix import row
from chaos.testbed import TOPIC, FaultyDaemon, Run, Testbed
from harness.bombs import produce_error_code
from harness.load import LoopThread, librdkafka_consumer
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


@row("14r", "clock past retention and back", "jumps", short=2, normal=12, full=60)
def jump_past_retention(run: Run) -> None:
    """Only records from before the last jump ahead are deleted, oldest first, and none twice."""
    configs = {"log.retention.check.interval.ms": "50"}
    config = {"retention_ms": str(2 * HOUR * 1000), "message_timestamp_type": "LogAppendTime"}
    with run.testbed(configs, kind=FaultyDaemon, segment_bytes="16384", **config) as testbed:
        broker = testbed.victim
        assert isinstance(broker, FaultyDaemon)
        with testbed.load() as load:
            victims = testbed.led_by_victim
            starts, ends = dict.fromkeys(victims, 0), dict.fromkeys(victims, 0)
            for cycle in run.cycles():
                load.wait_for_acks(60)  # more than a segment
                # Further each time: records of the last jump are in the future after it.
                is_ahead = cycle % 2 == 0
                broker.set_clock(3 * HOUR * (cycle // 2 + 1) if is_ahead else 0)
                if is_ahead:
                    deadline = time.monotonic() + 30
                    while any(_offsets(testbed)[n][0] <= starts[n] for n in victims):
                        assert time.monotonic() < deadline, "retention deletes nothing"
                    found = _offsets(testbed)
                    starts, ends = ({n: found[n][side] for n in victims} for side in (0, 1))
                load.wait_for_acks()
            broker.set_clock(0)
            load.wait_for_acks(20)
        starts = {number: low for number, (low, _) in _offsets(testbed).items()}
        for number in victims:
            assert starts[number] <= ends[number], f"new records of partition {number} deleted"
        for number in testbed.led_by_others:
            assert starts[number] == 0, f"records of partition {number} deleted"
        run.verify(testbed, load, deleted=_Before(starts))


def _offsets(testbed: Testbed) -> dict[int, tuple[int, int]]:
    """Return the first and the next offset of each partition."""
    consumer = librdkafka_consumer(testbed.address, TOPIC, testbed.partitions)
    try:
        return {
            number: consumer.get_watermark_offsets(ConfluentPartition(TOPIC, number), timeout=30)
            for number in range(testbed.partitions)
        }
    finally:
        consumer.close()


class _Before:
    """Contains the positions before the first offset of each partition."""

    def __init__(self, starts: dict[int, int]) -> None:
        self._starts = starts

    def __contains__(self, position: tuple[int, int]) -> bool:
        return position[1] < self._starts[position[0]]


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
