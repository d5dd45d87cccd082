"""A whole broker: its data directory, its topics, its listeners, in the current event loop.

    async with Broker(BrokerConfig(log_dir=…, listeners="PLAINTEXT://127.0.0.1:0")) as broker:
        broker.address      # "127.0.0.1:40123"

The daemon is this and signals; see `daemon`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ottla.storage.disk import Disk
from ottla.storage.logdir import LoadProgress, LogDirectory, read_cluster_id

from .cluster.controller import Controller
from .cluster.membership import ClusterMembership
from .cluster.producer_ids import ProducerIdManager
from .config.broker_config import BrokerConfig, ConfigError
from .coordinators.group_coordinator import GroupCoordinator
from .net.listeners import format_host
from .net.server import Server, naming_address
from .observability.metrics import Metrics
from .partitions.housekeeping import Housekeeping
from .partitions.topics import Topics
from .requests.dispatch import Dispatcher
from .requests.fetch_sessions import FetchSessionCache

if TYPE_CHECKING:
    from .cluster.forwarding import ControllerChannel
    from .cluster.metadata_follower import MetadataFollower
    from .observability.prometheus import Exporter

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Broker:
    """One broker, from `start` to `stop`. `obey` is told of settings that were altered."""

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        disk: Disk | None = None,
        obey: Callable[[BrokerConfig], None] = lambda _config: None,
    ) -> None:
        #: The settings in force: those of the start, and what was altered since.
        self.config = config or BrokerConfig()
        self._disk = disk
        self._obey_outside = obey
        self.cluster = ClusterMembership(self.config)
        self.metrics = Metrics()
        self.fetch_sessions = FetchSessionCache()
        self.dispatcher = Dispatcher(self)
        self.groups = GroupCoordinator(self)
        self.server = Server(self)
        self.logs: LogDirectory
        self.topics: Topics
        #: Changes metadata; those of a broker that follows another are for that one to change.
        self.controller: Controller
        #: To the controller, for one that is not.
        self.controller_channel: ControllerChannel
        self.producer_ids: ProducerIdManager
        self._following: MetadataFollower | None = None
        self._exporter: Exporter | None = None
        self._housekeeping = Housekeeping(self)
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def id(self) -> int:
        """The id of this broker."""
        return self.config.broker_id

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, as the data directory has it."""
        return self.logs.cluster_id

    @property
    def address(self) -> str:
        """Where the first listener listens, as host:port."""
        return self.server.addresses[0]

    @staticmethod
    def now_ms() -> int:
        """Give the time of day, as records have it."""
        return int(time.time() * 1000)

    async def start(self, progress: LoadProgress = lambda _done, _all: None) -> None:
        """Take the addresses and the data directory, open everything, and serve.

        A broker that follows another hears first what is new. Raises OSError for an address that is
        taken, and DataDirectoryError for a directory that is, or is of another broker or cluster,
        or whose metadata make no sense.
        """
        config = self.config
        async with AsyncExitStack() as undo:
            self.server.bind(config.parsed_listeners)
            undo.callback(self.server.unbind)
            self.logs = LogDirectory(
                Path(config.log_dir),
                cluster_id=await self._find_cluster_id(),
                broker_id=self.id,
                disk=self._disk,
            )
            undo.callback(self.logs.abandon)
            self.topics = Topics(config, self.logs, self._obey, self.groups)
            await self.topics.load(progress)
            self.controller = Controller(self.topics, self.cluster)
            if self._following is not None:
                undo.callback(self.controller_channel.close)
                undo.push_async_callback(self._following.stop)
                await self._following.start(
                    self.topics, self.cluster_id, config.controller_wait_ms / 1000
                )
            self._stock_producer_ids()
            undo.push_async_callback(self.producer_ids.stop)
            self._exporter = self._export()
            if self._exporter is not None:
                undo.callback(self._exporter.close)
            await self.server.listen()
            undo.pop_all()
        self._housekeeping.start()
        self.start_task(self.groups.load())

    def _export(self) -> Exporter | None:
        """Begin to show metrics, if that is wanted. Raises ConfigError, OSError."""
        address = self.config.metrics_endpoint
        if address is None:
            return None
        try:
            from .observability.prometheus import Exporter  # noqa: PLC0415  # few want it, and it takes long
        except ImportError:
            needed = "metrics.listener: it needs prometheus-client: pip install 'ottla[metrics]'"
            raise ConfigError(needed) from None
        with naming_address(address):
            exporter = Exporter(self, address)
        place = f"http://{format_host(address.host)}:{exporter.port}/metrics"
        logger.info("showing metrics", extra={"on": place})
        return exporter

    async def _find_cluster_id(self) -> str | None:
        """Say of which cluster this is to be: a new broker that follows another asks that one."""
        config = self.config
        if not self.cluster.is_controller:
            # A broker that is alone does not pay for them.
            from .cluster.forwarding import ControllerChannel  # noqa: PLC0415
            from .cluster.metadata_follower import MetadataFollower  # noqa: PLC0415

            self._following = MetadataFollower(self.cluster)
            self.controller_channel = ControllerChannel(self.cluster)
            if not config.cluster_id and read_cluster_id(Path(config.log_dir)) is None:
                return await self._following.find_cluster_id()
        return config.cluster_id or None

    def _stock_producer_ids(self) -> None:
        if self._following is None:
            self.producer_ids = ProducerIdManager(self.controller.allocate_producer_ids)
        else:
            self.producer_ids = ProducerIdManager(self.controller_channel.allocate_producer_ids)
            self.producer_ids.prefetch()

    async def stop(self) -> None:
        """Answer what is under way, flush, and leave the data directory clean."""
        await self._housekeeping.stop()
        if self._following is not None:
            await self._following.stop()
        seconds = self.config.shutdown_timeout_ms / 1000
        await self.server.stop(seconds)
        self.groups.stop()
        await self.producer_ids.stop()
        if self._following is not None:
            self.controller_channel.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)
        for task in self._tasks:
            task.cancel()
        if self._exporter is not None:
            await asyncio.to_thread(self._exporter.close)
        await asyncio.to_thread(self.logs.close)

    def _obey(self, config: BrokerConfig) -> None:
        self.config = self.server.config = config
        self.groups.apply_config(config)
        self._obey_outside(config)

    def wake_all(self) -> None:
        """Let every long poll end, and every wait of a group: the broker is stopping."""
        for partition in (*self.topics.online_partitions(), self.topics.metadata_log.partition):
            partition.wake_all()
        self.groups.refuse_waiting()

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
