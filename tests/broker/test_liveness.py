"""Broker liveness on the controller, with a manual clock."""

import asyncio
import time

from harness.daemon import free_port
from harness.requests import create_topic
from harness.wire import connect
from ottla.broker import Broker, BrokerConfig
from ottla.broker.cluster.liveness import BrokerLiveness
from ottla.storage.disk import Disk

SESSION_SECONDS = 0.4


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_all_brokers_start_alive():
    clock = Clock()
    liveness = BrokerLiveness([1, 2], 3, clock)

    assert liveness.alive == {1, 2}
    clock.now += 3.1
    assert liveness.alive == set()


def test_a_broker_is_alive_for_a_session_after_its_heartbeat():
    clock = Clock()
    liveness = BrokerLiveness([1, 2], 3, clock)

    clock.now += 2
    liveness.record_heartbeat(1, 0)
    clock.now += 2

    assert liveness.alive == {1}
    clock.now += 2
    assert liveness.alive == set()


def test_only_brokers_of_the_cluster_have_sessions():
    liveness = BrokerLiveness([1, 2], 3)

    assert 1 in liveness
    assert 0 not in liveness


async def test_an_offset_is_reached_when_all_brokers_fetch_from_it():
    liveness = BrokerLiveness([1, 2], 10)
    wait = asyncio.create_task(liveness.wait_for_offset(5))
    await asyncio.sleep(0)

    liveness.record_heartbeat(1, 5)
    liveness.record_heartbeat(2, 4)
    await asyncio.sleep(0.01)
    assert not wait.done()

    liveness.record_heartbeat(2, 7)
    async with asyncio.timeout(5):
        await wait


async def test_a_silent_broker_is_waited_for_at_most_one_session():
    liveness = BrokerLiveness([1, 2], SESSION_SECONDS)
    liveness.record_heartbeat(1, 9)
    started = asyncio.get_running_loop().time()

    async with asyncio.timeout(10):
        await liveness.wait_for_offset(5)

    assert asyncio.get_running_loop().time() - started >= SESSION_SECONDS * 0.9


async def test_a_single_broker_waits_for_nobody():
    async with asyncio.timeout(1):
        await BrokerLiveness([], 10).wait_for_offset(5)


class SlowDisk(Disk):
    """A disk on which creating a log takes a while."""

    def make_directory(self, path):
        time.sleep(0.3)
        super().make_directory(path)


async def test_a_broker_stays_alive_while_it_creates_logs(tmp_path):
    ports = [free_port(), free_port()]
    brokers = ",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports))

    def config(number):
        return BrokerConfig(
            broker_id=number,
            log_dir=str(tmp_path / str(number)),
            cluster_brokers=brokers,
            broker_session_timeout_ms=2000,
        )

    async with (
        Broker(config(0)) as controller,
        Broker(config(1), disk=SlowDisk()) as follower,
        connect(controller.address) as client,
    ):
        alive = set()
        creation = asyncio.ensure_future(create_topic(client, "t", 30))
        while not (creation.done() and "t" in follower.topics.image.topics):
            alive.add(controller.cluster.liveness.alive)
            await asyncio.sleep(0.05)
        await creation

    # Creating 15 logs took longer than two sessions.
    assert alive == {frozenset({1})}
