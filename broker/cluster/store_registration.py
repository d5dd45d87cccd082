"""The registration of this broker in the metadata store, and its lease.

The registration is a key with a lease: it vanishes if the lease is not kept alive. Keepalives are
sent by the event loop itself, so that a loop that hangs loses its lease. The create revision of the
key is the broker epoch. A broker that has lost its lease registers again, in a new epoch, fenced;
the controller unfences it.

**Fence time.** A lease lives at least its time from when the last successful keepalive was *sent*.
A little before that, this broker must assume that others are elected (`within_fence_time`). The
clock counts the time that a machine is suspended. Nothing that must not be lost may depend on it:
the clock of a frozen virtual machine stands still.

A key with the id of this broker that another process holds is waited for. If the holder used the
same data directory, it has ended, because the directory is locked: its key is removed at once.

**An older copy of a data directory** lacks records that were acknowledged since, and has no sign of
it. So each registration has a number, the mark, which is written to the data directory first, and
then, in the registration's transaction, to the store. A clean stop raises it, too. A directory with
a lower mark than the store's is an older copy: the broker has lost records. A copy that was made
while the broker ran, and put back after a kill before the next registration, is not noticed.

Each registered broker that sees no controller tries to become it, with the same lease.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any
from uuid import UUID

from ottla.client.config import RetryConfig
from ottla.coord.metadata_image import CONTROLLER_KEY, directory_mark_record
from ottla.storage.errors import DataDirectoryError, StorageError

from .store.metadata_store import (
    KEEP_LEASE,
    CreateRevision,
    Delete,
    Entry,
    LeaseExpiredError,
    MetadataStore,
    ModRevision,
    Put,
    StoreError,
    StoreUnavailableError,
)

if TYPE_CHECKING:
    from ..partitions.topics import Topics
    from .store_follower import StoreFollower

logger = logging.getLogger(__name__)

_RETRY = RetryConfig(backoff=0.1, max_backoff=1.0)
#: Keepalives in the time of a lease; a failover of the store must fit between two.
_KEEP_ALIVES_PER_LEASE = 6
#: Pause between two keepalives that failed, each at another member.
_NEXT_MEMBER_SECONDS = 0.1


def boot_time() -> float:
    """Return a clock that also counts the time that the machine was suspended."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        return time.clock_gettime(time.CLOCK_BOOTTIME)
    return time.monotonic()


class StoreRegistration:
    """Keeps this broker registered until it is stopped."""

    def __init__(
        self,
        store: MetadataStore,
        follower: StoreFollower,
        broker_id: int,
        incarnation: UUID,
        session_seconds: float,
        clock: Callable[[], float] = boot_time,
    ) -> None:
        self._store = store
        self._follower = follower
        self._broker_id = broker_id
        self._incarnation = incarnation
        self._session_seconds = session_seconds
        self._clock = clock
        self._key = b"registration/%d" % broker_id
        self._last_key = b"last-registration/%d" % broker_id
        self._topics: Topics
        self._listeners: Mapping[str, str]
        self._rack: str | None = None
        self._lease_id: int | None = None
        #: The create revision of the registration; -1 while there is none.
        self.broker_epoch = -1
        #: Whether this broker may have lost records with its last restart; until it is unfenced.
        self.is_lossy = False
        #: Up to this revision of the store, this broker knew which topics are fsynced, and has all
        #: records of these; -1 if it may have lost them, too.
        self.fsynced_revision = -1
        #: Called in a thread when records may be lost, before others can know.
        self.note_losses: Callable[[], None] = lambda: None
        #: Called in a thread when this broker was unfenced although it was lossy.
        self.forget_losses: Callable[[], None] = lambda: None
        self._fence_at = -math.inf
        #: Whether the store answered the last keepalive.
        self.is_store_reachable = False
        #: Keepalives that the store did not answer.
        self.failed_keep_alives = 0
        #: Set when this broker is registered, and its image says so.
        self.registered = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._forgetting: asyncio.Task[None] | None = None
        self._first_refusal: float | None = None

    @property
    def is_waiting_for_rival(self) -> bool:
        """Whether another process has the id of this broker, and may have ended."""
        return self._first_refusal is not None

    @property
    def is_fenced(self) -> bool:
        """Whether the controller has not unfenced this broker since it registered last."""
        registration = self._topics.image.registrations.get(self._broker_id)
        return (
            self.broker_epoch < 0
            or registration is None
            or registration.broker_epoch != self.broker_epoch
            or registration.state == "fenced"
        )

    def within_fence_time(self) -> bool:
        """Whether nobody else can have been elected because of this broker's lease."""
        return self._clock() < self._fence_at

    def start(self, topics: Topics, listeners: Mapping[str, str], rack: str | None = None) -> None:
        """Register as soon as the follower has caught up, and stay registered."""
        self._topics, self._listeners, self._rack = topics, listeners, rack
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._run()), loop.create_task(self._contend())]

    async def leave(self) -> None:
        """Announce that this broker stops: others are elected, and it joins no ISR."""
        if self._lease_id is None or self.broker_epoch < 0:
            return
        entry = (await self._store.load(self._key)).entries.get(self._key)
        if entry is None or entry.create_revision != self.broker_epoch:
            return
        content = {**json.loads(entry.value), "state": "leaving"}
        await self._store.transact(
            [ModRevision(self._key, entry.mod_revision)],
            [Put(self._key, _json(content), KEEP_LEASE)],
        )

    async def stop(self) -> None:
        """End the lease: the registration vanishes, and so does the controller key."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._forgetting is not None:
            await self._forgetting
        self._fence_at = -math.inf
        if self._lease_id is not None:
            try:
                async with asyncio.timeout(1.0):
                    await self._mark_stop()
                    await self._store.revoke_lease(self._lease_id)
            except (StoreError, TimeoutError) as error:
                logger.warning("lease could not be revoked", extra={"reason": str(error)})

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                await self._follower.caught_up.wait()
                await self._register()
                failures = 0
                await self._keep_alive()
            except LeaseExpiredError as error:
                logger.warning(
                    "registration has expired: registering again",
                    extra={"broker_epoch": self.broker_epoch, "reason": str(error)},
                )
            except DataDirectoryError as error:
                self._fail(error)
                return
            except StoreError as error:
                level = logging.DEBUG if failures else logging.WARNING
                logger.log(level, "broker is not registered", extra={"reason": str(error)})
            except Exception:
                logger.exception("registration failed")
            self.broker_epoch = -1
            self.registered.clear()
            await asyncio.sleep(_RETRY.delay(failures, random.random()))  # noqa: S311
            failures += 1

    async def _register(self) -> None:
        """Register in a new epoch, fenced. Raises DataDirectoryError, StoreError."""
        if self._forgetting is not None:
            await self._forgetting
        entries = (await self._store.load(self._key)).entries
        current = entries.get(self._key)
        if current is not None:
            await self._remove(current)
        self._first_refusal = None
        last = (await self._store.load(self._last_key)).entries.get(self._last_key)
        leader_epoch = self._next_leader_epoch(last)
        mark = await self._raise_mark(last)
        sent_at = self._clock()
        self._lease_id = lease_id = await self._store.grant_lease(math.ceil(self._session_seconds))
        self.is_lossy = self.is_lossy or self._follower.is_directory_lost
        value = {
            "incarnation": str(self._incarnation),
            "leader_epoch": leader_epoch,
            "directory": str(self._follower.directory),
            "listeners": dict(self._listeners),
            "rack": self._rack,
            "state": "fenced",
            "lossy": self.is_lossy,
            "lease": lease_id,
        }
        durability = self._topics.config.topic_defaults.durability
        fsynced_revision = self.fsynced_revision
        if fsynced_revision >= 0 and self._follower.restored_revision is not None:
            fsynced_revision = self._follower.restored_revision
        if self.is_lossy and fsynced_revision >= 0 and not self._follower.is_directory_lost:
            before = None if last is None else json.loads(last.value).get("durability")
            value["fsynced_revision"] = fsynced_revision
            value["fsynced_by_default"] = durability == before == "fsync"
        kept = {
            "directory": str(self._follower.directory),
            "leader_epoch": leader_epoch,
            "durability": durability,
            "mark": mark,
        }
        result = await self._store.transact(
            [
                ModRevision(self._key, 0),
                ModRevision(self._last_key, last.mod_revision if last else 0),
            ],
            [Put(self._key, _json(value), lease_id), Put(self._last_key, _json(kept))],
        )
        if not result.succeeded:
            raise StoreError(f"Broker {self._broker_id} was registered by another process")
        self.broker_epoch = result.revision
        self._fence_at = self._fence_after(sent_at)
        self.is_store_reachable = True
        await self._follower.wait_for_revision(result.revision)
        # Not before the image has everything: this broker leads only what it leads from now on.
        self._topics.start_leader_epoch(leader_epoch)
        self._topics.update_roles()  # The controller may have been faster than this answer.
        self.registered.set()
        logger.info("registered", extra={"broker_epoch": self.broker_epoch})

    async def _raise_mark(self, last: Entry | None) -> int:
        """Raise the mark of the data directory; return the one for the store.

        If the directory is an older copy, this broker is lossy from now on. That is noted first.
        """
        in_store = 0 if last is None else json.loads(last.value).get("mark", 0)
        in_directory = self._topics.image.directory_mark
        try:
            if in_directory < in_store:
                if not self._follower.is_directory_lost:
                    logger.error(
                        "the data directory is an older copy: it may lack acknowledged records",
                        extra={"mark": in_directory, "expected": in_store},
                    )
                self.is_lossy, self.fsynced_revision = True, -1
                await asyncio.to_thread(self.note_losses)
            mark = max(in_store, in_directory) + 1
            await self._topics.commit([directory_mark_record(mark)])
        except (OSError, StorageError) as error:
            # The mark in the store must not be the higher one.
            logger.warning("data directory could not be marked", extra={"reason": str(error)})
            return in_store
        return mark

    async def _mark_stop(self) -> None:
        """Raise the mark at a clean stop: copies that were made before are older from now on."""
        if self.broker_epoch < 0:
            return
        last = (await self._store.load(self._last_key)).entries.get(self._last_key)
        if last is None:
            return
        content = json.loads(last.value)
        if content["directory"] == str(self._follower.directory):
            content["mark"] = await self._raise_mark(last)
            await self._store.transact(
                [ModRevision(self._last_key, last.mod_revision)],
                [Put(self._last_key, _json(content))],
            )

    async def _remove(self, current: Entry) -> None:
        """Remove the registration of an earlier process. Raises StoreError if it may be alive."""
        content = json.loads(current.value)
        is_own = content["incarnation"] == str(self._incarnation)
        if is_own or content["directory"] == str(self._follower.directory):
            # The directory is locked by this process: nobody else uses it.
            result = await self._store.transact(
                [ModRevision(self._key, current.mod_revision)], [Delete(self._key)]
            )
            if result.succeeded:
                return
            raise StoreError(f"The registration of broker {self._broker_id} has changed")
        now = asyncio.get_running_loop().time()
        if self._first_refusal is None:
            self._first_refusal = now
        addresses = ", ".join(content.get("listeners", {}).values())
        reason = (
            f"Broker id {self._broker_id} is in use by another process, at {addresses}: stop it, or"
            " give this one an id of its own"
        )
        if now - self._first_refusal > 2 * self._session_seconds:
            raise DataDirectoryError(reason)
        raise StoreUnavailableError(reason)

    def _next_leader_epoch(self, last: Entry | None) -> int:
        used = -1 if last is None else json.loads(last.value)["leader_epoch"]
        return max(self._topics.next_leader_epoch(), used + 1)

    async def _keep_alive(self) -> None:
        """Keep the lease alive until it is lost. Raises LeaseExpiredError, StoreError."""
        assert self._lease_id is not None
        interval = self._session_seconds / _KEEP_ALIVES_PER_LEASE
        while True:
            await asyncio.sleep(interval)
            self._check_image()
            if self._follower.is_failing:
                await self._give_up_control()
            if self.is_lossy and not self.is_fenced and self._forgetting is None:
                # The lease must not wait for the disk.
                self._forgetting = asyncio.create_task(self._forget_losses())
            while True:
                sent_at = self._clock()
                try:
                    await self._store.keep_alive(self._lease_id)
                    break
                except StoreUnavailableError as error:
                    logger.debug("keepalive failed", extra={"reason": str(error)})
                    self.is_store_reachable = False
                    self.failed_keep_alives += 1
                    await asyncio.sleep(_NEXT_MEMBER_SECONDS)
            self.is_store_reachable = True
            self._fence_at = self._fence_after(sent_at)

    async def _forget_losses(self) -> None:
        """Forget that records may be lost, which the controller knows by now."""
        try:
            await asyncio.to_thread(self.forget_losses)
            self.is_lossy = False
        except OSError as error:
            logger.warning("marker of losses could not be removed", extra={"reason": str(error)})
        finally:
            self._forgetting = None

    def _check_image(self) -> None:
        """Raise LeaseExpiredError if the store has no registration of this epoch any longer."""
        if self._follower.revision < self.broker_epoch:
            return
        revisions = self._follower.revisions.get(self._key)
        if revisions is None or revisions[0] != self.broker_epoch:
            raise LeaseExpiredError("the registration was removed")

    def _fence_after(self, sent_at: float) -> float:
        interval = self._session_seconds / _KEEP_ALIVES_PER_LEASE
        return sent_at + self._session_seconds - interval

    def _fail(self, error: DataDirectoryError) -> None:
        logger.error("this broker cannot run", extra={"reason": str(error)})
        if not self._follower.failed.done():
            self._follower.failed.set_result(error)

    async def _contend(self) -> None:
        """Try to become the controller whenever there is none."""
        while True:
            await self.registered.wait()
            seen = self._follower.revision
            if self._topics.image.active_controller is None and not self._follower.is_failing:
                try:
                    await self._claim()
                except StoreError as error:
                    logger.debug("no controller", extra={"reason": str(error)})
                    await asyncio.sleep(_RETRY.delay(0, random.random()))  # noqa: S311
                except Exception:
                    logger.exception("claiming the controller key failed")
                    await asyncio.sleep(1.0)
                continue
            await self._follower.wait_for_revision(seen + 1)

    async def _give_up_control(self) -> None:
        """Let another broker be the controller: this one does not follow what it would change."""
        with suppress(StoreError):
            entry = (await self._store.load(CONTROLLER_KEY)).entries.get(CONTROLLER_KEY)
            if entry is not None and json.loads(entry.value)["broker_epoch"] == self.broker_epoch:
                await self._store.transact(
                    [ModRevision(CONTROLLER_KEY, entry.mod_revision)], [Delete(CONTROLLER_KEY)]
                )

    async def _claim(self) -> None:
        assert self._lease_id is not None
        result = await self._store.transact(
            [
                ModRevision(CONTROLLER_KEY, 0),
                # Not with the lease of an earlier registration.
                CreateRevision(self._key, self.broker_epoch),
            ],
            [
                Put(
                    CONTROLLER_KEY,
                    _json({"broker": self._broker_id, "broker_epoch": self.broker_epoch}),
                    self._lease_id,
                )
            ],
        )
        entry = result.current.get(CONTROLLER_KEY)
        if result.succeeded:
            await self._follower.wait_for_revision(result.revision)
            logger.info("this broker is the controller", extra={"epoch": result.revision})
        elif entry is not None:
            await self._follower.wait_for_revision(entry.mod_revision)
        else:
            raise StoreError("This broker is not registered any longer")


def _json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()
