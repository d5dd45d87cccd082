"""Send the same sequences to both brokers, and compare what they respond."""

from __future__ import annotations

import re
import select
import socket
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Queue
from typing import Any, NamedTuple

from differential.compare import CLOSED, NO_RESPONSE, PARKED, Difference, differences, normalise
from differential.explained import Explanation, explanation_of
from differential.generate import (
    CHANGES_METADATA,
    CHANGES_TRANSACTIONS,
    MAY_PARK,
    Call,
    Step,
    generate,
)
from differential.world import Bindings
from harness.apache_kafka import ApacheKafka
from harness.daemon import HOST, Daemon
from ottla.protocol.api.api_versions import ApiVersionsRequest
from ottla.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.api.delete_topics import DeleteTopicsRequest
from ottla.protocol.api.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from ottla.protocol.api.describe_transactions import DescribeTransactionsRequest
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest
from ottla.protocol.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.api.init_producer_id import InitProducerIdRequest
from ottla.protocol.api.metadata import MetadataRequest, MetadataRequestTopic
from ottla.protocol.api.offset_fetch import OffsetFetchRequest
from ottla.protocol.api.produce import ProduceRequest
from ottla.protocol.codec import decode_response, encode_request
from ottla.protocol.errors import DecodeError, ErrorCode
from ottla.protocol.registry import METADATA

CLIENT_ID = "differential"
#: How long a request that may wait for others is given until it counts as waiting.
PARK_SECONDS = 0.15
#: How long one broker is given after the other has responded.
TIMEOUT_SECONDS = 5.0
BARRIER = "barrier"
OTTLA_CONFIGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.num.partitions": "1",
    "log.retention.ms": "-1",
    "replication.factor.policy": "reject",
}
KAFKA_CONFIGS = {
    "group.consumer.assignment.interval.ms": "0",
    "group.min.session.timeout.ms": "6000",
    "log.retention.ms": "-1",
    # Idle sequences leave many deleted topics behind.
    "log.segment.delete.delay.ms": "1000",
    "file.delete.delay.ms": "1000",
}


class Connection:
    """One connection to one broker, with the calls it has not answered yet."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection((HOST, port), timeout=TIMEOUT_SECONDS)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = bytearray()
        self.is_closed = False

    def send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError:
            self.is_closed = True

    def frame(self, seconds: float) -> bytes | None:
        """Return the next frame; None if there is none in time, or the connection is closed."""
        deadline = time.monotonic() + seconds
        while True:
            if len(self._received) >= 4:
                end = 4 + struct.unpack_from(">i", self._received)[0]
                if len(self._received) >= end:
                    frame = bytes(self._received[4:end])
                    del self._received[:end]
                    return frame
            remaining = max(0.0, deadline - time.monotonic())
            if self.is_closed or not select.select([self._socket], [], [], remaining)[0]:
                return None
            try:
                data = self._socket.recv(1 << 20)
            except OSError:
                data = b""
            self.is_closed = not data
            self._received += data

    def close(self) -> None:
        self._socket.close()


class Side:
    """One of the two brokers, during one sequence."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.bindings = Bindings()
        self._connections: dict[int, Connection] = {}
        #: Calls without a response yet, by connection, with their numbers.
        self.pending: dict[int, list[tuple[int, Call]]] = {}
        self.outcomes: dict[int, Any] = {}

    def send(self, number: int, calls: Sequence[tuple[int, Call]]) -> None:
        """Send calls in one segment."""
        connection = self._connections.get(number)
        if connection is None or connection.is_closed:
            if connection is not None:
                connection.close()
            connection = self._connections[number] = Connection(self._port)
        expected = []
        data = b""
        for call_number, call in calls:
            data += self._frame(call)
            request = call.request
            if isinstance(request, ProduceRequest) and request.acks == 0 and not call.damage:
                # There is no response; a request behind it shows whether the connection lives.
                call = Call(ApiVersionsRequest(), 0)  # noqa: PLW2901
                data += self._frame(call)
            expected.append((call_number, call))
        self.pending[number] = expected
        connection.send(data)

    def _frame(self, call: Call) -> bytes:
        request = self.bindings.resolve(call.request)
        frame = bytearray(b"".join(encode_request(request, call.version, 1, CLIENT_ID)))
        match call.damage:
            case "truncated":
                del frame[max(20, len(frame) * 3 // 4) :]
            case "trailing bytes":
                frame += b"\0\0\0"
            case "version":
                frame[6:8] = b"\0\x63"
            case "api key":
                frame[4:6] = b"\0\x63"
        struct.pack_into(">i", frame, 0, len(frame) - 4)
        return bytes(frame)

    def poll(self, number: int, seconds: float) -> bool:
        """Read responses; whether all pending calls of a connection have an outcome."""
        connection, pending = self._connections[number], self.pending[number]
        while pending:
            call_number, call = pending[0]
            frame = connection.frame(seconds)
            if frame is not None:
                self.outcomes[call_number] = self._decode(call, frame)
            elif connection.is_closed:
                self.outcomes[call_number] = CLOSED
            else:
                return False
            pending.pop(0)
        return True

    def _decode(self, call: Call, frame: bytes) -> Any:
        api = call.request.api
        try:
            response = decode_response(api.response, call.version, frame)[1]
        except DecodeError as error:
            return "undecodable" if call.damage else f"undecodable: {error}"
        self.bindings.learn(call.request, response)
        return response

    def request(self, request: Any, version: int) -> Any:
        """Send a request of the runner itself, over a connection of its own."""
        self.send(-1, [(-1, Call(request, version))])
        assert self.poll(-1, 30), f"no response to {request}"
        return self.outcomes[-1]

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()


class Finding(NamedTuple):
    """A difference, the call it belongs to, and its explanation, if there is one."""

    call_number: int
    call: Call
    difference: Difference
    explanation: Explanation | None


class Report(NamedTuple):
    """The outcome of one sequence."""

    seed: int
    steps: Sequence[Step]
    kept: Sequence[int]
    findings: Sequence[Finding]
    request_count: int

    @property
    def unexplained(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.explanation is None]

    def __str__(self) -> str:
        kept = ",".join(map(str, self.kept))
        lines = [f"seed {self.seed}: replay with --seed {self.seed} --steps {kept}"]
        lines += [
            f"  step {index}, connection {self.steps[index].connection}: {call}"
            for index in self.kept
            for call in self.steps[index].calls
        ]
        lines += [f"  {finding.difference}" for finding in self.unexplained]
        return "\n".join(lines)


class Pair:
    """An ottla broker and an Apache Kafka broker; one object for each thread."""

    def __init__(self, ottla: Daemon, kafka: ApacheKafka, number: int) -> None:
        self.ottla = ottla
        self.kafka = kafka
        self._number = number
        self._runs = 0
        self._barrier = f"{BARRIER}-{number}"
        self._barrier_value = 1_000_000
        for port in (ottla.port, kafka.port):
            side = Side(port)
            side.request(_creation(((self._barrier, 1),)), 5)
            _wait_for_coordinator(side)
            side.close()

    def run(self, seed: int, kept: Sequence[int] | None = None) -> Report:
        """Run the sequence of a seed, or some of its steps, up to the first difference."""
        self._runs += 1
        # Names are as long in every run: their length may matter.
        prefix = f"d{self._number}{self._runs:05d}x"
        steps = generate(seed, prefix)
        kept = range(len(steps)) if kept is None else kept
        sides = (Side(self.ottla.port), Side(self.kafka.port))
        try:
            for side in sides:
                side.request(_creation(((f"{prefix}-a", 1), (f"{prefix}-b", 3))), 7)
            self._settle(sides[1])
            return self._run(seed, steps, kept, prefix, sides)
        finally:
            names = [f"{prefix}-{letter}" for letter in "abcd"]
            for side in sides:
                side.request(DeleteTopicsRequest(topic_names=names, timeout_ms=5000), 5)
                side.close()

    def _run(
        self,
        seed: int,
        steps: Sequence[Step],
        kept: Sequence[int],
        prefix: str,
        sides: tuple[Side, Side],
    ) -> Report:
        findings: list[Finding] = []
        calls: dict[int, Call] = {}
        compared: set[int] = set()

        def compare() -> bool:
            """Compare new outcomes; whether the sequence may continue."""
            for number in sorted(calls.keys() - compared):
                if any(f.explanation is None or f.explanation.diverges for f in findings):
                    return False
                if all(number in side.outcomes for side in sides):
                    compared.add(number)
                    earlier = [calls[n].request for n in sorted(calls) if n < number]
                    found = self._compare(number, calls[number], prefix, sides, earlier)
                    findings.extend(found)
            return not any(
                finding.explanation is None or finding.explanation.diverges for finding in findings
            )

        for index in kept:
            step = steps[index]
            if any(side.pending.get(step.connection) for side in sides):
                continue  # waits for other members
            numbered = [(index * 100 + n, call) for n, call in enumerate(step.calls)]
            calls.update(numbered)
            for side in sides:
                side.send(step.connection, numbered)
            self._wait(sides, step)
            for connection in list(sides[0].pending):
                _poll_parked(sides, connection)
            if not compare():
                break
            key = step.calls[0].request.api.key
            if key in CHANGES_METADATA:
                self._settle(sides[1], step.calls[0])
            if key in CHANGES_TRANSACTIONS:
                _settle_transactions(sides, prefix)
        for side in sides:
            for connection, pending in side.pending.items():
                if pending:
                    side.poll(connection, 0.02)
                for number, _call in pending:
                    side.outcomes[number] = PARKED
        compare()
        return Report(seed, steps, kept, findings, len(calls))

    def _compare(
        self,
        number: int,
        call: Call,
        prefix: str,
        sides: tuple[Side, Side],
        earlier: Sequence[Any],
    ) -> Iterator[Finding]:
        group = getattr(call.request, "group_id", "")
        trees = [normalise(side.outcomes[number], side.bindings, prefix, group) for side in sides]
        api = call.request.api.name
        for difference in differences(api, call.version, *trees):
            explanation = explanation_of(difference, call.request, earlier)
            yield Finding(number, call, difference, explanation)

    def _wait(self, sides: tuple[Side, Side], step: Step) -> None:
        """Wait until both brokers have responded, or neither has in a while."""
        may_park = step.calls[0].request.api.key in MAY_PARK
        started = time.monotonic()
        while True:
            done = [side.poll(step.connection, 0.002) for side in sides]
            if all(done):
                return
            elapsed = time.monotonic() - started
            if may_park and not any(done) and elapsed > PARK_SECONDS:
                return
            if elapsed > TIMEOUT_SECONDS:
                break
        for side in sides:
            for number, _call in side.pending[step.connection]:
                side.outcomes[number] = NO_RESPONSE

    def _settle(self, kafka: Side, call: Call | None = None) -> None:
        """Wait until Kafka's broker has applied what its controller has written.

        A config of a topic is changed twice. The broker shows the first change in its metadata
        before it has applied everything that came with it, and the second one after that.
        """
        if call is not None and call.request.api is METADATA:
            if call.request.topics is None or not call.request.allow_auto_topic_creation:
                return
            _wait_for_creation(kafka, call.request)
        for _ in range(2):
            self._barrier_value += 1
            value = str(self._barrier_value)
            kafka.request(_barrier_change(self._barrier, value), 1)
            deadline = time.monotonic() + TIMEOUT_SECONDS
            while _barrier_of(kafka, self._barrier) != value:
                assert time.monotonic() < deadline, "Kafka does not apply its metadata log"

    def shrink(self, report: Report) -> Report:
        """Leave out steps that a difference does not need."""
        fields = {(f.difference.api, f.difference.field) for f in report.unexplained}
        last = max(finding.call_number for finding in report.unexplained) // 100
        kept = [index for index in report.kept if index <= last]
        report = report._replace(kept=kept)
        for index in kept[:-1]:
            tried = [other for other in kept if other != index]
            shorter = self.run(report.seed, tried)
            if fields & {(f.difference.api, f.difference.field) for f in shorter.unexplained}:
                report, kept = shorter, tried
        return report


def _poll_parked(sides: tuple[Side, Side], connection: int) -> None:
    """Read the responses to waiting calls; if one broker has responded, the other one should."""
    done = [side.poll(connection, 0) for side in sides]
    if any(done) and not all(done):
        for side in sides:
            if not side.poll(connection, TIMEOUT_SECONDS):
                for number, _call in side.pending[connection]:
                    side.outcomes[number] = NO_RESPONSE
                side.pending[connection] = []


def _creation(topics: Sequence[tuple[str, int]]) -> CreateTopicsRequest:
    return CreateTopicsRequest(
        topics=[
            CreatableTopic(name=name, num_partitions=count, replication_factor=1)
            for name, count in topics
        ],
        timeout_ms=10_000,
    )


def _wait_for_coordinator(side: Side) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = [side.request(FindCoordinatorRequest(key="g", key_type=t), 2) for t in (0, 1)]
        fetched = side.request(OffsetFetchRequest(group_id="g", topics=None), 5)
        # Kafka has no producer ids, and no topic for transactions, at first.
        producers = [
            side.request(
                InitProducerIdRequest(transactional_id=t, transaction_timeout_ms=60_000), 4
            )
            for t in (None, "barrier")
        ]
        if not any(response.error_code for response in (*found, fetched, *producers)):
            return
        time.sleep(0.1)
    raise AssertionError("There is no group coordinator")


def _settle_transactions(sides: tuple[Side, Side], prefix: str) -> None:
    """Wait until the markers of all decided transactions are written."""
    request = DescribeTransactionsRequest(transactional_ids=[f"{prefix}-x", f"{prefix}-y"])
    for side in sides:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while any(
            state.transaction_state.startswith("Prepare")
            for state in side.request(request, 0).transaction_states
        ):
            assert time.monotonic() < deadline, "A transaction is not completed"


def _wait_for_creation(kafka: Side, request: MetadataRequest) -> None:
    """Wait until topics are there that Kafka creates after it has responded."""
    names = [topic.name for topic in request.topics or () if topic.name is not None]
    topics = [MetadataRequestTopic(name=name) for name in names]
    deadline = time.monotonic() + 0.3
    while time.monotonic() < deadline:
        response = kafka.request(MetadataRequest(topics=topics, allow_auto_topic_creation=False), 9)
        waits = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
        if not any(topic.error_code in waits for topic in response.topics):
            return
        time.sleep(0.01)


def _barrier_change(topic: str, value: str) -> IncrementalAlterConfigsRequest:
    config = AlterableConfig(name="retention.ms", config_operation=0, value=value)
    resource = AlterConfigsResource(resource_type=2, resource_name=topic, configs=[config])
    return IncrementalAlterConfigsRequest(resources=[resource])


def _barrier_of(kafka: Side, topic: str) -> str | None:
    resource = DescribeConfigsResource(
        resource_type=2, resource_name=topic, configuration_keys=["retention.ms"]
    )
    (result,) = kafka.request(DescribeConfigsRequest(resources=[resource]), 4).results
    return result.configs[0].value if result.configs else None


@contextmanager
def started_pairs(count: int = 1, folder: Path | None = None) -> Iterator[list[Pair]]:
    """Start both brokers."""
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name in ("ottla", "kafka"):
            (folder / name).mkdir(exist_ok=True)
        options = [part for config in OTTLA_CONFIGS.items() for part in ("--set", "=".join(config))]
        ottla = stack.enter_context(Daemon(folder / "ottla", *options))
        kafka = stack.enter_context(ApacheKafka(folder / "kafka", **KAFKA_CONFIGS))
        yield [Pair(ottla, kafka, number) for number in range(count)]


def run_all(
    pairs: Sequence[Pair], seeds: Iterable[int], kept: Sequence[int] | None, *, shrink: bool
) -> Iterator[Report]:
    """Run sequences, one at a time on each pair; yield the reports as they come."""
    idle = Queue[Pair]()
    for pair in pairs:
        idle.put(pair)

    def run(seed: int) -> Report:
        pair = idle.get()
        try:
            report = pair.run(seed, kept)
            if report.unexplained and shrink and kept is None:
                report = pair.shrink(report)
            return report
        finally:
            idle.put(pair)

    executor = ThreadPoolExecutor(len(pairs))
    try:
        yield from executor.map(run, seeds)
    finally:
        executor.shutdown(cancel_futures=True)


class Summary:
    """Counts over many sequences."""

    def __init__(self) -> None:
        self.sequences = 0
        self.requests: Counter[tuple[str, int]] = Counter()
        self.explained: Counter[str] = Counter()
        self.failures: list[Report] = []

    def add(self, report: Report) -> None:
        self.sequences += 1
        for index in report.kept:
            for call in report.steps[index].calls:
                self.requests[call.request.api.name, call.version] += 1
        self.explained.update(f.explanation.reason for f in report.findings if f.explanation)
        if report.unexplained:
            self.failures.append(report)

    def classes(self) -> Iterator[str]:
        """Yield the unexplained differences, each field and pair of values once, with a seed."""
        seeds: dict[str, list[int]] = {}
        for report in self.failures:
            for finding in report.unexplained:
                difference = finding.difference
                values = f"ottla {difference.ottla!r:.150}, Kafka {difference.kafka!r:.150}"
                line = f"{difference.api} {difference.field}: {values}"
                seeds.setdefault(re.sub(r"d\d{6}x", "d", line), []).append(report.seed)
        for line, found in sorted(seeds.items(), key=lambda item: -len(item[1])):
            yield f"{len(found):4} {line} (seed {', '.join(map(str, found[:3]))})"
