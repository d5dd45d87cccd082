"""Asking single brokers of a cluster, by hand: each for what it knows and has itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from harness import talk
from harness.daemon import Daemon
from harness.logs import a_batch
from ottla.protocol.api.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from ottla.protocol.api.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from ottla.protocol.api.delete_topics import DeleteTopicsRequest, DeleteTopicState
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Message


async def ask(broker: Daemon, request: Message, version: int | None = None) -> Any:
    """Ask one broker one thing."""
    async with talk.connected(broker.address) as client:
        return await client.ask(request, version)


async def create(
    broker: Daemon, name: str, count: int = 6, owners: Iterable[int] | None = None
) -> tuple[int, str | None]:
    """Make a topic; give the error code and what is said of it."""
    wanted = CreatableTopic(name=name, num_partitions=count, replication_factor=1)
    if owners is not None:
        assigned = [
            CreatableReplicaAssignment(partition_index=index, broker_ids=[owner])
            for index, owner in enumerate(owners)
        ]
        wanted = CreatableTopic(
            name=name, num_partitions=-1, replication_factor=-1, assignments=assigned
        )
    request = CreateTopicsRequest(topics=[wanted], timeout_ms=10_000)
    [topic] = (await ask(broker, request)).topics
    return topic.error_code, topic.error_message


async def delete(broker: Daemon, name: str) -> tuple[int, str | None]:
    request = DeleteTopicsRequest(topics=[DeleteTopicState(name=name)], timeout_ms=10_000)
    [topic] = (await ask(broker, request)).responses
    return topic.error_code, topic.error_message


async def add_partitions(broker: Daemon, name: str, count: int) -> tuple[int, str | None]:
    wanted = CreatePartitionsTopic(name=name, count=count, assignments=None)
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=10_000)
    [topic] = (await ask(broker, request)).results
    return topic.error_code, topic.error_message


async def alter(
    broker: Daemon, kind: int, name: str, configs: Mapping[str, str]
) -> tuple[int, str | None]:
    """Set settings of a topic (2) or a broker (4)."""
    resource = AlterConfigsResource(
        resource_type=kind,
        resource_name=name,
        configs=[
            AlterableConfig(name=key, config_operation=0, value=value)
            for key, value in configs.items()
        ],
    )
    [answer] = (await ask(broker, IncrementalAlterConfigsRequest(resources=[resource]))).responses
    return answer.error_code, answer.error_message


async def metadata(broker: Daemon, *names: str, creating: bool = False) -> Any:
    """Ask for topics, or for all of them."""
    topics = [MetadataRequestTopic(name=name) for name in names] if names else None
    return await ask(broker, MetadataRequest(topics=topics, allow_auto_topic_creation=creating))


async def leaders(broker: Daemon, name: str) -> list[int] | None:
    """Say who leads the partitions of a topic, as a broker believes; None: it knows no such one."""
    [topic] = (await metadata(broker, name)).topics
    if topic.error_code:
        return None
    return [one.leader_id for one in sorted(topic.partitions, key=lambda one: one.partition_index)]


async def produce(
    broker: Daemon, topic: str, index: int, value: bytes = b"x", version: int | None = None
) -> Any:
    """Send one record; give the whole answer."""
    request = talk.produce(a_batch(value=value), topic=topic, index=index, acks=-1)
    return await ask(broker, request, version)


async def produced(broker: Daemon, topic: str, index: int, value: bytes = b"x") -> int:
    """Send one record; give the error code."""
    [code] = talk.codes(await produce(broker, topic, index, value))
    return code


async def fetch(
    broker: Daemon, topic: str, index: int, offset: int = 0, version: int | None = None
) -> Any:
    """Read a partition; give what is said of it."""
    asked = FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1_000_000)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=1, topics=[FetchTopic(topic=topic, partitions=[asked])]
    )
    [data] = talk.found(await ask(broker, request, version))
    return data


def logs_of(broker: Daemon, topic: str) -> set[int]:
    """Say of which partitions of a topic a broker has files."""
    return {
        int(path.name.rpartition("-")[2])
        for path in broker.data.iterdir()
        if path.name.rpartition("-")[0] == topic
    }


OK = (ErrorCode.NONE, None)
