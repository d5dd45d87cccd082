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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from random import Random
from typing import Any
from unittest.mock import patch

from ottla.broker import broker as broker_module
from ottla.broker.broker import Broker
from ottla.broker.cluster.incarnations import BrokerIncarnations
from ottla.broker.cluster.liveness import BrokerLiveness
from ottla.broker.cluster.store_registration import StoreRegistration
from ottla.broker.config.broker_config import BrokerConfig
from ottla.broker.net import server as server_module
from ottla.broker.requests.dispatch import SUPPORTED_APIS
from ottla.client.connection import BrokerConnection
from ottla.storage.errors import DataDirectoryError

from .checks import History, Invariant, Violation
from .clients import CLIENT_ERRORS, TOPIC, Admin, Member, Transactor
from .disk import SimulatedLogDirectory, StoredDirectory
from .faults import FAULTS, lose_controller
from .loop import Process, VirtualLoop
from .network import Network, SimulatedSocket

CONTROLLER = 1
_START_SECONDS = 5.0
_RECOVERY_SECONDS = 60.0
_LOST_SECONDS = 2.0
#: Between two faults.
_MAX_PAUSE_SECONDS = 1.0


@cache
def _config(broker_id: int, broker_ids: tuple[int, ...]) -> BrokerConfig:
    return BrokerConfig(
        broker_id=broker_id,
        log_dir=f"10.0.0.{broker_id}",
        cluster_id="simulation",
        cluster_brokers=",".join(f"{one}@10.0.0.{one}:9092" for one in broker_ids),
        broker_session_timeout_ms=1000,
        controller_wait_ms=1000,
        offsets_topic_num_partitions=3,
        transaction_state_log_num_partitions=3,
        group_initial_rebalance_delay_ms=20,
        group_min_session_timeout_ms=1000,
    )


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
        self.broker = broker = self.new_broker()
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

    def new_broker(self) -> Broker:
        """Return the broker of a new process."""
        return Broker(_config(self.broker_id, tuple(self.world.machines)))

    def pause(self) -> None:
        """Stop the process, with everything that it would do."""
        if self.process.is_alive and self.process.paused is None:
            self.process.paused = []

    def resume(self) -> None:
        """Let a paused process go on."""
        if self.process.is_alive and self.process.paused is not None:
            self.world.loop.resume(self.process)

    @property
    def has_offline_logs(self) -> bool:
        """Whether a disk error has taken a log offline, so that the broker has to be restarted."""
        logs = self.broker.logs.logs.values() if self.is_serving and self.broker else ()
        return any(log.offline_reason is not None for log in logs)

    def kill(self, *, power_cut: bool = False) -> None:
        """End the process at once; a power cut loses what was not fsynced."""
        if not self.process.is_alive:
            return
        self.process.is_alive = False
        self.is_serving = False
        if power_cut:
            self.disk.cut_power(self.world.random)
        self.world.network.reset_connections(self.process, 1.0 if power_cut else 0.0)


class World:
    """One run: machines, clients, and the faults between them."""

    faults: Sequence[Callable[[Any], None]] = FAULTS

    def __init__(self, seed: int, *, loses_controller: bool = False) -> None:
        self.seed = seed
        self._loses_controller = loses_controller
        self.random = Random(seed)
        self.loop = VirtualLoop(Random(self.random.random()))
        self.network = self.loop.network = Network(self.loop, Random(self.random.random()))
        self.history = History()
        self.disks: dict[str, StoredDirectory] = {}
        self.machines = self._new_machines()
        broker_ids = [*self.machines]
        self.controller = self.machines[CONTROLLER]
        #: Whether the controller has lost metadata: it must not be followed.
        self.is_controller_lost = False
        self.is_recovering = False
        self.events: list[str] = []
        self._clients: list[asyncio.Task[Any]] = []
        self.client_process = Process("10.0.1.1")

        def client_options() -> tuple[list[int], History, Random]:
            return broker_ids, self.history, Random(self.random.random())

        self.admin = Admin(*client_options())
        groups = self.random.choice((["g1"], ["g1"], ["g1", "g1"], ["g1", "g2"]))
        self.members = [Member(group, *client_options()) for group in groups]
        ids = ["x1"] if self.random.random() < 0.3 else []
        self.transactors = [Transactor(one, *client_options()) for one in ids]

    def _new_machines(self) -> dict[int, Machine]:
        # Worlds differ in what there is, so that each is small, and all together have everything.
        broker_ids = [1, 2] if self.random.random() < 0.75 else [1, 2, 3]
        return {broker_id: Machine(self, broker_id) for broker_id in broker_ids}

    def cluster_id_of(self, _path: str) -> str | None:
        """Return the cluster id in a data directory."""
        return "simulation"

    def _clients_to_run(self) -> list[Any]:
        return [self.admin, *self.members, *self.transactors]

    def note(self, event: str) -> None:
        """Record an event, for whoever looks at a violation."""
        self.events.append(f"{self.loop.time() - 1000:8.3f}  {event}")

    def run(self) -> None:
        """Run to the end. Raises Violation."""
        violation: Violation | None = None
        with simulated(self):
            try:
                self.loop.run_until_complete(self._run())
            except Violation as error:
                # Without the frames, which would keep brokers.
                violation = error.with_traceback(None)
                violation.__context__ = None
            finally:
                self._free()
        if violation is not None:
            raise violation

    def _free(self) -> None:
        """Free all processes, while what their cleanup does has no effect."""
        self.loop.finish()
        self.loop.errors.clear()
        self.network.transports.clear()
        self.network.listening.clear()
        self._clients.clear()
        for machine in self.machines.values():
            machine.broker = None
        gc.collect()

    async def _run(self) -> None:
        # The controller first, so that the others need not try again.
        for machine in self.machines.values():
            machine.start()
            await asyncio.sleep(0.02)
        await self._spawn_until_done(self._create_first_topic())
        for client in self._clients_to_run():
            self._clients.append(self.loop.spawn(self.client_process, client.run()))
        count = self.random.randint(3, 8)
        # Little is promised about a cluster that has lost it: only in some worlds.
        is_lost = self.random.random() < 0.2 or self._loses_controller
        lost_at = self.random.randrange(count) if is_lost else None
        for number in range(count):
            await asyncio.sleep(self.random.random() ** 2 * _MAX_PAUSE_SECONDS)
            self._check()
            fault = lose_controller if number == lost_at else self.random.choice(self.faults)
            self.note(f"fault: {fault.__name__}")
            fault(self)
            self._check()
        await self._recover()

    async def _create_first_topic(self) -> None:
        while True:
            with suppress(*CLIENT_ERRORS):
                is_serving = all(machine.is_serving for machine in self.machines.values())
                if is_serving and await self.admin.create(TOPIC):
                    return
            await asyncio.sleep(0.02)

    async def _spawn_until_done(self, coroutine: Any) -> None:
        await asyncio.wait_for(self.loop.spawn(self.client_process, coroutine), _START_SECONDS)

    async def _recover(self) -> None:
        """End all faults; the cluster must come to rest, and groups make progress."""
        self.note("recovery")
        self.is_recovering = True
        self.network.heal()
        self.network.max_delay = 0.005
        for machine in self.machines.values():
            machine.disk.repair()
        self._restart_failed()
        # Without the metadata that it has lost, a cluster does not come to rest.
        seconds = _LOST_SECONDS if self.is_controller_lost else _RECOVERY_SECONDS
        end = self.loop.time() + seconds
        before, is_done = self.history.commit_count, False
        while self.loop.time() < end and not is_done:
            await asyncio.sleep(0.1)
            self._check()
            self._restart_failed()
            is_done = (
                all(member.is_stable for member in self.members)
                and self.history.commit_count > before
                and all(machine.is_serving for machine in self.machines.values())
                and self._is_metadata_complete()
            )
        if not is_done and not self.is_controller_lost:
            unstable = [member.group for member in self.members if not member.is_stable]
            self._check_metadata()
            raise Violation(
                Invariant.PROGRESS,
                f"no progress after the faults: members of {unstable} not stable,"
                f" {self.history.commit_count - before} commits",
            )
        self._check_metadata()

    def _restart_failed(self) -> None:
        """Do what an operator does.

        Start the brokers that are down, also because of the session of their previous process, and
        restart those with logs that a disk error took offline.
        """
        for machine in self.machines.values():
            if machine.has_offline_logs:
                machine.kill()
            if not machine.process.is_alive:
                machine.start()

    #: Whether a disk may be replaced by an older copy of it.
    restores_copies = True

    def may_lose_disk(self) -> bool:
        """Whether the disk of the controller may be lost now."""
        return True

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
        disks = {
            machine.broker_id: machine.disk
            for machine in self.machines.values()
            if not (self.is_controller_lost and machine is self.controller)
        }
        if self.controller.is_serving and not self.is_controller_lost:
            assert self.controller.broker is not None
            self.history.check_topics(CONTROLLER, self.controller.broker.topics.image)
        self.history.check_leaders(disks)
        self.history.check_disks(disks)


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
            (broker_module, "read_cluster_id", lambda path: world.cluster_id_of(str(path))),
            (BrokerConnection, "_fetch_api_versions", _know_api_versions),
            (sys, "unraisablehook", lambda _error: None),
        ):
            stack.enter_context(patch.object(target, name, value))
        for method in (
            BrokerLiveness.__init__,
            BrokerIncarnations.__init__,
            StoreRegistration.__init__,
        ):
            stack.callback(setattr, method, "__defaults__", method.__defaults__)
            method.__defaults__ = (loop.time,)
        logging.disable(logging.CRITICAL)
        stack.callback(logging.disable, logging.NOTSET)
        gc.disable()
        stack.callback(gc.enable)
        yield


async def _know_api_versions(connection: BrokerConnection) -> None:
    """Save a request per connection, and the largest response of all."""
    connection.versions = _VERSIONS
    connection._framer.max_bytes = connection._config.max_response_bytes


_VERSIONS = {
    key: (api.advertised.first, api.advertised.last) for key, api in SUPPORTED_APIS.items()
}


class _SocketModule:
    AF_INET = AF_INET6 = SOCK_STREAM = SOL_SOCKET = SO_REUSEADDR = 0
    socket = SimulatedSocket
