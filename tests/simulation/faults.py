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
    # Brokers reject records that are an hour ahead of their clock.
    machine.clock_offset = world.random.uniform(-3500, 3500)
    machine.process.clock_offset = machine.clock_offset


def lose_controller(world: World) -> None:
    """Wipe the controller's disk, or restore an older copy of it."""
    if world.random.random() < 0.4:
        _replace_controller_disk(world, StoredDirectory(), "controller's disk wiped")
        return
    if not world.restores_copies:
        return
    backup = world.controller.disk.copy()
    world.note("controller's disk copied")
    delay = world.random.random() * 0.8
    note = "controller's disk replaced by the copy"
    world.loop.call_later(delay, _replace_controller_disk, world, backup, note)


def _replace_controller_disk(world: World, disk: StoredDirectory, note: str) -> None:
    if world.is_controller_lost or world.is_recovering or not world.may_lose_disk():
        return
    world.controller.kill()
    controller_id = world.controller.broker_id
    world.history.lost |= {
        *(member.group for member in world.members if member.coordinator == controller_id),
        *(one.transactional_id for one in world.transactors if one.coordinator == controller_id),
    }
    for machine in world.machines.values():
        if machine.is_serving and machine.broker is not None:
            world.history.controller_lost(machine.broker_id, machine.broker.topics.image)
    world.is_controller_lost = True
    world.controller.disk = disk
    world.note(note)
    if world.random.random() < 0.7:
        world.controller.start()


def fail_fsyncs(world: World) -> None:
    """Have the next fsyncs of a machine fail."""
    machine = world.random.choice(list(world.machines.values()))
    machine.disk.failing_fsyncs = world.random.randint(1, 2)


def tear_writes(world: World) -> None:
    """Have the next writes of a machine fail in the middle."""
    machine = world.random.choice(list(world.machines.values()))
    machine.disk.failing_writes = world.random.randint(1, 3)


def fill_disk(world: World) -> None:
    """Fill the disk of a machine, or free space on all."""
    disks = [machine.disk for machine in world.machines.values()]
    if any(disk.is_full for disk in disks):
        for disk in disks:
            disk.is_full = False
    else:
        world.random.choice(disks).is_full = True


FAULTS = (
    *(nothing, crash, crash, cut_power, restart, restart, restart, partition, heal, heal),
    *(slow_network, reset_connection, jump_clock),
    *(fail_fsyncs, tear_writes, fill_disk, fill_disk),
)
