"""Brokers with a metadata store in memory: registration, the controller, and what may go wrong."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from harness.requests import create_topics_request, send_request
from harness.waiting import eventually
from ottla.broker import Broker, BrokerConfig
from ottla.broker.cluster.store.memory_store import MemoryStore, MemoryStoreServer
from ottla.broker.cluster.store.metadata_store import Put
from ottla.broker.cluster.store_controller import StoreController
from ottla.broker.requests.errors import ApiError
from ottla.coord.metadata_image import CONTROLLER_KEY
from ottla.protocol.api.broker_heartbeat import BrokerHeartbeatRequest
from ottla.protocol.api.create_topics import CreatableTopic, CreateTopicsRequest
from ottla.protocol.api.delete_topics import DeleteTopicsRequest
from ottla.protocol.api.metadata import MetadataRequest
from ottla.protocol.errors import ErrorCode
from ottla.storage.errors import DataDirectoryError


class Machine:
    """A broker, and its connection to the store."""

    def __init__(self, server: MemoryStoreServer, folder: Path, broker_id: int) -> None:
        self.server = server
        self.folder = folder
        self.id = broker_id
        self.broker: Broker
        self.store: MemoryStore

    async def start(self, *, is_connected: bool = True, **configs: Any) -> Broker:
        self.store = MemoryStore(self.server)
        if not is_connected:
            self.store.disconnect()
        config = BrokerConfig.of(
            {
                "broker.id": str(self.id),
                "log.dir": str(self.folder / str(self.id)),
                "listeners": "PLAINTEXT://127.0.0.1:0",
                "cluster.store": "etcd://unused:2379/test",
                "controller.wait.ms": "200",
                **{name.replace("_", "."): str(value) for name, value in configs.items()},
            }
        )
        self.broker = Broker(config, store=self.store)
        await self.broker.start()
        return self.broker

    @property
    def controller(self) -> StoreController:
        assert isinstance(self.broker.controller, StoreController)
        return self.broker.controller

    @property
    def topics(self) -> set[str]:
        return set(self.broker.topics.image.topics)

    def expire(self) -> None:
        """End the lease of the broker, as if no keepalive had come for long."""
        lease_id = self.broker.store_registration._lease_id
        assert lease_id is not None
        self.server.end_lease(lease_id)


@pytest.fixture
async def server() -> MemoryStoreServer:
    return MemoryStoreServer()


@asynccontextmanager
async def machines(
    server: MemoryStoreServer, folder: Path, count: int, **configs: Any
) -> AsyncIterator[list[Machine]]:
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        started = []
        for broker_id in range(count):
            machine = Machine(server, folder, broker_id)
            await machine.start(**configs)
            stack.push_async_callback(lambda machine=machine: machine.broker.stop())
            started.append(machine)
        await eventually(lambda: all(len(alive(one)) == count for one in started))
        yield started


def alive(machine: Machine) -> frozenset[int]:
    image = machine.broker.topics.image
    return frozenset(key for key, one in image.registrations.items() if one.state == "up")


async def create(machine: Machine, name: str, partitions: int = 1) -> tuple[int, str | None]:
    response = await send_request(machine.broker, create_topics_request(name, partitions), 7)
    return response.topics[0].error_code, response.topics[0].error_message


async def test_a_topic_created_on_any_broker_is_found_on_all(server, tmp_path):
    async with machines(server, tmp_path, 3) as brokers:
        controller = next(one for one in brokers if one.broker.cluster.is_controller)
        assert [one.broker.cluster.controller_id for one in brokers] == [controller.id] * 3
        for machine in brokers:
            code, message = await create(machine, f"by-{machine.id}", 3)
            assert (code, message) == (ErrorCode.NONE, None)
            for other in brokers:
                response = await send_request(other.broker, MetadataRequest(topics=None), 12)
                assert f"by-{machine.id}" in {topic.name for topic in response.topics}
                assert {node.node_id for node in response.brokers} == {0, 1, 2}
                assert response.controller_id == controller.id
                leaders = [part.leader_id for topic in response.topics for part in topic.partitions]
                assert sorted(leaders) == sorted([0, 1, 2] * (machine.id + 1))


async def test_broker_epochs_are_create_revisions(server, tmp_path):
    async with machines(server, tmp_path, 2) as (first, second):
        for machine in (first, second):
            entry = server.entries[b"registration/%d" % machine.id]
            registration = machine.broker.store_registration
            assert registration.broker_epoch == entry.create_revision
            assert first.broker.topics.image.registrations[machine.id].broker_epoch == (
                entry.create_revision
            )
            assert not registration.is_fenced
            assert registration.within_fence_time()


async def test_another_broker_becomes_the_controller(server, tmp_path):
    async with machines(server, tmp_path, 3) as brokers:
        old = next(one for one in brokers if one.broker.cluster.is_controller)
        epoch = server.entries[CONTROLLER_KEY].create_revision
        old.store.disconnect()
        old.expire()
        others = [one for one in brokers if one is not old]
        # Until they know, they forward to the old one, which cannot reach the store.
        await eventually(lambda: all(one.broker.cluster.controller_id != old.id for one in others))
        for machine in others:
            assert await create(machine, f"by-{machine.id}") == (ErrorCode.NONE, None)
        assert server.entries[CONTROLLER_KEY].create_revision > epoch
        assert not old.topics
        old.store.connect()
        await eventually(lambda: old.topics == {f"by-{one.id}" for one in others})
        await eventually(lambda: alive(others[0]) == {0, 1, 2})


async def test_a_controller_that_was_replaced_changes_nothing(server, tmp_path):
    async with machines(server, tmp_path, 2) as brokers:
        old = next(one for one in brokers if one.broker.cluster.is_controller)
        new = next(one for one in brokers if one is not old)
        old.store.disconnect()
        old.expire()
        await eventually(lambda: new.broker.cluster.is_controller)
        # It can write again, and does not know yet: its watch is silent.
        old.store._is_connected = True
        assert old.broker.cluster.is_controller
        planned = old.controller.plan_topic("late", 1, {})
        (error,) = await old.controller.create_topics([planned])
        assert isinstance(error, ApiError)
        assert error.code == ErrorCode.NOT_CONTROLLER
        assert b"topic/late" not in server.entries
        assert server.entries[CONTROLLER_KEY].value.startswith(b'{"broker":%d' % new.id)


async def test_a_lost_lease_is_a_new_epoch(server, tmp_path):
    async with machines(server, tmp_path, 2) as brokers:
        machine = next(one for one in brokers if not one.broker.cluster.is_controller)
        registration = machine.broker.store_registration
        epoch, leader_epoch = registration.broker_epoch, machine.broker.topics.leader_epoch
        machine.expire()
        await eventually(lambda: registration.broker_epoch > epoch and not registration.is_fenced)
        assert machine.broker.topics.leader_epoch > leader_epoch


async def test_the_fence_time_ends_before_the_lease(server, tmp_path):
    async with machines(server, tmp_path, 1) as (machine,):
        registration = machine.broker.store_registration
        sent_at = registration._fence_at - 5.0
        assert sent_at <= registration._clock()
        machine.store.disconnect()
        for seconds, is_within in ((4.9, True), (5.1, False)):
            registration._clock = lambda seconds=seconds: sent_at + seconds
            assert registration.within_fence_time() is is_within


def three_replicas(name: str) -> CreateTopicsRequest:
    topic = CreatableTopic(
        name=name, num_partitions=1, replication_factor=3, assignments=[], configs=[]
    )
    return CreateTopicsRequest(topics=[topic], timeout_ms=10_000)


async def lose_all_leases(brokers: list[Machine]) -> Machine:
    """End all leases, as a long pause of the store does; return the one that is back first."""
    first, *others = brokers
    for machine in brokers:
        machine.store.disconnect()
        machine.expire()
    first.store.connect()
    await eventually(lambda: first.broker.cluster.is_controller and alive(first) == {first.id})
    assert not any(alive(first) & {other.id} for other in others)
    return first


async def test_a_topic_waits_for_brokers_that_register_again(server, tmp_path):
    async with machines(server, tmp_path, 3) as brokers:
        first = await lose_all_leases(brokers)
        creation = asyncio.ensure_future(send_request(first.broker, three_replicas("t"), 7))
        for machine in brokers[1:]:
            machine.store.connect()
        (result,) = (await creation).topics
        assert (result.error_code, result.error_message) == (ErrorCode.NONE, None)
        replicas = first.broker.topics.image.topics["t"].replicas
        assert {*replicas[0]} == {0, 1, 2}


async def test_a_topic_is_to_be_created_again_while_brokers_are_awaited(server, tmp_path):
    async with machines(server, tmp_path, 3, broker_session_timeout_ms=2000) as brokers:
        first = await lose_all_leases(brokers)
        with pytest.raises(ApiError, match="1 brokers are alive, and 1, 2 not yet") as raised:
            first.controller.plan_topic("t", 1, {}, replication_factor=3)
        assert raised.value.code is ErrorCode.REQUEST_TIMED_OUT
        # The default factor is not that of the one broker that is back.
        with pytest.raises(ApiError, match="Replication factor 3"):
            first.controller.plan_topic("t", 1, {})
        # They did not return: they are down, and have the other replicas.
        (result,) = (await send_request(first.broker, three_replicas("t"), 7)).topics
        assert result.error_code == ErrorCode.NONE
        image = first.broker.topics.image
        state = image.partition_state(image.topics["t"], 0)
        assert (state.replicas[0], state.isr) == (first.id, (first.id,))
        assert sorted(first.controller.plan_topic("u", 1, {}).replicas[0]) == [0, 1, 2]
        for machine in brokers[1:]:
            machine.store.connect()


async def test_an_answer_that_is_lost_creates_a_topic_once(server, tmp_path):
    async with machines(server, tmp_path, 1) as (machine,):
        machine.store.lose_answers = 1
        assert await create(machine, "once") == (ErrorCode.NONE, None)
        entry = server.entries[b"topic/once"]
        assert entry.create_revision == entry.mod_revision
        assert machine.store.lose_answers == 0


async def test_a_deleted_topic_is_not_created_again_by_a_late_transaction(server, tmp_path):
    async with machines(server, tmp_path, 1) as (machine,):
        planned = machine.controller.plan_topic("t", 1, {})
        assert await machine.controller.create_topics([planned]) == [None]
        request = DeleteTopicsRequest(topic_names=["t"], timeout_ms=10_000)
        assert (await send_request(machine.broker, request, 5)).responses[0].error_code == 0
        (error,) = await machine.controller.create_topics([planned])
        assert isinstance(error, ApiError)
        assert b"topic/t" not in server.entries
        # Another topic of that name is another one.
        assert await create(machine, "t") == (ErrorCode.NONE, None)


async def test_more_topics_than_a_transaction_has_room_for(server, tmp_path):
    async with machines(server, tmp_path, 2) as (machine, other):
        names = [f"topic-{number:03}" for number in range(150)]
        plans = [machine.controller.plan_topic(name, 1, {}) for name in names]
        controller = machine if machine.broker.cluster.is_controller else other
        assert await controller.controller.create_topics(plans) == [None] * 150
        assert machine.topics == other.topics == set(names)


async def test_producer_ids_are_unique_over_brokers(server, tmp_path):
    async with machines(server, tmp_path, 3) as brokers:
        blocks = await asyncio.gather(
            *(one.controller.allocate_producer_ids() for one in brokers for _ in range(3))
        )
        ids = [number for block in blocks for number in block]
        assert len(set(ids)) == len(ids) == 9000
        assert 0 not in ids


async def test_changes_compacted_while_cut_off_are_loaded(server, tmp_path):
    async with machines(server, tmp_path, 2) as brokers:
        away = next(one for one in brokers if not one.broker.cluster.is_controller)
        other = next(one for one in brokers if one is not away)
        await create(other, "deleted-meanwhile")
        assert away.topics == {"deleted-meanwhile"}
        away.store.disconnect()
        away.expire()
        request = DeleteTopicsRequest(topic_names=["deleted-meanwhile"], timeout_ms=1000)
        await send_request(other.broker, request, 5)
        await create(other, "created-meanwhile")
        server.compact(server.revision)
        assert away.topics == {"deleted-meanwhile"}
        away.store.connect()
        await eventually(lambda: away.topics == {"created-meanwhile"})


class TestStoresThatWentBack:
    @pytest.mark.parametrize("other", ["older", "older and changed", "replaced", "empty"])
    async def test_they_are_refused(self, server, tmp_path, caplog, other):
        async with machines(server, tmp_path, 1) as (machine,):
            backup = dict(server.entries)
            assert await create(machine, "kept") == (ErrorCode.NONE, None)
        restored = MemoryStoreServer("another" if other == "replaced" else server.store_id)
        if other == "empty":
            restored.revision = server.revision + 100
        if other == "older and changed":
            restored.entries = {key: entry for key, entry in backup.items() if not entry.lease_id}
            restored.revision = restored.compact_revision = server.revision + 100
        machine.server = restored
        broker = await machine.start()
        try:
            assert machine.topics == {"kept"}
            assert broker.store_registration.broker_epoch == -1
            assert not broker.store_registration.within_fence_time()
            assert b"registration/0" not in restored.entries
            (record,) = [one for one in caplog.records if one.levelname == "ERROR"]
            assert "was replaced or restored from a backup" in record.reason
            code, _message = await create(machine, "refused")
            assert code in (ErrorCode.BROKER_NOT_AVAILABLE, ErrorCode.NOT_CONTROLLER)
            # The right one returns.
            machine.store._store_id = ""
            machine.store.connect(server)
            await eventually(lambda: not broker.store_registration.is_fenced)
        finally:
            await broker.stop()
        assert broker.logs.path.joinpath("kept-0").exists()

    async def test_keys_that_went_back_are_refused(self, server, tmp_path, caplog):
        """As of a backup that was used for a while: its revision is higher."""
        async with machines(server, tmp_path, 1) as (machine,):
            await create(machine, "t")
            backup = dict(server.entries)
            for number in range(3):
                await machine.controller.alter_topic_configs(
                    machine.broker.topics.image.topics["t"],
                    lambda _configs, number=number: {"retention.ms": f"{1000 + number}"},
                )
            configs = machine.broker.topics.image.topics["t"].configs
            restored = MemoryStoreServer()
            restored.entries, restored.revision = backup, server.revision + 100
            restored.compact_revision = restored.revision
            machine.store.connect(restored)
            await eventually(
                lambda: any("was replaced" in str(one.__dict__) for one in caplog.records)
            )
            assert machine.broker.topics.image.topics["t"].configs == configs
            machine.store.connect(server)


async def test_a_broker_starts_while_the_store_is_down(server, tmp_path):
    async with machines(server, tmp_path, 1) as (machine,):
        await create(machine, "kept")
    broker = await machine.start(is_connected=False)
    try:
        response = await send_request(broker, MetadataRequest(topics=None), 12)
        assert [topic.name for topic in response.topics] == ["kept"]
        machine.store.connect()
        await eventually(lambda: not broker.store_registration.is_fenced)
        assert await create(machine, "new") == (ErrorCode.NONE, None)
    finally:
        await broker.stop()


async def test_a_restart_takes_its_own_registration_over_at_once(server, tmp_path):
    async with machines(server, tmp_path, 1) as (machine,):
        registration = machine.broker.store_registration
        epoch = registration.broker_epoch
        for task in registration._tasks:  # As if killed: the lease is left.
            task.cancel()
        await asyncio.gather(*registration._tasks, return_exceptions=True)
        registration._lease_id = None
        await machine.broker.stop()
        assert server.entries[b"registration/0"].create_revision == epoch
        broker = await machine.start()
        assert broker.store_registration.broker_epoch > epoch
        assert not broker.store_registration.is_lossy


async def test_a_second_process_with_the_same_id_is_refused(server, tmp_path):
    async with machines(server, tmp_path, 1) as (machine,):
        rival = Machine(server, tmp_path / "rival", 0)
        with pytest.raises(DataDirectoryError, match="in use by another process"):
            await rival.start(broker_session_timeout_ms=2000)
        assert not machine.broker.store_registration.is_fenced


async def test_another_data_directory_is_lossy(server, tmp_path):
    async with machines(server, tmp_path, 1) as (machine,):
        await create(machine, "t")
        leader_epoch = machine.broker.topics.leader_epoch
    replaced = Machine(server, tmp_path / "new", 0)
    broker = await replaced.start()
    try:
        assert broker.store_registration.is_lossy
        assert broker.topics.image.registrations[0].is_lossy
        assert broker.topics.leader_epoch > leader_epoch
        assert replaced.topics == {"t"}
        # Keepalives go on while the disk that forgets it is slow.
        registration, is_fast = broker.store_registration, threading.Event()
        forget, fence_at = registration.forget_losses, registration._fence_at
        registration.forget_losses = lambda: forget() if is_fast.wait(30) else None
        await eventually(lambda: registration._fence_at > fence_at)
        assert registration.is_lossy
        is_fast.set()
        await eventually(lambda: not registration.is_lossy)
    finally:
        await broker.stop()


async def test_a_directory_of_a_static_cluster_is_refused_and_the_reverse(server, tmp_path):
    static = BrokerConfig(log_dir=str(tmp_path / "0"), listeners="PLAINTEXT://127.0.0.1:0")
    async with Broker(static) as broker:
        planned = broker.controller.plan_topic("t", 1, {})
        assert await broker.controller.create_topics([planned]) == [None]
    with pytest.raises(DataDirectoryError, match="without a metadata store"):
        await Machine(server, tmp_path, 0).start()
    async with machines(MemoryStoreServer(), tmp_path / "store", 1):
        pass
    static = BrokerConfig(log_dir=str(tmp_path / "store/0"), listeners="PLAINTEXT://127.0.0.1:0")
    with pytest.raises(DataDirectoryError, match=r"set cluster\.store"):
        await Broker(static).start()


async def test_another_cluster_id_in_the_store_is_refused(server, tmp_path):
    async with machines(server, tmp_path, 1):
        pass
    server.transact([], [Put(b"cluster", b'{"id":"other","version":1}')])
    with pytest.raises(DataDirectoryError, match="cluster"):
        await Machine(server, tmp_path, 0).start()


async def test_heartbeats_are_those_of_registered_brokers(server, tmp_path):
    async with machines(server, tmp_path, 2) as brokers:
        controller = next(one for one in brokers if one.broker.cluster.is_controller)
        other = next(one for one in brokers if one is not controller)
        epoch = other.broker.store_registration.broker_epoch
        for machine, broker_epoch, expected in (
            (controller, epoch, ErrorCode.NONE),
            (controller, epoch - 1, ErrorCode.STALE_BROKER_EPOCH),
            (other, epoch, ErrorCode.NOT_CONTROLLER),
        ):
            request = BrokerHeartbeatRequest(
                broker_id=other.id, broker_epoch=broker_epoch, current_metadata_offset=1
            )
            assert (await send_request(machine.broker, request, 0)).error_code == expected
