"""Metrics of partitions, topics and the committed offsets of groups.

These have a sample per partition, so they are collected in portions, and in one pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ottla.coord.election import effective_min_isr

from .exposition import Counter, Family, Gauge, label_text
from .pacing import paced

if TYPE_CHECKING:
    from ..broker import Broker

_PARTITION_LABELS = ("topic", "partition")


def partition_families(broker: Broker) -> Iterator[Family]:
    """Yield the metrics of the partitions that this broker leads, and of its replicas."""
    start_offsets = Gauge("ottla_partition_log_start_offset", "Log start offset.")
    end_offsets = Gauge("ottla_partition_log_end_offset", "Log end offset.")
    sizes = Gauge("ottla_partition_log_size_bytes", "Size of the log on disk.")
    lag = Gauge(
        "ottla_replica_lag_records",
        "Records of a led partition that a follower does not have, as of its last fetch.",
        labels=(*_PARTITION_LABELS, "broker"),
    )
    led = under_replicated = under_min_isr = at_min_isr = max_lag = 0
    offline = len(broker.logs.failed)
    for partition in paced(broker.topics.online_partitions()):
        topic, index, log = partition.topic, partition.index, partition.log
        labels, end_offset = label_text(_PARTITION_LABELS, (topic, index)), log.end_offset
        start_offsets.add_labelled(labels, log.start_offset)
        end_offsets.add_labelled(labels, end_offset)
        sizes.add_labelled(labels, log.size)
        offline += log.offline_reason is not None
        led += 1
        state, progress = partition.state, partition.progress
        if state is not None:
            under_replicated += state.is_under_replicated
            under_min_isr += partition.is_under_min_isr
            at_min_isr += len(state.isr) == effective_min_isr(state, partition.min_isr)
        for broker_id, fetch in () if progress is None else list(progress.fetches.items()):
            behind = end_offset - fetch.end_offset
            lag.add((topic, index, broker_id), behind)
            max_lag = max(max_lag, behind)
    yield from (start_offsets, end_offsets, sizes)
    yield Gauge("ottla_leader_count", "Partitions that this broker leads.", led)
    yield Gauge(
        "ottla_partition_count",
        "Replicas of partitions on this broker, with those that it leads.",
        led + broker.topics.followed_count,
    )
    yield Gauge("ottla_offline_partitions", "Partitions whose log is offline.", offline)
    if broker.replicas is None:
        return
    yield Gauge(
        "ottla_under_replicated_partitions",
        "Led partitions with replicas that are not in sync.",
        under_replicated,
    )
    yield Gauge(
        "ottla_under_min_isr_partitions",
        "Led partitions with fewer in-sync replicas than min.insync.replicas.",
        under_min_isr,
    )
    yield Gauge(
        "ottla_at_min_isr_partitions",
        "Led partitions with as many in-sync replicas as min.insync.replicas, and no more.",
        at_min_isr,
    )
    yield lag
    yield Gauge("ottla_replica_max_lag_records", "The largest ottla_replica_lag_records.", max_lag)


def cluster_partition_families(broker: Broker) -> Iterator[Family]:
    """Yield counts of the partitions of the whole cluster, as this broker knows it."""
    states = (
        state
        for of_topic in list(broker.topics.image.partition_states.values())
        for state in list(of_topic.values())
    )
    leaderless = reassigning = imbalanced = 0
    for state in paced(states):
        leaderless += not state.has_leader
        reassigning += state.is_reassigning
        imbalanced += state.leader != state.replicas[0]
    yield Gauge(
        "ottla_leaderless_partitions", "Partitions of the cluster without a leader.", leaderless
    )
    yield Gauge(
        "ottla_reassigning_partitions",
        "Partitions of the cluster that are being moved to other brokers.",
        reassigning,
    )
    yield Gauge(
        "ottla_preferred_leader_imbalance",
        "Partitions of the cluster that others than their preferred leaders lead.",
        imbalanced,
    )


def topic_families(broker: Broker) -> Iterator[Family]:
    """Yield what is written to and read from topics on this broker."""
    families = {
        name: Counter(f"ottla_topic_{name}", doc)
        for name, doc in (
            ("messages_in", "Records produced to a topic."),
            ("bytes_in", "Bytes of batches produced to a topic, as they are stored."),
            ("bytes_out", "Bytes of batches of a topic sent to consumers."),
            ("replication_bytes_in", "Bytes of a topic fetched from leaders by followers here."),
            ("replication_bytes_out", "Bytes of a topic sent to followers."),
        )
    }
    for topic, traffic in paced(list(broker.topics.traffic.items())):
        labels = label_text(("topic",), (topic,))
        for name, family in families.items():
            family.add_labelled(labels, getattr(traffic, name))
    yield from families.values()


def committed_offset_family(broker: Broker) -> Family:
    """Return the committed offsets of the groups that this broker coordinates."""
    family = Gauge(
        "ottla_group_committed_offset",
        "Committed offset of a group.",
        labels=("group", *_PARTITION_LABELS),
    )
    committed = (
        (group_id, topic, index, offset.offset)
        for group_id, offsets in broker.groups.all_committed()
        for (topic, index), offset in list(offsets.items())
    )
    for group_id, topic, index, offset in paced(committed):
        family.add((group_id, topic, index), offset)
    return family
