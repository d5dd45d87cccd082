"""A broker: its data directory, topics, coordinators and listeners, in the running event loop.

    async with Broker(BrokerConfig(log_dir=…, listeners="PLAINTEXT://127.0.0.1:0")) as broker:
        broker.address      # "127.0.0.1:40123"

`daemon` runs one in a process of its own, with signal handling.
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
from ottla.storage.errors import DataDirectoryError, StorageError
from ottla.storage.logdir import LoadProgress, LogDirectory, new_cluster_id, read_cluster_id

from .cluster.controller import Controller
from .cluster.membership import ClusterMembership
from .cluster.producer_ids import ProducerIdManager
from .config.broker_config import BrokerConfig, ConfigError
from .coordinators.group_coordinator import GroupCoordinator
from .coordinators.transaction_coordinator import TransactionCoordinator
from .net.listeners import format_host
from .net.server import Server, naming_address
from .observability.metrics import Metrics
from .partitions.disk_space import DiskSpace
from .partitions.housekeeping import Housekeeping
from .partitions.topics import Topics
from .requests.batch_workers import BatchWorkers
from .requests.dispatch import Dispatcher
from .requests.fetch_session_cache import FetchSessionCache
from .requests.memory_account import MemoryAccount
from .requests.token_bucket import TokenBucket

if TYPE_CHECKING:
    from .cluster.announcer import Announcer
    from .cluster.broker_channels import BrokerChannels
    from .cluster.forwarding import ControllerChannel
    from .cluster.metadata_follower import MetadataFollower
    from .cluster.replica_manager import ReplicaManager
    from .cluster.store.metadata_store import MetadataStore
    from .cluster.store_follower import StoreFollower
    from .cluster.store_heartbeat import StoreHeartbeat
    from .cluster.store_registration import StoreRegistration
    from .observability.prometheus import Exporter
    from .partitions.partition import Partition
    from .security.authorizer import Authorizer
    from .shares.share_partitions import SharePartitions

logger = logging.getLogger(__name__)

T = TypeVar("T")


class Broker:
    """One broker. `on_config_change` is called when its dynamic configs change."""

    def __init__(
        self,
        config: BrokerConfig | None = None,
        *,
        disk: Disk | None = None,
        store: MetadataStore | None = None,
        on_config_change: Callable[[BrokerConfig], None] = lambda _config: None,
    ) -> None:
        #: The effective config: static and dynamic configs.
        self.config = config or BrokerConfig()
        self._disk = disk
        self._on_config_change = on_config_change
        #: The metadata store; None in a static cluster. Tests may pass one.
        self.store = store
        self.cluster = self._membership()
        self.metrics = Metrics()
        self.memory = MemoryAccount(lambda: self.config.broker_memory_max_bytes)
        self.fetch_sessions = FetchSessionCache(
            self.memory.fits, followers_serve_consumers=self.config.reads_in_rack
        )
        self.memory.sources["fetch_sessions"] = self.fetch_sessions.size_bytes
        self.batch_workers = BatchWorkers(
            lambda: self.config.broker_max_decompressed_bytes,
            lambda: self.config.queued_max_request_bytes,
        )
        self.dispatcher = Dispatcher(self)
        self.auto_creations = TokenBucket(lambda: self.config.auto_create_topics_max_per_second)
        self.groups = GroupCoordinator(self)
        self.memory.sources["groups"] = self.groups.size_bytes
        self.transactions = TransactionCoordinator(self)
        self.memory.sources["transactions"] = self.transactions.size_bytes
        self._shares: SharePartitions | None = None
        self._channels: BrokerChannels | None = None
        self.server = Server(self)
        self.logs: LogDirectory
        self.disk_space: DiskSpace
        self.topics: Topics
        #: Commits metadata changes, on the controller only.
        self.controller: Controller
        #: To the controller, on all other brokers.
        self.controller_channel: ControllerChannel
        self.producer_ids: ProducerIdManager
        #: Decides what clients may do; None if they may do everything.
        self.authorizer: Authorizer | None = None
        self._metadata_follower: MetadataFollower | None = None
        self._announcer: Announcer | None = None
        #: With a metadata store.
        self.store_follower: StoreFollower
        self.store_registration: StoreRegistration
        self._store_heartbeat: StoreHeartbeat
        #: Replicates partitions, with a metadata store.
        self.replicas: ReplicaManager | None = None
        self._exporter: Exporter | None = None
        self.housekeeping = Housekeeping(self)
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def id(self) -> int:
        """The id of this broker."""
        return self.config.broker_id

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, as stored in the data directory."""
        return self.logs.cluster_id

    @property
    def address(self) -> str:
        """The bound address of the first listener, as host:port."""
        return self.server.addresses[0]

    @property
    def channels(self) -> BrokerChannels:
        """The connections to the other brokers."""
        if self._channels is None:
            # A single broker does not need it.
            from .cluster.broker_channels import BrokerChannels  # noqa: PLC0415

            self._channels = BrokerChannels(self.cluster)
        return self._channels

    @property
    def shares(self) -> SharePartitions:
        """The share partitions that this broker serves."""
        if self._shares is None:
            # Without share groups it is not needed.
            from .shares.share_partitions import SharePartitions  # noqa: PLC0415

            self._shares = SharePartitions(self)
            self.memory.sources["shares"] = self._shares.size_bytes
            self.topics.listeners.append(self._shares)
        return self._shares

    @property
    def has_shares(self) -> bool:
        """Whether any member of a share group has fetched here."""
        return self._shares is not None

    @property
    def failed(self) -> asyncio.Future[DataDirectoryError] | None:
        """Completed with an error if this broker must not run any longer; None if it is alone."""
        if self.store is not None:
            return self.store_follower.failed
        return None if self._announcer is None else self._announcer.failed

    def may_lead(self, partition: Partition) -> bool:
        """Whether nobody else can have been elected leader of a partition that this broker leads.

        If another broker may lead it, clients are told to look for that one.
        """
        return self.replicas is None or self.replicas.may_lead(partition)

    @staticmethod
    def now_ms() -> int:
        """Return the wall clock in milliseconds since the epoch, as in record timestamps."""
        return int(time.time() * 1000)

    async def start(self, progress: LoadProgress = lambda _done, _all: None) -> None:
        """Bind the listeners, open the data directory, catch up with the controller, and serve.

        Raises OSError if an address is in use, and DataDirectoryError if the data directory is in
        use, belongs to another broker or cluster, or has unreadable metadata.
        """
        config = self.config
        if config.sasl_bootstrap_users:
            from .security.credentials import parse_bootstrap_users  # noqa: PLC0415

            parse_bootstrap_users(config.sasl_bootstrap_users)  # Raises ConfigError.
        if config.has_security:
            # Most brokers on one machine do not need it.
            from .security.listener_security import BrokerSecurity  # noqa: PLC0415

            self.server.security = BrokerSecurity(self)
            await asyncio.to_thread(self.server.security.load)
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
            self.memory.count_producers(self.logs.producer_memory)
            self.logs.flusher.on_flush = self.metrics.flush_seconds.observe
            self.disk_space = DiskSpace(Path(config.log_dir), self.logs.disk)
            if self.store is not None:
                undo.push_async_callback(self.store.close)
            elif len(self.cluster.broker_ids) > 1:
                await self._announce(undo)
            self.topics = Topics(
                config, self.logs, self._apply_config, self.groups, self.transactions
            )
            started = time.perf_counter()
            await self.topics.load(progress)
            self.metrics.log_loading_seconds = time.perf_counter() - started
            self.authorizer = self._make_authorizer()
            self.dispatcher.quota_entities = self.topics.image.quotas.by_entity
            if self.store is not None:
                await self._start_with_store(self.store, undo)
            else:
                await self._start_static(undo)
            self.producer_ids = self._producer_id_manager()
            undo.push_async_callback(self.producer_ids.stop)
            self._exporter = self._start_exporter()
            if self._exporter is not None:
                undo.push_async_callback(self._exporter.stop)
            if config.sasl_bootstrap_users:
                # Clients that log in at once would take it for a wrong password.
                await self._create_bootstrap_users(config.sasl_bootstrap_users)
            await self.server.listen()
            undo.pop_all()
        self.housekeeping.start()
        self.start_task(self.groups.load())
        self.start_task(self.transactions.load())

    def _membership(self) -> ClusterMembership:
        if self.store is None and not self.config.cluster_store:
            return ClusterMembership(self.config)
        from .cluster.store_membership import StoreMembership  # noqa: PLC0415  # Only needed here.

        return StoreMembership(self.config)

    async def _announce(self, undo: AsyncExitStack) -> None:
        """Make sure that no other process has the id of this broker of a static cluster."""
        # A single broker does not need it.
        from .cluster.announcer import Announcer  # noqa: PLC0415

        follower = self._metadata_follower
        failed = asyncio.get_running_loop().create_future() if follower is None else follower.failed
        announcer = Announcer(self.cluster, self.cluster_id, failed)
        await announcer.start()
        undo.push_async_callback(announcer.stop)
        self._announcer = self.dispatcher.announcer = announcer

    async def _start_static(self, undo: AsyncExitStack) -> None:
        """Follow the controller of a static cluster, or be it."""
        if self.topics.image.store_position is not None:
            raise DataDirectoryError(
                "The data directory belongs to a cluster with a metadata store: set cluster.store"
            )
        self.controller = Controller(self.topics, self.cluster)
        if self._metadata_follower is not None:
            undo.callback(self.controller_channel.close)
            undo.push_async_callback(self._metadata_follower.stop)
            await self._follow_controller(self._metadata_follower)
        else:
            await self.controller.start()

    async def _start_with_store(self, store: MetadataStore, undo: AsyncExitStack) -> None:
        """Follow the metadata store and register in it, or start without it after a while."""
        # A static cluster does not need these.
        from .cluster.replica_manager import ReplicaManager  # noqa: PLC0415
        from .cluster.store_controller import StoreController  # noqa: PLC0415
        from .cluster.store_forwarding import StoreControllerChannel  # noqa: PLC0415
        from .cluster.store_heartbeat import StoreHeartbeat  # noqa: PLC0415
        from .cluster.store_membership import StoreMembership  # noqa: PLC0415
        from .cluster.store_registration import StoreRegistration  # noqa: PLC0415

        cluster, follower = self.cluster, self.store_follower
        assert isinstance(cluster, StoreMembership)
        cluster.use_image(self.topics.image)
        registration = self.store_registration = StoreRegistration(
            store, follower, self.id, cluster.incarnation, cluster.session_seconds
        )
        self.controller_channel = StoreControllerChannel(cluster, follower)
        controller = StoreController(self.topics, cluster, store, follower, self.metrics)
        self.controller = controller
        self._store_heartbeat = StoreHeartbeat(cluster, follower, registration, self.channels)
        for close in (self._store_heartbeat.stop, follower.stop, controller.stop):
            undo.push_async_callback(close)
        undo.push_async_callback(registration.stop)
        undo.callback(self.controller_channel.close)
        self.topics.incarnation = cluster.incarnation
        self.topics.registered_epoch = lambda: registration.broker_epoch
        if self.topics.has_lost_replicas:
            await asyncio.to_thread(self.logs.note_losses)
        registration.is_lossy = self.logs.may_have_lost_records
        registration.note_losses = self.logs.note_losses
        registration.forget_losses = self.logs.forget_losses
        position = self.topics.image.store_position
        if self.logs.has_fsynced_records and position is not None:
            registration.fsynced_revision = position.revision
        self.replicas = ReplicaManager(self)
        undo.push_async_callback(self.replicas.stop)
        self.replicas.start()
        follower.start(self.topics, self.cluster_id)
        listeners = dict(address.split("://", 1) for address in self.server.advertised)
        registration.start(self.topics, listeners, self.config.broker_rack or None)
        await controller.start()
        self._store_heartbeat.start()
        await self._wait_until_registered(self.config.controller_wait_ms / 1000)

    async def _create_bootstrap_users(self, text: str) -> None:
        """Create users, if this broker is the controller and they do not exist."""
        from .security.credentials import (  # noqa: PLC0415  # Only needed here.
            BootstrapUsers,
            parse_bootstrap_users,
        )

        users = BootstrapUsers(
            self.controller, self.cluster, self.topics.image, parse_bootstrap_users(text)
        )
        if self.cluster.is_controller:
            await users.create()
        if self.store is not None:
            # The controller may have been lost before it has created them.
            self.start_task(users.keep_creating())

    async def _unfenced(self) -> None:
        """Wait until this broker is registered, and the controller lets it serve."""
        await self.store_registration.registered.wait()
        while self.store_registration.is_fenced:
            await self.store_follower.wait_for_revision(self.store_follower.revision + 1)

    async def _wait_until_registered(self, seconds: float) -> None:
        registration, follower = self.store_registration, self.store_follower
        loop = asyncio.get_running_loop()
        registered = loop.create_task(self._unfenced())
        deadline = loop.time() + seconds
        try:
            while not registered.done():
                done, _pending = await asyncio.wait(
                    (registered, follower.failed),
                    timeout=min(0.5, max(deadline - loop.time(), 0.05)),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if follower.failed.done():
                    raise follower.failed.result()
                # Another process may have this broker's id: do not serve before that is known.
                is_blocked = registration.is_waiting_for_rival
                if loop.time() >= deadline and registration.registered.is_set():
                    break  # There is no controller at the moment; the next one unfences it.
                if not done and not is_blocked and loop.time() >= deadline:
                    logger.warning(
                        "metadata store does not answer: serving the last known metadata"
                    )
                    await self._start_unregistered_leader_epoch()
                    break
        finally:
            registered.cancel()

    async def _follow_controller(self, follower: MetadataFollower) -> None:
        """Register with the controller and catch up, or start without it after a while."""
        from .cluster.registration import BrokerRegistrar  # noqa: PLC0415  # Only needed here.

        registrar = BrokerRegistrar(self.cluster, self.topics, self.cluster_id)
        self.controller_channel.registrar = registrar
        wait_seconds = self.config.controller_wait_ms / 1000
        await follower.start(self.topics, registrar, self.cluster_id, wait_seconds)
        if not registrar.was_registered:
            await self._start_unregistered_leader_epoch()

    async def _start_unregistered_leader_epoch(self) -> None:
        try:
            await self.topics.start_unregistered_leader_epoch(self.cluster.incarnation)
        except (OSError, StorageError) as error:
            logger.error("leader epoch could not be written", extra={"reason": str(error)})

    def _make_authorizer(self) -> Authorizer | None:
        config = self.config
        if not config.authorizer_class_name:
            return None
        from .security.authorizer import Authorizer  # noqa: PLC0415  # Only needed here.

        return Authorizer(
            self.topics.image.acls,
            config.super_user_principals,
            allows_if_none=config.allow_everyone_if_no_acl_found,
        )

    def _start_exporter(self) -> Exporter | None:
        """Start the Prometheus endpoint, if it is configured. Raises OSError."""
        endpoint = self.config.metrics_endpoint
        if endpoint is None:
            return None
        from .observability.prometheus import Exporter  # noqa: PLC0415  # Only needed here.

        with naming_address(endpoint):
            exporter = Exporter(self, endpoint)
        url = f"http://{format_host(endpoint.host)}:{exporter.port}/metrics"
        logger.info("serving metrics", extra={"url": url})
        return exporter

    async def _find_cluster_id(self) -> str | None:
        """Return the configured cluster id, or the controller's for a new data directory."""
        config = self.config
        if self.store is not None or config.cluster_store:
            return await self._find_cluster_id_in_store()
        if not self.cluster.is_controller:
            # A single broker does not need these.
            from .cluster.forwarding import ControllerChannel  # noqa: PLC0415
            from .cluster.metadata_follower import MetadataFollower  # noqa: PLC0415

            self._metadata_follower = MetadataFollower(self.cluster)
            self.controller_channel = ControllerChannel(self.cluster)
            if not config.cluster_id and read_cluster_id(Path(config.log_dir)) is None:
                return await self._metadata_follower.find_cluster_id()
        return config.cluster_id or None

    async def _find_cluster_id_in_store(self) -> str:
        """Return the cluster id in the store, which gets one if it has none.

        A broker that has a data directory can start without the store.
        """
        from .cluster.store_follower import StoreFollower  # noqa: PLC0415  # Only needed here.

        config = self.config
        if self.store is None:
            self.store = open_store(config)
        self.store_follower = StoreFollower(self.store, self.id)
        known = read_cluster_id(Path(config.log_dir))
        if known is None:
            proposed = config.cluster_id or new_cluster_id()
            cluster_id = await self.store_follower.join_cluster(proposed)
        else:
            cluster_id = await self.store_follower.find_cluster_id() or known
        if config.cluster_id not in ("", cluster_id):
            raise DataDirectoryError(
                f"The metadata store belongs to cluster {cluster_id}; cluster.id is"
                f" {config.cluster_id}"
            )
        return cluster_id

    def _producer_id_manager(self) -> ProducerIdManager:
        if self._metadata_follower is None:
            manager = ProducerIdManager(self.controller.allocate_producer_ids)
            if self.store is not None:
                manager.prefetch()
            return manager
        manager = ProducerIdManager(self.controller_channel.allocate_producer_ids)
        manager.prefetch()
        return manager

    async def stop(self) -> None:
        """Complete in-flight requests, flush all logs, and mark the data directory clean."""
        if self.replicas is not None:
            await self.replicas.hand_over()
        await self.housekeeping.stop()
        if self._metadata_follower is not None:
            await self._metadata_follower.stop()
        timeout_seconds = self.config.shutdown_timeout_ms / 1000
        await self.server.stop(timeout_seconds)
        self.groups.stop()
        self.transactions.stop()
        if self._announcer is not None:
            await self._announcer.stop()
        if self._shares is not None:
            self._shares.stop()
        if self._channels is not None:
            self._channels.close()
        await self.producer_ids.stop()
        if self._metadata_follower is not None or self.store is not None:
            self.controller_channel.close()
        if self.store is not None:
            await self._stop_store(self.store)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_seconds)
        for task in self._tasks:
            task.cancel()
        self.batch_workers.close()
        self.dispatcher.close()
        self.groups.close()
        if self._exporter is not None:
            await self._exporter.stop()
        await asyncio.to_thread(self.logs.close)

    async def _stop_store(self, store: MetadataStore) -> None:
        """Give up the registration, and stop following."""
        if self.replicas is not None:
            await self.replicas.stop()
        await self._store_heartbeat.stop()
        controller: Any = self.controller
        await controller.stop()
        await self.store_registration.stop()
        await self.store_follower.stop()
        await store.close()

    def _apply_config(self, config: BrokerConfig) -> None:
        self.config = self.server.config = config
        self.groups.apply_config(config)
        self.transactions.apply_config(config)
        if self.server.security is not None:
            self.start_task(self.server.security.reload())
        self._on_config_change(config)

    def wake_all(self) -> None:
        """Complete all delayed fetches, joins and syncs: the broker is stopping."""
        for partition in (*self.topics.online_partitions(), self.topics.metadata_log.partition):
            partition.wake_all()
        self.fetch_sessions.wake_followers()
        self.groups.refuse_waiting()
        self.transactions.refuse_waiting()

    def start_task(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a task that `stop` waits for, and cancels after the shutdown timeout."""
        task = asyncio.get_running_loop().create_task(coroutine)
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


def open_store(config: BrokerConfig) -> MetadataStore:
    """Return the configured metadata store. Raises ConfigError."""
    try:
        # Optional, and slow to import.
        from .cluster.store.etcd_store import EtcdStore  # noqa: PLC0415
    except ImportError:
        raise ConfigError("cluster.store requires aiohttp: pip install 'ottla[etcd]'") from None
    from .cluster.store.store_url import StoreCredentials, parse_store_url  # noqa: PLC0415

    credentials = StoreCredentials(
        config.cluster_store_username,
        config.cluster_store_password_file,
        config.cluster_store_ssl_truststore_location,
        config.cluster_store_ssl_keystore_location,
    )
    return EtcdStore.open(parse_store_url(config.cluster_store), credentials)
