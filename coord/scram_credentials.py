"""The records of SCRAM credentials in the metadata log.

    scram/<number of the mechanism>/<user>   {"salt": …, "iterations": …, "stored": …, "server": …}
    scram-secret                             {"secret": …}

Keys are in base64. Nobody can log in with them, but they are what a thief needs to test guesses of
passwords, or to pretend to be the broker.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from typing import Any

from ottla.protocol.scram import ScramCredential, ScramMechanism


def credential_key(user: str, mechanism: ScramMechanism) -> bytes:
    """Return the key of a credential."""
    return f"scram/{mechanism.value}/{user}".encode()


def credential_record(
    user: str, mechanism: ScramMechanism, credential: ScramCredential
) -> tuple[bytes, bytes]:
    """Return the record of a credential."""
    content = {
        "salt": _text(credential.salt),
        "iterations": credential.iterations,
        "stored": _text(credential.stored_key),
        "server": _text(credential.server_key),
    }
    return credential_key(user, mechanism), json.dumps(content, separators=(",", ":")).encode()


def parse_credential(content: Any) -> ScramCredential:
    """Parse the value of a credential's record."""
    return ScramCredential(
        b64decode(content["salt"]),
        content["iterations"],
        b64decode(content["stored"]),
        b64decode(content["server"]),
    )


def secret_record(secret: bytes) -> tuple[bytes, bytes]:
    """Return the record of the secret of made-up salts."""
    content = {"secret": _text(secret)}
    return b"scram-secret", json.dumps(content, separators=(",", ":")).encode()


def parse_secret(content: Any) -> bytes:
    """Parse the value of the secret's record."""
    return b64decode(content["secret"])


def _text(data: bytes) -> str:
    return b64encode(data).decode()
