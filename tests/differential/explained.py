"""The differences between ottla and Apache Kafka that are meant, each with its reason.

docs/behaviour.md lists the reasons under "Differences from Apache Kafka".
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from differential.compare import Difference
from differential.world import Ref
from ottla.protocol.api.produce import ProduceRequest
from ottla.protocol.errors import ErrorCode
from ottla.protocol.primitives import NIL_UUID
from ottla.storage.config import TOPIC_CONFIGS


def _always(_difference: Difference, _request: Any) -> bool:
    return True


class Explanation(NamedTuple):
    """Explains differences in fields of an API; regular expressions, matched in full."""

    api: str
    field: str
    reason: str
    applies: Callable[[Difference, Any], bool] = _always
    #: The same, for what depends on the requests before it in the sequence.
    applies_after: Callable[[Difference, Any, Sequence[Any]], bool] | None = None
    #: Whether the brokers are in different states from here on: the sequence ends.
    diverges: bool = False


def _is_named_twice(difference: Difference, request: Any) -> bool:
    """Whether a difference is about something that a request names more than once.

    Where Kafka fails the whole request for it, each difference is.
    """
    counts = Counter(_named(request))
    twice = {name for name, count in counts.items() if count > 1}
    if not twice:
        return False
    if "[" not in difference.path or _is_failed(difference.kafka):
        return True
    return any(
        all(
            re.search(rf"[\[/](<topic id )?{re.escape(str(part))}>?(#\d+)?[\]/]", difference.path)
            for part in name.in_path
        )
        for name in twice
    )


def _was_named_twice(difference: Difference, _request: Any, before: Sequence[Any]) -> bool:
    """Whether an earlier Produce named a partition twice: not the same batches were appended."""
    return any(
        isinstance(request, ProduceRequest) and _is_named_twice(difference, request)
        for request in before
    )


class _Named(NamedTuple):
    """Something that a request names."""

    identity: tuple[Any, ...]
    #: What of it is in the path of a difference.
    in_path: tuple[Any, ...]


def _is_failed(value: Any) -> bool:
    """Whether a value is, or has, the error INVALID_REQUEST."""
    if isinstance(value, dict):
        return value.get("error_code") == ErrorCode.INVALID_REQUEST
    return bool(value == ErrorCode.INVALID_REQUEST)


def _named(request: Any) -> Iterator[_Named]:
    """Yield what a request is about: names, with partitions and configs where it has them."""
    topics = next((getattr(request, n) for n in _TOPICS if getattr(request, n, None)), ())
    for topic in topics:
        yield from _named_in_topic(topic)
    for resource in getattr(request, "resources", ()):
        identity = (resource.resource_type, resource.resource_name)
        yield _Named(identity, identity)
        for config in getattr(resource, "configs", ()):
            yield _Named((*identity, config.name), identity)
    for group in getattr(request, "groups", ()):
        if not isinstance(group, str):
            yield _Named((group.group_id,), (group.group_id,))
            for topic in group.topics or ():
                yield from _named_in_topic(topic)
    for name in ("groups", "group_ids", "groups_names", "coordinator_keys", "transactional_ids"):
        for value in getattr(request, name, ()):
            if isinstance(value, str):
                yield _Named((value,), (value,))


def _named_in_topic(topic: Any) -> Iterator[_Named]:
    name = getattr(topic, "name", getattr(topic, "topic", topic))
    if not name and hasattr(topic, "topic_id"):
        name = topic.topic_id
        if type(topic).__name__ == "DeleteTopicState":
            name = getattr(name, "key", name)
    partitions = next((getattr(topic, n) for n in _PARTITIONS if hasattr(topic, n)), None)
    if partitions is None:
        yield _Named((name,), (name,))
    else:
        for partition in partitions:
            identity = (name, _index(partition))
            yield _Named(identity, identity)
    for config in getattr(topic, "configs", ()):
        yield _Named((name, "config", config.name), (name,))


#: The first version of Fetch and Produce that has topic ids instead of names.
_WITH_TOPIC_IDS = 13
_TOPICS = ("topics", "topic_data", "topic_names", "v3_and_below_topics")
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
    groups += getattr(request, "group_ids", ())
    return "" in groups


def _creates_topics(difference: Difference, request: Any) -> bool:
    return bool(request.allow_auto_topic_creation) and (
        difference.kafka in (3, 5, "absent", NIL_UUID) or difference.ottla == "absent"
    )


#: What requests see of a group: nothing, or an empty one.
_NO_GROUP_OR_EMPTY = {
    "DescribeGroups": ("Dead", "Empty"),
    "DeleteGroups": (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NONE),
    "OffsetDelete": (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.NONE),
    "OffsetCommit": (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID),
    "TxnOffsetCommit": (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID),
}
#: Version 9 of OffsetCommit responds GROUP_ID_NOT_FOUND.
_FIRST_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND = 9


def _has_just_been_joined(difference: Difference, _request: Any, earlier: Sequence[Any]) -> bool:
    """Whether Kafka does not list a group yet that an earlier request has joined."""
    return difference.kafka == "absent" and any(
        other.api.name == "JoinGroup" and f"[{other.group_id}]" in difference.path
        for other in earlier
    )


def _sees_empty_group(difference: Difference, request: Any, earlier: Sequence[Any]) -> bool:
    """Whether a request is about a group that an earlier one left empty in Kafka."""
    group = getattr(request, "group_id", None)
    if group is None:  # It names several: the path has the one.
        matched = re.search(r"\[([^\]/]*)", difference.path)
        group = matched and matched[1]
    if not any(
        other.api.name in ("JoinGroup", "OffsetCommit", "TxnOffsetCommit")
        and other.group_id == group
        for other in earlier
    ):
        return False
    values = (difference.ottla, difference.kafka)
    if difference.api == "ListGroups":
        is_empty = isinstance(difference.kafka, dict) and difference.kafka["protocol_type"] == ""
        return difference.ottla == "absent" and is_empty
    if (
        difference.api == "OffsetCommit"
        and difference.version >= _FIRST_COMMIT_VERSION_WITH_GROUP_ID_NOT_FOUND
    ):
        return values == (ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.UNKNOWN_MEMBER_ID)
    if difference.api == "OffsetDelete" and difference.field == "topics":
        return difference.ottla == "absent"  # The whole request has failed.
    if difference.api == "DescribeGroups":
        states = (("Dead", "Empty"), ("Empty", "Dead"), (ErrorCode.GROUP_ID_NOT_FOUND, 0))
        return values in states
    return values == _NO_GROUP_OR_EMPTY.get(difference.api)


def _has_no_producer_epoch(_difference: Difference, request: Any) -> bool:
    return any(
        partition.records.producer is not None and partition.records.epoch == -1
        for topic in request.topic_data
        for partition in topic.partition_data
    )


def _has_different_subscriptions(
    _difference: Difference, request: Any, earlier: Sequence[Any]
) -> bool:
    subscriptions = {
        tuple(sorted(other.subscribed_topic_names))
        for other in (*earlier, request)
        if other.api.name == "ConsumerGroupHeartbeat" and other.subscribed_topic_names is not None
    }
    return len(subscriptions) > 1


def _was_left(_difference: Difference, _request: Any, earlier: Sequence[Any]) -> bool:
    return any(
        other.api.name == "ConsumerGroupHeartbeat" and other.member_epoch == _LEAVE
        for other in earlier
    )


_LEAVE = -1
_DELETE, _SUBTRACT = 1, 3
_MAX_TOPIC_NAME_LENGTH = 249
_TRANSACTION_ERRORS = {
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
}
_ADMIN_ERRORS = {3, 17, 36, 37, 38, 39, 40, 42}


def _empties_cleanup_policy(_difference: Difference, request: Any) -> bool:
    resources = getattr(request, "resources", None) or getattr(request, "topics", ())
    return any(
        config.name == "cleanup.policy"
        and (not config.value or getattr(config, "config_operation", 0) == _SUBTRACT)
        for resource in resources
        for config in resource.configs
    )


def _has_low_retention_bytes(_difference: Difference, request: Any) -> bool:
    resources = getattr(request, "resources", None) or getattr(request, "topics", ())
    return any(
        config.name == "retention.bytes" and re.fullmatch(r"-\d+", config.value or "")
        for resource in resources
        for config in resource.configs
    )


def _is_fenced_while_aborted(difference: Difference, request: Any) -> bool:
    """Whether a producer that names its epoch is fenced in ottla alone."""
    return isinstance(getattr(request, "producer_epoch", None), Ref) and difference.ottla in (
        ErrorCode.PRODUCER_FENCED,
        -1,
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
        _is_named_twice,
        diverges=True,
    ),
    Explanation(
        ".*",
        ".*",
        "A topic, partition, group, resource or config that a request names twice: ottla responds"
        " to each entry or rejects the second; Kafka's maps keep one of them, or fail the whole"
        " request.",
        applies_after=_was_named_twice,
        diverges=True,
    ),
    Explanation(
        "ApiVersions",
        "",
        "ApiVersions in an unsupported version is answered whatever follows the version; Kafka"
        " closes the connection if the rest is not a header of that version.",
        lambda difference, _: difference.kafka == "connection closed",
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
        "DescribeConfigs|CreateTopics",
        r"(results|topics)\.configs\.read_only",
        "Topic configs that can have one value only are read-only: those of remote storage.",
    ),
    Explanation(
        "DescribeConfigs|CreateTopics",
        r"(results|topics)\.configs\.config_source",
        "Kafka stores min.insync.replicas as a dynamic config of all brokers when a cluster is"
        " created; in ottla it has its default.",
        lambda difference, _: difference.kafka == 3,
    ),
    Explanation(
        "CreateTopics",
        r"topics\.topic_id",
        "CreateTopics that only validates returns no topic id; Kafka returns one that nothing has.",
        lambda difference, request: request.validate_only and difference.ottla == NIL_UUID,
    ),
    Explanation(
        "DescribeConfigs",
        r"results\.configs\.(value|config_source)",
        "Internal topics have configs of their own: other segment sizes, and compression.type is"
        " not set.",
        lambda difference, _: bool(
            re.search(r"/__.*\[(segment\.bytes|compression\.type)\]", difference.path)
        ),
    ),
    Explanation(
        "ListGroups",
        "groups",
        "A group whose first member has just joined is listed at once; Kafka may list it later.",
        applies_after=_has_just_been_joined,
    ),
    Explanation(
        "JoinGroup",
        "protocol_name",
        "JoinGroup that fails has an empty protocol name in all versions; Kafka's is null since"
        " version 7.",
        lambda difference, _: (difference.ottla, difference.kafka) == ("", None),
    ),
    Explanation(
        "DescribeGroups|ListGroups|DeleteGroups|OffsetDelete|OffsetCommit|TxnOffsetCommit",
        ".*",
        "A JoinGroup that is rejected, or a commit of which no offset is accepted, creates no"
        " group; Kafka keeps an empty one, which some later requests see.",
        applies_after=_sees_empty_group,
        diverges=True,
    ),
    Explanation(
        "JoinGroup",
        "error_code|member_id",
        "A static member that joins with the member id of a dynamic one is UNKNOWN_MEMBER_ID; Kafka"
        " fails unexpectedly.",
        lambda difference, request: (
            request.group_instance_id is not None
            and isinstance(request.member_id, Ref)
            and difference.kafka in (ErrorCode.UNKNOWN_SERVER_ERROR, "")
        ),
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
        "retention.bytes below -1 is rejected; Kafka takes it for unlimited.",
        _has_low_retention_bytes,
        diverges=True,
    ),
    Explanation(
        "CreateTopics|AlterConfigs|IncrementalAlterConfigs",
        r".*",
        "cleanup.policy names at least one policy; Kafka accepts none.",
        _empties_cleanup_policy,
        diverges=True,
    ),
    Explanation(
        "InitProducerId",
        "error_code|producer_id|producer_epoch",
        "A producer that asks for its next epoch after its transaction was aborted for another one,"
        " which asked without an epoch, is fenced; Kafka fences it when the other one asks again.",
        _is_fenced_while_aborted,
        diverges=True,
    ),
    Explanation(
        "IncrementalAlterConfigs",
        r"responses\.error_code",
        "IncrementalAlterConfigs that deletes an unknown config fails; Kafka ignores it.",
        lambda difference, request: (
            (difference.ottla, difference.kafka) == (ErrorCode.INVALID_CONFIG, ErrorCode.NONE)
            and any(
                config.name not in TOPIC_CONFIGS and config.config_operation == _DELETE
                for resource in request.resources
                for config in resource.configs
            )
        ),
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
        "topics.*",
        "A Metadata request that has topic ids and names gets both; Kafka ignores the names.",
        lambda _, request: (
            any(topic.topic_id != NIL_UUID for topic in request.topics or ())
            and any(topic.topic_id == NIL_UUID for topic in request.topics or ())
        ),
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
        "DescribeTopicPartitions",
        ".*",
        "An empty topic name in a DescribeTopicPartitions is invalid, and fails alone; Kafka fails"
        " the whole request unexpectedly.",
        lambda _, request: any(not topic.name for topic in request.topics),
    ),
    Explanation(
        "Produce",
        r"responses\.partition_responses\.error_code",
        "A transactional batch that is wrong in several ways gets one of the errors; which one"
        " depends on the order of checks.",
        lambda difference, request: (
            request.transactional_id is not None
            and {difference.ottla, difference.kafka} <= _TRANSACTION_ERRORS
        ),
    ),
    Explanation(
        "ConsumerGroupHeartbeat",
        "heartbeat_interval_ms",
        "A member of a consumer group that is being rebalanced is asked for its next heartbeat"
        " in one second; Kafka leaves the interval as it is.",
        lambda difference, _: difference.ottla == 1000,
    ),
    Explanation(
        "ConsumerGroupHeartbeat|ConsumerGroupDescribe",
        r"(assignment|groups\.members\.(target_)?assignment)\.topic_partitions.*",
        "The assignor uniform may give other partitions, in the same numbers, to members whose"
        " subscriptions differ.",
        applies_after=_has_different_subscriptions,
        diverges=True,
    ),
    Explanation(
        "ConsumerGroupDescribe",
        r"groups\.(group_state|assignment_epoch|members\.target_assignment.*)",
        "The target assignment of a consumer group is computed when a member leaves; Kafka computes"
        " it with the next heartbeat of another one.",
        applies_after=_was_left,
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
        "session_id",
        "A fetch session with a topic name of more than 249 characters is not created.",
        lambda difference, request: (
            difference.ottla == 0
            and any(len(topic.topic) > _MAX_TOPIC_NAME_LENGTH for topic in request.topics)
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
        r"responses\.partition_responses\.(record_errors|log_start_offset)",
        "A rejected batch: Kafka returns the log start offset with some errors, ottla -1.",
        lambda difference, _: difference.ottla in (-1, "absent"),
    ),
]


def explanation_of(
    difference: Difference, request: Any, earlier: Sequence[Any] = ()
) -> Explanation | None:
    """Return the explanation of a difference, if there is one.

    `earlier` has the requests before this one in the sequence.
    """
    for explanation in EXPLANATIONS:
        after = explanation.applies_after
        if (
            re.fullmatch(explanation.api, difference.api)
            and re.fullmatch(explanation.field, difference.field)
            and explanation.applies(difference, request)
            and (after is None or after(difference, request, earlier))
        ):
            return explanation
    return None
