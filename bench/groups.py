"""Consumer groups: rebalances, offset commits, and the startup of a broker after many commits.

    python bench/groups.py [--quick] [--dir DIR] [--commits N] [--only PART…]

Needs Linux (/proc). Members are plain sockets in one process and their requests are encoded in
advance, so that the broker is the bottleneck. No client library is involved.

- rebalance: all members of a stable group join again, one of them last; from its JoinGroup request
  until every member has its assignment. CPU is that of the broker, for the whole rebalance.
- protocols: a member of a stable group is replaced by a new one, in the classic and in the consumer
  protocol; beside Apache Kafka, if KAFKA_LIBS is the directory of its jars.
- commit: 16 members, each in a group of its own, commit offsets with several requests in flight.
  __consumer_offsets uses page-cache by default; with fsync a commit is acknowledged when it is on
  disk. Compaction is off, because its start would change the figures.
- start: 1,000 groups commit the offsets of ten partitions again and again; then the broker is
  killed, or stopped, and started. From the spawn to the first response, until the first group is
  loaded, and until all are loaded with their last offsets. The time should hardly depend on the
  number of commits, because compaction has removed most of them.
"""

from __future__ import annotations

import os
import re
import select
import signal
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from benchmark import command_line, data_directory, progress, recording, run_parts
from group_protocols import bench_protocols
from metrics import cpu_seconds
from ottla.coord.placement import coordinator_partition
from ottla.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest
from ottla.protocol.api.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from ottla.protocol.api.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from ottla.protocol.api.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from ottla.protocol.api.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from ottla.protocol.api.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from ottla.protocol.compiler import codec
from ottla.protocol.consumer import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartitions,
)
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Message
from servers import Ottla
from wire import Connection, connections, frame

OFFSETS_TOPIC = "__consumer_offsets"
TOPIC = "orders"
TOPIC_PARTITIONS = 16
TOPIC_RESOURCE = 2
#: After size, correlation id, empty tag section and throttle time.
ERROR_CODE = slice(13, 15)
#: Timeouts that never expire here.
HOUR_MS = 3_600_000
MAX_SESSION_MS = 1_800_000
START_GROUPS = 1_000
START_PARTITIONS = 10
#: Commits of one group that are in flight at once.
START_BURST = 10


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    members: Sequence[int]
    rebalances: int
    commit_seconds: float
    commits: Sequence[int]


FULL = Plan(
    members=[2, 10, 100, 500], rebalances=7, commit_seconds=2.5, commits=[100_000, 1_000_000]
)
QUICK = Plan(members=[2, 100], rebalances=3, commit_seconds=0.7, commits=[100_000])


class Broker(Ottla):
    """A broker that is stopped or killed, and started again on the same data."""

    def __init__(self, directory: Path, *configs: str) -> None:
        configs += (
            "group.initial.rebalance.delay.ms=0",
            "max.in.flight.requests.per.connection=1000",
        )
        super().__init__(directory, *(word for config in configs for word in ("--set", config)))

    def offsets_bytes(self) -> int:
        """Return the size of all files of the offsets topic."""
        return sum(path.stat().st_size for path in self.data.glob(f"{OFFSETS_TOPIC}-*/*"))

    def replayed_records(self) -> int:
        """Return the offset records that the last start has read, according to its log."""
        last = self.output.read_text(errors="replace").rpartition("ready ")[2]
        return sum(int(count) for count in re.findall(r"Loaded groups.*records=(\d+)", last))


def check(response: bytes) -> None:
    """Raise if the response to a JoinGroup or a SyncGroup of the latest version is an error."""
    code = ErrorCode.of(int.from_bytes(response[ERROR_CODE], signed=True))
    assert code is ErrorCode.NONE, code.name


def prepare(connection: Connection) -> None:
    """Create the topics."""
    topic = CreatableTopic(name=TOPIC, num_partitions=TOPIC_PARTITIONS, replication_factor=1)
    (created,) = connection.request(CreateTopicsRequest(topics=[topic])).topics
    assert created.error_code == ErrorCode.NONE, created.error_message
    connection.request(FindCoordinatorRequest(coordinator_keys=["any"]))


# -- rebalance -------------------------------------------------------------------------------------


def encoded(version: int, message: Message) -> bytes:
    """Encode a message of the consumer protocol, which members exchange through the broker."""
    return bytes(codec(type(message), version).encode(message, bytearray(version.to_bytes(2)), []))


def join_request(group: str, member_id: str = "") -> JoinGroupRequest:
    """Return the JoinGroup request of a consumer with two assignors."""
    metadata = encoded(1, ConsumerProtocolSubscription(topics=[TOPIC]))
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=MAX_SESSION_MS,
        rebalance_timeout_ms=HOUR_MS,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[
            JoinGroupRequestProtocol(name=name, metadata=metadata)
            for name in ("range", "cooperative-sticky")
        ],
    )


def sync_request(
    group: str, member_id: str, generation: int, members: Iterable[str]
) -> SyncGroupRequest:
    """Return a SyncGroup request; that of the group leader has the assignments of all members."""
    partitions = [TopicPartitions(topic=TOPIC, partitions=[0, 1])]
    assignment = encoded(1, ConsumerProtocolAssignment(assigned_partitions=partitions))
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            SyncGroupRequestAssignment(member_id=name, assignment=assignment) for name in members
        ],
    )


class Group:
    """A group whose members have a connection each. The first one is the group leader."""

    def __init__(self, broker: Broker, group: str, members: list[Connection]) -> None:
        self._broker = broker
        self._group = group
        self._members = members
        self._by_descriptor = {member.socket.fileno(): member for member in members}
        self._poll = select.epoll()
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.EPOLLIN)
        self._ids = [member.request(join_request(group)).member_id for member in members[:1]]
        # Alone in the group, it completes a first generation at once.
        first = members[0].request(join_request(group, self._ids[0]))
        assert first.error_code == ErrorCode.NONE
        self._generation: int = first.generation_id
        self._ids += [member.request(join_request(group)).member_id for member in members[1:]]
        self._joins = {
            member: frame(join_request(group, name))
            for member, name in zip(members, self._ids, strict=True)
        }
        # The others join, and wait for the leader: the first rebalance.
        for member in members[1:]:
            member.socket.sendall(self._joins[member])
        self._complete(members[0])

    def rebalance(self) -> tuple[float, float]:
        """Rebalance; return the seconds from the last JoinGroup on, and the CPU time of it all."""
        before = cpu_seconds(self._broker.pid)
        # A JoinGroup of the leader starts a rebalance even if nothing changed; the response to one
        # of another member would be the current generation.
        for members in (self._members[:1], self._members[1:-1]):
            for member in members if len(self._members) > 1 else ():
                member.socket.sendall(self._joins[member])
            wait_until_idle(self._broker.pid)
        seconds = self._complete(self._members[-1])
        wait_until_idle(self._broker.pid)
        return seconds, cpu_seconds(self._broker.pid) - before

    def _complete(self, last: Connection) -> float:
        """Send the last JoinGroup and all SyncGroups; return the seconds until all are answered."""
        self._generation += 1
        syncs = {
            member: frame(
                sync_request(
                    self._group,
                    name,
                    self._generation,
                    self._ids if member is self._members[0] else (),
                )
            )
            for member, name in zip(self._members, self._ids, strict=True)
        }
        start = time.perf_counter()
        last.socket.sendall(self._joins[last])
        synced = 0
        while synced < len(self._members):
            for descriptor, _event in self._poll.poll():
                member = self._by_descriptor[descriptor]
                for response in member.receive():
                    check(response)
                    if member in syncs:
                        member.socket.sendall(syncs.pop(member))
                    else:
                        synced += 1
        return time.perf_counter() - start


def wait_until_idle(pid: int) -> None:
    """Wait until the broker has handled all requests."""
    before = -1.0
    while (used := cpu_seconds(pid)) - before > 0.0005:
        before = used
        time.sleep(0.02)


def bench_rebalance(broker: Broker, plan: Plan) -> dict[int, dict[str, float]]:
    """Measure rebalances of groups of all sizes."""
    results: dict[int, dict[str, float]] = {}
    for count in plan.members:
        progress(f"rebalance: {count} members")
        with connections(*[broker.port] * count) as members:
            group = Group(broker, f"rebalance-{count}", members)
            seconds, cpu = zip(*(group.rebalance() for _ in range(plan.rebalances)), strict=True)
        results[count] = {
            "best_seconds": min(seconds),
            "median_seconds": statistics.median(seconds),
            "cpu_seconds": min(cpu),
        }
    return results


# -- commit ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Committer:
    """The only member of a group."""

    group: str
    member_id: str
    generation: int
    connection: Connection

    def commit(self, offset: int, partitions: int) -> bytes:
        """Return an encoded OffsetCommit request."""
        return frame(
            commit_request(self.group, offset, partitions, self.member_id, self.generation)
        )


def commit_request(
    group: str, offset: int, partitions: int, member_id: str = "", generation: int = -1
) -> OffsetCommitRequest:
    """Return a request that commits one offset for some partitions."""
    rows = [
        OffsetCommitRequestPartition(partition_index=at, committed_offset=offset)
        for at in range(partitions)
    ]
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member_id,
        topics=[OffsetCommitRequestTopic(name=TOPIC, partitions=rows)],
    )


def set_durability(connection: Connection, durability: str) -> None:
    """Alter the durability of the offsets topic."""
    config = AlterableConfig(name="durability", config_operation=0, value=durability)
    resource = AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=OFFSETS_TOPIC, configs=[config]
    )
    response = connection.request(IncrementalAlterConfigsRequest(resources=[resource]))
    assert response.responses[0].error_code == ErrorCode.NONE


def enter(connection: Connection, group: str) -> Committer:
    """Join a group as its only member."""
    name = connection.request(join_request(group)).member_id
    joined = connection.request(join_request(group, name))
    response = connection.request(sync_request(group, name, joined.generation_id, [name]))
    assert response.error_code == ErrorCode.NONE
    return Committer(group, name, joined.generation_id, connection)


def commit_for(
    broker: Broker, committers: list[Committer], partitions: int, depth: int, seconds: float
) -> dict[str, float]:
    """Commit for some seconds, with `depth` requests of each member in flight."""
    frames = {each.connection: each.commit(1, partitions) for each in committers}
    by_descriptor = {each.connection.socket.fileno(): each.connection for each in committers}
    poll = select.epoll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    before, start = cpu_seconds(broker.pid), time.perf_counter()
    end = start + seconds
    done = in_flight = 0
    for connection, data in frames.items():
        connection.socket.sendall(data * depth)
        in_flight += depth
    while in_flight:
        for descriptor, _event in poll.poll():
            connection = by_descriptor[descriptor]
            answered = sum(1 for _ in connection.receive())
            done += answered
            in_flight -= answered
            if time.perf_counter() < end:
                connection.socket.sendall(frames[connection] * answered)
                in_flight += answered
    elapsed = time.perf_counter() - start
    return {
        "commits_per_second": done / elapsed,
        "offsets_per_second": done * partitions / elapsed,
        "cpu_seconds": (cpu_seconds(broker.pid) - before) / done,
    }


def bench_commit(broker: Broker, plan: Plan) -> list[dict[str, Any]]:
    """Measure commits, small and large, to the page cache and to the disk."""
    results = []
    with connections(*[broker.port] * 17) as (admin, *members):
        committers = [enter(member, f"commit-{number}") for number, member in enumerate(members)]
        for durability in ("page-cache", "fsync"):
            set_durability(admin, durability)
            for partitions, depth in product((1, TOPIC_PARTITIONS), (1, 16)):
                progress(f"commit: {durability}, {partitions} partitions, {depth} in flight")
                load = {"durability": durability, "partitions": partitions, "in_flight": depth}
                seconds = plan.commit_seconds
                results.append(load | commit_for(broker, committers, partitions, depth, seconds))
    return results


# -- start -----------------------------------------------------------------------------------------


def commit_again(broker: Broker, first: int, commits: int) -> int:
    """Commit again and again; return the last offset of all groups."""
    rounds = max(1, commits // (START_GROUPS * START_PARTITIONS * START_BURST))
    names = [f"group-{number}" for number in range(START_GROUPS)]
    with connections(*[broker.port] * 4) as opened:
        for offset in range(first + 1, first + 1 + rounds):
            progress(f"start: round {offset - first} of {rounds}")
            # A burst commits one offset several times: only the number of records matters.
            for number, connection in enumerate(opened):
                frames = [
                    frame(commit_request(name, offset, START_PARTITIONS))
                    for name in names[number::4]
                ]
                pump(connection, frames, START_BURST)
    return first + rounds


def pump(connection: Connection, frames: list[bytes], times: int) -> None:
    """Send each frame several times, and wait for all responses."""
    pending = 0
    for data in frames:
        connection.socket.sendall(data * times)
        pending += times
        while pending > 500:
            pending -= sum(1 for _ in connection.receive())
    while pending:
        pending -= sum(1 for _ in connection.receive())


def restart(broker: Broker, offset: int) -> dict[str, float]:
    """Start the broker; return the seconds to its first response, and until groups are loaded."""
    broker.start()
    start = time.perf_counter() - broker.start_seconds
    # One group of each partition of the offsets topic; a partition is loaded as a whole.
    count = len(list(broker.data.glob(f"{OFFSETS_TOPIC}-*")))
    names: dict[int, str] = {}
    for number in range(START_GROUPS):
        names.setdefault(coordinator_partition(f"group-{number}", count), f"group-{number}")
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=name, topics=None) for name in names.values()]
    )
    first = 0.0
    with connections(broker.port) as (connection,):
        while True:
            groups = connection.request(request).groups
            codes = {group.error_code for group in groups}
            if not first and ErrorCode.NONE in codes:
                first = time.perf_counter() - start
            if codes == {ErrorCode.NONE}:
                break
            assert codes <= {ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}, codes
            time.sleep(0.002)
    seconds = time.perf_counter() - start
    for group in groups:
        found = {each.committed_offset for topic in group.topics for each in topic.partitions}
        assert found == {offset}, f"{group.group_id} has offsets {found}, not {offset}"
    time.sleep(0.2)  # until it has logged the record counts
    return {
        "response_seconds": broker.start_seconds,
        "first_group_seconds": first,
        "all_groups_seconds": seconds,
        "records": broker.replayed_records(),
    }


def bench_start(broker: Broker, plan: Plan) -> list[dict[str, Any]]:
    """Measure startup after few commits and after many."""
    results: list[dict[str, Any]] = []
    offset = done = 0
    for total in plan.commits:
        offset = commit_again(broker, offset, total - done)
        done = total
        for shutdown, number in (("kill -9", signal.SIGKILL), ("SIGTERM", signal.SIGTERM)):
            broker.end(number)
            row = {"commits": total, "shutdown": shutdown, "bytes": broker.offsets_bytes()}
            progress(f"start: after {total:,} commits and {shutdown}")
            results.append(row | restart(broker, offset))
    return results


# -- all -------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Broker, Plan], Any]] = {
    "rebalance": bench_rebalance,
    "commit": bench_commit,
    "start": bench_start,
}


def with_broker(part: str, directory: Path, plan: Plan) -> Any:
    """Measure a part with a new broker."""
    configs = ["log.cleaner.enable=false"] if part == "commit" else []
    broker = Broker(directory / part, *configs)
    try:
        broker.start()
        with connections(broker.port) as (connection,):
            prepare(connection)
        return PARTS[part](broker, plan)
    finally:
        broker.stop()


def main() -> None:
    """Measure all parts, or the selected ones."""
    quick = "half a minute instead of two"
    parser = command_line(__doc__, quick=quick, parts=[*PARTS, "protocols"], disk="1 GiB")
    parser.add_argument("--commits", type=int, help="commits before a start, at least 100,000")
    options = parser.parse_args()
    plan = QUICK if options.quick else FULL
    if options.commits is not None:
        plan = replace(plan, commits=[100_000, options.commits])
    parts: dict[str, Callable[[Path, Plan], Any]] = {
        part: partial(with_broker, part) for part in PARTS
    }
    libs = os.environ.get("KAFKA_LIBS")
    parts["protocols"] = lambda directory, plan: bench_protocols(
        directory / "protocols",
        [count for count in plan.members if count >= 10],
        plan.rebalances,
        Path(libs) if libs else None,
    )
    with recording("groups", options) as results, data_directory(options) as directory:
        run_parts("groups", options, results, parts, directory, plan)


if __name__ == "__main__":
    main()
