"""The real daemon: a process of its own, with a data directory and a port of the loopback.

    with Daemon(tmp_path, "--set", "log.retention.ms=1000") as broker:
        broker.address      # "127.0.0.1:20123"
        broker.kill()       # SIGKILL
        broker.start()      # on the same directory, at the same address
        broker.stop()       # SIGTERM; gives the exit code

    with Cluster(tmp_path, 3) as cluster:       # three of them, which know one another
        cluster.bootstrap   # "127.0.0.1:20123,127.0.0.1:20124,127.0.0.1:20125"
        cluster[2].kill()

`start` returns when it answers. What it logs is in `broker.log`; fixtures should show it when a
test fails:

    @pytest.fixture
    def broker(tmp_path, request):
        with Daemon(tmp_path) as started, shown_on_failure(request, [started]):
            yield started
"""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

HOST = "127.0.0.1"
#: A loaded machine may be slow. Nothing waits for so long unless something is wrong.
PATIENCE_SECONDS = 30
# ApiVersions 0, correlation id 7, no client id.
_HELLO = bytes.fromhex("0000000a 0012 0000 00000007 ffff")


def free_port() -> int:
    """Give a port that nobody listens on, and nobody will be given for a connection of his own.

    The latter come from 32768 up. A broker that is down for a moment could lose one of those: a
    client that tries to reach it may even get it for its own end, and be connected to itself.
    """
    return free_ports(1)


def free_ports(count: int) -> int:
    """Give the first of some such ports in a row."""
    while True:
        first = random.SystemRandom().choice(_PORTS[: 1 - count or None])
        ports = range(first, first + count)
        if not any(port in _given for port in ports) and all(map(_is_free, ports)):
            _given.extend(ports)
            return first


def _own_ports() -> range:
    """Give the ports that only this process uses, of those that run tests at the same time.

    Whoever is given a port listens on it a moment later, and not while it is down. From 20,000 up
    there are the brokers of `ottla.testing`.
    """
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    each = 10_000 // processes
    return range(10_000 + number * each, 10_000 + (number + 1) * each)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


_PORTS = _own_ports()
#: Who was given one of these may be down at the moment.
_given: deque[int] = deque(maxlen=1000)


def answers(port: int) -> bool:
    """Whether a broker on this port answers the first question of every client."""
    try:
        with socket.create_connection((HOST, port), timeout=5) as connection:
            connection.sendall(_HELLO)
            answer = connection.recv(10)
    except OSError:
        return False
    # Size, correlation id, error code.
    return len(answer) == 10 and struct.unpack(">iih", answer)[1:] == (7, 0)


class Daemon:
    """A broker that runs, is stopped, killed and started again; always the same one."""

    #: What Python runs.
    program: tuple[str, ...] = ("-m", "ottla")

    def __init__(
        self, folder: Path, *arguments: str, port: int | None = None, **environ: str
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "broker.log"
        self.port = port or free_port()
        self.arguments = arguments
        # What whoever runs the tests has set for brokers of his own is not for this one.
        own = {name: text for name, text in os.environ.items() if not name.startswith("OTTLA_")}
        self._environ = own | environ
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Where it listens: the bootstrap address."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process."""
        return self._process is not None and self._process.poll() is None

    def spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process, and do not wait for it."""
        assert "TEST_NO_DAEMONS" not in os.environ, "this test lacks the marker `process`"
        command = [sys.executable, *self.program, "broker", "start", "--data-dir", str(self.data)]
        listen = () if "--listen" in self.arguments else ("--listen", self.address)
        self.folder.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [*command, *listen, *self.arguments, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._environ,
            )

    def start(self, *arguments: str) -> Self:
        """Start it, with more arguments if need be, and wait until it answers."""
        self.launch(*arguments)
        return self.wait_until_it_answers()

    def launch(self, *arguments: str) -> None:
        """Start it."""
        assert not self.is_running, "it runs already"
        self._process = self.spawn(*arguments)

    def wait_until_it_answers(self) -> Self:
        """Wait until it answers."""
        assert self._process is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not self.answers():
            if self._process.poll() is not None:
                raise AssertionError(f"the broker ended at once:\n{self.last_words()}")
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"the broker does not answer:\n{self.last_words()}")
            time.sleep(0.005)
        return self

    def answers(self) -> bool:
        """Whether it answers the first question of every client."""
        return answers(self.port)

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Ask it to stop, and give the exit code."""
        self.send(number)
        return self.wait()

    def kill(self) -> None:
        """End it as a crash does."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def wait(self) -> int:
        """Wait for its end, and give the exit code."""
        assert self._process is not None
        try:
            code = self._process.wait(PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"the broker does not end:\n{self.last_words()}") from None
        self._process = None
        return code

    def restart(self, *arguments: str) -> Self:
        """Stop it as one should, and start it again."""
        code = self.stop()
        assert code == 0, f"exit code {code}:\n{self.last_words()}"
        return self.start(*arguments)

    def last_words(self, lines: int = 60) -> str:
        """Give the end of what it logged."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.kill()


class Cluster:
    """Brokers 0 to n - 1, each a daemon, with a cluster file that lists them all."""

    def __init__(
        self, folder: Path, count: int = 3, *arguments: str, kind: type[Daemon] = Daemon
    ) -> None:
        self.folder = folder
        self.file = folder / "cluster.toml"
        self.brokers = [
            kind(
                folder / f"broker-{number}",
                *("--id", str(number), "--cluster", str(self.file)),
                *arguments,
            )
            for number in range(count)
        ]

    def __getitem__(self, number: int) -> Daemon:
        return self.brokers[number]

    def __iter__(self) -> Iterator[Daemon]:
        return iter(self.brokers)

    def __len__(self) -> int:
        return len(self.brokers)

    @property
    def bootstrap(self) -> str:
        """The addresses of all."""
        return ",".join(broker.address for broker in self)

    def describe(self) -> str:
        """Give the content of the cluster file."""
        return "\n".join(
            f'[[brokers]]\nid = {number}\naddress = "{broker.address}"\n'
            for number, broker in enumerate(self)
        )

    def start(self) -> Self:
        """Start those that do not run, all at once, and wait until they answer."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(self.describe())
        resting = [broker for broker in self if not broker.is_running]
        for broker in resting:
            broker.launch()
        for broker in resting:
            broker.wait_until_it_answers()
        return self

    def stop(self) -> None:
        """Ask all to stop, those that follow first, and wait for it."""
        for broker in reversed(self.brokers):
            if broker.is_running:
                assert broker.stop() == 0, broker.last_words()

    def kill(self) -> None:
        """End all of them as a crash does."""
        for broker in self:
            broker.kill()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.kill()
            raise

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self.kill()


def partitions_on_disk(broker: Daemon, topic: str) -> set[int]:
    """Return the partitions of a topic for which a broker has a log directory."""
    return {
        int(path.name.rpartition("-")[2])
        for path in broker.data.iterdir()
        if path.name.rpartition("-")[0] == topic
    }


@contextmanager
def shown_on_failure(request: Any, brokers: Collection[Daemon]) -> Iterator[None]:
    """Show what brokers logged meanwhile if the test fails; for fixtures, which are not told."""
    failed_before = request.session.testsfailed
    sizes = {broker.log: _size(broker.log) for broker in brokers}
    yield
    if request.session.testsfailed > failed_before:
        for log in {broker.log for broker in brokers}:
            with log.open("rb") as file:
                file.seek(sizes.get(log, 0))
                lines = file.read().decode(errors="replace").splitlines()
            print(f"--- {log}", *lines[-80:], sep="\n")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
