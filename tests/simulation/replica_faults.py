"""Faults of clusters with replicas, besides those of `faults`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .faults import (
    crash,
    heal,
    jump_clock,
    nothing,
    partition,
    reset_connection,
    restart,
    slow_network,
)

if TYPE_CHECKING:
    from .replicated_world import ReplicatedWorld


def cut_power(world: ReplicatedWorld) -> None:
    """Lose a machine's page cache: of one at a time, while all replicas are in sync.

    Two brokers have what is acknowledged with acks=all; the loss of both loses records.
    """
    if not world.is_in_sync() or not world.has_lossy_returned():
        return
    machine = world.random.choice(list(world.machines.values()))
    world.lossy = (machine.broker_id, world.broker_epoch(machine.broker_id))
    machine.kill(power_cut=True)
    if world.random.random() < 0.5:
        # It starts, and ends again before it has registered, or while it does.
        machine.start()
        world.loop.call_later(world.random.random() * 0.3, machine.kill)


def pause(world: ReplicatedWorld) -> None:
    """Stop a process as SIGSTOP does; it goes on later, and does not notice."""
    machine = world.random.choice(list(world.machines.values()))
    machine.pause()
    world.loop.call_later(world.random.random() * 5.0, machine.resume)


def cut_one_way(world: ReplicatedWorld) -> None:
    """Hold back what one machine sends to another."""
    one, other = world.random.sample([machine.host for machine in world.machines.values()], 2)
    world.network.one_way.add((one, other))


def cut_store(world: ReplicatedWorld) -> None:
    """Cut a machine off from the store."""
    machine = world.random.choice(list(world.machines.values()))
    world.cut_from_store.add(machine.broker_id)
    if machine.broker is not None:
        machine.store.disconnect()


def heal_store(world: ReplicatedWorld) -> None:
    """Let all machines reach the store."""
    world.heal_store()


def end_lease(world: ReplicatedWorld) -> None:
    """End the lease of a broker, although it is kept alive: leases decide nothing."""
    machine = world.random.choice(list(world.machines.values()))
    entry = world.server.entries.get(b"registration/%d" % machine.broker_id)
    if entry is not None:
        world.server.end_lease(entry.lease_id)


def stop_controller(world: ReplicatedWorld) -> None:
    """Kill the controller, or pause it until another one is."""
    entry = world.server.entries.get(b"active-controller")
    for machine in world.machines.values():
        registration = world.server.entries.get(b"registration/%d" % machine.broker_id)
        if entry and registration and registration.lease_id == entry.lease_id:
            if world.random.random() < 0.5:
                machine.kill()
            else:
                machine.pause()
                world.loop.call_later(1.0 + world.random.random() * 4.0, machine.resume)


REPLICA_FAULTS = (
    *(nothing, crash, crash, crash, cut_power, cut_power, cut_power, restart, restart, restart),
    *(partition, partition, heal, heal, cut_one_way, slow_network, reset_connection, jump_clock),
    *(pause, pause, cut_store, cut_store, heal_store, end_lease, end_lease, stop_controller),
)
