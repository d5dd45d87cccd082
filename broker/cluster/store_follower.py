"""The store follower: keeps this broker's metadata log a copy of the metadata store.

It loads the whole store once, commits what differs from the image, and then watches: each change is
written to the local metadata log and applied, with the id of the store and the revision. So a
broker can start while the store is down, and knows what the store had.

**A store that went back is refused**: one with another id, or with a lower revision than the local
copy. It was restored from a backup, or replaced; what it says about replicas is old, and a replica
without the latest records could be elected by it. The broker then serves what it has, does not
register, and says why. One that was made from brokers' copies (`coord/restoration.py`) is accepted
if it has everything that this broker's copy has.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING
from uuid import uuid4

from ottla.client.config import RetryConfig
from ottla.coord.metadata_image import (
    MAX_DELETED_TOPICS,
    RESTORED_KEY,
    KeyValue,
    Restoration,
    StorePosition,
    Topic,
    deleted_topic_record,
    is_store_key,
    parse_restoration,
    partition_key,
    store_record,
    topic_record,
)
from ottla.coord.partition_state import PartitionState
from ottla.coord.restoration import CLUSTER_KEY, FORMAT_VERSION, static_store_position
from ottla.storage.errors import DataDirectoryError, StorageError

from .store.metadata_store import (
    Change,
    CompactedError,
    Entry,
    MetadataStore,
    ModRevision,
    OtherStoreError,
    Put,
    Snapshot,
    StoreError,
)

if TYPE_CHECKING:
    from ..partitions.topics import Topics

logger = logging.getLogger(__name__)

#: Changes that were received and not committed yet; the watch is not read above it.
_MAX_PENDING = 1000
_RETRY = RetryConfig(backoff=0.1, max_backoff=1.0)


class StoreFollower:
    """Follows the metadata store until it is stopped."""

    def __init__(self, store: MetadataStore, broker_id: int) -> None:
        self._store = store
        self._last_registration_key = b"last-registration/%d" % broker_id
        self._topics: Topics
        self._cluster_id: str
        self._task: asyncio.Task[None] | None = None
        self._commit_task: asyncio.Task[None] | None = None
        #: The revision up to which all changes are applied on this broker.
        self.revision = 0
        #: The create and the modification revision of each key of the store: those of the image, or
        #: older ones. A compare with them fails rather than miss a change.
        self.revisions: dict[bytes, tuple[int, int]] = {}
        #: Called after each change that was applied.
        self.on_change: list[Callable[[], None]] = []
        #: Set while the image follows the store.
        self.caught_up = asyncio.Event()
        self._changed = asyncio.Event()
        #: The id of the data directory; a new one is stored with the first metadata.
        self.directory = uuid4()
        #: Whether this broker had another data directory before.
        self.is_directory_lost = False
        #: Completed with the error if this broker must not run.
        self.failed: asyncio.Future[DataDirectoryError] = asyncio.get_running_loop().create_future()
        self._last_error = ""
        #: Whether metadata cannot be stored on this broker, for instance because the disk is full.
        self.is_failing = False
        # As of the first answer of the store.
        self._restoration = Restoration()
        #: What the revision of this broker's copy is in a restored store; -1 if the copy was older
        #: than what was restored. None: the store was not restored since.
        self.restored_revision: int | None = None

    async def find_cluster_id(self) -> str | None:
        """Return the id of the cluster in the store; None if it has none, or does not answer."""
        try:
            entry = (await self._store.load(CLUSTER_KEY)).entries.get(CLUSTER_KEY)
            restored = (await self._store.load(RESTORED_KEY)).entries.get(RESTORED_KEY)
        except StoreError as error:
            logger.warning("metadata store is unreachable", extra={"reason": str(error)})
            return None
        self._restoration = _restoration_of(restored)
        return None if entry is None else _cluster_id(entry)

    async def join_cluster(self, proposed: str) -> str:
        """Return the id of the cluster in the store; if it has none, it becomes `proposed`.

        Only for a broker without data: one that has some must not make an empty store its own.
        Waits while the store is down.
        """
        failures = 0
        while True:
            try:
                value = json.dumps({"id": proposed, "version": FORMAT_VERSION}).encode()
                result = await self._store.transact(
                    [ModRevision(CLUSTER_KEY, 0)], [Put(CLUSTER_KEY, value)]
                )
                if result.succeeded:
                    return proposed
                entry = result.current[CLUSTER_KEY]
                assert entry is not None
                return _cluster_id(entry)
            except StoreError as error:
                level = logging.DEBUG if failures else logging.WARNING
                logger.log(level, "waiting for the metadata store", extra={"reason": str(error)})
                await asyncio.sleep(_RETRY.delay(failures, random.random()))  # noqa: S311
                failures += 1

    def start(self, topics: Topics, cluster_id: str) -> None:
        """Start to follow. Raises DataDirectoryError if the directory is that of a static cluster.

        Its topics would be removed if they are not in the store: `ottla cluster migrate` makes one
        that has them.
        """
        image = topics.image
        self._topics, self._cluster_id = topics, cluster_id
        if image.store_position is None and (image.topics or image.position is not None):
            position = self._static_position()
            if not self._restoration.contains(0, position):
                raise DataDirectoryError(
                    "The data directory belongs to a cluster without a metadata store, and the"
                    " store does not have its topics, or did not answer: run ottla cluster migrate"
                    " once, with the data directories of all brokers"
                )
        self.directory = image.directory or self.directory
        self._task = asyncio.get_running_loop().create_task(self._run())

    def _static_position(self) -> StorePosition:
        """Return how far the metadata log is that of a static cluster."""
        return static_store_position(
            self._topics.image.own_position(self._topics.metadata_log.end_offset)
        )

    async def stop(self) -> None:
        """Stop; a commit under way completes first."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._commit_task is not None:
            await asyncio.gather(self._commit_task, return_exceptions=True)

    async def wait_for_revision(self, revision: int) -> None:
        """Wait until all changes up to a revision are applied on this broker."""
        while self.revision < revision:
            await self._changed.wait()

    async def _run(self) -> None:
        failures = 0
        while True:
            try:
                snapshot = await self._store.load()
                self._check(snapshot)
                await self._commit_snapshot(snapshot)
                failures, self._last_error, self.is_failing = 0, "", False
                self.caught_up.set()
                logger.info("following the metadata store", extra={"revision": snapshot.revision})
                await self._follow(snapshot.revision)
            except CompactedError:
                logger.info("loading all metadata again: the store has compacted its history")
                continue
            except OtherStoreError as error:
                self.caught_up.clear()
                self._log_error("not following the metadata store", str(error))
            except (OSError, StorageError) as error:
                self.is_failing = True
                self._log_error("metadata could not be stored", str(error))
            except StoreError as error:
                # Warn once, not for each attempt.
                level = logging.DEBUG if failures else logging.WARNING
                logger.log(level, "metadata store is unreachable", extra={"reason": str(error)})
            except Exception:
                # Keep following after a bug: the broker's metadata would stay stale for good.
                logger.exception("following the metadata store failed")
            await asyncio.sleep(_RETRY.delay(failures, random.random()))  # noqa: S311
            failures += 1

    def _check(self, snapshot: Snapshot) -> None:
        """Raise OtherStoreError if the store is not the one that this broker has copied."""
        entry = snapshot.entries.get(CLUSTER_KEY)
        image = self._topics.image
        position = image.store_position
        if position is None and image.topics:
            position = self._static_position()
        restored = snapshot.entries.get(RESTORED_KEY)
        restoration = _restoration_of(restored)
        if entry is None:
            reason = "it has no metadata of this cluster"
        elif _cluster_id(entry) != self._cluster_id:
            reason = f"it has cluster {_cluster_id(entry)}, and had {self._cluster_id}"
        elif position is None:
            reason = ""
        elif restoration.generation != image.restoration.generation:
            if not restoration.contains(image.restoration.generation, position):
                reason = (
                    f"its restoration {restoration.generation} was made without what this broker"
                    f" knows, revision {position.revision} of store {position.store_id}"
                )
            else:
                assert restored is not None
                is_complete = position == restoration.copied[-1]
                self.restored_revision = restored.mod_revision if is_complete else -1
                self.revisions.clear()  # Those of another store.
                reason = ""
        elif position.store_id != snapshot.store_id:
            reason = f"its id is {snapshot.store_id}, and was {position.store_id}"
        elif snapshot.revision < position.revision:
            reason = f"it is at revision {snapshot.revision}, and was at {position.revision}"
        else:
            reason = self._older_key(snapshot) or self._older_metadata(snapshot)
        if reason:
            raise OtherStoreError(
                f"The metadata store was replaced or restored from a backup: {reason}. This broker"
                " keeps its topics and data, and serves them, but does not register: an old state"
                " could elect a replica that lacks records. Bring the latest store back; if it is"
                " lost, stop all brokers, and make a new one: ottla cluster restore"
            )

    def _older_key(self, snapshot: Snapshot) -> str:
        """Return which key of a store has an older revision than it had, if any."""
        for key, (_created, known) in self.revisions.items():
            entry = snapshot.entries.get(key)
            if entry is not None and entry.mod_revision < known:
                revision = entry.mod_revision
                return f"{key.decode()} is at revision {revision}, and was at {known}"
        return ""

    def _older_metadata(self, snapshot: Snapshot) -> str:
        """Return what a store does not have of this broker's copy, if it went back and on again.

        Others may have changed an etcd since it was restored, so that its revision is no lower.
        """
        image = self._topics.image
        for topic in image.topics.values():
            key, _value = topic_record(topic)
            if key not in snapshot.entries and not self._was_deleted(topic, snapshot):
                return f"it has neither topic {topic.name} nor its deletion"
            for index, state in image.partition_states.get(topic.id, {}).items():
                entry = snapshot.entries.get(partition_key(topic.id, index))
                if entry is None or entry.value == state.to_json():
                    continue
                found = PartitionState.from_json(entry.value).partition_epoch
                if found < state.partition_epoch:
                    return (
                        f"{topic.name}-{index} has partition epoch {found}, and had"
                        f" {state.partition_epoch}"
                    )
        return ""

    @staticmethod
    def _was_deleted(topic: Topic, snapshot: Snapshot) -> bool:
        """Whether a topic was deleted; of many deletions, the store does not know the oldest."""
        count = sum(key.startswith(b"deleted-topic/") for key in snapshot.entries)
        key = deleted_topic_record(topic.id, topic.name)[0]
        return key in snapshot.entries or count >= MAX_DELETED_TOPICS

    def _log_error(self, message: str, reason: str) -> None:
        """Log an error once, and not for each attempt."""
        if reason != self._last_error:
            self._last_error = reason
            logger.error(message, extra={"reason": reason})

    async def _commit_snapshot(self, snapshot: Snapshot) -> None:
        """Commit what differs between the store and the image."""
        latest = dict(filter(None, map(_record_of, snapshot.entries.values())))
        current = dict(self._topics.image.records())
        changes: list[KeyValue] = [
            (key, None)
            for key in current
            if key not in latest and is_store_key(key) and key != b"producer-ids"
        ]
        changes += [(key, value) for key, value in latest.items() if current.get(key) != value]
        last = snapshot.entries.get(self._last_registration_key)
        if last is not None and json.loads(last.value)["directory"] != str(self.directory):
            self.is_directory_lost = True
        position = StorePosition(snapshot.store_id, snapshot.revision)
        if changes or self._topics.image.store_position != position:
            await self._commit(changes, position, is_directory_lost=self.is_directory_lost)
        self.revisions = {
            key: (entry.create_revision, entry.mod_revision)
            for key, entry in snapshot.entries.items()
        }
        self._applied(snapshot.revision)

    async def _follow(self, revision: int) -> None:
        """Commit changes as they come, all that are pending at once."""
        pending: asyncio.Queue[Change] = asyncio.Queue(_MAX_PENDING)

        async def watch() -> None:
            async with aclosing(self._store.watch(revision)) as changes:
                async for change in changes:
                    await pending.put(change)

        watching = asyncio.get_running_loop().create_task(watch())
        try:
            while True:
                received = asyncio.ensure_future(pending.get())
                await asyncio.wait((received, watching), return_when=asyncio.FIRST_COMPLETED)
                if not received.done():
                    received.cancel()
                    watching.result()  # Raises why it has ended.
                    return
                changes = [received.result()]
                while not pending.empty():
                    changes.append(pending.get_nowait())
                await self._commit_changes(changes)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    async def _commit_changes(self, changes: Sequence[Change]) -> None:
        records: list[KeyValue] = []
        revisions: dict[bytes, tuple[int, int] | None] = {}
        for change in changes:
            for entry in change.entries:
                revisions[entry.key] = (entry.create_revision, entry.mod_revision)
                record = _record_of(entry)
                if record is not None:
                    records.append(record)
            for key in change.deleted:
                revisions[key] = None
                if is_store_key(key):
                    records.append((key, None))
        revision = changes[-1].revision
        await self._commit(records, StorePosition(self._store.store_id, revision))
        for key, pair in revisions.items():
            if pair is None:
                self.revisions.pop(key, None)
            else:
                self.revisions[key] = pair
        self._applied(revision)

    async def _commit(
        self,
        records: Sequence[KeyValue],
        position: StorePosition,
        *,
        is_directory_lost: bool = False,
    ) -> None:
        """Commit records in a task of its own: a cancelled one would leave threads behind."""
        commit = self._topics.commit_from_store(
            records, position, self.directory, is_directory_lost=is_directory_lost
        )
        self._commit_task = asyncio.get_running_loop().create_task(commit)
        await asyncio.shield(self._commit_task)

    def _applied(self, revision: int) -> None:
        self.revision = max(self.revision, revision)
        self._changed.set()
        self._changed = asyncio.Event()
        for callback in self.on_change:
            callback()


def _record_of(entry: Entry) -> KeyValue | None:
    return store_record(entry.key, entry.value, entry.create_revision)


def _restoration_of(entry: Entry | None) -> Restoration:
    return Restoration() if entry is None else parse_restoration(json.loads(entry.value))


def _cluster_id(entry: Entry) -> str:
    cluster_id: str = json.loads(entry.value)["id"]
    return cluster_id
