"""Consumer groups: how fast they gather, how fast they commit, and what a start has to read.

    python bench/groups.py [--quick] [--dir FOLDER] [--commits N] [--only PART…]

Needs Linux (/proc). Members are spoken for by hand, all from one process: their requests are
encoded beforehand, so that it is the broker that takes the time. No client is involved.

- gather: a group that has been there for a while rebalances. All members join again, one last; from
  its request until everybody has their assignment. CPU is the broker's, for all of the rebalance.
- commit: members of 16 groups commit, some requests of each under way. Page-cache is the default of
  __consumer_offsets; with fsync a commit is answered when the device has it. Nothing is compacted
  meanwhile, or it would depend on when that begins.
- start: offsets are committed again and again by 1,000 groups, ten partitions each; then the broker
  is killed, or stopped, and started. From its spawn until it answers, until a group is served, and
  until all are, with what they committed last. What matters is how little it depends on the
  number of commits: most of them have been compacted away.
"""

from __future__ import annotations

import re
import resource
import select
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmark import command_line, print_table, progress, recording
from ottla.coord.placement import partition_of_group
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
from peers import Ottla
from processes import cpu_seconds
from wire import Connection, frame

OFFSETS = "__consumer_offsets"
TOPIC = "orders"
WIDTH = 16
TOPIC_RESOURCE = 2
#: Behind the size: correlation id, an empty set of tags, throttle time, error code.
FLEXIBLE_ERROR_AT = slice(13, 15)
#: Longer than any of this takes.
HOUR_MS = 3_600_000
MAX_SESSION_MS = 1_800_000
START_GROUPS = 1_000
START_WIDTH = 10
#: Offset commits of one group, all under way at once, before it is another's turn.
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
    """A broker that is stopped, killed, and started again on the same files."""

    def __init__(self, folder: Path, *settings: str) -> None:
        super().__init__(folder)
        self._settings = (
            "group.initial.rebalance.delay.ms=0",
            "max.in.flight.requests.per.connection=1000",
            *settings,
        )

    def prepare(self) -> None:
        """Make the folder, if this is the first start."""
        if not self.data.exists():
            super().prepare()

    def command(self) -> list[str]:
        """Give the command line."""
        given = [part for text in self._settings for part in ("--set", text)]
        return [*super().command(), *given]

    def end(self, number: signal.Signals) -> float:
        """Let it end, and give the seconds that took."""
        assert self._process is not None
        start = time.perf_counter()
        self._process.send_signal(number)
        self._process.wait()
        return time.perf_counter() - start

    def disk_bytes(self) -> int:
        """Give the bytes of all files of the topic of offsets."""
        folders = self.data.glob(f"{OFFSETS}-*")
        return sum(path.stat().st_size for folder in folders for path in folder.iterdir())

    def replayed(self) -> int:
        """Give the records that the last start has read, of all partitions, as it logged them."""
        log = (self.folder / "output").read_text(errors="replace")
        last = log.rpartition("ready ")[2]
        return sum(int(count) for count in re.findall(r"groups loaded.*records=(\d+)", last))


@contextmanager
def connections(port: int, count: int) -> Iterator[list[Connection]]:
    """Give so many connections."""
    made = [Connection(port) for _ in range(count)]
    try:
        yield made
    finally:
        for connection in made:
            connection.close()


def check(answer: bytes) -> None:
    """See that the answer to a JoinGroup or a SyncGroup, of the last version, is no error."""
    code = ErrorCode.of(int.from_bytes(answer[FLEXIBLE_ERROR_AT], signed=True))
    assert code is ErrorCode.NONE, code.name


def prepare(connection: Connection) -> None:
    """Have the topics made."""
    topic = CreatableTopic(name=TOPIC, num_partitions=WIDTH, replication_factor=1)
    (made,) = connection.ask(CreateTopicsRequest(topics=[topic])).topics
    assert made.error_code == ErrorCode.NONE, made.error_message
    connection.ask(FindCoordinatorRequest(coordinator_keys=["any"]))


# -- gather ----------------------------------------------------------------------------------------


def encoded(version: int, message: Message) -> bytes:
    """Encode what members say to each other."""
    return bytes(codec(type(message), version).encode(message, bytearray(version.to_bytes(2)), []))


def joining(group: str, member_id: str = "") -> JoinGroupRequest:
    """Join as a consumer does that has two assignors."""
    said = encoded(1, ConsumerProtocolSubscription(topics=[TOPIC]))
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=MAX_SESSION_MS,
        rebalance_timeout_ms=HOUR_MS,
        member_id=member_id,
        protocol_type="consumer",
        protocols=[
            JoinGroupRequestProtocol(name=name, metadata=said)
            for name in ("range", "cooperative-sticky")
        ],
    )


def syncing(
    group: str, member_id: str, generation: int, members: Iterable[str]
) -> SyncGroupRequest:
    """Ask for an assignment, and hand in those of all members, if one leads."""
    share = [TopicPartitions(topic=TOPIC, partitions=[0, 1])]
    given = encoded(1, ConsumerProtocolAssignment(assigned_partitions=share))
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[
            SyncGroupRequestAssignment(member_id=name, assignment=given) for name in members
        ],
    )


class Gathering:
    """A group of so many members, each with a connection. The first one leads."""

    def __init__(self, broker: Broker, group: str, members: list[Connection]) -> None:
        self._broker = broker
        self._group = group
        self._members = members
        self._by_descriptor = {member.socket.fileno(): member for member in members}
        self._poll = select.epoll()
        for descriptor in self._by_descriptor:
            self._poll.register(descriptor, select.EPOLLIN)
        self._ids = [member.ask(joining(group)).member_id for member in members[:1]]
        # It gets a generation of its own: there is nobody to wait for yet, once it has its id.
        first = members[0].ask(joining(group, self._ids[0]))
        assert first.error_code == ErrorCode.NONE
        self._generation: int = first.generation_id
        self._ids += [member.ask(joining(group)).member_id for member in members[1:]]
        self._joins = {
            member: frame(joining(group, name))
            for member, name in zip(members, self._ids, strict=True)
        }
        # The others come, and wait for the first one: that is the first rebalance.
        for member in members[1:]:
            member.socket.sendall(self._joins[member])
        self._gather(members[0])

    def rebalance(self) -> tuple[float, float]:
        """Do it once more; give the seconds from the last join on, and those of CPU for all."""
        before = cpu_seconds(self._broker.pid)
        # The leader's begins it, even if nothing has changed; before that, another one who joins is
        # told that all is as it was.
        for some in (self._members[:1], self._members[1:-1]):
            for member in some if len(self._members) > 1 else ():
                member.socket.sendall(self._joins[member])
            wait_until_idle(self._broker.pid)
        seconds = self._gather(self._members[-1])
        wait_until_idle(self._broker.pid)
        return seconds, cpu_seconds(self._broker.pid) - before

    def _gather(self, last: Connection) -> float:
        self._generation += 1
        syncs = {
            member: frame(
                syncing(
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
        joined = synced = 0
        while synced < len(self._members):
            for descriptor, _event in self._poll.poll():
                member = self._by_descriptor[descriptor]
                for answer in member.receive():
                    check(answer)
                    if member in syncs:
                        joined += 1
                        member.socket.sendall(syncs.pop(member))
                    else:
                        synced += 1
        return time.perf_counter() - start


def wait_until_idle(pid: int) -> None:
    """Wait until the broker has dealt with all that it was sent."""
    before = -1.0
    while (used := cpu_seconds(pid)) - before > 0.0005:
        before = used
        time.sleep(0.02)


def bench_gather(broker: Broker, plan: Plan) -> Any:
    """Measure rebalances of groups of all sizes."""
    results: dict[int, dict[str, float]] = {}
    for count in plan.members:
        progress(f"gather: {count} members")
        with connections(broker.port, count) as members:
            group = Gathering(broker, f"gather-{count}", members)
            rounds = [group.rebalance() for _ in range(plan.rebalances)]
        results[count] = {
            "best_seconds": min(seconds for seconds, _cpu in rounds),
            "median_seconds": statistics.median(seconds for seconds, _cpu in rounds),
            "cpu_seconds": min(cpu for _seconds, cpu in rounds),
        }
    progress("")
    print_table(
        "gather: from the last join until all members have their assignment",
        ["members", "best ms", "median ms", "CPU ms", "CPU µs per member"],
        [
            [
                f"{count}",
                f"{found['best_seconds'] * 1e3:,.1f}",
                f"{found['median_seconds'] * 1e3:,.1f}",
                f"{found['cpu_seconds'] * 1e3:,.1f}",
                f"{found['cpu_seconds'] * 1e6 / count:,.0f}",
            ]
            for count, found in results.items()
        ],
    )
    return results


# -- commit ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Committer:
    """One member of a group of its own."""

    group: str
    member_id: str
    generation: int
    connection: Connection

    def commit(self, offset: int, partitions: int) -> bytes:
        """Encode a commit."""
        return frame(committing(self.group, offset, partitions, self.member_id, self.generation))


def committing(
    group: str, offset: int, partitions: int, member_id: str = "", generation: int = -1
) -> OffsetCommitRequest:
    """Commit the same offset of some partitions."""
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
    """Alter what an ack of a commit means."""
    setting = AlterableConfig(name="durability", config_operation=0, value=durability)
    resource_of = AlterConfigsResource(
        resource_type=TOPIC_RESOURCE, resource_name=OFFSETS, configs=[setting]
    )
    answer = connection.ask(IncrementalAlterConfigsRequest(resources=[resource_of]))
    assert answer.responses[0].error_code == ErrorCode.NONE


def enter(connection: Connection, group: str) -> Committer:
    """Be the only member of a group."""
    name = connection.ask(joining(group)).member_id
    joined = connection.ask(joining(group, name))
    answer = connection.ask(syncing(group, name, joined.generation_id, [name]))
    assert answer.error_code == ErrorCode.NONE
    return Committer(group, name, joined.generation_id, connection)


def commit_for(
    broker: Broker, committers: list[Committer], partitions: int, depth: int, seconds: float
) -> dict[str, float]:
    """Commit for a while, so many of each under way; give what it took."""
    frames = {one.connection: one.commit(1, partitions) for one in committers}
    by_descriptor = {one.connection.socket.fileno(): one.connection for one in committers}
    poll = select.epoll()
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    before, start = cpu_seconds(broker.pid), time.perf_counter()
    end = start + seconds
    done = under_way = 0
    for connection, data in frames.items():
        connection.socket.sendall(data * depth)
        under_way += depth
    while under_way:
        for descriptor, _event in poll.poll():
            connection = by_descriptor[descriptor]
            answered = 0
            for _answer in connection.receive():
                answered += 1
            done += answered
            under_way -= answered
            if time.perf_counter() < end:
                connection.socket.sendall(frames[connection] * answered)
                under_way += answered
    elapsed = time.perf_counter() - start
    used = cpu_seconds(broker.pid) - before
    return {"per_second": done / elapsed, "cpu_seconds": used / done, "cpu_share": used / elapsed}


def bench_commit(broker: Broker, plan: Plan) -> Any:
    """Measure commits, small and large, to the page cache and to the device."""
    results: dict[str, dict[str, float]] = {}
    with connections(broker.port, 17) as (admin, *members):
        committers = [enter(member, f"commit-{at}") for at, member in enumerate(members)]
        for durability in ("page-cache", "fsync"):
            set_durability(admin, durability)
            for partitions in (1, WIDTH):
                for depth in (1, 16):
                    progress(f"commit: {durability}, {partitions} partitions, {depth} under way")
                    found = commit_for(broker, committers, partitions, depth, plan.commit_seconds)
                    results[f"{durability}/{partitions}/{depth}"] = found
        set_durability(admin, "page-cache")
    progress("")
    print_table(
        f"commit: by {len(committers)} members",
        [
            *("durability", "partitions", "under way of each", "commits/s", "offsets/s"),
            *("CPU µs per commit", "CPU µs per offset", "CPU of a core"),
        ],
        [
            [
                durability,
                partitions,
                depth,
                f"{found['per_second']:,.0f}",
                f"{found['per_second'] * int(partitions):,.0f}",
                f"{found['cpu_seconds'] * 1e6:,.0f}",
                f"{found['cpu_seconds'] * 1e6 / int(partitions):,.1f}",
                f"{found['cpu_share']:.0%}",
            ]
            for name, found in results.items()
            for durability, partitions, depth in [name.split("/")]
        ],
    )
    return results


# -- start -----------------------------------------------------------------------------------------


def commit_past(broker: Broker, first: int, commits: int) -> tuple[int, float]:
    """Commit again and again; give the offset that all groups are at, and the seconds."""
    rounds = max(1, commits // (START_GROUPS * START_WIDTH * START_BURST))
    names = [f"group-{at}" for at in range(START_GROUPS)]
    offset = first
    start = time.perf_counter()
    with connections(broker.port, 4) as four:
        for _ in range(rounds):
            offset += 1
            # The whole burst has one offset, as it is the number of records that counts.
            for at, connection in enumerate(four):
                turn = [frame(committing(name, offset, START_WIDTH)) for name in names[at::4]]
                pump(connection, turn, START_BURST)
            progress(
                f"start: {(offset - first) * START_GROUPS * START_WIDTH * START_BURST:,} commits"
            )
    return offset, time.perf_counter() - start


def pump(connection: Connection, frames: list[bytes], times: int) -> None:
    """Send frames, each so often, and wait for all answers."""
    owed = 0
    for data in frames:
        connection.socket.sendall(data * times)
        owed += times
        while owed > 500:
            owed -= sum(1 for _ in connection.receive())
    while owed:
        owed -= sum(1 for _ in connection.receive())


def start_again(broker: Broker, offset: int) -> dict[str, float]:
    """Start the broker; give the seconds until it answers, and until all groups are served."""
    broker.start()
    start = time.perf_counter() - broker.start_seconds
    # One group of each partition, which is the last to be served of those in it.
    count = len(list(broker.data.glob(f"{OFFSETS}-*")))
    names: dict[int, str] = {}
    for at in range(START_GROUPS):
        names.setdefault(partition_of_group(f"group-{at}", count), f"group-{at}")
    asked = [OffsetFetchRequestGroup(group_id=name, topics=None) for name in names.values()]
    first = 0.0
    with connections(broker.port, 1) as (connection,):
        while True:
            groups = connection.ask(OffsetFetchRequest(groups=asked)).groups
            codes = {group.error_code for group in groups}
            if not first and ErrorCode.NONE in codes:
                first = time.perf_counter() - start
            if codes == {ErrorCode.NONE}:
                break
            assert codes <= {ErrorCode.NONE, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS}, codes
            time.sleep(0.002)
    seconds = time.perf_counter() - start
    for group in groups:
        found = {part.committed_offset for topic in group.topics for part in topic.partitions}
        assert found == {offset}, f"{group.group_id} is at {found}, not {offset}"
    time.sleep(0.2)  # for its log
    return {
        "answers_seconds": broker.start_seconds,
        "first_seconds": first,
        "seconds": seconds,
        "records": broker.replayed(),
    }


def bench_start(broker: Broker, plan: Plan) -> Any:
    """Measure starts after few commits and after many."""
    results: list[dict[str, Any]] = []
    offset = done = 0
    for total in plan.commits:
        offset, seconds = commit_past(broker, offset, total - done)
        rate, done = (total - done) / seconds, total
        for how, number in (("kill -9", signal.SIGKILL), ("stop", signal.SIGTERM)):
            end_seconds = broker.end(number)
            size = broker.disk_bytes()
            progress(f"start: after {total:,} commits and {how}")
            found = start_again(broker, offset)
            results.append(
                {"commits": total, "rate": rate, "how": how, "bytes": size, "end": end_seconds}
                | found
            )
    progress("")
    print_table(
        f"start: {START_GROUPS:,} groups of {START_WIDTH} partitions, so many commits before",
        [
            *("commits", "offsets/s", "end", "MB on disk", "records read"),
            *("answers ms", "first group ms", "all groups ms"),
        ],
        [
            [
                f"{row['commits']:,}",
                f"{row['rate']:,.0f}",
                row["how"],
                f"{row['bytes'] / 1e6:,.1f}",
                f"{row['records']:,}",
                f"{row['answers_seconds'] * 1e3:,.0f}",
                f"{row['first_seconds'] * 1e3:,.0f}",
                f"{row['seconds'] * 1e3:,.0f}",
            ]
            for row in results
        ],
    )
    return results


# -- all -------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[Broker, Plan], Any]] = {
    "gather": bench_gather,
    "commit": bench_commit,
    "start": bench_start,
}


def main() -> None:
    """Measure all of it, or what was named."""
    quick = "half a minute instead of two"
    parser = command_line(__doc__, quick=quick, parts=PARTS, files="1 GiB")
    parser.add_argument("--commits", type=int, help="past commits, at least 100,000")
    options = parser.parse_args()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(max(soft, 16_384), hard), hard))
    plan = QUICK if options.quick else FULL
    if options.commits is not None:
        plan = replace(plan, commits=[100_000, options.commits])
    with recording("groups", options) as results:
        for name in options.only or PARTS:
            results[name] = measure(name, plan, options.dir)


def measure(name: str, plan: Plan, directory: Path | None) -> Any:
    """Measure one part, with a broker of its own."""
    with ExitStack() as stack:
        folder = tempfile.TemporaryDirectory(dir=directory, prefix="ottla-bench-")
        settings = ["log.cleaner.enable=false"] if name == "commit" else []
        broker = Broker(Path(stack.enter_context(folder)) / name, *settings)
        stack.callback(broker.stop)
        broker.start()
        with connections(broker.port, 1) as (connection,):
            prepare(connection)
        return PARTS[name](broker, plan)


if __name__ == "__main__":
    main()
