"""All clients, and of whom a story can be told."""

from __future__ import annotations

import pytest

from compat.agents import Agent, Java, Kafkajs, Pipe
from compat.aio import Aiokafka
from compat.clients import Client
from compat.confluent import Confluent
from compat.kafka_python import KafkaPython
from compat.kcat import Kcat
from compat.ours import Ours

CLIENTS: dict[str, type[Client]] = {
    kind.name: kind for kind in (Confluent, KafkaPython, Aiokafka, Kcat, Kafkajs, Java, Ours)
}


def told_of(*verbs: str) -> pytest.MarkDecorator:
    """Let a test have `client`, one after the other all that have these verbs."""
    names = [name for name, kind in CLIENTS.items() if all(hasattr(kind, verb) for verb in verbs)]
    return pytest.mark.parametrize("client", names, indirect=True)


class Pipes:
    """The processes of clients that are not in Python, started when they are first needed."""

    def __init__(self) -> None:
        self._started: dict[type[Agent], Pipe] = {}

    def __getitem__(self, kind: type[Agent]) -> Pipe:
        if kind not in self._started:
            self._started[kind] = kind.start()
        return self._started[kind]

    def close(self) -> None:
        for pipe in self._started.values():
            pipe.close()


class Everybody:
    """Clients of one broker, made when they are first asked for."""

    def __init__(self, address: str, pipes: Pipes) -> None:
        self._address = address
        self._pipes = pipes
        self._made: dict[str, Client] = {}

    def __getitem__(self, name: str) -> Client:
        if name not in self._made:
            kind = CLIENTS[name]
            if reason := kind.missing():
                pytest.skip(reason)
            if issubclass(kind, Agent):
                self._made[name] = kind(self._address, self._pipes[kind])
            else:
                self._made[name] = kind(self._address)
        return self._made[name]

    @property
    def confluent(self) -> Confluent:
        """Who is always there, and helps where a story needs a second one."""
        found = self["confluent"]
        assert isinstance(found, Confluent)
        return found

    def here(self) -> list[str]:
        """Name those that are installed here."""
        return [name for name, kind in CLIENTS.items() if kind.missing() is None]

    def close(self) -> None:
        for client in self._made.values():
            client.close()
