"""Talking to a broker by hand: a client that sends what it is told, and reads what comes."""

from __future__ import annotations

import asyncio
import functools
import inspect
import struct
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from ottla.broker import Broker, BrokerConfig
from ottla.broker.partitions.partition import Partition
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.api.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.batch import RecordBatch, split_batches
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.schema import Message

#: Longer than anything here takes on a busy machine, and short enough to see that something hangs.
PATIENCE = 30.0


def on_both_loops(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in asyncio's own event loop, and in the one that the daemon has."""

    @functools.wraps(test)
    def run(loop_factory: Callable[[], asyncio.AbstractEventLoop], **fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            runner.run(test(**fixtures))

    signature = inspect.signature(test)
    loop = inspect.Parameter("loop_factory", inspect.Parameter.KEYWORD_ONLY)
    parameters = [*signature.parameters.values(), loop]
    run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    factories = [asyncio.new_event_loop, uvloop.new_event_loop]
    return pytest.mark.parametrize("loop_factory", factories, ids=["asyncio", "uvloop"])(run)


@asynccontextmanager
async def a_broker(
    path: Path, topics: Mapping[str, int] | None = None, /, **settings: Any
) -> AsyncIterator[Broker]:
    """A broker on a free port, with topics of so many partitions."""
    config = BrokerConfig(log_dir=str(path), listeners="PLAINTEXT://127.0.0.1:0", **settings)
    async with Broker(config) as broker:
        for name, count in (topics or {"t": 2}).items():
            await make_topic(broker, name, count)
        yield broker


async def make_topic(broker: Broker, name: str, count: int = 1, **configs: str) -> None:
    """Make a topic; its settings are said with underscores."""
    named = {key.replace("_", "."): value for key, value in configs.items()}
    errors = await broker.controller.create_topics(
        [broker.controller.plan_topic(name, count, named)]
    )
    assert errors == [None]


def partition_of(broker: Broker, topic: str = "t", index: int = 0) -> Partition:
    return broker.topics.find(topic, index)


class Client:
    """One connection. It sends what it is told: whatever that is, and in any order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._sent: list[tuple[int, type[Message], int]] = []
        self._correlation_id = 0

    def send(self, request: Message, version: int | None = None) -> None:
        """Send a request, in the last version if none is given; its answer is owed."""
        api = request.api
        assert api is not None
        version = api.versions.last if version is None else version
        self._correlation_id += 1
        self.writer.writelines(encode_request(request, version, self._correlation_id, "talk"))
        self._sent.append((self._correlation_id, api.response, version))

    async def answer(self) -> Any:
        """Read the answer to the oldest request that has none yet."""
        correlation_id, response, version = self._sent.pop(0)
        found_id, found = decode_response(response, version, await self.frame())
        assert found_id == correlation_id
        return found

    async def ask(self, request: Message, version: int | None = None) -> Any:
        """Send a request, and give its answer."""
        self.send(request, version)
        return await self.answer()

    async def frame(self) -> bytes:
        """Read a frame, and give what follows its size."""
        async with asyncio.timeout(PATIENCE):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def is_closed(self) -> bool:
        """Wait until the broker has closed; False if it sends something, or does not."""
        try:
            async with asyncio.timeout(PATIENCE):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    async def hears_nothing(self, seconds: float = 0.05) -> bool:
        """Whether neither an answer nor an end comes for a while."""
        try:
            async with asyncio.timeout(seconds):
                await self.reader.read(1)
                return False
        except TimeoutError:
            return True

    async def close(self) -> None:
        self.writer.close()
        with suppress(ConnectionError):
            await self.writer.wait_closed()


@asynccontextmanager
async def connected(broker: Broker | str) -> AsyncIterator[Client]:
    """A client of a broker, or of an address."""
    address = broker if isinstance(broker, str) else broker.address
    host, _, port = address.rpartition(":")
    client = Client(*await asyncio.open_connection(host, int(port), limit=2**30))
    try:
        yield client
    finally:
        await client.close()


async def is_well(broker: Broker | str) -> bool:
    """Whether somebody who comes now is served."""
    async with connected(broker) as client:
        return (await client.ask(ApiVersionsRequest(), 0)).error_code == 0


async def until(condition: Any, seconds: float = PATIENCE) -> None:
    """Wait until something is so. It may have to be awaited to know."""
    async with asyncio.timeout(seconds):
        while True:
            met = condition()
            if await met if inspect.isawaitable(met) else met:
                return
            await asyncio.sleep(0.005)


# Requests, and what is in their answers.


def produce(
    *records: Any, topic: str = "t", index: int = 0, acks: int = 1, timeout_ms: int = 5000
) -> ProduceRequest:
    """Records for a partition, or for as many as there are records, from `index` on."""
    data = [
        PartitionProduceData(index=at, records=part) for at, part in enumerate(records, start=index)
    ]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics)


def fetch(
    *offsets: int,
    topic: str = "t",
    partition_max_bytes: int = 1024 * 1024,
    epoch: int = -1,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    **fields: Any,
) -> FetchRequest:
    """Of partition 0, 1, … from these offsets on."""
    partitions = [
        FetchPartition(
            partition=at,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=epoch,
        )
        for at, offset in enumerate(offsets)
    ]
    topics = [FetchTopic(topic=topic, partitions=partitions)] if partitions else []
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=topics, **fields)


def results(response: ProduceResponse) -> list[PartitionProduceResponse]:
    """What became of each partition."""
    return [result for topic in response.responses for result in topic.partition_responses]


def found(response: FetchResponse) -> list[PartitionData]:
    """What there is of each partition."""
    return [data for topic in response.responses for data in topic.partitions]


def batches(data: PartitionData) -> list[RecordBatch]:
    return list(split_batches(data.records or b""))


def offsets(data: PartitionData) -> list[int]:
    return [record.offset for batch in batches(data) for record in batch.records()]


def codes(response: Any) -> list[int]:
    """The error codes of all partitions."""
    parts = results(response) if isinstance(response, ProduceResponse) else found(response)
    return [part.error_code for part in parts]
