"""Raw wire clients: connections that send any frame, valid or not, and decode what comes back.

    async with connect(broker) as client:
        response = await client.request(MetadataRequest(topics=None), version=12)

`WireClient` is for tests that run in an event loop. `BlockingWireClient` does the same over a plain
socket, for threads and for thousands of connections. Both accept an in-process broker, a daemon or
an address. Below them are builders of the two requests that most tests send, Produce and Fetch, and
readers of their responses; `requests` has single requests by name.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Any, Protocol, Self

from ottla.protocol.api.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.api.produce import (
    LAST_VERSION_WITH_TOPIC_NAMES,
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from ottla.protocol.batch import RecordBatch, split_batches
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.primitives import NIL_UUID
from ottla.protocol.schema import Message

#: Longer than any response takes on a busy machine; a test that waits this long hangs.
TIMEOUT_SECONDS = 30.0
_MAX_RESPONSE_BYTES = 2**30


class Listening(Protocol):
    """An in-process broker or a daemon."""

    @property
    def address(self) -> str:
        """Its host:port."""


def _host_and_port(broker: Listening | str) -> tuple[str, int]:
    address = broker if isinstance(broker, str) else broker.address
    host, _, port = address.rpartition(":")
    return host, int(port)


def frame_of(request: Message, version: int, correlation_id: int = 1) -> bytes:
    """Encode a request, length prefix included."""
    return b"".join(encode_request(request, version, correlation_id, "wire"))


def framed(body: bytes) -> bytes:
    """Prefix bytes with their length."""
    return struct.pack(">i", len(body)) + body


class WireClient:
    """One connection. Requests may be pipelined; responses are read in request order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._in_flight: list[tuple[int, type[Message], int]] = []
        self._correlation_id = 0

    def send(self, request: Message, version: int | None = None) -> None:
        """Send a request, in its latest version by default; read its response later."""
        api = request.api
        assert api is not None
        if version is None:
            has_names = isinstance(request, ProduceRequest | FetchRequest)
            version = LAST_VERSION_WITH_TOPIC_NAMES if has_names else api.versions.last
        self._correlation_id += 1
        self.writer.writelines(encode_request(request, version, self._correlation_id, "wire"))
        self._in_flight.append((self._correlation_id, api.response, version))

    async def response(self) -> Any:
        """Read the response to the oldest request in flight."""
        correlation_id, response_type, version = self._in_flight.pop(0)
        received_id, response = decode_response(response_type, version, await self.frame())
        assert received_id == correlation_id
        return response

    async def request(self, request: Message, version: int | None = None) -> Any:
        """Send a request and return its response.

        Topics without an id, in a version with ids, get those that Metadata returns.
        """
        if version is not None and version > LAST_VERSION_WITH_TOPIC_NAMES:
            if isinstance(request, FetchRequest):
                await self._fill_in_topic_ids([*request.topics, *request.forgotten_topics_data])
            elif isinstance(request, ProduceRequest):
                await self._fill_in_topic_ids(request.topic_data, "name")
        self.send(request, version)
        return await self.response()

    async def _fill_in_topic_ids(self, topics: Sequence[Any], name_field: str = "topic") -> None:
        for topic in topics:
            name = getattr(topic, name_field)
            if topic.topic_id == NIL_UUID and name:
                wanted = MetadataRequestTopic(name=name)
                lookup = MetadataRequest(topics=[wanted], allow_auto_topic_creation=False)
                response = await self.request(lookup, 12)
                topic.topic_id = response.topics[0].topic_id

    async def frame(self) -> bytes:
        """Read a frame; return it without its length prefix."""
        async with asyncio.timeout(TIMEOUT_SECONDS):
            (size,) = struct.unpack(">i", await self.reader.readexactly(4))
            return await self.reader.readexactly(size)

    async def is_closed(self) -> bool:
        """Wait until the broker closes the connection; False if it sends data or stays silent."""
        try:
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return await self.reader.read(1) == b""
        except ConnectionError:
            return True
        except TimeoutError:
            return False

    async def receives_nothing(self, seconds: float = 0.05) -> bool:
        """Whether neither data nor the end of the connection arrives for a while."""
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
async def connect(broker: Listening | str) -> AsyncIterator[WireClient]:
    """Connect to a broker or an address."""
    host, port = _host_and_port(broker)
    streams = await asyncio.open_connection(host, port, limit=_MAX_RESPONSE_BYTES)
    client = WireClient(*streams)
    try:
        yield client
    finally:
        await client.close()


class BlockingWireClient:
    """One connection over a blocking socket. It sends any bytes, valid or not."""

    def __init__(self, broker: Listening | str, timeout: float = TIMEOUT_SECONDS) -> None:
        self._socket = socket.create_connection(_host_and_port(broker), timeout=timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._partial = b""

    def send(self, data: bytes) -> None:
        """Send bytes. A connection that the broker has closed is not an error."""
        with suppress(ConnectionError):
            self._socket.sendall(data)

    def request(self, request: Message, version: int) -> Any:
        """Send a request and return its response."""
        self.send(frame_of(request, version))
        assert request.api is not None
        return decode_response(request.api.response, version, self.frame())[1]

    def frame(self) -> bytes:
        """Read a frame, without its length prefix. Raises EOFError if the connection ends."""
        (size,) = struct.unpack(">i", self._read(4))
        return self._read(size)

    def read_to_end(self) -> bytes:
        """Half-close the connection, and read until the broker closes it."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
            chunks = []
            while chunk := self._socket.recv(1 << 20):
                chunks.append(chunk)
            return b"".join(chunks)
        except TimeoutError as error:
            raise AssertionError("The broker neither responds nor closes") from error
        except OSError:
            return b""

    def read_part(self, size: int) -> None:
        """Read the next `size` bytes of a frame; `rest_of_frame` returns them with the others."""
        self._partial += self._read(size)

    def rest_of_frame(self) -> bytes:
        """Read the rest of a frame of which `read_part` has read the beginning."""
        (length,) = struct.unpack_from(">i", self._partial)
        return self._partial[4:] + self._read(4 + length - len(self._partial))

    def is_closed(self) -> bool:
        """Wait until the broker closes the connection; False if it sends data."""
        try:
            return self._socket.recv(1) == b""
        except ConnectionError:
            return True

    def reset_on_close(self) -> None:
        """Make `close` send RST instead of FIN."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def close(self) -> None:
        self._socket.close()

    def _read(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            chunk = self._socket.recv(size - len(received))
            if not chunk:
                raise EOFError(f"Connection closed after {len(received)} of {size} bytes")
            received += chunk
        return bytes(received)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()


# Requests, and what is in their responses.


def produce_request(
    *records: Any, topic: str = "t", partition: int = 0, acks: int = 1, timeout_ms: int = 5000
) -> ProduceRequest:
    """Build a Produce of one batch per partition, starting at `partition`."""
    data = [
        PartitionProduceData(index=index, records=batch)
        for index, batch in enumerate(records, start=partition)
    ]
    topics = [TopicProduceData(name=topic, partition_data=data)]
    return ProduceRequest(acks=acks, timeout_ms=timeout_ms, topic_data=topics)


def fetch_request(
    *offsets: int,
    topic: str = "t",
    partition: int = 0,
    partition_max_bytes: int = 1024 * 1024,
    epoch: int = -1,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    **fields: Any,
) -> FetchRequest:
    """Build a Fetch of one partition per offset, starting at `partition`."""
    partitions = [
        FetchPartition(
            partition=index,
            fetch_offset=offset,
            partition_max_bytes=partition_max_bytes,
            current_leader_epoch=epoch,
        )
        for index, offset in enumerate(offsets, start=partition)
    ]
    topics = [FetchTopic(topic=topic, partitions=partitions)] if partitions else []
    return FetchRequest(max_wait_ms=max_wait_ms, min_bytes=min_bytes, topics=topics, **fields)


def produce_results(response: ProduceResponse) -> list[PartitionProduceResponse]:
    """Return the partitions of a Produce response."""
    return [result for topic in response.responses for result in topic.partition_responses]


def fetched_partitions(response: FetchResponse) -> list[PartitionData]:
    """Return the partitions of a Fetch response."""
    return [data for topic in response.responses for data in topic.partitions]


def batches_of(data: PartitionData) -> list[RecordBatch]:
    """Return the batches of a fetched partition."""
    return list(split_batches(data.records or b""))


def offsets_of(data: PartitionData) -> list[int]:
    """Return the offsets of the records of a fetched partition."""
    return [record.offset for batch in batches_of(data) for record in batch.records()]


def error_codes(response: ProduceResponse | FetchResponse) -> list[int]:
    """Return the error codes of all partitions of a Produce or Fetch response."""
    if isinstance(response, ProduceResponse):
        return [result.error_code for result in produce_results(response)]
    return [data.error_code for data in fetched_partitions(response)]
