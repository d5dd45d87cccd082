"""Kafka's server.properties: which of its configs apply, which are ignored, which are refused.

A config that ottla has applies. One that only tunes Kafka's own threads, replication or controllers
is ignored, and named in a warning. One that would leave a broker less protected than its file says,
or its data elsewhere, is an error. Any other unknown name is an error too: it may be a typo.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from ottla.protocol.configdef import ConfigError

from .security_configs import LISTENER_CONFIGS, split_listener_config

#: Raises a ConfigError that names the file and the line of a config.
Refuse = Callable[[str, str], ConfigError]

# Security configs. Ignored, they would leave a broker open whose file says that it is not.
_SECURITY = re.compile(
    r"(ssl|sasl|listener\.name|delegation\.token|password\.encoder|zookeeper\.ssl|security\.providers)"
    r"(\..+|$)"
    r"|early\.start\.listeners|principal\.builder\.class"
    r"|connections\.max\.reauth\.ms|zookeeper\.set\.acl"
    r"|connection\.failed\.authentication\.delay\.ms"
)

# Factors of internal topics: see `replication.factor.policy`.
_REPLICATION_FACTORS = (
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
    "transaction.state.log.min.isr",
    "share.coordinator.state.topic.min.isr",
)

_HARMLESS_PREFIXES = (
    *("alter.", "background.", "broker.heartbeat.", "client.quota.", "controlled.shutdown."),
    *("controller.", "delete.records.purgatory.", "fetch.purgatory.", "group.consumer."),
    *("group.coordinator.", "group.share.", "group.streams.", "initial.broker.registration."),
    *("inter.broker.protocol.", "kafka.metrics.", "leader.imbalance.", "log.cleaner.dedupe."),
    *("log.cleaner.io.buffer.", "log.dir.failure.", "log.message.format.", "log4j.", "metadata."),
    *(
        "metric.",
        "metrics.",
        "num.replica.",
        "producer.purgatory.",
        "quota.",
        "queued.max.requests",
    ),
    *("remote.", "replica.", "share.coordinator.", "telemetry.", "transaction.", "transactional."),
    *("unstable.", "zookeeper."),
)
_HARMLESS = {
    *("auto.include.jmx.reporter", "auto.leader.rebalance.enable", "broker.id.generation.enable"),
    *("compression.gzip.level", "compression.lz4.level", "compression.zstd.level"),
    *("create.topic.policy.class.name", "alter.config.policy.class.name"),
    *(
        "group.max.heartbeat.interval.ms",
        "log.cleaner.threads",
        "log.deletion.max.segments.per.run",
    ),
    *("log.message.downconversion.enable", "log.flush.start.offset.checkpoint.interval.ms"),
    *("max.connection.creation.rate", "max.connections.per.ip.overrides", "num.io.threads"),
    *("num.network.threads", "num.recovery.threads.per.data.dir", "offsets.commit.required.acks"),
    *("offsets.commit.timeout.ms", "offsets.load.buffer.size", "offsets.topic.compression.codec"),
    *("process.roles", "request.timeout.ms", "reserved.broker.max.id"),
    *("socket.connection.setup.timeout.max.ms", "socket.connection.setup.timeout.ms"),
}


class Translated(NamedTuple):
    """The content of a server.properties file, in ottla's configs."""

    configs: dict[str, str]
    ignored: tuple[str, ...]
    #: Replication factors above 1 of internal topics; valid if the broker clamps factors.
    factors: dict[str, int]


def translate(
    configs: Mapping[str, str], known: Mapping[str, object], refuse: Refuse
) -> Translated:
    """Translate configs by Kafka's names. Raises what `refuse` returns.

    Unknown configs that are not Kafka's stay in the result.
    """
    for name in configs:
        if name not in known and not is_listener_config(name) and _SECURITY.fullmatch(name):
            raise refuse(
                name,
                f"{name} is not supported: without it, the broker may be less protected than this"
                " file says. Remove it if that is intended",
            )
    _check_roles(configs, refuse)
    renamed = _rename(configs, refuse)
    ignored, factors, kept = [], {}, {}
    for name, text in renamed.items():
        if name in known:
            kept[name] = text
        elif name in _REPLICATION_FACTORS:
            ignored.append(name)
            if text.strip().isdecimal() and int(text) > 1:
                factors[name] = int(text)
        elif name in _HARMLESS or name.startswith(_HARMLESS_PREFIXES):
            ignored.append(name)
        else:
            kept[name] = text
    return Translated(_without_controller_listeners(configs, kept), tuple(ignored), factors)


def is_listener_config(name: str) -> bool:
    """Whether a name is that of a config of one listener."""
    parts = split_listener_config(name)
    return parts is not None and parts.name in LISTENER_CONFIGS


def _check_roles(configs: Mapping[str, str], refuse: Refuse) -> None:
    roles = _items(configs.get("process.roles", ""))
    if roles and "broker" not in roles:
        raise refuse(
            "process.roles",
            f"Invalid value {','.join(roles)} for process.roles: ottla has no separate controllers;"
            " start brokers only",
        )


def _rename(configs: Mapping[str, str], refuse: Refuse) -> dict[str, str]:
    """Return the configs with Kafka's other names of `broker.id` and `log.dir` replaced."""
    renamed = dict(configs)
    if "node.id" in renamed:
        _rename_one(renamed, "node.id", "broker.id", refuse)
    if "log.dirs" in renamed:
        directories = _items(renamed["log.dirs"])
        if len(directories) != 1:
            raise refuse(
                "log.dirs",
                f"Invalid value {renamed['log.dirs']} for log.dirs: a broker has one data"
                " directory; run one broker per disk",
            )
        renamed["log.dirs"] = directories[0]
        _rename_one(renamed, "log.dirs", "log.dir", refuse)
    metadata_directory = renamed.get("metadata.log.dir", "")
    if metadata_directory and metadata_directory != renamed.get("log.dir"):
        raise refuse(
            "metadata.log.dir",
            f"Invalid value {metadata_directory} for metadata.log.dir: the metadata log is in"
            " log.dir",
        )
    return renamed


def _rename_one(configs: dict[str, str], name: str, target: str, refuse: Refuse) -> None:
    text = configs.pop(name)
    if configs.setdefault(target, text) != text:
        raise refuse(name, f"Conflicting values: {name}={text} and {target}={configs[target]}")


def _without_controller_listeners(
    configs: Mapping[str, str], kept: dict[str, str]
) -> dict[str, str]:
    """Drop the listeners that only Kafka's controllers use."""
    controllers = set(_items(configs.get("controller.listener.names", "")))
    for name in ("listeners", "advertised.listeners"):
        if name in kept:
            items = [
                item for item in _items(kept[name]) if item.partition("://")[0] not in controllers
            ]
            kept[name] = ",".join(items)
    return kept


def _items(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]
