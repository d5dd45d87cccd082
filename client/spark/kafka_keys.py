"""Options with the prefix `kafka.`: which configs of Kafka's clients are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches

from .errors import OptionError
from .security import SUPPORTED

KAFKA = "kafka."

_PROTECTED = {
    "auto.offset.reset": "use startingOffsets",
    "enable.auto.commit": "offsets are kept in the checkpoint; commitGroup commits them, too",
    "interceptor.classes": "interceptors are not supported",
    "key.deserializer": "keys are bytes: cast them in the query",
    "value.deserializer": "values are bytes: cast them in the query",
    "key.serializer": "keys are strings or bytes: cast them in the query",
    "value.serializer": "values are strings or bytes: cast them in the query",
    "transactional.id": "use exactlyOnce and transactionalIdPrefix",
}
_SECURITY = ("sasl.", "ssl.")
_SECURITY_ADVICE = "certificates must be PEM, and SASL PLAIN, SCRAM or OAUTHBEARER"
_SUPPORTED = {
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
    "socket.connection.setup.timeout.ms",
    "transaction.timeout.ms",
}
# They tune what this client does not have, or does anyway.
_IGNORED = {
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
    """Check that a config, named without its prefix, is accepted. Raises OptionError."""
    if name in _PROTECTED:
        raise OptionError(f"Option {KAFKA}{name} cannot be set: {_PROTECTED[name]}")
    if name.startswith(_SECURITY) and name not in SUPPORTED:
        raise OptionError(f"Option {KAFKA}{name} is not supported: {_SECURITY_ADVICE}")
    if name not in _SUPPORTED | _IGNORED | SUPPORTED:
        names = {KAFKA + one: KAFKA + one for one in sorted(_SUPPORTED | SUPPORTED)}
        raise OptionError(f"Unknown option {KAFKA + name!r}{suggestion(KAFKA + name, names)}")


def suggestion(name: str, names: Mapping[str, str]) -> str:
    """Return ": did you mean …?" for a similar name, or nothing; `names` are by lower case."""
    bootstrap = KAFKA + "bootstrap.servers"
    candidates = {**names, bootstrap: bootstrap}
    similar = get_close_matches(name, candidates, 1, 0.7)
    if KAFKA + name in candidates:
        similar = [KAFKA + name]
    return f": did you mean {candidates[similar[0]]}?" if similar else ""
