"""Who a request comes from: the principal that authentication established."""

from __future__ import annotations

from typing import NamedTuple

USER_TYPE = "User"


class KafkaPrincipal(NamedTuple):
    """A type and a name. Authentication establishes users; ACLs may name other types."""

    type: str
    name: str

    def __str__(self) -> str:
        return f"{self.type}:{self.name}"

    @classmethod
    def parse(cls, text: str) -> KafkaPrincipal:
        """Return the principal written as TYPE:NAME. Raises ValueError."""
        kind, colon, name = text.partition(":")
        if not colon or not kind or not name:
            raise ValueError(f"Invalid principal {text!r}: expected TYPE:NAME, such as User:alice")
        return cls(kind, name)


def user(name: str) -> KafkaPrincipal:
    """Return the principal of an authenticated user."""
    return KafkaPrincipal(USER_TYPE, name)


#: On listeners without authentication, and with TLS that does not require a client certificate.
ANONYMOUS = user("ANONYMOUS")
