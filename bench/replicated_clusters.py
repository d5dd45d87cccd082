"""Clusters of three brokers that replicate: ottla with etcd, and Apache Kafka with KRaft.

Both have three brokers and three members of a consensus group. Kafka's controllers run inside its
brokers; etcd's members are processes of their own, whose CPU time and memory count as the brokers'.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ottla.cli.local_etcd import INSTALL_HINT, etcd_command, find_etcd
from servers import Kafka, Ottla, Server, free_port

BROKERS = 3


class Etcd(Server):
    """One member of etcd, with its default configs."""

    name = "etcd"
    probe = b"GET /health HTTP/1.0\r\n\r\n"

    def __init__(self, directory: Path, number: int, ports: Sequence[tuple[int, int]]) -> None:
        super().__init__(directory)
        self.port, self._peer_port = ports[number]
        self._number = number
        self._members = ",".join(
            f"m{index}=http://127.0.0.1:{peer}" for index, (_client, peer) in enumerate(ports)
        )

    @staticmethod
    def missing() -> str | None:
        """Return why it cannot run here, if it cannot."""
        return None if find_etcd() else f"no etcd: {INSTALL_HINT}"

    def prepare(self) -> None:
        """Create the directory of the data directory, which etcd creates with its own mode."""
        self.directory.mkdir(parents=True, exist_ok=True)

    def command(self) -> list[str]:
        """Return the command line."""
        program = find_etcd()
        assert program is not None
        return etcd_command(
            program,
            self.data,
            self.port,
            self._peer_port,
            *("--initial-cluster", self._members),
            name=f"m{self._number}",
        )


class ReplicatedCluster:
    """Three brokers, and the members of etcd if they need it."""

    def __init__(self, label: str, brokers: Sequence[Server], others: Sequence[Server]) -> None:
        self.label = label
        self.brokers = brokers
        self._others = others
        self.bootstrap = ",".join(broker.address for broker in brokers)

    @property
    def pids(self) -> list[int]:
        """The ids of all processes."""
        return [server.pid for server in (*self._others, *self.brokers)]

    def versions(self) -> dict[str, str]:
        """Return the version of the brokers."""
        return {self.brokers[0].name: self.brokers[0].version()}

    def start(self) -> None:
        """Start all processes, and wait for their first responses."""
        for servers in (self._others, self.brokers):
            for server in servers:
                server.prepare()
                server.launch()
            for server in servers:
                server.wait()

    def stop(self) -> None:
        """Kill all processes, and delete their files."""
        for server in (*self.brokers, *self._others):
            # Together: one that hands over its leaderships would wait for those before it.
            with suppress(ProcessLookupError, AssertionError):
                server.end(signal.SIGKILL)
            server.stop()


def ottla_cluster(directory: Path, label: str = "ottla", *options: str) -> ReplicatedCluster:
    """Return a cluster of ottla, with the default configs of brokers with a metadata store."""
    ports = [(free_port(), free_port()) for _ in range(BROKERS)]
    etcd = [Etcd(directory / f"etcd-{number}", number, ports) for number in range(BROKERS)]
    members = ",".join(member.address for member in etcd)
    store = ("--set", f"cluster.store=etcd://{members}/bench")
    brokers = [
        Ottla(directory / f"broker-{number}", *store, *options, broker_id=number)
        for number in range(BROKERS)
    ]
    return ReplicatedCluster(label, brokers, etcd)


def kafka_cluster(directory: Path, libs: Path) -> ReplicatedCluster:
    """Return a cluster of Apache Kafka."""
    ports = [free_port() for _ in range(BROKERS)]
    brokers = [
        Kafka(directory / f"broker-{number}", libs, number, ports) for number in range(BROKERS)
    ]
    return ReplicatedCluster("kafka", brokers, ())
