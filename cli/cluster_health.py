"""What `ottla cluster describe` says of replicas and of the metadata store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ottla.client.admin import TopicDescription
    from ottla.client.blocking import Admin

    from .store_members import StoreMember

_MIN_ISR = "min.insync.replicas"
_STORE = "cluster.store"


def replica_health(admin: Admin, topics: Sequence[TopicDescription]) -> dict[str, int]:
    """Return how many partitions lack a leader, replicas, or as many as acks=all needs."""
    # All others are in good health, and most clusters have no more than a few of these.
    partial = [
        topic.name
        for topic in topics
        if any(one.is_under_replicated or one.is_offline for one in topic.partitions)
    ]
    described = admin.describe_topics(*partial) if partial else {}
    configs = admin.describe_topic_configs(*partial, keys={_MIN_ISR}) if partial else {}
    health = dict.fromkeys(
        (
            "partitions_without_leader",
            "under_replicated_partitions",
            "under_min_isr_partitions",
            "partitions_with_eligible_leaders",
        ),
        0,
    )
    for name, topic in described.items():
        entry = configs[name].get(_MIN_ISR)
        min_isr = int(entry.value) if entry is not None and entry.value else 1
        for partition in topic.partitions:
            is_under_min = len(partition.isr) < min(min_isr, len(partition.replicas))
            health["partitions_without_leader"] += partition.is_offline
            health["under_replicated_partitions"] += partition.is_under_replicated
            health["under_min_isr_partitions"] += is_under_min
            health["partitions_with_eligible_leaders"] += bool(partition.elr)
    return health


def store_members(admin: Admin, broker_ids: Sequence[int]) -> tuple[str, list[StoreMember]] | None:
    """Return the metadata store of a cluster and its members; None if it has none.

    As a broker says, who may not tell everybody.
    """
    from ottla.client.errors import ClientError, KafkaError

    try:
        configs = admin.describe_broker_configs(*broker_ids[:1], keys={_STORE})
    except (ClientError, KafkaError):
        return None
    urls = [entry.value for one in configs.values() for entry in one.values() if entry.value]
    if not urls:
        return None
    from ottla.broker.cluster.store.store_url import parse_store_url

    from .store_members import describe_members

    url = parse_store_url(urls[0])
    return urls[0], describe_members(url.addresses, is_tls=url.is_tls)
