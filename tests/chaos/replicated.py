"""The testbed of replicated clusters: three brokers and etcd, with links that can be cut.

    def kill(run: Run) -> None:
        with replicated(run) as bed, bed.load(run) as load:
            bed.leader().kill()
            load.wait_for_acks()

`load` creates a topic of its own. When it ends, everything is healed and started, and verified:
the history of all clients (harness.checker), high watermarks and committed offsets that never went
back (observers), the history of all partition states in the store (store_view), the logs of the
brokers, and that all replicas are equal byte by byte.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from chaos.links import Link, Links
from chaos.observers import HighWatermarkReader, Observer, OffsetCommitter, when
from chaos.replicated_cluster import BROKERS, ReplicatedBroker, ReplicatedCluster
from chaos.store_view import StoreView
from chaos.testbed import TRANSACTIONAL, Run, bugs_of, describe
from harness.checker import check
from harness.etcd import EtcdCluster
from harness.load import Load, load_on
from harness.mounts import Mounts, private_mounts
from harness.replicas import log_bytes
from ottla.client.admin.topics import NewTopic
from ottla.client.blocking.admin import Admin
from ottla.client.config import ClientConfig, TimeoutConfig
from ottla.coord.partition_state import PartitionState

PARTITIONS = 3
#: Until everything is in sync again, on a busy machine.
HEAL_SECONDS = 120.0
SESSION_SECONDS = 2.0
TOPIC_CONFIG = {
    "segment.bytes": "262144",
    "index.interval.bytes": "1024",
    # Clocks jump.
    "message.timestamp.after.max.ms": "9223372036854775807",
}
_DISK_BYTES = 1024 * 1024 * 1024
_names = itertools.count(1)


class ReplicatedBed:
    """A replicated cluster. `topic` is that of the current load."""

    def __init__(
        self, cluster: ReplicatedCluster, etcd: EtcdCluster, links: Links, mounts: list[Mounts]
    ) -> None:
        self.cluster = cluster
        self.brokers = cluster.members
        self.etcd = etcd
        self.links = links
        self.view = StoreView(etcd)
        self.topic = ""
        #: Those of the current load.
        self.observers: list[Observer] = []
        self._mounts = mounts
        self.session_seconds = SESSION_SECONDS

    @property
    def address(self) -> str:
        """The bootstrap servers for clients: links."""
        return ",".join(broker.clients.address for broker in self.brokers)

    @property
    def direct_addresses(self) -> list[str]:
        """The addresses of the brokers themselves."""
        return [broker.direct_address for broker in self.brokers]

    @contextmanager
    def admin(self, seconds: float = 20.0) -> Iterator[Admin]:
        """Return an admin client that is not behind links."""
        timeouts = TimeoutConfig(connect=2, request=5, operation=seconds)
        with Admin(
            ",".join(self.direct_addresses), client=ClientConfig(timeouts=timeouts)
        ) as admin:
            yield admin

    # The state of the cluster.

    def state(self, index: int = 0) -> PartitionState:
        """Return the state of a partition."""
        return self.view.states(self.topic)[index]

    def leader(self, index: int = 0) -> ReplicatedBroker:
        """Return the leader of a partition, once there is one."""
        self.wait(lambda: self.state(index).has_leader, "a leader")
        return self.brokers[self.state(index).leader]

    def followers(self, index: int = 0) -> list[ReplicatedBroker]:
        """Return the brokers that do not lead a partition."""
        leader = self.leader(index)
        return [broker for broker in self.brokers if broker is not leader]

    def controller(self) -> ReplicatedBroker:
        """Return the controller, once there is one."""
        self.wait(lambda: self.view.controller() is not None, "a controller")
        number = self.view.controller()
        assert number is not None
        return self.brokers[number]

    def leader_epochs(self) -> dict[int, int]:
        """Return the leader epoch of each partition."""
        return {index: one.leader_epoch for index, one in self.view.states(self.topic).items()}

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
        """Wait until a condition holds."""
        assert when(condition, seconds), f"Not within {seconds} s: {what}; {self.describe()}"

    def wait_for_other_leaders(self, *old: ReplicatedBroker) -> float:
        """Wait until other brokers lead; return how long that took."""
        started = time.monotonic()
        ids = {broker.number for broker in old}

        def have_moved() -> bool:
            states = self.view.states(self.topic).values()
            return all(one.has_leader and one.leader not in ids for one in states)

        self.wait(have_moved, f"other leaders than {ids}")
        return time.monotonic() - started

    def wait_for_isr(self, *without: ReplicatedBroker, seconds: float = 60.0) -> None:
        """Wait until all brokers but some are in the ISRs of the topic."""
        expected = {broker.number for broker in self.brokers if broker not in without}

        def is_so() -> bool:
            return all(set(one.isr) == expected for one in self.view.states(self.topic).values())

        self.wait(is_so, f"ISRs {expected}", seconds)

    def is_in_sync(self) -> bool:
        """Whether all replicas of all partitions are in sync."""
        return all(
            one.has_leader and not one.is_under_replicated
            for one in self.view.all_states().values()
        )

    def describe(self) -> str:
        """Return the states of the topic and who is registered, for error messages."""
        with suppress(OSError):
            return f"{self.view.states(self.topic)}, registered {self.view.broker_epochs()}"
        return "etcd does not answer"

    # Faults.

    def isolate(self, broker: ReplicatedBroker, *, peers: bool = True, store: bool = True) -> None:
        """Cut a broker off from other brokers, from etcd, or both; clients reach it."""
        if peers:
            for other in self.brokers:
                self.cut_pair(broker, other)
        if store:
            for link in broker.store:
                link.cut()

    def cut_pair(self, one: ReplicatedBroker, other: ReplicatedBroker) -> None:
        """Cut two brokers off from each other."""
        if one is not other:
            one.peers.cut("both", {other.number})
            other.peers.cut("both", {one.number})

    def all_links(self) -> list[Link]:
        """Return all links."""
        return [link for one in self.brokers for link in (one.clients, one.peers, *one.store)]

    @property
    def can_cut_power(self) -> bool:
        """Whether the brokers' data are on file systems that can be shut down."""
        return bool(self._mounts)

    def cut_power(self, *brokers: ReplicatedBroker) -> None:
        """Cut the power of brokers at one moment: what they did not fsync is lost."""
        if not self._mounts:
            pytest.skip("the power of this testbed cannot be cut")
        for broker in brokers:
            if broker.is_running:
                broker.pause()  # It must not ack anything after the cut.
        for broker in brokers:
            mounts = self._mounts[broker.number]
            mounts.cut_power()
            broker.kill()
            mounts.unmount()
            mounts.mount_ext4()
            broker.boot()

    # Load, healing, verification.

    def create_topic(
        self, name: str, partitions: int, replicas: Sequence[int] = (), **configs: str
    ) -> None:
        """Create a topic; `min_insync_replicas="1"` sets its config min.insync.replicas."""
        dotted = {key.replace("_", "."): text for key, text in configs.items()}
        factor = int(dotted.pop("replication.factor", BROKERS))
        count = len(self.brokers)
        self.wait(lambda: len(self.view.broker_epochs()) == count, f"{count} brokers")
        topic = NewTopic(name, partitions, factor, TOPIC_CONFIG | dotted)
        if replicas:
            topic = NewTopic(name, configs=topic.configs, assignment=[replicas] * partitions)
        with self.admin(60) as admin:
            admin.create_topics(topic)
        self.topic = name

    @contextmanager
    def load(
        self,
        run: Run,
        *,
        partitions: int = PARTITIONS,
        per_second: float = 300,
        may_lose: bool = False,
        may_fail: bool = True,
        may_log: Collection[str] = (),
        heals: bool = True,
        with_readers: bool = True,
        replicas: Sequence[int] = (),
        **configs: str,
    ) -> Iterator[Load]:
        """Run load on a new topic; then heal and start everything, and verify.

        `may_lose` is for topics with unclean elections: only the replicas are compared. `may_fail`
        allows sends that time out, `may_log` errors in the brokers' logs that contain one of these
        texts.
        """
        self.create_topic(f"orders-{next(_names)}", partitions, replicas, **configs)
        options = TRANSACTIONAL if run.is_transactional else {}
        self.observers = [OffsetCommitter(self.direct_addresses, self.topic)]
        if not may_lose:
            self.observers.append(HighWatermarkReader(self.direct_addresses, self.topic))
        with ExitStack() as stack:
            for observer in self.observers:
                stack.enter_context(observer)
            load = stack.enter_context(
                load_on(
                    self.address,
                    self.topic,
                    partitions,
                    per_second=per_second,
                    with_readers=with_readers and not may_lose,
                    **options,
                )
            )
            load.wait_for_acks()
            try:
                yield load
            except BaseException:
                self.links.heal()  # For the next row.
                raise
            if heals:
                self.heal()
            if not may_lose:
                load.wait_for_acks(seconds=HEAL_SECONDS)
                load.stop()
            else:
                load.stop(timeout=1)
        self.verify(run, load, may_lose=may_lose, may_fail=may_fail, may_log=may_log)

    def heal(self) -> None:
        """End all faults, start everything, and wait until all replicas are in sync."""
        self.links.heal()
        for member in self.etcd:
            if not member.is_running:
                member.start()
            else:
                member.resume()
        self.etcd.wait_until_writable()
        for broker in self.brokers:
            if broker.is_paused:
                broker.resume()
            if not broker.is_running:
                broker.launch()
        for broker in self.brokers:
            broker.wait_until_ready()
            broker.heal()
            broker.set_clock(0.0)
        self.wait(self.is_in_sync, "all replicas in sync", HEAL_SECONDS)

    def verify(
        self,
        run: Run,
        load: Load,
        *,
        may_lose: bool = False,
        may_fail: bool = True,
        may_log: Collection[str] = (),
    ) -> None:
        """Check all invariants. Raises AssertionError."""
        found: list[str] = []
        if not may_lose:
            assert not load.problems, load.problems
            run.read_replicated(self.address, self.topic, load)
            anomalies = check(load.history)
            run.add_figures(load, anomalies)
            found += [describe(anomalies)] if anomalies else []
            assert load.acked > 0
        assert may_fail or not load.errors, load.errors[:3]
        if not when(lambda: not self.replica_differences(), 30.0, 0.5):
            found += self.replica_differences()
        found += self.anomalies_so_far(may_log)
        assert not found, "\n".join(found[:20])

    def anomalies_so_far(self, may_log: Collection[str] = ()) -> list[str]:
        """Return what observers, the store and the brokers' logs show; load may still run."""
        found = [text for observer in self.observers for text in observer.anomalies]
        found += self.view.anomalies()
        for broker in self.brokers:
            lines = bugs_of(broker, may_log).splitlines()
            found += [f"broker {broker.number}: {line}" for line in lines]
        return found

    def replica_differences(self) -> list[str]:
        """Return the partitions whose replicas differ, of all topics; nobody may produce."""
        found = []
        for key in self.view.keys("topic/"):
            topic = key.removeprefix("topic/")
            for index, state in self.view.states(topic).items():
                name = f"{topic}-{index}"
                logs = [log_bytes(self.brokers[one].data / name) for one in state.replicas]
                if len(set(logs)) != 1:
                    sizes = [len(log) for log in logs]
                    found.append(
                        f"different-bytes: {name} has {sizes} bytes on brokers {state.replicas}"
                    )
        return found


@contextmanager
def replicated_bed(
    folder: Path,
    *,
    members: int = 1,
    session_seconds: float = SESSION_SECONDS,
    with_power: bool = False,
    configs: Mapping[str, str] = {},
    brokers: int = BROKERS,
) -> Iterator[ReplicatedBed]:
    """Start a replicated cluster. `with_power` puts data on file systems whose power can be cut."""
    with ExitStack() as stack:
        links = stack.enter_context(Links())
        etcd = stack.enter_context(
            EtcdCluster(
                folder, members, "--heartbeat-interval", "100", "--election-timeout", "1000"
            )
        )
        mounts: list[Mounts] = []
        if with_power:
            for number in range(brokers):
                at = folder / f"disk-{number}"
                at.mkdir(parents=True)
                mount = stack.enter_context(private_mounts(at))
                mount.make_ext4(_DISK_BYTES)
                mounts.append(mount)
        cluster = ReplicatedCluster(
            folder / "brokers", links, etcd, session_seconds, mounts, configs, brokers
        )
        stack.enter_context(cluster)
        bed = ReplicatedBed(cluster, etcd, links, mounts)
        bed.session_seconds = session_seconds
        yield bed


@contextmanager
def replicated(
    run: Run,
    *,
    members: int = 1,
    with_power: bool = False,
    configs: Mapping[str, str] = {},
    brokers: int = BROKERS,
    session_seconds: float = SESSION_SECONDS,
) -> Iterator[ReplicatedBed]:
    """Yield the cluster that rows share, if there is one and it will do, or start one."""
    shared = run.shared
    is_usual = (
        (members, brokers, session_seconds) == (1, BROKERS, SESSION_SECONDS)
        and not with_power
        and not configs
    )
    if shared is not None and is_usual:
        yield shared
        return
    with replicated_bed(
        run.folder,
        members=members,
        session_seconds=session_seconds,
        with_power=with_power,
        configs=configs,
        brokers=brokers,
    ) as bed:
        yield bed
