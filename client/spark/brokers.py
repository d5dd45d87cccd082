"""The way to the brokers, for drivers and for tasks.

Spark calls a source from one thread at a time, and waits: so the asynchronous client runs on a loop
that turns only while somebody waits for it, without a thread of its own. What was asked for before
the caller went away is answered meanwhile by the broker, and read when he comes back.

Spark uses its Python workers again, for many tasks each. The way is kept from one to the next, with
its connections and what is known of leaders: of a short task, a greeting would be half.
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

_KEPT = 4
# A broker that has not heard of a topic yet is believed after so long.
_DOUBT_SECONDS = 1.0


class Brokers:
    """Asks brokers, and waits for what they say."""

    def __init__(self, link: ConnectionOptions) -> None:
        self.cluster = Cluster(link.bootstrap, link.client)
        self.process = os.getpid()
        self._loop = asyncio.new_event_loop()

    def wait_for(self, work: Coroutine[Any, Any, T] | asyncio.Task[T]) -> T:
        """Let the loop turn until something is done."""
        return self._loop.run_until_complete(work)

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin something: a request is sent, and its answer is not waited for."""
        task = self._loop.create_task(work)
        self._loop.run_until_complete(asyncio.sleep(0))
        return task

    def close(self) -> None:
        """Close all connections, and end what is not done."""
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

    # What a driver asks.

    def partitions_of(
        self, topics: TopicSelection, *, may_be_missing: bool = False
    ) -> set[TopicPartition]:
        """Give all partitions of topics. Raises OptionError for what is not there."""
        return self.wait_for(self._partitions_of(topics, may_be_missing=may_be_missing))

    async def _partitions_of(
        self, topics: TopicSelection, *, may_be_missing: bool
    ) -> set[TopicPartition]:
        names = topics.names or sorted({place.topic for place in topics.places}) or None
        doubted_until = time.monotonic() + _DOUBT_SECONDS

        async def attempt() -> dict[str, TopicInfo]:
            known = (await self.cluster.refresh(names)).topics
            found = {name: known[name] for name in names or known}
            for name, info in list(found.items()):
                if info.error is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                    if time.monotonic() < doubted_until:
                        raise RefreshError(info.error, f"topic {name!r} does not exist")
                    del found[name]
                elif error := error_of(info.error, f"topic {name!r}: {info.error.message}"):
                    raise error
            return found

        found = await self.cluster.retry(attempt, what="looking up topics")
        if topics.pattern is not None:
            pattern = re.compile(topics.pattern)
            found = {
                name: info
                for name, info in found.items()
                if not info.is_internal and pattern.fullmatch(name)
            }
        places = {TopicPartition(name, one) for name in found for one in _numbers(found[name])}
        if not may_be_missing:
            _check_there(topics, found, places)
        return places & set(topics.places) if topics.places else places

    def look_up(
        self, times: Mapping[TopicPartition, int], *, is_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """Give offsets of times, EARLIEST or LATEST; -1 where nothing is as young."""

        async def attempt() -> dict[TopicPartition, int]:
            found = values_or_raise(
                await list_offsets(self.cluster, times, read_committed=is_committed)
            )
            return {place: one.offset for place, one in found.items()}

        return self.wait_for(self.cluster.retry(attempt, what="looking up offsets"))

    def commit(self, group: str, offsets: Mapping[TopicPartition, int], *, timeout: float) -> None:
        """Commit for a group that has no members. Raises KafkaError, TimeoutError."""
        wanted = {place: OffsetAndMetadata(offset) for place, offset in offsets.items()}

        async def attempt() -> None:
            values_or_raise(await commit_offsets(self.cluster, group, wanted))

        async def in_time() -> None:
            async with asyncio.timeout(timeout):
                await self.cluster.retry(attempt, what=f"committing for group {group!r}")

        self.wait_for(in_time())


def _numbers(info: TopicInfo) -> range:
    return range(len(info.partitions))


def _check_there(
    topics: TopicSelection, found: Collection[str], places: Collection[TopicPartition]
) -> None:
    """Raise OptionError for what was asked for by name, and is not there."""
    wanted = {*topics.names, *(place.topic for place in topics.places)}
    if missing := sorted(wanted.difference(found)):
        raise OptionError(f"there is no topic {', '.join(missing)}")
    if absent := sorted(set(topics.places).difference(places)):
        raise OptionError(f"there is no partition {', '.join(map(str, absent))}")


_idle: dict[ConnectionOptions, Brokers] = {}


@contextmanager
def brokers(link: ConnectionOptions) -> Iterator[Brokers]:
    """Give a way to the brokers, one that was used before if there is one."""
    found = _idle.pop(link, None)
    if found is None or found.process != os.getpid():
        found = Brokers(link)
    try:
        yield found
    except BaseException:
        # Something may still be under way on it.
        found.close()
        raise
    _idle[link] = found
    while len(_idle) > _KEPT:
        _idle.pop(next(iter(_idle))).close()


def close_idle() -> None:
    """Close what is kept; the next who asks gets a new way."""
    while _idle:
        _idle.popitem()[1].close()


def is_unknown(error: Exception) -> bool:
    """Whether a broker does not know of a partition, for now or for good."""
    return isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
