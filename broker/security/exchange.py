"""What the SASL mechanisms of a broker have in common: one exchange of messages, without I/O."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from ottla.coord.principal import KafkaPrincipal


class Challenge(NamedTuple):
    """A message to the client, which has to answer."""

    message: bytes


class Accepted(NamedTuple):
    """The client is who it says, and gets a last message."""

    principal: KafkaPrincipal
    message: bytes = b""
    #: When what it has proved itself with expires, in milliseconds since the epoch.
    expires_at_ms: int | None = None


class AuthenticationError(Exception):
    """The client is not accepted. The reason is logged; the client gets `text`."""

    def __init__(self, reason: str, text: str) -> None:
        super().__init__(reason)
        self.text = text


class Exchange(Protocol):
    """One authentication with a mechanism."""

    async def receive(self, message: bytes) -> Challenge | Accepted:
        """Answer a message of the client. Raises AuthenticationError."""
