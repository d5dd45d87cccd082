"""The coordinator restarts in the middle of a rebalance: groups recover.

There is one group per client. One more member of each is a raw wire client, which joins and then
withholds what the others wait for. It keeps the group in the state under test until the broker
stops, with the requests of the real members pending. Afterwards it leaves.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager

import pytest

from harness import group_requests
from harness.clients.confluent import Confluent
from harness.daemon import Daemon, shown_on_failure
from harness.group_members import (
    BROKER_FLAGS,
    CLIENTS,
    GroupMembers,
    assignor_of,
    check_group,
    missing,
    producing,
    settle,
)
from harness.load import Load
from harness.waiting import eventually
from harness.wire import WireClient, connect

PARTITIONS = 4
TOPIC = "t"
MEMBERS = ("a", "b")
#: For the wire client: it never expires.
NO_TIMEOUTS = {"session_ms": 600_000, "rebalance_ms": 600_000}

each_end = pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stop", "kill"])


@pytest.fixture
def broker(tmp_path, request) -> Iterator[Daemon]:
    with Daemon(tmp_path, *BROKER_FLAGS) as started, shown_on_failure(request, [started]):
        Confluent(started.address).create_topic(TOPIC, PARTITIONS)
        yield started


@contextmanager
def group_per_client(broker: Daemon) -> Iterator[tuple[list[GroupMembers], Load]]:
    """An empty group for each installed client, and load for all of them."""
    with ExitStack() as stack:
        groups = [
            stack.enter_context(
                GroupMembers(
                    broker.address,
                    broker.folder,
                    client,
                    TOPIC,
                    assignors=[assignor_of(client)],
                )
            )
            for client in CLIENTS
            if missing(client) is None
        ]
        load = stack.enter_context(producing(broker.address, TOPIC, PARTITIONS))
        yield groups, load


@asynccontextmanager
async def wire_clients(
    broker: Daemon, groups: list[GroupMembers]
) -> AsyncIterator[dict[GroupMembers, WireClient]]:
    """A wire client for each group."""
    async with AsyncExitStack() as stack:
        yield {group: await stack.enter_async_context(connect(broker.address)) for group in groups}


def restart(broker: Daemon, groups: list[GroupMembers], end: signal.Signals) -> None:
    """Restart the broker, and check that no acknowledged commit is lost."""
    started = time.monotonic()
    if end is signal.SIGKILL:
        broker.kill()
    else:
        assert broker.stop(end) == 0
        assert time.monotonic() - started < 15, "the stop waited for members"
    acked = {}
    for group in groups:
        group.events.read()
        acked[group] = dict(group.events.committed)
    time.sleep(0.2)
    broker.start()
    client = Confluent(broker.address)
    for group in groups:
        stored = client.group_offsets(group.group, TOPIC)
        for partition, offset in acked[group].items():
            assert stored[partition] >= offset, f"{group.group}: {stored} < {acked[group]}"


def start_members(groups: list[GroupMembers]) -> None:
    for group in groups:
        for member in MEMBERS:
            group.start(member, group.group)


async def wait_for_state(client: WireClient, group: GroupMembers, state: str, members: int) -> None:
    """Wait until a group is in a state, with so many members."""

    async def is_reached() -> bool:
        description = await group_requests.describe(client, group.group)
        return (description.group_state, len(description.members)) == (state, members)

    await eventually(is_reached)


async def enter_alone(client: WireClient, group: GroupMembers) -> group_requests.Member:
    """Join first, and lead, with an empty assignment."""
    await group_requests.find(client, group.group)
    member = await enter(client, group)
    assert member.is_leader
    await group_requests.sync(client, member, {member.id: b""}, protocol=None)
    return member


async def enter(
    client: WireClient, group: GroupMembers, member_id: str = ""
) -> group_requests.Member:
    protocols = {group.assignors[0]: group_requests.subscription(version=0)}
    return await group_requests.enter(
        client, group.group, member_id, protocols=protocols, **NO_TIMEOUTS
    )


async def enter_with_others(client: WireClient, group: GroupMembers) -> group_requests.Member:
    """Join a group with members, and rejoin until it is stable."""
    member = await enter(client, group)
    async with asyncio.timeout(30):
        while (state := await group_requests.state_of(client, group.group)) != "Stable":
            if state == "PreparingRebalance":
                member = await enter(client, group, member.id)
            await asyncio.sleep(0.02)
    return member


async def leave(broker: Daemon, *members: group_requests.Member) -> None:
    """Let the wire clients' members leave, once the coordinator is loaded."""
    async with connect(broker.address) as client:
        for member in members:
            async with asyncio.timeout(30):
                while (await group_requests.leave(client, member.group, (member.id, None)))[0]:
                    await asyncio.sleep(0.02)


def recover(groups: list[GroupMembers]) -> None:
    for group in groups:
        group.wait_until_assigned(PARTITIONS)
        group.wait_until_consuming(*MEMBERS)


def finish(groups: list[GroupMembers], load: Load) -> None:
    settle(*groups, load=load)
    for group in groups:
        group.stop()
        check_group(group, load)


@each_end
async def test_group_recovers_from_a_restart_while_members_join(broker, end):
    with group_per_client(broker) as (groups, load):
        async with wire_clients(broker, groups) as clients:
            blocking = [await enter_alone(clients[group], group) for group in groups]
            start_members(groups)
            # No generation starts until the first member rejoins.
            for group in groups:
                await wait_for_state(clients[group], group, "PreparingRebalance", 3)
        restart(broker, groups, end)
        await leave(broker, *blocking)
        recover(groups)

        # Once more, with a group that was stable before.
        async with wire_clients(broker, groups) as clients, wire_clients(broker, groups) as others:
            blocking = [await enter_with_others(clients[group], group) for group in groups]
            more = [asyncio.create_task(enter(others[group], group)) for group in groups]
            for group in groups:
                await wait_for_state(clients[group], group, "PreparingRebalance", 4)
            await asyncio.sleep(0.6)  # so that the real members rejoin
            restart(broker, groups, end)
            await asyncio.gather(*more, return_exceptions=True)
        await leave(broker, *blocking)
        recover(groups)
        finish(groups, load)


@each_end
async def test_group_recovers_from_a_restart_while_members_sync(broker, end):
    with group_per_client(broker) as (groups, load):
        async with wire_clients(broker, groups) as clients:
            blocking = [await enter_alone(clients[group], group) for group in groups]
            start_members(groups)
            for group in groups:
                await wait_for_state(clients[group], group, "PreparingRebalance", 3)
            # It leads, and no SyncGroup is answered until it sends assignments.
            again = [
                await enter(clients[group], group, member.id)
                for group, member in zip(groups, blocking, strict=True)
            ]
            assert all(member.is_leader for member in again)
            for group in groups:
                await wait_for_state(clients[group], group, "CompletingRebalance", 3)
            await asyncio.sleep(0.3)  # so that the real members send SyncGroup
            restart(broker, groups, end)
        await leave(broker, *blocking)
        recover(groups)
        finish(groups, load)


@each_end
def test_group_recovers_from_a_restart_while_members_consume_and_commit(broker, end):
    chance = random.Random(end.name)
    with group_per_client(broker) as (groups, load):
        start_members(groups)
        recover(groups)
        for _ in range(2):
            for group in groups:
                group.wait_for_commits(3)
            time.sleep(chance.uniform(0, 0.1))
            restart(broker, groups, end)
        recover(groups)
        finish(groups, load)
