"""The daemon runner: real brokers, each a process with a data directory and a port on loopback.

    with Daemon(tmp_path, "--set", "log.retention.ms=1000") as broker:
        broker.address      # "127.0.0.1:20123"
        broker.kill()       # SIGKILL
        broker.start()      # on the same data directory and port
        broker.stop()       # SIGTERM; returns the exit code

    with Cluster(tmp_path, 3) as cluster:
        cluster.bootstrap   # "127.0.0.1:20123,127.0.0.1:20124,127.0.0.1:20125"
        cluster[2].kill()

`start` returns when the broker responds. Its log is in `broker.log`; fixtures print it when a test
fails:

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
import ssl
import struct
import subprocess
import sys
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

HOST = "127.0.0.1"
#: Longer than anything takes on a busy machine; a test that waits this long hangs.
TIMEOUT_SECONDS = 30
# ApiVersions 0, correlation id 7, no client id.
_API_VERSIONS = bytes.fromhex("0000000a 0012 0000 00000007 ffff")


def free_port() -> int:
    """Return a port that is free, and outside of the ephemeral range, which starts at 32768.

    While a broker is down, the kernel could assign an ephemeral port to a client: one that connects
    to the broker may even get that port itself, and be connected to itself.
    """
    return free_ports(1)


def free_ports(count: int) -> int:
    """Return the first of `count` consecutive free ports."""
    while True:
        first = random.SystemRandom().choice(_PORTS[: 1 - count or None])
        ports = range(first, first + count)
        if not any(port in _used for port in ports) and all(map(_is_free, ports)):
            _used.extend(ports)
            return first


def _worker_ports() -> range:
    """Return the ports reserved for this worker of pytest-xdist.

    A port is in use later than it is chosen, and not while its broker is down. Ports from 20,000 on
    are those of `ottla.testing`.
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


_PORTS = _worker_ports()
#: Ports that were returned: their brokers may be down at the moment.
_used: deque[int] = deque(maxlen=1000)


def responds(port: int, *, uses_tls: bool = False) -> bool:
    """Whether a broker on this port responds to ApiVersions."""
    try:
        with ExitStack() as stack:
            connection = stack.enter_context(socket.create_connection((HOST, port), timeout=5))
            if uses_tls:
                context = ssl._create_unverified_context()
                connection = stack.enter_context(context.wrap_socket(connection))
            connection.sendall(_API_VERSIONS)
            response = connection.recv(10)
    except OSError:
        return False
    # Size, correlation id, error code.
    return len(response) == 10 and struct.unpack(">iih", response)[1:] == (7, 0)


@dataclass
class Launch:
    """A start of a broker."""

    #: By the monotonic clock.
    at: float
    #: How long the process waited for a CPU until it was ready: a busy machine's part of the time.
    cpu_wait_seconds: float = 0.0


class Daemon:
    """A broker that can be started, stopped and killed repeatedly, on the same data and port."""

    #: Arguments of the Python interpreter.
    program: tuple[str, ...] = ("-m", "ottla")
    #: Whether the listener of `port` has TLS.
    uses_tls = False

    def __init__(
        self, folder: Path, *arguments: str, port: int | None = None, **environ: str
    ) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.log = folder / "broker.log"
        self.port = port or free_port()
        self.arguments = arguments
        # Configs in the developer's environment are not for this broker.
        inherited = {name: v for name, v in os.environ.items() if not name.startswith("OTTLA_")}
        self._environ = inherited | environ
        self.launches: list[Launch] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """The bootstrap address."""
        return f"{HOST}:{self.port}"

    @property
    def pid(self) -> int:
        """The process id."""
        assert self._process is not None, "The broker is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def spawn(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a process without waiting for it, and without keeping it."""
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
        """Start the broker, with additional arguments, and wait until it responds."""
        self.launch(*arguments)
        return self.wait_until_ready()

    def launch(self, *arguments: str) -> None:
        """Start the broker without waiting for it."""
        assert not self.is_running, "The broker is already running"
        self.launches.append(Launch(time.monotonic()))
        self._process = self.spawn(*arguments)

    def wait_until_ready(self) -> Self:
        """Wait until the broker responds."""
        assert self._process is not None
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self.responds():
            if self._process.poll() is not None:
                raise AssertionError(f"The broker ended at once:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"The broker does not respond:\n{self.log_tail()}")
            time.sleep(0.005)
        self.launches[-1].cpu_wait_seconds = cpu_wait_seconds(self.pid)
        return self

    def responds(self) -> bool:
        """Whether the broker responds to ApiVersions."""
        return responds(self.port, uses_tls=self.uses_tls)

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        os.kill(self.pid, number)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Stop the broker with SIGTERM or another signal; return the exit code."""
        self.send(number)
        return self.wait()

    def kill(self) -> None:
        """Kill the broker with SIGKILL."""
        if self._process is not None:
            self._process.kill()
            self.wait()

    def pause(self) -> None:
        """Stop the process with SIGSTOP, and wait until it is stopped."""
        self.send(signal.SIGSTOP)
        assert self.wait_until_paused()

    def wait_until_paused(self, seconds: float = TIMEOUT_SECONDS) -> bool:
        """Wait until the process is stopped; False if it is not in time."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if process_stat(self)[0] == "T":
                return True
            time.sleep(0.002)
        return False

    def resume(self) -> None:
        """Continue the process with SIGCONT."""
        self.send(signal.SIGCONT)

    def wait(self) -> int:
        """Wait until the process ends; return the exit code."""
        assert self._process is not None
        try:
            code = self._process.wait(TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise AssertionError(f"The broker does not end:\n{self.log_tail()}") from None
        self._process = None
        return code

    def restart(self, *arguments: str) -> Self:
        """Stop the broker with SIGTERM, and start it again."""
        code = self.stop()
        assert code == 0, f"Exit code {code}:\n{self.log_tail()}"
        return self.start(*arguments)

    def log_tail(self, lines: int = 60) -> str:
        """Return the end of the log."""
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
    """Brokers 0 to n - 1 with a cluster file."""

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
        """The bootstrap servers: the addresses of all brokers."""
        return ",".join(broker.address for broker in self)

    def describe(self) -> str:
        """Return the content of the cluster file."""
        return "\n".join(
            f'[[brokers]]\nid = {number}\naddress = "{broker.address}"\n'
            for number, broker in enumerate(self)
        )

    def start(self) -> Self:
        """Start the brokers that do not run, all at once, and wait until they respond."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.file.write_text(self.describe())
        stopped = [broker for broker in self if not broker.is_running]
        for broker in stopped:
            broker.launch()
        for broker in stopped:
            broker.wait_until_ready()
        return self

    def stop(self) -> None:
        """Stop all brokers with SIGTERM, the controller last."""
        for broker in reversed(self.brokers):
            if broker.is_running:
                assert broker.stop() == 0, broker.log_tail()

    def kill(self) -> None:
        """Kill all brokers with SIGKILL."""
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
        if path.name.rpartition("-")[0] == topic and not path.name.endswith(".deleted")
    }


@contextmanager
def shown_on_failure(request: Any, brokers: Collection[Daemon]) -> Iterator[None]:
    """Print what brokers logged during a test if it fails; for use in fixtures."""
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


# Of processes, by Linux's /proc.


def process_stat(broker: Daemon) -> list[str]:
    """Return the fields of /proc/PID/stat from the state on."""
    return Path(f"/proc/{broker.pid}/stat").read_text().rpartition(")")[2].split()


def cpu_wait_seconds(pid: int | str) -> float:
    """Return how long the main thread was ready to run and waited for a CPU; 0 if unknown."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def anonymous_mib(broker: Daemon) -> float:
    """Return the anonymous memory of the process; mapped files belong to the page cache."""
    path = Path(f"/proc/{broker.pid}/smaps_rollup")
    if not path.exists():
        pytest.skip("the memory of another process can be read on Linux only")
    return _mib(path, "Anonymous")


def peak_mib(broker: Daemon) -> float:
    """Return the peak memory of the process, including mapped files and the program."""
    return _mib(Path(f"/proc/{broker.pid}/status"), "VmHWM")


def _mib(path: Path, name: str) -> float:
    for line in path.read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"{path} has no {name}")


def open_files(broker: Daemon) -> list[str]:
    """Return what the file descriptors of the process refer to."""
    files = []
    for path in Path(f"/proc/{broker.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            files.append(str(path.readlink()))
    return files


def socket_count(broker: Daemon) -> int:
    """Return the number of open sockets. Files are not counted: their number may grow."""
    return sum(name.startswith("socket:") for name in open_files(broker))
