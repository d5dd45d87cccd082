"""Replicated rows 31 to 37: metadata, groups and clocks during failovers, rolling restarts."""

from __future__ import annotations

import time

from chaos.matrix import replicated_row
from chaos.replicated import ReplicatedBed, replicated
from chaos.replicated_cluster import ReplicatedBroker
from chaos.testbed import Run
from harness.daemon import Daemon
from harness.group_members import GroupMembers
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError


@replicated_row("31", "topics changed during failovers", "kills", short=1, normal=4, full=50)
def change_topics(run: Run) -> None:
    """Partitions are added, configs altered and topics made once each, or with an honest error."""
    made: dict[str, int] = {}
    with replicated(run) as bed, bed.load(run) as load:
        for cycle in run.cycles():
            bed.wait_for_isr()
            victim = bed.controller() if cycle % 2 == 0 else bed.leader()
            victim.kill()
            for number in range(4):
                name = f"made-{bed.topic}-{cycle}-{number}"
                factor = 2 + number % 2
                with bed.admin(8) as admin:
                    try:
                        admin.create_topic(name, partitions=2, replication_factor=factor)
                        made[name] = 2
                        admin.alter_topic_configs(name, {"retention.ms": "86400000"})
                        admin.create_partitions(name, total=4)
                        made[name] = 4
                    except (ClientError, KafkaError) as error:
                        run.note(f"{type(error).__name__}") if not run.figures.notes else None
                time.sleep(0.3)
            load.wait_for_acks()
            victim.start()
            with bed.admin(60) as admin:
                for name, count in made.items():
                    partitions = admin.describe_topics(name)[name].partitions
                    assert len(partitions) in (count, 4), (name, count, len(partitions))


@replicated_row("32", "group coordinator killed or paused", "faults", short=1, normal=4, full=50)
def lose_coordinator(run: Run) -> None:
    """The group goes on elsewhere; committed offsets do not go back."""
    with replicated(run) as bed, bed.load(run) as load:
        direct = ",".join(bed.direct_addresses)
        folder = run.folder / "group"
        with GroupMembers(
            direct, folder, f"g-{bed.topic}", bed.topic, assignors=["range"]
        ) as group:
            group.start("a", "confluent")
            group.start("b", "confluent")
            group.wait_until_consuming("a", "b")
            for cycle in run.cycles():
                with bed.admin() as admin:
                    described = admin.describe_groups(group.group)[group.group]
                coordinator = bed.brokers[described.coordinator]
                if cycle % 2:
                    coordinator.pause()
                    time.sleep(2 * bed.session_seconds)
                    coordinator.resume()
                else:
                    coordinator.kill()
                    time.sleep(run.random.uniform(0.0, 2.0))
                    coordinator.start()
                group.wait_for_commits(3)
                load.wait_for_acks()
            group.stop()
            assert not group.events.problems, group.events.problems[:3]
            with bed.admin() as admin:
                offsets = admin.list_group_offsets(group.group)
            for tp, stored in offsets.items():
                acked = group.events.committed.get(tp.partition, 0)
                assert stored.offset >= acked, f"{tp}: {stored.offset} committed, acked {acked}"


@replicated_row("33", "ack lost with the leader", "times", short=1, normal=5, full=100)
def lose_acks(run: Run) -> None:
    """Idempotent producers retry at the new leader, which has their batches: one copy."""
    with replicated(run) as bed, bed.load(run) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            leader = bed.leader(run.random.randrange(3))
            leader.clients.cut("answers")
            time.sleep(run.random.uniform(0.1, 0.5))
            leader.kill()
            leader.clients.heal()
            leader.clients.reset()
            bed.wait_for_other_leaders(leader)
            load.wait_for_acks()
            leader.start()


@replicated_row("34", "clocks jump by hours", "jumps", short=1, normal=5, full=50)
def jump_clocks(run: Run) -> None:
    """No election by itself, and nothing is lost."""
    with replicated(run) as bed, bed.load(run, may_fail=False) as load:
        epochs = bed.leader_epochs()
        for _ in run.cycles():
            broker = run.random.choice(bed.brokers)
            broker.set_clock(run.random.choice((-7200.0, 7200.0, 86400.0)))
            load.wait_for_acks()
            time.sleep(run.random.uniform(0.0, bed.session_seconds))
            broker.set_clock(0.0)
            load.wait_for_acks()
        assert bed.leader_epochs() == epochs


@replicated_row(
    "35", "event loop blocked for longer than the lease", "times", short=1, normal=3, full=30
)
def block_loop(run: Run) -> None:
    """The lease is lost, as it should be; the broker returns as a follower."""
    with replicated(run) as bed, bed.load(run) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            leader = bed.leader(run.random.randrange(3))
            leader.stall(5 * bed.session_seconds, every=3600.0)
            bed.wait_for_other_leaders(leader)
            load.wait_for_acks()
            bed.wait_for_isr()
            leader.heal()


@replicated_row(
    "36", "rolling restart of brokers, then of etcd", "rounds", short=1, normal=2, full=20
)
def restart_all(run: Run) -> None:
    """Clients see no error."""
    with replicated(run, members=3) as bed, bed.load(run, may_fail=False) as load:
        for _ in run.cycles():
            for broker in bed.brokers:
                bed.wait(bed.is_in_sync, "all in sync", 120.0)
                assert broker.stop() == 0, broker.log_tail()
                broker.start()
                load.wait_for_acks()
            for member in bed.etcd:
                member.kill()
                load.wait_for_acks()
                member.start()
                bed.etcd.wait_until_writable()


@replicated_row("37", "two brokers with one id", "times", short=1, normal=2, full=10)
def use_id_twice(run: Run) -> None:
    """The second is refused while the first lives."""
    with replicated(run) as bed, bed.load(run) as load:
        for cycle in run.cycles():
            broker = run.random.choice(bed.brokers)
            rival = _rival(run, bed, broker, cycle)
            rival.launch()
            try:
                assert rival.wait() != 0
                assert "in use by another process" in rival.log.read_text()
            finally:
                rival.kill()
            load.wait_for_acks()
            assert broker.is_working


def _rival(run: Run, bed: ReplicatedBed, broker: ReplicatedBroker, cycle: int) -> Daemon:
    seconds = round(bed.session_seconds * 1000)
    return Daemon(
        run.folder / f"rival-{cycle}",
        *("--id", str(broker.number), "--set", f"cluster.store={bed.etcd.url}"),
        *("--set", f"broker.session.timeout.ms={seconds}", "--set", "controller.wait.ms=1000"),
    )
