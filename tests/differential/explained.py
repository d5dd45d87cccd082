"""The differences between ottla and Apache Kafka that are meant, each with its reason.

docs/behaviour.md lists the reasons under "Differences from Apache Kafka".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from differential.compare import Difference
from ottla.protocol.primitives import NIL_UUID


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


def _names_twice(difference: Difference, request: Any) -> bool:
    """Whether a request names a topic, partition, group, resource or config more than once."""
    if request.api.name in ("Heartbeat", "JoinGroup", "SyncGroup"):
        return False
    topics = next((getattr(request, n) for n in _TOPICS if getattr(request, n, None)), ())
    named: list[Any] = []
    for topic in topics:
        name = getattr(topic, "name", getattr(topic, "topic", topic))
        if request.api.name in ("Fetch", "Produce") and difference.version >= _WITH_TOPIC_IDS:
            name = topic.topic_id
        partitions = next((getattr(topic, n) for n in _PARTITIONS if hasattr(topic, n)), None)
        if partitions is None:
            named.append(name)
        else:
            named += [(name, _index(partition)) for partition in partitions]
        named += [(name, "config", config.name) for config in getattr(topic, "configs", ())]
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


#: The first version of Fetch and Produce that has topic ids instead of names.
_WITH_TOPIC_IDS = 13
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


def _creates_topics(difference: Difference, request: Any) -> bool:
    return bool(request.allow_auto_topic_creation) and (
        difference.kafka in (3, 5, "absent") or difference.ottla == "absent"
    )


def _sees_empty_group(difference: Difference, _request: Any) -> bool:
    """Whether Kafka has an empty group where ottla has none."""
    if difference.api == "ListGroups":
        return difference.ottla == "absent" and "'protocol_type': ''" in repr(difference.kafka)
    return (difference.api, difference.ottla, difference.kafka) in (
        ("DescribeGroups", "Dead", "Empty"),
        ("DeleteGroups", 69, 0),  # GROUP_ID_NOT_FOUND
        ("JoinGroup", 25, 26),  # UNKNOWN_MEMBER_ID, INVALID_SESSION_TIMEOUT
    )


def _has_no_producer_epoch(_difference: Difference, request: Any) -> bool:
    return any(
        partition.records.producer is not None and partition.records.epoch < 0
        for topic in request.topic_data
        for partition in topic.partition_data
    )


_ADMIN_ERRORS = {3, 17, 36, 37, 38, 39, 40, 42}
_FIXED_CONFIGS = ("compression.type", "min.insync.replicas")


def _sets_fixed_config(_difference: Difference, request: Any) -> bool:
    resources = getattr(request, "resources", None) or getattr(request, "topics", ())
    return any(
        config.name in _FIXED_CONFIGS for resource in resources for config in resource.configs
    )


def _has_unknown_resource(_difference: Difference, request: Any) -> bool:
    return any(
        resource.resource_type not in (2, 4)
        or any(
            getattr(config, "config_operation", 0) > 3
            for config in getattr(resource, "configs", ())
        )
        for resource in request.resources
    )


def _has_early_topic_id(difference: Difference, request: Any) -> bool:
    return any(
        topic.name is None or (difference.version < 12 and topic.topic_id != NIL_UUID)
        for topic in request.topics or ()
    )


def _has_damaged_batch(_difference: Difference, request: Any) -> bool:
    return any(
        partition.records.damage
        for topic in request.topic_data
        for partition in topic.partition_data
    )


EXPLANATIONS: list[Explanation] = [
    Explanation(
        ".*",
        ".*",
        "A topic, partition, group, resource or config that a request names twice: ottla responds"
        " to each entry or rejects the second; Kafka's maps keep one of them, or fail the whole"
        " request.",
        _names_twice,
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
        "JoinGroup",
        "protocol_name",
        "JoinGroup that fails has an empty protocol name in all versions; Kafka's is null since"
        " version 7.",
        lambda difference, _: (difference.ottla, difference.kafka) == ("", None),
    ),
    Explanation(
        "DescribeGroups|ListGroups|DeleteGroups|JoinGroup",
        ".*",
        "JoinGroup with an unknown member id creates no group; Kafka keeps an empty one, which"
        " later requests see.",
        _sees_empty_group,
        diverges=True,
    ),
    Explanation(
        "JoinGroup",
        ".*",
        "The only member of a group may change all its protocols; in Kafka it has to leave first.",
        lambda difference, _: difference.kafka in (23, "", -1, None, "absent"),
        diverges=True,
    ),
    Explanation(
        "CreateTopics|AlterConfigs|IncrementalAlterConfigs|CreatePartitions",
        ".*error_code",
        "An admin request that is wrong in several ways gets one of the errors; which one depends"
        " on the order of checks.",
        lambda difference, _: {difference.ottla, difference.kafka} <= _ADMIN_ERRORS,
    ),
    Explanation(
        "CreateTopics|AlterConfigs|IncrementalAlterConfigs",
        ".*",
        "Topic configs that can have one value only are rejected with any other: compression.type,"
        " min.insync.replicas; Kafka accepts them.",
        _sets_fixed_config,
        diverges=True,
    ),
    Explanation(
        "CreateTopics|AlterConfigs|IncrementalAlterConfigs",
        ".*",
        "retention.bytes below -1 is rejected; Kafka takes it for unlimited.",
        lambda _, request: "name='retention.bytes', value='-2'" in repr(request),
        diverges=True,
    ),
    Explanation(
        "DescribeConfigs|AlterConfigs|IncrementalAlterConfigs",
        ".*",
        "An unknown resource type or operation fails its resource alone; Kafka fails the whole"
        " request.",
        _has_unknown_resource,
        diverges=True,
    ),
    Explanation(
        "Metadata",
        ".*",
        "A topic id that a Metadata request before version 12 contains, or an entry without id and"
        " name, fails alone; Kafka fails the whole request, without brokers.",
        _has_early_topic_id,
    ),
    Explanation(
        "Metadata",
        "topics.topic_authorized_operations",
        "The operations a client is allowed on a topic that does not exist are left out.",
        lambda difference, _: difference.ottla == -(2**31),
    ),
    Explanation(
        "DescribeTopicPartitions",
        ".*",
        "DescribeTopicPartitions with a limit below 1, or a cursor far beyond the last partition:"
        " Kafka returns a next cursor with a negative partition.",
        lambda _, request: (
            request.response_partition_limit < 1
            or (request.cursor is not None and request.cursor.partition_index > 2**30)
        ),
    ),
    Explanation(
        "Fetch",
        "session_id",
        "A fetch session without partitions is not created.",
        lambda difference, request: (
            difference.ottla == 0 and not any(topic.partitions for topic in request.topics)
        ),
        diverges=True,
    ),
    Explanation(
        "Fetch",
        ".*",
        "The zero topic id of a Fetch is unknown, as any other id would be; Kafka fails the whole"
        " request unexpectedly.",
        lambda difference, request: (
            difference.version >= _WITH_TOPIC_IDS
            and any(
                topic.topic_id == NIL_UUID
                for topics in (request.topics, request.forgotten_topics_data)
                for topic in topics
            )
        ),
        diverges=True,
    ),
    Explanation(
        "Fetch|ListOffsets",
        ".*",
        "An unknown isolation level counts as read_uncommitted; Kafka fails unexpectedly.",
        lambda _, request: request.isolation_level not in (0, 1),
        diverges=True,
    ),
    Explanation(
        "Fetch|ListOffsets|OffsetForLeaderEpoch",
        ".*",
        "A current leader epoch below -1 is FENCED_LEADER_EPOCH; Kafka skips the check for all"
        " negative ones.",
        lambda _, request: "current_leader_epoch=-2" in repr(request),
        diverges=True,
    ),
    Explanation(
        "Fetch",
        r"responses\.partitions\..*",
        "LastFetchedEpoch of a Fetch is ignored: a partition has one replica, so logs do not"
        " diverge.",
        lambda _, request: any(
            partition.last_fetched_epoch > 0
            for topic in request.topics
            for partition in topic.partitions
        ),
        diverges=True,
    ),
    Explanation(
        "ListOffsets|OffsetForLeaderEpoch",
        r"topics\.partitions\.(leader_epoch|end_offset)",
        "A partition that never had a record has no leader epoch yet; Kafka starts one when a"
        " broker becomes the leader.",
        lambda difference, _: difference.ottla == -1,
    ),
    Explanation(
        "Produce",
        ".*",
        "A batch that cannot be parsed fails alone; Kafka rejects all partitions of the request.",
        _has_damaged_batch,
        diverges=True,
    ),
    Explanation(
        "Produce",
        ".*",
        "A batch with a producer id and no producer epoch is INVALID_RECORD; Kafka appends it.",
        _has_no_producer_epoch,
        diverges=True,
    ),
    Explanation(
        "Produce",
        ".*error_code",
        "Invalid acks fail a Produce before its partitions are looked up; Kafka looks them up"
        " first.",
        lambda difference, request: (
            request.acks not in (-1, 0, 1) and (difference.ottla, difference.kafka) == (21, 3)
        ),
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
