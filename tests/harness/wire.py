"""A broker of its own for a test, and a client that asks it for one thing after the other.

async with serving(tmp_path) as (broker, client):
    answer = await client.ask(MetadataRequest(topics=None), 12)
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness import talk
from harness.logs import a_batch
from harness.talk import Client, connected
from ottla.broker import Broker, BrokerConfig
from ottla.protocol.api.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.errors import ErrorCode


@asynccontextmanager
async def serving(
    path: Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Broker, Client]]:
    """A broker with its data there, and a client of it."""
    base = {"log.dir": str(path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    config = BrokerConfig.of({**base, **(settings or {})})
    async with Broker(config) as broker, connected(broker.address) as client:
        yield broker, client


def creating(name: str, partitions: int = 1, **configs: str) -> CreateTopicsRequest:
    """A request for a topic; `retention_ms="1"` is its setting retention.ms."""
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    return CreateTopicsRequest(topics=[wanted], timeout_ms=10_000)


async def create(client: Client, name: str, partitions: int = 1, **configs: str) -> Any:
    """Create a topic, and give what is answered of it."""
    (topic,) = (await client.ask(creating(name, partitions, **configs))).topics
    assert topic.error_code == ErrorCode.NONE, topic.error_message
    return topic


async def produce(
    client: Client, topic: str, count: int = 1, *, partition: int = 0, **batch: Any
) -> int:
    """Append a batch, and give its first offset."""
    request = talk.produce(a_batch(count, **batch), topic=topic, index=partition, acks=-1)
    (answer,) = talk.results(await client.ask(request))
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    return answer.base_offset


async def metadata(
    client: Client, *names: str, version: int = 12, creating: bool = False
) -> dict[str, Any]:
    """Ask for topics by name, or for all, and give what was answered by name."""
    topics = [MetadataRequestTopic(name=name) for name in names] or None
    response = await client.ask(
        MetadataRequest(topics=topics, allow_auto_topic_creation=creating), version
    )
    return {topic.name: topic for topic in response.topics}


async def offset_at(
    client: Client, topic: str, timestamp: int, *, partition: int = 0, version: int = 9
) -> Any:
    """Ask for the offset of one time; the answer for that partition."""
    asked = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
    response = await client.ask(
        ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=topic, partitions=[asked])]
        ),
        version,
    )
    return response.topics[0].partitions[0]
