"""Restoration: the entries of a metadata store, made from the copies that brokers have.

Every broker has a copy of the metadata (`metadata_image.py`). If the store is lost with all its
members, the newest of them becomes the new store. It is the latest state if all brokers' copies are
there: a broker leads, and a leader changes its ISR, only after its copy says so, or by itself.

- The last leader of a partition has all acked records. So it alone is in the ISR, and the others
  truncate to it, in a new leader epoch, above all epochs in the logs. If it may have lost records
  meanwhile, it leaves the ISR when it registers, and the partition waits for an operator.
- A partition without a leader keeps those who may be elected; if nobody may, it waits, too.
- The entry `restored` says what was copied. A broker whose copy has more refuses the new store.

A static cluster has no store: `migrated_entries` makes one from its metadata log. Each partition
keeps its only replica.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple
from uuid import UUID

from .metadata_image import (
    CONTROLLER_KEY,
    RESTORED_KEY,
    KeyValue,
    MetadataImage,
    MetadataPosition,
    Restoration,
    StorePosition,
    Topic,
    TopicPartition,
    is_store_key,
    partition_record,
    producer_ids_record,
    restoration_record,
)
from .partition_state import NO_LEADER, PartitionState

#: The identity of the cluster, and the moment at which a store is complete.
CLUSTER_KEY = b"cluster"
FORMAT_VERSION = 1
#: The id of the "store" of a static cluster: its revisions are offsets of the metadata log.
STATIC_STORE_ID = "static"
#: Blocks of producer ids may have been allocated that no copy knows.
_SKIPPED_PRODUCER_IDS = 100_000
_NO_DIRECTORY = UUID(int=0)
_NOT_COPIED = (b"registration/", b"partition/", b"last-registration/")


class RestorationError(ValueError):
    """The copies cannot become a store."""


@dataclass(frozen=True, slots=True)
class MetadataCopy:
    """What one broker has: the metadata, and the latest leader epoch in each of its logs."""

    source: str
    cluster_id: str
    broker_id: int
    image: MetadataImage
    #: In a static cluster: how far its metadata log is the controller's.
    static_position: MetadataPosition | None
    #: By log name.
    leader_epochs: Mapping[str, int]

    @property
    def is_static(self) -> bool:
        """Whether the broker belongs to a static cluster."""
        return self.image.store_position is None

    @property
    def position(self) -> StorePosition:
        """How far this is a copy, and of what."""
        return self.image.store_position or static_store_position(self.static_position)

    @property
    def order(self) -> tuple[int, int, int]:
        """Of two copies, the newer one has the greater order."""
        epoch = self.static_position.epoch if self.is_static and self.static_position else 0
        return self.image.restoration.generation, epoch, self.position.revision


def static_store_position(position: MetadataPosition | None) -> StorePosition:
    """Return a position in the metadata log of a static cluster as one in a store."""
    return StorePosition(STATIC_STORE_ID, 0 if position is None else position.offset)


class LostPartition(NamedTuple):
    """A partition that has no leader after the restoration, or that may lack records."""

    partition: TopicPartition
    reason: str


@dataclass(frozen=True, slots=True)
class RestorationPlan:
    """The entries of the new store, the last of which makes it valid, and what is at stake."""

    newest: MetadataCopy
    copies: Sequence[MetadataCopy]
    #: Brokers without a copy.
    missing: frozenset[int]
    restoration: Restoration
    entries: Sequence[tuple[bytes, bytes]]
    #: Partitions that wait: for a broker without a copy, or for an operator.
    waiting: Sequence[LostPartition]
    #: Partitions whose logs know a later leader than the metadata: records may be lost.
    doubtful: Sequence[LostPartition]


def plan_restoration(copies: Sequence[MetadataCopy]) -> RestorationPlan:
    """Return the plan to restore a lost store, or to migrate a static cluster.

    Raises RestorationError if the copies are not all of one cluster.
    """
    newest = _newest(copies)
    known = _known_brokers(copies)
    missing = frozenset(known - {copy.broker_id for copy in copies})
    restoration = newest.image.restoration.next(newest.position)
    waiting: list[LostPartition] = []
    doubtful: list[LostPartition] = []
    entries = [
        (key, value)
        for key, value in newest.image.records()
        if value is not None and _is_copied(key)
    ]
    entries += _producer_ids(newest.image)
    for topic, index, state in _states(newest):
        tp = TopicPartition(topic.name, index)
        in_logs = max(
            (copy.leader_epochs.get(f"{topic.name}-{index}", -1) for copy in copies), default=-1
        )
        restored = restored_state(state, in_logs)
        if not newest.is_static and in_logs > state.leader_epoch:
            reason = f"a log has leader epoch {in_logs}, the metadata {state.leader_epoch}"
            doubtful.append(LostPartition(tp, reason))
        if reason := _why_waiting(restored, missing):
            waiting.append(LostPartition(tp, reason))
        key, value = partition_record(topic.id, index, restored)
        assert value is not None
        entries.append((key, value))
    entries += _last_registrations(copies, newest, missing)
    key, value = restoration_record(restoration)
    assert value is not None
    content = {"id": newest.cluster_id, "version": FORMAT_VERSION}
    entries += [(key, value), (CLUSTER_KEY, _json(content))]
    return RestorationPlan(newest, copies, missing, restoration, entries, waiting, doubtful)


def restored_state(state: PartitionState, epoch_in_logs: int) -> PartitionState:
    """Return the state of a partition in a restored store: nobody leads, and few may.

    The leader, who has all acked records; without one, those who had them when it was lost.
    """
    isr: tuple[int, ...] = (state.leader,) if state.has_leader else state.isr
    return replace(
        state,
        leader=NO_LEADER,
        leader_epoch=max(state.leader_epoch, epoch_in_logs) + 1,
        isr=isr,
        elr=() if state.has_leader else state.elr,
        last_leader=state.leader if state.has_leader else state.last_leader,
        partition_epoch=state.partition_epoch + 1,
    )


def _newest(copies: Sequence[MetadataCopy]) -> MetadataCopy:
    if not copies:
        raise RestorationError("No copies of the metadata")
    by_broker: dict[int, str] = {}
    for copy in copies:
        if copy.broker_id in by_broker:
            raise RestorationError(
                f"Two copies of broker {copy.broker_id}: {by_broker[copy.broker_id]} and"
                f" {copy.source}"
            )
        by_broker[copy.broker_id] = copy.source
        first = copies[0]
        if copy.cluster_id != first.cluster_id:
            raise RestorationError(
                f"{first.source} belongs to cluster {first.cluster_id}, {copy.source} to"
                f" {copy.cluster_id}"
            )
        if copy.is_static != first.is_static:
            raise RestorationError(
                f"{first.source} and {copy.source}: only one of them belongs to a static cluster"
            )
    newest = max(copies, key=lambda copy: copy.order)
    for copy in copies:
        mine, theirs = newest.position, copy.position
        is_same = copy.image.restoration.generation == newest.image.restoration.generation
        if is_same and mine.store_id != theirs.store_id:
            raise RestorationError(
                f"{newest.source} and {copy.source} are copies of different metadata stores:"
                f" {mine.store_id} and {theirs.store_id}"
            )
        theirs_static = copy.static_position
        if theirs_static and not newest.image.contains(theirs_static, mine.revision):
            raise RestorationError(
                f"{copy.source} has metadata that {newest.source} does not have: one of them is of"
                " a controller that was restored from an older copy"
            )
    return newest


def _known_brokers(copies: Iterable[MetadataCopy]) -> set[int]:
    """Return the brokers that were registered, or have replicas, as any copy says."""
    known: set[int] = set()
    for copy in copies:
        known |= {copy.broker_id, *copy.image.registrations}
        for _topic, _index, state in _states(copy):
            known.update(state.replicas)
    return known


def _states(copy: MetadataCopy) -> Iterator[tuple[Topic, int, PartitionState]]:
    """Yield the states of all partitions. In a static cluster, the only replica is in sync."""
    image = copy.image
    for topic in image.topics.values():
        for index, replicas in enumerate(topic.replicas):
            state = image.partition_state(topic, index)
            if state is None:
                leader = replicas[0]
                registration = image.registrations.get(leader)
                epoch = 0 if registration is None else registration.leader_epoch
                state = PartitionState((leader,), leader, epoch, (leader,), last_leader=leader)
            yield topic, index, state


def _is_copied(key: bytes) -> bool:
    return (
        is_store_key(key)
        and not key.startswith(_NOT_COPIED)
        and key not in (CONTROLLER_KEY, RESTORED_KEY, b"producer-ids")
    )


def _producer_ids(image: MetadataImage) -> list[tuple[bytes, bytes]]:
    key, value = producer_ids_record(image.next_producer_id + _SKIPPED_PRODUCER_IDS)
    assert value is not None
    return [(key, value)]


def _why_waiting(state: PartitionState, missing: frozenset[int]) -> str:
    """Return why a partition will have no leader when all brokers with copies have started."""
    eligible = (*state.isr, *state.elr)
    if not eligible:
        return f"nobody may lead it: its last leader, broker {state.last_leader}, lost records"
    if set(eligible) <= missing:
        return f"it waits for broker {' or '.join(map(str, eligible))}, which has no copy here"
    return ""


def _last_registrations(
    copies: Iterable[MetadataCopy], newest: MetadataCopy, missing: Iterable[int]
) -> Iterator[tuple[bytes, bytes]]:
    """Yield which data directory each broker had: with another one it has lost its records.

    Of a broker without a copy that may be unknown: it counts as one that has lost its records.
    """
    directories = {copy.broker_id: copy.image.directory for copy in copies}
    marks = {copy.broker_id: copy.image.directory_mark for copy in copies}
    if not newest.is_static:
        for broker_id in missing:
            registration = newest.image.registrations.get(broker_id)
            known = None if registration is None else registration.directory
            directories[broker_id] = known or _NO_DIRECTORY
    for broker_id, directory in sorted(directories.items()):
        if directory is not None:  # A static controller has none.
            registration = newest.image.registrations.get(broker_id)
            epoch = -1 if registration is None else registration.leader_epoch
            content = {
                "directory": str(directory),
                "leader_epoch": epoch,
                "mark": marks.get(broker_id, 0),
            }
            yield b"last-registration/%d" % broker_id, _json(content)


def _json(content: Mapping[str, object]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def copy_content(copy: MetadataCopy) -> dict[str, object]:
    """Return a copy as JSON, for a file."""
    position = copy.static_position
    image = copy.image
    records: list[KeyValue] = [one for one in image.records() if one[1] is not None]
    return {
        "version": 1,
        "cluster_id": copy.cluster_id,
        "broker_id": copy.broker_id,
        "directory": None if image.directory is None else str(image.directory),
        "mark": image.directory_mark,
        "store": None if image.store_position is None else list(image.store_position),
        "static": None
        if position is None
        else [position.epoch, str(position.epoch_id), position.offset],
        "leader_epochs": dict(copy.leader_epochs),
        "records": [[key.decode(), (value or b"").decode()] for key, value in records],
    }


def parse_copy(source: str, content: Mapping[str, object]) -> MetadataCopy:
    """Return the copy that `copy_content` has written. Raises RestorationError."""
    if not isinstance(content, dict) or content.get("version") != 1:
        raise RestorationError(f"{source} is not a file of `ottla cluster export-metadata`")
    try:
        image = MetadataImage()
        for key, value in content["records"]:
            image.replay(key.encode(), value.encode())
        image.store_position = StorePosition(*content["store"]) if content["store"] else None
        image.directory_mark = content["mark"]
        image.directory = UUID(content["directory"]) if content["directory"] else None
        static = None
        if content["static"]:
            epoch, epoch_id, offset = content["static"]
            static = MetadataPosition(epoch, UUID(epoch_id), offset)
        return MetadataCopy(
            source,
            content["cluster_id"],
            content["broker_id"],
            image,
            static,
            content["leader_epochs"],
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RestorationError(f"{source} is damaged: {error!r}") from None
