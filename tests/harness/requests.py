"""Single requests: each takes a connected `WireClient`, or a broker to which it connects.

Functions that start with `try_` return the error code and message; the others assert success.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness.logs import a_batch
from harness.wire import (
    Listening,
    WireClient,
    connect,
    error_codes,
    fetch_request,
    fetched_partitions,
    produce_request,
    produce_results,
)
from ottla.protocol.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.api.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Message

Target = WireClient | Listening | str
CodeAndMessage = tuple[int, str | None]
#: What `try_` functions return on success.
OK: CodeAndMessage = (ErrorCode.NONE, None)


async def send_request(target: Target, message: Message, version: int | None = None) -> Any:
    """Send a request, over a new connection unless the target is one, and return the response."""
    if isinstance(target, WireClient):
        return await target.request(message, version)
    async with connect(target) as client:
        return await client.request(message, version)


def create_topics_request(
    name: str, partitions: int = 1, *, leaders: Iterable[int] | None = None, **configs: str
) -> CreateTopicsRequest:
    """Build a CreateTopics of one topic; `retention_ms="1"` sets its config retention.ms.

    With `leaders`, each partition is assigned to the broker of that id.
    """
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=[leader])
        for index, leader in enumerate(leaders or ())
    ]
    topic = CreatableTopic(
        name=name,
        num_partitions=-1 if assignments else partitions,
        replication_factor=-1 if assignments else 1,
        assignments=assignments,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


async def create_topic(target: Target, name: str, partitions: int = 1, **configs: str) -> Any:
    """Create a topic and return its result."""
    response = await send_request(target, create_topics_request(name, partitions, **configs))
    (topic,) = response.topics
    assert topic.error_code == ErrorCode.NONE, topic.error_message
    return topic


async def try_create_topic(
    target: Target, name: str, partitions: int = 6, leaders: Iterable[int] | None = None
) -> CodeAndMessage:
    message = create_topics_request(name, partitions, leaders=leaders)
    (topic,) = (await send_request(target, message)).topics
    return topic.error_code, topic.error_message


async def try_delete_topic(target: Target, name: str) -> CodeAndMessage:
    message = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)
    (topic,) = (await send_request(target, message)).responses
    return topic.error_code, topic.error_message


async def try_create_partitions(target: Target, name: str, count: int) -> CodeAndMessage:
    topic = CreatePartitionsTopic(name=name, count=count, assignments=None)
    message = CreatePartitionsRequest(topics=[topic], timeout_ms=10_000)
    (result,) = (await send_request(target, message)).results
    return result.error_code, result.error_message


async def try_alter_configs(
    target: Target, resource_type: int, name: str, configs: Mapping[str, str]
) -> CodeAndMessage:
    """Set configs of a topic (resource type 2) or a broker (4)."""
    resource = AlterConfigsResource(
        resource_type=resource_type,
        resource_name=name,
        configs=[
            AlterableConfig(name=key, config_operation=0, value=value)
            for key, value in configs.items()
        ],
    )
    message = IncrementalAlterConfigsRequest(resources=[resource])
    (result,) = (await send_request(target, message)).responses
    return result.error_code, result.error_message


async def metadata(
    target: Target, *names: str, version: int | None = None, create: bool = False
) -> Any:
    """Send Metadata for some topics, or for all, and return the response."""
    topics = [MetadataRequestTopic(name=name) for name in names] or None
    message = MetadataRequest(topics=topics, allow_auto_topic_creation=create)
    return await send_request(target, message, version)


async def topic_metadata(
    target: Target, *names: str, version: int = 12, create: bool = False
) -> dict[str, Any]:
    """Send Metadata for some topics, or for all, and return the topics by name."""
    response = await metadata(target, *names, version=version, create=create)
    return {topic.name: topic for topic in response.topics}


async def leaders_of(target: Target, name: str) -> list[int] | None:
    """Return the leaders of a topic's partitions according to a broker; None: unknown topic."""
    (topic,) = (await metadata(target, name)).topics
    if topic.error_code:
        return None
    by_index = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return [partition.leader_id for partition in by_index]


async def produce_batch(
    target: Target, topic: str, count: int = 1, *, partition: int = 0, **batch: Any
) -> int:
    """Append a batch and return its base offset."""
    message = produce_request(a_batch(count, **batch), topic=topic, partition=partition, acks=-1)
    (result,) = produce_results(await send_request(target, message))
    assert result.error_code == ErrorCode.NONE, result.error_message
    return result.base_offset


async def produce_value(
    target: Target, topic: str, partition: int, value: bytes = b"x", version: int | None = None
) -> Any:
    """Append one record and return the whole response."""
    message = produce_request(a_batch(value=value), topic=topic, partition=partition, acks=-1)
    return await send_request(target, message, version)


async def produce_code(target: Target, topic: str, partition: int, value: bytes = b"x") -> int:
    """Append one record and return the error code."""
    (code,) = error_codes(await produce_value(target, topic, partition, value))
    return code


async def fetch_partition(
    target: Target, topic: str, partition: int, offset: int = 0, version: int | None = None
) -> Any:
    """Fetch a partition and return its part of the response."""
    message = fetch_request(offset, topic=topic, partition=partition, partition_max_bytes=1_000_000)
    (data,) = fetched_partitions(await send_request(target, message, version))
    return data


async def offset_for_time(
    target: Target, topic: str, timestamp: int, *, partition: int = 0, version: int = 9
) -> Any:
    """Send ListOffsets for one timestamp and return the partition's part of the response."""
    wanted = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    topics = [ListOffsetsTopic(name=topic, partitions=[wanted])]
    response = await send_request(target, ListOffsetsRequest(replica_id=-1, topics=topics), version)
    return response.topics[0].partitions[0]
