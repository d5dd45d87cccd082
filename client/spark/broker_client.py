"""Access to the brokers for Spark drivers and tasks.

Spark calls a source from one thread at a time, and blocks: so the async client runs on an event
loop that turns only while a caller waits, without a thread of its own. A request that was sent
before the caller returned is answered by the broker meanwhile, and the response is read when the
caller waits again.

Spark reuses its Python workers for many tasks. Clients are kept from one task to the next, with
their connections and metadata: the handshake would take half of a short task.
"""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Collection, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

from ..cluster import Cluster, TopicInfo
from ..errors import ErrorCode, KafkaError, RefreshError, error_of
from ..offsets import commit_offsets, list_offsets, values_or_raise
from ..types import OffsetAndMetadata, TopicPartition
from .errors import OptionError
from .options import ConnectionOptions, TopicSelection

T = TypeVar("T")

_MAX_IDLE_CLIENTS = 4
# How long to retry a topic that is unknown: the broker may not have its metadata yet.
_UNKNOWN_TOPIC_SECONDS = 1.0


class BrokerClient:
    """A blocking client."""

    def __init__(self, connection: ConnectionOptions) -> None:
        self.cluster = Cluster(connection.bootstrap, connection.client)
        self.process = os.getpid()
        self._loop = asyncio.new_event_loop()

    def wait_for(self, work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
        """Run the event loop until `work` is done; return its result."""
        return self._loop.run_until_complete(work)

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start `work`: its request is sent, and its response not waited for."""
        task = self._loop.create_task(work)
        self._loop.run_until_complete(asyncio.sleep(0))
        return task

    def close(self) -> None:
        """Cancel what is not done, and close all connections."""
        if self.process != os.getpid() or self._loop.is_closed():
            return

        async def end() -> None:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self.cluster.close()

        try:
            self._loop.run_until_complete(end())
        finally:
            self._loop.close()

    # Requests of the driver.

    def partitions_of(
        self, selection: TopicSelection, *, may_be_missing: bool = False
    ) -> set[TopicPartition]:
        """Return all partitions of the selected topics. Raises OptionError for unknown ones."""
        return self.wait_for(self._partitions_of(selection, may_be_missing=may_be_missing))

    async def _partitions_of(
        self, selection: TopicSelection, *, may_be_missing: bool
    ) -> set[TopicPartition]:
        names = selection.names or sorted({tp.topic for tp in selection.partitions}) or None
        deadline = time.monotonic() + _UNKNOWN_TOPIC_SECONDS

        async def attempt() -> dict[str, TopicInfo]:
            known = (await self.cluster.refresh(names)).topics
            topics = {name: known[name] for name in names or known}
            for name, info in list(topics.items()):
                if info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    if time.monotonic() < deadline:
                        raise RefreshError(info.error, f"Unknown topic {name!r}")
                    del topics[name]
                elif error := error_of(info.error, f"topic {name!r}: {info.error.message}"):
                    raise error
            return topics

        topics = await self.cluster.retry(attempt, what="looking up topics")
        if selection.pattern is not None:
            pattern = re.compile(selection.pattern)
            topics = {
                name: info
                for name, info in topics.items()
                if not info.is_internal and pattern.fullmatch(name)
            }
        tps = {
            TopicPartition(name, index)
            for name, info in topics.items()
            for index in range(len(info.partitions))
        }
        if not may_be_missing:
            _check_exist(selection, topics, tps)
        return tps & set(selection.partitions) if selection.partitions else tps

    def look_up(
        self, timestamps: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """Return offsets by timestamp, EARLIEST or LATEST; -1 if no record is as recent."""

        async def attempt() -> dict[TopicPartition, int]:
            found = values_or_raise(
                await list_offsets(self.cluster, timestamps, read_committed=read_committed)
            )
            return {tp: one.offset for tp, one in found.items()}

        return self.wait_for(self.cluster.retry(attempt, what="looking up offsets"))

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, timeout: float) -> None:
        """Commit for a group that has no members. Raises KafkaError, TimeoutError."""
        commits = {tp: OffsetAndMetadata(offset) for tp, offset in offsets.items()}

        async def attempt() -> None:
            values_or_raise(await commit_offsets(self.cluster, group, commits))

        async def in_time() -> None:
            async with asyncio.timeout(timeout):
                await self.cluster.retry(attempt, what=f"committing for group {group!r}")

        self.wait_for(in_time())


def _check_exist(
    selection: TopicSelection, topics: Collection[str], tps: Collection[TopicPartition]
) -> None:
    """Raise OptionError for topics and partitions that are selected by name and do not exist."""
    selected = {*selection.names, *(tp.topic for tp in selection.partitions)}
    if missing := sorted(selected.difference(topics)):
        raise OptionError(f"Unknown topic {', '.join(missing)}")
    if absent := sorted(set(selection.partitions).difference(tps)):
        raise OptionError(f"Unknown partition {', '.join(map(str, absent))}")


_idle: dict[ConnectionOptions, BrokerClient] = {}


@contextmanager
def broker_client(connection: ConnectionOptions) -> Iterator[BrokerClient]:
    """Lend a client: an idle one of this process if there is one, else a new one."""
    client = _idle.pop(connection, None)
    if client is None or client.process != os.getpid():
        client = BrokerClient(connection)
    try:
        yield client
    except BaseException:
        # Requests may be in flight.
        client.close()
        raise
    if (other := _idle.pop(connection, None)) is not None:
        other.close()  # two were lent at a time
    _idle[connection] = client
    while len(_idle) > _MAX_IDLE_CLIENTS:
        _idle.pop(next(iter(_idle))).close()


def is_unknown_partition(error: Exception) -> bool:
    """Whether the broker does not know a partition, for now or for good."""
    return isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
