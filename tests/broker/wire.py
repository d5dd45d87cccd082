"""A broker of its own for a test, and a raw client: one request, one response, real bytes.

async with serving(tmp_path) as (broker, client):
    answer = await client.ask(MetadataRequest(topics=None), 12)
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from logs import a_batch
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
from ottla.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Message


class Client:
    """A connection that asks, and waits for the answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._asked = 0

    async def ask(self, request: Message, version: int | None = None) -> Any:
        """Give the response to a request; in the last version, unless another is given."""
        api = request.api
        assert api is not None
        version = api.versions.last if version is None else version
        self._asked += 1
        self._writer.writelines(encode_request(request, version, self._asked, "a test"))
        size = int.from_bytes(await self._reader.readexactly(4))
        frame = await self._reader.readexactly(size)
        correlation_id, response = decode_response(api.response, version, frame)
        assert correlation_id == self._asked
        return response


@asynccontextmanager
async def connected(address: str) -> AsyncIterator[Client]:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        await writer.wait_closed()


@asynccontextmanager
async def serving(
    path: Path, settings: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Broker, Client]]:
    """A broker with its data there, and a client of it."""
    base = {"log.dir": str(path), "listeners": "PLAINTEXT://127.0.0.1:0"}
    config = BrokerConfig.of({**base, **(settings or {})})
    async with Broker(config) as broker, connected(broker.address) as client:
        yield broker, client


async def create(client: Client, name: str, partitions: int = 1, **configs: str) -> Any:
    """Create a topic; `retention_ms="1"` is its setting retention.ms."""
    wanted = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=1,
        configs=[
            CreatableTopicConfig(name=key.replace("_", "."), value=value)
            for key, value in configs.items()
        ],
    )
    response = await client.ask(CreateTopicsRequest(topics=[wanted]))
    assert response.topics[0].error_code == ErrorCode.NONE, response.topics[0].error_message
    return response.topics[0]


async def produce(
    client: Client, topic: str, count: int = 1, *, partition: int = 0, **batch: Any
) -> int:
    """Append a batch, and give its first offset."""
    data = PartitionProduceData(index=partition, records=bytes(a_batch(count, **batch)))
    response = await client.ask(
        ProduceRequest(
            acks=-1,
            timeout_ms=10_000,
            topic_data=[TopicProduceData(name=topic, partition_data=[data])],
        )
    )
    answer = response.responses[0].partition_responses[0]
    assert answer.error_code == ErrorCode.NONE, answer.error_message
    offset: int = answer.base_offset
    return offset


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
