"""Apache Kafka from its jars: broker and controller in one JVM.

    with ApacheKafka(tmp_path) as kafka:
        kafka.address       # "127.0.0.1:20123"
        kafka.kill()        # SIGKILL
        kafka.start()       # on the same directory, at the same address

TEST_KAFKA_LIBS names the folder of the jars.
"""

from __future__ import annotations

import shutil
import subprocess
import time
from pathlib import Path
from typing import Self

from harness.clients.agents import JAVA
from harness.clients.base import kafka_libs
from harness.daemon import HOST, free_port, responds

START_SECONDS = 60
_PROPERTIES = """
process.roles=broker,controller
node.id=0
controller.quorum.voters=0@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
controller.listener.names=CONTROLLER
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs={data}
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
broker.session.timeout.ms=1000
broker.heartbeat.interval.ms=200
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=100
"""


class ApacheKafka:
    """One broker that can be started and killed repeatedly, on the same data and port."""

    #: More arguments of `kafka-storage format`.
    format_arguments: tuple[str, ...] = ()

    def __init__(self, folder: Path, **configs: str) -> None:
        self.log = folder / "kafka.log"
        self.port = free_port()
        self._properties = folder / "server.properties"
        self._process: subprocess.Popen[bytes] | None = None
        text = _PROPERTIES.format(
            host=HOST, port=self.port, controller_port=free_port(), data=folder / "data"
        )
        text += "".join(f"{name}={value}\n" for name, value in configs.items())
        self._properties.write_text(text)

    @staticmethod
    def missing() -> str | None:
        """Return why it is not available here; None: it is."""
        if shutil.which("java") is None:
            return "java is not installed"
        if kafka_libs() is None:
            return "TEST_KAFKA_LIBS does not name the folder of Apache Kafka's jars"
        return None

    @property
    def address(self) -> str:
        return f"{HOST}:{self.port}"

    def __enter__(self) -> Self:
        tool = ("kafka.tools.StorageTool", "format", "-t", "b3R0bGEtaXMtdGVzdGVkIQ")
        subprocess.run(
            self._java(*tool, "-c", str(self._properties), *self.format_arguments),
            capture_output=True,
            timeout=START_SECONDS,
            check=True,
        )
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> Self:
        """Start it and wait until it responds ApiVersions."""
        with self.log.open("ab") as log:
            command = self._java("kafka.Kafka", str(self._properties))
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        deadline = time.monotonic() + START_SECONDS
        while not responds(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"Kafka does not start:\n{self.log.read_text()[-4000:]}")
            time.sleep(0.02)
        return self

    def kill(self) -> None:
        """Send SIGKILL and wait for the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _java(self, *arguments: str) -> list[str]:
        return [*JAVA, "-Xmx512m", "-cp", f"{kafka_libs()}/*", *arguments]
