"""Client quotas: the limits of users, client ids and addresses (KIP-13, KIP-546, KIP-612).

An entity is a user, a client id, a user with a client id, or an ip address; a name of None is the
default for all that have no quota of their own. Its quotas are one record of the metadata log:

    quota/{"client-id":null,"user":"alice"}     {"producer_byte_rate": 1048576.0}

Of the entities that match a client, the first in this order that has a limit counts, for each key
on its own:

    1 user and client id       4 default user and client id             7 client id
    2 user, default client id  5 default user and default client id     8 default client id
    3 user                     6 default user

All clients that share a limit share its counter: those of a user at 3 and 6, of a client id at 7
and 8, of both at the others.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import IntEnum
from ipaddress import ip_address
from typing import Any, NamedTuple

from .addresses import canonical_address

USER = "user"
CLIENT_ID = "client-id"
IP = "ip"

PRODUCER_BYTE_RATE = "producer_byte_rate"
CONSUMER_BYTE_RATE = "consumer_byte_rate"
REQUEST_PERCENTAGE = "request_percentage"
CONTROLLER_MUTATION_RATE = "controller_mutation_rate"
CONNECTION_CREATION_RATE = "connection_creation_rate"

_CLIENT_KEYS = (
    PRODUCER_BYTE_RATE,
    CONSUMER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    CONTROLLER_MUTATION_RATE,
)
_IP_KEYS = (CONNECTION_CREATION_RATE,)
#: The others may have fractions.
_INTEGER_KEYS = (PRODUCER_BYTE_RATE, CONSUMER_BYTE_RATE, CONNECTION_CREATION_RATE)
KIND = "quota"
#: Entities with quotas that a cluster may have.
MAX_ENTITIES = 100_000

#: The parts of an entity, sorted by type: (("client-id", "app"), ("user", None)).
QuotaEntity = tuple[tuple[str, str | None], ...]
Quotas = Mapping[str, float]


class InvalidQuotaError(ValueError):
    """An entity, a quota or a filter that is not valid."""


class MatchType(IntEnum):
    """How a component of a filter matches a part of an entity; numbers of the wire protocol."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class FilterComponent(NamedTuple):
    """Matches the part of an entity that has this type."""

    entity_type: str
    match_type: MatchType
    name: str | None

    def matches(self, parts: Mapping[str, str | None]) -> bool:
        """Whether an entity has such a part."""
        if self.entity_type not in parts:
            return False
        return self.match_type is MatchType.ANY or parts[self.entity_type] == self.name


class QuotaEdit(NamedTuple):
    """A quota to set; None removes it."""

    key: str
    value: float | None


class QuotaLimit(NamedTuple):
    """A limit, and what identifies the counter of those that share it."""

    limit: float
    counter: tuple[str | None, str | None]


class ClientQuotas:
    """The quotas of all entities. `replay` is the only method that changes them."""

    def __init__(self) -> None:
        self.by_entity: dict[QuotaEntity, Quotas] = {}
        #: Changes with the quotas: what was derived from another version is outdated.
        self.version = 0

    def replay(self, name: str, content: Any) -> None:
        """Apply a record: the name in its key, and its content, None for a tombstone."""
        entity = tuple(sorted(json.loads(name).items()))
        self.version += 1
        if content is None:
            self.by_entity.pop(entity, None)
        else:
            self.by_entity[entity] = content

    def records(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield the records of a snapshot."""
        for entity, quotas in self.by_entity.items():
            key, value = quota_record(entity, quotas)
            assert value is not None
            yield key, value

    def limit_of(self, key: str, user: str, client_id: str) -> QuotaLimit | None:
        """Return the limit of a client; None if it has none."""
        for entity, counter in _entities_of(user, client_id):
            limit = self.by_entity.get(entity, {}).get(key)
            if limit is not None:
                return QuotaLimit(limit, counter)
        return None

    def connection_rate_of(self, ip: str) -> float | None:
        """Return the limit for new connections from an address; None if it has none."""
        for name in (ip, None):
            limit = self.by_entity.get(((IP, name),), {}).get(CONNECTION_CREATION_RATE)
            if limit is not None:
                return limit
        return None

    def edited(self, entity: QuotaEntity, edits: Iterable[QuotaEdit]) -> Quotas:
        """Return the quotas of an entity after edits. Raises InvalidQuotaError."""
        quotas = dict(self.by_entity.get(entity, {}))
        edited = set()
        for key, value in edits:
            if key in edited:
                raise InvalidQuotaError(f"Duplicate quota key {key!r}")
            edited.add(key)
            _check_key(entity, key)
            if value is None:
                quotas.pop(key, None)
            else:
                _check_value(key, value)
                quotas[key] = value
        return quotas

    def matching(
        self, components: Sequence[FilterComponent], *, is_strict: bool
    ) -> Iterator[tuple[QuotaEntity, Quotas]]:
        """Yield the entities that have all parts that components match, with their quotas.

        With `is_strict`, only those without other parts.
        """
        for entity, quotas in self.by_entity.items():
            if is_strict and len(entity) != len(components):
                continue
            parts = dict(entity)
            if all(component.matches(parts) for component in components):
                yield entity, quotas


def _entities_of(
    user: str, client_id: str
) -> Iterator[tuple[QuotaEntity, tuple[str | None, str | None]]]:
    """Yield the entities that match a client, in order, with what identifies their counters."""
    for user_name in (user, None):
        yield ((CLIENT_ID, client_id), (USER, user_name)), (user, client_id)
        yield ((CLIENT_ID, None), (USER, user_name)), (user, client_id)
        yield ((USER, user_name),), (user, None)
    yield ((CLIENT_ID, client_id),), (None, client_id)
    yield ((CLIENT_ID, None),), (None, client_id)


def quota_entity(parts: Iterable[tuple[str, str | None]]) -> QuotaEntity:
    """Return the entity with these types and names. Raises InvalidQuotaError."""
    parts = list(parts)
    types = [entity_type for entity_type, _name in parts]
    if not parts:
        raise InvalidQuotaError("The quota entity is empty")
    for entity_type, name in parts:
        if entity_type not in (USER, CLIENT_ID, IP):
            raise InvalidQuotaError(
                f"Unknown quota entity type {entity_type!r}: expected {USER}, {CLIENT_ID} or {IP}"
            )
        if types.count(entity_type) > 1:
            raise InvalidQuotaError(f"Duplicate quota entity type {entity_type!r}")
        if name == "":
            raise InvalidQuotaError(f"Empty name of quota entity type {entity_type!r}")
    if IP in types:
        if len(parts) > 1:
            raise InvalidQuotaError(f"{IP} cannot be combined with other quota entity types")
        name = parts[0][1]
        if name is not None:
            parts = [(IP, _normalized_ip(name))]
    return tuple(sorted(parts))


def _normalized_ip(text: str) -> str:
    try:
        ip_address(text)
    except ValueError:
        raise InvalidQuotaError(f"Invalid ip {text!r}: expected an address") from None
    return canonical_address(text)


def check_filter(components: Sequence[FilterComponent]) -> None:
    """Raise InvalidQuotaError if a filter is not valid. Entity types are not checked."""
    types = [component.entity_type for component in components]
    for component in components:
        if types.count(component.entity_type) > 1:
            raise InvalidQuotaError(f"Duplicate quota entity type {component.entity_type!r}")
        is_exact = component.match_type is MatchType.EXACT
        if is_exact != (component.name is not None):
            problem = "needs a name" if is_exact else "must have no name"
            raise InvalidQuotaError(f"A component of match type {component.match_type} {problem}")
    if IP in types and len(types) > 1:
        raise InvalidQuotaError(f"{IP} cannot be combined with other quota entity types")


def _check_key(entity: QuotaEntity, key: str) -> None:
    allowed = _IP_KEYS if entity[0][0] == IP else _CLIENT_KEYS
    if key not in allowed:
        types = ", ".join(entity_type for entity_type, _name in entity)
        raise InvalidQuotaError(f"Unknown quota {key!r} for {types}: expected {', '.join(allowed)}")


def _check_value(key: str, value: float) -> None:
    if not math.isfinite(value) or value <= 0:
        raise InvalidQuotaError(f"Invalid quota {key}={value:g}: must be greater than 0")
    if key in _INTEGER_KEYS and not value.is_integer():
        raise InvalidQuotaError(f"Invalid quota {key}={value:g}: must be an integer")


def quota_record(entity: QuotaEntity, quotas: Quotas) -> tuple[bytes, bytes | None]:
    """Return the record of an entity's quotas: a tombstone if it has none."""
    name = json.dumps(dict(entity), separators=(",", ":"))
    value = json.dumps(quotas, separators=(",", ":")).encode() if quotas else None
    return f"{KIND}/{name}".encode(), value
