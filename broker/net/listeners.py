"""Addresses: where a broker listens, and what others are told to connect to.

An address has a name, as in Kafka: `PLAINTEXT://127.0.0.1:9092`. Whoever came by a listener is told
the addresses of that name, its own and those of the other brokers.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from ottla.protocol.configdef import ConfigError

_LISTENER = re.compile(r"(?P<name>\w+)://(?P<host>\[[^\]]*\]|[^\s:/\[\]]*):(?P<port>[0-9]{1,5})")
# Kafka's protocols. Who asks for encryption must not get a listener without.
_SECURED = ("SSL", "SASL_PLAINTEXT", "SASL_SSL")


class Listener(NamedTuple):
    """An address to listen on, and what clients that came there are told to connect to."""

    name: str
    host: str
    port: int
    advertised_host: str | None
    """None: the address that the client connected to."""
    advertised_port: int | None
    """None: the port that was found to be free."""


class Endpoint(NamedTuple):
    """A place to connect to, or to listen on."""

    name: str
    host: str
    port: int


def parse_listeners(listeners: str, advertised: str) -> tuple[Listener, ...]:
    """Read the two settings. Raises ConfigError."""
    bound = _addresses("listeners", listeners)
    told = _addresses("advertised.listeners", advertised)
    if not bound:
        raise ConfigError("listeners: there must be one, as in PLAINTEXT://127.0.0.1:9092")
    for address in told.values():
        if address.name not in bound:
            raise ConfigError(
                f"advertised.listeners: there is no listener {address.name}, only"
                f" {', '.join(bound)}"
            )
        check_reachable("advertised.listeners", address)
    return tuple(_listener(address, told.get(name)) for name, address in bound.items())


def check_reachable(setting_name: str, address: Endpoint) -> None:
    """Raise ConfigError for an address that nobody can connect to."""
    if address.port == 0 or _is_wildcard(address.host):
        raise ConfigError(
            f"{setting_name}: clients cannot connect to {address.host}:{address.port};"
            " say a host and a port that they can reach"
        )


def _listener(bound: Endpoint, told: Endpoint | None) -> Listener:
    if told:
        return Listener(*bound, told.host, told.port)
    return Listener(*bound, None if _is_wildcard(bound.host) else bound.host, bound.port or None)


def _addresses(setting_name: str, text: str) -> dict[str, Endpoint]:
    found: dict[str, Endpoint] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        address = parse_endpoint(setting_name, item)
        if address.name in found:
            raise ConfigError(
                f"{setting_name}: two are called {address.name}; each needs its own name, as in"
                " INTERNAL://127.0.0.1:9092,EXTERNAL://0.0.0.0:9093"
            )
        found[address.name] = address
    return found


def parse_endpoint(setting_name: str, text: str) -> Endpoint:
    """Read one address. Raises ConfigError."""
    match = _LISTENER.fullmatch(text)
    if not match:
        raise ConfigError(
            f"{setting_name}: {text!r} is not NAME://HOST:PORT, as in PLAINTEXT://127.0.0.1:9092 or"
            " PLAINTEXT://[::1]:9092"
        )
    name, host, port = match["name"], match["host"], int(match["port"])
    if not re.fullmatch("[A-Z0-9_]+", name):
        raise ConfigError(f"{setting_name}: the name {name!r} is not of A-Z, 0-9 and _")
    if name in _SECURED:
        raise ConfigError(
            f"{setting_name}: {name} is not there, a listener has neither TLS nor SASL; take"
            " PLAINTEXT or a name of your own"
        )
    if port > 65535:
        raise ConfigError(f"{setting_name}: the port {port} in {text!r} is more than 65535")
    if host.startswith("["):
        host = host[1:-1]
        if not _is_address(host):
            raise ConfigError(f"{setting_name}: {host!r} in {text!r} is not an IPv6 address")
    return Endpoint(name, host or "0.0.0.0", port)  # noqa: S104  # Kafka's meaning of no host.


def format_host(host: str) -> str:
    """Give a host as it stands before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def _is_address(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False  # A name.
