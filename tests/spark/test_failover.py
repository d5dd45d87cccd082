"""A streaming query with a checkpoint, on replicated brokers that are killed and stopped."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from harness.daemon import Daemon
from harness.etcd import EtcdCluster, StoreCluster
from harness.replicas import isr_sizes
from harness.waiting import wait_until
from ottla.client.blocking import Admin, Producer

PARTITIONS = 3
PATIENCE_SECONDS = 300
CONFIGS = (
    *("--set", "broker.session.timeout.ms=2000", "--set", "controller.wait.ms=1000"),
    *("--set", "replica.lag.time.max.ms=1500"),
)


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreCluster]:
    folder = tmp_path_factory.mktemp("replicated")
    with (
        EtcdCluster(folder / "etcd") as etcd,
        StoreCluster(folder / "brokers", etcd.url, 3, *CONFIGS) as started,
    ):
        with Admin(started.bootstrap) as admin:
            wait_until(lambda: len(admin.describe_cluster().brokers) == 3, "three brokers")
        yield started


class Feed:
    """Sends numbers until it is stopped. Each is acknowledged once, or `stop` raises."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self.count = 0
        self._bootstrap = bootstrap
        self._topic = topic
        self._errors: list[BaseException] = []
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> int:
        """Wait until all is acknowledged; return how many."""
        self._stopping.set()
        self._thread.join()
        assert not self._errors
        return self.count

    def _run(self) -> None:
        try:
            with Producer(self._bootstrap) as producer:
                while not self._stopping.wait(0.02):
                    producer.send_many(
                        self._topic, [b"%d" % (self.count + number) for number in range(20)]
                    )
                    self.count += 20
        except Exception as error:  # noqa: BLE001  # reported by `stop`
            self._errors.append(error)


def leader_of(brokers: StoreCluster, topic: str) -> Daemon:
    address = next(broker.address for broker in brokers if broker.is_running)
    with Admin(address) as admin:
        leader = admin.describe_topics(topic)[topic].partitions[0].leader
        assert leader is not None
        return brokers[leader]


def test_each_row_once_through_failovers_and_a_restart_of_the_query(
    stream: Callable[..., Any],
    brokers: StoreCluster,
    make_topic: Callable[..., str],
    rows_of: Callable[..., list[tuple[Any, ...]]],
    tmp_path: Path,
) -> None:
    topic = make_topic(PARTITIONS)
    frame = stream(subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="500").load()
    feed = Feed(brokers.bootstrap, topic)

    def start() -> Any:
        return (
            frame.writeStream.format("parquet")
            .option("path", str(tmp_path / "out"))
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(processingTime="0 seconds")
            .start()
        )

    def read_on(query: Any, rows: int) -> None:
        """Wait until the query has read some more."""
        seen = query.lastProgress.batchId if query.lastProgress else -1
        deadline = time.monotonic() + PATIENCE_SECONDS
        read = 0
        while read < rows:
            assert query.isActive, str(query.exception())
            assert time.monotonic() < deadline, query.lastProgress
            read = sum(one.numInputRows for one in query.recentProgress if one.batchId > seen)
            time.sleep(0.05)

    query = start()
    try:
        read_on(query, 100)
        for end in (Daemon.kill, Daemon.stop):
            leader = leader_of(brokers, topic)
            end(leader)
            if end is Daemon.kill:
                # The query goes on from its checkpoint while the leader is not replaced yet.
                query.stop()
                query = start()
            read_on(query, 200)
            leader.start()
            address = leader.address
            wait_until(lambda at=address: isr_sizes(at, topic) == [3] * PARTITIONS, "in sync")
        total = feed.stop()
        read: list[tuple[Any, ...]] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(read) < total:
            assert time.monotonic() < deadline
            query.processAllAvailable()
            read = rows_of("value")
    finally:
        feed.stop()
        query.stop()

    assert sorted(int(value) for (value,) in read) == list(range(total))
