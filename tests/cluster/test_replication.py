"""Replicated partitions of three brokers in one process, on a metadata store in memory."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from harness.command import Command
from harness.logs import NOW, a_batch
from harness.metrics import collected, sample
from harness.requests import (
    create_topics_request,
    fetch_partition,
    offset_for_time,
    produce_batch,
    produce_code,
    produce_request,
    produce_results,
    send_request,
)
from harness.waiting import eventually
from ottla.broker import Broker, BrokerConfig
from ottla.broker.cluster.store.memory_store import MemoryStore, MemoryStoreServer
from ottla.broker.partitions.partition import Partition, Role
from ottla.client import Admin, Consumer, Producer
from ottla.coord.partition_state import PartitionState
from ottla.protocol.api.metadata import MetadataRequest
from ottla.protocol.api.unregister_broker import UnregisterBrokerRequest
from ottla.protocol.errors import ErrorCode
from ottla.storage.disk import Disk

LATEST = -1


class Replicas:
    """Brokers 0 to 2, each of which can be stopped and started."""

    def __init__(self, folder: Path, **configs: str) -> None:
        self.folder = folder
        self.server = MemoryStoreServer()
        self.configs = {name.replace("_", "."): value for name, value in configs.items()}
        self.brokers: dict[int, Broker] = {}
        self.stores: dict[int, MemoryStore] = {}
        self.disks: dict[int, Disk] = {}

    async def start(self, *broker_ids: int, is_connected: bool = True) -> None:
        for broker_id in broker_ids:
            config = BrokerConfig.of(
                {
                    "broker.id": str(broker_id),
                    "log.dir": str(self.folder / str(broker_id)),
                    "broker.rack": f"rack-{broker_id}",
                    "listeners": "PLAINTEXT://127.0.0.1:0",
                    "cluster.store": "etcd://unused:2379/test",
                    "offsets.topic.num.partitions": "2",
                    "transaction.state.log.num.partitions": "2",
                    "replica.lag.time.max.ms": "400",
                    "replica.fetch.wait.max.ms": "100",
                    **self.configs,
                }
            )
            self.stores[broker_id] = MemoryStore(self.server)
            if not is_connected:
                self.stores[broker_id].disconnect()
            store, disk = self.stores[broker_id], self.disks.get(broker_id)
            broker = Broker(config, store=store, disk=disk)
            await broker.start()
            self.brokers[broker_id] = broker
        if not is_connected:
            return
        await eventually(
            lambda: all(one.cluster.alive >= {*self.brokers} for one in self.brokers.values())
        )

    async def stop(self, *broker_ids: int) -> None:
        for broker_id in broker_ids:
            await self.brokers.pop(broker_id).stop()

    async def create(self, name: str, partitions: int = 1, factor: int = 3, **configs: str) -> None:
        request = create_topics_request(name, partitions, **configs)
        request = type(request)(
            topics=[
                type(topic)(
                    **{field: getattr(topic, field) for field in topic.fields}
                    | {"replication_factor": factor}
                )
                for topic in request.topics
            ],
            timeout_ms=30_000,
        )
        response = await send_request(self.any, request)
        assert response.topics[0].error_code == 0, response.topics[0].error_message

    @property
    def any(self) -> Broker:
        return next(iter(self.brokers.values()))

    def state(self, topic: str, index: int = 0) -> PartitionState:
        """Return the stored state."""
        image = self.any.topics.image
        key = f"partition/{image.topics[topic].id}/{index}".encode()
        return PartitionState.from_json(self.server.entries[key].value)

    def leader(self, topic: str, index: int = 0) -> Broker:
        return self.brokers[self.state(topic, index).leader]

    def replica(self, broker_id: int, topic: str, index: int = 0) -> Partition:
        topics = self.brokers[broker_id].topics
        followed = topics.followed(topic, index)
        return topics.find(topic, index) if followed is None else followed

    async def until_in_sync(self, topic: str, index: int = 0, count: int = 3) -> None:
        """Wait until the ISR is complete, and all replicas have and know the same."""

        def is_in_sync() -> bool:
            state = self.state(topic, index)
            if len(state.isr) != count or not state.has_leader:
                return False
            replicas = [self.replica(broker_id, topic, index) for broker_id in state.isr]
            ends = {(one.log.end_offset, one.high_watermark) for one in replicas}
            return len(ends) == 1 and all(one.state == state for one in replicas)

        await eventually(is_in_sync)


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Replicas]:
    async with asyncio.timeout(60):
        replicas = Replicas(tmp_path)
        await replicas.start(0, 1, 2)
        yield replicas
        await replicas.stop(*replicas.brokers)
        # Connections that were being accepted at the end see that their peer is gone.
        await asyncio.sleep(0.05)


def log_bytes(partition: Partition) -> bytes:
    return b"".join(bytes(one.read(0, one.size)) for one in partition.log.segments)


async def produce(cluster: Replicas, topic: str, count: int = 1, **batch: Any) -> int:
    return await produce_batch(cluster.leader(topic), topic, count, **batch)


async def values(cluster: Replicas, topic: str, count: int) -> list[bytes]:
    found = []
    bootstrap = ",".join(one.address for one in cluster.brokers.values())
    async with Consumer(bootstrap, topic) as consumer:
        while len(found) < count:
            found.append(bytes((await anext(aiter(consumer))).value or b""))
    return found


async def test_all_replicas_have_the_same_bytes(cluster: Replicas) -> None:
    await cluster.create("t", 3)
    for index in range(3):
        for _ in range(5):
            await produce_batch(cluster.leader("t", index), "t", 4, partition=index)
    leaders = {cluster.state("t", index).leader for index in range(3)}
    assert leaders == {0, 1, 2}
    for index in range(3):
        await cluster.until_in_sync("t", index)
        replicas = [cluster.replica(broker_id, "t", index) for broker_id in range(3)]
        # A replica in the ISR may lag by replica.lag.time.max.ms.
        await eventually(lambda replicas=replicas: len({*map(log_bytes, replicas)}) == 1)
        assert log_bytes(replicas[0])


async def test_metadata_has_leaders_replicas_and_isr(cluster: Replicas) -> None:
    await cluster.create("t", 1, factor=2)
    state = cluster.state("t")
    await cluster.until_in_sync("t", count=2)
    for broker in cluster.brokers.values():
        response = await send_request(broker, MetadataRequest(topics=None))
        (topic,) = (one for one in response.topics if one.name == "t")
        (partition,) = topic.partitions
        assert partition.leader_id == state.leader
        assert tuple(partition.replica_nodes) == state.replicas
        assert set(partition.isr_nodes) == set(state.isr)
        assert not partition.offline_replicas


async def test_metadata_names_no_leader_that_is_not_among_the_brokers(cluster: Replicas) -> None:
    await cluster.create("t", 3)
    controller = next(one.id for one in cluster.brokers.values() if one.cluster.is_controller)
    index = next(index for index in range(3) if cluster.state("t", index).leader != controller)
    leader = cluster.leader("t", index)
    (other,) = (one for one in cluster.brokers if one not in (controller, leader.id))
    lease_id = leader.store_registration._lease_id
    assert lease_id is not None

    # Nobody elects another leader yet.
    for broker_id in (controller, leader.id):
        cluster.stores[broker_id].disconnect()
    cluster.server.end_lease(lease_id)

    await eventually(lambda: leader.id not in cluster.brokers[other].cluster.alive)
    response = await send_request(cluster.brokers[other], MetadataRequest(topics=None))
    assert leader.id not in {broker.node_id for broker in response.brokers}
    (found,) = (one for one in response.topics[0].partitions if one.partition_index == index)
    assert (found.error_code, found.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert cluster.state("t", index).leader == leader.id
    for broker_id in (controller, leader.id):
        cluster.stores[broker_id].connect()


async def test_a_factor_above_the_number_of_brokers_is_refused(cluster: Replicas) -> None:
    with pytest.raises(AssertionError, match="Invalid replication factor 4: 3 brokers are alive"):
        await cluster.create("t", factor=4)


async def test_a_follower_refuses_producers_and_old_consumers(cluster: Replicas) -> None:
    await cluster.create("t")
    leader = cluster.state("t").leader
    follower = cluster.brokers[(leader + 1) % 3]
    await eventually(lambda: follower.topics.followed("t", 0))
    assert await produce_code(follower, "t", 0) == ErrorCode.NOT_LEADER_OR_FOLLOWER
    # Later versions may read from followers.
    data = await fetch_partition(follower, "t", 0, version=10)
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_stopped_leader_hands_over_and_loses_nothing(cluster: Replicas) -> None:
    await cluster.create("t")
    for number in range(10):
        await produce(cluster, "t", value=b"%d" % number)
    before = cluster.state("t")
    await cluster.stop(before.leader)
    after = cluster.state("t")
    assert after.leader in before.isr
    assert after.leader != before.leader
    assert after.leader_epoch == before.leader_epoch + 1
    await produce(cluster, "t", value=b"10")
    assert await values(cluster, "t", 11) == [b"%d" % number for number in range(11)]
    await cluster.start(before.leader)
    await cluster.until_in_sync("t")
    assert log_bytes(cluster.replica(before.leader, "t")) == log_bytes(
        cluster.replica(after.leader, "t")
    )


async def test_a_leader_that_lost_its_lease_leads_no_more(cluster: Replicas) -> None:
    await cluster.create("t")
    await produce(cluster, "t")
    before = cluster.state("t")
    old = cluster.brokers[before.leader]
    lease_id = old.store_registration._lease_id
    assert lease_id is not None
    cluster.server.end_lease(lease_id)
    await eventually(lambda: cluster.state("t").leader_epoch > before.leader_epoch)
    await cluster.until_in_sync("t")
    await produce(cluster, "t")
    await cluster.until_in_sync("t")
    assert {cluster.replica(one, "t").log.end_offset for one in range(3)} == {2}


async def test_fetches_from_before_a_pause_do_not_show_that_a_broker_leads(
    cluster: Replicas,
) -> None:
    await cluster.create("t")
    await cluster.until_in_sync("t")
    leader = cluster.leader("t")
    partition, replicas = leader.topics.find("t", 0), leader.replicas
    assert replicas is not None
    assert partition.progress is not None
    # Its lease may have ended.
    leader.store_registration._fence_at = 0.0
    session_ms = int(leader.cluster.session_seconds * 1000)
    for lag_ms, may_lead in ((session_ms // 3, True), (session_ms * 2 // 3, False)):
        now_ms = int(time.monotonic() * 1000)
        for broker_id, fetch in list(partition.progress.fetches.items()):
            fetched = fetch._replace(previous_at_ms=now_ms - lag_ms, session=None)
            partition.progress._fetches[broker_id] = fetched
        assert replicas.may_lead(partition) is may_lead


async def test_followers_that_do_not_fetch_leave_the_isr(cluster: Replicas) -> None:
    await cluster.create("t")
    await produce(cluster, "t")
    leader = cluster.leader("t")
    others = [broker for broker in cluster.brokers.values() if broker is not leader]
    for broker in others:
        assert broker.replicas is not None
        await broker.replicas._fetchers[leader.id].stop()
    await eventually(lambda: len(cluster.state("t").isr) == 1)
    state = cluster.state("t")
    # Both leave together: the ISR suffices for neither, so both stay eligible.
    assert (state.leader, state.isr) == (leader.id, (leader.id,))
    assert set(state.elr) == {broker.id for broker in others}
    await eventually(lambda: leader.topics.find("t", 0).is_under_min_isr)
    assert await produce_code(leader, "t", 0) == ErrorCode.NOT_ENOUGH_REPLICAS
    # acks=1 is accepted, and not visible.
    message = produce_request(a_batch(), topic="t", partition=0, acks=1)
    (result,) = produce_results(await send_request(leader, message))
    assert (result.error_code, result.base_offset) == (0, 1)
    assert (await fetch_partition(leader, "t", 0)).high_watermark == 1
    for broker in others:
        assert broker.replicas is not None
        del broker.replicas._fetchers[leader.id]
        broker.replicas._leaders.clear()
        broker.replicas.role_changed(cluster.replica(broker.id, "t"))
    await cluster.until_in_sync("t")
    assert cluster.state("t").leader_epoch == state.leader_epoch
    assert (await fetch_partition(leader, "t", 0)).high_watermark == 2
    assert await produce_code(leader, "t", 0) == ErrorCode.NONE


async def test_waiting_producers_fail_when_the_isr_becomes_too_small(cluster: Replicas) -> None:
    await cluster.create("t")
    leader = cluster.leader("t")
    others = [broker for broker in cluster.brokers.values() if broker is not leader]
    for broker in others:
        assert broker.replicas is not None
        await eventually(lambda broker=broker: leader.id in broker.replicas._fetchers)
        await broker.replicas._fetchers[leader.id].stop()
    code = await produce_code(leader, "t", 0)
    assert code in (
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    )


async def test_a_follower_that_restarts_without_its_high_watermark_keeps_its_records(
    cluster: Replicas, tmp_path: Path
) -> None:
    # KIP-101: truncating to the high watermark would lose what is committed.
    await cluster.create("t")
    for _ in range(5):
        await produce(cluster, "t", 2)
    leader = cluster.state("t").leader
    follower = (leader + 1) % 3
    await cluster.stop(follower)
    (tmp_path / str(follower) / "high-watermark").write_text(json.dumps({"t-0": 0}))
    await cluster.start(follower)
    await cluster.until_in_sync("t")
    third = next(one for one in cluster.brokers if one not in (leader, follower))
    await cluster.stop(third)
    await cluster.stop(leader)
    await eventually(lambda: cluster.state("t").leader == follower)
    assert cluster.replica(follower, "t").log.end_offset == 10
    await cluster.start(leader, third)
    await cluster.until_in_sync("t")
    assert (await fetch_partition(cluster.leader("t"), "t", 0)).high_watermark == 10


async def test_a_retry_after_a_failover_finds_its_batch(cluster: Replicas) -> None:
    await cluster.create("t")
    batch = {"producer_id": 7, "producer_epoch": 0, "base_sequence": 0}
    offset = await produce(cluster, "t", 3, **batch)
    await cluster.stop(cluster.state("t").leader)
    # The ack was lost with the leader: the producer sends the same batch to the next one.
    assert await produce(cluster, "t", 3, **batch) == offset
    assert (await fetch_partition(cluster.leader("t"), "t", 0)).high_watermark == 3


async def test_records_of_a_deposed_leader_are_truncated(cluster: Replicas) -> None:
    await cluster.create("t")
    await produce(cluster, "t", 2)
    await cluster.until_in_sync("t")
    before = cluster.state("t")
    old = cluster.brokers[before.leader]
    # Records that the leader alone has, in an epoch that ends.
    partition = old.topics.find("t", 0)
    for broker in cluster.brokers.values():
        if broker is not old:
            assert broker.replicas is not None
            broker.replicas._fetchers[old.id].remove((broker.topics.image.topics["t"].id, 0))
    partition.log.append(a_batch(3), leader_epoch=partition.leader_epoch, now_ms=NOW)
    assert partition.log.end_offset == 5
    await cluster.stop(old.id)
    await produce(cluster, "t", 1, value=b"other")
    await cluster.start(old.id)
    await cluster.until_in_sync("t")
    replica = cluster.replica(old.id, "t")
    assert replica.log.end_offset == 3
    assert log_bytes(replica) == log_bytes(cluster.replica(cluster.state("t").leader, "t"))


async def test_a_broker_with_a_lost_disk_copies_everything_before_it_counts(
    cluster: Replicas, tmp_path: Path
) -> None:
    await cluster.create("t")
    for _ in range(10):
        await produce(cluster, "t", 5)
    lost = next(one for one in range(3) if one != cluster.state("t").leader)
    await cluster.stop(lost)
    (tmp_path / str(lost)).rename(tmp_path / "gone")
    await cluster.start(lost)
    await cluster.until_in_sync("t")
    replica = cluster.replica(lost, "t")
    assert replica.role is Role.FOLLOWER
    assert log_bytes(replica) == log_bytes(cluster.replica(cluster.state("t").leader, "t"))


async def test_the_last_leader_that_lost_its_disk_is_not_elected(
    cluster: Replicas, tmp_path: Path
) -> None:
    await cluster.create("t")
    await produce(cluster, "t", 5)
    leader = cluster.state("t").leader
    others = [one for one in range(3) if one != leader]
    await cluster.stop(*others)
    await eventually(lambda: cluster.state("t").isr == (leader,))
    elr = cluster.state("t").elr
    assert elr
    await cluster.stop(leader)
    (tmp_path / str(leader)).rename(tmp_path / "gone")
    await cluster.start(leader)
    await eventually(lambda: not cluster.state("t").has_leader)
    assert (cluster.state("t").isr, cluster.state("t").elr) == ((), elr)
    # A member of the ELR has everything that was acked.
    await cluster.start(elr[0])
    await eventually(lambda: cluster.state("t").leader == elr[0])
    assert cluster.replica(elr[0], "t").log.end_offset == 5


async def test_the_store_is_away(cluster: Replicas) -> None:
    await cluster.create("t")
    for store in cluster.stores.values():
        store.disconnect()
    for number in range(5):
        await produce(cluster, "t", value=b"%d" % number)
    for store in cluster.stores.values():
        store.connect()
    await cluster.until_in_sync("t")
    assert await values(cluster, "t", 5) == [b"%d" % number for number in range(5)]


async def test_a_broker_that_starts_without_the_store_leads_nothing_that_others_may_lead(
    cluster: Replicas,
) -> None:
    await cluster.create("t")
    await cluster.create("alone", factor=1)
    await produce(cluster, "t")
    await produce(cluster, "alone")
    leader = cluster.state("t").leader
    alone = cluster.state("alone").leader
    await cluster.stop(leader)
    await eventually(lambda: cluster.state("t").leader not in (leader, -1))
    await produce(cluster, "t")
    cluster.configs["controller.wait.ms"] = "200"
    await cluster.start(leader, is_connected=False)
    topics = cluster.brokers[leader].topics
    # Its metadata may be old, and name it as the leader.
    assert not topics.led_partitions(topics.image.topics["t"])
    assert bool(topics.led_partitions(topics.image.topics["alone"])) is (alone == leader)
    cluster.stores[leader].connect()
    await cluster.until_in_sync("t")
    assert cluster.replica(leader, "t").log.end_offset == 2


async def test_a_new_leader_does_not_guess_the_end(cluster: Replicas) -> None:
    await cluster.create("t")
    await produce(cluster, "t", 2)
    await cluster.until_in_sync("t")
    leader = cluster.leader("t")
    partition = leader.topics.find("t", 0)
    assert partition.progress is not None
    partition.progress.epoch_start_offset = 3
    answer = await offset_for_time(leader, "t", LATEST)
    assert answer.error_code == ErrorCode.OFFSET_NOT_AVAILABLE


async def test_fsynced_topics_are_fsynced_on_all_in_sync_replicas(cluster: Replicas) -> None:
    await cluster.create("t", durability="fsync")
    await produce(cluster, "t", 3)
    state = cluster.state("t")
    recovery_points = [cluster.replica(one, "t").log.recovery_point for one in state.isr]
    assert recovery_points == [3, 3, 3]


async def test_a_deleted_topic_is_deleted_on_all_replicas(
    cluster: Replicas, tmp_path: Path
) -> None:
    await cluster.create("t")
    await produce(cluster, "t")
    async with Admin(cluster.any.address) as admin:
        await admin.delete_topics("t")
    await eventually(
        lambda: not any((tmp_path / str(broker_id) / "t-0").exists() for broker_id in range(3))
    )
    assert not [key for key in cluster.server.entries if key.startswith(b"partition/")]
    await cluster.create("t")
    assert await produce(cluster, "t") == 0


async def test_a_group_goes_on_at_another_coordinator(cluster: Replicas) -> None:
    await cluster.create("t")
    for number in range(10):
        await produce(cluster, "t", value=b"%d" % number)
    bootstrap = ",".join(one.address for one in cluster.brokers.values())
    async with Consumer(bootstrap, "t", group="readers") as consumer:
        stream = aiter(consumer)
        for number in range(4):
            assert (await anext(stream)).value == b"%d" % number
        await consumer.commit()
        index = cluster.any.groups.partition_index_of("readers")
        coordinator = cluster.state("__consumer_offsets", index).leader
        await cluster.stop(coordinator)
        await anext(stream)
        await consumer.commit()
    bootstrap = ",".join(one.address for one in cluster.brokers.values())
    async with Consumer(bootstrap, "t", group="readers") as consumer:
        assert (await anext(aiter(consumer))).value == b"5"


async def test_a_transaction_is_committed_by_another_coordinator(cluster: Replicas) -> None:
    await cluster.create("t", 3)
    bootstrap = ",".join(one.address for one in cluster.brokers.values())
    async with Producer(bootstrap, transactional_id="billing") as producer:
        async with producer.transaction():
            await producer.send("t", b"first", partition=0)
        index = cluster.any.transactions.partition_index_of("billing")
        coordinator = cluster.state("__transaction_state", index).leader
        async with producer.transaction():
            await producer.send("t", b"second", partition=1)
            await cluster.stop(coordinator)
            await producer.send("t", b"third", partition=2)
    bootstrap = ",".join(one.address for one in cluster.brokers.values())
    found = set()
    async with Consumer(bootstrap, "t", isolation="read_committed") as consumer:
        while len(found) < 3:
            found.add((await anext(aiter(consumer))).value)
    assert found == {b"first", b"second", b"third"}


async def test_operators_see_replicas_and_brokers(cluster: Replicas, tmp_path: Path) -> None:
    await cluster.create("t", 3)
    await cluster.create("u", factor=2)
    for index in range(3):
        await cluster.until_in_sync("t", index)
    home = str(tmp_path / "home")

    async def run(*arguments: str) -> Any:
        return await asyncio.to_thread(Command(cluster.any.address, home).json, *arguments)

    assert await run("topic", "describe", "--under-replicated", "--offline") == []
    before = await run("cluster", "describe")
    assert [one["state"] for one in before["brokers"]] == ["up"] * 3
    assert before["controller"] in (0, 1, 2)
    (whole,) = await run("topic", "describe", "t")
    for index, row in enumerate(whole["partitions"]):
        state = cluster.state("t", index)
        assert (row["leader"], row["leader_epoch"]) == (state.leader, state.leader_epoch)
        assert (tuple(row["replicas"]), tuple(row["isr"])) == (state.replicas, state.isr)
        assert row["elr"] == []

    await cluster.stop(1)
    # Below min.insync.replicas, replicas that leave stay eligible.
    await cluster.stop(2)
    survivor = cluster.brokers[0].topics.image
    await eventually(
        lambda: all(
            one.leader == 0 for one in survivor.partition_states[UUID(whole["id"])].values()
        )
    )
    (found,) = await run("topic", "describe", "t", "--under-replicated")
    for index, row in enumerate(found["partitions"]):
        state = cluster.state("t", index)
        assert (row["leader"], row["isr"]) == (0, [0])
        assert tuple(row["elr"]) == state.elr != ()
    after = await run("cluster", "describe")
    assert [(one["broker"], one["state"]) for one in after["brokers"]] == [
        (0, "up"),
        (1, "down"),
        (2, "down"),
    ]
    assert after["controller"] == 0
    assert before["under_min_isr_partitions"] == before["partitions_with_eligible_leaders"] == 0
    for kind in (
        "under_replicated_partitions",
        "under_min_isr_partitions",
        "partitions_with_eligible_leaders",
    ):
        assert after[kind] >= 3, kind
    (member,) = after["store_members"]
    assert member["state"] == "unreachable"
    # The replicas of u may all be down.
    offline = await run("topic", "describe", "--offline")
    leaderless = [] if cluster.state("u").has_leader else ["u"]
    assert [one["topic"] for one in offline] == leaderless


async def test_metrics_of_the_metadata_store(cluster: Replicas) -> None:
    broker = cluster.brokers[0]

    def value(name: str, *brokers: Broker) -> float:
        return sum(collected(one)[sample(name)] for one in brokers or (broker,))

    assert value("ottla_metadata_store_reachable") == 1
    assert value("ottla_broker_fenced") == 0
    assert value("ottla_active_controller", *cluster.brokers.values()) == 1
    cluster.stores[0].disconnect()
    await eventually(lambda: value("ottla_metadata_store_reachable") == 0)
    assert value("ottla_metadata_store_failed_keepalives_total") >= 1
    cluster.stores[0].connect()
    await eventually(lambda: value("ottla_metadata_store_reachable") == 1)


async def test_metrics_of_replication(cluster: Replicas) -> None:
    await cluster.create("t")
    await produce(cluster, "t", 3)
    leader = cluster.state("t").leader
    follower = (leader + 1) % 3
    await cluster.stop(follower)
    await eventually(lambda: len(cluster.state("t").isr) == 2)
    await eventually(lambda: cluster.leader("t").topics.find("t", 0).state == cluster.state("t"))
    of_leader = collected(cluster.leader("t"))
    other = (leader + 2) % 3
    of_follower = collected(cluster.brokers[other])

    assert of_leader[sample("ottla_under_replicated_partitions")] >= 1
    assert of_leader[sample("ottla_under_min_isr_partitions")] == 0
    assert of_leader[sample("ottla_at_min_isr_partitions")] >= 1
    assert of_leader[sample("ottla_leaderless_partitions")] == 0
    # The controller has taken it out, because it has left.
    assert of_leader[sample("ottla_isr_changes_total", change="shrunk")] == 0
    assert of_leader[sample("ottla_replica_lag_records", topic="t", partition=0, broker=other)] == 0
    sent = of_leader[sample("ottla_topic_replication_bytes_out_total", topic="t")]
    assert sent >= of_leader[sample("ottla_topic_bytes_in_total", topic="t")] > 0
    assert of_follower[sample("ottla_replica_fetch_duration_seconds_count", leader=leader)] > 0
    received = of_follower[sample("ottla_topic_replication_bytes_in_total", topic="t")]
    assert received == of_leader[sample("ottla_topic_bytes_in_total", topic="t")]


async def test_topics_created_while_a_broker_is_down_get_replicas_on_it(cluster: Replicas) -> None:
    await cluster.stop(2)
    await eventually(lambda: 2 not in cluster.any.topics.image.registrations)
    await cluster.create("t", 2)
    # Its coordinator's topic is created, too.
    bootstrap = ",".join(one.address for one in cluster.brokers.values())
    await produce_batch(cluster.leader("t"), "t")
    async with Consumer(bootstrap, "t", group="g") as consumer:
        await anext(aiter(consumer))
        await consumer.commit()
    for topic, index in (("t", 0), ("t", 1), ("__consumer_offsets", 0), ("__consumer_offsets", 1)):
        state = cluster.state(topic, index)
        assert state.replicas[2] == 2
        assert {state.leader} < {*state.isr} == {0, 1}
    assert {cluster.state("t", index).leader for index in range(2)} == {0, 1}

    await cluster.start(2)
    for topic in ("t", "__consumer_offsets"):
        await cluster.until_in_sync(topic, 1)


async def test_a_broker_that_is_gone_for_good_gets_no_replicas(cluster: Replicas) -> None:
    await cluster.create("t", factor=3)
    running = await send_request(cluster.any, UnregisterBrokerRequest(broker_id=2))
    assert (running.error_code, running.error_message) == (
        ErrorCode.INVALID_REQUEST,
        "Broker 2 is running: stop it first",
    )
    await cluster.stop(2)
    await eventually(lambda: 2 not in cluster.any.topics.image.registrations)
    with_replicas = await send_request(cluster.any, UnregisterBrokerRequest(broker_id=2))
    assert with_replicas.error_code == ErrorCode.INVALID_REQUEST
    assert "replicas of 1 partitions" in with_replicas.error_message
    async with Admin(cluster.any.address) as admin:
        await admin.delete_topics("t")

    assert (await send_request(cluster.any, UnregisterBrokerRequest(broker_id=2))).error_code == 0

    unknown = await send_request(cluster.any, UnregisterBrokerRequest(broker_id=2))
    assert unknown.error_code == ErrorCode.BROKER_ID_NOT_REGISTERED
    with pytest.raises(AssertionError, match="replication factor 3"):
        await cluster.create("t", factor=3)


async def test_a_leader_cut_off_from_the_store_sends_clients_away(
    tmp_path: Path,
) -> None:
    cluster = Replicas(tmp_path, broker_session_timeout_ms="2000")
    await cluster.start(0, 1, 2)
    await cluster.create("t")
    await produce(cluster, "t")
    await cluster.until_in_sync("t")
    before = cluster.state("t")
    old = cluster.brokers[before.leader]
    lease_id = old.store_registration._lease_id
    assert lease_id is not None

    cluster.stores[old.id].disconnect()
    cluster.server.end_lease(lease_id)
    await eventually(lambda: cluster.state("t").leader not in (old.id, -1))
    # A record that the followers do not fetch any more.
    waiting = asyncio.ensure_future(produce_code(old, "t", 0))

    async def leaders(broker: Broker) -> list[tuple[int, int]]:
        response = await send_request(broker, MetadataRequest(topics=None))
        return [
            (partition.error_code, partition.leader_id)
            for topic in response.topics
            for partition in topic.partitions
        ]

    unknown = [(ErrorCode.LEADER_NOT_AVAILABLE, -1)]
    async with asyncio.timeout(20):
        while await leaders(old) != unknown:
            await asyncio.sleep(0.05)
    not_leader = ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert await waiting == not_leader
    assert await produce_code(old, "t", 0) == not_leader
    assert (await fetch_partition(old, "t", 0, offset=1)).error_code == not_leader
    # What is committed is.
    assert (await fetch_partition(old, "t", 0)).records
    cluster.stores[old.id].connect()
    await cluster.until_in_sync("t")
    assert await leaders(old) == [(0, cluster.state("t").leader)]
    # While the store is away from all brokers, nobody else can be elected.
    for store in cluster.stores.values():
        store.disconnect()
    leader = cluster.leader("t")
    await eventually(lambda: not leader.store_registration.within_fence_time())
    assert await leaders(leader) == [(0, leader.id)]
    for store in cluster.stores.values():
        store.connect()
    await cluster.stop(0, 1, 2)
    await asyncio.sleep(0.05)
