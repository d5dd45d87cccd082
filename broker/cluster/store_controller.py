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
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ottla.coord.metadata_image import (
    CONTROLLER_KEY,
    KeyValue,
    Topic,
    producer_ids_record,
    registration_record,
    topic_record,
)
from ottla.protocol.errors import ErrorCode

from ..requests.errors import EXPECTED_ERRORS, ApiError
from .controller import PRODUCER_IDS_PER_BLOCK, Controller
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
    from ..partitions.topics import Topics
    from .store_follower import StoreFollower
    from .store_membership import StoreMembership

logger = logging.getLogger(__name__)

#: A transaction has room for two compares of each, and for that of the controller key.
_RECORDS_PER_TRANSACTION = 60
_PRODUCER_IDS_KEY = b"producer-ids"
_RETRY_SECONDS = 0.5


class StoreController(Controller):
    """Changes metadata in the store while this broker is the controller."""

    def __init__(
        self,
        topics: Topics,
        cluster: StoreMembership,
        store: MetadataStore,
        follower: StoreFollower,
    ) -> None:
        super().__init__(topics, cluster)
        self._store = store
        self._follower = follower
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Watch the registrations while this broker is the controller."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        """Stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

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
            try:
                if self._cluster.is_controller:
                    await self._unfence_all()
            except EXPECTED_ERRORS as error:
                logger.debug("brokers could not be unfenced", extra={"reason": str(error)})
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            except Exception:
                logger.exception("the controller failed")
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            await self._follower.wait_for_revision(seen + 1)

    async def _unfence_all(self) -> None:
        for broker_id, registration in list(self._image.registrations.items()):
            if registration.state == "fenced":
                await self.unfence(broker_id)

    async def _start_epoch(self) -> None:
        """Do nothing: the epoch of the controller is that of its key."""

    async def _commit(self, records: Sequence[KeyValue]) -> int:
        """Commit a change that fits into a transaction; return its revision."""
        return await self._transact(_operations(records))

    async def _commit_topics(self, topics: Sequence[Topic]) -> int:
        """Create or change topics, as many in each transaction as it has room for."""
        # Create the logs first: a full disk fails the request and leaves no topic.
        await self._topics.create_logs(topics)
        revision = 0
        for start in range(0, len(topics), _RECORDS_PER_TRANSACTION):
            chunk = topics[start : start + _RECORDS_PER_TRANSACTION]
            # A transaction that arrives late, after a deletion, must not create the topic again.
            not_deleted = [ModRevision(f"deleted-topic/{topic.id}".encode(), 0) for topic in chunk]
            revision = await self._transact(_operations(map(topic_record, chunk)), not_deleted)
        return revision

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
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT, "The metadata was changed meanwhile; try again"
            )
        try:
            async with asyncio.timeout(self._cluster.session_seconds):
                await self._follower.wait_for_revision(result.revision)
        except TimeoutError:
            raise ApiError(
                ErrorCode.REQUEST_TIMED_OUT, "The change is committed, and not applied here yet"
            ) from None
        return result.revision

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


def _operations(records: Sequence[KeyValue] | map[KeyValue]) -> list[Operation]:
    return [Delete(key) if value is None else Put(key, value) for key, value in records]
