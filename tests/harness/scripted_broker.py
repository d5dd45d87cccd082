"""Brokers that do what a test says, over real sockets: the other side of a client.

    async with Stage(nodes=2, topics={"orders": 3}) as stage:
        stage.address                        # of the first broker
        stage.move("orders", 0, to=1)        # another leader
        stage.script(ProduceRequest, fail)   # what becomes of the next request
        stage.ledger.values("orders", 0)     # what was written

They keep Kafka's rules for producers: a batch that comes twice is written once, and one that is not
next is refused. A script is a function of a call; it gives an answer, or None for none at all, and
may be a coroutine: answers leave in order, but later requests are read meanwhile. `call.serve()` is
the answer that there would be without it, with all that it changes.
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


class Ledger:
    """What was written, and the rules by which it is."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, int], list[Record]] = defaultdict(list)
        self.batches: dict[tuple[str, int], list[RecordBatch]] = defaultdict(list)
        # By place and producer: first and last sequence and base offset of the last five batches.
        self.producers: dict[tuple[str, int, int], deque[tuple[int, int, int]]] = {}

    def values(self, topic: str, partition: int = 0) -> list[bytes | None]:
        return [record.value for record in self.records[topic, partition]]

    def write(self, topic: str, partition: int, data: Any) -> PartitionProduceResponse:
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
                return refusal(partition, ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)
            known.append((*numbers, base_offset))
        self.records[topic, partition] += batch.records()
        self.batches[topic, partition].append(batch)
        return PartitionProduceResponse(index=partition, base_offset=base_offset)


class Call:
    """A request that has come."""

    def __init__(self, node: Node, request: Any, version: int, cut: Callable[[], None]) -> None:
        self.node = node
        self.stage = node.stage
        self.request = request
        self.version = version
        #: Ends the connection at once.
        self.cut = cut

    def serve(self) -> Any:
        """Do what a broker does."""
        return self.node.serve(self)

    def batches(self) -> list[tuple[str, int, RecordBatch]]:
        """Give the batches of a Produce."""
        return [
            (topic.name, data.index, RecordBatch(bytes(data.records)))
            for topic in self.request.topic_data
            for data in topic.partition_data
        ]

    def refuse(self, code: ErrorCode) -> ProduceResponse:
        """Answer a Produce with an error for all its partitions."""
        return ProduceResponse(
            responses=[
                TopicProduceResponse(
                    name=topic.name,
                    partition_responses=[
                        refusal(data.index, code) for data in topic.partition_data
                    ],
                )
                for topic in self.request.topic_data
            ]
        )


def refusal(partition: int, code: ErrorCode) -> PartitionProduceResponse:
    return PartitionProduceResponse(index=partition, error_code=code, base_offset=-1)


class Stage:
    """Some brokers, and what they share."""

    def __init__(
        self,
        nodes: int = 1,
        topics: Mapping[str, int] | None = None,
        versions: Mapping[str, tuple[int, int]] | None = None,
        served: Collection[str] = (),
    ) -> None:
        #: What brokers say that they serve; beyond these four, scripts have to do it.
        self.served = {*SERVED, *served}
        self.controller = 0
        self.ledger = Ledger()
        self.calls: list[Call] = []
        self.versions = dict(versions or {})
        self.nodes = [Node(self, number) for number in range(nodes)]
        self.leaders = {
            (topic, partition): partition % nodes
            for topic, count in (topics or {"orders": 1}).items()
            for partition in range(count)
        }
        self.producer_ids = 0
        self._scripts: dict[type[Message], deque[Script]] = defaultdict(deque)
        self._usual: dict[type[Message], Script] = {}

    @property
    def address(self) -> str:
        return self.nodes[0].address

    def move(self, topic: str, partition: int, to: int) -> None:
        self.leaders[topic, partition] = to

    def script(self, kind: type[Message], *scripts: Script) -> None:
        """Say what becomes of the next requests of a kind."""
        self._scripts[kind].extend(scripts)

    def always(self, kind: type[Message], script: Script) -> None:
        """Say what becomes of all requests of a kind that nothing else is said of."""
        self._usual[kind] = script

    def asked(self, kind: type[Message]) -> list[Call]:
        """Give the requests of a kind that have come."""
        return [call for call in self.calls if isinstance(call.request, kind)]

    def next_script(self, request: Message) -> Script:
        scripts = self._scripts[type(request)]
        return scripts.popleft() if scripts else self._usual.get(type(request), Call.serve)

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


class Node:
    """One broker."""

    def __init__(self, stage: Stage, number: int) -> None:
        self.stage = stage
        self.id = number
        self.port = 0
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def start(self) -> None:
        """Listen, at the same address as before."""
        self._server = await asyncio.start_server(self._talk, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        assert self._server is not None
        self.cut_all()
        await close_server(self._server)
        self.cut_all()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut_all(self) -> None:
        """End all connections."""
        for writer in self._writers:
            writer.transport.abort()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        answers: asyncio.Queue[tuple[int, int, Any]] = asyncio.Queue()
        answering = asyncio.create_task(self._answer(answers, writer))
        try:
            while True:
                frame = await reader.readexactly(int.from_bytes(await reader.readexactly(4)))
                header, request = decode_request(frame)
                version = header.request_api_version
                call = Call(self, request, version, writer.transport.abort)
                self.stage.calls.append(call)
                answer = self.stage.next_script(request)(call)
                if isawaitable(answer):
                    answer = asyncio.ensure_future(answer)
                answers.put_nowait((header.correlation_id, version, answer))
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            answering.cancel()
            self._writers.discard(writer)
            self._tasks.discard(task)
            writer.transport.abort()

    async def _answer(
        self, answers: asyncio.Queue[tuple[int, int, Any]], writer: asyncio.StreamWriter
    ) -> None:
        while True:
            correlation_id, version, answer = await answers.get()
            if isinstance(answer, Awaitable):
                answer = await answer
            if isinstance(answer, bytes):
                writer.write(answer)
            elif answer is not None and not writer.is_closing():
                writer.writelines(encode_response(answer, version, correlation_id))

    def serve(self, call: Call) -> Any:
        request = call.request
        if isinstance(request, ApiVersionsRequest):
            return self._greet()
        if isinstance(request, MetadataRequest):
            return self._describe(request)
        if isinstance(request, InitProducerIdRequest):
            self.stage.producer_ids += 1
            return InitProducerIdResponse(producer_id=1000 + self.stage.producer_ids)
        assert isinstance(request, ProduceRequest)
        return self._produce(request)

    def _greet(self) -> ApiVersionsResponse:
        keys = []
        for api in APIS.values():
            if api.name in self.stage.served:
                first, last = self.stage.versions.get(
                    api.name, (api.versions.first, api.versions.last)
                )
                keys.append(ApiVersion(api_key=api.key, min_version=first, max_version=last))
        return ApiVersionsResponse(api_keys=keys)

    def _describe(self, request: MetadataRequest) -> MetadataResponse:
        known: dict[str, list[MetadataResponsePartition]] = defaultdict(list)
        for (topic, partition), leader in self.stage.leaders.items():
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
                for node in self.stage.nodes
            ],
            controller_id=self.stage.controller,
            topics=[
                MetadataResponseTopic(
                    name=name,
                    error_code=0 if name in known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    partitions=known.get(name, []),
                )
                for name in names
            ],
        )

    def _produce(self, request: ProduceRequest) -> ProduceResponse | None:
        responses = [
            TopicProduceResponse(
                name=topic.name,
                partition_responses=[
                    self.stage.ledger.write(topic.name, data.index, data.records)
                    if self.stage.leaders.get((topic.name, data.index)) == self.id
                    else refusal(data.index, ErrorCode.NOT_LEADER_OR_FOLLOWER)
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ]
        return ProduceResponse(responses=responses) if request.acks else None
