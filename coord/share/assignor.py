"""The assignor `simple` of share groups: a pure function, as those of consumer groups.

Every partition is given to at least one member that subscribes to its topic, and every member gets
at least one partition, if any topic it subscribes to has one. With more partitions than members
each partition has one member; with more members, partitions are shared evenly.
"""

from __future__ import annotations

from collections import Counter

from ..consumer.assignors import PartitionCounts, Subscriptions, assign_uniform
from ..consumer.partitions import Partitions, TopicIdPartition


def assign_simple(members: Subscriptions, counts: PartitionCounts) -> dict[str, Partitions]:
    """Spread partitions over members; what each member owns it keeps, as far as that is even."""
    assigned = assign_uniform(members, counts)
    sharers = Counter(tp for partitions in assigned.values() for tp in partitions)
    for name in sorted(members):
        if assigned[name]:
            continue
        member = members[name]
        candidates = [
            TopicIdPartition(topic_id, index)
            for topic_id in counts
            if topic_id in member.topics
            for index in range(counts[topic_id])
        ]
        if not candidates:
            continue
        least = min(sharers[tp] for tp in candidates)
        fewest = [tp for tp in candidates if sharers[tp] == least]
        chosen = next((tp for tp in fewest if tp in member.owned), fewest[0])
        sharers[chosen] += 1
        assigned[name] = frozenset((chosen,))
    return assigned
