"""The client's side of SASL: PLAIN, SCRAM (RFC 5802) and OAUTHBEARER (RFC 7628). No I/O.

    exchange = Scram(ScramMechanism.SHA_256, "alice", "secret")
    send(exchange.first())
    while not exchange.is_complete:
        send(exchange.respond(receive()))     # the last answer of the broker needs no response

SCRAM proves to the broker that the client knows the password, without sending it, and to the client
that the broker knows it, too: an answer whose nonce or signature is wrong raises SaslError.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import b64encode
from functools import lru_cache
from typing import ClassVar, Protocol

from ottla.protocol import scram
from ottla.protocol.scram import ScramMechanism

#: More would be a broker that wants to keep the client busy: these take about a second.
MAX_ITERATIONS = 1_000_000

MECHANISMS = ("PLAIN", *(member.mechanism for member in ScramMechanism), "OAUTHBEARER")


class SaslError(Exception):
    """The broker's answer violates the mechanism, or the broker could not prove who it is."""


class SaslExchange(Protocol):
    """One exchange of messages. It is over when `is_complete`, unless the broker fails it."""

    #: Whether `respond` computes for milliseconds, and belongs into a thread.
    is_slow: ClassVar[bool]
    #: Whether the broker has to say nothing more.
    is_complete: bool

    def first(self) -> bytes:
        """Return the first message."""
        ...

    def respond(self, challenge: bytes) -> bytes | None:
        """Return the next message; None: the exchange is complete. Raises SaslError."""
        ...


class Plain:
    """PLAIN: name and password as they are; for use over TLS."""

    is_slow: ClassVar[bool] = False

    def __init__(self, username: str, password: str) -> None:
        self.is_complete = False
        self._message = f"\0{username}\0{password}".encode()

    def first(self) -> bytes:
        """Return name and password."""
        return self._message

    def respond(self, _challenge: bytes) -> None:
        """Accept the broker's answer, which is empty."""
        self.is_complete = True


class Scram:
    """SCRAM-SHA-256 and SCRAM-SHA-512, without channel binding."""

    is_slow: ClassVar[bool] = True

    def __init__(
        self, mechanism: ScramMechanism, username: str, password: str, *, nonce: str | None = None
    ) -> None:
        self.is_complete = False
        self._mechanism = mechanism
        self._password = password
        self._nonce = nonce or secrets.token_urlsafe(24)
        self._first_bare = f"n={scram.escape(username)},r={self._nonce}"
        self._server_signature: bytes | None = None

    def first(self) -> bytes:
        """Return the name and the client's nonce."""
        return f"n,,{self._first_bare}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """Return the proof, or verify the broker's signature. Takes milliseconds."""
        try:
            if self._server_signature is None:
                return self._prove(challenge)
            signature = scram.parse_server_final(challenge)
        except scram.ScramError as error:
            raise SaslError(str(error)) from None
        if not hmac.compare_digest(signature, self._server_signature):
            raise SaslError("the signature is wrong: the broker does not know the password")
        self.is_complete = True
        return None

    def _prove(self, challenge: bytes) -> bytes:
        mechanism = self._mechanism
        first = scram.parse_server_first(challenge)
        # Not equal to the client's: a broker that adds nothing lets exchanges be replayed.
        if not first.nonce.startswith(self._nonce) or len(first.nonce) == len(self._nonce):
            raise SaslError("the nonce is not that of the client: somebody may have replayed it")
        if not scram.MIN_ITERATIONS <= first.iterations <= MAX_ITERATIONS:
            raise SaslError(
                f"{first.iterations} iterations: must be from {scram.MIN_ITERATIONS} to"
                f" {MAX_ITERATIONS}"
            )
        salted = _salted_password(mechanism, self._password, first.salt, first.iterations)
        client_key = mechanism.hmac(salted, b"Client Key")
        server_key = mechanism.hmac(salted, b"Server Key")
        without_proof = f"c=biws,r={first.nonce}"
        signed = scram.auth_message(self._first_bare, challenge.decode(), without_proof)
        proof = scram.xor(client_key, mechanism.hmac(mechanism.hash(client_key), signed))
        self._server_signature = mechanism.hmac(server_key, signed)
        return f"{without_proof},p={b64encode(proof).decode()}".encode()


class OAuthBearer:
    """OAUTHBEARER: a token."""

    is_slow: ClassVar[bool] = False

    def __init__(self, token: str) -> None:
        self.is_complete = False
        if not token or not token.isascii() or not token.isprintable():
            raise SaslError("the token is empty, or has characters that tokens cannot have")
        self._token = token
        self._failure: str | None = None

    def first(self) -> bytes:
        """Return the token."""
        return f"n,,\1auth=Bearer {self._token}\1\1".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """Accept an empty answer; acknowledge one that says why the token is rejected."""
        if challenge and self._failure is None:
            self._failure = challenge.decode(errors="replace")
            return b"\1"  # The broker fails the exchange only now.
        if self._failure is not None:
            raise SaslError(f"the broker rejected the token: {self._failure[:200]}")
        self.is_complete = True
        return None


@lru_cache(maxsize=16)
def _salted_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> bytes:
    """Derive the key that all connections of a user to a cluster share, once."""
    return mechanism.salted_password(password, salt, iterations)
