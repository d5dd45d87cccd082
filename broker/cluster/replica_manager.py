"""The replicas of this broker: who fetches from whom, and who is in sync.

As a follower: one `ReplicaFetcher` per leader. As a leader: followers that lag leave the ISR, and
those that have caught up join it. Each change is a transaction of the metadata store that compares
the state it follows from, and for a follower that joins, the registration that its fetch carried: a
broker that has restarted since then may have lost what it had.

Until the outcome of a transaction is known, the stricter of both states counts, and the transaction
is sent again: its compare lets it take effect once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.coord.election import effective_min_isr, expand, resign, shrink, update_elr
from ottla.coord.metadata_image import Topic, partition_key
from ottla.coord.partition_state import PartitionState
from ottla.protocol.errors import ErrorCode
from ottla.storage.disk import NO_SPACE_ERRORS
from ottla.storage.throttled_replicas import is_throttled

from ..partitions.partition import Partition, Role
from ..requests.errors import ApiError
from ..requests.handlers.broker_registration import check_inter_broker_listener
from .replica_fetcher import PartitionKey, ReplicaFetcher
from .replication_throttle import ReplicationThrottle
from .store.metadata_store import Compare, Entry, ModRevision, Put, StoreError, UnknownOutcomeError

if TYPE_CHECKING:
    from ottla.protocol.api.fetch import FetchPartition, ReplicaState

    from ..broker import Broker
    from ..config.broker_config import BrokerConfig
    from ..net.listeners import Endpoint
    from ..observability.metrics import Metrics
    from ..requests.dispatch import RequestContext

logger = logging.getLogger(__name__)

_NO_REPLICA = -1
_RETRY_SECONDS = 0.2
_CHECKPOINT_SECONDS = 5.0
#: How often this broker looks for what it leads, and should or may lead no longer.
_RESIGN_SECONDS = 0.5
#: Partitions that are looked at before other tasks get their turn.
_PARTITIONS_PER_YIELD = 500


class ReplicaManager:
    """Replicates the partitions of a cluster with a metadata store."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._fetchers: dict[int, ReplicaFetcher] = {}
        # The leader that each followed partition is fetched from.
        self._leaders: dict[PartitionKey, int] = {}
        # Partitions whose ISR is being changed.
        self._changing: dict[PartitionKey, asyncio.Task[None]] = {}
        # The revisions of states that this broker has stored or read, before they are replayed.
        self._revisions: dict[PartitionKey, int] = {}
        self._tasks: list[asyncio.Task[None]] = []
        assert broker.store is not None
        self._store = broker.store
        self._leader_throttle = ReplicationThrottle(
            lambda: self.config.leader_replication_throttled_rate
        )
        self._follower_throttle = ReplicationThrottle(
            lambda: self.config.follower_replication_throttled_rate
        )

    def start(self) -> None:
        """Begin to follow and to lead, as the states say."""
        self._broker.topics.replica_listener = self
        for partition in self._broker.topics.replicated_partitions():
            self.role_changed(partition)
        loop = asyncio.get_running_loop()
        self._tasks = [
            loop.create_task(self._repeat(self._shrink_isrs, self._lag_check_seconds)),
            loop.create_task(self._repeat(self._checkpoint, lambda: _CHECKPOINT_SECONDS)),
            loop.create_task(self._repeat(self._resign, lambda: _RESIGN_SECONDS)),
            loop.create_task(self._repeat(self._refuse_acks, lambda: _RESIGN_SECONDS)),
        ]

    async def hand_over(self) -> None:
        """Let others lead what this broker leads, if they can, before it stops."""
        deadline = time.monotonic() + self.config.controlled_shutdown_max_wait_ms / 1000
        if not self._has_partitions_to_hand_over():
            return
        started = time.monotonic()
        follower = self._broker.store_follower
        try:
            async with asyncio.timeout_at(
                asyncio.get_running_loop().time() + deadline - time.monotonic()
            ):
                await self._broker.store_registration.leave()
                while self._has_partitions_to_hand_over():
                    await follower.wait_for_revision(follower.revision + 1)
        except (StoreError, TimeoutError) as error:
            logger.warning(
                "controlled shutdown failed: partitions are without a leader for a while",
                extra={"reason": str(error) or "timeout"},
            )
            return
        milliseconds = round((time.monotonic() - started) * 1000)
        logger.info("handed over all leaderships", extra={"milliseconds": milliseconds})

    def _has_partitions_to_hand_over(self) -> bool:
        return any(
            partition.state is not None and len(partition.state.isr) > 1
            for partition in self._broker.topics.online_partitions()
        )

    def may_lead(self, partition: Partition) -> bool:
        """Whether nobody else can have been elected leader of a partition that this broker leads.

        Within the fence time of its lease, nobody else can have been elected in this broker's
        place. After it, only if every follower in the ISR still fetches in this epoch, and no
        broker outside of it is eligible: one of these would be the successor. The latest fetch does
        not count: after a pause, it may have been in the socket for long. The one before it counts
        for half a session: a pause that ends a lease takes longer.
        """
        registration = self._broker.store_registration
        if registration.within_fence_time():
            return True
        state, progress = partition.state, partition.progress
        if state is None or progress is None or state.elr:
            return state is not None and not state.elr
        earliest_ms = int((time.monotonic() - self._broker.cluster.session_seconds / 2) * 1000)
        return all(
            progress.previous_fetch_at_ms(broker_id) >= earliest_ms
            for broker_id in state.isr
            if broker_id != self.broker_id
        )

    async def stop(self) -> None:
        """Stop fetching, and changing ISRs."""
        self._broker.topics.replica_listener = None
        tasks = [*self._tasks, *self._changing.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(fetcher.stop() for fetcher in self._fetchers.values()))

    # What fetchers need.

    @property
    def config(self) -> BrokerConfig:
        """The effective config of the broker."""
        return self._broker.config

    @property
    def metrics(self) -> Metrics:
        """The metrics of the broker."""
        return self._broker.metrics

    @property
    def broker_id(self) -> int:
        """The id of this broker."""
        return self._broker.id

    @property
    def broker_epoch(self) -> int:
        """The epoch of this broker's registration."""
        return self._broker.store_registration.broker_epoch

    def now_ms(self) -> int:
        """Return the wall clock in milliseconds."""
        return self._broker.now_ms()

    @property
    def is_disk_full(self) -> bool:
        """Whether there is no space for more records."""
        return self._broker.disk_space.is_full

    def count_disk_error(self, error: OSError) -> None:
        """Count an error of the log directory, which may be full."""
        self._broker.disk_space.count(error)

    def endpoint_of(self, broker_id: int) -> Endpoint:
        """Return the address of a broker for other brokers. Raises ApiError if it is down."""
        return self._broker.cluster.endpoint_of(broker_id)

    def flush(self, partition: Partition) -> Future[int]:
        """Fsync a log, as all flushes of a running broker."""
        return self._broker.logs.flusher.flush(partition.log)

    # Roles.

    def role_changed(self, partition: Partition) -> None:
        """Fetch a partition from its leader, or no longer."""
        key = self._key_of(partition)
        if key is None:
            return
        state = partition.state
        leader = state.leader if state and partition.role is Role.FOLLOWER else None
        previous = self._leaders.get(key)
        if previous is not None and previous != leader:
            self._fetchers[previous].remove(key)
            del self._leaders[key]
        if leader is None or leader == self.broker_id:
            return
        if leader not in self._fetchers:
            self._fetchers[leader] = ReplicaFetcher(self, leader)
        self._leaders[key] = leader
        self._fetchers[leader].add(key, partition)

    def replica_closed(self, partition: Partition) -> None:
        """Fetch a partition no longer: it was deleted or moved."""
        # Its topic may be gone from the image.
        for key, leader in list(self._leaders.items()):
            if self._fetchers[leader].has(key, partition):
                self._fetchers[leader].remove(key)
                del self._leaders[key]

    def refresh_role(self, key: PartitionKey) -> None:
        """Apply the state of a partition, which could not be applied while it was truncated."""
        topic = self._broker.topics.image.topics_by_id.get(key[0])
        if topic is None:
            return
        state = self._broker.topics.image.partition_state(topic, key[1])
        if state is not None:
            self._broker.topics.apply_state(topic, key[1], state)

    def _key_of(self, partition: Partition) -> PartitionKey | None:
        topic = self._broker.topics.image.topics.get(partition.topic)
        return None if topic is None else (topic.id, partition.index)

    # Followers of this leader.

    def check_follower(self, context: RequestContext, replica: ReplicaState) -> None:
        """Raise ApiError unless a fetch comes from a registered broker, in its current epoch."""
        check_inter_broker_listener(self._broker, context)
        registration = self._broker.topics.image.registrations.get(replica.replica_id)
        if registration is None or registration.broker_epoch != replica.replica_epoch:
            raise ApiError(ErrorCode.STALE_BROKER_EPOCH)

    def record_fetch(
        self, partition: Partition, replica: ReplicaState, fetched: FetchPartition
    ) -> None:
        """Record what a follower has; it may join the ISR now."""
        partition.record_fetch(
            replica.replica_id,
            replica.replica_epoch,
            fetched.fetch_offset,
            int(time.monotonic() * 1000),
            fetched.log_start_offset,
        )
        state = partition.state
        if state is not None and replica.replica_id not in state.isr:
            self._expand_isr(partition)

    # Consumers.

    def preferred_read_replica(
        self, context: RequestContext, partition: Partition, offset: int, rack: str
    ) -> int:
        """Return the follower that a consumer in a rack should read from; -1 for the leader."""
        config, progress = self.config, partition.progress
        if not config.reads_in_rack or progress is None or rack in ("", config.broker_rack):
            return _NO_REPLICA
        registrations = self._broker.topics.image.registrations
        in_rack = [
            broker_id
            for broker_id in progress.readable_at(offset)
            if (found := registrations.get(broker_id)) is not None and found.rack == rack
        ]
        # One without the listener of the consumer cannot be reached by it.
        nodes = self._broker.cluster.known_nodes(in_rack, context)
        return nodes[0].id if nodes else _NO_REPLICA

    # Throttles.

    def throttles_follower(self, partition: Partition, broker_id: int) -> bool:
        """Whether what a follower fetches counts for the throttle of this leader."""
        state = partition.state
        if state is None or broker_id in state.isr:
            return False
        throttled = partition.log.config.leader_replication_throttled_replicas
        return is_throttled(throttled, partition.index, self.broker_id)

    def is_leader_throttle_exceeded(self) -> bool:
        """Whether throttled followers get nothing at the moment."""
        return self._leader_throttle.seconds_until_free(time.monotonic()) > 0

    def record_sent(self, size_bytes: int) -> None:
        """Count bytes that a throttled follower is sent."""
        self._leader_throttle.record(size_bytes, time.monotonic())

    def record_fetched(self, partition: Partition, size_bytes: int) -> None:
        """Count bytes that this follower has fetched, if the partition is throttled."""
        if self._throttles_fetches(partition):
            self._follower_throttle.record(size_bytes, time.monotonic())

    def seconds_until_fetch(self, partition: Partition) -> float:
        """Return how long to wait before a partition that is behind is fetched; 0 for not."""
        if not self._throttles_fetches(partition):
            return 0.0
        return self._follower_throttle.seconds_until_free(time.monotonic())

    def _throttles_fetches(self, partition: Partition) -> bool:
        throttled = partition.log.config.follower_replication_throttled_replicas
        return is_throttled(throttled, partition.index, self.broker_id)

    def _expand_isr(self, partition: Partition) -> None:
        progress, key = partition.progress, self._key_of(partition)
        if progress is None or key is None or key in self._changing:
            return
        caught_up = progress.caught_up(partition.high_watermark)
        registrations = self._broker.topics.image.registrations
        revisions = self._broker.store_follower.revisions
        added: dict[int, int] = {}
        compares: list[Compare] = []
        for broker_id, broker_epoch in caught_up.items():
            registration = registrations.get(broker_id)
            registration_key = b"registration/%d" % broker_id
            create_revision, mod_revision = revisions.get(registration_key, (0, 0))
            if (
                registration is not None
                and registration.state == "up"
                and registration.broker_epoch == create_revision == broker_epoch
            ):
                added[broker_id] = broker_epoch
                compares.append(ModRevision(registration_key, mod_revision))
        if added:
            partition.begin_expansion(added)
            assert partition.state is not None
            after = expand(partition.state, added, partition.min_isr)
            self._start_change(key, partition, after, compares, "ISR expanded")

    async def _shrink_isrs(self) -> None:
        now_ms = int(time.monotonic() * 1000)
        max_lag_ms = self.config.replica_lag_time_max_ms
        for number, partition in enumerate(list(self._broker.topics.online_partitions()), start=1):
            progress = partition.progress
            if progress is not None:
                lagging = progress.lagging(now_ms, max_lag_ms)
                if lagging or progress.state.elr:
                    self._shrink_isr(partition, lagging)
            if number % _PARTITIONS_PER_YIELD == 0:
                await asyncio.sleep(0)

    def _shrink_isr(self, partition: Partition, lagging: Collection[int]) -> None:
        key, state = self._key_of(partition), partition.state
        if key is None or key in self._changing or state is None:
            return
        if lagging:
            after = shrink(state, lagging, partition.min_isr)
            self._start_change(key, partition, after, (), "ISR shrunk")
        elif (after := update_elr(state, partition.min_isr)) is not state:
            self._start_change(key, partition, after, (), "ELR emptied")

    def append_failed(self, partition: Partition, error: Exception) -> None:
        """Take the log of a leader offline that cannot be written, if others can take over.

        A full disk may have space later.
        """
        if (
            isinstance(error, OSError)
            and error.errno not in NO_SPACE_ERRORS
            and _is_dispensable(partition)
        ):
            partition.log.fail(error)

    async def _resign(self) -> None:
        """Give up the leadership of partitions that cannot be appended to, if others are in sync.

        If the log directory is full, only where acks=all is possible without this broker.
        """
        topics = self._broker.topics
        for partition in list(topics.online_partitions()):
            state, reason = partition.state, partition.log.offline_reason
            if reason is None and self.is_disk_full and _is_dispensable(partition):
                reason = "the log directory is full"
            if reason is not None and state is not None:
                key = self._key_of(partition)
                if key is not None and key not in self._changing:
                    await self._give_up(key, state, reason)
        for name, error in list(self._broker.logs.failed.items()):
            topic_name, _, index = name.rpartition("-")
            topic = topics.image.topics.get(topic_name)
            if topic is not None and topics.leads(topic, int(index)):
                state = topics.image.partition_state(topic, int(index))
                if state is not None:
                    await self._give_up((topic.id, int(index)), state, str(error))

    async def _give_up(self, key: PartitionKey, state: PartitionState, reason: str) -> None:
        """Store a state without this leader; if it was changed meanwhile, the next look decides."""
        topic = self._broker.topics.image.topics_by_id[key[0]]
        others = self._broker.cluster.alive - {self.broker_id}
        after = resign(state, self._broker.topics.config_of(topic).min_insync_replicas)
        if state.leader != self.broker_id or others.isdisjoint(state.isr) or after is state:
            return
        store_key = partition_key(*key)
        revision = self._revision(key, store_key)
        try:
            result = await self._store.transact(
                [ModRevision(store_key, revision)], [Put(store_key, after.to_json())]
            )
        except StoreError as error:
            logger.debug("leadership could not be given up", extra={"reason": str(error)})
            return
        if result.succeeded:
            self._revisions[key] = result.revision
            logger.error(
                "gave up a leadership: the log cannot be written",
                extra={"partition": f"{topic.name}-{key[1]}", "reason": reason},
            )
            self._broker.topics.apply_state(topic, key[1], after)

    async def _refuse_acks(self) -> None:
        """Answer producers that wait for followers, if another broker may lead already."""
        if self._broker.store_registration.within_fence_time():
            return
        for number, partition in enumerate(list(self._broker.topics.online_partitions()), start=1):
            if not self.may_lead(partition):
                partition.refuse_acks()
            if number % _PARTITIONS_PER_YIELD == 0:
                await asyncio.sleep(0)

    def _lag_check_seconds(self) -> float:
        return self.config.replica_lag_time_max_ms / 2000

    # Changes.

    def _start_change(
        self,
        key: PartitionKey,
        partition: Partition,
        after: PartitionState,
        compares: tuple[Compare, ...] | list[Compare],
        message: str,
    ) -> None:
        task = asyncio.get_running_loop().create_task(
            self._change(key, partition, after, compares, message)
        )
        self._changing[key] = task
        task.add_done_callback(lambda _task: self._changing.pop(key, None))

    async def _change(
        self,
        key: PartitionKey,
        partition: Partition,
        after: PartitionState,
        compares: tuple[Compare, ...] | list[Compare],
        message: str,
    ) -> None:
        """Store the next state of a partition that this broker leads, if it is still the next."""
        before = partition.state
        assert before is not None
        store_key = partition_key(*key)
        revision = self._revision(key, store_key)
        while partition.state is before and partition.role is Role.LEADER:
            try:
                result = await self._store.transact(
                    [ModRevision(store_key, revision), *compares],
                    [Put(store_key, after.to_json())],
                )
            except UnknownOutcomeError:
                # It may be stored, or be stored later: until that is known, both states count.
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            except StoreError as error:
                logger.debug(
                    "ISR could not be changed",
                    extra={"partition": repr(partition), "reason": str(error)},
                )
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            topic = self._broker.topics.image.topics_by_id.get(key[0])
            if topic is None:
                return
            if result.succeeded:
                self._revisions[key] = result.revision
                self.metrics.isr_changes[message.rpartition(" ")[2]] += 1
                logger.info(
                    message,
                    extra={
                        "partition": repr(partition),
                        "isr": ",".join(map(str, after.isr)),
                        "before": ",".join(map(str, before.isr)),
                    },
                )
                self._broker.topics.apply_state(topic, key[1], after)
                return
            self._apply_current(topic, key, partition, result.current[store_key])
            return

    def _apply_current(
        self, topic: Topic, key: PartitionKey, partition: Partition, entry: Entry | None
    ) -> None:
        """Follow the stored state after a failed compare."""
        if entry is None:
            return  # The topic was deleted.
        current = PartitionState.from_json(entry.value)
        self._revisions[key] = max(self._revisions.get(key, 0), entry.mod_revision)
        if partition.state is not None and current.partition_epoch == (
            partition.state.partition_epoch
        ):
            # The state is the same: a registration has changed.
            partition.begin_expansion({})
        else:
            self._broker.topics.apply_state(topic, key[1], current)

    def _revision(self, key: PartitionKey, store_key: bytes) -> int:
        """Return the revision of the state that a partition has."""
        replayed = self._broker.store_follower.revisions.get(store_key, (0, 0))[1]
        return max(replayed, self._revisions.get(key, 0))

    # Timers.

    async def _checkpoint(self) -> None:
        with suppress(OSError):  # Without it, the leaders tell the high watermarks.
            await asyncio.to_thread(self._broker.logs.checkpoint_high_watermarks)

    async def _repeat(
        self, job: Callable[[], object], interval_seconds: Callable[[], float]
    ) -> None:
        while True:
            await asyncio.sleep(interval_seconds())
            try:
                result = job()
                if asyncio.iscoroutine(result):
                    await result
            except Exception:
                logger.exception("replica manager failed")


def _is_dispensable(partition: Partition) -> bool:
    """Whether acks=all is possible without the leader."""
    state = partition.state
    if state is None:
        return False
    remaining = resign(state, partition.min_isr)
    return remaining is not state and (
        len(remaining.isr) >= effective_min_isr(remaining, partition.min_isr)
    )
