"""The measured servers: how to start each one, and how to tell that it is up.

All listen on the loopback interface, on free ports, with their data in a directory of their own.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

START_SECONDS = 60
STOP_SECONDS = 60
POLL_SECONDS = 0.001
#: ApiVersions v0, correlation id 1, no client id: the first request of every client.
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
#: The JVM options of Kafka's own start script.
JVM_OPTIONS = [
    *("-Xmx1g", "-Xms1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
]
#: Defaults, except for the replication of internal topics and a short delay for deleted files.
KAFKA_PROPERTIES = """
process.roles=broker,controller
node.id={node_id}
controller.quorum.voters={voters}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor={replicas}
transaction.state.log.replication.factor={replicas}
transaction.state.log.min.isr={min_isr}
log.segment.delete.delay.ms=500
"""


class ServerError(Exception):
    """A server did not start."""


def free_port() -> int:
    """Return a free port of the loopback interface."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Server:
    """A server process. Subclasses define how it is prepared and started."""

    name: str
    #: A request that the server answers once it is up.
    probe = API_VERSIONS

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.port = free_port()
        self.start_seconds = 0.0
        self._started_at = 0.0
        self.environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The id of the running process."""
        assert self._process is not None
        return self._process.pid

    @property
    def output(self) -> Path:
        """The file with stdout and stderr of the process."""
        return self.directory / "output"

    def version(self) -> str:
        """Return the version of the server."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Create the data directory; not part of the measured startup."""
        self.data.mkdir(parents=True, exist_ok=True)

    def command(self) -> list[str]:
        """Return the command line."""
        raise NotImplementedError

    def start(self) -> None:
        """Start the process, and wait for its first response."""
        self.prepare()
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start the process without waiting for it."""
        self._started_at = time.perf_counter()
        with self.output.open("ab") as output:
            self._process = subprocess.Popen(
                self.command(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=os.environ | self.environment,
                # Ctrl-C is for the benchmark, which then stops its servers.
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait for the first response of a process that was launched."""
        assert self._process is not None
        while not self._responds():
            elapsed = time.perf_counter() - self._started_at
            if self._process.poll() is not None or elapsed > START_SECONDS:
                self.end()
                last = self.output.read_text(errors="replace").strip().splitlines()[-3:]
                raise ServerError(f"{self.name} did not start: {' / '.join(last)}")
            time.sleep(POLL_SECONDS)
        self.start_seconds = time.perf_counter() - self._started_at

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """Send a signal to the process and wait for its end; kill it if it takes too long."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()

    def stop(self) -> None:
        """Stop the process, and delete its files."""
        self.end()
        shutil.rmtree(self.directory, ignore_errors=True)

    def _responds(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), START_SECONDS) as connection:
                connection.sendall(self.probe)
                return bool(connection.recv(1))
        except OSError:
            return False


class Ottla(Server):
    """The broker of this repository, with its default configs and some more options."""

    name = "ottla"

    def __init__(self, directory: Path, *options: str, broker_id: int = 0) -> None:
        super().__init__(directory)
        self._options = ("--id", str(broker_id), *options)

    def version(self) -> str:
        """Return the version of the package."""
        return metadata.version("ottla")

    def prepare(self) -> None:
        """Compile the bytecode, as an installation does."""
        super().prepare()
        self.environment = {
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(self.directory / "bytecode"),
        }
        modules = "import ottla.__main__, ottla.cli.broker, ottla.broker.daemon"
        command = [sys.executable, "-c", modules]
        subprocess.run(command, env=os.environ | self.environment, check=True)

    def command(self) -> list[str]:
        """Return the command line."""
        return [
            *(sys.executable, "-m", "ottla", "broker", "start", *self._options),
            *("--data-dir", str(self.data), "--listen", self.address),
        ]


class Kafka(Server):
    """Apache Kafka from its jars: broker and controller in one JVM (KRaft).

    `controller_ports` are those of all nodes of its cluster, of which this one is `node_id`.
    """

    name = "kafka"

    def __init__(
        self,
        directory: Path,
        libs: Path,
        node_id: int = 0,
        controller_ports: Sequence[int] = (),
    ) -> None:
        super().__init__(directory)
        self._libs = libs
        self._node_id = node_id
        self._controller_ports = controller_ports or [free_port()]
        self._properties = directory / "server.properties"
        #: Configs besides the default ones, which they replace.
        self.properties: Mapping[str, str] = {}
        self.format_options: Sequence[str] = ()

    @property
    def controller(self) -> str:
        """Host and port of the controller's listener."""
        return f"127.0.0.1:{self._controller_ports[self._node_id]}"

    @staticmethod
    def missing(libs: Path | None) -> str | None:
        """Return why it cannot run here, if it cannot."""
        if libs is None:
            return "set --kafka-libs or KAFKA_LIBS to the directory of its jars"
        if not any(libs.glob("kafka_2.*.jar")):
            return f"no kafka_2.*.jar in {libs}"
        if shutil.which("java") is None:
            return "no java on PATH"
        return None

    def version(self) -> str:
        """Return the version in the name of its jar."""
        return next(self._libs.glob("kafka_2.*.jar")).stem.rpartition("-")[2]

    def prepare(self) -> None:
        """Format the data directory, unless it has been formatted."""
        super().prepare()
        if self._properties.exists():
            return
        ports = self._controller_ports
        text = KAFKA_PROPERTIES.format(
            node_id=self._node_id,
            voters=",".join(f"{number}@127.0.0.1:{port}" for number, port in enumerate(ports)),
            port=self.port,
            controller_port=ports[self._node_id],
            data=self.data,
            replicas=len(ports),
            min_isr=(len(ports) + 1) // 2,
        )
        text += "".join(f"{name}={value}\n" for name, value in self.properties.items())
        self._properties.write_text(text)
        tool = ["kafka.tools.StorageTool", "format", "-t", "b3R0bGEtYmVuY2htYXJrcw"]
        tool += self.format_options
        done = subprocess.run(
            [*self._java("-XX:TieredStopAtLevel=1"), *tool, "-c", str(self._properties)],
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        if done.returncode:
            raise ServerError(f"kafka storage format failed: {done.stderr.strip()}")

    def command(self) -> list[str]:
        """Return the command line."""
        return [*self._java(*JVM_OPTIONS), "kafka.Kafka", str(self._properties)]

    def _java(self, *options: str) -> list[str]:
        return ["java", *options, "-cp", str(self._libs / "*")]


class Redis(Server):
    """Redis with an append-only file that is not rewritten during the measurement."""

    name = "redis"
    probe = b"PING\r\n"

    @staticmethod
    def missing() -> str | None:
        """Return why it cannot run here, if it cannot."""
        return None if shutil.which("redis-server") else "no redis-server on PATH"

    def version(self) -> str:
        """Return the version, which it prints as v=7.0.15."""
        output = subprocess.check_output(["redis-server", "--version"], text=True)
        return next(word[2:] for word in output.split() if word.startswith("v="))

    def command(self) -> list[str]:
        """Return the command line."""
        return [
            *("redis-server", "--bind", "127.0.0.1", "--port", str(self.port)),
            *("--dir", str(self.data), "--save", "", "--appendonly", "yes"),
            *("--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"),
        ]
