"""The nemesis: random faults in a replicated cluster under load, for as long as one wants.

Kills, pauses, partitions (both ways, one way, pairwise, from etcd), resets, slow links, kills and
pauses of etcd members, wiped disks, clock jumps, stalls and power cuts, several at a time. In
between everything heals now and then. At the end everything is verified, as after each row.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random

import click

from chaos.observers import when
from chaos.replicated import ReplicatedBed, replicated_bed
from chaos.replicated_cluster import BROKERS, ReplicatedBroker
from chaos.runner import SEED, random_seed
from chaos.testbed import Run
from harness.load import Load, silenced_client_logs

MEMBERS = 3
_SESSION_SECONDS = 3.0
#: Longest fault, and longest pause between two, in seconds.
_MAX_FAULT_SECONDS = 12.0
_MAX_PAUSE_SECONDS = 4.0
#: How many faults there are between two times of rest.
_FAULTS_PER_ROUND = 6
#: What brokers log as errors after power cuts and kills.
EXPECTED_LOGS = ("partition logs are missing", "replicas are missing", "set aside", "recovered")
Undo = Callable[[], None]


class Nemesis:
    """Injects faults at random."""

    def __init__(self, bed: ReplicatedBed, random: Random, report: Callable[[str], None]) -> None:
        self._bed = bed
        self._random = random
        self._report = report
        self.counts: Counter[str] = Counter()
        # Ends of faults, by the time at which they are due.
        self._undos: list[tuple[float, Undo]] = []
        # A broker whose machine has lost its power or disk, until it is in sync again.
        self._lossy = False

    def run(self, load: Load, seconds: float) -> None:
        """Inject faults for a time, with a rest after each round."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for _ in range(self._random.randint(2, _FAULTS_PER_ROUND)):
                self._inject()
                self._wait(self._random.random() ** 2 * _MAX_PAUSE_SECONDS)
            self._wait(self._random.uniform(0.0, _MAX_FAULT_SECONDS))
            self._rest()
            load.wait_for_acks(2, seconds=120)
            found = [*load.problems, *self._bed.anomalies_so_far(EXPECTED_LOGS)]
            assert not found, "\n".join(found[:20])
            self._report(f"{sum(self.counts.values())} faults, {load.acked:,} acked")

    def _inject(self) -> None:
        faults = (
            *(self._kill, self._kill, self._kill, self._pause, self._pause, self._stop),
            *(self._isolate, self._cut_store, self._cut_pair, self._cut_pair, self._cut_one_way),
            *(self._cut_clients, self._reset, self._slow_down),
            *(self._kill_member, self._kill_member, self._pause_member, self._stop_etcd),
            *(self._jump_clock, self._stall, self._lose_machine, self._lose_machine),
        )
        fault = self._random.choice(faults)
        name = fault()
        if name:
            self.counts[name] += 1

    def _wait(self, seconds: float) -> None:
        """Wait, and end the faults that are due meanwhile."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            now = time.monotonic()
            due = [undo for at, undo in self._undos if at <= now]
            self._undos = [one for one in self._undos if one[0] > now]
            for undo in due:
                undo()
            time.sleep(0.05)

    def _later(self, undo: Undo) -> None:
        seconds = self._random.random() ** 2 * _MAX_FAULT_SECONDS
        self._undos.append((time.monotonic() + seconds, undo))

    def _rest(self) -> None:
        for _at, undo in self._undos:
            undo()
        self._undos.clear()
        self._bed.heal()
        self._lossy = False

    # Faults: each returns its name, or nothing if it cannot be injected now.

    def _broker(self) -> ReplicatedBroker | None:
        working = [broker for broker in self._bed.brokers if broker.is_working]
        return self._random.choice(working) if working else None

    @staticmethod
    def _start(broker: ReplicatedBroker) -> None:
        if not broker.is_running:
            broker.launch()

    def _kill(self) -> str:
        broker = self._broker()
        if broker is None:
            return ""
        broker.kill()
        self._later(lambda: self._start(broker))
        return "kill"

    def _stop(self) -> str:
        broker = self._broker()
        if broker is None or not broker.responds():
            return ""
        broker.send(15)
        if not when(lambda: not broker.is_running, 20.0):
            broker.kill()  # It cannot hand over, and waits.
        self._later(lambda: self._start(broker))
        return "stop"

    def _pause(self) -> str:
        broker = self._broker()
        if broker is None:
            return ""
        broker.pause()

        def resume() -> None:
            if broker.is_paused and broker.is_running:
                broker.resume()

        self._later(resume)
        return "pause"

    def _isolate(self) -> str:
        broker = self._random.choice(self._bed.brokers)
        self._bed.isolate(broker)
        self._later(self._bed.links.heal)
        return "isolate"

    def _cut_store(self) -> str:
        broker = self._random.choice(self._bed.brokers)
        links = broker.store[: self._random.randint(1, MEMBERS)]
        direction = self._random.choice(("both", "requests", "answers"))
        for link in links:
            link.cut(direction)
        self._later(self._bed.links.heal)
        return "cut from etcd"

    def _cut_pair(self) -> str:
        self._bed.cut_pair(*self._random.sample(self._bed.brokers, 2))
        self._later(self._bed.links.heal)
        return "cut pair"

    def _cut_one_way(self) -> str:
        one, other = self._random.sample(self._bed.brokers, 2)
        one.peers.cut(self._random.choice(("requests", "answers")), {other.number})
        self._later(self._bed.links.heal)
        return "cut one way"

    def _cut_clients(self) -> str:
        broker = self._random.choice(self._bed.brokers)
        broker.clients.cut(self._random.choice(("both", "requests", "answers")))
        self._later(self._bed.links.heal)
        return "cut clients"

    def _reset(self) -> str:
        self._random.choice(self._bed.all_links()).reset()
        return "reset"

    def _slow_down(self) -> str:
        link = self._random.choice(self._bed.all_links())
        link.slow_down(self._random.choice((5_000, 50_000, 500_000)))
        self._later(self._bed.links.heal)
        return "slow link"

    def _kill_member(self) -> str:
        running = [member for member in self._bed.etcd if member.is_running]
        if len(running) < MEMBERS:
            return ""
        member = self._random.choice(running)
        member.kill()
        self._later(lambda: None if member.is_running else member.start())
        return "kill of an etcd member"

    def _pause_member(self) -> str:
        running = [member for member in self._bed.etcd if member.is_running]
        if not running:
            return ""
        member = self._random.choice(running)
        member.pause()
        self._later(lambda: member.resume() if member.is_running else None)
        return "pause of an etcd member"

    def _stop_etcd(self) -> str:
        for member in self._bed.etcd:
            if member.is_running:
                member.pause()

        def resume() -> None:
            for member in self._bed.etcd:
                if member.is_running:
                    member.resume()

        self._later(resume)
        return "pause of all of etcd"

    def _jump_clock(self) -> str:
        broker = self._broker()
        if broker is None or not broker.responds():
            return ""
        broker.set_clock(self._random.uniform(-7200, 7200))
        return "clock jump"

    def _stall(self) -> str:
        broker = self._broker()
        if broker is None or not broker.responds():
            return ""
        broker.stall(self._random.uniform(0.1, 2.0), every=self._random.uniform(0.5, 3.0))

        def heal() -> None:
            if broker.is_working and broker.responds():
                broker.heal()

        self._later(heal)
        return "stalls"

    def _lose_machine(self) -> str:
        """Cut the power of a machine, or lose its disk: of one at a time, while all are in sync.

        Records with acks=all are in memory of two brokers: the loss of both loses records.
        """
        broker = self._random.choice(self._bed.brokers)
        try:
            if self._lossy or not self._bed.is_in_sync():
                return ""
        except OSError:
            return ""
        self._lossy = True
        if self._bed.can_cut_power and self._random.random() < 0.7:
            self._bed.cut_power(broker)
            name = "power cut"
        else:
            broker.kill()
            broker.wipe()
            name = "lost disk"
        self._later(lambda: self._start(broker))
        return name


@click.command("nemesis")
@click.option("--minutes", default=30.0, show_default=True, help="How long faults are injected.")
@click.option("--seed", type=int, envvar=SEED, help=f"Random seed, or {SEED}. [default: random]")
@click.option("--per-second", default=150.0, show_default=True, help="Records per second.")
@click.option("--no-power-cuts", is_flag=True, help="For machines on which nothing may be mounted.")
@click.option("--transactions", is_flag=True, help="Load the brokers with transactions.")
@click.option("--dir", "base", type=Path, help="Working directory. [default: a temporary one]")
def nemesis(
    minutes: float,
    seed: int | None,
    per_second: float,
    no_power_cuts: bool,
    transactions: bool,
    base: Path | None,
) -> None:
    """Inject random faults into a replicated cluster, and check that nothing is lost.

    \b
        make nemesis NEMESIS="--minutes 30 --seed 5"

    Three brokers and three members of etcd. Power cuts need root: the data of each broker is on a
    file system of its own. The seed repeats the order of faults, not their exact timing.
    """
    seed = random_seed() if seed is None else seed
    folder = Path(tempfile.mkdtemp(prefix="ottla-nemesis-", dir=base))
    print(f"seed {seed}; data in {folder}", flush=True)
    run = Run(folder, seed=seed, count=1, brokers=BROKERS, is_transactional=transactions)
    started = time.monotonic()

    def report(text: str) -> None:
        print(f"{time.monotonic() - started:7.0f} s  {text}", flush=True)

    with (
        silenced_client_logs(),
        replicated_bed(
            folder,
            members=MEMBERS,
            session_seconds=_SESSION_SECONDS,
            with_power=not no_power_cuts,
        ) as bed,
    ):
        injector = Nemesis(bed, run.random, report)
        try:
            with bed.load(run, per_second=per_second, may_log=EXPECTED_LOGS) as load:
                injector.run(load, minutes * 60)
        except (AssertionError, OSError) as error:
            print(f"failed with --seed {seed}: {error}\n{dict(injector.counts)}", flush=True)
            for broker in bed.brokers:
                print(f"--- broker {broker.number}", broker.log_tail(200), sep="\n", flush=True)
            sys.exit(1)
    figures = run.figures
    faults = ", ".join(f"{count} {name}" for name, count in injector.counts.most_common())
    report(
        f"{figures.acked:,} acked, {figures.lost} lost, {figures.duplicated} duplicates, replicas"
        f" equal; longest wait {figures.worst_seconds:.1f} s; {len(load.errors)} sends given up"
    )
    report(f"{sum(injector.counts.values())} faults: {faults}")
