"""Listeners: the addresses that a broker binds, and those that it advertises.

A listener has a name, as in Kafka: `PLAINTEXT://127.0.0.1:9092`. Clients receive the advertised
addresses of the listener they connected through, of this broker and of the others.
"""

from __future__ import annotations

import ipaddress
import re
from typing import NamedTuple

from ottla.protocol.configdef import ConfigError

_LISTENER = re.compile(r"(?P<name>\w+)://(?P<host>\[[^\]]*\]|[^\s:/\[\]]*):(?P<port>[0-9]{1,5})")


class Listener(NamedTuple):
    """An address to bind, and the one that is advertised to clients."""

    name: str
    host: str
    port: int
    advertised_host: str | None
    """None: the address that the client connected to."""
    advertised_port: int | None
    """None: the port that the operating system chose."""


class Endpoint(NamedTuple):
    """The name, host and port of a listener."""

    name: str
    host: str
    port: int


def parse_listeners(listeners: str, advertised: str) -> tuple[Listener, ...]:
    """Parse `listeners` and `advertised.listeners`. Raises ConfigError."""
    bound_by_name = _parse_endpoints("listeners", listeners)
    advertised_by_name = _parse_endpoints("advertised.listeners", advertised)
    if not bound_by_name:
        raise ConfigError(
            "Invalid value for listeners: at least one is required, such as"
            " PLAINTEXT://127.0.0.1:9092"
        )
    for endpoint in advertised_by_name.values():
        if endpoint.name not in bound_by_name:
            raise ConfigError(
                f"Unknown listener {endpoint.name} in advertised.listeners: listeners has"
                f" {', '.join(bound_by_name)}"
            )
        check_reachable("advertised.listeners", endpoint)
    return tuple(
        _listener(endpoint, advertised_by_name.get(name))
        for name, endpoint in bound_by_name.items()
    )


def check_reachable(config_name: str, endpoint: Endpoint) -> None:
    """Raise ConfigError for an endpoint that clients cannot connect to."""
    if endpoint.port == 0 or _is_wildcard(endpoint.host):
        raise ConfigError(
            f"Invalid address {endpoint.host}:{endpoint.port} in {config_name}: clients cannot"
            " connect to it; use a host and a port that they can reach"
        )


def parse_endpoint(config_name: str, text: str) -> Endpoint:
    """Parse NAME://HOST:PORT. Raises ConfigError."""
    match = _LISTENER.fullmatch(text)
    if not match:
        raise ConfigError(
            f"Invalid listener {text!r} in {config_name}: expected NAME://HOST:PORT, such as"
            " PLAINTEXT://127.0.0.1:9092 or PLAINTEXT://[::1]:9092"
        )
    name, host, port = match["name"], match["host"], int(match["port"])
    if not re.fullmatch("[A-Z0-9_]+", name):
        raise ConfigError(f"Invalid listener name {name!r} in {config_name}: use A-Z, 0-9 and _")
    if port > 65535:
        raise ConfigError(f"Invalid listener {text!r} in {config_name}: port {port} is above 65535")
    if host.startswith("["):
        host = host[1:-1]
        if not _is_ipv6_address(host):
            raise ConfigError(
                f"Invalid listener {text!r} in {config_name}: {host!r} is not an IPv6 address"
            )
    return Endpoint(name, host or "0.0.0.0", port)  # noqa: S104  # Kafka's meaning of no host.


def format_host(host: str) -> str:
    """Return a host as it is written before a port: an IPv6 address in brackets."""
    return f"[{host}]" if ":" in host else host


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to a host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _parse_endpoints(config_name: str, text: str) -> dict[str, Endpoint]:
    endpoints: dict[str, Endpoint] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        endpoint = parse_endpoint(config_name, item)
        if endpoint.name in endpoints:
            raise ConfigError(
                f"Duplicate listener name {endpoint.name} in {config_name}: each listener needs"
                " its own, such as INTERNAL://127.0.0.1:9092,EXTERNAL://0.0.0.0:9093"
            )
        endpoints[endpoint.name] = endpoint
    return endpoints


def _listener(bound: Endpoint, advertised: Endpoint | None) -> Listener:
    if advertised:
        return Listener(*bound, advertised.host, advertised.port)
    return Listener(*bound, None if _is_wildcard(bound.host) else bound.host, bound.port or None)


def _is_ipv6_address(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False  # A host name.
