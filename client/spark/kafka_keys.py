"""Options that begin with `kafka.`: which of the settings of Kafka's clients may be given."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from .errors import OptionError

KAFKA = "kafka."


_PROTECTED = {
    "auto.offset.reset": "say startingOffsets",
    "enable.auto.commit": "offsets are kept in the checkpoint; commitGroup tells a group as well",
    "interceptor.classes": "there are no interceptors",
    "key.deserializer": "keys are bytes: cast them in the query",
    "value.deserializer": "values are bytes: cast them in the query",
    "key.serializer": "keys are strings or bytes: cast them in the query",
    "value.serializer": "values are strings or bytes: cast them in the query",
    "transactional.id": "the sink does not write transactions",
}
_SECURITY = ("sasl.", "ssl.")
_HEEDED = {
    "acks",
    "batch.size",
    "bootstrap.servers",
    "buffer.memory",
    "check.crcs",
    "client.id",
    "compression.type",
    "default.api.timeout.ms",
    "delivery.timeout.ms",
    "enable.idempotence",
    "group.id",
    "isolation.level",
    "linger.ms",
    "max.block.ms",
    "max.partition.fetch.bytes",
    "max.request.size",
    "metadata.max.age.ms",
    "request.timeout.ms",
    "retry.backoff.max.ms",
    "retry.backoff.ms",
    "security.protocol",
    "socket.connection.setup.timeout.ms",
}
#: They tune what we do not have, or do anyway.
_HARMLESS = {
    "allow.auto.create.topics",
    "client.dns.lookup",
    "client.rack",
    "connections.max.idle.ms",
    "exclude.internal.topics",
    "fetch.max.bytes",
    "fetch.max.wait.ms",
    "fetch.min.bytes",
    "group.instance.id",
    "heartbeat.interval.ms",
    "max.in.flight.requests.per.connection",
    "max.poll.interval.ms",
    "max.poll.records",
    "partition.assignment.strategy",
    "receive.buffer.bytes",
    "reconnect.backoff.max.ms",
    "reconnect.backoff.ms",
    "retries",
    "send.buffer.bytes",
    "session.timeout.ms",
    "socket.connection.setup.timeout.max.ms",
}


def check_key(name: str) -> None:
    """Check that a setting, named without its prefix, may be given. Raises OptionError."""
    if name in _PROTECTED:
        raise OptionError(f"option {KAFKA}{name} cannot be set: {_PROTECTED[name]}")
    if name.startswith(_SECURITY):
        raise OptionError(f"option {KAFKA}{name} cannot be set: ottla speaks plain text only")
    if name not in _HEEDED | _HARMLESS:
        names = {KAFKA + one: KAFKA + one for one in sorted(_HEEDED)}
        raise OptionError(f"unknown option {KAFKA + name!r}{near(KAFKA + name, names)}")


def near(name: str, names: Mapping[str, str]) -> str:
    """Say which of some names, by their small letters, may have been meant."""
    bootstrap = KAFKA + "bootstrap.servers"
    every = {**names, bootstrap: bootstrap}
    found = [KAFKA + name] if KAFKA + name in every else get_close_matches(name, every, 1, 0.7)
    return f": did you mean {every[found[0]]}?" if found else ""
