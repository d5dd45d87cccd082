"""All clients by name, and tests that run with each of them."""

from __future__ import annotations

import pytest

from harness.clients.agents import Agent, AgentProcess, Java, Kafkajs
from harness.clients.aio import Aiokafka
from harness.clients.base import Client
from harness.clients.confluent import Confluent
from harness.clients.kafka_python import KafkaPython
from harness.clients.kcat import Kcat
from harness.clients.sdk import Ottla

CLIENTS: dict[str, type[Client]] = {
    kind.name: kind for kind in (Confluent, KafkaPython, Aiokafka, Kcat, Kafkajs, Java, Ottla)
}


def with_every_client(*methods: str) -> pytest.MarkDecorator:
    """Parametrize the fixture `client` with every client that has these methods."""
    names = [name for name, kind in CLIENTS.items() if all(hasattr(kind, m) for m in methods)]
    return pytest.mark.parametrize("client", names, indirect=True)


class AgentProcesses:
    """The processes of clients in other languages, started on first use."""

    def __init__(self) -> None:
        self._started: dict[type[Agent], AgentProcess] = {}

    def __getitem__(self, kind: type[Agent]) -> AgentProcess:
        if kind not in self._started:
            self._started[kind] = kind.start()
        return self._started[kind]

    def close(self) -> None:
        for process in self._started.values():
            process.close()


class Clients:
    """The clients of one broker, created on first use."""

    def __init__(self, address: str, agent_processes: AgentProcesses) -> None:
        self._address = address
        self._agent_processes = agent_processes
        self._created: dict[str, Client] = {}

    def __getitem__(self, name: str) -> Client:
        if name not in self._created:
            kind = CLIENTS[name]
            if reason := kind.missing():
                pytest.skip(reason)
            if issubclass(kind, Agent):
                self._created[name] = kind(self._address, self._agent_processes[kind])
            else:
                self._created[name] = kind(self._address)
        return self._created[name]

    @property
    def confluent(self) -> Confluent:
        """The client that is always installed; it does what a test needs on the side."""
        client = self["confluent"]
        assert isinstance(client, Confluent)
        return client

    def installed(self) -> list[str]:
        """Return the names of the clients that are installed here."""
        return [name for name, kind in CLIENTS.items() if kind.missing() is None]

    def close(self) -> None:
        for client in self._created.values():
            client.close()
