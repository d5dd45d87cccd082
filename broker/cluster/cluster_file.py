"""The brokers of a cluster: one list for all of them, which does not change while they run.

A cluster file says who is in it, and may have settings that all brokers share:

    cluster-id = "paper-trail"              # or whatever the controller makes up
    inter-broker-listener = "INTERNAL"      # where brokers talk to one another; else the first

    [[brokers]]
    id = 0
    address = "log-0.example.org:9092"      # or several, by the name of the listener:
    [[brokers]]
    id = 1
    listeners = { INTERNAL = "log-1:29092", EXTERNAL = "log-1.example.org:9092" }

    [settings]
    "num.partitions" = 6

It becomes settings like any others; `cluster.brokers` is the list in one line:
`0@log-0.example.org:9092,1@INTERNAL://log-1:29092,1@EXTERNAL://log-1.example.org:9092`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ottla.protocol.configdef import INT_MAX, ConfigError, as_text

from ..net.listeners import Endpoint, Listener, check_reachable, parse_endpoint

_SETTING = "cluster.brokers"
_DEFAULT_NAME = "PLAINTEXT"
_KEYS = {"cluster-id": "cluster.id", "inter-broker-listener": "inter.broker.listener.name"}


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """Who is in the cluster, and the addresses of each by the name of the listener."""

    brokers: Mapping[int, Mapping[str, Endpoint]]

    @property
    def broker_ids(self) -> tuple[int, ...]:
        """The brokers, in order."""
        return tuple(sorted(self.brokers))

    def listeners_of(self, broker_id: int) -> tuple[Listener, ...]:
        """Give what a broker listens on, where nothing else is said: the addresses it has."""
        return tuple(
            Listener(*address, address.host, address.port)
            for address in self.brokers[broker_id].values()
        )


def parse_cluster_brokers(text: str) -> ClusterFile:
    """Read the list in one line. Raises ConfigError."""
    brokers: dict[int, dict[str, Endpoint]] = {}
    places: dict[tuple[str, int], int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        number, at, place = item.partition("@")
        if not at or not number.isdecimal() or int(number) > INT_MAX:
            raise ConfigError(
                f"{_SETTING}: {item!r} is not ID@HOST:PORT or ID@NAME://HOST:PORT, as in"
                " 0@localhost:9092,1@localhost:9093"
            )
        broker_id = int(number)
        address = parse_endpoint(
            _SETTING, place if "://" in place else f"{_DEFAULT_NAME}://{place}"
        )
        check_reachable(_SETTING, address)
        other = places.setdefault((address.host, address.port), broker_id)
        if other != broker_id:
            raise ConfigError(
                f"{_SETTING}: brokers {other} and {broker_id} have the same address,"
                f" {address.host}:{address.port}"
            )
        if address.name in brokers.setdefault(broker_id, {}):
            raise ConfigError(
                f"{_SETTING}: broker {broker_id} is there twice, or has two listeners"
                f" {address.name}"
            )
        brokers[broker_id][address.name] = address
    _check_same_names(brokers)
    return ClusterFile(brokers)


def read_cluster_file(path: Path) -> dict[str, str]:
    """Give the settings that a cluster file stands for, as text. Raises ConfigError."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    except ValueError as problem:  # no UTF-8, or no TOML
        raise ConfigError(f"{path}: it is not TOML: {problem}") from None
    try:
        return _settings(content)
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None


def _settings(content: Mapping[str, Any]) -> dict[str, str]:
    _check_keys(content, {*_KEYS, "brokers", "settings"}, "a cluster file")
    found = {}
    shared = content.get("settings", {})
    if not isinstance(shared, dict):
        raise ConfigError("settings: it must be a table of names and values")
    for name, value in shared.items():
        if not isinstance(value, str | int | float | bool):
            raise ConfigError(
                f'settings: {name} has no plain value; names with dots need quotes: "{name}.…" = 1'
            )
        found[name] = as_text(value)
    for key, name in _KEYS.items():
        if key in content:
            found[name] = str(content[key])
    brokers = content.get("brokers")
    if not isinstance(brokers, list) or not brokers:
        raise ConfigError("there must be a [[brokers]] with an id and an address, for each of them")
    ids = [broker.get("id") if isinstance(broker, dict) else None for broker in brokers]
    for broker_id in ids:
        if not isinstance(broker_id, int) or isinstance(broker_id, bool) or broker_id < 0:
            raise ConfigError(f"brokers: the id {broker_id!r} is not a number from 0 up")
        if ids.count(broker_id) > 1:
            raise ConfigError(f"brokers: two have the id {broker_id}")
    found[_SETTING] = ",".join(item for broker in brokers for item in _items(broker))
    return found


def _items(broker: Mapping[str, Any]) -> Iterable[str]:
    broker_id = broker["id"]
    _check_keys(broker, {"id", "address", "listeners"}, f"broker {broker_id}")
    address, listeners = broker.get("address"), broker.get("listeners")
    if isinstance(address, str) and listeners is None:
        yield f"{broker_id}@{address}"
    elif isinstance(listeners, dict) and listeners and address is None:
        for name, place in listeners.items():
            yield f"{broker_id}@{name}://{place}"
    else:
        raise ConfigError(
            f'broker {broker_id}: it needs either address = "HOST:PORT" or'
            ' listeners = { NAME = "HOST:PORT", … }'
        )


def _check_keys(content: Mapping[str, Any], known: set[str], whose: str) -> None:
    for key in content:
        if key not in known:
            raise ConfigError(f"{key}: {whose} has no such key, only {', '.join(sorted(known))}")


def _check_same_names(brokers: Mapping[int, Mapping[str, Endpoint]]) -> None:
    """Who came by a listener is told the address of each broker by the same name."""
    if not brokers:
        return
    first, *others = sorted(brokers)
    for broker_id in others:
        if brokers[broker_id].keys() != brokers[first].keys():
            raise ConfigError(
                f"{_SETTING}: all brokers need listeners of the same names: broker {first} has"
                f" {', '.join(brokers[first])}, and broker {broker_id}"
                f" {', '.join(brokers[broker_id])}"
            )
