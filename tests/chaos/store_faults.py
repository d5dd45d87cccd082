"""Replicated rows 10 to 16: etcd and the controller."""

from __future__ import annotations

import shutil
import time

from chaos.matrix import replicated_row
from chaos.observers import when
from chaos.replicated import SESSION_SECONDS, ReplicatedBed, replicated
from chaos.replicated_cluster import BROKERS, ReplicatedBroker
from chaos.testbed import Run
from harness.command import Command
from ottla.client.blocking.admin import Admin
from ottla.client.errors import ClientError
from ottla.protocol.errors import KafkaError

#: What brokers log while they do not follow the store that answers.
_REFUSED = ("not following the metadata store",)


@replicated_row("10", "all of etcd killed under load", "outages", short=1, normal=2, full=20)
def kill_store(run: Run) -> None:
    """Producing, consuming and committing go on; no lease is lost; topics are refused."""
    seconds = 3.0 if run.count <= 1 else 60.0
    with replicated(run) as bed, bed.load(run, may_fail=False) as load:
        for cycle in run.cycles():
            bed.wait_for_isr()
            epochs, broker_epochs = bed.leader_epochs(), bed.view.broker_epochs()
            for member in bed.etcd:
                member.kill()
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                load.wait_for_acks()
            assert _is_refused(bed, f"refused-{cycle}")
            for member in bed.etcd:
                member.start()
            bed.etcd.wait_until_writable()
            load.wait_for_acks()
            assert bed.leader_epochs() == epochs
            assert bed.view.broker_epochs() == broker_epochs


def _is_refused(bed: ReplicatedBed, name: str) -> bool:
    try:
        with bed.admin(3.0) as admin:
            admin.create_topic(name, partitions=1, replication_factor=3)
    except (ClientError, KafkaError):
        return True
    return False


@replicated_row("11", "etcd stopped, then a broker killed", "outages", short=1, normal=4, full=50)
def kill_broker_without_store(run: Run) -> None:
    """Without etcd the ISR cannot shrink, and nobody can be elected: acks wait for etcd."""
    with replicated(run) as bed, bed.load(run, partitions=1) as load:
        for cycle in run.cycles():
            bed.wait_for_isr()
            leader = bed.leader()
            broker = leader if cycle % 2 else run.random.choice(bed.followers())
            for member in bed.etcd:
                member.kill()
            broker.kill()
            time.sleep(bed.session_seconds)
            acked = load.acked
            assert not when(lambda acked=acked: load.acked > acked, 1.0)
            for member in bed.etcd:
                member.start()
            bed.etcd.wait_until_writable()
            load.wait_for_acks()
            broker.start()


@replicated_row("12", "leader of etcd killed again and again", "kills", short=1, normal=6, full=60)
def kill_leader_of_store(run: Run) -> None:
    """No broker loses its lease, and nobody is elected."""
    with replicated(run, members=3) as bed, bed.load(run, may_fail=False) as load:
        epochs, broker_epochs = bed.leader_epochs(), bed.view.broker_epochs()
        for _ in run.cycles():
            member = bed.etcd.leader()
            member.kill()
            load.wait_for_acks()
            time.sleep(run.random.uniform(3.0, 8.0))
            member.start()
            bed.etcd.wait_until_writable()
        assert bed.leader_epochs() == epochs
        assert bed.view.broker_epochs() == broker_epochs


@replicated_row("13", "member of etcd hangs, sockets open", "pauses", short=1, normal=3, full=50)
def hang_member_of_store(run: Run) -> None:
    """Brokers change the member; their metadata is not stale."""
    with replicated(run, members=3) as bed, bed.load(run) as load:
        for cycle in run.cycles():
            member = bed.etcd[cycle % 3]
            member.pause()
            load.wait_for_acks()
            bed.wait(lambda cycle=cycle: _can_create(bed, f"hangs-{cycle}"), "a topic")
            _wait_until_known_by_all(bed, f"hangs-{cycle}")
            member.resume()
            bed.etcd.wait_until_writable()


def _can_create(bed: ReplicatedBed, name: str, factor: int = BROKERS, partitions: int = 3) -> bool:
    """Whether a topic exists, or could be created; an earlier attempt may have succeeded."""
    with bed.admin() as admin:
        if name in {topic.name for topic in admin.list_topics()}:
            return True
        try:
            admin.create_topic(name, partitions=partitions, replication_factor=factor)
        except (ClientError, KafkaError):
            return False
    return True


def _wait_until_known_by_all(bed: ReplicatedBed, name: str) -> None:
    for broker in bed.brokers:
        if broker.is_working:
            bed.wait(lambda broker=broker: _exists(broker.direct_address, name), f"{name} known")


def _exists(address: str, name: str) -> bool:
    with Admin(address) as admin:
        return name in {topic.name for topic in admin.list_topics()}


@replicated_row(
    "14", "etcd compacted while a broker is cut off", "cuts", short=1, normal=3, full=50
)
def compact_store(run: Run) -> None:
    """The broker loads everything anew, and adopts the difference."""
    with replicated(run) as bed, bed.load(run) as load:
        for cycle in run.cycles():
            bed.wait_for_isr()
            broker = run.random.choice(bed.brokers)
            bed.isolate(broker, peers=False)
            bed.wait_for_other_leaders(broker)
            bed.wait(lambda cycle=cycle: _can_create(bed, f"compacted-{cycle}", 2), "a topic")
            bed.view.compact()
            bed.links.heal()
            _wait_until_known_by_all(bed, f"compacted-{cycle}")
            load.wait_for_acks()


@replicated_row("15", "etcd restored from an older backup", "restores", short=1, normal=2, full=20)
def restore_old_store(run: Run) -> None:
    """Brokers refuse it, say why, and keep data and topics.

    The latest etcd brings all back; if it is lost, `ottla cluster restore` does.
    """
    run.shared = None
    with replicated(run) as bed, bed.load(run, may_log=_REFUSED) as load:
        (member,) = bed.etcd
        backup = run.folder / "backup"
        latest = run.folder / "latest"
        for cycle in run.cycles():
            bed.wait_for_isr()
            refusals = {broker: _refusals(broker) for broker in bed.brokers}
            member.kill()
            shutil.copytree(member.data, backup)
            member.start()
            bed.etcd.wait_until_writable()
            bed.wait(lambda cycle=cycle: _can_create(bed, f"restored-{cycle}"), "a topic")
            member.kill()
            shutil.move(member.data, latest)
            shutil.move(backup, member.data)
            member.start()
            bed.etcd.wait_until_writable()
            for broker, count in refusals.items():
                bed.wait(lambda one=broker, count=count: _refusals(one) > count, "a refusal")
                assert _exists(broker.direct_address, f"restored-{cycle}")
            if cycle % 2:
                _restore(run, bed)
            else:
                member.kill()
                shutil.rmtree(member.data)
                shutil.move(latest, member.data)
                member.start()
                bed.etcd.wait_until_writable()
            shutil.rmtree(latest, ignore_errors=True)
            load.wait_for_acks(seconds=120)


def _refusals(broker: ReplicatedBroker) -> int:
    return broker.log.read_text().count(_REFUSED[0])


def _restore(run: Run, bed: ReplicatedBed) -> None:
    """Make a new store from what the brokers know."""
    for broker in bed.brokers:
        broker.kill()
    command = Command("unused:1", str(run.folder))
    directories = [str(broker.data) for broker in bed.brokers]
    options = ("--store", bed.etcd.url, "--overwrite", "test", "--yes")

    def is_restored() -> bool:
        # Not before the registrations have expired that the backup has.
        return command.run("cluster", "restore", *directories, *options).exit_code == 0

    bed.wait(is_restored, "a restored store")
    bed.view.forget()
    for broker in bed.brokers:
        broker.start()


@replicated_row(
    "16", "controller lost in the midst of elections", "times", short=1, normal=3, full=20
)
def lose_controller(run: Run) -> None:
    """The next controller finishes; the one that was paused cannot write a byte."""
    # On a busy machine, to apply so many states can take longer than the usual short session.
    partitions, seconds = (30, SESSION_SECONDS) if run.count <= 1 else (1000, 6.0)
    with replicated(run, session_seconds=seconds) as bed, bed.load(run) as load:
        name = f"many-{bed.topic}"
        bed.wait(lambda: _can_create(bed, name, partitions=partitions), "many partitions")
        for cycle in run.cycles():
            bed.wait(bed.is_in_sync, "all in sync", 120.0)
            controller = bed.controller()
            victim = next(one for one in bed.brokers if one is not controller)
            victim.kill()
            # Elections begin when its lease has ended.
            bed.wait(lambda: len(bed.view.broker_epochs()) < BROKERS, "the end of a lease")
            if cycle % 2:
                controller.kill()
            else:
                controller.pause()
            bed.wait(lambda old=controller: bed.controller() is not old, "another controller")
            victim.launch()
            load.wait_for_acks(seconds=120)
            if controller.is_paused:
                controller.resume()
            else:
                controller.launch()
