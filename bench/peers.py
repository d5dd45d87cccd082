"""The servers that are compared: how each is started, and when it is up.

All listen on the loopback interface, on ports of their own, with their files in a folder of their
own. What is not on the machine says so in `missing`.
"""

from __future__ import annotations

import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path

from processes import free_port, spawn, stop

START_SECONDS = 60
POLL_SECONDS = 0.001
#: ApiVersions v0, correlation id 1, no client id: what every client asks first.
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
#: What Kafka's own start script gives the JVM.
JVM = [
    *("-Xmx1g", "-Xms1g", "-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
]
#: The defaults, except for what a single broker needs, and files that go soon after their topic.
KAFKA_PROPERTIES = """
process.roles=broker,controller
node.id=0
controller.quorum.voters=0@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
auto.create.topics.enable=false
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
log.segment.delete.delay.ms=500
"""


class NotStartedError(Exception):
    """A server did not come up."""


class Server:
    """A server in a process of its own."""

    name: str
    #: What asks for an answer that a server gives once it is up.
    greeting: bytes

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.port = free_port()
        self.start_seconds = 0.0
        self.environment: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """Host and port."""
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """The process, which must have been started."""
        assert self._process is not None
        return self._process.pid

    def version(self) -> str:
        """Say which one it is."""
        raise NotImplementedError

    def prepare(self) -> None:
        """Do what is to be done once, before the first start."""
        self.data.mkdir(parents=True)

    def command(self) -> list[str]:
        """Give the command line."""
        raise NotImplementedError

    def start(self) -> None:
        """Start it on an empty folder, and wait for its first answer."""
        self.prepare()
        log = self.folder / "output"
        start = time.perf_counter()
        self._process = spawn(self.command(), log, **self.environment)
        while not self._answers():
            elapsed = time.perf_counter() - start
            if self._process.poll() is not None or elapsed > START_SECONDS:
                stop(self._process)
                said = log.read_text(errors="replace").strip().splitlines()
                raise NotStartedError(f"{self.name} did not start: {' / '.join(said[-3:])}")
            time.sleep(POLL_SECONDS)
        self.start_seconds = time.perf_counter() - start

    def stop(self) -> None:
        """Stop it, and remove its files."""
        if self._process is not None:
            stop(self._process)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), START_SECONDS) as connection:
                connection.sendall(self.greeting)
                return bool(connection.recv(1))
        except OSError:
            return False


class Ottla(Server):
    """The broker of this repository, with its defaults."""

    name = "ottla"
    greeting = API_VERSIONS

    @staticmethod
    def missing() -> str | None:
        """Say why it cannot be had."""
        return None

    def version(self) -> str:
        """Say which one it is."""
        return metadata.version("ottla")

    def prepare(self) -> None:
        """Have the source compiled, as an installation does it once."""
        super().prepare()
        self.environment = {
            "PYTHONDONTWRITEBYTECODE": "",
            "PYTHONPYCACHEPREFIX": str(self.folder / "compiled"),
        }
        command = [
            sys.executable,
            "-c",
            "import ottla.__main__, ottla.cli.broker, ottla.broker.daemon",
        ]
        subprocess.run(command, env=os.environ | self.environment, check=True)

    def command(self) -> list[str]:
        """Give the command line."""
        return [
            *(sys.executable, "-m", "ottla", "broker", "start"),
            *("--id", "0", "--data-dir", str(self.data), "--listen", self.address),
        ]


class Kafka(Server):
    """Apache Kafka from its jars: broker and controller in one JVM, as KRaft allows."""

    name = "kafka"
    greeting = API_VERSIONS

    def __init__(self, folder: Path, libs: Path) -> None:
        super().__init__(folder)
        self._libs = libs
        self._properties = folder / "server.properties"

    @staticmethod
    def missing(libs: Path | None) -> str | None:
        """Say why it cannot be had."""
        if libs is None:
            return "give the folder of its jars with --kafka-libs or KAFKA_LIBS"
        if not any(libs.glob("kafka_2.*.jar")):
            return f"no kafka_2.*.jar in {libs}"
        if shutil.which("java") is None:
            return "no java on PATH"
        return None

    def version(self) -> str:
        """Say which one it is, as its jar does."""
        return next(self._libs.glob("kafka_2.*.jar")).stem.rpartition("-")[2]

    def prepare(self) -> None:
        """Format the folder, which is not part of a start."""
        super().prepare()
        controller_port = free_port()
        text = KAFKA_PROPERTIES.format(
            port=self.port, controller_port=controller_port, data=self.data
        )
        self._properties.write_text(text)
        tool = ["kafka.tools.StorageTool", "format", "-t", "b3R0bGEtYmVuY2htYXJrcw"]
        done = subprocess.run(
            [*self._java("-XX:TieredStopAtLevel=1"), *tool, "-c", str(self._properties)],
            capture_output=True,
            text=True,
            timeout=START_SECONDS,
            check=False,
        )
        if done.returncode:
            raise NotStartedError(f"kafka's folder was not formatted: {done.stderr.strip()}")

    def command(self) -> list[str]:
        """Give the command line."""
        return [*self._java(*JVM), "kafka.Kafka", str(self._properties)]

    def _java(self, *options: str) -> list[str]:
        return ["java", *options, "-cp", str(self._libs / "*")]


class Redis(Server):
    """Redis with an append-only file, which is never rewritten while it is measured."""

    name = "redis"
    greeting = b"PING\r\n"

    @staticmethod
    def missing() -> str | None:
        """Say why it cannot be had."""
        return None if shutil.which("redis-server") else "no redis-server on PATH"

    def version(self) -> str:
        """Say which one it is; it does in words of the form v=7.0.15."""
        said = subprocess.check_output(["redis-server", "--version"], text=True)
        return next(word[2:] for word in said.split() if word.startswith("v="))

    def command(self) -> list[str]:
        """Give the command line."""
        return [
            *("redis-server", "--bind", "127.0.0.1", "--port", str(self.port)),
            *("--dir", str(self.data), "--save", "", "--appendonly", "yes"),
            *("--appendfsync", "no", "--auto-aof-rewrite-percentage", "0"),
        ]
