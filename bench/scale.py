"""One broker with many partitions, many group members and many connections.

    python bench/scale.py [--quick] [--dir DIR] [--partitions N] [--only PART…]

Needs Linux (/proc). Requests are encoded in advance and sent over plain sockets, so that the
broker is the bottleneck. No client library is involved.

- partitions: topics of a hundred partitions each, with one record in each partition. The broker is
  stopped and started; then it appends to one partition in a hundred, is killed, and started again.
  Startup is from the spawn to the first response. Memory is what a partition adds to the anonymous
  memory of a broker that has created and filled it, and of one that has opened it. Produce and
  fetch are the CPU time of requests for one record: of one partition, and of all in turn.
- groups: ten members per group, in the classic protocol; each sends a heartbeat every three
  seconds.
- connections: idle connections, and one that sends requests beside them.
"""

from __future__ import annotations

import signal
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from benchmark import command_line, data_directory, progress, recording, run_parts
from cluster import request_metadata
from groups import check, join_request, prepare, sync_request
from metrics import cpu_seconds, memory
from ottla.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.api.fetch import FetchPartition, FetchRequest, FetchTopic
from ottla.protocol.api.heartbeat import HeartbeatRequest
from ottla.protocol.api.metadata import MetadataRequest
from ottla.protocol.api.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from ottla.protocol.batch import build_batch
from ottla.protocol.errors import ErrorCode
from ottla.protocol.records import Record
from servers import Ottla
from wire import Connection, connections, encode, frame

TOPIC_PARTITIONS = 100
RECORD_BYTES = 100
REQUESTS = 2_000
IN_FLIGHT = 20
DIRTY_SHARE = 100
GROUP_MEMBERS = 10
#: Groups that join at the same time: a connection waits for one JoinGroup at a time.
JOINING_GROUPS = 50
HEARTBEAT_SECONDS = 3.0
#: Hundredths of the interval, so that heartbeats are spread over it.
HEARTBEAT_STEPS = 100
JOIN_VERSION = 3
IDLE_SECONDS = 3.0

TopicPartition = tuple[str, int]


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    partitions: Sequence[int]
    restarts: int
    groups: int
    heartbeat_seconds: float
    connections: Sequence[int]


FULL = Plan(
    partitions=[1, 1_000, 10_000],
    restarts=3,
    groups=1_000,
    heartbeat_seconds=6.0,
    connections=[100, 1_000, 9_000],
)
QUICK = Plan(
    partitions=[1, 1_000], restarts=1, groups=100, heartbeat_seconds=3.0, connections=[100, 1_000]
)


# -- partitions ------------------------------------------------------------------------------------


def bench_partitions(plan: Plan, directory: Path) -> list[dict[str, Any]]:
    """Measure brokers with more and more partitions."""
    return [measure_partitions(count, plan.restarts, directory) for count in plan.partitions]


def measure_partitions(count: int, restarts: int, directory: Path) -> dict[str, Any]:
    """Measure one broker with `count` partitions."""
    broker = Ottla(directory / f"partitions-{count}")
    partitions = [
        (f"topic-{first // TOPIC_PARTITIONS}", number)
        for first in range(0, count, TOPIC_PARTITIONS)
        for number in range(min(TOPIC_PARTITIONS, count - first))
    ]
    row: dict[str, Any] = {"partitions": count}
    try:
        progress(f"{count:,} partitions: creation")
        broker.start()
        with connections(broker.port) as (connection,):
            connection.request(MetadataRequest(topics=[]))
            before, start = memory(broker.pid)["anonymous"], time.perf_counter()
            for topic in dict(partitions):
                create(connection, topic, sum(name == topic for name, _ in partitions))
            row["create_seconds"] = (time.perf_counter() - start) / count
            produce_to_all(connection, partitions)
            row["filled_bytes"] = (memory(broker.pid)["anonymous"] - before) / count
        row["stop_seconds"] = stop(broker)
        clean, killed = [], []
        for number in range(restarts):
            progress(f"{count:,} partitions: restart {number + 1} of {restarts}")
            broker.start()
            clean.append(broker.start_seconds)
            with connections(broker.port) as (connection,):
                connection.request(MetadataRequest(topics=[]))
                row["opened_bytes"] = (memory(broker.pid)["anonymous"] - before) / count
                produce_to_all(connection, partitions[::DIRTY_SHARE])
            broker.end(signal.SIGKILL)
            broker.start()
            killed.append(broker.start_seconds)
            if number < restarts - 1:
                stop(broker)
        row["clean_start"], row["kill_start"] = spread(clean), spread(killed)
        progress(f"{count:,} partitions: requests")
        row |= measure_requests(broker, partitions)
        row["metadata"] = request_metadata(broker, 20)
        used = cpu_seconds(broker.pid)
        time.sleep(IDLE_SECONDS)
        row["idle_cores"] = (cpu_seconds(broker.pid) - used) / IDLE_SECONDS
    finally:
        broker.stop()
    return row


def stop(broker: Ottla) -> float:
    """Stop the broker; return the seconds."""
    start = time.perf_counter()
    broker.end()
    return time.perf_counter() - start


def spread(values: Sequence[float]) -> dict[str, float]:
    """Return the median, the minimum and the maximum."""
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def create(connection: Connection, name: str, count: int) -> None:
    """Create a topic."""
    topic = CreatableTopic(name=name, num_partitions=count, replication_factor=1)
    request = CreateTopicsRequest(topics=[topic], timeout_ms=60_000)
    (created,) = connection.request(request).topics
    assert created.error_code == ErrorCode.NONE, created.error_message


def produce_request(topic: str, indexes: Iterable[int]) -> ProduceRequest:
    """Return a request with one record for each partition."""
    data = [
        PartitionProduceData(
            index=index,
            records=build_batch([Record(0, int(time.time() * 1000), None, bytes(RECORD_BYTES))]),
        )
        for index in indexes
    ]
    return ProduceRequest(
        acks=1, timeout_ms=30_000, topic_data=[TopicProduceData(name=topic, partition_data=data)]
    )


def produce_to_all(connection: Connection, partitions: Iterable[TopicPartition]) -> None:
    """Produce one record to each partition."""
    by_topic: dict[str, list[int]] = {}
    for topic, index in partitions:
        by_topic.setdefault(topic, []).append(index)
    for topic, indexes in by_topic.items():
        (response,) = connection.request(produce_request(topic, indexes)).responses
        for each in response.partition_responses:
            assert each.error_code == ErrorCode.NONE, each


def measure_requests(broker: Ottla, partitions: Sequence[TopicPartition]) -> dict[str, float]:
    """Return the CPU time of requests for one partition, and for all partitions in turn."""
    everywhere = list(islice(partitions, 0, None, max(1, len(partitions) // REQUESTS)))
    found = {}
    with connections(broker.port) as (connection,):
        for scope, targets in (("one", partitions[-1:]), ("all", everywhere)):
            for name, build in (("produce", produce_frame), ("fetch", fetch_frame)):
                frames = [build(*target) for target in targets]
                exchange(connection, frames, REQUESTS)  # Opens the files.
                used = cpu_seconds(broker.pid)
                exchange(connection, frames, REQUESTS)
                found[f"{name}_{scope}"] = (cpu_seconds(broker.pid) - used) / REQUESTS
    return found


def produce_frame(topic: str, index: int) -> bytes:
    """Encode a Produce request with one record."""
    return frame(produce_request(topic, [index]))


def fetch_frame(topic: str, index: int) -> bytes:
    """Encode a Fetch request for the first record."""
    wanted = FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1)
    topics = [FetchTopic(topic=topic, partitions=[wanted])]
    return frame(
        FetchRequest(max_wait_ms=500, min_bytes=1, max_bytes=1, session_epoch=-1, topics=topics)
    )


def exchange(connection: Connection, frames: Sequence[bytes], count: int) -> None:
    """Send frames in turn, a few at once, until `count` are answered."""
    waiting = 0
    for data in islice(cycle(frames), count):
        connection.socket.sendall(data)
        waiting += 1
        while waiting >= IN_FLIGHT:
            waiting -= connection.skip()
    while waiting:
        waiting -= connection.skip()


# -- groups ----------------------------------------------------------------------------------------


def bench_groups(plan: Plan, directory: Path) -> list[dict[str, Any]]:
    """Measure the heartbeats of many groups."""
    broker = Ottla(
        directory / "groups",
        *("--set", "group.initial.rebalance.delay.ms=100"),
        *("--set", "max.connections.per.ip=10000"),
    )
    rows = []
    try:
        broker.start()
        with connections(*[broker.port] * (JOINING_GROUPS * GROUP_MEMBERS)) as opened:
            prepare(opened[0])
            before = memory(broker.pid)["anonymous"]
            start = time.perf_counter()
            frames = [
                each
                for first in range(0, plan.groups, JOINING_GROUPS)
                for each in join_all(opened, range(first, min(first + JOINING_GROUPS, plan.groups)))
            ]
            rows.append(
                {
                    "groups": plan.groups,
                    "members": len(frames),
                    "join_seconds": time.perf_counter() - start,
                    "member_bytes": (memory(broker.pid)["anonymous"] - before) / len(frames),
                    **heartbeat(broker.pid, frames, plan.heartbeat_seconds),
                }
            )
    finally:
        broker.stop()
    return rows


def join_all(
    opened: Sequence[Connection], numbers: Iterable[int]
) -> list[tuple[Connection, bytes]]:
    """Have ten members join each group; return their connections and heartbeats."""
    members: dict[str, list[Connection]] = {
        f"group-{number}": list(opened[at * GROUP_MEMBERS : (at + 1) * GROUP_MEMBERS])
        for at, number in enumerate(numbers)
    }
    for group, connected in members.items():
        for connection in connected:
            # A version in which a member needs no second request.
            connection.socket.sendall(encode(join_request(group), JOIN_VERSION))
    ids: dict[str, Mapping[Connection, str]] = {}
    generations = {}
    for group, connected in members.items():
        joined = [
            connection.response(join_request(group), JOIN_VERSION) for connection in connected
        ]
        assert {each.error_code for each in joined} == {ErrorCode.NONE}, joined
        (generations[group],) = {each.generation_id for each in joined}
        ids[group] = {
            connection: each.member_id for connection, each in zip(connected, joined, strict=True)
        }
        leader = joined[0].leader
        for connection, member_id in ids[group].items():
            assigned = ids[group].values() if member_id == leader else ()
            request = sync_request(group, member_id, generations[group], assigned)
            connection.socket.sendall(frame(request))
    heartbeats = []
    for group, connected in members.items():
        for connection in connected:
            (response,) = connection.receive()
            check(response)
            request = HeartbeatRequest(
                group_id=group,
                generation_id=generations[group],
                member_id=ids[group][connection],
            )
            heartbeats.append((connection, frame(request)))
    return heartbeats


def heartbeat(
    pid: int, frames: Sequence[tuple[Connection, bytes]], seconds: float
) -> dict[str, float]:
    """Send the heartbeats of all members at their interval; return what they cost the broker."""
    sent = 0
    used, start = cpu_seconds(pid), time.perf_counter()
    while (step := sent * HEARTBEAT_STEPS // len(frames)) < (
        seconds / HEARTBEAT_SECONDS * HEARTBEAT_STEPS
    ):
        due = [
            frames[at % len(frames)]
            for at in range(
                len(frames) * step // HEARTBEAT_STEPS, len(frames) * (step + 1) // HEARTBEAT_STEPS
            )
        ]
        sent = len(frames) * (step + 1) // HEARTBEAT_STEPS
        for connection, data in due:
            connection.socket.sendall(data)
        for connection, count in Counter(connection for connection, _data in due).items():
            responses: list[bytes] = []
            while len(responses) < count:
                responses += connection.receive()
            for response in responses:
                check(response)
        time.sleep(
            max(0, start + (step + 1) * HEARTBEAT_SECONDS / HEARTBEAT_STEPS - time.perf_counter())
        )
    elapsed = time.perf_counter() - start
    used = cpu_seconds(pid) - used
    return {"heartbeats_per_second": sent / elapsed, "cores": used / elapsed, "cpu": used / sent}


# -- connections -----------------------------------------------------------------------------------


def bench_connections(plan: Plan, directory: Path) -> list[dict[str, Any]]:
    """Measure one connection beside many idle ones."""
    broker = Ottla(directory / "connections", "--set", "max.connections.per.ip=10000")
    rows = []
    request = frame(MetadataRequest(topics=[]))
    try:
        broker.start()
        with connections(broker.port) as (connection,):
            exchange(connection, [request], REQUESTS)
            for count in plan.connections:
                progress(f"{count:,} connections")
                before, used = memory(broker.pid)["anonymous"], cpu_seconds(broker.pid)
                with connections(*[broker.port] * count) as idle:
                    for each in idle:
                        each.exchange(request)
                    opened = (cpu_seconds(broker.pid) - used) / count
                    added = (memory(broker.pid)["anonymous"] - before) / count
                    time.sleep(0.2)
                    used = cpu_seconds(broker.pid)
                    time.sleep(IDLE_SECONDS)
                    idle_cores = (cpu_seconds(broker.pid) - used) / IDLE_SECONDS
                    used = cpu_seconds(broker.pid)
                    exchange(connection, [request], REQUESTS)
                    cpu = (cpu_seconds(broker.pid) - used) / REQUESTS
                rows.append(
                    {
                        "connections": count,
                        "open_cpu": opened,
                        "connection_bytes": added,
                        "idle_cores": idle_cores,
                        "request_cpu": cpu,
                    }
                )
    finally:
        broker.stop()
    return rows


# -- all -------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Plan, Path], Any]] = {
    "partitions": bench_partitions,
    "groups": bench_groups,
    "connections": bench_connections,
}


def main() -> None:
    """Measure all parts, or the selected ones."""
    parser = command_line(__doc__, quick="ten seconds", parts=PARTS, disk="1 GiB")
    parser.add_argument("--partitions", type=int, help="only this number of partitions")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    if options.partitions is not None:
        plan = replace(plan, partitions=[options.partitions])
    with recording("scale", options) as results, data_directory(options) as directory:
        run_parts("scale", options, results, PARTS, plan, directory)


if __name__ == "__main__":
    main()
