"""Consumers of other people read the batches and the responses that we encode, over a socket.

There is no broker yet; `Shelf` is as much of one as a consumer needs that is told what to read. It
answers ApiVersions, Metadata, ListOffsets and Fetch, each from our own messages.
"""

from __future__ import annotations

import asyncio
import socketserver
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer
from aiokafka import TopicPartition as AioTopicPartition
from confluent_kafka import Consumer as ConfluentConsumer
from confluent_kafka import TopicPartition as ConfluentTopicPartition
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from ottla.protocol.api.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.api.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)
from ottla.protocol.api.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from ottla.protocol.api.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.batch import Record, RecordBatch, build_batch
from ottla.protocol.codec import decode_request, encode_response
from ottla.protocol.compression import Compression
from ottla.protocol.registry import API_VERSIONS, FETCH, LIST_OFFSETS, METADATA, PRODUCE
from ottla.protocol.schema import Message

NOW = 1_700_000_000_000
# librdkafka believes that a broker has batches of magic 2 if it sees Produce offered, too.
OFFERED = [API_VERSIONS, FETCH, LIST_OFFSETS, METADATA, PRODUCE]
TOPICS = {codec.name.lower(): codec for codec in Compression}


def written(offset: int) -> Record:
    headers = (("n", str(offset).encode()), ("null", None)) if offset % 3 == 0 else ()
    key = None if offset % 4 == 0 else b"key %d" % offset
    value = None if offset % 7 == 6 else b"value %d " % offset * (1 + offset * 40)
    return Record(offset, NOW + offset, key, value, headers)


RECORDS = [written(offset) for offset in range(40)]


def log_of(codec: Compression) -> bytes:
    """Two batches, the second one at its own offset."""
    first, second = build_batch(RECORDS[:25], compression=codec), RECORDS[25:]
    return bytes(first + build_batch(second, compression=codec))


class Shelf(socketserver.ThreadingTCPServer):
    """One topic for each codec, one partition each; the records are there from the start."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Conversation)
        self.logs = {name: log_of(codec) for name, codec in TOPICS.items()}

    @property
    def address(self) -> str:
        host, port = self.server_address
        return f"{host}:{port}"

    def answer(self, request: Message) -> Message:
        match request:
            case ApiVersionsRequest():
                keys = [
                    ApiVersion(
                        api_key=api.key,
                        min_version=api.advertised.first,
                        max_version=api.advertised.last,
                    )
                    for api in OFFERED
                ]
                return ApiVersionsResponse(api_keys=keys)
            case MetadataRequest():
                return self.metadata()
            case ListOffsetsRequest():
                return ListOffsetsResponse(
                    topics=[
                        ListOffsetsTopicResponse(
                            name=topic.name,
                            partitions=[
                                ListOffsetsPartitionResponse(offset=0 if p.timestamp == -2 else 40)
                                for p in topic.partitions
                            ],
                        )
                        for topic in request.topics
                    ]
                )
            case FetchRequest():
                return FetchResponse(
                    responses=[
                        FetchableTopicResponse(
                            topic=topic.topic,
                            partitions=[
                                self.fetched(topic.topic, p.fetch_offset) for p in topic.partitions
                            ],
                        )
                        for topic in request.topics
                    ]
                )
        raise AssertionError(request)

    def metadata(self) -> MetadataResponse:
        host, port = self.server_address
        partition = MetadataResponsePartition(leader_epoch=0, replica_nodes=[0], isr_nodes=[0])
        return MetadataResponse(
            brokers=[MetadataResponseBroker(node_id=0, host=str(host), port=port)],
            cluster_id="abcdefghijklmnopqrstuv",
            controller_id=0,
            topics=[MetadataResponseTopic(name=name, partitions=[partition]) for name in self.logs],
        )

    def fetched(self, topic: str, offset: int) -> PartitionData:
        records = self.logs[topic] if offset < 40 else b""
        if not records:
            time.sleep(0.05)  # or a consumer that has all would ask again at once, for ever
        return PartitionData(high_watermark=40, last_stable_offset=40, records=records)


class Conversation(socketserver.StreamRequestHandler):
    """One connection: request in, response out."""

    server: Shelf

    def handle(self) -> None:
        while size := self.rfile.read(4):
            header, request = decode_request(self.rfile.read(int.from_bytes(size, "big")))
            version = header.request_api_version
            response = encode_response(self.server.answer(request), version, header.correlation_id)
            self.wfile.writelines(response)


@pytest.fixture(scope="module")
def shelf() -> Iterator[Shelf]:
    with Shelf() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def plain(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


@pytest.mark.parametrize("topic", TOPICS)
def test_confluent_kafka_reads_what_we_write(shelf, topic):
    consumer = ConfluentConsumer(
        {
            "bootstrap.servers": shelf.address,
            "group.id": "none",
            "enable.auto.commit": False,
            "check.crcs": True,
        }
    )
    consumer.assign([ConfluentTopicPartition(topic, 0, 0)])

    messages: list[Any] = []
    for _ in range(100):
        messages += consumer.consume(40 - len(messages), timeout=0.2)
        if len(messages) == 40:
            break
    consumer.close()

    assert not [message.error() for message in messages if message.error()]
    assert [
        Record(
            m.offset(), m.timestamp()[1], plain(m.key()), plain(m.value()), tuple(m.headers() or ())
        )
        for m in messages
    ] == RECORDS


@pytest.mark.parametrize("topic", TOPICS)
async def test_aiokafka_reads_what_we_write(shelf, topic):
    consumer = AIOKafkaConsumer(bootstrap_servers=shelf.address)
    await consumer.start()
    try:
        consumer.assign([AioTopicPartition(topic, 0)])
        consumer.seek(AioTopicPartition(topic, 0), 0)
        async with asyncio.timeout(20):
            got = [await consumer.getone() for _ in range(40)]
    finally:
        await consumer.stop()

    assert [
        Record(m.offset, m.timestamp, plain(m.key), plain(m.value), tuple(m.headers)) for m in got
    ] == RECORDS


@pytest.mark.parametrize("topic", TOPICS)
def test_kafka_python_reads_what_we_write(shelf, topic):
    consumer = KafkaConsumer(bootstrap_servers=shelf.address, consumer_timeout_ms=20_000)
    partition = PythonTopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek(partition, 0)

    got = [next(consumer) for _ in range(40)]
    consumer.close()

    assert [
        Record(m.offset, m.timestamp, plain(m.key), plain(m.value), tuple(m.headers)) for m in got
    ] == RECORDS


def test_the_shelf_holds_what_it_should():
    assert [len(RecordBatch(log_of(codec)).records()) for codec in Compression] == [25] * 5
