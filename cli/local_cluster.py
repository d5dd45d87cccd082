"""A cluster of local broker processes in one terminal, for `ottla cluster up`.

    <folder>/cluster.toml     the cluster file, rewritten at every start
    <folder>/broker-0/ …      the data directory of each broker
    <folder>/etcd/            the data of the metadata store, with --replicated; no cluster file

Each broker is an ordinary `ottla broker start`, so one that has exited can be restarted by hand.
"""

from __future__ import annotations

import asyncio
import errno
import os
import shlex
import signal
import socket
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT, Process
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ottla.broker.config.broker_config import ConfigError
from ottla.broker.config.loader import environment_variable, load_broker_config
from ottla.broker.net.listeners import Endpoint
from ottla.client.config import ClientConfig
from ottla.client.connection import BrokerConnection
from ottla.client.errors import ClientError, KafkaError

from .local_etcd import etcd_command

_HOST = "127.0.0.1"
# Set per broker or by the cluster file, so neither flags nor the environment may set them.
_RESERVED = (
    "broker.id",
    "cluster.store",
    "log.dir",
    "listeners",
    "advertised.listeners",
    "cluster.brokers",
    "inter.broker.listener.name",
)
_POLL_SECONDS = 0.05
_CHUNK_BYTES = 64 * 1024
_INTERRUPTED = 128 + signal.SIGINT

#: Prints a log line of a broker (its id) or of "etcd", or, with None, a message about the cluster.
PrintLine = Callable[[int | str | None, str], None]

_ETCD = "etcd"
_ETCD_SECONDS = 30.0
_STORE_NAME = "local"


class NotStartedError(Exception):
    """The cluster did not start."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The brokers to start, their ports and their configs."""

    folder: Path
    count: int
    first_port: int
    configs: Mapping[str, str] = field(default_factory=dict)
    #: The etcd program, for a cluster with a metadata store.
    etcd: Path | None = None

    @property
    def etcd_ports(self) -> tuple[int, int]:
        """The ports of etcd for brokers and for other members: those after the last broker's."""
        return self.first_port + self.count, self.first_port + self.count + 1

    @property
    def store(self) -> str:
        """The value of `cluster.store`."""
        return f"etcd://{_HOST}:{self.etcd_ports[0]}/{_STORE_NAME}"

    def etcd_command(self) -> list[str]:
        """Return the command that starts etcd."""
        assert self.etcd is not None
        return etcd_command(self.etcd, self.folder / _ETCD, *self.etcd_ports)

    @property
    def addresses(self) -> list[Endpoint]:
        """The addresses the brokers listen on."""
        ports = range(self.first_port, self.first_port + self.count)
        return [Endpoint("PLAINTEXT", _HOST, port) for port in ports]

    @property
    def bootstrap_servers(self) -> list[str]:
        """The addresses as host:port."""
        return [f"{address.host}:{address.port}" for address in self.addresses]

    def command(self, number: int) -> list[str]:
        """Return the arguments of `ottla` that start a broker."""
        file, data = str(self.folder / "cluster.toml"), str(self._data_of(number))
        config_flags = [word for pair in self.configs.items() for word in ("--set", "=".join(pair))]
        cluster = ["--cluster", file]
        if self.etcd is not None:
            address = self.bootstrap_servers[number]
            cluster = ["--listen", address, "--set", f"cluster.store={self.store}"]
        return [
            *("broker", "start", "--id", str(number)),
            *(*cluster, "--data-dir", data, *config_flags),
        ]

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return `environ` without the variables that must not reach the brokers."""
        reserved = {environment_variable(name) for name in _RESERVED}
        return {name: text for name, text in environ.items() if name not in reserved}

    def check(self, environ: Mapping[str, str]) -> None:
        """Raise ConfigError or NotStartedError for problems that are known before the start."""
        for name in _RESERVED:
            if name in self.configs:
                raise ConfigError(
                    f"Config {name} cannot be set here: each broker has its own value"
                )
        last_port = self.addresses[-1].port if self.etcd is None else self.etcd_ports[1]
        if last_port > 65535:
            raise ConfigError(
                f"{last_port - self.first_port + 1} ports from {self.first_port} on exceed the last"
                " port, 65535"
            )
        load_broker_config(self.configs, self.environ(environ))
        self._check_folder()
        for address in self.addresses:
            _check_free(address)
        if self.etcd is not None:
            for port in self.etcd_ports:
                _check_free(Endpoint(_ETCD, _HOST, port))

    def write(self) -> None:
        """Write the cluster file, unless there is a metadata store. Raises OSError."""
        if self.etcd is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            return
        brokers = [
            f'\n[[brokers]]\nid = {number}\naddress = "{address}"\n'
            for number, address in enumerate(self.bootstrap_servers)
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        text = "".join(["# Written by `ottla cluster up` at every start.\n", *brokers])
        (self.folder / "cluster.toml").write_text(text, encoding="utf-8")

    def _data_of(self, number: int) -> Path:
        return self.folder / f"broker-{number}"

    def _check_folder(self) -> None:
        if (self.folder / "meta.json").exists():
            raise NotStartedError(
                f"{self.folder} is the data directory of a single broker; use another --data-dir"
            )
        existing = {path.parent for path in self.folder.glob("broker-*/meta.json")}
        if existing and (self.folder / _ETCD).exists() != (self.etcd is not None):
            how = "without" if self.etcd is not None else "with"
            raise NotStartedError(
                f"{self.folder} has a cluster that was started {how} --replicated; start it so, or"
                " use another --data-dir"
            )
        excluded = existing - {self._data_of(number) for number in range(self.count)}
        if excluded:
            names = ", ".join(sorted(path.name for path in excluded))
            raise NotStartedError(
                f"{self.folder} also has the data of {names}; start more --brokers, or use another"
                " --data-dir"
            )


class LocalCluster:
    """The broker processes, from start to exit."""

    def __init__(self, plan: Plan, print_line: PrintLine) -> None:
        self._plan = plan
        self._print_line = print_line
        self._processes: list[Process] = []
        self._watches: list[asyncio.Task[None]] = []
        self._etcd: Process | None = None
        self._etcd_watch: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        #: Whether the brokers were killed by a second signal.
        self.was_killed = False

    async def start(self, environ: Mapping[str, str]) -> bool:
        """Start all brokers; return whether all are up and no stop was requested.

        Raises NotStartedError if a broker exits; the others are stopped then.
        """
        if self._plan.etcd is not None:
            await self._start_etcd()
        for number in range(self._plan.count):
            await self._start_one(number, environ)
        all_up = asyncio.create_task(_wait_until_up(self._plan.addresses))
        stop_requested = asyncio.create_task(self._stopping.wait())
        awaited: list[asyncio.Task[Any]] = [all_up, stop_requested, *self._watches]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        all_up.cancel()
        stop_requested.cancel()
        failed = [number for number, watch in enumerate(self._watches) if watch.done()]
        if failed and not self._stopping.is_set():
            self.stop()
            await self.wait()
            names = " and ".join(f"broker-{number}" for number in failed)
            raise NotStartedError(f"{names} did not start; stopped the other brokers")
        return not self._stopping.is_set()

    def print_or_stop(self, print_: Callable[..., None], *arguments: object) -> None:
        """Print something; stop the cluster if the output was closed."""
        try:
            print_(*arguments)
        except BrokenPipeError:
            _discard_output()
            if not self._stopping.is_set():
                self.stop()

    def stop(self) -> None:
        """Terminate all brokers; kill them when called again."""
        self.was_killed = self._stopping.is_set()
        self._stopping.set()
        for process in self._processes:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL if self.was_killed else signal.SIGTERM)
        if self.was_killed and self._etcd is not None and self._etcd.returncode is None:
            self._etcd.kill()

    async def wait(self) -> bool:
        """Wait until all brokers have exited; return whether all exited with code 0.

        etcd is stopped last: brokers give up their registrations in it.
        """
        await asyncio.gather(*self._watches)
        if self._etcd is not None and self._etcd_watch is not None:
            self._stopping.set()
            if self._etcd.returncode is None:
                self._etcd.terminate()
            await self._etcd_watch
        return all(process.returncode == 0 for process in self._processes)

    async def _start_etcd(self) -> None:
        """Start etcd and wait until it answers. Raises NotStartedError."""
        self._etcd = await asyncio.create_subprocess_exec(
            *self._plan.etcd_command(), stdin=DEVNULL, stdout=PIPE, stderr=STDOUT, process_group=0
        )
        self._etcd_watch = asyncio.create_task(self._watch(_ETCD, self._etcd))
        port = self._plan.etcd_ports[0]
        try:
            async with asyncio.timeout(_ETCD_SECONDS):
                while self._etcd.returncode is None:
                    try:
                        _reader, writer = await asyncio.open_connection(_HOST, port)
                    except OSError:
                        await asyncio.sleep(_POLL_SECONDS)
                    else:
                        writer.close()
                        return
        except TimeoutError:
            self._etcd.kill()
        await self._etcd_watch
        raise NotStartedError(f"etcd did not start: {shlex.join(self._plan.etcd_command())}")

    async def _start_one(self, number: int, environ: Mapping[str, str]) -> None:
        if self._stopping.is_set():
            return
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ottla", *self._plan.command(number)),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env=self._plan.environ(environ),
            # Ctrl-C reaches this process only, which passes it on: a second one means SIGKILL.
            process_group=0,
        )
        self._processes.append(process)
        self._watches.append(asyncio.create_task(self._watch(number, process)))
        if self._stopping.is_set():
            process.terminate()

    async def _watch(self, number: int | str, process: Process) -> None:
        """Print the log lines of a broker, or of etcd, until it exits."""
        assert process.stdout is not None
        remainder = b""
        while data := await process.stdout.read(_CHUNK_BYTES):
            *lines, remainder = (remainder + data).split(b"\n")
            for line in lines:
                self.print_or_stop(self._print_line, number, line.decode(errors="replace"))
        if remainder:
            self.print_or_stop(self._print_line, number, remainder.decode(errors="replace"))
        code = await process.wait()
        if not self._stopping.is_set():
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            if isinstance(number, int):
                name, words = f"broker-{number}", ["ottla", *self._plan.command(number)]
            else:
                name, words = number, self._plan.etcd_command()
            text = f"{name} exited ({how}); to restart it: {shlex.join(words)}"
            self.print_or_stop(self._print_line, None, text)


async def run(
    plan: Plan, environ: Mapping[str, str], print_line: PrintLine, ready: Callable[[], None]
) -> int:
    """Run a cluster until it is stopped; return the exit code. Raises NotStartedError."""
    cluster = LocalCluster(plan, print_line)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, cluster.stop)
    is_up = await cluster.start(environ)
    if is_up:
        cluster.print_or_stop(ready)
    is_clean = await cluster.wait()
    if cluster.was_killed or not is_up:
        return _INTERRUPTED
    return 0 if is_clean else 1


def _discard_output() -> None:
    """Send the output whose reader is gone nowhere; Python exits with 120 if it cannot flush."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except BrokenPipeError:
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)


async def _wait_until_up(addresses: Iterable[Endpoint]) -> None:
    """Wait until a broker answers at each address."""
    for address in addresses:
        while True:
            try:
                connection = await BrokerConnection.open(address.host, address.port, ClientConfig())
            except (ClientError, KafkaError):
                await asyncio.sleep(_POLL_SECONDS)
            else:
                connection.close()
                break


def _check_free(address: Endpoint) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address.host, address.port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            raise NotStartedError(
                f"{address.host}:{address.port} is in use; stop the process on that port, or use"
                " other ports: --port FIRST"
            ) from None
