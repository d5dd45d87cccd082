"""Which process has which broker id: the rules, the requests, and the announcements."""

import asyncio
from types import SimpleNamespace
from uuid import uuid4

import pytest

from harness.daemon import HOST, free_port
from harness.scripted_broker import ScriptedCluster
from harness.wire import connect
from ottla.broker import Broker, BrokerConfig
from ottla.broker.cluster.announcer import Announcer
from ottla.broker.cluster.incarnations import BrokerIncarnations
from ottla.broker.cluster.membership import ClusterMembership
from ottla.broker.requests.errors import ApiError
from ottla.protocol.api.broker_heartbeat import BrokerHeartbeatRequest, BrokerHeartbeatResponse
from ottla.protocol.errors import ErrorCode
from ottla.storage.errors import DataDirectoryError

FIRST, SECOND, THIRD = (uuid4() for _ in range(3))


class Processes:
    """Announces processes of broker 1 on connections of their own."""

    def __init__(self):
        self.now = 100.0
        self.incarnations = BrokerIncarnations(3, lambda: self.now)
        self.connections = {}

    def announce(self, incarnation):
        connection = self.connections.setdefault(incarnation, SimpleNamespace(is_open=True))
        try:
            self.incarnations.record(1, incarnation, f"at {incarnation}", connection)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE


def test_one_process_has_a_broker_id_while_it_is_heard():
    processes = Processes()
    assert processes.announce(FIRST) == ErrorCode.NONE
    processes.now += 2.9
    assert processes.announce(SECOND) == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert processes.announce(FIRST) == ErrorCode.NONE
    processes.now += 2.9
    with pytest.raises(ApiError, match=f"in use by another process, at at {FIRST}"):
        processes.incarnations.check(1, SECOND)
    processes.incarnations.check(2, SECOND)


def test_a_process_that_has_ended_is_replaced_at_once():
    processes = Processes()
    processes.announce(FIRST)
    processes.connections[FIRST].is_open = False

    assert processes.announce(SECOND) == ErrorCode.NONE


def test_a_process_that_was_replaced_is_refused_for_good():
    processes = Processes()
    processes.announce(FIRST)
    processes.now += 3.1
    processes.incarnations.check(1, SECOND)  # Asks only.
    assert processes.announce(FIRST) == ErrorCode.NONE
    processes.now += 3.1
    assert processes.announce(SECOND) == ErrorCode.NONE

    assert processes.announce(FIRST) == ErrorCode.STALE_BROKER_EPOCH
    processes.now += 10
    assert processes.announce(THIRD) == ErrorCode.NONE
    for replaced in (FIRST, SECOND):
        assert processes.announce(replaced) == ErrorCode.STALE_BROKER_EPOCH


def config_of(other_port, **configs):
    """The config of broker 0 in a cluster with a broker 1."""
    port = free_port()
    brokers = f"0@{HOST}:{port},1@{HOST}:{other_port}"
    return BrokerConfig(cluster_brokers=brokers, listeners=f"PLAINTEXT://{HOST}:{port}", **configs)


async def announce(client, broker, broker_id, incarnation, port, *, is_check=False):
    request = BrokerHeartbeatRequest(
        broker_id=broker_id,
        cluster_id=broker.cluster_id,
        incarnation_id=incarnation,
        host=HOST,
        port=port,
        is_check=is_check,
    )
    return (await client.request(request, 0)).error_code


async def test_a_process_with_the_address_of_a_broker_is_refused_while_another_one_serves(tmp_path):
    port, other_port = free_port(), free_port()
    async with Broker(config_of(port, log_dir=str(tmp_path))) as broker, connect(broker) as new:
        async with connect(broker) as old:
            code = await announce(old, broker, 1, FIRST, other_port)
            assert code == ErrorCode.INVALID_REGISTRATION

            for is_check in (True, False):
                code = await announce(new, broker, 1, SECOND, port, is_check=is_check)
                assert code == ErrorCode.DUPLICATE_BROKER_REGISTRATION

        while code == ErrorCode.DUPLICATE_BROKER_REGISTRATION:  # Until the end is noticed.
            code = await announce(new, broker, 1, SECOND, port)
        assert code == ErrorCode.NONE


async def test_a_process_that_finds_another_one_at_its_own_address_does_not_start(tmp_path):
    config = config_of(free_port(), log_dir=str(tmp_path), broker_session_timeout_ms=200)
    async with Broker(config) as broker:
        failed = asyncio.get_running_loop().create_future()
        second = Announcer(ClusterMembership(config), broker.cluster_id, failed)

        with pytest.raises(DataDirectoryError, match="Broker id 0 is in use by another process"):
            await second.start()


async def test_a_broker_that_is_refused_serves_nothing_until_it_is_confirmed_again():
    refusal = BrokerHeartbeatResponse(error_code=ErrorCode.DUPLICATE_BROKER_REGISTRATION)
    async with ScriptedCluster(served=["BrokerHeartbeat"]) as others:
        others.always(BrokerHeartbeatRequest, lambda _call: BrokerHeartbeatResponse())
        config = config_of(others.nodes[0].port, broker_session_timeout_ms=1000)
        failed = asyncio.get_running_loop().create_future()
        announcer = Announcer(ClusterMembership(config), "cluster", failed)
        await announcer.start()
        assert announcer.is_confirmed
        others.script(BrokerHeartbeatRequest, lambda _call: refusal)

        announced = len(others.requests_of(BrokerHeartbeatRequest))
        while len(others.requests_of(BrokerHeartbeatRequest)) <= announced:
            await asyncio.sleep(0.01)
        while announcer.is_confirmed:
            assert len(others.requests_of(BrokerHeartbeatRequest)) <= announced + 1
            await asyncio.sleep(0.01)
        await announcer.wait_until_confirmed()
        assert not failed.done()
        await announcer.stop()
