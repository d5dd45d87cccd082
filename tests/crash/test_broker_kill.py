"""kill -9 of a broker under load: what it acked is there, once and in order, however often.

`TEST_KILLS=100 pytest tests/crash/test_broker_kill.py -s` kills it more often.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter

from confluent_kafka.admin import AdminClient, NewTopic

from crash.load import Producing, Reading, Rows, producing, read_all
from daemon import Daemon

KILLS = int(os.environ.get("TEST_KILLS", "10"))
PRODUCERS = 3
PARTITIONS = 2
TOPIC = "orders"
# Segments and recovery points come and go often enough to be caught at it.
SETTINGS = ("--set", "log.flush.offset.checkpoint.interval.ms=150")
CONFIG = {"segment.bytes": "262144", "index.interval.bytes": "1024"}


def test_nothing_that_a_broker_acked_is_lost_or_doubled_by_kill_9(tmp_path):
    chance = random.Random(KILLS)
    with Daemon(tmp_path, *SETTINGS) as broker:
        create_topic(broker.address)
        reader = Reading(broker.address, TOPIC, PARTITIONS)
        try:
            with producing(broker.address, TOPIC, PARTITIONS, PRODUCERS) as producers:
                for _ in range(KILLS):
                    wait_for_acks(producers)
                    time.sleep(chance.uniform(0.0, 0.4))
                    broker.kill()
                    if chance.random() < 0.2:
                        kill_while_it_starts(broker, after=chance.uniform(0.05, 0.4))
                    broker.start()
        finally:
            reader.stop()
        found = read_all(broker.address, TOPIC, PARTITIONS)
        code = broker.stop()

    lost = sum(len(missing_of(producer, found)) for producer in producers)
    doubled = sum(count - 1 for rows in found.values() for count in times_found(rows).values())
    acked = sum(producer.ack_count for producer in producers)
    silence = max(producer.longest_silence for producer in producers)
    print(f"\n{KILLS} kills: {acked} acked, {lost} lost, {doubled} doubled;", end=" ")
    print(f"the longest time without an ack was {silence:.2f} s")
    assert [problem for producer in producers for problem in producer.problems] == []
    assert reader.problems == []
    assert (lost, doubled) == (0, 0)
    for partition, rows in found.items():
        assert [offset for offset, _, _ in rows] == list(range(len(rows))), "offsets have gaps"
        for producer in producers:
            order = [which for _, number, which in rows if number == producer.number]
            assert order == list(range(producer.sent[partition])), "the order is another one"
        # What somebody read on the way is what is there in the end.
        assert reader.rows[partition] == rows[: len(reader.rows[partition])]
    assert acked == sum(map(len, found.values()))
    assert acked > 10 * KILLS
    assert code == 0


def create_topic(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1, config=CONFIG)])[TOPIC].result(20)


def wait_for_acks(producers: list[Producing]) -> None:
    """Wait until each has been answered since: so each kill meets all of them at work."""
    before = {producer.number: producer.ack_count for producer in producers}
    deadline = time.monotonic() + 30
    while any(producer.ack_count <= before[producer.number] + 5 for producer in producers):
        problems = [problem for producer in producers for problem in producer.problems]
        assert not problems, problems
        assert time.monotonic() < deadline, "no acks in thirty seconds"
        time.sleep(0.002)


def kill_while_it_starts(broker: Daemon, after: float) -> None:
    process = broker.spawn()
    time.sleep(after)
    process.kill()
    process.wait()


def missing_of(producer: Producing, found: dict[int, Rows]) -> set[tuple[int, int]]:
    """Give what was acked and is not there, or not where the ack said."""
    return {
        (partition, which)
        for partition, acked in producer.acked.items()
        for which, offset in acked.items()
    } - {
        (partition, which)
        for partition, rows in found.items()
        for offset, number, which in rows
        if number == producer.number
        and producer.acked[partition].get(which, offset) in (offset, -1)
    }


def times_found(rows: Rows) -> Counter[tuple[int, int]]:
    return Counter((number, which) for _, number, which in rows)
