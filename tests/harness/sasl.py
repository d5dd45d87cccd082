"""SASL over raw connections: the client's messages, one by one, so that tests can change them."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

from harness.wire import WireClient
from ottla.protocol.api.sasl_authenticate import SaslAuthenticateRequest
from ottla.protocol.api.sasl_handshake import SaslHandshakeRequest
from ottla.protocol.scram import ScramMechanism, auth_message, parse_server_first, xor


def plain_token(user: str, password: str, authzid: str = "") -> bytes:
    """Return the message of PLAIN."""
    return f"{authzid}\0{user}\0{password}".encode()


def unsecured_token(**claims: Any) -> str:
    """Return a JSON Web Token without a signature."""
    claims = {"sub": "alice", "exp": time.time() + 3600, **claims}
    parts = [base64.urlsafe_b64encode(json.dumps(p).encode()) for p in ({"alg": "none"}, claims)]
    return ".".join(part.rstrip(b"=").decode() for part in parts) + "."


def bearer(token: str, authzid: str = "") -> bytes:
    """Return the first message of OAUTHBEARER."""
    return f"n,{authzid and f'a={authzid}'},\x01auth=Bearer {token}\x01\x01".encode()


class ScramClient:
    """One exchange. Attributes may be changed between the messages."""

    def __init__(self, mechanism: ScramMechanism, user: str, password: str) -> None:
        self.mechanism = mechanism
        self.password = password
        self.nonce = "fyko+d2lbbFgONRv9qkxdawL"
        self.bare = f"n={user},r={self.nonce}"
        self.header = "n,,"
        self.binding = b"n,,"

    def first(self) -> bytes:
        return f"{self.header}{self.bare}".encode()

    def final(self, server_first: bytes, nonce: str | None = None) -> bytes:
        mechanism, first = self.mechanism, parse_server_first(server_first)
        binding = base64.b64encode(self.binding).decode()
        without_proof = f"c={binding},r={nonce or first.nonce}"
        signed = auth_message(self.bare, server_first.decode(), without_proof)
        salted = mechanism.salted_password(self.password, first.salt, first.iterations)
        client_key = mechanism.hmac(salted, b"Client Key")
        proof = xor(client_key, mechanism.hmac(mechanism.hash(client_key), signed))
        self.signature = mechanism.hmac(mechanism.hmac(salted, b"Server Key"), signed)
        return f"{without_proof},p={base64.b64encode(proof).decode()}".encode()


async def handshake(client: WireClient, mechanism: str, version: int = 1) -> Any:
    """Return the response to SaslHandshake."""
    return await client.request(SaslHandshakeRequest(mechanism=mechanism), version)


async def token(client: WireClient, message: bytes, version: int = 2) -> Any:
    """Return the response to SaslAuthenticate."""
    return await client.request(SaslAuthenticateRequest(auth_bytes=message), version)


async def log_in(client: WireClient, user: str, password: str, mechanism: str = "PLAIN") -> Any:
    """Authenticate with PLAIN or SCRAM; return the last response."""
    response = await handshake(client, mechanism)
    assert response.error_code == 0, response
    scram = ScramMechanism.of(mechanism)
    if scram is None:
        return await token(client, plain_token(user, password))
    exchange = ScramClient(scram, user, password)
    challenge = await token(client, exchange.first())
    if challenge.error_code:
        return challenge
    return await token(client, exchange.final(bytes(challenge.auth_bytes)))
