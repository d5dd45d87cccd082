"""The settings of a broker: Kafka's names, defaults and limits, and where they come from.

`BrokerConfig.load(flags, environ, file, cluster_file)` takes a setting from the first of these that
has it: a flag of the command line, a variable of the environment (`OTTLA_NUM_PARTITIONS` is
`num.partitions`), a file in the format of Kafka's server.properties, the cluster file (see
`roster`), the default. `BrokerConfig.of` takes settings as text; `BrokerConfig(num_partitions=3)`
takes values. All of them raise ConfigError for a name that there is not, or a value that cannot be,
and say what could.

The defaults of topics are settings too, under the names that Kafka's brokers have for them
(`log.retention.ms` is the default of `retention.ms`). What they may be is declared once, in
`ottla.storage.config.LogConfig`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from ottla.protocol.configdef import (
    INT_MAX,
    ConfigError,
    ConfigKey,
    as_text,
    config_key,
    config_keys,
    field_of,
    unknown_config,
)
from ottla.storage.config import TOPIC_CONFIGS, LogConfig

from ..cluster.cluster_file import ClusterFile, parse_cluster_brokers, read_cluster_file
from ..net.listeners import Endpoint, Listener, format_host, parse_endpoint, parse_listeners

__all__ = [
    "BrokerConfig",
    "ConfigError",
    "ConfigKey",
    "broker_config_key",
    "broker_configs",
    "environment_variable",
]

NO_LIMIT = sys.float_info.max

_MINUTE_MS = 60 * 1000
_HOUR_MS = 60 * _MINUTE_MS
_DAY_MS = 24 * _HOUR_MS
_MIB = 1024 * 1024
_ENVIRONMENT_PREFIX = "OTTLA_"
# The client's, which may be set where a broker is started.
_NOT_OURS = ("OTTLA_BOOTSTRAP", "OTTLA_PROFILE")

# Settings of the broker, and the settings of topics that they are the defaults of.
_TOPIC_DEFAULTS = {
    "log.segment.bytes": "segment.bytes",
    "log.roll.ms": "segment.ms",
    "log.index.size.max.bytes": "segment.index.bytes",
    "log.index.interval.bytes": "index.interval.bytes",
    "message.max.bytes": "max.message.bytes",
    "log.message.timestamp.type": "message.timestamp.type",
    "log.message.timestamp.before.max.ms": "message.timestamp.before.max.ms",
    "log.message.timestamp.after.max.ms": "message.timestamp.after.max.ms",
    "log.cleanup.policy": "cleanup.policy",
    "log.retention.ms": "retention.ms",
    "log.retention.bytes": "retention.bytes",
    "log.cleaner.delete.retention.ms": "delete.retention.ms",
    "log.cleaner.min.compaction.lag.ms": "min.compaction.lag.ms",
    "log.cleaner.max.compaction.lag.ms": "max.compaction.lag.ms",
    "log.cleaner.min.cleanable.ratio": "min.cleanable.dirty.ratio",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.durability": "durability",
    "compression.type": "compression.type",
    "min.insync.replicas": "min.insync.replicas",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
    "log.preallocate": "preallocate",
    "log.roll.jitter.ms": "segment.jitter.ms",
}


class _Unit(NamedTuple):
    """A setting that says in a larger unit what another one says in milliseconds."""

    target: str
    size_ms: int
    low: int
    name: str

    @property
    def setting(self) -> ConfigKey:
        return ConfigKey(
            name=self.name,
            type="int",
            default_value=None,
            doc=f"{self.target} in {self.name.rpartition('.')[2]}, where that is not set",
            low=self.low,
            high=INT_MAX,
        )

    def in_ms(self, value: int) -> int:
        return value * self.size_ms if value >= 0 else -1


# Of two for the same target the later one wins, and the target itself over both.
_UNITS = {
    unit.name: unit
    for unit in (
        _Unit("log.retention.ms", _HOUR_MS, -1, "log.retention.hours"),
        _Unit("log.retention.ms", _MINUTE_MS, -1, "log.retention.minutes"),
        _Unit("log.roll.ms", _HOUR_MS, 1, "log.roll.hours"),
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """What one broker does. A field's name with dots for underscores is the setting's name."""

    broker_id: int = config_key(
        0, "the number of this broker in its cluster", low=0, high=INT_MAX, is_dynamic=False
    )
    cluster_id: str = config_key(
        "",
        "the cluster that this broker is of; empty: what the data directory says, or a new one",
        is_dynamic=False,
    )
    log_dir: str = config_key("ottla-data", "the data directory", is_dynamic=False)
    listeners: str = config_key(
        "PLAINTEXT://127.0.0.1:9092",
        "where to listen: NAME://HOST:PORT, several with commas; port 0 is any free one, no host is"
        " every address of this machine",
        is_list=True,
        is_dynamic=False,
    )
    advertised_listeners: str = config_key(
        "",
        "what clients are told to connect to: NAME://HOST:PORT for some or all of the listeners;"
        " otherwise it is the listener's own address, or, if that is a wildcard like 0.0.0.0, the"
        " one that the client connected to",
        is_list=True,
        is_dynamic=False,
    )
    cluster_brokers: str = config_key(
        "",
        "the brokers of the cluster, the same for all of them: ID@HOST:PORT or"
        " ID@NAME://HOST:PORT for each of its listeners, with commas; empty: this broker alone",
        is_list=True,
        is_dynamic=False,
    )
    inter_broker_listener_name: str = config_key(
        "",
        "the listener by which brokers talk to one another; empty: the first of cluster.brokers",
        is_dynamic=False,
    )
    broker_session_timeout_ms: int = config_key(
        3000,
        "a broker of which the controller has not heard for so long is taken to be down",
        low=100,
        high=INT_MAX,
        is_dynamic=False,
    )
    controller_wait_ms: int = config_key(
        10_000,
        "how long a start waits for the controller, to hear what is new; after that a broker serves"
        " what it knew last",
        low=0,
        high=INT_MAX,
        is_dynamic=False,
    )
    num_partitions: int = config_key(
        1, "partitions of a topic that is created without a number of them", low=1, high=INT_MAX
    )
    default_replication_factor: int = config_key(
        1,
        "replicas of a partition of a topic that is created without a number of them",
        high=INT_MAX,
        fixed_because="a partition has one replica",
        is_dynamic=False,
    )
    auto_create_topics_enable: bool = config_key(
        True, "whether a topic is created when a client asks for it and there is none"
    )
    delete_topic_enable: bool = config_key(True, "whether topics can be deleted")
    broker_max_partitions: int = config_key(
        20_000, "the most partitions that this broker has", low=1, high=INT_MAX
    )

    socket_request_max_bytes: int = config_key(
        100 * _MIB, "the largest Produce request", low=1024, high=INT_MAX
    )
    socket_other_request_max_bytes: int = config_key(
        8 * _MIB, "the largest request of any other api", low=1024, high=INT_MAX
    )
    queued_max_request_bytes: int = config_key(
        256 * _MIB,
        "bytes of requests that were received and not answered, over all connections, before none"
        " is read; at least socket.request.max.bytes",
        low=1024,
    )
    max_in_flight_requests_per_connection: int = config_key(
        64,
        "requests of a connection that were not answered before it is not read",
        low=1,
        high=INT_MAX,
    )
    socket_send_queue_bytes: int = config_key(
        _MIB,
        "bytes that a connection was not sent yet before it is not read",
        low=1,
        high=INT_MAX,
    )
    max_connections: int = config_key(10_000, "the most connections", low=1, high=INT_MAX)
    max_connections_per_ip: int = config_key(
        5000, "the most connections from one address", low=1, high=INT_MAX
    )
    connections_max_idle_ms: int = config_key(
        10 * _MINUTE_MS, "a connection on which nothing came for so long is closed", low=1
    )
    connections_progress_timeout_ms: int = config_key(
        30_000,
        "a request must be complete, and a response taken, in this time and what its size takes at"
        " 1 MiB/s",
        low=1,
    )
    socket_listen_backlog_size: int = config_key(
        512,
        "connections that the operating system holds until they are accepted",
        low=1,
        high=INT_MAX,
        is_dynamic=False,
    )
    socket_send_buffer_bytes: int = config_key(
        -1,
        "the operating system's send buffer of a connection; -1: as it chooses",
        low=-1,
        high=INT_MAX,
        is_dynamic=False,
    )
    socket_receive_buffer_bytes: int = config_key(
        -1,
        "the operating system's receive buffer of a connection; -1: as it chooses",
        low=-1,
        high=INT_MAX,
        is_dynamic=False,
    )

    fetch_max_bytes: int = config_key(
        55 * _MIB, "the most record bytes in a Fetch response", low=1024, high=INT_MAX
    )
    max_incremental_fetch_session_cache_slots: int = config_key(
        1000, "fetch sessions that are remembered", low=0, high=INT_MAX
    )
    max_request_partition_size_limit: int = config_key(
        2000,
        "the most partitions in an answer to DescribeTopicPartitions",
        low=1,
        high=INT_MAX,
    )

    group_min_session_timeout_ms: int = config_key(
        6000, "the shortest session timeout that a group's member may ask for", low=1, high=INT_MAX
    )
    group_max_session_timeout_ms: int = config_key(
        30 * _MINUTE_MS,
        "the longest session timeout that a group's member may ask for",
        low=1,
        high=INT_MAX,
    )
    group_initial_rebalance_delay_ms: int = config_key(
        100,
        "how long an empty group waits for more members when the first one has come, and again"
        " after each that came meanwhile",
        low=0,
        high=INT_MAX,
    )
    group_max_size: int = config_key(1000, "the most members of a group", low=1, high=INT_MAX)
    broker_max_groups: int = config_key(
        10_000, "the most groups on this broker", low=1, high=INT_MAX
    )
    offset_metadata_max_bytes: int = config_key(
        4096, "the most bytes of text with a committed offset", low=0, high=2**15 - 1
    )
    offsets_retention_minutes: int = config_key(
        7 * 24 * 60,
        "committed offsets are forgotten when their group has been empty for so long",
        low=1,
        high=INT_MAX,
    )
    offsets_retention_check_interval_ms: int = config_key(
        10 * _MINUTE_MS, "how often offsets to forget are looked for", low=1
    )
    offsets_topic_num_partitions: int = config_key(
        8,
        "partitions of __consumer_offsets, when it is made",
        low=1,
        high=10_000,
        is_dynamic=False,
    )
    offsets_topic_segment_bytes: int = config_key(
        _MIB,
        "segment.bytes of __consumer_offsets, when it is made: what a start may have to read of"
        " each partition beyond what is compacted",
        low=1024,
        high=INT_MAX,
        is_dynamic=False,
    )

    log_retention_check_interval_ms: int = config_key(
        5 * _MINUTE_MS, "how often retention is looked at", low=1
    )
    log_flush_scheduler_interval_ms: int = config_key(
        1000, "how often flush.ms and flush.messages are looked at", low=1
    )
    log_flush_offset_checkpoint_interval_ms: int = config_key(
        _MINUTE_MS,
        "how often it is noted how far logs are on the device, from where recovery starts",
        low=1,
        high=INT_MAX,
    )
    log_cleaner_enable: bool = config_key(
        True, "whether compaction runs, for the topics that want it", is_dynamic=False
    )
    log_cleaner_backoff_ms: int = config_key(
        15_000, "how long compaction rests when there is nothing to do", low=0
    )
    log_cleaner_io_max_bytes_per_second: float = config_key(
        NO_LIMIT, "the most that compaction reads and writes in a second", low=1
    )
    producer_id_expiration_ms: int = config_key(
        _DAY_MS,
        "an idempotent producer that wrote nothing for so long is forgotten",
        low=1,
        high=INT_MAX,
    )
    producer_id_expiration_check_interval_ms: int = config_key(
        10 * _MINUTE_MS, "how often producers to forget are looked for", low=1, high=INT_MAX
    )
    shutdown_timeout_ms: int = config_key(
        10_000, "how long requests under way may take when the broker stops", low=0
    )
    metrics_listener: str = config_key(
        "",
        "where Prometheus finds a page of metrics: HOST:PORT, as in 127.0.0.1:9404; empty: nowhere."
        " It needs ottla[metrics]",
        is_dynamic=False,
    )
    log_level: str = config_key(
        "INFO",
        "the least important lines that are logged",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
    )
    log_format: str = config_key(
        "text", "how lines are logged", choices=("text", "json"), is_dynamic=False
    )

    topic_defaults: LogConfig = field(default_factory=LogConfig)
    """What a topic has that has no setting of its own."""
    static_configs: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """The settings that the broker was started with, as text; the others have their defaults."""
    dynamic_configs: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """The settings that were changed since, by `with_overrides`."""

    def __post_init__(self) -> None:
        for name, declared in _OWN.items():
            declared.check(getattr(self, field_of(name)))
        if not self.log_dir:
            raise ConfigError("log.dir: it must name a directory")
        if self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise ConfigError(
                f"queued.max.request.bytes: {self.queued_max_request_bytes} is less than"
                f" socket.request.max.bytes, {self.socket_request_max_bytes}"
            )
        self._check_roster()
        _ = self.metrics_endpoint  # which raises what is wrong with it
        self._remember(
            {
                declared.name: self._text_of(declared)
                for declared in _KNOWN.values()
                if declared.name not in _UNITS and self._text_of(declared) != declared.default
            }
        )

    def _remember(self, given: Mapping[str, str], altered: Mapping[str, str] | None = None) -> None:
        object.__setattr__(self, "static_configs", dict(given))
        object.__setattr__(self, "dynamic_configs", dict(altered or {}))

    @property
    def metrics_endpoint(self) -> Endpoint | None:
        """Where the page of metrics is. Raises ConfigError."""
        text = self.metrics_listener
        if not text:
            return None
        try:
            return parse_endpoint("metrics.listener", f"HTTP://{text}")
        except ConfigError:
            reason = f"metrics.listener: {text!r} is not HOST:PORT, as in 127.0.0.1:9404"
            raise ConfigError(reason) from None

    @classmethod
    def of(cls, settings: Mapping[str, str]) -> BrokerConfig:
        """Make a config from settings by name, as text. Raises ConfigError."""
        values = {name: broker_config_key(name).parse(text) for name, text in settings.items()}
        own = {field_of(name): value for name, value in values.items() if name in _OWN}
        topic = {
            field_of(_TOPIC_DEFAULTS[name]): value
            for name, value in _without_units(values).items()
            if name in _TOPIC_DEFAULTS
        }
        config = cls(**own, topic_defaults=LogConfig(**topic))
        config._remember(settings)
        return config

    @classmethod
    def load(
        cls,
        flags: Mapping[str, str],
        environ: Mapping[str, str],
        file: Path | None = None,
        cluster_file: Path | None = None,
    ) -> BrokerConfig:
        """Make a config of what flags, environment and files say. Raises ConfigError."""
        found = read_cluster_file(cluster_file) if cluster_file else {}
        found = _override(found, _read_file(file) if file else {})
        found = _override(found, _read_environment(environ))
        return cls.of(_override(found, flags))

    def with_overrides(self, overrides: Mapping[str, str]) -> BrokerConfig:
        """Give the config of a running broker after a change. Raises ConfigError."""
        for name in overrides:
            if not broker_config_key(name).is_dynamic:
                raise ConfigError(f"{name}: it cannot change while the broker runs")
        altered = _override(self.dynamic_configs, overrides)
        config = BrokerConfig.of(_override(self.static_configs, altered))
        config._remember(self.static_configs, altered)
        return config

    @property
    def parsed_listeners(self) -> tuple[Listener, ...]:
        """The listeners, with what they advertise: in a cluster, what all know of this broker."""
        own = self.cluster_file.listeners_of(self.broker_id) if self.cluster_brokers else ()
        if own and self.listeners == _OWN["listeners"].default_value:
            return own
        advertised = self.advertised_listeners or ",".join(
            f"{one.name}://{format_host(one.advertised_host or '')}:{one.advertised_port}"
            for one in own
        )
        return parse_listeners(self.listeners, advertised)

    @property
    def cluster_file(self) -> ClusterFile:
        """The brokers of the cluster; empty where there is but this one."""
        return parse_cluster_brokers(self.cluster_brokers)

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener by which the controller is reached."""
        names = self.cluster_file.brokers[self.broker_id]
        return self.inter_broker_listener_name or next(iter(names))

    def _check_roster(self) -> None:
        roster = self.cluster_file
        if not self.cluster_brokers:
            parse_listeners(self.listeners, self.advertised_listeners)
            return
        own = roster.brokers.get(self.broker_id)
        if own is None:
            raise ConfigError(
                f"broker.id: {self.broker_id} is not in cluster.brokers, which has"
                f" {', '.join(map(str, roster.broker_ids))}"
            )
        if self.inter_broker_listener not in own:
            raise ConfigError(
                f"inter.broker.listener.name: there is no listener {self.inter_broker_listener},"
                f" only {', '.join(own)}"
            )
        if self.advertised_listeners:
            raise ConfigError(
                "advertised.listeners: in a cluster, cluster.brokers says what clients are told"
            )
        listeners = {one.name for one in self.parsed_listeners}
        if listeners != own.keys():
            raise ConfigError(
                f"listeners: {', '.join(sorted(listeners))}, and in cluster.brokers this broker has"
                f" {', '.join(own)}"
            )

    def text_of(self, name: str) -> str:
        """Give the value of a setting as text. Raises ConfigError if there is no such setting."""
        return self._text_of(broker_config_key(name))

    def _text_of(self, declared: ConfigKey) -> str:
        if declared.topic_name:
            return self.topic_defaults.text_of(declared.topic_name)
        if declared.name in _UNITS:
            return _override(self.static_configs, self.dynamic_configs).get(declared.name, "")
        return as_text(getattr(self, field_of(declared.name)))

    def is_static(self, name: str) -> bool:
        """Whether the broker was started with a value of this setting, in whatever unit."""
        return any(name in (given, _target(given)) for given in self.static_configs)


def broker_configs() -> tuple[ConfigKey, ...]:
    """Describe every setting of a broker."""
    return tuple(_KNOWN.values())


_OWN = config_keys(BrokerConfig)
_KNOWN: dict[str, ConfigKey] = {
    **_OWN,
    **{
        name: replace(TOPIC_CONFIGS[topic_name], name=name, topic_name=topic_name)
        for name, topic_name in _TOPIC_DEFAULTS.items()
    },
    **{name: unit.setting for name, unit in _UNITS.items()},
}


def broker_config_key(name: str) -> ConfigKey:
    """Describe a setting of a broker. Raises ConfigError if there is no such."""
    if name in _KNOWN:
        return _KNOWN[name]
    for ours, topic_name in _TOPIC_DEFAULTS.items():
        if name == topic_name:
            raise ConfigError(f"{name} is a setting of topics; its default is set by {ours}")
    raise unknown_config(name, _KNOWN)


def _target(name: str) -> str:
    return _UNITS[name].target if name in _UNITS else name


def _override(lower: Mapping[str, str], higher: Mapping[str, str]) -> dict[str, str]:
    """Join two sources. Hours from a higher one win over milliseconds from a lower one."""
    settled = {_target(name) for name in higher}
    kept = {name: text for name, text in lower.items() if _target(name) not in settled}
    return {**kept, **higher}


def _without_units(values: Mapping[str, Any]) -> dict[str, Any]:
    """Give all values in milliseconds: those that are so given win."""
    converted = {
        unit.target: unit.in_ms(values[name]) for name, unit in _UNITS.items() if name in values
    }
    return {**converted, **values}


def environment_variable(name: str) -> str:
    """Name the variable of the environment that a setting is taken from."""
    return _ENVIRONMENT_PREFIX + field_of(name).upper()


def _read_environment(environ: Mapping[str, str]) -> dict[str, str]:
    names = {environment_variable(name): name for name in _KNOWN}
    found = {}
    for variable, text in environ.items():
        if variable in names:
            name = names[variable]
            found[name] = _checked(name, text, source=variable)
        elif variable.startswith(_ENVIRONMENT_PREFIX) and variable not in _NOT_OURS:
            raise unknown_config(variable, names)
    return found


def _read_file(path: Path) -> dict[str, str]:
    found: dict[str, str] = {}
    for number, line in _lines(path):
        source = f"{path}:{number}"
        name, equals, text = (part.strip() for part in line.partition("="))
        if not equals:
            raise ConfigError(f"{source}: {line!r} is not KEY=VALUE")
        if name in found:
            raise ConfigError(f"{source}: {name} is set a second time")
        found[name] = _checked(name, text, source=source)
    return found


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Give the lines that say something, numbered."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as problem:
        raise ConfigError(f"{path}: {problem.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{path}: it is not text in UTF-8") from None
    for number, line in enumerate(text.splitlines(), start=1):
        if line.strip() and line.lstrip()[0] not in "#!":
            yield number, line.strip()


def _checked(name: str, text: str, *, source: str) -> str:
    """Give the text, if it can be; an error says where it came from."""
    try:
        broker_config_key(name).parse(text)
    except ConfigError as problem:
        raise ConfigError(f"{source}: {problem}") from None
    return text
