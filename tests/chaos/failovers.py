"""Replicated rows 1 to 9: leaders and followers that are killed, stopped, paused and cut off."""

from __future__ import annotations

import threading
import time
from contextlib import suppress

from chaos.matrix import replicated_row
from chaos.observers import when
from chaos.replicated import replicated
from chaos.replicated_cluster import ReplicatedBroker
from chaos.testbed import Run
from harness.replicas import log_bytes
from harness.wire import BlockingWireClient, produce_request, produce_results
from ottla.protocol.batch import build_batch, split_batches


@replicated_row("1", "kill -9 a leader", "kills", short=1, normal=5, full=100)
def kill_leader(run: Run) -> None:
    slowest = 0.0
    with replicated(run) as bed, bed.load(run) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            leader = bed.leader(run.random.randrange(3))
            time.sleep(run.random.uniform(0.0, 0.4))
            leader.kill()
            slowest = max(slowest, bed.wait_for_other_leaders(leader))
            load.wait_for_acks()
            leader.start()
    run.note(f"another leader after {slowest:.1f} s, lease {bed.session_seconds:.0f} s")


@replicated_row("2", "SIGTERM to a leader", "stops", short=1, normal=5, full=100)
def stop_leader(run: Run) -> None:
    """Leaders move before the broker stops: clients see no error."""
    with replicated(run) as bed, bed.load(run, may_fail=False) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            leader = bed.leader(run.random.randrange(3))
            assert leader.stop() == 0, leader.log_tail()
            load.wait_for_acks()
            assert "handed over all leaderships" in leader.log.read_text()
            leader.start()


@replicated_row("3", "kill -9 a follower, which returns", "kills", short=1, normal=5, full=100)
def kill_follower(run: Run) -> None:
    with replicated(run) as bed, bed.load(run, partitions=1) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            follower = run.random.choice(bed.followers())
            follower.kill()
            # acks=all waits until the follower has left the ISR, and goes on with two.
            bed.wait_for_isr(follower)
            load.wait_for_acks()
            follower.start()


@replicated_row("4", "kill leader after leader", "kills", short=3, normal=15, full=50)
def kill_leaders(run: Run) -> None:
    """Faster than ISRs heal: there may be no leader for a while."""
    with replicated(run) as bed, bed.load(run) as load:
        for _ in run.cycles():
            leader = bed.leader(run.random.randrange(3))
            leader.kill()
            time.sleep(run.random.uniform(0.0, 1.5 * bed.session_seconds))
            leader.launch()
        load.wait_for_acks(seconds=120)


@replicated_row(
    "5", "SIGSTOP a leader for long, then SIGCONT", "pauses", short=1, normal=5, full=50
)
def pause_leader(run: Run) -> None:
    """The deposed leader acks nothing with acks=all."""
    seconds = 0.0 if run.count <= 2 else 20.0
    with replicated(run) as bed, bed.load(run) as load:
        for _ in run.cycles():
            leader = bed.leader(run.random.randrange(3))
            leader.pause()
            bed.wait_for_other_leaders(leader)
            if seconds:
                # Clients notice when their requests time out, after up to 30 s.
                load.wait_for_acks()
                time.sleep(seconds)
            leader.resume()
            bed.wait_for_isr()
            load.wait_for_acks()


@replicated_row("5a", "SIGSTOP a leader, acks=1", "pauses", short=1, normal=3, full=50)
def pause_leader_with_acks_of_one(run: Run) -> None:
    """Losses are allowed only of what was acked before the leader woke up."""
    lost = 0
    with replicated(run) as bed, bed.load(run) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            bed_topic = bed.topic
            bed.create_topic(f"{bed_topic}-single-{run.figures.cycles}", 1)
            leader = bed.leader()
            with _AckedByLeader(leader, bed.topic) as acks:
                bed.wait(lambda acks=acks: len(acks.values) > 20, "acks of the leader")
                leader.pause()
                bed.wait_for_other_leaders(leader)
                woken = time.monotonic()
                leader.resume()
                bed.wait_for_isr()
            missing = acks.missing(bed.leader())
            late = [value for value in missing if acks.values[value] > woken]
            assert not late, f"acked by a deposed leader that woke up: {late}"
            lost += len(missing)
            bed.topic = bed_topic
        load.wait_for_acks()
    run.note(f"{lost} records with acks=1 lost")


class _AckedByLeader:
    """Produces to one broker with acks=1, whoever leads, and notes when each record was acked."""

    def __init__(self, broker: ReplicatedBroker, topic: str) -> None:
        self._broker = broker
        self._topic = topic
        self.values: dict[int, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        value = 0
        while not self._stopping.is_set():
            with (
                suppress(OSError, EOFError),
                BlockingWireClient(self._broker.direct_address) as one,
            ):
                while not self._stopping.is_set():
                    value += 1
                    records = build_batch([(0, int(time.time() * 1000), None, b"%d" % value, ())])
                    request = produce_request(records, topic=self._topic, acks=1)
                    (result,) = produce_results(one.request(request, 9))
                    if result.error_code == 0:
                        self.values[value] = time.monotonic()
            time.sleep(0.01)

    def missing(self, leader: ReplicatedBroker) -> list[int]:
        """Return the acked values that the log does not have."""
        found = {
            int(record.value)
            for batch in split_batches(memoryview(log_bytes(leader.data / f"{self._topic}-0")))
            for record in batch.records()
        }
        return sorted(self.values.keys() - found)

    def __enter__(self) -> _AckedByLeader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        self._thread.join()


@replicated_row("6", "SIGSTOP shorter than the lease", "pauses", short=1, normal=10, full=100)
def pause_briefly(run: Run) -> None:
    """Nothing but latency: no election."""
    with replicated(run) as bed, bed.load(run, may_fail=False) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            epochs = bed.leader_epochs()
            leader = bed.leader(run.random.randrange(3))
            leader.pause()
            time.sleep(bed.session_seconds / 4)
            leader.resume()
            load.wait_for_acks()
            assert bed.leader_epochs() == epochs


@replicated_row("7", "leader cut off from etcd", "cuts", short=1, normal=4, full=50)
def cut_leader_from_store(run: Run) -> None:
    """Its lease ends, and a successor is elected; the old one acks nothing with acks=all."""
    _isolate_leader(run, peers=False)


@replicated_row("7b", "leader cut off from all but clients", "cuts", short=1, normal=4, full=50)
def isolate_leader(run: Run) -> None:
    _isolate_leader(run, peers=True)


def _isolate_leader(run: Run, *, peers: bool) -> None:
    slowest = 0.0
    with replicated(run) as bed, bed.load(run) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            leader = bed.leader(run.random.randrange(3))
            bed.isolate(leader, peers=peers)
            bed.wait_for_other_leaders(leader)
            # Clients still reach the old leader, which sends them away.
            started = time.monotonic()
            load.wait_for_acks()
            slowest = max(slowest, time.monotonic() - started)
            bed.links.heal()
            load.wait_for_acks()
    run.note(f"acks by others after {slowest:.1f} s")


@replicated_row("8", "leader cut off from followers only", "cuts", short=1, normal=4, full=50)
def cut_leader_from_followers(run: Run) -> None:
    """Its ISR shrinks to itself: acks=all is refused, and nobody else is elected."""
    with replicated(run) as bed, bed.load(run, partitions=1) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            epochs = bed.leader_epochs()
            leader = bed.leader()
            bed.isolate(leader, store=False)
            bed.wait_for_isr(*bed.followers())
            acked = load.acked
            assert not when(lambda acked=acked: load.acked > acked, 1.0)
            assert bed.leader_epochs() == epochs
            bed.links.heal()
            load.wait_for_acks()


@replicated_row("9", "follower that gets no answers", "cuts", short=1, normal=4, full=50)
def cut_follower_one_way(run: Run) -> None:
    """Its requests arrive, and answers do not: it leaves the ISR because it lags."""
    with replicated(run) as bed, bed.load(run, partitions=1) as load:
        for _ in run.cycles():
            bed.wait_for_isr()
            follower = run.random.choice(bed.followers())
            bed.leader().peers.cut("answers", {follower.number})
            bed.wait_for_isr(follower)
            load.wait_for_acks()
            bed.links.heal()
