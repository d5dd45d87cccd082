"""The clients of the SDK that one user, or all, share, with a short cache of what lists need."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from ottla.client import (
    Admin,
    ClientError,
    ClusterDescription,
    Consumer,
    KafkaError,
    PartialError,
    Producer,
    ReplicaLogDir,
    SecurityConfig,
    TopicDescription,
    TopicPartition,
)

from .config import ConsoleConfig
from .samples import Samples

T = TypeVar("T")

# Ten browsers that show a list ask brokers once. What has many partitions is asked for less often,
# so that it takes less than a hundredth of a broker's time.
_CACHE_SECONDS = 2.0
_CACHE_SECONDS_PER_PARTITION = 0.001
# A request about more would keep a broker's event loop from others for milliseconds.
_PARTITIONS_PER_REQUEST = 500


@dataclass(eq=False, slots=True)
class _Cached:
    """A read, under way or done."""

    task: asyncio.Task[Any]
    expires: float = math.inf


class ClusterClient:
    """An admin client and a producer, with the credentials of a user."""

    SIZE_SERIES = "size"

    def __init__(self, config: ConsoleConfig, security: SecurityConfig | None) -> None:
        self.config = config
        self._client = config.client(security)
        self.admin = Admin(config.bootstrap, client=self._client)
        self._producer: Producer | None = None
        self._producer_lock = asyncio.Lock()
        self._cached: dict[str, _Cached] = {}
        self.samples = Samples()

    async def close(self) -> None:
        """Close all connections."""
        for one in self._cached.values():
            one.task.cancel()
        self._cached.clear()
        if self._producer is not None:
            await self._producer.close()
        await self.admin.close()

    async def producer(self) -> Producer:
        """Return the producer, started."""
        async with self._producer_lock:
            if self._producer is None:
                producer = Producer(self.config.bootstrap, client=self._client)
                await producer.start()
                self._producer = producer
            return self._producer

    @asynccontextmanager
    async def consumer(self, isolation: str = "read_uncommitted") -> AsyncIterator[Consumer]:
        """Return a consumer for one query."""
        async with Consumer(
            self.config.bootstrap,
            isolation=isolation,
            fetch=self.config.fetch,
            client=self._client,
        ) as consumer:
            yield consumer

    async def cached(
        self,
        key: str,
        read: Callable[[], Awaitable[T]],
        partitions_of: Callable[[T], int] = lambda _: 0,
    ) -> T:
        """Return what `read` returned a moment ago; concurrent callers share one.

        `partitions_of` returns how many partitions that was about.
        """
        found = self._cached.get(key)
        if found is None or time.monotonic() >= found.expires:
            self._drop_expired()
            found = self._cached[key] = _Cached(asyncio.ensure_future(read()))
            found.task.add_done_callback(lambda _: self._set_expiry(key, found, partitions_of))
        result: T = await asyncio.shield(found.task)
        return result

    def _set_expiry(self, key: str, found: _Cached, partitions_of: Callable[[Any], int]) -> None:
        if found.task.cancelled() or found.task.exception() is not None:
            if self._cached.get(key) is found:
                del self._cached[key]
            return
        more = partitions_of(found.task.result()) * _CACHE_SECONDS_PER_PARTITION
        found.expires = time.monotonic() + _CACHE_SECONDS + more

    def _drop_expired(self) -> None:
        now = time.monotonic()
        for key in [key for key, one in self._cached.items() if now >= one.expires]:
            del self._cached[key]

    def forget(self) -> None:
        """Drop what is cached: something was changed."""
        self._cached.clear()

    async def cluster(self) -> ClusterDescription:
        """Return the brokers."""
        return await self.cached("cluster", self.admin.describe_cluster)

    async def topics(self) -> list[TopicDescription]:
        """Return all topics, internal ones included."""
        return await self.cached(
            "topics",
            lambda: self.admin.list_topics(internal=True),
            lambda found: sum(len(one.partitions) for one in found),
        )

    async def replicas(self) -> Mapping[TopicPartition, list[ReplicaLogDir]] | None:
        """Return the replicas on the brokers' disks; None if brokers do not tell."""

        async def read() -> Mapping[TopicPartition, list[ReplicaLogDir]] | None:
            try:
                found = await self.admin.describe_log_dirs()
            except (KafkaError, ClientError):
                return None
            total = sum(one.size_bytes for dirs in found.values() for one in dirs)
            self.samples.add(self.SIZE_SERIES, total)
            return found

        return await self.cached("replicas", read, lambda found: len(found or ()))

    async def sizes(self) -> Mapping[TopicPartition, int] | None:
        """Return the bytes of all replicas of each partition; None if brokers do not tell."""
        found = await self.replicas()
        if found is None:
            return None
        return {tp: sum(one.size_bytes for one in dirs) for tp, dirs in found.items()}

    async def offsets(
        self, tps: Iterable[TopicPartition]
    ) -> dict[TopicPartition, tuple[int | None, int | None]]:
        """Return the first and the end offset of partitions; None where there is no leader."""
        wanted = list(tps)
        starts: dict[TopicPartition, int] = {}
        ends: dict[TopicPartition, int] = {}
        with suppress(KafkaError, ClientError):
            starts, ends = await asyncio.gather(
                _look_up(self.admin.beginning_offsets, wanted), self.end_offsets(wanted)
            )
        return {tp: (starts.get(tp), ends.get(tp)) for tp in wanted}

    async def end_offsets(self, tps: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the end offsets of those partitions that have a leader. Raises KafkaError."""
        return await _look_up(self.admin.end_offsets, tps)


async def _look_up(
    offsets_of: Callable[..., Awaitable[dict[TopicPartition, int]]], tps: Sequence[TopicPartition]
) -> dict[TopicPartition, int]:
    """Look up offsets, some partitions at a time; leave out those without a leader."""
    found: dict[TopicPartition, int] = {}
    for first in range(0, len(tps), _PARTITIONS_PER_REQUEST):
        try:
            found |= await offsets_of(*tps[first : first + _PARTITIONS_PER_REQUEST])
        except PartialError as error:
            found |= error.done
    return found
