"""Faults: each is a function of the world, which it breaks or repairs a little."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .disk import StoredDirectory

if TYPE_CHECKING:
    from .world import World


def nothing(_world: World) -> None:
    """Let the cluster run."""


def crash(world: World) -> None:
    """Kill a process."""
    world.random.choice(list(world.machines.values())).kill()


def cut_power(world: World) -> None:
    """Lose a machine's page cache, too."""
    world.random.choice(list(world.machines.values())).kill(power_cut=True)


def restart(world: World) -> None:
    """Start all machines that are down."""
    for machine in world.machines.values():
        if not machine.process.is_alive:
            machine.start()


def partition(world: World) -> None:
    """Separate two machines, or a machine and the clients."""
    hosts = [*(machine.host for machine in world.machines.values()), "10.0.1.1"]
    world.network.partitions.add(frozenset(world.random.sample(hosts, 2)))


def heal(world: World) -> None:
    """Let all machines reach each other."""
    world.network.heal()


def slow_network(world: World) -> None:
    """Delay bytes by up to a second, or no longer."""
    world.network.max_delay = world.random.choice((0.005, 0.005, 0.05, 0.3, 1.0))


def reset_connection(world: World) -> None:
    """Reset a connection, on both sides."""
    open_ones = [one for one in world.network.transports if not one.is_lost]
    if open_ones:
        transport = world.random.choice(open_ones)
        transport.reset()
        transport.peer.reset()


def jump_clock(world: World) -> None:
    """Set the wall clock of a machine."""
    machine = world.random.choice(list(world.machines.values()))
    machine.clock_offset += world.random.uniform(-3600, 3600)
    machine.process.clock_offset = machine.clock_offset


def back_up_controller(world: World) -> None:
    """Copy the controller's disk."""
    world.backup = world.controller.disk.copy()


def lose_controller(world: World) -> None:
    """In one of four worlds: wipe the controller's disk, or restore an older copy of it."""
    if world.seed % 4 or world.is_controller_lost:
        return
    world.controller.kill()
    world.history.lost_groups.update(
        member.group for member in world.members if member.coordinator == world.controller.broker_id
    )
    for machine in world.machines.values():
        if machine.is_serving and machine.broker is not None:
            world.history.controller_lost(machine.broker_id, machine.broker.topics.image)
    world.is_controller_lost = True
    backup, world.backup = world.backup, None
    world.controller.disk = backup or StoredDirectory()
    world.note("controller restored from a copy" if backup else "controller's disk wiped")


FAULTS = (
    *(nothing, crash, crash, cut_power, restart, restart, restart, partition, heal, heal),
    *(slow_network, reset_connection, jump_clock, back_up_controller, lose_controller),
)
