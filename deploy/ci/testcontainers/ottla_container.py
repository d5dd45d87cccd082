"""A broker in a container, for tests with testcontainers (`pip install testcontainers`).

    with OttlaContainer() as broker:
        producer = KafkaProducer(bootstrap_servers=broker.bootstrap_servers)

Tests in Python need no container: the pytest fixture `ottla_broker` starts in milliseconds. This is
for those that test containers anyway.
"""

from __future__ import annotations

import socket

from testcontainers.core.container import DockerContainer
from testcontainers.core.waiting_utils import wait_for_logs


class OttlaContainer(DockerContainer):  # type: ignore[misc]
    """A broker on a free port of this machine."""

    def __init__(self, image: str = "ottla", **options: object) -> None:
        super().__init__(image, **options)
        # Clients are told the address to connect to, so the port is chosen before the start.
        self._port = free_port()
        self.with_bind_ports(self._port, self._port)
        for name, value in environment(self._port).items():
            self.with_env(name, value)

    @property
    def bootstrap_servers(self) -> str:
        """The address for clients on this machine."""
        return f"localhost:{self._port}"

    def start(self) -> OttlaContainer:
        """Start the broker, and wait until it serves."""
        super().start()
        wait_for_logs(self, r"\bready\b", timeout=30)
        return self


def environment(port: int) -> dict[str, str]:
    """Return the variables of the container."""
    return {
        "OTTLA_LISTENERS": f"PLAINTEXT://:{port}",
        "OTTLA_ADVERTISED_LISTENERS": f"PLAINTEXT://localhost:{port}",
        "OTTLA_ALLOW_INSECURE_LISTENERS": "true",
        "OTTLA_LOG_DURABILITY": "page-cache",
        "OTTLA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
    }


def free_port() -> int:
    """Return a port that nothing listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
        assert isinstance(port, int)
        return port
