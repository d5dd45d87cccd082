"""The scripted fake broker: responds as a test says, over real sockets, for tests of clients.

    async with ScriptedCluster(nodes=2, topics={"orders": 3}) as cluster:
        cluster.address                         # of the first broker
        cluster.move("orders", 0, to=1)         # another leader
        cluster.script(ProduceRequest, fail)    # the response to the next request
        cluster.written.values("orders", 0)     # what was produced

Produce follows the rules for idempotent producers: a duplicate batch is written once, and one
out of order is rejected. A script is a function of a `Call`; it returns a response, or None for
none at all, and may be a coroutine: responses leave in order, while later requests are read;
`call.serve()` is the regular response, with its effects.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from inspect import isawaitable
from types import TracebackType
from typing import Any, Self

from harness.servers import close_server
from ottla.protocol.api.api_versions import ApiVersion, ApiVersionsRequest, ApiVersionsResponse
from ottla.protocol.api.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from ottla.protocol.api.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from ottla.protocol.api.produce import (
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceResponse,
)
from ottla.protocol.batch import RecordBatch
from ottla.protocol.codec import decode_request, encode_response
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import Record
from ottla.protocol.registry import APIS
from ottla.protocol.schema import Message

Script = Callable[["Call"], Any]

SERVED = ("ApiVersions", "Metadata", "InitProducerId", "Produce")


class WrittenRecords:
    """The records of all partitions."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self.batches: dict[tuple[str, int], list[RecordBatch]] = defaultdict(list)
        # By partition and producer: sequences and base offset of the last five batches.
        self.producers: dict[tuple[str, int, int], deque[tuple[int, int, int]]] = {}

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.records[topic, partition]]

    def append(self, topic: str, partition: int, data: Any) -> PartitionProduceResponse:
        batch = RecordBatch(bytes(data))
        batch.validate_produced()
        base_offset = len(self.records[topic, partition])
        if batch.producer_id >= 0:
            key = (topic, partition, batch.producer_id)
            known = self.producers.setdefault(key, deque(maxlen=5))
            numbers = (batch.base_sequence, batch.last_sequence)
            for first, last, offset in known:
                if (first, last) == numbers:
                    return PartitionProduceResponse(index=partition, base_offset=offset)
            if known and batch.base_sequence != (known[-1][1] + 1) & 0x7FFFFFFF:
                return produce_error(partition, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            known.append((*numbers, base_offset))
        self.records[topic, partition] += batch.records()
        self.batches[topic, partition].append(batch)
        return PartitionProduceResponse(index=partition, base_offset=base_offset)


class Call:
    """A request that a broker received."""

    def __init__(
        self, node: ScriptedBroker, request: Any, version: int, disconnect: Callable[[], None]
    ) -> None:
        self.node = node
        self.cluster = node.cluster
        self.request = request
        self.version = version
        #: Aborts the connection.
        self.disconnect = disconnect

    def serve(self) -> Any:
        """Return the regular response."""
        return self.cluster.serve(self)

    def batches(self) -> list[tuple[str, int, RecordBatch]]:
        """Return the batches of a Produce request."""
        return [
            (topic.name, data.index, RecordBatch(bytes(data.records)))
            for topic in self.request.topic_data
            for data in topic.partition_data
        ]

    def error_response(self, code: ErrorCode) -> ProduceResponse:
        """Return a Produce response with an error for every partition."""
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        produce_error(data.index, code) for data in topic.partition_data
                    ],
                )
                for topic in self.request.topic_data
            ]
        )


def produce_error(partition: int, code: ErrorCode) -> PartitionProduceResponse:
    return PartitionProduceResponse(index=partition, error_code=code, base_offset=-1)


class ScriptedCluster:
    """Some brokers and their state. Subclasses may override `serve`."""

    def __init__(
        self,
        nodes: int = 1,
        topics: Mapping[str, int] | None = None,
        versions: Mapping[str, tuple[int, int]] | None = None,
        served: Collection[str] = (),
    ) -> None:
        #: The APIs in ApiVersions responses; requests of others than these four need a script.
        self.served = {*SERVED, *served}
        self.controller = 0
        self.written = WrittenRecords()
        self.calls: list[Call] = []
        self.versions = dict(versions or {})
        self.nodes = [ScriptedBroker(self, number) for number in range(nodes)]
        self.leaders: dict[tuple[str, int], int] = {
            (topic, partition): partition % nodes
            for topic, count in (topics or {"orders": 1}).items()
            for partition in range(count)
        }
        self.producer_ids = 0
        self._scripts: dict[type[Message], deque[Script]] = defaultdict(deque)
        self._defaults: dict[type[Message], Script] = {}

    @property
    def address(self) -> str:
        return self.nodes[0].address

    def move(self, topic: str, partition: int, to: int) -> None:
        self.leaders[topic, partition] = to

    def script(self, kind: type[Message], *scripts: Script) -> None:
        """Set the scripts of the next requests of a kind."""
        self._scripts[kind].extend(scripts)

    def always(self, kind: type[Message], script: Script) -> None:
        """Set the script of all requests of a kind for which there is no other script."""
        self._defaults[kind] = script

    def requests_of(self, kind: type[Message]) -> list[Call]:
        """Return the received requests of a kind."""
        return [call for call in self.calls if isinstance(call.request, kind)]

    def next_script(self, request: Message) -> Script:
        scripts = self._scripts[type(request)]
        return scripts.popleft() if scripts else self._defaults.get(type(request), Call.serve)

    async def __aenter__(self) -> Self:
        for node in self.nodes:
            await node.start()
        return self

    async def __aexit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        for node in self.nodes:
            await node.stop()

    def serve(self, call: Call) -> Any:
        """Return the regular response to a request."""
        request = call.request
        if isinstance(request, ApiVersionsRequest):
            return self._api_versions()
        if isinstance(request, MetadataRequest):
            return self.metadata(request)
        if isinstance(request, InitProducerIdRequest):
            self.producer_ids += 1
            return InitProducerIdResponse(producer_id=1000 + self.producer_ids)
        assert isinstance(request, ProduceRequest)
        return self._produce(call.node, request)

    def _api_versions(self) -> ApiVersionsResponse:
        keys = []
        for api in APIS.values():
            if api.name in self.served:
                first, last = self.versions.get(api.name, (api.versions.first, api.versions.last))
                keys.append(ApiVersion(api_key=api.key, min_version=first, max_version=last))
        return ApiVersionsResponse(api_keys=keys)

    def metadata(self, request: MetadataRequest) -> MetadataResponse:
        known: dict[str, list[MetadataResponsePartition]] = defaultdict(list)
        for (topic, partition), leader in self.leaders.items():
            known[topic].append(
                MetadataResponsePartition(
                    partition_index=partition,
                    leader_id=leader,
                    error_code=0 if leader >= 0 else ErrorCode.LEADER_NOT_AVAILABLE,
                )
            )
        names = [topic.name or "" for topic in request.topics or []]
        if request.topics is None:
            names = list(known)
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node.id, host="127.0.0.1", port=node.port)
                for node in self.nodes
            ],
            controller_id=self.controller,
            topics=[
                MetadataResponseTopic(
                    name=name,
                    error_code=0 if name in known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    partitions=known.get(name, []),
                )
                for name in names
            ],
        )

    def _produce(self, node: ScriptedBroker, request: ProduceRequest) -> ProduceResponse | None:
        responses = [
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    self.written.append(topic.name, data.index, data.records)
                    if self.leaders.get((topic.name, data.index)) == node.id
                    else produce_error(data.index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
        return ProduceResponse(responses=responses) if request.acks else None


class ScriptedBroker:
    """One broker: its listener and connections."""

    def __init__(self, cluster: ScriptedCluster, number: int) -> None:
        self.cluster = cluster
        self.id = number
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, on the same port as before."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self.disconnect_all()
        await close_server(self._server)
        self.disconnect_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def disconnect_all(self) -> None:
        """Abort all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        responses: asyncio.Queue[tuple[int, int, Any]] = asyncio.Queue()
        sender = asyncio.create_task(self._send(responses, writer))
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                header, request = decode_request(frame)
                version = header.request_api_version
                call = Call(self, request, version, writer.transport.abort)
                self.cluster.calls.append(call)
                response = self.cluster.next_script(request)(call)
                if isawaitable(response):
                    response = asyncio.ensure_future(response)
                responses.put_nowait((header.correlation_id, version, response))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            sender.cancel()
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _send(
        self, responses: asyncio.Queue[tuple[int, int, Any]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            correlation_id, version, response = await responses.get()
            if isinstance(response, Awaitable):
                response = await response
            if isinstance(response, bytes):
                writer.write(response)
            elif response is not None and not writer.is_closing():
                writer.writelines(encode_response(response, version, correlation_id))
