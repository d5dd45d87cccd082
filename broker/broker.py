"""A whole broker: its data directory, its topics, its listeners, in the current event loop.

    async with Broker(BrokerConfig(log_dir=…, listeners="PLAINTEXT://127.0.0.1:0")) as broker:
        broker.address      # "127.0.0.1:40123"

The daemon is this and signals; see `daemon`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Coroutine
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

from ottla.storage.disk import Disk
from ottla.storage.logdir import LogDirectory, Progress

from .config import BrokerConfig
from .dispatch import Dispatcher
from .groups import Groups
from .housekeeping import Housekeeping
from .metrics import Metrics
from .server import Server
from .sessions import FetchSessions
from .topics import Topics

if TYPE_CHECKING:
    from .dispatch import Context

log = logging.getLogger(__name__)

T = TypeVar("T")


class Node(NamedTuple):
    """A broker, as clients are told of it."""

    id: int
    host: str
    port: int
    rack: str | None = None


class Broker:
    """One broker, from `start` to `stop`."""

    def __init__(self, config: BrokerConfig | None = None, *, disk: Disk | None = None) -> None:
        #: The settings in force: those of the start, and what was altered since.
        self.config = config or BrokerConfig()
        self._disk = disk
        self.metrics = Metrics()
        self.sessions = FetchSessions()
        self.dispatcher = Dispatcher(self)
        self.groups = Groups(self)
        self.server = Server(self)
        self.logs: LogDirectory
        self.topics: Topics
        self._housekeeping = Housekeeping(self)
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def id(self) -> int:
        """The id of this broker."""
        return self.config.broker_id

    @property
    def controller_id(self) -> int:
        """The id of the broker that changes the metadata."""
        return self.id

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, as the data directory has it."""
        return self.logs.cluster_id

    @property
    def address(self) -> str:
        """Where the first listener listens, as host:port."""
        return self.server.addresses[0]

    def nodes(self, context: Context) -> list[Node]:
        """Give the brokers of the cluster, with the addresses for whoever asks."""
        host, port = context.connection.advertised
        return [Node(self.id, host, port)]

    @staticmethod
    def now_ms() -> int:
        """Give the time of day, as records have it."""
        return int(time.time() * 1000)

    async def start(self, progress: Progress = lambda _done, _all: None) -> None:
        """Take the addresses and the data directory, open everything, and serve.

        Raises OSError for an address that is taken and DataDirectoryError for a directory that is.
        """
        config = self.config
        self.server.bind(config.parsed_listeners)
        try:
            self.logs = LogDirectory(
                Path(config.log_dir),
                cluster_id=config.cluster_id or None,
                broker_id=self.id,
                disk=self._disk,
            )
            try:
                self.topics = Topics(config, self.logs, self._obey)
                self.topics.load(progress)
            except BaseException:
                self.logs.abandon()
                raise
            await self.server.listen()
        except BaseException:
            self.server.unbind()
            raise
        self._housekeeping.start()
        self.start_task(self.groups.load())

    async def stop(self) -> None:
        """Answer what is under way, flush, and leave the data directory clean."""
        await self._housekeeping.stop()
        seconds = self.config.shutdown_timeout_ms / 1000
        await self.server.stop(seconds)
        self.groups.stop()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.to_thread(self.logs.close)

    def _obey(self, config: BrokerConfig) -> None:
        self.config = self.server.config = config
        self.groups.obey(config)

    def wake_all(self) -> None:
        """Let every long poll end, and every wait of a group: the broker is stopping."""
        for partition in self.topics.all_partitions():
            partition.wake_all()
        self.groups.let_go()

    def start_task(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run something that belongs to this broker, and ends with it."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        await self.stop()
