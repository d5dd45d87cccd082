"""Brokers that register in etcd, behind links, whose disks, clocks and power can fail."""

from __future__ import annotations

import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path

from chaos.links import Links
from chaos.testbed import FaultyDaemon
from harness.daemon import HOST, Cluster, free_port
from harness.etcd import EtcdCluster
from harness.mounts import Mounts

BROKERS = 3
CONFIGS = {
    "controller.wait.ms": "1000",
    "offsets.topic.num.partitions": "3",
    "group.min.session.timeout.ms": "100",
    "group.initial.rebalance.delay.ms": "100",
    "log.flush.offset.checkpoint.interval.ms": "1000",
}


class ReplicatedBroker(FaultyDaemon):
    """A broker whose disk, clock and links can fail, and whose power can be cut."""

    def __init__(
        self, folder: Path, number: int, links: Links, etcd: EtcdCluster, configs: Mapping[str, str]
    ) -> None:
        self.number = number
        self._boot_id = folder / "boot-id"
        client, self.peer_port, direct = (free_port() for _ in range(3))
        self.direct_address = f"{HOST}:{direct}"
        #: In front of the listeners for clients and for brokers, and of each member of etcd.
        self.clients = links.to(client)
        self.peers = links.to(self.peer_port)
        self.store = [links.to(member.port) for member in etcd]
        url = f"etcd://{','.join(link.address for link in self.store)}/test"
        settings = {
            **configs,
            "cluster.store": url,
            "inter.broker.listener.name": "PEER",
        }
        super().__init__(
            folder,
            *("--id", str(number)),
            *(
                "--listen",
                f"CLIENT://{HOST}:{client}",
                "--listen",
                f"PEER://{HOST}:{self.peer_port}",
            ),
            *("--listen", f"DIRECT://{self.direct_address}"),
            *("--advertise", f"CLIENT://{self.clients.address}"),
            *("--advertise", f"PEER://{self.peers.address}"),
            *(flag for name, text in settings.items() for flag in ("--set", f"{name}={text}")),
            port=client,
            FAULTS_BOOT_ID=str(self._boot_id),
        )
        folder.mkdir(parents=True, exist_ok=True)
        self.is_paused = False
        self.boot()

    def boot(self) -> None:
        """Boot the machine: what the page cache had is gone, if the broker was not stopped."""
        self._boot_id.write_text(str(uuid.uuid4()))

    def pause(self) -> None:
        self.is_paused = True
        super().pause()

    def resume(self) -> None:
        self.is_paused = False
        super().resume()

    def kill(self) -> None:
        self.is_paused = False
        super().kill()

    def wipe(self) -> None:
        """Lose the disk of a broker that was killed."""
        shutil.rmtree(self.data)

    @property
    def is_working(self) -> bool:
        """Whether the process runs and is not paused."""
        return self.is_running and not self.is_paused


class ReplicatedCluster(Cluster):
    """Brokers, three by default, and the members of etcd."""

    def __init__(
        self,
        folder: Path,
        links: Links,
        etcd: EtcdCluster,
        session_seconds: float,
        mounts: list[Mounts],
        configs: Mapping[str, str],
        count: int = BROKERS,
    ) -> None:
        super().__init__(folder, 0)
        configs = {
            **CONFIGS,
            "broker.session.timeout.ms": str(round(session_seconds * 1000)),
            # Followers lag sooner than their leases end.
            "replica.lag.time.max.ms": str(round(session_seconds * 750)),
            **configs,
        }
        self.members: list[ReplicatedBroker] = [
            ReplicatedBroker(folder / f"broker-{number}", number, links, etcd, configs)
            for number in range(count)
        ]
        self.brokers = [*self.members]
        for broker, mount in zip(self.members, mounts, strict=False):
            broker.data = mount.path / "data"
