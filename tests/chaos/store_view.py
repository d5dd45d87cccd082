"""What the metadata store says of a cluster: its present state, and its whole history.

Read from etcd directly, so that it does not depend on a broker that faults have cut off.
"""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode, b64encode
from collections import defaultdict
from collections.abc import Iterator
from contextlib import aclosing
from itertools import pairwise
from typing import Any
from uuid import UUID

from harness import state_rules
from harness.etcd import EtcdCluster
from ottla.broker.cluster.store.etcd_store import EtcdStore
from ottla.broker.cluster.store.metadata_store import Change
from ottla.broker.cluster.store.store_url import StoreCredentials, parse_store_url
from ottla.coord.election import original_replicas
from ottla.coord.metadata_image import parse_partition_key, parse_topic_record
from ottla.coord.partition_state import PartitionState

DEFAULT_MIN_ISR = 2
_PREFIX = b"/ottla/test/"


class StoreView:
    """The keys of a cluster in etcd."""

    def __init__(self, etcd: EtcdCluster) -> None:
        self._etcd = etcd
        #: The history up to this revision is gone.
        self.compacted = 1

    def compact(self) -> None:
        """Compact the history, once it is checked. Raises AssertionError."""
        assert not (found := self.anomalies()), found
        self.forget()

    def forget(self) -> None:
        """Compact the history without a check: an operator has written it."""
        self.compacted = self._etcd.compact()

    def keys(self, prefix: str = "") -> dict[str, Any]:
        """Return the keys under a prefix and their values. Raises OSError if no member answers."""
        start = _PREFIX + prefix.encode()
        end = start[:-1] + bytes([start[-1] + 1])
        body = {"key": b64encode(start).decode(), "range_end": b64encode(end).decode()}
        error: OSError | None = None
        for member in self._etcd:
            if not member.is_running:
                continue
            try:
                answer = member.post("/v3/kv/range", body, timeout=3)
            except OSError as failure:
                error = failure
                continue
            return {
                b64decode(pair["key"])[len(_PREFIX) :].decode(): (
                    json.loads(b64decode(pair["value"])),
                    int(pair["create_revision"]),
                )
                for pair in answer.get("kvs", [])
            }
        raise error or OSError("no member of etcd runs")

    def states(self, topic: str) -> dict[int, PartitionState]:
        """Return the states of a topic's partitions. Raises OSError."""
        found = self.keys(f"topic/{topic}")
        if f"topic/{topic}" not in found:
            return {}
        topic_id = found[f"topic/{topic}"][0]["id"]
        return {
            int(key.rpartition("/")[2]): PartitionState.from_content(content)
            for key, (content, _revision) in self.keys(f"partition/{topic_id}/").items()
        }

    def all_states(self) -> dict[str, PartitionState]:
        """Return the states of all partitions by topic id and index. Raises OSError."""
        return {
            key: PartitionState.from_content(content)
            for key, (content, _revision) in self.keys("partition/").items()
        }

    def broker_epochs(self) -> dict[int, int]:
        """Return the epochs of the registered brokers. Raises OSError."""
        return {
            int(key.rpartition("/")[2]): revision
            for key, (_content, revision) in self.keys("registration/").items()
        }

    def controller(self) -> int | None:
        """Return the id of the controller. Raises OSError."""
        for content, _revision in self.keys("active-controller").values():
            broker_id: int = content["broker"]
            return broker_id
        return None

    def least_replicas(self, topic_id: UUID) -> int:
        """Return how many replicas the partitions of a topic had at least, besides new ones."""
        return min(
            len(original_replicas(PartitionState.from_json(entry.value)))
            for change in asyncio.run(history(self._etcd, self.compacted))
            for entry in change.entries
            if (key := parse_partition_key(entry.key)) is not None and key[0] == topic_id
        )

    def anomalies(self) -> list[str]:
        """Return what is wrong with the history of all partition states."""
        return list(state_anomalies(asyncio.run(history(self._etcd, self.compacted))))


async def history(etcd: EtcdCluster, revision: int = 1) -> list[Change]:
    """Return all changes in the store after a revision; before them, the topics as they are."""
    store = EtcdStore.open(parse_store_url(etcd.url), StoreCredentials())
    found: list[Change] = []
    try:
        snapshot = await store.load()
        # The revision of the store also rises with keys of others.
        end = max((entry.mod_revision for entry in snapshot.entries.values()), default=0)
        topics = [entry for key, entry in snapshot.entries.items() if key.startswith(b"topic/")]
        found.append(Change(revision, topics, []))
        if end > revision:
            async with aclosing(store.watch(revision, b"")) as changes, asyncio.timeout(120):
                async for change in changes:
                    found.append(change)
                    if change.revision >= end:
                        break
    finally:
        await store.close()
    return found


def state_anomalies(changes: list[Change]) -> Iterator[str]:
    """Yield what is wrong with the history of all partition states."""
    states: dict[tuple[UUID, int], list[PartitionState]] = defaultdict(list)
    min_isr: dict[UUID, int] = {}
    unclean: set[UUID] = set()
    for change in changes:
        for entry in change.entries:
            key = parse_partition_key(entry.key)
            if key is not None:
                states[key].append(PartitionState.from_json(entry.value))
            parsed = parse_topic_record((entry.key, entry.value))
            if parsed is not None and parsed[1] is not None:
                topic = parsed[1]
                configs = topic.configs
                min_isr[topic.id] = int(configs.get("min.insync.replicas", DEFAULT_MIN_ISR))
                if configs.get("unclean.leader.election.enable") == "true":
                    unclean.add(topic.id)
    for (topic_id, index), history_of_one in states.items():
        for before, after in pairwise(history_of_one):
            for kind in state_rules.state_anomalies(
                before,
                after,
                min_isr.get(topic_id, DEFAULT_MIN_ISR),
                may_be_unclean=topic_id in unclean,
            ):
                yield f"{kind}: partition {index} of {topic_id}: {before} -> {after}"
