"""The controller of a cluster with a metadata store: changes are transactions.

The controller holds a key of the store, with the lease of its registration, and has no state of its
own: the image of every broker is a warm standby. Each of its transactions compares the create
revision of that key, so that a controller that was replaced while it was paused changes nothing.
A change is complete when it came back through the store and is applied here.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla.coord.election import initial_state
from ottla.coord.metadata_image import (
    CONTROLLER_KEY,
    KeyValue,
    Topic,
    TopicPartition,
    parse_topic_record,
    partition_key,
    partition_record,
    producer_ids_record,
    registration_record,
    topic_record,
)
from ottla.coord.placement import assign_replicas
from ottla.protocol.errors import ErrorCode

from ..requests.errors import EXPECTED_ERRORS, ApiError
from .controller import PRODUCER_IDS_PER_BLOCK, Controller
from .elections import PlannedElection, log_elections, plan_elections, plan_preferred_elections
from .reassignments import log_reassignments
from .store.metadata_store import (
    KEEP_LEASE,
    Compare,
    CreateRevision,
    Delete,
    MetadataStore,
    ModRevision,
    Operation,
    Put,
    StoreError,
    TransactionResult,
    UnknownOutcomeError,
)

if TYPE_CHECKING:
    from ..observability.metrics import Metrics
    from ..partitions.topics import Topics
    from .store_follower import StoreFollower
    from .store_membership import StoreMembership

logger = logging.getLogger(__name__)

#: A transaction has room for two compares of each, and for that of the controller key.
_RECORDS_PER_TRANSACTION = 60
#: One compare of each.
_STATES_PER_TRANSACTION = 120
_PRODUCER_IDS_KEY = b"producer-ids"
_RETRY_SECONDS = 0.1
#: How often the change of a partition is planned again.
_MAX_ATTEMPTS = 10
#: How often a request that waits for brokers looks whether it still has to.
_CHECK_SECONDS = 0.5
_LAST_REGISTRATION = b"last-registration/"


class BrokersAwaitedError(ApiError):
    """Too few brokers for the replicas of a topic, and others are about to return."""

    def __init__(self, factor: int, alive: int, awaited: Collection[int]) -> None:
        missing = ", ".join(map(str, sorted(awaited)))
        super().__init__(
            ErrorCode.REQUEST_TIMED_OUT,
            f"Replication factor {factor}: {alive} brokers are alive, and {missing} not yet; try"
            " again",
        )


class ChangedMeanwhileError(ApiError):
    """A key has another revision than the image: plan again when `revision` is applied here."""

    def __init__(self, revision: int) -> None:
        self.revision = revision
        super().__init__(
            ErrorCode.REQUEST_TIMED_OUT, "The metadata was changed meanwhile; try again"
        )


class StoreController(Controller):
    """Changes metadata in the store while this broker is the controller."""

    def __init__(
        self,
        topics: Topics,
        cluster: StoreMembership,
        store: MetadataStore,
        follower: StoreFollower,
        metrics: Metrics,
    ) -> None:
        super().__init__(topics, cluster)
        self._metrics = metrics
        self._store = store
        self._follower = follower
        self._tasks: list[asyncio.Task[None]] = []
        # The epoch of this broker's registration, and when it was seen first.
        self._own_epoch = -1
        self._registered_at = -math.inf
        # All brokers that had been registered by then.
        self._registered_before: set[int] = set()
        # The epoch of each broker, and when this one saw it first.
        self._up_since: dict[int, tuple[int, float]] = {}

    async def start(self) -> None:
        """Watch the registrations while this broker is the controller."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run()), loop.create_task(self._rebalance())]

    async def stop(self) -> None:
        """Stop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def allocate_producer_ids(self) -> range:
        """Allocate a block of producer ids; every broker does it by itself. Raises ApiError."""
        if not self._follower.caught_up.is_set():
            raise ApiError(ErrorCode.BROKER_NOT_AVAILABLE, "The metadata store is not available")
        first = self._image.next_producer_id
        revision = self._mod_revision(_PRODUCER_IDS_KEY)
        while True:
            end = first + PRODUCER_IDS_PER_BLOCK
            result = await self._send(
                [ModRevision(_PRODUCER_IDS_KEY, revision)],
                # Two brokers must not write the same value: each has to know whose it is.
                _operations([producer_ids_record(end, self._cluster.incarnation)]),
            )
            if result.succeeded:
                return range(first, end)
            entry = result.current[_PRODUCER_IDS_KEY]
            revision = 0 if entry is None else entry.mod_revision
            first = first if entry is None else max(json.loads(entry.value)["next"], 1)

    def plan_internal_topic(
        self, name: str, partition_count: int, configs: Mapping[str, str]
    ) -> Topic:
        """Return an internal topic to create, with as many replicas as any."""
        return self.plan_topic(name, partition_count, configs)

    def _assign_replicas(
        self,
        partition_count: int,
        replicas: Sequence[Sequence[int]] | None,
        replication_factor: int | None = None,
    ) -> tuple[tuple[int, ...], ...]:
        if replicas is not None:
            return super()._assign_replicas(partition_count, replicas)
        # A broker that is still fenced is about to serve.
        brokers = sorted(self._in_state("up", "fenced"))
        # As in Kafka, one that is down has replicas, too, if there are too few others: it copies
        # them when it returns. Without it, topics would stay without the replicas they need.
        wanted = replication_factor or self._topics.config.new_topic_replication_factor
        has_enough = len(brokers) >= wanted
        down = [] if has_enough else sorted(self.known_brokers.difference(brokers))
        awaited = self._awaited()
        factor = replication_factor
        if factor is None:
            factor = min(wanted, len(brokers) + len(down))
        if len(brokers) < factor <= len(brokers) + len(awaited):
            raise BrokersAwaitedError(factor, len(brokers), awaited)
        if not brokers or not 1 <= factor <= len(brokers) + len(down):
            raise ApiError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"Invalid replication factor {factor}: {len(brokers)} brokers are alive, and"
                f" {len(down)} are down",
            )
        racks = {one: self._image.registrations[one].rack or "" for one in brokers}
        start = self._image.partition_count
        return assign_replicas(partition_count, brokers, start, factor, racks, down)

    @property
    def known_brokers(self) -> set[int]:
        """The brokers that have been registered, also if they are down."""
        return {
            int(key.removeprefix(_LAST_REGISTRATION))
            for key in self._follower.revisions
            if key.startswith(_LAST_REGISTRATION)
        }

    async def unregister(self, broker_id: int) -> None:
        """Forget a broker that is down, and has no replicas. Raises ApiError."""
        if broker_id in self._image.registrations:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Broker {broker_id} is running: stop it first",
            )
        count = sum(
            broker_id in state.replicas
            for states in self._image.partition_states.values()
            for state in states.values()
        )
        if count:
            raise ApiError(
                ErrorCode.INVALID_REQUEST,
                f"Broker {broker_id} has replicas of {count} partitions: move them to others first",
            )
        key = _LAST_REGISTRATION + b"%d" % broker_id
        compares = [
            ModRevision(key, self._mod_revision(key)),
            ModRevision(b"registration/%d" % broker_id, 0),
        ]
        result = await self._send(compares, [Delete(key)])
        if not result.succeeded:
            raise ChangedMeanwhileError(result.revision)
        await self._follower.wait_for_revision(result.revision)

    def _factor_of(self, topic: Topic) -> int:
        """Return the replication factor of a topic, which may have been changed since."""
        state = self._image.partition_state(topic, 0)
        if state is None:
            return super()._factor_of(topic)
        return len(state.replicas) - len(state.removing_replicas)

    def _in_state(self, *states: str) -> set[int]:
        """Return the brokers whose registrations are in one of these states."""
        registrations = self._image.registrations
        return {broker_id for broker_id, one in registrations.items() if one.state in states}

    def _awaited(self) -> set[int]:
        """Return the brokers that will probably register in a moment.

        Just after this broker has registered, those are all that were registered before: if the
        store was away for long, all leases have ended, and all brokers register again.
        """
        self._note_own_registration()
        now = asyncio.get_running_loop().time()
        if now >= self._registered_at + self._cluster.session_seconds:
            return set()
        return self._registered_before - self._image.registrations.keys()

    def _note_own_registration(self) -> None:
        registration = self._image.registrations.get(self._cluster.broker_id)
        broker_epoch = -1 if registration is None else registration.broker_epoch
        if broker_epoch == self._own_epoch:
            return
        self._own_epoch = broker_epoch
        self._registered_at = asyncio.get_running_loop().time()
        self._registered_before = self.known_brokers

    async def plan_and_create_topics(
        self, names: Iterable[str], plan: Callable[[str], Topic], *, validate_only: bool = False
    ) -> dict[str, Topic | Exception]:
        """Plan topics and create them, after a wait for brokers that are about to return."""
        names = list(names)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._cluster.session_seconds):
                while self._awaited() and _lacks_brokers(names, plan):
                    with suppress(TimeoutError):
                        await asyncio.wait_for(
                            self._follower.wait_for_revision(self._follower.revision + 1),
                            _CHECK_SECONDS,
                        )
        return await super().plan_and_create_topics(names, plan, validate_only=validate_only)

    async def unfence(self, broker_id: int) -> None:
        """Let a registered broker serve: its state becomes `up`."""
        registration = self._image.registrations[broker_id]
        key, value = registration_record(broker_id, registration._replace(state="up"))
        assert value is not None
        content = json.loads(value)
        del content["epoch"]  # It is the create revision.
        value = json.dumps(content, separators=(",", ":")).encode()
        await self._transact(
            [Put(key, value, KEEP_LEASE)], [CreateRevision(key, registration.broker_epoch)]
        )
        logger.info(
            "unfenced a broker",
            extra={"broker": broker_id, "broker_epoch": registration.broker_epoch},
        )

    async def _run(self) -> None:
        while True:
            seen = self._follower.revision
            self._note_own_registration()
            self._note_returns()
            try:
                if self._cluster.is_controller:
                    await self._elect_and_unfence()
            except EXPECTED_ERRORS as error:
                logger.debug("brokers could not be unfenced", extra={"reason": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            except Exception:
                logger.exception("the controller failed")
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            await self._follower.wait_for_revision(seen + 1)

    async def _rebalance(self) -> None:
        """Elect the preferred leaders from time to time, so that leadership is spread again."""
        while True:
            await asyncio.sleep(self._topics.config.leader_imbalance_check_interval_seconds)
            try:
                if self._cluster.is_controller and self._topics.config.auto_leader_rebalance_enable:
                    await self.elect_preferred_leaders()
            except EXPECTED_ERRORS as error:
                logger.debug("leaders were not rebalanced", extra={"reason": str(error)})
            except Exception:
                logger.exception("rebalancing leaders failed")

    async def elect_preferred_leaders(self) -> None:
        """Elect the first replica of each partition, if leaders are unbalanced. Raises ApiError.

        A broker that has just returned may go again: it has to stay for an interval first.
        """
        config = self._topics.config
        now = asyncio.get_running_loop().time()
        settled_at = now - config.leader_imbalance_check_interval_seconds
        brokers = [
            broker_id
            for broker_id in self._in_state("up")
            if self._up_since.get(broker_id, (-1, now))[1] <= settled_at
        ]
        planned = plan_preferred_elections(
            self._image, brokers, config.leader_imbalance_per_broker_percentage
        )
        for start in range(0, len(planned), _STATES_PER_TRANSACTION):
            await self._store_states(planned[start : start + _STATES_PER_TRANSACTION])

    def _note_returns(self) -> None:
        """Note when each broker was seen first with its present registration."""
        now = asyncio.get_running_loop().time()
        for broker_id, one in self._image.registrations.items():
            if self._up_since.get(broker_id, (-1, 0.0))[0] != one.broker_epoch:
                self._up_since[broker_id] = (one.broker_epoch, now)

    async def change_partitions(
        self, plans: Mapping[TopicPartition, Callable[[Topic], PlannedElection | None]]
    ) -> dict[TopicPartition, Exception | None]:
        """Change the states of partitions, each as its plan says; return the error of each.

        A partition that its leader has changed meanwhile is planned again.
        """
        outcomes: dict[TopicPartition, Exception | None] = {}
        pending = list(plans)
        revision = 0
        for _attempt in range(_MAX_ATTEMPTS):
            planned: dict[TopicPartition, PlannedElection] = {}
            for number, tp in enumerate(pending, start=1):
                try:
                    change = plans[tp](self._topic_of(tp))
                except ApiError as error:
                    outcomes[tp] = error
                else:
                    outcomes[tp] = None
                    if change is not None:
                        planned[tp] = change
                if number % _STATES_PER_TRANSACTION == 0:
                    await asyncio.sleep(0)
            pending = []
            for start in range(0, len(planned), _STATES_PER_TRANSACTION):
                chunk = dict(list(planned.items())[start : start + _STATES_PER_TRANSACTION])
                try:
                    await self._store_states(list(chunk.values()))
                except ChangedMeanwhileError as error:
                    outcomes |= dict.fromkeys(chunk, error)
                    pending += chunk
                    revision = error.revision
                except ApiError as error:
                    outcomes |= dict.fromkeys(chunk, error)
            if not pending:
                break
            await self._wait_for_revision(revision)
        await self._cluster.wait_for_metadata(self._follower.revision)
        return outcomes

    def _topic_of(self, tp: TopicPartition) -> Topic:
        topic = self._image.topics.get(tp.topic)
        if topic is None or not 0 <= tp.partition < len(topic.replicas):
            raise ApiError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return topic

    async def _elect_and_unfence(self) -> None:
        """Elect leaders as the registrations require, then let the brokers serve that came back.

        A broker that came back is unfenced only after all its partitions have states that take its
        restart into account: it has left the ISRs if it may have lost records, and leads in new
        epochs only.
        """
        fenced = {
            broker_id: one.broker_epoch
            for broker_id, one in self._image.registrations.items()
            if one.state == "fenced"
        }
        planned = plan_elections(
            self._image, self._min_isr_of, self._is_unclean_enabled, self._has_lost
        )
        for start in range(0, len(planned), _STATES_PER_TRANSACTION):
            await self._store_states(planned[start : start + _STATES_PER_TRANSACTION])
            await asyncio.sleep(0)
        await self._remove_orphans()
        for broker_id, broker_epoch in fenced.items():
            registration = self._image.registrations.get(broker_id)
            if registration is not None and registration.broker_epoch == broker_epoch:
                await self.unfence(broker_id)

    async def _store_states(self, planned: Sequence[PlannedElection]) -> None:
        await self._transact(
            _operations(partition_record(one.topic.id, one.index, one.after) for one in planned)
        )
        for one in planned:
            if (outcome := one.outcome) is not None:
                self._metrics.elections[outcome] += 1
        log_elections(planned)
        log_reassignments(planned)

    def _min_isr_of(self, topic: Topic) -> int:
        return self._topics.config_of(topic).min_insync_replicas

    def _has_lost(self, broker_id: int, topic: Topic) -> bool:
        """Whether a lossy broker may have lost records of a topic: not if all were fsynced.

        That is sure only if the topic was not altered since the broker went down.
        """
        registration = self._image.registrations[broker_id]
        altered_at = self._mod_revision(topic_record(topic)[0])
        if not 0 < altered_at <= registration.fsynced_revision:
            return True
        durability = topic.configs.get("durability")
        if durability is None:
            return not registration.is_fsynced_by_default
        return durability != "fsync"

    def _is_unclean_enabled(self, topic: Topic) -> bool:
        return self._topics.config_of(topic).unclean_leader_election_enable

    async def _remove_orphans(self) -> None:
        """Remove the states of deleted topics that an earlier controller has left."""
        orphans: list[KeyValue] = [
            (partition_key(topic_id, index), None)
            for topic_id, states in self._image.partition_states.items()
            if topic_id in self._image.deleted_topics
            for index in states
        ]
        if orphans:
            await self._commit(orphans)

    async def _start_epoch(self) -> None:
        """Do nothing: the epoch of the controller is that of its key."""

    async def _commit(self, records: Sequence[KeyValue]) -> int:
        """Commit a change; return its revision. A large one takes several transactions, in order.

        Its first records make it true; the others remove what it leaves behind.
        """
        revision = 0
        for start in range(0, len(records), _STATES_PER_TRANSACTION):
            chunk = records[start : start + _STATES_PER_TRANSACTION]
            revision = await self._transact(_operations(chunk))
        return revision

    async def _commit_topics(self, topics: Sequence[Topic]) -> int:
        """Create or change topics, as many in each transaction as it has room for."""
        # Create the logs first: a full disk fails the request and leaves no topic.
        await self._topics.create_logs(topics)
        # The states of a topic come first: its own record is the moment of its creation.
        records = [record for topic in topics for record in self._records_of(topic)]
        revision = 0
        for start in range(0, len(records), _RECORDS_PER_TRANSACTION):
            chunk = records[start : start + _RECORDS_PER_TRANSACTION]
            # A transaction that arrives late, after a deletion, must not create the topic again.
            named = [topic for key, value in chunk for topic in [parse_topic_record((key, value))]]
            not_deleted = [
                ModRevision(f"deleted-topic/{topic[1].id}".encode(), 0)
                for topic in named
                if topic is not None and topic[1] is not None
            ]
            revision = await self._transact(_operations(chunk), not_deleted)
        return revision

    def _records_of(self, topic: Topic) -> list[KeyValue]:
        """Return the states of a topic's new partitions, and the topic."""
        known = self._image.partition_states.get(topic.id, {})
        alive = self._in_state("up")
        states = [
            partition_record(topic.id, index, initial_state(replicas, alive))
            for index, replicas in enumerate(topic.replicas)
            if index not in known
        ]
        return [*states, topic_record(topic)]

    async def _transact(
        self, operations: Sequence[Operation], compares: Sequence[Compare] = ()
    ) -> int:
        """Carry out a transaction of the controller; return its revision once it is applied here.

        The keys that it changes must be those of the image, and this broker the controller. Raises
        ApiError.
        """
        controller = self._image.active_controller
        if controller is None or controller.broker_id != self._cluster.broker_id:
            raise self._not_controller()
        result = await self._send(
            [
                CreateRevision(CONTROLLER_KEY, controller.epoch),
                *compares,
                *(ModRevision(one.key, self._mod_revision(one.key)) for one in operations),
            ],
            operations,
        )
        if not result.succeeded:
            entry = result.current[CONTROLLER_KEY]
            if entry is None or entry.create_revision != controller.epoch:
                raise self._not_controller()
            raise ChangedMeanwhileError(result.revision)
        await self._wait_for_revision(result.revision)
        return result.revision

    async def _wait_for_revision(self, revision: int) -> None:
        try:
            async with asyncio.timeout(self._cluster.session_seconds):
                await self._follower.wait_for_revision(revision)
        except TimeoutError:
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT, "The change is committed, and not applied here yet"
            ) from None

    async def _send(
        self, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> TransactionResult:
        try:
            return await self._store.transact(compares, operations)
        except UnknownOutcomeError as error:
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT,
                f"The metadata store did not answer, the change may have been made: {error}",
            ) from error
        except StoreError as error:
            raise ApiError(
                ErrorCode.BROKER_NOT_AVAILABLE, f"The metadata store is not available: {error}"
            ) from error

    def _mod_revision(self, key: bytes) -> int:
        return self._follower.revisions.get(key, (0, 0))[1]

    def _not_controller(self) -> ApiError:
        return ApiError(
            ErrorCode.NOT_CONTROLLER, f"Broker {self._cluster.broker_id} is not the controller"
        )


def _lacks_brokers(names: Iterable[str], plan: Callable[[str], Topic]) -> bool:
    """Whether a topic cannot be planned until brokers return."""
    for name in names:
        try:
            plan(name)
        except BrokersAwaitedError:
            return True
        except EXPECTED_ERRORS:
            continue
    return False


def _operations(records: Iterable[KeyValue]) -> list[Operation]:
    return [Delete(key) if value is None else Put(key, value) for key, value in records]
