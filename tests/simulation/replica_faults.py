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
    from .disk import StoredDirectory
    from .replicated_world import ReplicatedMachine, ReplicatedWorld


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


def restore_copy(world: ReplicatedWorld) -> None:
    """Stop a machine and copy its disk; put the copy back when it has run again for a while."""
    machine = world.random.choice(list(world.machines.values()))
    epoch = world.broker_epoch(machine.broker_id)
    if epoch and machine.is_serving:
        machine.kill()
        copy = machine.disk.copy()
        machine.start()
        _put_back_later(world, machine, epoch, copy)


def _put_back_later(
    world: ReplicatedWorld, machine: ReplicatedMachine, epoch: int, copy: StoredDirectory
) -> None:
    """Replace a disk by its copy, once the broker has registered since `epoch`.

    As with power cuts, of one machine at a time: the copy lacks what was acknowledged since.
    """

    def put_back() -> None:
        if world.is_recovering:
            return
        current = world.broker_epoch(machine.broker_id)
        if current > epoch and world.is_in_sync() and world.has_lossy_returned():
            world.note(f"disk of broker {machine.broker_id} replaced by an older copy")
            world.lossy = (machine.broker_id, current)
            machine.kill()
            machine.disk = copy
            machine.start()
            if world.random.random() < 0.5:
                # The others are away for longer than their leases: could it be elected?
                for other in world.machines.values():
                    if other is not machine:
                        other.kill()
                        _end_lease_of(world, other)
                        world.loop.call_later(0.5, _start, other)
        else:
            _put_back_later(world, machine, epoch, copy)

    world.loop.call_later(0.1 + world.random.random() * 0.4, put_back)


def _start(machine: ReplicatedMachine) -> None:
    if not machine.process.is_alive:
        machine.start()


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
    _end_lease_of(world, world.random.choice(list(world.machines.values())))


def _end_lease_of(world: ReplicatedWorld, machine: ReplicatedMachine) -> None:
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
    *(restore_copy, restore_copy, restore_copy),
    *(partition, partition, heal, heal, cut_one_way, slow_network, reset_connection, jump_clock),
    *(pause, pause, cut_store, cut_store, heal_store, end_lease, end_lease, stop_controller),
)
