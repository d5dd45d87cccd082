"""A simulated cluster with a metadata store, whose partitions have three replicas."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from functools import cache
from random import Random
from typing import Any

from ottla.broker.broker import Broker
from ottla.broker.config.broker_config import BrokerConfig
from ottla.protocol.api import produce
from ottla.protocol.batch import build_batch

from .checks import Invariant, Violation
from .clients import CLIENT_ERRORS, PARTITIONS, TOPIC, Client
from .replica_checks import ReplicaChecks
from .replica_faults import REPLICA_FAULTS
from .store import SimulatedStore, SimulatedStoreServer
from .world import Machine, World

BROKER_IDS = (1, 2, 3)
_RECOVERY_SECONDS = 60.0


@cache
def _config(broker_id: int) -> BrokerConfig:
    return BrokerConfig.of(
        {
            "broker.id": str(broker_id),
            "log.dir": f"10.0.0.{broker_id}",
            "listeners": f"PLAINTEXT://10.0.0.{broker_id}:9092",
            "cluster.store": "etcd://unused:2379/test",
            "broker.session.timeout.ms": "2000",
            "controller.wait.ms": "1000",
            "replica.lag.time.max.ms": "800",
            "replica.fetch.wait.max.ms": "300",
            "replica.socket.timeout.ms": "1000",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "20",
            "group.min.session.timeout.ms": "1000",
        }
    )


class ReplicatedMachine(Machine):
    """A machine whose broker registers in the store."""

    store: SimulatedStore
    world: ReplicatedWorld

    def new_broker(self) -> Broker:
        self.store = SimulatedStore(self.world.server, self.world.network)
        if self.broker_id in self.world.cut_from_store:
            self.store.disconnect()
        return Broker(_config(self.broker_id), store=self.store)


class Producer(Client):
    """Produces records with acks=all, one at a time, to whoever accepts them."""

    def __init__(self, checks: ReplicaChecks, *args: Any) -> None:
        super().__init__(*args)
        self._checks = checks
        self._count = 0
        self._leaders: dict[int, int] = {}

    async def run(self) -> None:
        while True:
            index = self.random.randrange(PARTITIONS)
            with suppress(*CLIENT_ERRORS):
                await self._produce(index)
            await asyncio.sleep(self.random.random() * 0.1)

    async def _produce(self, index: int) -> None:
        self._count += 1
        value = b"<%d>" % self._count
        broker_id = self._leaders.pop(index, None) or self.any_broker()
        records = build_batch([(0, 1_800_000_000_000, None, value, ())])
        data = produce.PartitionProduceData(index=index, records=records)
        response = await self.send(
            broker_id,
            produce.ProduceRequest(
                acks=-1,
                timeout_ms=1000,
                topic_data=[produce.TopicProduceData(name=TOPIC, partition_data=[data])],
            ),
            produce.ProduceResponse,
            max_version=9,
        )
        (result,) = response.responses[0].partition_responses
        if result.error_code == 0:
            self._leaders[index] = broker_id
            self._checks.acked(TOPIC, index, result.base_offset, value)


class ReplicatedWorld(World):
    """One run with replicas. All brokers may be the controller; its loss is a crash like others."""

    faults = REPLICA_FAULTS
    # Of any machine, not of one: see `restore_copy`.
    restores_copies = False
    machines: dict[int, ReplicatedMachine]  # type: ignore[assignment]

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.server = SimulatedStoreServer(self.loop)
        self.cut_from_store: set[int] = set()
        #: The last machine that lost its power, and the broker epoch that it had.
        self.lossy: tuple[int, int] | None = None
        self.checks = ReplicaChecks()
        self.admin.replication_factor = len(BROKER_IDS)
        for machine in self.machines.values():
            machine.disk.has_replicas = True
        self.producers = [
            Producer(self.checks, [*BROKER_IDS], self.history, Random(self.random.random()))
            for _ in range(2)
        ]

    def _new_machines(self) -> dict[int, Any]:
        return {broker_id: ReplicatedMachine(self, broker_id) for broker_id in BROKER_IDS}

    def _free(self) -> None:
        self.server.wake()  # Its waiters are tasks of the brokers.
        for client in self._clients_to_run():
            client._connections.clear()
        for machine in self.machines.values():
            machine.__dict__.pop("store", None)
        super()._free()

    def cluster_id_of(self, path: str) -> str | None:
        return self.disks[path].cluster_id

    def _clients_to_run(self) -> list[Any]:
        return [self.admin, *self.members[:1], *self.producers]

    def is_in_sync(self) -> bool:
        """Whether all replicas of all partitions are in sync, as the store says."""
        states = self.checks.latest_states(self.server)
        return bool(states) and not self.checks.out_of_sync(self.server)

    def broker_epoch(self, broker_id: int) -> int:
        """Return the epoch of a broker's registration; 0 if there is none."""
        entry = self.server.entries.get(b"registration/%d" % broker_id)
        return 0 if entry is None else entry.create_revision

    def has_lossy_returned(self) -> bool:
        """Whether the last machine that lost its power is registered again, and was unfenced.

        It counts as lossy until it has forgotten that, at its next keepalive: if it is killed
        before, and the disk of another one is lost meanwhile, both may lack the same records.
        """
        if self.lossy is None:
            return True
        broker_id, epoch = self.lossy
        entry = self.server.entries.get(b"registration/%d" % broker_id)
        return (
            entry is not None
            and not self.machines[broker_id].disk.may_have_lost_records
            and entry.create_revision > epoch
            and json.loads(entry.value)["state"] == "up"
        )

    def may_lose_disk(self) -> bool:
        """Whether a disk may be lost now: as with power cuts, one at a time."""
        if not self.is_in_sync() or not self.has_lossy_returned():
            return False
        self.lossy = (self.controller.broker_id, self.broker_epoch(self.controller.broker_id))
        return True

    def heal_store(self) -> None:
        """Let all machines reach the store."""
        self.cut_from_store.clear()
        for machine in self.machines.values():
            if machine.broker is not None:
                machine.store.connect()

    def brokers(self) -> list[Broker]:
        """Return the brokers that serve, paused ones too."""
        return [one.broker for one in self.machines.values() if one.is_serving and one.broker]

    async def _recover(self) -> None:
        self.note("recovery")
        self.is_recovering = True
        self.network.heal()
        self.network.max_delay = 0.005
        self.heal_store()
        for machine in self.machines.values():
            machine.resume()
            machine.disk.repair()
        self._restart_failed()
        end = self.loop.time() + _RECOVERY_SECONDS
        before, acked = self.history.commit_count, self.checks.ack_count
        while self.loop.time() < end:
            await asyncio.sleep(0.1)
            self._check()
            self._restart_failed()
            if (
                len(self.brokers()) == len(self.machines)
                and self.is_in_sync()
                and self.history.commit_count > before
                and self.checks.ack_count > acked
            ):
                break
        else:
            raise Violation(
                Invariant.PROGRESS,
                f"no progress after the faults: {len(self.brokers())} brokers serve,"
                f" {self.history.commit_count - before} commits,"
                f" {self.checks.ack_count - acked} acks,"
                f" not in sync: {self.checks.out_of_sync(self.server)}",
            )
        self.checks.check_acked(self.brokers(), self.history.deletion_requested)

    def _check(self) -> None:
        for task in self._clients:
            if task.done():
                task.result()
        disks = {machine.broker_id: machine.disk for machine in self.machines.values()}
        self.checks.check_states(self.server)
        self.checks.check_leaders(disks)
        self.checks.check_truncations(disks)
        self.checks.check_replicas(self.brokers())
        self.history.check_disks(disks)
