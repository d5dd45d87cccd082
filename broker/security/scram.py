"""SCRAM on the broker's side, and the users whose credentials are in the metadata.

A user that does not exist gets a salt, too, always the same, and fails with the second message as a
wrong password does: nobody can find out who exists.
"""

from __future__ import annotations

import hmac
import secrets
from base64 import b64encode
from collections.abc import Callable, Mapping
from itertools import islice

from ottla.coord.principal import user
from ottla.protocol.scram import (
    MIN_ITERATIONS,
    ClientFirst,
    ScramCredential,
    ScramError,
    ScramMechanism,
    ServerFirst,
    auth_message,
    parse_client_final,
    parse_client_first,
    xor,
)

from .exchange import Accepted, AuthenticationError, Challenge

_NONCE_BYTES = 24
_SALT_BYTES = 24
#: Credentials among which those of the same mechanism are looked for.
_MAX_SAMPLES = 100
_FAILED = (
    "Authentication failed during authentication due to invalid credentials with SASL mechanism"
)

#: Returns the credential of a user, and whether there is one: otherwise it is made up.
FindCredential = Callable[[ScramMechanism, str], tuple[ScramCredential, bool]]


class ScramExchange:
    """One authentication."""

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: FindCredential,
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(_NONCE_BYTES),
    ) -> None:
        self._mechanism = mechanism
        self._find = find
        self._nonce = nonce()
        self._first: ClientFirst
        self._first_bare = ""
        self._server_first: ServerFirst | None = None
        self._credential: ScramCredential
        self._exists = False

    async def receive(self, message: bytes) -> Challenge | Accepted:
        """Answer a message of the client. Raises AuthenticationError."""
        try:
            if self._server_first is None:
                return self._challenge(message)
            return self._verify(message, self._server_first)
        except ScramError as error:
            raise AuthenticationError(str(error), self._failed) from None

    @property
    def _failed(self) -> str:
        return f"{_FAILED} {self._mechanism.mechanism}"

    def _challenge(self, message: bytes) -> Challenge:
        first, self._first_bare = parse_client_first(message)
        if first.authzid and first.authzid != first.username:
            raise AuthenticationError("the authorization id is not the user's name", self._failed)
        if first.extensions.get("tokenauth") == "true":
            raise AuthenticationError("delegation tokens are not supported", self._failed)
        self._first = first
        self._credential, self._exists = self._find(self._mechanism, first.username)
        self._server_first = ServerFirst(
            first.nonce + self._nonce, self._credential.salt, self._credential.iterations
        )
        return Challenge(self._server_first.text.encode())

    def _verify(self, message: bytes, server_first: ServerFirst) -> Accepted:
        mechanism, credential = self._mechanism, self._credential
        final = parse_client_final(message)
        if final.nonce != server_first.nonce:
            raise AuthenticationError("the nonce is not the one that was sent", self._failed)
        if final.channel_binding != self._first.gs2_header.encode():
            raise AuthenticationError("the channel binding differs", self._failed)
        signed = auth_message(self._first_bare, server_first.text, final.without_proof)
        signature = mechanism.hmac(credential.stored_key, signed)
        if len(final.proof) != mechanism.key_bytes:
            raise AuthenticationError("the proof has the wrong size", self._failed)
        stored_key = mechanism.hash(xor(final.proof, signature))
        if not hmac.compare_digest(stored_key, credential.stored_key) or not self._exists:
            name = self._first.username
            raise AuthenticationError(f"unknown user or wrong password: {name}", self._failed)
        proof = mechanism.hmac(credential.server_key, signed)
        return Accepted(user(self._first.username), b"v=" + b64encode(proof))


class ScramUsers:
    """Finds credentials, and makes up those of users that do not exist."""

    def __init__(
        self,
        credentials: Callable[[], Mapping[tuple[str, ScramMechanism], ScramCredential]],
        secret: Callable[[], bytes | None],
    ) -> None:
        self._credentials = credentials
        # The same on all brokers and after restarts, or it would tell who does not exist.
        self._secret = secret
        self._own_secret = secrets.token_bytes(32)

    def find(self, mechanism: ScramMechanism, name: str) -> tuple[ScramCredential, bool]:
        """Return the credential of a user, and whether there is one."""
        credentials = self._credentials()
        # Made up for every user, so that it takes as long.
        made_up = self._make_up(mechanism, name, credentials)
        credential = credentials.get((name, mechanism))
        return (made_up, False) if credential is None else (credential, True)

    def _make_up(
        self,
        mechanism: ScramMechanism,
        name: str,
        credentials: Mapping[tuple[str, ScramMechanism], ScramCredential],
    ) -> ScramCredential:
        secret = self._secret() or self._own_secret

        def digest(shape: object = "") -> bytes:
            return hmac.digest(secret, f"{mechanism.mechanism} {name}{shape}".encode(), "sha512")

        first = islice(credentials.items(), _MAX_SAMPLES)
        shapes = {(one.iterations, len(one.salt)) for (_, kind), one in first if kind is mechanism}
        shapes = shapes or {(MIN_ITERATIONS, _SALT_BYTES)}
        # One that users have, and the same one when users are added.
        iterations, salt_bytes = max(shapes, key=digest) if len(shapes) > 1 else shapes.pop()
        keys = bytes(mechanism.key_bytes)  # No proof is accepted.
        return ScramCredential(digest()[:salt_bytes], iterations, keys, keys)
