"""A cluster of local processes, in one terminal: what `ottla cluster up` does.

    <folder>/cluster.toml     who is in it; written anew each time
    <folder>/broker-0/ …      the data of each

Each broker is an ordinary `ottla broker start`, so one that has ended can be started by hand. What
they log is told line by line, with the number of the broker.
"""

from __future__ import annotations

import asyncio
import errno
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

_HOST = "127.0.0.1"
# What each broker has of its own, or the cluster file says: neither flags nor environment do.
_DECIDED = (
    "broker.id",
    "log.dir",
    "listeners",
    "advertised.listeners",
    "cluster.brokers",
    "inter.broker.listener.name",
)
_LOOK_SECONDS = 0.05
_CHUNK_BYTES = 64 * 1024
_INTERRUPTED = 128 + signal.SIGINT

#: Shows a line: of the broker with this number, or, if it is None, of the cluster.
Say = Callable[[int | None, str], None]


class NotStartedError(Exception):
    """The cluster is not up; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class Plan:
    """Who is to be there, where, and with which settings."""

    folder: Path
    count: int
    first_port: int
    settings: Mapping[str, str] = field(default_factory=dict)

    @property
    def addresses(self) -> list[Endpoint]:
        """Where the brokers listen."""
        ports = range(self.first_port, self.first_port + self.count)
        return [Endpoint("PLAINTEXT", _HOST, port) for port in ports]

    @property
    def places(self) -> list[str]:
        """The same, as host:port."""
        return [f"{address.host}:{address.port}" for address in self.addresses]

    def command(self, number: int) -> list[str]:
        """Give the arguments of `ottla` that start a broker."""
        file, data = str(self.folder / "cluster.toml"), str(self._data_of(number))
        settings = [word for pair in self.settings.items() for word in ("--set", "=".join(pair))]
        return [
            *("broker", "start", "--id", str(number)),
            *("--cluster", file, "--data-dir", data, *settings),
        ]

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Give the environment that brokers have, of the one that is here."""
        decided = {environment_variable(name) for name in _DECIDED}
        return {name: text for name, text in environ.items() if name not in decided}

    def check(self, environ: Mapping[str, str]) -> None:
        """Raise ConfigError or NotStartedError for what cannot be, as far as is known before."""
        for name in _DECIDED:
            if name in self.settings:
                raise ConfigError(f"{name}: it cannot be set here, each broker has its own")
        if self.addresses[-1].port > 65535:
            raise ConfigError(f"{self.count} ports from {self.first_port} on: the last is 65535")
        load_broker_config(self.settings, self.environ(environ))
        self._check_folder()
        for address in self.addresses:
            _check_free(address)

    def write(self) -> None:
        """Write the cluster file. Raises OSError."""
        brokers = [
            f'\n[[brokers]]\nid = {number}\naddress = "{place}"\n'
            for number, place in enumerate(self.places)
        ]
        self.folder.mkdir(parents=True, exist_ok=True)
        text = "".join(["# Written by `ottla cluster up`, each time anew.\n", *brokers])
        (self.folder / "cluster.toml").write_text(text, encoding="utf-8")

    def _data_of(self, number: int) -> Path:
        return self.folder / f"broker-{number}"

    def _check_folder(self) -> None:
        if (self.folder / "meta.json").exists():
            raise NotStartedError(
                f"{self.folder} is the data directory of a single broker; choose another --data-dir"
            )
        there = {path.parent for path in self.folder.glob("broker-*/meta.json")}
        left_out = there - {self._data_of(number) for number in range(self.count)}
        if left_out:
            names = ", ".join(sorted(path.name for path in left_out))
            raise NotStartedError(
                f"{self.folder} has partitions of {names} as well: take more --brokers, or choose"
                " another --data-dir"
            )


class LocalCluster:
    """The processes, from their start until all have ended."""

    def __init__(self, plan: Plan, say: Say) -> None:
        self._plan = plan
        self._say = say
        self._processes: list[Process] = []
        self._watches: list[asyncio.Task[None]] = []
        self._is_to_stop = asyncio.Event()
        #: Whether somebody could not wait for the end.
        self.was_killed = False

    async def start(self, environ: Mapping[str, str]) -> bool:
        """Start all; whether all answer, and none was asked to stop before.

        Raises NotStartedError if one ends instead. Then the others were stopped.
        """
        for number in range(self._plan.count):
            await self._start_one(number, environ)
        answered = asyncio.create_task(_answered(self._plan.addresses))
        to_stop = asyncio.create_task(self._is_to_stop.wait())
        awaited: list[asyncio.Task[Any]] = [answered, to_stop, *self._watches]
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        answered.cancel()
        to_stop.cancel()
        failed = [number for number, watch in enumerate(self._watches) if watch.done()]
        if failed and not self._is_to_stop.is_set():
            self.stop()
            await self.ended()
            names = " and ".join(f"broker-{number}" for number in failed)
            raise NotStartedError(f"{names} did not start, and the others were stopped")
        return not self._is_to_stop.is_set()

    def tell(self, show: Callable[..., None], *what: object) -> None:
        """Show something. If nobody looks any more, the cluster is stopped."""
        try:
            show(*what)
        except BrokenPipeError:
            if not self._is_to_stop.is_set():
                self.stop()

    def stop(self) -> None:
        """Ask all to stop; the second time, make them."""
        self.was_killed = self._is_to_stop.is_set()
        self._is_to_stop.set()
        for process in self._processes:
            if process.returncode is None:
                process.send_signal(signal.SIGKILL if self.was_killed else signal.SIGTERM)

    async def ended(self) -> bool:
        """Wait until none is left; whether all have ended as they should."""
        await asyncio.gather(*self._watches)
        return all(process.returncode == 0 for process in self._processes)

    async def _start_one(self, number: int, environ: Mapping[str, str]) -> None:
        if self._is_to_stop.is_set():
            return
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ottla", *self._plan.command(number)),
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env=self._plan.environ(environ),
            # Ctrl-C is for this process, which passes it on: two signals are for those in a hurry.
            process_group=0,
        )
        self._processes.append(process)
        self._watches.append(asyncio.create_task(self._watch(number, process)))
        if self._is_to_stop.is_set():  # meanwhile
            process.terminate()

    async def _watch(self, number: int, process: Process) -> None:
        """Show what a broker logs, until it ends."""
        assert process.stdout is not None
        rest = b""
        while data := await process.stdout.read(_CHUNK_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                self.tell(self._say, number, line.decode(errors="replace"))
        if rest:
            self.tell(self._say, number, rest.decode(errors="replace"))
        code = await process.wait()
        if not self._is_to_stop.is_set():
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            command = shlex.join(["ottla", *self._plan.command(number)])
            text = f"broker-{number} has ended ({how}); to start it again: {command}"
            self.tell(self._say, None, text)


async def run(plan: Plan, environ: Mapping[str, str], say: Say, ready: Callable[[], None]) -> int:
    """Run a cluster until it is stopped; give the exit code. Raises NotStartedError."""
    cluster = LocalCluster(plan, say)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, cluster.stop)
    is_up = await cluster.start(environ)
    if is_up:
        cluster.tell(ready)
    is_clean = await cluster.ended()
    if cluster.was_killed or not is_up:
        return _INTERRUPTED
    return 0 if is_clean else 1


async def _answered(addresses: Iterable[Endpoint]) -> None:
    """Wait until a broker answers at each of these."""
    for address in addresses:
        while True:
            try:
                connection = await BrokerConnection.open(address.host, address.port, ClientConfig())
            except (ClientError, KafkaError):
                await asyncio.sleep(_LOOK_SECONDS)
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
                f"{address.host}:{address.port} is taken: stop what listens there, or take other"
                " ports: --port FIRST"
            ) from None
