"""The differences between ottla and Apache Kafka that are meant, each with its reason.

docs/behaviour.md lists the reasons under "Differences from Apache Kafka".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from differential.compare import Difference


def _always(_difference: Difference, _request: Any) -> bool:
    return True


class Explanation(NamedTuple):
    """Explains differences in fields of an API; regular expressions, matched in full."""

    api: str
    field: str
    reason: str
    applies: Callable[[Difference, Any], bool] = _always
    #: Whether the brokers are in different states from here on: the sequence ends.
    diverges: bool = False


def _names_twice(_difference: Difference, request: Any) -> bool:
    """Whether a request names a topic, partition, group or resource more than once."""
    if request.api.name in ("Heartbeat", "JoinGroup", "SyncGroup"):
        return False
    topics = next((getattr(request, n) for n in _TOPICS if getattr(request, n, None)), ())
    named: list[Any] = []
    for topic in topics:
        name = getattr(topic, "name", getattr(topic, "topic", topic))
        partitions = next((getattr(topic, n) for n in _PARTITIONS if hasattr(topic, n)), None)
        if partitions is None:
            named.append(name)
        else:
            named += [(name, _index(partition)) for partition in partitions]
    for resource in getattr(request, "resources", ()):
        named.append((resource.resource_type, resource.resource_name))
    for group in getattr(request, "groups", ()):
        if not isinstance(group, str):
            named.append(group.group_id)
            for topic in group.topics or ():
                named += [(topic.name, index) for index in topic.partition_indexes]
    for group in getattr(request, "groups_names", ()):
        named.append(group)
    return len(named) != len(set(map(repr, named)))


_TOPICS = ("topics", "topic_data", "topic_names")
_PARTITIONS = ("partitions", "partition_data", "partition_indexes")


def _index(partition: Any) -> Any:
    for name in ("partition_index", "partition", "index"):
        if hasattr(partition, name):
            return getattr(partition, name)
    return partition


def _has_empty_group(_difference: Difference, request: Any) -> bool:
    groups = [getattr(request, "group_id", None), getattr(request, "key", None)]
    groups += getattr(request, "coordinator_keys", ())
    groups += [getattr(group, "group_id", group) for group in getattr(request, "groups", ()) or ()]
    groups += getattr(request, "groups_names", ())
    return "" in groups


def _is_transactional(_difference: Difference, request: Any) -> bool:
    return (
        getattr(request, "transactional_id", None) is not None
        or getattr(request, "key_type", 0) == 1
    )


def _creates_topics(difference: Difference, request: Any) -> bool:
    return bool(request.allow_auto_topic_creation) and difference.kafka in (3, 5, "absent")


EXPLANATIONS: list[Explanation] = [
    Explanation(
        ".*",
        ".*",
        "A topic, partition, group or resource that a request names twice: ottla responds to each"
        " entry or rejects the second; Kafka's maps keep one of them, or fail the whole request.",
        _names_twice,
        diverges=True,
    ),
    Explanation(
        ".*",
        ".*",
        "Transactions are not supported: a transactional id is rejected, and there is no"
        " transaction coordinator to find.",
        _is_transactional,
        diverges=True,
    ),
    Explanation(
        ".*",
        ".*",
        "An empty group id is always INVALID_GROUP_ID; Kafka still allows it to commit and fetch"
        " offsets, which KIP-289 deprecates.",
        _has_empty_group,
        diverges=True,
    ),
    Explanation(
        "ListGroups",
        "groups",
        "ListGroups of Kafka lists the group with the empty id, which ottla does not allow.",
        lambda difference, _: "'group_id': ''" in repr(difference.kafka),
    ),
    Explanation(
        "Metadata",
        "topics.*",
        "A topic that a Metadata request creates is in its response; Kafka responds"
        " UNKNOWN_TOPIC_OR_PARTITION once, and creates it afterwards.",
        _creates_topics,
        diverges=True,
    ),
    Explanation(
        "DescribeGroups",
        "groups.authorized_operations",
        "Groups have no configs, so the operations on them that a client is allowed do not include"
        " describing and altering configs.",
    ),
    Explanation(
        "DescribeConfigs|CreateTopics",
        r"(results|topics)\.configs\.read_only",
        "Topic configs that can have one value only are read-only: compression.type=producer,"
        " min.insync.replicas=1.",
    ),
    Explanation(
        "DescribeConfigs|CreateTopics",
        r"(results|topics)\.configs\.config_source",
        "Kafka stores min.insync.replicas as a cluster-wide dynamic default; ottla has no such"
        " level.",
        lambda difference, _: difference.kafka == 3,
    ),
    Explanation(
        "Produce",
        r"responses\.partition_responses\.(record_errors|log_start_offset)",
        "A rejected batch: Kafka returns the log start offset with some errors, ottla -1.",
        lambda difference, _: difference.ottla in (-1, "absent"),
    ),
]


def explanation_of(difference: Difference, request: Any) -> Explanation | None:
    """Return the explanation of a difference, if there is one."""
    for explanation in EXPLANATIONS:
        if (
            re.fullmatch(explanation.api, difference.api)
            and re.fullmatch(explanation.field, difference.field)
            and explanation.applies(difference, request)
        ):
            return explanation
    return None
