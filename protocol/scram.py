"""SCRAM (RFC 5802) with SHA-256 and SHA-512, without channel binding: messages and keys.

    client-first    n,,n=<user>,r=<client nonce>
    server-first    r=<client nonce><server nonce>,s=<base64 salt>,i=<iterations>
    client-final    c=biws,r=<both nonces>,p=<base64 proof>
    server-final    v=<base64 server signature>

    salted password = PBKDF2(password, salt, iterations)
    client key = HMAC(salted password, "Client Key");   stored key = H(client key)
    server key = HMAC(salted password, "Server Key")
    auth message = client-first without "n,,", server-first, client-final without proof
    proof = client key XOR HMAC(stored key, auth message)
    server signature = HMAC(server key, auth message)

A server keeps salt, iterations, stored key and server key, none of which log in. The exchanges are
in `ottla.client.sasl` and `ottla.broker.security.scram`. As in Kafka, names and passwords are not
normalized.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from enum import Enum
from typing import NamedTuple

MIN_ITERATIONS = 4096
MAX_ITERATIONS = 16_384
#: A longer name or nonce is an attack. Kafka's clients have nonces of some 30 characters.
_MAX_MESSAGE_BYTES = 4096
_NONCE = re.compile("[!-~]+")


class ScramError(ValueError):
    """A malformed message."""


class ScramMechanism(Enum):
    """The mechanisms, with their numbers in the wire protocol."""

    SHA_256 = 1
    SHA_512 = 2

    @property
    def mechanism(self) -> str:
        """The name of the SASL mechanism."""
        return f"SCRAM-SHA-{self.hash_name.removeprefix('sha')}"

    @property
    def hash_name(self) -> str:
        """The name of the hash in hashlib."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def key_bytes(self) -> int:
        """The size of all keys."""
        return 32 if self is ScramMechanism.SHA_256 else 64

    @classmethod
    def of(cls, mechanism: str) -> ScramMechanism | None:
        """Return the member of a SASL mechanism, or None."""
        return next((member for member in cls if member.mechanism == mechanism), None)

    def hash(self, data: bytes) -> bytes:
        """Return the hash of data."""
        return hashlib.new(self.hash_name, data).digest()

    def hmac(self, key: bytes, data: bytes) -> bytes:
        """Return the HMAC of data."""
        return hmac.digest(key, data, self.hash_name)

    def salted_password(self, password: str, salt: bytes, iterations: int) -> bytes:
        """Derive the salted password. It takes milliseconds by design: not on an event loop."""
        return hashlib.pbkdf2_hmac(self.hash_name, password.encode(), salt, iterations)


class ScramCredential(NamedTuple):
    """What a server stores for a user and a mechanism."""

    salt: bytes
    iterations: int
    stored_key: bytes
    server_key: bytes

    def __repr__(self) -> str:
        return f"ScramCredential(iterations={self.iterations})"


def credential_of(
    mechanism: ScramMechanism, salted_password: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Derive what a server stores from a salted password."""
    client_key = mechanism.hmac(salted_password, b"Client Key")
    return ScramCredential(
        salt,
        iterations,
        mechanism.hash(client_key),
        mechanism.hmac(salted_password, b"Server Key"),
    )


class ClientFirst(NamedTuple):
    """The first message of the client."""

    gs2_header: str
    authzid: str
    username: str
    nonce: str
    extensions: dict[str, str]

    @property
    def bare(self) -> str:
        """The message without its header, as it was sent."""
        extensions = "".join(f",{name}={value}" for name, value in self.extensions.items())
        return f"n={escape(self.username)},r={self.nonce}{extensions}"


class ServerFirst(NamedTuple):
    """The first message of the server."""

    nonce: str
    salt: bytes
    iterations: int

    @property
    def text(self) -> str:
        """The message as it is sent."""
        return f"r={self.nonce},s={b64encode(self.salt).decode()},i={self.iterations}"


class ClientFinal(NamedTuple):
    """The last message of the client."""

    channel_binding: bytes
    nonce: str
    proof: bytes
    without_proof: str


def escape(name: str) -> str:
    """Return a name as it stands in a message."""
    return name.replace("=", "=3D").replace(",", "=2C")


def unescape(text: str) -> str:
    """Return the name that a message has. Raises ScramError."""
    parts = text.split("=")
    for part in parts[1:]:
        if part[:2] not in ("2C", "3D"):
            raise ScramError("Invalid escape in a name: only =2C and =3D are allowed")
    return parts[0] + "".join({"2C": ",", "3D": "="}[part[:2]] + part[2:] for part in parts[1:])


def parse_client_first(message: bytes) -> tuple[ClientFirst, str]:
    """Return the message, and its text without the header. Raises ScramError."""
    text = _text(message)
    flag, comma, rest = text.partition(",")
    authzid_text, comma2, bare = rest.partition(",")
    if not comma or not comma2 or flag not in ("n", "y"):
        raise ScramError("Invalid first message: expected n,[a=AUTHZID],n=USER,r=NONCE")
    authzid = ""
    if authzid_text:
        if not authzid_text.startswith("a="):
            raise ScramError("Invalid first message: expected a=AUTHZID or nothing")
        authzid = unescape(authzid_text[2:])
    fields = _fields(bare)
    if list(fields)[:2] != ["n", "r"] or not fields["n"]:
        raise ScramError("Invalid first message: expected n=USER,r=NONCE")
    extensions = {name: value for name, value in fields.items() if name not in ("n", "r")}
    first = ClientFirst(
        text[: len(text) - len(bare)], authzid, unescape(fields["n"]), _nonce(fields), extensions
    )
    return first, bare


def parse_server_first(message: bytes) -> ServerFirst:
    """Return the message. Raises ScramError."""
    fields = _fields(_text(message))
    if list(fields)[:3] != ["r", "s", "i"] or not fields["i"].isdecimal():
        raise ScramError("Invalid first message of the server: expected r=NONCE,s=SALT,i=NUMBER")
    return ServerFirst(_nonce(fields), _decode(fields["s"]), int(fields["i"][:10]))


def parse_client_final(message: bytes) -> ClientFinal:
    """Return the message. Raises ScramError."""
    text = _text(message)
    fields = _fields(text)
    if list(fields)[:2] != ["c", "r"] or list(fields)[-1] != "p":
        raise ScramError("Invalid last message: expected c=BINDING,r=NONCE,p=PROOF")
    without_proof = text[: text.rindex(",p=")]
    return ClientFinal(_decode(fields["c"]), _nonce(fields), _decode(fields["p"]), without_proof)


def parse_server_final(message: bytes) -> bytes:
    """Return the server signature. Raises ScramError, with the server's error if it sent one."""
    fields = _fields(_text(message))
    if "e" in fields:
        raise ScramError(f"The server refused: {fields['e'][:100]}")
    if list(fields)[:1] != ["v"]:
        raise ScramError("Invalid last message of the server: expected v=SIGNATURE")
    return _decode(fields["v"])


def xor(left: bytes, right: bytes) -> bytes:
    """Return the bytewise exclusive or of two keys of one size."""
    if len(left) != len(right):
        raise ValueError(f"Keys of {len(left)} and {len(right)} bytes")
    return (int.from_bytes(left) ^ int.from_bytes(right)).to_bytes(len(left))


def auth_message(
    client_first_bare: str, server_first: str, client_final_without_proof: str
) -> bytes:
    """Return what both sides sign."""
    return f"{client_first_bare},{server_first},{client_final_without_proof}".encode()


def _text(message: bytes) -> str:
    if len(message) > _MAX_MESSAGE_BYTES:
        raise ScramError(f"Message of {len(message)} bytes: the maximum is {_MAX_MESSAGE_BYTES}")
    try:
        return message.decode()
    except UnicodeDecodeError:
        raise ScramError("Invalid message: expected UTF-8") from None


def _fields(text: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if not equals or not name or name in fields:
            raise ScramError("Invalid message: expected NAME=VALUE pairs with distinct names")
        fields[name] = value
    return fields


def _nonce(fields: dict[str, str]) -> str:
    nonce = fields["r"]
    if not _NONCE.fullmatch(nonce):
        raise ScramError("Invalid nonce: expected printable ASCII characters")
    return nonce


def _decode(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except (Base64Error, ValueError):
        raise ScramError("Invalid message: expected base64") from None
