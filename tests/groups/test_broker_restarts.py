"""A broker that goes away in the middle of things, and comes back: members find each other again.

There is a group of each client. One more member is spoken for by hand: it joins, and then does not
do what all others wait for. So each group is held in the state that it is to be in when the broker
goes, with the requests of its real members waiting in it. Afterwards it leaves.
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager

import pytest

from groups.company import (
    BROKER,
    CLIENTS,
    Company,
    Producing,
    admin_of,
    assignor_of,
    check,
    committed_of,
    create_topic,
    missing,
    producing,
    settle,
)
from harness import group_requests
from harness.daemon import Daemon, shown_on_failure
from harness.wire import WireClient, connect

PARTITIONS = 4
TOPIC = "t"
MEMBERS = ("a", "b")
#: It has all the time in the world.
PATIENT = {"session_ms": 600_000, "rebalance_ms": 600_000}

each_end = pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=["stop", "kill"])


@pytest.fixture
def broker(tmp_path, request) -> Iterator[Daemon]:
    with Daemon(tmp_path, *BROKER) as started, shown_on_failure(request, [started]):
        create_topic(started.address, TOPIC, PARTITIONS)
        yield started


@contextmanager
def companies(broker: Daemon) -> Iterator[tuple[list[Company], Producing]]:
    """A group of each client that is here, nobody in it yet, and a producer for all of them."""
    with ExitStack() as stack:
        groups = [
            stack.enter_context(
                Company(
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
        producer = stack.enter_context(producing(broker.address, TOPIC, PARTITIONS))
        yield groups, producer


@asynccontextmanager
async def hands(broker: Daemon, groups: list[Company]) -> AsyncIterator[dict[Company, WireClient]]:
    """A client to speak by hand with for each group."""
    async with AsyncExitStack() as stack:
        yield {group: await stack.enter_async_context(connect(broker.address)) for group in groups}


def restart(broker: Daemon, groups: list[Company], end: signal.Signals) -> None:
    """Let the broker go and come, and see that it has all that it acked."""
    started = time.monotonic()
    if end is signal.SIGKILL:
        broker.kill()
    else:
        assert broker.stop(end) == 0
        assert time.monotonic() - started < 15, "it waited for members"
    acked = {}
    for group in groups:
        group.events.read()
        acked[group] = dict(group.events.committed)
    time.sleep(0.2)
    broker.start()
    admin = admin_of(broker.address)
    for group in groups:
        kept = committed_of(admin, group.group)
        for partition, offset in acked[group].items():
            assert kept[partition] >= offset, f"{group.group}: {kept} < {acked[group]}"


def start_members(groups: list[Company]) -> None:
    for group in groups:
        for member in MEMBERS:
            group.start(member, group.group)


async def until(client: WireClient, group: Company, state: str, members: int) -> None:
    """Wait until a group has so many members and is in a state."""
    async with asyncio.timeout(30):
        while True:
            found = await group_requests.describe(client, group.group)
            if (found.group_state, len(found.members)) == (state, members):
                return
            await asyncio.sleep(0.02)


async def enter_alone(client: WireClient, group: Company) -> group_requests.Member:
    """Be the first, who leads, and wants nothing."""
    await group_requests.find(client, group.group)
    member = await enter(client, group)
    assert member.is_leader
    await group_requests.sync(client, member, {member.id: b""}, protocol=None)
    return member


async def enter(client: WireClient, group: Company, member_id: str = "") -> group_requests.Member:
    protocols = {group.assignors[0]: group_requests.subscription(version=0)}
    return await group_requests.enter(
        client, group.group, member_id, protocols=protocols, **PATIENT
    )


async def enter_with_others(client: WireClient, group: Company) -> group_requests.Member:
    """Be one of many, and join again whenever somebody else wants it, until all have settled."""
    member = await enter(client, group)
    async with asyncio.timeout(30):
        while (state := await group_requests.state_of(client, group.group)) != "Stable":
            if state == "PreparingRebalance":
                member = await enter(client, group, member.id)
            await asyncio.sleep(0.02)
    return member


async def leave(broker: Daemon, *members: group_requests.Member) -> None:
    """Let those who were spoken for go, whatever the broker knows of them by now."""
    async with connect(broker.address) as client:
        for member in members:
            async with asyncio.timeout(30):
                while (await group_requests.leave(client, member.group, (member.id, None)))[0]:
                    await asyncio.sleep(0.02)


def recover(groups: list[Company]) -> None:
    for group in groups:
        group.wait_until_shared(PARTITIONS)
        group.wait_until_reading(*MEMBERS)


def finish(groups: list[Company], producer: Producing) -> None:
    for group in groups:
        settle(group, producer)
        group.stop()
        check(group, producer)


@each_end
async def test_while_members_join(broker, end):
    with companies(broker) as (groups, producer):
        async with hands(broker, groups) as clients:
            stubborn = [await enter_alone(clients[group], group) for group in groups]
            start_members(groups)
            # Nobody gets a generation as long as the first one does not join again.
            for group in groups:
                await until(clients[group], group, "PreparingRebalance", 3)
        restart(broker, groups, end)
        await leave(broker, *stubborn)
        recover(groups)

        # And once more, with a group that has been there for a while.
        async with hands(broker, groups) as clients, hands(broker, groups) as others:
            stubborn = [await enter_with_others(clients[group], group) for group in groups]
            more = [asyncio.create_task(enter(others[group], group)) for group in groups]
            for group in groups:
                await until(clients[group], group, "PreparingRebalance", 4)
            await asyncio.sleep(0.6)  # for the real ones to hear of it
            restart(broker, groups, end)
            await asyncio.gather(*more, return_exceptions=True)
        await leave(broker, *stubborn)
        recover(groups)
        finish(groups, producer)


@each_end
async def test_while_members_sync(broker, end):
    with companies(broker) as (groups, producer):
        async with hands(broker, groups) as clients:
            stubborn = [await enter_alone(clients[group], group) for group in groups]
            start_members(groups)
            for group in groups:
                await until(clients[group], group, "PreparingRebalance", 3)
            # It leads, and nobody hears of an assignment as long as it does not make one.
            again = [
                await enter(clients[group], group, member.id)
                for group, member in zip(groups, stubborn, strict=True)
            ]
            assert all(member.is_leader for member in again)
            for group in groups:
                await until(clients[group], group, "CompletingRebalance", 3)
            await asyncio.sleep(0.3)  # for the real ones to ask
            restart(broker, groups, end)
        await leave(broker, *stubborn)
        recover(groups)
        finish(groups, producer)


@each_end
def test_while_members_read_and_commit(broker, end):
    chance = random.Random(end.name)
    with companies(broker) as (groups, producer):
        start_members(groups)
        recover(groups)
        for _ in range(2):
            for group in groups:
                group.wait_until_commits(3)
            time.sleep(chance.uniform(0, 0.1))
            restart(broker, groups, end)
        recover(groups)
        finish(groups, producer)
