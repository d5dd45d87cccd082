"""Rebalances in the classic and in the consumer protocol, of ottla and of Apache Kafka.

A member leaves a stable group, and a new one joins. Until every member has its new assignment, all
members send the next request at once when the previous one is answered: what is measured is the
work of a rebalance, and not how long clients wait between two heartbeats (up to 5 s). CPU is that
of the broker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

from benchmark import progress
from metrics import cpu_seconds
from ottla.protocol.api.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from ottla.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.api.find_coordinator import FindCoordinatorRequest
from ottla.protocol.api.join_group import JoinGroupResponse
from ottla.protocol.api.leave_group import LeaveGroupRequest, MemberIdentity
from ottla.protocol.api.sync_group import SyncGroupResponse
from ottla.protocol.codec import decode_response
from ottla.protocol.errors import ErrorCode
from ottla.protocol.schema import Message
from servers import Kafka, Ottla, Server
from wire import SIZE, Connection, connections, frame

TOPIC = "orders"
PARTITIONS_PER_MEMBER = 2
CONFIGS = {
    "group.initial.rebalance.delay.ms": "0",
    "group.consumer.assignment.interval.ms": "0",
    "group.max.size": "1000",
}


@contextmanager
def servers(directory: Path, libs: Path | None) -> Iterator[dict[str, Server]]:
    """Start ottla, and Apache Kafka if it is there."""
    options = [word for name, value in CONFIGS.items() for word in ("--set", f"{name}={value}")]
    started: dict[str, Server] = {"ottla": Ottla(directory / "ottla", *options)}
    if libs is not None and Kafka.missing(libs) is None:
        started["kafka"] = kafka = Kafka(directory / "kafka", libs)
        kafka.properties = CONFIGS  # No initial delays.
    try:
        for server in started.values():
            server.start()
        yield started
    finally:
        for server in started.values():
            server.stop()


def exchange_all(
    members: list[Connection], requests: list[Message], response: type[Message], version: int
) -> list[Any]:
    """Send a request for each member, and return the responses."""
    for member, request in zip(members, requests, strict=True):
        member.socket.sendall(frame(request))
    return [receive(member, response, version) for member in members]


def receive(member: Connection, response: type[Message], version: int) -> Any:
    """Return the next response of a member."""
    while not (frames := list(member.receive())):
        pass
    return decode_response(response, version, frames[0][SIZE.size :])[1]


class ConsumerProtocolGroup:
    """A group whose members only send heartbeats."""

    def __init__(self, name: str, members: list[Connection]) -> None:
        self._name = name
        self._members = members
        self._ids = [f"{name}-{number}" for number in range(len(members))]
        self._epochs = [0] * len(members)
        self._owned: list[dict[UUID, list[int]]] = [{} for _ in members]
        self._reports = [True] * len(members)
        self.settle()

    def rebalance(self) -> None:
        """Replace the last member by a new one."""
        leave = ConsumerGroupHeartbeatRequest(
            group_id=self._name, member_id=self._ids[-1], member_epoch=-1
        )
        self._members[-1].request(leave)
        self._ids[-1] += "+"
        self._epochs[-1], self._owned[-1] = 0, {}
        self.settle()

    def settle(self) -> None:
        """Send heartbeats until all members have their partitions, and two rounds are quiet."""
        total = PARTITIONS_PER_MEMBER * len(self._members)
        while True:
            requests: list[Message] = list(map(self._request, range(len(self._members))))
            responses = exchange_all(
                self._members,
                requests,
                ConsumerGroupHeartbeatResponse,
                requests[0].api.versions.last,
            )
            is_quiet = True
            for number, response in enumerate(responses):
                assert response.error_code == ErrorCode.NONE, response.error_message
                is_quiet = is_quiet and self._epochs[number] == response.member_epoch
                self._epochs[number] = response.member_epoch
                self._reports[number] = response.assignment is not None
                if response.assignment is not None:
                    is_quiet = False
                    self._owned[number] = {
                        topic.topic_id: list(topic.partitions)
                        for topic in response.assignment.topic_partitions
                    }
            owned = sum(len(some) for one in self._owned for some in one.values())
            if is_quiet and owned == total and len(set(self._epochs)) == 1:
                return

    def _request(self, number: int) -> ConsumerGroupHeartbeatRequest:
        is_joining = self._epochs[number] == 0
        owned = [
            TopicPartitions(topic_id=topic_id, partitions=indexes)
            for topic_id, indexes in self._owned[number].items()
        ]
        return ConsumerGroupHeartbeatRequest(
            group_id=self._name,
            member_id=self._ids[number],
            member_epoch=self._epochs[number],
            rebalance_timeout_ms=300_000 if is_joining else -1,
            subscribed_topic_names=[TOPIC] if is_joining else None,
            topic_partitions=owned if is_joining or self._reports[number] else None,
        )


class ClassicGroup:
    """A group whose members join and sync."""

    def __init__(self, name: str, members: list[Connection]) -> None:
        from groups import join_request, sync_request  # noqa: PLC0415  # It imports this module.

        self._join_request: Callable[..., Any] = join_request
        self._sync_request: Callable[..., Any] = sync_request
        self._name = name
        # The leader joins last: a join of it starts a rebalance even if nothing has changed.
        leader, *others = members
        self._members = [*others, leader]
        while not (leader_id := leader.request(join_request(name)).member_id):
            time.sleep(0.1)  # The coordinator is being loaded.
        leader.request(join_request(name, leader_id))
        self._ids = [member.request(join_request(name)).member_id for member in others]
        self._ids.append(leader_id)
        self._rebalance()

    def rebalance(self) -> None:
        """Replace the last member by a new one; the others learn of it, and join again."""
        first = self._members[0]
        identity = MemberIdentity(member_id=self._ids[0])
        first.request(LeaveGroupRequest(group_id=self._name, members=[identity]))
        self._ids[0] = first.request(self._join_request(self._name)).member_id
        self._rebalance()

    def _rebalance(self) -> None:
        joins = [self._join_request(self._name, name) for name in self._ids]
        version = joins[0].api.versions.last
        joined = exchange_all(self._members, joins, JoinGroupResponse, version)
        codes = {ErrorCode.of(one.error_code).name for one in joined}
        assert codes == {"NONE"}, codes
        syncs = [
            self._sync_request(
                self._name,
                name,
                one.generation_id,
                self._ids if one.leader == one.member_id else (),
            )
            for name, one in zip(self._ids, joined, strict=True)
        ]
        version = syncs[0].api.versions.last
        for synced in exchange_all(self._members, syncs, SyncGroupResponse, version):
            assert synced.error_code == ErrorCode.NONE, ErrorCode.of(synced.error_code).name


GROUPS = {"classic": ClassicGroup, "consumer": ConsumerProtocolGroup}


def bench_protocols(
    directory: Path, counts: list[int], rebalances: int, libs: Path | None
) -> list[dict[str, Any]]:
    """Measure rebalances of all sizes, in both protocols, of both brokers in turn."""
    results = []
    with servers(directory, libs) as started:
        for count in counts:
            for name, server in started.items():
                create_topic(server, count)
                for protocol, group_of in GROUPS.items():
                    progress(f"protocols: {count} members, {name}, {protocol}")
                    with connections(*[server.port] * count) as members:
                        group = group_of(f"{protocol}-{count}", members)
                        group.rebalance()
                        seconds, cpu = [], []
                        for _ in range(rebalances):
                            before, start = cpu_seconds(server.pid), time.perf_counter()
                            group.rebalance()
                            seconds.append(time.perf_counter() - start)
                            cpu.append(cpu_seconds(server.pid) - before)
                    results.append(
                        {
                            "server": name,
                            "protocol": protocol,
                            "members": count,
                            "best_seconds": min(seconds),
                            "worst_seconds": max(seconds),
                            "cpu_seconds": min(cpu),
                        }
                    )
    return results


def create_topic(server: Server, members: int) -> None:
    """Create the topic anew, with two partitions for each member."""
    with connections(server.port) as (connection,):
        from ottla.protocol.api.delete_topics import (  # noqa: PLC0415
            DeleteTopicsRequest,
            DeleteTopicState,
        )

        connection.request(
            DeleteTopicsRequest(topics=[DeleteTopicState(name=TOPIC)], timeout_ms=9000)
        )
        topic = CreatableTopic(
            name=TOPIC,
            num_partitions=PARTITIONS_PER_MEMBER * members,
            replication_factor=1,
        )
        deadline = time.monotonic() + 30
        while True:
            request = CreateTopicsRequest(topics=[topic], timeout_ms=9000)
            (created,) = connection.request(request).topics
            if created.error_code == ErrorCode.NONE:
                break
            assert time.monotonic() < deadline, created.error_message
            time.sleep(0.2)
        for _attempt in range(100):
            (found,) = connection.request(
                FindCoordinatorRequest(coordinator_keys=["any"])
            ).coordinators
            if found.error_code == ErrorCode.NONE:
                return
            time.sleep(0.2)
