"""What the controller hears of the other brokers, with a clock that is set by hand."""

import asyncio
import time

from harness.daemon import free_port
from harness.requests import create_topic
from harness.wire import connect
from ottla.broker import Broker, BrokerConfig
from ottla.broker.cluster.liveness import BrokerLiveness
from ottla.storage.disk import Disk

SESSION = 0.4


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_right_after_the_start_all_are_taken_to_be_up():
    clock = Clock()
    followers = BrokerLiveness([1, 2], 3, clock)

    assert followers.alive == {1, 2}
    clock.now += 3.1
    assert followers.alive == set()


def test_who_fetches_is_up_for_as_long_as_he_does():
    clock = Clock()
    followers = BrokerLiveness([1, 2], 3, clock)

    clock.now += 2
    followers.record_heartbeat(1, 0)
    clock.now += 2

    assert followers.alive == {1}
    clock.now += 2
    assert followers.alive == set()


def test_only_those_of_the_list_are_followers():
    followers = BrokerLiveness([1, 2], 3)

    assert 1 in followers
    assert 0 not in followers


async def test_a_change_has_spread_when_all_ask_for_what_is_behind_it():
    followers = BrokerLiveness([1, 2], 10)
    spread = asyncio.create_task(followers.wait_for_offset(5))
    await asyncio.sleep(0)

    followers.record_heartbeat(1, 5)
    followers.record_heartbeat(2, 4)
    await asyncio.sleep(0.01)
    assert not spread.done()

    followers.record_heartbeat(2, 7)
    async with asyncio.timeout(5):
        await spread


async def test_who_is_not_heard_of_is_waited_for_a_session_and_no_longer():
    followers = BrokerLiveness([1, 2], SESSION)
    followers.record_heartbeat(1, 9)
    started = asyncio.get_running_loop().time()

    async with asyncio.timeout(10):
        await followers.wait_for_offset(5)

    assert asyncio.get_running_loop().time() - started >= SESSION * 0.9


async def test_alone_there_is_nobody_to_wait_for():
    async with asyncio.timeout(1):
        await BrokerLiveness([], 10).wait_for_offset(5)


class SlowDisk(Disk):
    """A log takes a while to make."""

    def make_directory(self, path):
        time.sleep(0.3)
        super().make_directory(path)


async def test_who_makes_logs_for_long_is_up_meanwhile(tmp_path):
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
        asking = asyncio.ensure_future(create_topic(client, "t", 30))
        while not (asking.done() and "t" in follower.topics.image.topics):
            alive.add(controller.cluster.liveness.alive)
            await asyncio.sleep(0.05)
        await asking

    # Fifteen logs took more than two sessions.
    assert alive == {frozenset({1})}
