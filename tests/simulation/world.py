"""A cluster of simulated machines: real brokers, whose clocks, network and disks are simulated."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import random as random_module
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any
from unittest.mock import patch

from ottla.broker import broker as broker_module
from ottla.broker.broker import Broker
from ottla.broker.cluster.liveness import BrokerLiveness
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.net import server as server_module
from ottla.storage.errors import DataDirectoryError

from .checks import History, Violation
from .clients import Admin, Member
from .disk import SimulatedLogDirectory, StoredDirectory
from .faults import FAULTS
from .loop import Process, VirtualLoop
from .network import Network, SimulatedSocket

BROKER_IDS = [1, 2, 3]
CONTROLLER = 1
GROUPS = ["g1", "g2"]
_FAULT_SECONDS = 20.0
_RECOVERY_SECONDS = 60.0


class Machine:
    """A machine: its disk, and the broker that runs on it."""

    def __init__(self, world: World, broker_id: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.host = f"10.0.0.{broker_id}"
        self.disk = StoredDirectory()
        self.broker: Broker | None = None
        self.is_serving = False
        self.process = Process(self.host)
        self.process.is_alive = False
        self.clock_offset = 0.0

    def start(self) -> None:
        """Start the broker in a new process."""
        self.process = Process(self.host)
        self.process.clock_offset = self.clock_offset
        self.is_serving = False
        self.world.disks[self.host] = self.disk
        self.world.loop.spawn(self.process, self._run(self.process))

    async def _run(self, process: Process) -> None:
        brokers = ",".join(f"{broker_id}@10.0.0.{broker_id}:9092" for broker_id in BROKER_IDS)
        config = BrokerConfig(
            broker_id=self.broker_id,
            log_dir=self.host,
            cluster_id="simulation",
            cluster_brokers=brokers,
            broker_session_timeout_ms=3000,
            controller_wait_ms=2000,
            offsets_topic_num_partitions=6,
            group_initial_rebalance_delay_ms=100,
        )
        self.broker = broker = Broker(config)
        try:
            await broker.start()
        except (DataDirectoryError, OSError) as error:
            self.world.note(f"broker {self.broker_id} did not start: {error}")
            self.kill()
            return
        self.is_serving = True
        self.world.note(
            f"broker {self.broker_id} serves, leader epoch {broker.topics.leader_epoch}"
        )
        if broker.failed is not None:
            await broker.failed
            self.world.note(f"broker {self.broker_id} failed")
            if process.is_alive:
                self.kill()

    def kill(self, *, power_cut: bool = False) -> None:
        """End the process at once; a power cut loses what was not fsynced."""
        if not self.process.is_alive:
            return
        self.process.is_alive = False
        self.is_serving = False
        if power_cut:
            self.disk.cut_power(self.world.random)
        self.world.network.reset_connections(self.process, 3.0 if power_cut else 0.0)


class World:
    """One run: machines, clients, and the faults between them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)
        self.loop = VirtualLoop(Random(self.random.random()))
        self.network = self.loop.network = Network(self.loop, Random(self.random.random()))
        self.history = History()
        self.disks: dict[str, StoredDirectory] = {}
        self.machines = {broker_id: Machine(self, broker_id) for broker_id in BROKER_IDS}
        self.controller = self.machines[CONTROLLER]
        #: Whether the controller has lost metadata: it must not be followed.
        self.is_controller_lost = False
        self.backup: StoredDirectory | None = None
        self.events: list[str] = []
        self._clients: list[asyncio.Task[Any]] = []
        process = Process("10.0.1.1")
        self.admin = Admin(BROKER_IDS, self.history, Random(self.random.random()))
        self.members = [
            Member(group, BROKER_IDS, self.history, Random(self.random.random()))
            for group in GROUPS
            for _ in range(2)
        ]
        self.client_process = process

    def note(self, event: str) -> None:
        """Record an event, for whoever looks at a violation."""
        self.events.append(f"{self.loop.time() - 1000:8.3f}  {event}")

    def run(self) -> None:
        """Run to the end. Raises Violation."""
        with simulated(self):
            try:
                self.loop.run_until_complete(self._run())
            finally:
                self._free()

    def _free(self) -> None:
        """Free all processes, while what their cleanup does has no effect."""
        self.loop.finish()
        self.network.transports.clear()
        self.network.listening.clear()
        self._clients.clear()
        for machine in self.machines.values():
            machine.broker = None
        gc.collect()

    async def _run(self) -> None:
        for machine in self.machines.values():
            machine.start()
        await asyncio.sleep(1.0)
        await self._spawn_until_done(self._create_first_topic())
        for client in (self.admin, *self.members):
            self._clients.append(self.loop.spawn(self.client_process, client.run()))
        end = self.loop.time() + _FAULT_SECONDS
        while self.loop.time() < end:
            await asyncio.sleep(self.random.random() * 4)
            self._check()
            fault = self.random.choice(FAULTS)
            self.note(f"fault: {fault.__name__}")
            fault(self)
            self._check()
        await self._recover()

    async def _create_first_topic(self) -> None:
        while not await self.admin.create("t"):
            await asyncio.sleep(0.2)

    async def _spawn_until_done(self, coroutine: Any) -> None:
        await asyncio.wait_for(self.loop.spawn(self.client_process, coroutine), 30)

    async def _recover(self) -> None:
        """End all faults; the cluster must come to rest, and groups make progress."""
        self.note("recovery")
        self.network.heal()
        self.network.max_delay = 0.005
        for machine in self.machines.values():
            if not machine.process.is_alive:
                machine.start()
        end = self.loop.time() + _RECOVERY_SECONDS
        before, is_done = self.history.commit_count, False
        while self.loop.time() < end and not is_done:
            await asyncio.sleep(1.0)
            self._check()
            # A broker that refused to start, because of the session of its previous process.
            for machine in self.machines.values():
                if not machine.process.is_alive:
                    machine.start()
            is_done = (
                all(member.is_stable for member in self.members)
                and self.history.commit_count > before + 20
                and all(machine.is_serving for machine in self.machines.values())
                and self._is_metadata_complete()
            )
        if not is_done and not self.is_controller_lost:
            unstable = [member.group for member in self.members if not member.is_stable]
            self._check_metadata()
            raise Violation(
                f"no progress after the faults: members of {unstable} not stable,"
                f" {self.history.commit_count - before} commits"
            )
        self._check_metadata()

    def _live(self) -> Iterator[Machine]:
        return (machine for machine in self.machines.values() if machine.is_serving)

    def _followed(self) -> Iterator[Machine]:
        """The brokers whose metadata must be complete."""
        return (m for m in self._live() if not (self.is_controller_lost and m is self.controller))

    def _is_metadata_complete(self) -> bool:
        try:
            self._check_metadata()
        except Violation:
            return False
        return True

    def _check_metadata(self) -> None:
        for machine in self._followed():
            assert machine.broker is not None
            image = machine.broker.topics.image
            if self.is_controller_lost:
                self.history.check_kept(machine.broker_id, image)
            else:
                self.history.check_topics(machine.broker_id, image)

    def _check(self) -> None:
        """Check what must hold at any time."""
        for task in self._clients:
            if task.done():
                task.result()
        for machine in self._live():
            broker = machine.broker
            assert broker is not None
            if machine is not self.controller or not self.is_controller_lost:
                self.history.leads(
                    machine.broker_id, broker.topics.leader_epoch, broker.cluster.incarnation
                )
        self.history.check_disks(
            {
                machine.broker_id: machine.disk
                for machine in self.machines.values()
                if not (self.is_controller_lost and machine is self.controller)
            }
        )


@contextmanager
def simulated(world: World) -> Iterator[None]:
    """Replace clocks, random numbers, sockets and data directories by those of a world."""
    loop, random = world.loop, Random(world.random.random())
    SimulatedLogDirectory.disks = world.disks
    SimulatedLogDirectory.random = Random(world.random.random())
    with ExitStack() as stack:
        for target, name, value in (
            (time, "time", loop.wall_time),
            (time, "monotonic", loop.time),
            (os, "urandom", random.randbytes),
            (secrets, "randbelow", random.randrange),
            (random_module, "random", random.random),
            (server_module, "socket", _SocketModule),
            (broker_module, "LogDirectory", SimulatedLogDirectory),
            (broker_module, "read_cluster_id", lambda _path: "simulation"),
            (sys, "unraisablehook", lambda _error: None),
        ):
            stack.enter_context(patch.object(target, name, value))
        defaults = BrokerLiveness.__init__.__defaults__
        BrokerLiveness.__init__.__defaults__ = (loop.time,)
        stack.callback(setattr, BrokerLiveness.__init__, "__defaults__", defaults)
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, logging.NOTSET)
        gc.disable()
        stack.callback(gc.enable)
        yield


class _SocketModule:
    AF_INET = AF_INET6 = SOCK_STREAM = SOL_SOCKET = SO_REUSEADDR = 0
    socket = SimulatedSocket
