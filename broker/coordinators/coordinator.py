"""A coordinator: the shards that this broker leads, by partition of the coordinator's topic.

The partition of a key (a group or transactional id) follows from its hash, and the partition's
leader is the key's coordinator. A shard is loaded from its partition's log before its keys are
served; until then they get COORDINATOR_LOAD_IN_PROGRESS. Each shard is loaded and unloaded by
itself.
"""

from __future__ import annotations

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from ottla.coord.metadata_image import Topic
from ottla.coord.placement import coordinator_partition
from ottla.protocol.errors import ErrorCode

from ..requests.errors import EXPECTED_ERRORS
from .shard_runtime import Event, S, ShardRuntime

if TYPE_CHECKING:
    from ..broker import Broker
    from ..partitions.partition import Partition

logger = logging.getLogger(__name__)

R = TypeVar("R")


class Coordinator(ABC, Generic[S]):
    """The keys that this broker coordinates."""

    #: The topic that holds the state of the coordinators.
    topic_name: ClassVar[str]

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: The shards that serve requests, by partition.
        self.shards: dict[int, ShardRuntime[S]] = {}
        self._loading: dict[int, ShardRuntime[S]] = {}
        # Whether `load` has not completed yet.
        self._is_starting = True
        self._is_stopped = False

    @abstractmethod
    def _new_runtime(self, partition: Partition) -> ShardRuntime[S]:
        """Return a runtime with an empty shard."""

    @abstractmethod
    def _planned_topic(self) -> tuple[int, Mapping[str, str]]:
        """Return the number of partitions of the topic, and its configs."""

    def _shard_loaded(self, runtime: ShardRuntime[S]) -> None:
        """Handle a shard that has just been loaded."""

    # Shards.

    @property
    def is_loading(self) -> bool:
        """Whether there may be keys that are not loaded yet."""
        return self._is_starting or bool(self._loading)

    async def load(self) -> None:
        """Load all shards that this broker leads, one after another."""
        for index in list(self._led_partitions()):
            if self._is_stopped:
                return
            await self.load_shard(index)
        self._is_starting = self._is_stopped

    async def load_shard(self, index: int) -> None:
        """Load the shard of a partition, unless it is loaded.

        If the log cannot be read, the keys of this shard get COORDINATOR_NOT_AVAILABLE.
        """
        partition = self._led_partitions().get(index)
        if partition is None or index in self.shards or index in self._loading:
            return
        runtime = self._loading[index] = self._new_runtime(partition)
        try:
            await runtime.load()
        except EXPECTED_ERRORS:
            logger.exception(
                "%r cannot be read: its %s are not available", partition, runtime.shard.kind
            )
            return
        finally:
            if self._loading.get(index) is runtime:
                del self._loading[index]
        if runtime.is_closed:
            return
        self.shards[index] = runtime
        self._shard_loaded(runtime)

    def unload_shard(self, index: int) -> None:
        """Unload the shard of a partition. Waiting requests get NOT_COORDINATOR."""
        for runtimes in (self.shards, self._loading):
            runtime = runtimes.pop(index, None)
            if runtime is not None:
                runtime.unload()

    def refuse_waiting(self) -> None:
        """Answer all waiting requests with COORDINATOR_NOT_AVAILABLE: the broker is stopping."""
        for runtime in self.shards.values():
            runtime.run(runtime.shard.refuse_waiting(ErrorCode.COORDINATOR_NOT_AVAILABLE))

    def stop(self) -> None:
        """Stop loading, and stop all timers."""
        self._is_stopped = True
        for runtime in self._runtimes():
            runtime.close()

    def size_bytes(self) -> int:
        """Return the estimated memory of all shards."""
        return sum(runtime.shard.size_bytes for runtime in self._runtimes())

    def _runtimes(self) -> list[ShardRuntime[S]]:
        return [*self.shards.values(), *self._loading.values()]

    # Routing.

    def coordinator_of(self, key: str) -> int:
        """Return the broker that coordinates a key.

        -1 while the topic does not exist, or if another broker may have taken over from this one.
        """
        topic = self._topic
        if topic is None:
            return -1
        index = coordinator_partition(key, len(topic.replicas))
        runtime = self.shards.get(index)
        if runtime is not None and not self._broker.may_lead(runtime.partition):
            return -1
        return self._broker.topics.image.leader_of(topic, index)

    def partition_index_of(self, key: str) -> int:
        """Return the partition of a key; -1 while the topic does not exist."""
        topic = self._topic
        return -1 if topic is None else coordinator_partition(key, len(topic.replicas))

    def shard_of(self, key: str) -> ShardRuntime[S] | None:
        """Return the shard that serves a key, if it is here and loaded."""
        return self.shards.get(self.partition_index_of(key))

    def check(self, key: str) -> ErrorCode:
        """Return NONE if a key is served here, else the error for its requests."""
        topic = self._topic
        if topic is None:
            return ErrorCode.COORDINATOR_NOT_AVAILABLE
        index = coordinator_partition(key, len(topic.replicas))
        runtime = self.shards.get(index)
        if runtime is not None and self._broker.may_lead(runtime.partition):
            return ErrorCode.NONE
        if runtime is not None or not self._broker.topics.leads(topic, index):
            return ErrorCode.NOT_COORDINATOR
        if self._is_starting or index in self._loading:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return ErrorCode.COORDINATOR_NOT_AVAILABLE  # Its log could not be opened or read.

    def submit(
        self, key: str, event: Event[S, R], error_response: Callable[[ErrorCode], R]
    ) -> R | asyncio.Future[R]:
        """Handle a request in the shard of its key; return its response, or a future of it."""
        code = self.check(key)
        if code is not ErrorCode.NONE:
            return error_response(code)
        runtime = self.shard_of(key)
        assert runtime is not None
        return runtime.submit(event)

    # Topics.

    @property
    def has_topic(self) -> bool:
        """Whether the coordinator's topic exists."""
        return self._topic is not None

    @property
    def _topic(self) -> Topic | None:
        return self._broker.topics.image.topics.get(self.topic_name)

    def _led_partitions(self) -> Mapping[int, Partition | None]:
        topic = self._topic
        return {} if topic is None else self._broker.topics.led_partitions(topic)

    async def ensure_topic(self) -> None:
        """Create the topic if it does not exist. Raises what creating a topic raises."""
        if self.has_topic:
            return
        controller = self._broker.controller
        partition_count, configs = self._planned_topic()
        topic = controller.plan_internal_topic(self.topic_name, partition_count, configs)
        (error,) = await controller.create_topics([topic])
        if error is not None and not self.has_topic:
            raise error

    def topic_created(self, topic: Topic) -> None:
        """Serve the shards of a new topic: there is nothing to load."""
        if topic.name == self.topic_name:
            for index, partition in self._led_partitions().items():
                if partition is not None and partition.log.end_offset > 0:
                    self._broker.start_task(self.load_shard(index))
                elif partition is not None:
                    self.shards[index] = self._new_runtime(partition)
                    self.shards[index].activate()

    def partition_opened(self, topic: Topic, index: int) -> None:
        """Load the shard of a partition that this broker leads from now on."""
        if topic.name == self.topic_name:
            self._broker.start_task(self.load_shard(index))

    def partition_closed(self, topic: Topic, index: int) -> None:
        """Unload the shard of a partition that another broker leads from now on."""
        if topic.name == self.topic_name:
            self.unload_shard(index)

    def topic_deleted(self, topic: Topic) -> None:
        """Unload the shards of a deleted topic."""
        if topic.name == self.topic_name:
            for index in list(self.shards):
                self.unload_shard(index)
