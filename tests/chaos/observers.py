"""Observers of a replicated cluster: clients that check, all the time, what never goes back.

Both connect to the brokers themselves, and not through links that faults cut.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, TopicPartition

from harness.load import LIBRDKAFKA
from harness.wire import BlockingWireClient
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic

_TIMEOUT_SECONDS = 1.0
_PAUSE_SECONDS = 0.1
_END_SECONDS = 15.0
_LATEST = -1
_ERRORS = (OSError, EOFError, ValueError)


class Observer:
    """Something that is done again and again in a thread; what it finds is in `anomalies`."""

    def __init__(self) -> None:
        self.anomalies: list[str] = []
        #: Observations.
        self.count = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=type(self).__name__, daemon=True)

    def _run(self) -> None:
        try:
            while not self._stopping.wait(_PAUSE_SECONDS):
                self.observe()
        except Exception as error:  # noqa: BLE001  # reported with the anomalies
            self.anomalies.append(f"{self._thread.name} ended: {error!r}")
        finally:
            self.close()

    def observe(self) -> None:
        """Look once."""
        raise NotImplementedError

    def close(self) -> None:
        """Close connections."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._stopping.set()
        # A commit without a coordinator waits for one.
        self._thread.join(_END_SECONDS)


class HighWatermarkReader(Observer):
    """Asks all brokers for high watermarks, in the latest leader epoch of which any of them knows.

    A broker that answers leads in that epoch; it must not have less than was seen before.
    """

    def __init__(self, addresses: Sequence[str], topic: str) -> None:
        super().__init__()
        self._addresses = addresses
        self._topic = topic
        self._connections: dict[str, BlockingWireClient] = {}
        self._epochs: dict[int, int] = {}
        self._highest: dict[int, tuple[int, int]] = {}

    def observe(self) -> None:
        for address in self._addresses:
            try:
                self._ask(address)
            except _ERRORS:
                connection = self._connections.pop(address, None)
                if connection is not None:
                    connection.close()

    def _ask(self, address: str) -> None:
        connection = self._connections.get(address)
        if connection is None:
            connection = BlockingWireClient(address, _TIMEOUT_SECONDS)
            self._connections[address] = connection
        topic = MetadataRequestTopic(name=self._topic)
        request = MetadataRequest(topics=[topic], allow_auto_topic_creation=False)
        (described,) = connection.request(request, 8).topics
        for one in described.partitions:
            index = one.partition_index
            self._epochs[index] = max(one.leader_epoch, self._epochs.get(index, 0))
        asked = [
            ListOffsetsPartition(
                partition_index=index, current_leader_epoch=epoch, timestamp=_LATEST
            )
            for index, epoch in self._epochs.items()
        ]
        if not asked:
            return
        offsets = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=0,
            topics=[ListOffsetsTopic(name=self._topic, partitions=asked)],
        )
        (answered,) = connection.request(offsets, 5).topics
        for one in answered.partitions:
            if one.error_code == 0:
                self._add(address, one.partition_index, one.offset)

    def _add(self, address: str, index: int, offset: int) -> None:
        self.count += 1
        epoch, highest = self._highest.get(index, (-1, -1))
        if offset < highest:
            self.anomalies.append(
                f"high-watermark-back: {address} has {offset} for partition {index} in epoch"
                f" {self._epochs[index]}, after {highest} in epoch {epoch}"
            )
        self._highest[index] = (self._epochs[index], max(offset, highest))

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


class OffsetCommitter(Observer):
    """Commits rising offsets for a group, and reads them again.

    What is committed is the last offset that was acknowledged, or one whose commit has an unknown
    outcome: such a request may still arrive.
    """

    def __init__(self, addresses: Sequence[str], topic: str) -> None:
        super().__init__()
        self._tp = TopicPartition(topic, 0)
        self._consumer: Any = None
        self._config = LIBRDKAFKA | {
            "bootstrap.servers": ",".join(addresses),
            "group.id": f"committer-{topic}",
            "enable.auto.commit": False,
            "socket.timeout.ms": 3000,
        }
        self._next = 1
        self._acked = 0
        self._unknown: set[int] = set()

    def observe(self) -> None:
        if self._consumer is None:
            self._consumer = Consumer(self._config)
        offset, self._next = self._next, self._next + 1
        self._unknown.add(offset)
        try:
            tp = TopicPartition(self._tp.topic, self._tp.partition, offset)
            (result,) = self._consumer.commit(offsets=[tp], asynchronous=False)
            if result.error is None:
                self._acked = max(self._acked, offset)
                self._unknown.discard(offset)
        except KafkaException:
            pass
        acked = self._acked
        try:
            (found,) = self._consumer.committed([self._tp], timeout=3.0)
        except KafkaException:
            return
        if found.error is not None:
            return
        self.count += 1
        if max(found.offset, 0) != acked and found.offset not in self._unknown:
            self.anomalies.append(
                f"offset-back: committed is {found.offset}, acknowledged was {acked}"
            )

    def close(self) -> None:
        if self._consumer is not None:
            self._consumer.close()


def when(condition: Callable[[], bool], seconds: float, pause: float = 0.05) -> bool:
    """Wait until a condition holds; False if it does not in time. Errors count as false."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with suppress(OSError):
            if condition():
                return True
        time.sleep(pause)
    return False
