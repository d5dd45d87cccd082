"""PLAIN: users with passwords from the broker's configs.

As in Kafka, they are options of the login module: user_alice="secret" is the user alice.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping

from ottla.client.jaas import JaasEntry, parse_jaas_config
from ottla.coord.principal import user
from ottla.protocol.configdef import ConfigError

from .exchange import Accepted, AuthenticationError

_USER_PREFIX = "user_"
_FAILED = "Authentication failed: Invalid username or password"
#: Compared with the password of a user that does not exist, so that it takes as long.
_NOBODY = b"\0"


class PlainExchange:
    """One authentication."""

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._passwords = passwords

    async def receive(self, message: bytes) -> Accepted:
        """Check name and password. Raises AuthenticationError."""
        try:
            parts = message.decode().split("\0")
        except UnicodeDecodeError:
            raise AuthenticationError("the message is not UTF-8", _FAILED) from None
        if len(parts) != 3:
            raise AuthenticationError("the message does not have three parts", _FAILED)
        authzid, name, password = parts
        if not name or not password:
            raise AuthenticationError("the name or the password is empty", _FAILED)
        if authzid not in ("", name):
            raise AuthenticationError("the authorization id is not the user's name", _FAILED)
        known = self._passwords.get(name)
        expected = _NOBODY if known is None else known.encode()
        if not hmac.compare_digest(password.encode(), expected) or known is None:
            raise AuthenticationError(f"unknown user or wrong password: {name}", _FAILED)
        return Accepted(user(name))


def parse_login_module(name: str, text: str, module: str) -> JaasEntry:
    """Parse the sasl.jaas.config of a mechanism. Raises ConfigError, which does not quote it."""
    try:
        entry = parse_jaas_config(text)
    except ValueError as error:
        raise ConfigError(f"Invalid value for {name}: {error}") from None
    if entry.module_name != module:
        raise ConfigError(f"Invalid login module {entry.login_module} in {name}: expected {module}")
    return entry


def plain_passwords(entry: JaasEntry) -> dict[str, str]:
    """Return the passwords by user."""
    return {
        option.removeprefix(_USER_PREFIX): value
        for option, value in entry.options.items()
        if option.startswith(_USER_PREFIX)
    }
