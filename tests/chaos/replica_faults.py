"""Replicated rows 17 to 29: restarts, lost disks, power cuts, and what logs diverge by."""

from __future__ import annotations

import errno
import time
from itertools import permutations

from chaos.matrix import replicated_row
from chaos.observers import when
from chaos.replicated import ReplicatedBed, replicated
from chaos.replicated_cluster import ReplicatedBroker
from chaos.testbed import Run
from harness.replicas import log_bytes
from ottla.client.blocking.consumer import Consumer
from ottla.client.blocking.producer import Producer
from ottla.client.errors import LogTruncationError
from ottla.client.types import TopicPartition

_LOSSES = ("replicas are missing", "partition logs are missing")
_DISK_ERRORS = (
    ("write", errno.EIO),
    ("write", errno.ENOSPC),
    ("sync", errno.EIO),
    ("resize", errno.EIO),
)
_UNCLEAN = ("unclean leader elected",)


@replicated_row(
    "17", "KIP-101: follower restarts, then the leader dies", "times", short=1, normal=5, full=100
)
def restart_follower_then_kill_leader(run: Run) -> None:
    """The follower does not know the high watermark yet: it must not truncate to what it knows."""
    with replicated(run) as bed, bed.load(run) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            leader = bed.leader(run.random.randrange(3))
            follower = run.random.choice([one for one in bed.brokers if one is not leader])
            load.wait_for_acks()
            follower.kill()
            follower.start()
            leader.kill()
            bed.wait_for_other_leaders(leader)
            load.wait_for_acks()
            leader.start()


@replicated_row("18", "KIP-101: both of two replicas restart", "times", short=1, normal=5, full=100)
def restart_both(run: Run) -> None:
    """With min.insync.replicas=1; the one that is behind is up first, and must not lead."""
    configs = {"replication_factor": "2", "min_insync_replicas": "1"}
    with replicated(run) as bed, bed.load(run, partitions=1, **configs) as load:
        for _ in run.cycles():
            bed.wait(bed.is_in_sync, "both in sync")
            leader = bed.leader()
            state = bed.state()
            (number,) = set(state.replicas) - {leader.number}
            follower = bed.brokers[number]
            follower.kill()
            bed.wait(lambda: len(bed.state().isr) == 1, "an ISR of one")
            load.wait_for_acks()
            leader.kill()
            follower.start()
            assert not when(lambda one=follower: bed.state().leader == one.number, 1.0)
            leader.start()
            bed.wait(bed.is_in_sync, "both in sync")
            for broker in (leader, follower):
                broker.kill()
            follower.launch()
            leader.launch()
            load.wait_for_acks(seconds=120)


@replicated_row(
    "19", "KIP-279: elections in a row, unclean ones too", "times", short=1, normal=5, full=100
)
def elect_in_a_row(run: Run) -> None:
    """Records may be lost; the replicas must agree on the others."""
    configs = {"unclean_leader_election_enable": "true", "min_insync_replicas": "1"}
    with (
        replicated(run) as bed,
        bed.load(run, may_lose=True, may_log=_UNCLEAN, **configs) as load,
    ):
        for _ in run.cycles():
            acked = load.acked
            for broker in run.random.sample(bed.brokers, 3):
                broker.kill()
                time.sleep(run.random.choice((0.0, 0.1, bed.session_seconds)))
            for broker in run.random.sample(bed.brokers, 3):
                broker.launch()
                time.sleep(run.random.choice((0.0, 0.1, bed.session_seconds)))
            when(lambda acked=acked: load.acked > acked + 50, 10.0)


@replicated_row(
    "21", "KIP-320: a broker without a registration fetches", "cuts", short=1, normal=3, full=50
)
def fetch_without_registration(run: Run) -> None:
    """It is fenced by its epoch, and never joins the ISR."""
    with replicated(run) as bed, bed.load(run, partitions=1) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            follower = run.random.choice(bed.followers())
            bed.isolate(follower, peers=False)
            bed.wait_for_isr(follower)
            number = follower.number
            assert not when(lambda number=number: number in bed.state().isr, bed.session_seconds)
            load.wait_for_acks()
            bed.links.heal()


@replicated_row("22", "KIP-903: a follower loses its disk", "disks", short=1, normal=5, full=50)
def lose_disk(run: Run) -> None:
    """It has just qualified for the ISR: it joins only after a full copy."""
    with replicated(run) as bed, bed.load(run, partitions=1, may_log=_LOSSES) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            follower = run.random.choice(bed.followers())
            follower.kill()
            bed.wait_for_isr(follower)
            follower.start()
            time.sleep(run.random.uniform(0.0, 0.3))
            follower.kill()
            follower.wipe()
            follower.start()
            load.wait_for_acks()
            bed.wait_for_isr()
            leader = bed.leader()
            leader.kill()
            bed.wait_for_other_leaders(leader)
            load.wait_for_acks()
            leader.start()


@replicated_row(
    "23", "KIP-966: last replica standing loses its power", "cuts", short=1, normal=3, full=20
)
def cut_power_of_last_replica(run: Run) -> None:
    """It comes back first, and is not elected: the followers that it outlived have all acks."""
    with (
        replicated(run, with_power=True) as bed,
        bed.load(run, partitions=1, may_log=_LOSSES) as load,
    ):
        for _ in run.cycles():
            bed.wait_for_isr()
            leader, followers = bed.leader(), bed.followers()
            load.wait_for_acks()
            for follower in followers:
                follower.kill()
            bed.wait_for_isr(*followers)
            bed.cut_power(leader)
            leader.start()
            assert not when(lambda: bed.state().has_leader, 2 * bed.session_seconds), bed.state()
            for follower in followers:
                follower.start()
            load.wait_for_acks()


@replicated_row("24", "power cut of all, durability=fsync", "cuts", short=1, normal=2, full=20)
def cut_power_of_all(run: Run) -> None:
    with (
        replicated(run, with_power=True) as bed,
        bed.load(run, durability="fsync", may_log=(*_LOSSES, *_UNCLEAN)) as load,
    ):
        for _ in run.cycles():
            bed.wait_for_isr()
            load.wait_for_acks()
            bed.cut_power(*bed.brokers)
            for broker in bed.brokers:
                broker.launch()
            with bed.admin() as admin:
                # Committed offsets are in page caches: as in row 24p.
                for topic in admin.list_topics(internal=True):
                    if topic.name != bed.topic:
                        unclean = {"unclean.leader.election.enable": "true"}
                        admin.alter_topic_configs(topic.name, unclean)
            bed.wait(bed.is_in_sync, "all in sync", 120.0)
            load.wait_for_acks(seconds=120)


@replicated_row(
    "24p", "power cut of all, durability=page-cache", "cuts", short=1, normal=2, full=10
)
def cut_power_of_page_caches(run: Run) -> None:
    """Nobody is elected until an operator allows it, because acked records may be lost."""
    with (
        replicated(run, with_power=True) as bed,
        bed.load(
            run, may_lose=True, durability="page-cache", may_log=(*_LOSSES, *_UNCLEAN)
        ) as load,
    ):
        for _ in run.cycles():
            bed.wait_for_isr()
            bed.cut_power(*bed.brokers)
            for broker in bed.brokers:
                broker.launch()
            # Until the leases end, the states are those from before.
            bed.wait(lambda: not bed.state().has_leader, "no leader")
            assert not when(lambda: bed.state().has_leader, 3 * bed.session_seconds), bed.state()
            load.stop(timeout=1)
            with bed.admin() as admin:
                for name in [topic.name for topic in admin.list_topics(internal=True)]:
                    admin.alter_topic_configs(name, {"unclean.leader.election.enable": "true"})
            bed.wait(bed.is_in_sync, "all in sync", 120.0)
            break


@replicated_row(
    "25", "all replicas down, returned in every order", "orders", short=1, normal=6, full=18
)
def return_in_order(run: Run) -> None:
    orders = list(permutations(range(3)))
    run.random.shuffle(orders)
    with replicated(run) as bed, bed.load(run) as load:
        for cycle in run.cycles():
            order = orders[cycle % len(orders)]
            for broker in bed.brokers:
                broker.kill()
                time.sleep(run.random.choice((0.0, bed.session_seconds)))
            for number in order:
                bed.brokers[number].launch()
                time.sleep(run.random.choice((0.0, bed.session_seconds)))
            load.wait_for_acks(seconds=120)


@replicated_row("26", "slow follower", "times", short=1, normal=2, full=20)
def slow_down_follower(run: Run) -> None:
    """It leaves the ISR after the lag time, and comes back when it has caught up; no flapping."""
    with replicated(run) as bed, bed.load(run, partitions=1, per_second=900) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            follower = run.random.choice(bed.followers())
            version, started = bed.state().partition_epoch, time.monotonic()
            bed.leader().peers.slow_down(3_000, {follower.number})
            bed.wait_for_isr(follower)
            # The others go on.
            load.wait_for_acks()
            time.sleep(4 * bed.session_seconds)
            load.wait_for_acks()
            changes = bed.state().partition_epoch - version
            lag_times = (time.monotonic() - started) / (0.75 * bed.session_seconds)
            assert changes <= 2 + 2 * lag_times, changes
            bed.links.heal()
            bed.wait_for_isr()
            load.wait_for_acks()


@replicated_row("27", "leader's disk fails, or is full", "faults", short=1, normal=4, full=50)
def fail_disk_of_leader(run: Run) -> None:
    """The leadership is given up, and another broker leads; a full disk is written again later."""
    may_log = ("goes offline", "Log ", "cannot be", "offline", "is full")
    with replicated(run) as bed, bed.load(run, partitions=1, may_log=may_log) as load:
        for cycle in run.cycles():
            bed.wait_for_isr()
            leader = bed.leader()
            call, error = _DISK_ERRORS[cycle % len(_DISK_ERRORS)]
            leader.fail(call, f"/{bed.topic}-", error)
            bed.wait_for_other_leaders(leader)
            load.wait_for_acks()
            leader.heal()
            if error != errno.ENOSPC:
                leader.kill()
                leader.start()


@replicated_row("28", "bit flipped in a follower's log", "flips", short=1, normal=4, full=50)
def flip_bit(run: Run) -> None:
    """Recovery finds it: that replica is copied anew, and the damage never spreads."""
    may_log = (*_LOSSES, "set aside", "damaged", "recover", "may be lost")
    with replicated(run) as bed, bed.load(run, partitions=1, may_log=may_log) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            follower = run.random.choice(bed.followers())
            load.wait_for_acks(20)
            follower.kill()
            _flip(follower, bed.topic, run)
            # As after a crash of the machine, all of the log is verified.
            for path in follower.data.glob("recovery-point*"):
                path.unlink()
            follower.start()
            load.wait_for_acks()
            bed.wait_for_isr()


def _flip(broker: ReplicatedBroker, topic: str, run: Run) -> None:
    files = (broker.data / f"{topic}-0").glob("*.log")
    path = run.random.choice([one for one in files if one.stat().st_size > 0])
    used = min(path.stat().st_size, len(log_bytes(path.parent)))
    position = run.random.randrange(61, max(used, 62))
    with path.open("r+b") as file:
        file.seek(position)
        (byte,) = file.read(1)
        file.seek(position)
        file.write(bytes([byte ^ 1 << run.random.randrange(8)]))


@replicated_row(
    "29",
    "topic deleted and made again while a follower is away",
    "times",
    short=1,
    normal=3,
    full=30,
)
def make_topic_again(run: Run) -> None:
    """The old log goes, the new one is copied: no record of the old topic is anywhere."""
    with replicated(run) as bed, bed.load(run) as load:
        for cycle in run.cycles():
            name = f"again-{bed.topic}-{cycle}"
            _make_and_fill(bed, name, b"old")
            follower = run.random.choice(bed.brokers)
            follower.kill()
            with bed.admin(60) as admin:
                admin.delete_topics(name)
            bed.wait(lambda name=name: not bed.view.states(name), "the deletion")
            load.wait_for_acks()
            with bed.admin(60) as admin:
                # On the two that are there.
                admin.create_topic(name, partitions=1, replication_factor=2)
            follower.start()
            _make_and_fill(bed, name, b"new", exists=True)
            bed.wait(
                lambda name=name: all(
                    b"old" not in (log := log_bytes(one.data / f"{name}-0"))
                    and (b"new" in log) == (one.number in bed.view.states(name)[0].replicas)
                    for one in bed.brokers
                ),
                "copies of the new topic",
            )


def _make_and_fill(bed: ReplicatedBed, name: str, value: bytes, *, exists: bool = False) -> None:
    if not exists:
        with bed.admin(60) as admin:
            admin.create_topic(name, partitions=1, replication_factor=3)
    with Producer(",".join(bed.direct_addresses)) as producer:
        for _ in range(20):
            producer.send(name, value, partition=0)


@replicated_row(
    "20", "KIP-320: reader ahead of an unclean leader", "times", short=1, normal=3, full=20
)
def truncate_under_reader(run: Run) -> None:
    """The reader is told that records are gone; they are never silently skipped."""
    configs = {"unclean_leader_election_enable": "true", "min_insync_replicas": "1"}
    with (
        replicated(run) as bed,
        bed.load(run, partitions=1, may_lose=True, may_log=_UNCLEAN, **configs) as load,
        Consumer(",".join(bed.direct_addresses), auto_offset_reset="none") as consumer,
    ):
        tp = TopicPartition(bed.topic, 0)
        consumer.assign([tp])
        consumer.seek_to_beginning(tp)
        for _ in run.cycles():
            bed.wait(lambda: len(bed.state().isr) == 3, "all in sync")
            leader, (first, second) = bed.leader(), bed.followers()
            first.kill()
            second.kill()
            bed.wait_for_isr(first, second)
            # Not of all producers: librdkafka's idempotent one ends when its records are lost.
            acked = load.acked
            bed.wait(lambda acked=acked: load.acked > acked + 60, "acks")
            while consumer.position(tp) < consumer.end_offsets(tp)[tp] - 50:
                consumer.getmany(timeout=1.0)
            before = consumer.position(tp)
            leader.kill()
            first.start()
            bed.wait(lambda one=first: bed.state().leader == one.number, "an unclean leader")
            reported = False
            for _attempt in range(200):
                try:
                    consumer.getmany(timeout=0.2)
                except LogTruncationError:
                    reported = True
                    break
            assert reported, f"position {before} was truncated, and nobody said so"
            consumer.seek_to_beginning(tp)
            leader.launch()
            second.launch()
