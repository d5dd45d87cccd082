"""Broker configs: Kafka's names, defaults and bounds.

`BrokerConfig(num_partitions=3)` takes values, `BrokerConfig.of({"num.partitions": "3"})` takes
text; `loader.load_broker_config` reads flags, the environment and files. All of them raise
ConfigError for an unknown config or an invalid value.

Topic defaults are broker configs too, under the names that Kafka's brokers use for them
(`log.retention.ms` is the default of `retention.ms`). They are declared once, in
`ottla.storage.config.LogConfig`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from ottla.coord.principal import KafkaPrincipal
from ottla.protocol.configdef import (
    INT_MAX,
    LONG_MAX,
    ConfigError,
    ConfigKey,
    as_text,
    config_key,
    config_keys,
    field_of,
    unknown_config,
)
from ottla.storage.config import TOPIC_CONFIGS, LogConfig

from ..cluster.cluster_file import ClusterFile, parse_cluster_brokers
from ..cluster.store.store_url import parse_store_url
from ..net.listeners import (
    Endpoint,
    Listener,
    format_host,
    is_loopback,
    parse_endpoint,
    parse_listeners,
)
from .security_configs import (
    PLAINTEXT,
    ListenerSecurityConfig,
    SecurityConfigs,
    listener_config_key,
    parse_protocol_map,
    split_listener_config,
)
from .time_units import TIME_UNITS, merge_configs, target_of, to_milliseconds

__all__ = ["BROKER_CONFIGS", "BrokerConfig", "ConfigError", "ConfigKey", "broker_config_key"]

NO_LIMIT = sys.float_info.max

_MINUTE_MS = 60 * 1000
_DAY_MS = 24 * 60 * _MINUTE_MS
_MIB = 1024 * 1024
#: Room for two requests that fail at members of the store, and for an election there.
_STORE_SESSION_TIMEOUT_MS = 6000
_MIN_STORE_SESSION_TIMEOUT_MS = 2000
#: Defaults with a metadata store: the loss of any one broker loses nothing and stops nothing.
_STORE_REPLICATION_FACTOR = 3
_STORE_MIN_ISR = 2

#: The group protocols, and the assignors of consumer groups.
GROUP_PROTOCOLS = ("classic", "consumer")
ASSIGNORS = ("uniform", "range")
#: The configs of groups whose values the broker limits, by configs of its own: see `limits_of`.
LIMITED_GROUP_CONFIGS = (
    "consumer.session.timeout.ms",
    "consumer.heartbeat.interval.ms",
    "share.session.timeout.ms",
    "share.heartbeat.interval.ms",
    "share.record.lock.duration.ms",
    "share.delivery.count.limit",
    "share.partition.max.record.locks",
)

_RACK_AWARE_SELECTOR = "org.apache.kafka.common.replica.RackAwareReplicaSelector"
# The broker config that holds the default of each topic config.
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
    "log.segment.delete.delay.ms": "file.delete.delay.ms",
    "log.flush.interval.messages": "flush.messages",
    "log.flush.interval.ms": "flush.ms",
    "log.durability": "durability",
    "compression.type": "compression.type",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.zstd.level": "compression.zstd.level",
    "min.insync.replicas": "min.insync.replicas",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
    "log.preallocate": "preallocate",
    "log.roll.jitter.ms": "segment.jitter.ms",
}


def limits_of(name: str) -> tuple[str, str]:
    """Return the names of the minimum and the maximum of a group's config."""
    kind, _dot, rest = name.partition(".")
    return f"{kind}.min.{rest}", f"{kind}.max.{rest}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(SecurityConfigs):
    """The configs of one broker. A field's name with dots for underscores is the config's name."""

    broker_id: int = config_key(
        0, "Id of this broker, unique in the cluster.", low=0, high=INT_MAX, is_dynamic=False
    )
    cluster_id: str = config_key(
        "",
        "Id of the cluster. If empty, the id in the data directory is used; a new data directory"
        " gets the controller's id, or a random one on the controller.",
        is_dynamic=False,
    )
    log_dir: str = config_key(
        "ottla-data", "Directory in which the log data is kept.", is_dynamic=False
    )
    listeners: str = config_key(
        "PLAINTEXT://127.0.0.1:9092",
        "Comma-separated list of listeners: NAME://HOST:PORT. Port 0 picks a free port; an empty"
        " host binds all interfaces.",
        is_list=True,
        is_dynamic=False,
    )
    advertised_listeners: str = config_key(
        "",
        "Comma-separated list of the addresses that clients connect to: NAME://HOST:PORT, for some"
        " or all listeners. A listener that is not in the list advertises its own address; a"
        " wildcard listener (0.0.0.0) advertises the address that the client connected to.",
        is_list=True,
        is_dynamic=False,
    )
    cluster_brokers: str = config_key(
        "",
        "Comma-separated list of all brokers of the cluster, the same on each of them:"
        " ID@HOST:PORT, or ID@NAME://HOST:PORT for each listener. If empty, this broker is the"
        " whole cluster.",
        is_list=True,
        is_dynamic=False,
    )
    inter_broker_listener_name: str = config_key(
        "",
        "Listener used for communication between brokers. If empty, the first one in"
        " cluster.brokers, or, with cluster.store, in listeners.",
        is_dynamic=False,
    )
    cluster_store: str = config_key(
        "",
        "Metadata store of the cluster: etcd://HOST:PORT,…/NAME, or etcds:// over TLS. NAME is the"
        " name of this cluster in the store. Brokers register there instead of in cluster.brokers.",
        is_dynamic=False,
    )
    cluster_store_username: str = config_key(
        "", "User of the metadata store. If empty, no authentication.", is_dynamic=False
    )
    cluster_store_password_file: str = config_key(
        "", "File with the password of cluster.store.username.", is_dynamic=False
    )
    cluster_store_ssl_truststore_location: str = config_key(
        "",
        "PEM file with the certificates that sign those of the metadata store. If empty, those of"
        " the operating system.",
        is_dynamic=False,
    )
    cluster_store_ssl_keystore_location: str = config_key(
        "",
        "PEM file with the certificate chain and the private key of this broker as a client of the"
        " metadata store.",
        is_dynamic=False,
    )
    broker_rack: str = config_key(
        "", "Rack of this broker, as reported to clients; needs cluster.store.", is_dynamic=False
    )
    replica_selector_class: str = config_key(
        "",
        "Replica that consumers read from (KIP-392): the leader, or, with RackAwareReplicaSelector,"
        " an in-sync replica in the consumer's rack (client.rack), if there is one. Needs"
        " cluster.store and broker.rack.",
        choices=("", "org.apache.kafka.common.replica.LeaderSelector", _RACK_AWARE_SELECTOR),
        is_dynamic=False,
    )
    broker_session_timeout_ms: int = config_key(
        3000,
        "Time without a heartbeat after which the controller considers a broker down; with"
        " cluster.store the time of the broker's lease, 6000 by default and 2000 at least.",
        low=100,
        high=INT_MAX,
        is_dynamic=False,
    )
    controller_wait_ms: int = config_key(
        10_000,
        "Maximum time that a starting broker waits to catch up with the controller's metadata log."
        " After that it serves the metadata it has.",
        low=0,
        high=INT_MAX,
        is_dynamic=False,
    )
    num_partitions: int = config_key(
        1, "Default number of partitions of a new topic.", low=1, high=INT_MAX
    )
    default_replication_factor: int = config_key(
        1,
        "Default replication factor of a new topic. With cluster.store it is 3 by default, or the"
        " number of live brokers if that is less. Without, see replication.factor.policy.",
        low=1,
        high=2**15 - 1,
        is_dynamic=False,
    )
    replication_factor_policy: str = config_key(
        "auto",
        "What becomes of a new topic with a replication factor above 1: with clamp it is created"
        " with one replica per partition, with reject it is refused. auto is clamp if this broker"
        " is the whole cluster and listens on loopback only, and reject otherwise. Replica"
        " assignments are never clamped.",
        choices=("auto", "clamp", "reject"),
        is_dynamic=False,
    )
    replica_lag_time_max_ms: int = config_key(
        10_000,
        "Time without catching up with the leader after which a follower leaves the ISR.",
        low=100,
        high=INT_MAX,
    )
    replica_fetch_wait_max_ms: int = config_key(
        500, "Maximum time that a fetch of a follower waits for new records.", low=1, high=INT_MAX
    )
    replica_fetch_max_bytes: int = config_key(
        1024 * 1024,
        "Maximum bytes per partition in a response to a follower; the first batch may be larger.",
        low=1,
        high=INT_MAX,
    )
    replica_fetch_response_max_bytes: int = config_key(
        10 * 1024 * 1024, "Maximum bytes of a response to a follower.", low=1, high=INT_MAX
    )
    leader_replication_throttled_rate: int = config_key(
        LONG_MAX,
        "Maximum bytes per second that this broker sends, as the leader of partitions in"
        " leader.replication.throttled.replicas, to followers that are not in sync.",
        low=0,
    )
    follower_replication_throttled_rate: int = config_key(
        LONG_MAX,
        "Maximum bytes per second that this broker fetches of the partitions in"
        " follower.replication.throttled.replicas that it is behind with.",
        low=0,
    )
    replica_alter_log_dirs_io_max_bytes_per_second: int = config_key(
        LONG_MAX,
        "Maximum bytes per second of moves between log directories.",
        fixed_because="a broker has one log directory",
    )
    replica_socket_timeout_ms: int = config_key(
        3000,
        "Time beyond replica.fetch.wait.max.ms after which a fetch of a follower fails.",
        low=100,
        high=INT_MAX,
    )
    auto_leader_rebalance_enable: bool = config_key(
        True, "Whether preferred leaders are elected from time to time; with cluster.store."
    )
    leader_imbalance_check_interval_seconds: int = config_key(
        300,
        "Interval at which preferred leaders are elected. A broker that has returned gets leaders"
        " back after that time at the earliest.",
        low=1,
        high=INT_MAX,
    )
    leader_imbalance_per_broker_percentage: int = config_key(
        10,
        "Share of the partitions whose preferred leader a broker is that others may lead, before"
        " preferred leaders are elected.",
        low=0,
        high=100,
    )
    controlled_shutdown_max_wait_ms: int = config_key(
        5000,
        "Maximum time that a broker that stops waits until others lead its partitions.",
        low=0,
        high=INT_MAX,
    )
    auto_create_topics_enable: bool = config_key(
        True, "Whether a topic is created when a client requests metadata of an unknown topic."
    )
    auto_create_topics_max_per_second: int = config_key(
        100,
        "Maximum number of topics that are auto-created per second, and so by one request. Clients"
        " get LEADER_NOT_AVAILABLE for the others, and ask again.",
        low=1,
        high=INT_MAX,
    )
    delete_topic_enable: bool = config_key(True, "Whether topics can be deleted.")
    broker_max_partitions: int = config_key(
        20_000, "Maximum number of partitions per broker.", low=1, high=INT_MAX
    )

    broker_validate_records: bool = config_key(
        True,
        "Whether the records of produced batches are validated: that they can be decompressed and"
        " decoded, have keys in compacted topics, and timestamps within the limits. Without it,"
        " consumers may receive batches that they cannot read, and retention.ms goes by the time"
        " of the append.",
    )
    broker_max_decompressed_bytes: int = config_key(
        128 * 1024 * 1024,  # protocol.batch.MAX_DECOMPRESSED_BYTES, which is slow to import
        "Maximum size of a record batch after decompression. Larger batches are rejected. The"
        " broker decompresses one batch at a time that is larger than 8 MiB.",
        low=1024,
        high=INT_MAX,
    )

    socket_request_max_bytes: int = config_key(
        100 * _MIB, "Maximum size of a Produce request.", low=1024, high=INT_MAX
    )
    socket_other_request_max_bytes: int = config_key(
        8 * _MIB, "Maximum size of a request other than Produce.", low=1024, high=INT_MAX
    )
    queued_max_request_bytes: int = config_key(
        256 * _MIB,
        "Maximum bytes of in-flight requests over all connections; reading pauses above it. At"
        " least socket.request.max.bytes.",
        low=1024,
    )
    max_in_flight_requests_per_connection: int = config_key(
        64,
        "Maximum in-flight requests per connection; reading pauses above it.",
        low=1,
        high=INT_MAX,
    )
    socket_send_queue_bytes: int = config_key(
        _MIB,
        "Maximum unsent response bytes per connection; reading pauses above it.",
        low=1,
        high=INT_MAX,
    )
    max_connections: int = config_key(10_000, "Maximum number of connections.", low=1, high=INT_MAX)
    max_connections_per_ip: int = config_key(
        5000, "Maximum number of connections per client IP address.", low=1, high=INT_MAX
    )
    connections_max_idle_ms: int = config_key(
        10 * _MINUTE_MS, "Time without received data after which a connection is closed.", low=1
    )
    connections_progress_timeout_ms: int = config_key(
        30_000,
        "Maximum time for receiving one request or sending one response, plus one second for each"
        " MiB of its size. Slower connections are closed.",
        low=1,
    )
    socket_listen_backlog_size: int = config_key(
        512,
        "Maximum number of connections waiting to be accepted.",
        low=1,
        high=INT_MAX,
        is_dynamic=False,
    )
    socket_send_buffer_bytes: int = config_key(
        -1,
        "SO_SNDBUF of each connection; -1 uses the operating system's default.",
        low=-1,
        high=INT_MAX,
        is_dynamic=False,
    )
    socket_receive_buffer_bytes: int = config_key(
        -1,
        "SO_RCVBUF of each connection; -1 uses the operating system's default.",
        low=-1,
        high=INT_MAX,
        is_dynamic=False,
    )

    fetch_max_bytes: int = config_key(
        55 * _MIB, "Maximum bytes of records in a Fetch response.", low=1024, high=INT_MAX
    )
    max_incremental_fetch_session_cache_slots: int = config_key(
        1000, "Maximum number of incremental fetch sessions.", low=0, high=INT_MAX
    )
    max_request_partition_size_limit: int = config_key(
        2000,
        "Maximum number of partitions in a DescribeTopicPartitions response.",
        low=1,
        high=INT_MAX,
    )

    group_min_session_timeout_ms: int = config_key(
        6000, "Minimum session timeout of group members.", low=1, high=INT_MAX
    )
    group_max_session_timeout_ms: int = config_key(
        30 * _MINUTE_MS, "Maximum session timeout of group members.", low=1, high=INT_MAX
    )
    group_initial_rebalance_delay_ms: int = config_key(
        100,
        "Time that the coordinator waits for more members to join an empty group before the first"
        " rebalance; each member that joins extends it.",
        low=0,
        high=INT_MAX,
    )
    group_max_size: int = config_key(
        1000, "Maximum number of members of a group.", low=1, high=INT_MAX
    )
    group_coordinator_rebalance_protocols: str = config_key(
        "classic,consumer",
        "Comma-separated list of the group protocols that clients may use. Without consumer,"
        " clients that ask for it get UNSUPPORTED_VERSION.",
        is_list=True,
        is_dynamic=False,
    )
    group_consumer_session_timeout_ms: int = config_key(
        45_000,
        "Session timeout of the members of consumer groups. A group may have its own:"
        " consumer.session.timeout.ms.",
        low=1,
        high=INT_MAX,
    )
    group_consumer_min_session_timeout_ms: int = config_key(
        45_000, "Minimum session timeout of consumer groups.", low=1, high=INT_MAX
    )
    group_consumer_max_session_timeout_ms: int = config_key(
        60_000, "Maximum session timeout of consumer groups.", low=1, high=INT_MAX
    )
    group_consumer_heartbeat_interval_ms: int = config_key(
        5_000,
        "Interval at which members of consumer groups send heartbeats. A group may have its own:"
        " consumer.heartbeat.interval.ms. During a rebalance it is a second at most.",
        low=1,
        high=INT_MAX,
    )
    group_consumer_min_heartbeat_interval_ms: int = config_key(
        5_000, "Minimum heartbeat interval of consumer groups.", low=1, high=INT_MAX
    )
    group_consumer_max_heartbeat_interval_ms: int = config_key(
        15_000, "Maximum heartbeat interval of consumer groups.", low=1, high=INT_MAX
    )
    group_consumer_assignment_interval_ms: int = config_key(
        1_000,
        "Minimum time between two target assignments of a consumer group. A group may have its own:"
        " consumer.assignment.interval.ms.",
        low=0,
        high=INT_MAX,
    )
    group_consumer_max_size: int = config_key(
        INT_MAX, "Maximum number of members of a consumer group.", low=1, high=INT_MAX
    )
    group_consumer_assignors: str = config_key(
        "uniform,range",
        "Comma-separated list of the assignors of consumer groups, the default first.",
        is_list=True,
    )
    group_consumer_migration_policy: str = config_key(
        "bidirectional",
        "Which groups with members may change their protocol: upgrade turns a classic group into a"
        " consumer group when such a member joins, downgrade back when the last one leaves."
        " Groups without members always may.",
        choices=("bidirectional", "upgrade", "downgrade", "disabled"),
    )
    group_consumer_regex_refresh_interval_ms: int = config_key(
        10 * _MINUTE_MS,
        "Interval at which the regular expressions of subscriptions are resolved again. New topics"
        " are found at once.",
        low=10_000,
        high=INT_MAX,
    )
    group_share_session_timeout_ms: int = config_key(
        45_000,
        "Session timeout of the members of share groups. A group may have its own:"
        " share.session.timeout.ms.",
        low=1,
        high=INT_MAX,
    )
    group_share_min_session_timeout_ms: int = config_key(
        45_000, "Minimum session timeout of share groups.", low=1, high=INT_MAX
    )
    group_share_max_session_timeout_ms: int = config_key(
        60_000, "Maximum session timeout of share groups.", low=1, high=INT_MAX
    )
    group_share_heartbeat_interval_ms: int = config_key(
        5_000,
        "Interval at which members of share groups send heartbeats. A group may have its own:"
        " share.heartbeat.interval.ms.",
        low=1,
        high=INT_MAX,
    )
    group_share_min_heartbeat_interval_ms: int = config_key(
        5_000, "Minimum heartbeat interval of share groups.", low=1, high=INT_MAX
    )
    group_share_max_heartbeat_interval_ms: int = config_key(
        15_000, "Maximum heartbeat interval of share groups.", low=1, high=INT_MAX
    )
    group_share_record_lock_duration_ms: int = config_key(
        30_000,
        "How long a member of a share group may take to acknowledge records, before others get"
        " them. A group may have its own: share.record.lock.duration.ms.",
        low=1,
        high=3_600_000,
    )
    group_share_min_record_lock_duration_ms: int = config_key(
        15_000, "Minimum lock duration of share groups.", low=1, high=3_600_000
    )
    group_share_max_record_lock_duration_ms: int = config_key(
        60_000, "Maximum lock duration of share groups.", low=1, high=3_600_000
    )
    group_share_delivery_count_limit: int = config_key(
        5,
        "How often a share group delivers a record before it gives it up. A group may have its own:"
        " share.delivery.count.limit.",
        low=1,
        high=1000,
    )
    group_share_min_delivery_count_limit: int = config_key(
        2, "Minimum delivery count limit of share groups.", low=1, high=1000
    )
    group_share_max_delivery_count_limit: int = config_key(
        10, "Maximum delivery count limit of share groups.", low=1, high=1000
    )
    group_share_partition_max_record_locks: int = config_key(
        2_000,
        "Maximum number of records of a partition that a share group has in flight: from the first"
        " that is not done, to the last that was delivered. A group may have its own:"
        " share.partition.max.record.locks.",
        low=1,
        high=100_000,
    )
    group_share_min_partition_max_record_locks: int = config_key(
        100, "Minimum number of records in flight of share groups.", low=1, high=100_000
    )
    group_share_max_partition_max_record_locks: int = config_key(
        4_000, "Maximum number of records in flight of share groups.", low=1, high=100_000
    )
    group_share_max_size: int = config_key(
        200, "Maximum number of members of a share group.", low=1, high=1_000
    )
    group_share_max_share_sessions: int = config_key(
        2_000, "Maximum number of share sessions per broker.", low=1, high=INT_MAX
    )
    broker_max_groups: int = config_key(
        10_000, "Maximum number of groups with members per broker.", low=1, high=INT_MAX
    )
    broker_memory_max_bytes: int = config_key(
        128 * _MIB,
        "Maximum memory of groups, committed offsets, transactional ids, fetch sessions, parked"
        " fetches and producer states. A quarter of it is reserved for groups with members; the"
        " least recently active producers are evicted when there is no room.",
        low=1024,
    )
    offset_metadata_max_bytes: int = config_key(
        4096, "Maximum size of the metadata of an offset commit.", low=0, high=2**15 - 1
    )
    offsets_retention_minutes: int = config_key(
        7 * 24 * 60,
        "Time after which the committed offsets of an empty group are discarded.",
        low=1,
        high=INT_MAX,
    )
    offsets_retention_check_interval_ms: int = config_key(
        10 * _MINUTE_MS, "Interval between checks for expired offsets.", low=1
    )
    offsets_topic_num_partitions: int = config_key(
        8,
        "Number of partitions of __consumer_offsets. Applies when the topic is created.",
        low=1,
        high=10_000,
        is_dynamic=False,
    )
    offsets_topic_segment_bytes: int = config_key(
        _MIB,
        "segment.bytes of __consumer_offsets. Applies when the topic is created. A start reads up"
        " to this much of each partition beyond its compacted segments.",
        low=1024,
        high=INT_MAX,
        is_dynamic=False,
    )

    transaction_max_timeout_ms: int = config_key(
        15 * _MINUTE_MS,
        "Maximum timeout of transactions. A producer that asks for more is refused.",
        low=1,
        high=INT_MAX,
    )
    transaction_abort_timed_out_transaction_cleanup_interval_ms: int = config_key(
        10_000, "Interval between checks for transactions that have timed out.", low=1, high=INT_MAX
    )
    transactional_id_expiration_ms: int = config_key(
        7 * _DAY_MS,
        "Time after which an unused transactional id expires. Its producer starts anew.",
        low=1,
        high=INT_MAX,
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = config_key(
        60 * _MINUTE_MS,
        "Interval between checks for expired transactional ids.",
        low=1,
        high=INT_MAX,
    )
    transaction_partition_verification_enable: bool = config_key(
        True,
        "Whether the first batch of a transaction in a partition is verified with the transaction"
        " coordinator.",
    )
    add_partitions_to_txn_retry_backoff_ms: int = config_key(
        20,
        "Time between two attempts to add a partition to a transaction, while the transaction"
        " before is being completed.",
        low=1,
        high=INT_MAX,
    )
    add_partitions_to_txn_retry_backoff_max_ms: int = config_key(
        100,
        "Time after which a partition leader gives up adding a partition to a transaction.",
        low=0,
        high=INT_MAX,
    )
    transaction_state_log_num_partitions: int = config_key(
        8,
        "Number of partitions of __transaction_state. Applies when the topic is created.",
        low=1,
        high=10_000,
        is_dynamic=False,
    )
    transaction_state_log_segment_bytes: int = config_key(
        _MIB,
        "segment.bytes of __transaction_state. Applies when the topic is created. A start reads up"
        " to this much of each partition beyond its compacted segments.",
        low=1024,
        high=INT_MAX,
        is_dynamic=False,
    )
    broker_max_transactional_ids: int = config_key(
        100_000, "Maximum number of transactional ids per broker.", low=1, high=INT_MAX
    )

    log_retention_check_interval_ms: int = config_key(
        5 * _MINUTE_MS, "Interval between checks for segments to delete.", low=1
    )
    log_flush_scheduler_interval_ms: int = config_key(
        1000, "Interval between checks for logs to flush (flush.ms, flush.messages).", low=1
    )
    log_flush_offset_checkpoint_interval_ms: int = config_key(
        _MINUTE_MS,
        "Interval between checkpoints of the flushed offsets, from which recovery starts.",
        low=1,
        high=INT_MAX,
    )
    log_cleaner_enable: bool = config_key(
        True, "Whether logs with cleanup.policy=compact are compacted.", is_dynamic=False
    )
    log_cleaner_backoff_ms: int = config_key(
        15_000, "Time that the log cleaner sleeps between two passes.", low=0
    )
    log_cleaner_io_max_bytes_per_second: float = config_key(
        NO_LIMIT, "Maximum bytes per second that the log cleaner reads and writes.", low=1
    )
    log_scrub_interval_ms: int = config_key(
        7 * _DAY_MS,
        "Interval between the starts of two passes of the scrubber, which verifies the CRCs of all"
        " sealed segments; 0 turns it off.",
        low=0,
    )
    log_scrub_bytes_per_second: int = config_key(
        4 * _MIB, "Maximum bytes per second that the scrubber reads.", low=1024
    )
    producer_id_expiration_ms: int = config_key(
        _DAY_MS,
        "Time without an append after which the state of an idempotent producer is discarded.",
        low=1,
        high=INT_MAX,
    )
    producer_id_expiration_check_interval_ms: int = config_key(
        10 * _MINUTE_MS, "Interval between checks for expired producer ids.", low=1, high=INT_MAX
    )
    shutdown_timeout_ms: int = config_key(
        10_000, "Maximum time for completing in-flight requests at shutdown.", low=0
    )
    authorizer_class_name: str = config_key(
        "",
        "Authorizer that checks what clients may do: acl decides with the ACLs of the cluster;"
        " Kafka's org.apache.kafka.metadata.authorizer.StandardAuthorizer is another name of it. If"
        " empty, every client may do everything.",
        choices=("", "acl", "org.apache.kafka.metadata.authorizer.StandardAuthorizer"),
        is_dynamic=False,
    )
    super_users: str = config_key(
        "",
        "Semicolon-separated list of principals that may do everything, whatever the ACLs say:"
        " User:admin;User:broker. The principal of the brokers belongs here, unless ACLs allow it"
        " CLUSTER_ACTION on the cluster.",
        is_dynamic=False,
    )
    allow_everyone_if_no_acl_found: bool = config_key(
        False,
        "Whether every client may use the resources that no ACL is about.",
        is_dynamic=False,
    )
    quota_window_num: int = config_key(
        11,
        "Number of samples over which the rates of client quotas are measured.",
        low=2,
        high=1000,
        is_dynamic=False,
    )
    quota_window_size_seconds: int = config_key(
        1, "Time of each sample of the rates of client quotas.", low=1, high=3600, is_dynamic=False
    )
    metrics_listener: str = config_key(
        "",
        "HOST:PORT of the Prometheus endpoint, as in 127.0.0.1:9404; empty disables it.",
        is_dynamic=False,
    )
    log_level: str = config_key(
        "INFO",
        "Minimum level of log messages.",
        choices=("DEBUG", "INFO", "WARNING", "ERROR"),
    )
    log_format: str = config_key(
        "text", "Format of log messages.", choices=("text", "json"), is_dynamic=False
    )

    topic_defaults: LogConfig = field(default_factory=LogConfig)
    """The values of the topic configs that a topic does not override."""
    static_configs: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """The configs that the broker was started with, as text, without defaults."""
    dynamic_configs: Mapping[str, str] = field(init=False, repr=False, compare=False)
    """The configs that were altered since (`with_overrides`), as text."""

    def __post_init__(self) -> None:
        for name, key in _BROKER_ONLY.items():
            key.check(getattr(self, field_of(name)))
        if not self.log_dir:
            raise ConfigError("Invalid value for log.dir: it must name a directory")
        if self.queued_max_request_bytes < self.socket_request_max_bytes:
            raise ConfigError(
                f"Invalid value {self.queued_max_request_bytes} for queued.max.request.bytes: the"
                f" minimum is socket.request.max.bytes, {self.socket_request_max_bytes}"
            )
        if self.security_inter_broker_protocol and self.inter_broker_listener_name:
            raise ConfigError(
                "security.inter.broker.protocol and inter.broker.listener.name are both set: use"
                " one of them"
            )
        self._check_listeners()
        _ = self.has_security  # Raises ConfigError.
        self.check_replication_factor("default.replication.factor", self.default_replication_factor)
        _ = self.metrics_endpoint  # Raises ConfigError.
        _ = self.super_user_principals  # Raises ConfigError.
        self._check_groups()
        self._set_sources(
            {
                key.name: self._text_of(key)
                for key in BROKER_CONFIGS.values()
                if key.name not in TIME_UNITS and self._text_of(key) != key.default
            }
            | dict(self.listener_configs)
        )

    def _set_sources(
        self, static_configs: Mapping[str, str], dynamic_configs: Mapping[str, str] | None = None
    ) -> None:
        object.__setattr__(self, "static_configs", dict(static_configs))
        object.__setattr__(self, "dynamic_configs", dict(dynamic_configs or {}))

    @classmethod
    def of(cls, configs: Mapping[str, str]) -> BrokerConfig:
        """Parse configs by name. Raises ConfigError."""
        values = {name: broker_config_key(name).parse(text) for name, text in configs.items()}
        fields = {field_of(name): value for name, value in values.items() if name in _BROKER_ONLY}
        topic_fields = {
            field_of(_TOPIC_DEFAULTS[name]): value
            for name, value in to_milliseconds(values).items()
            if name in _TOPIC_DEFAULTS
        }
        if values.get("cluster.store"):
            topic_fields.setdefault("min_insync_replicas", _STORE_MIN_ISR)
        of_listeners = {name: text for name, text in configs.items() if split_listener_config(name)}
        config = cls(
            **fields, topic_defaults=LogConfig(**topic_fields), listener_configs=of_listeners
        )
        config._set_sources(configs)
        return config

    def with_overrides(self, overrides: Mapping[str, str]) -> BrokerConfig:
        """Return a copy with dynamic configs altered. Raises ConfigError."""
        for name in overrides:
            key = broker_config_key(name)
            if key.is_sensitive:
                raise ConfigError(f"{name} is a secret: set it where the broker starts")
            if not key.is_dynamic:
                raise ConfigError(f"{name} cannot be altered while the broker runs")
        dynamic_configs = merge_configs(self.dynamic_configs, overrides)
        config = BrokerConfig.of(merge_configs(self.static_configs, dynamic_configs))
        config._set_sources(self.static_configs, dynamic_configs)
        return config

    def text_of(self, name: str) -> str:
        """Return the value of a config as text. Raises ConfigError if it is unknown."""
        return self._text_of(broker_config_key(name))

    def _text_of(self, key: ConfigKey) -> str:
        if key.topic_name:
            return self.topic_defaults.text_of(key.topic_name)
        if split_listener_config(key.name):
            return self.listener_configs.get(key.name, "")
        if key.name in TIME_UNITS:
            return merge_configs(self.static_configs, self.dynamic_configs).get(key.name, "")
        return as_text(getattr(self, field_of(key.name)))

    def is_static(self, name: str) -> bool:
        """Whether the broker was started with a value of this config, in any time unit."""
        return any(name in (static, target_of(static)) for static in self.static_configs)

    @property
    def is_clustered(self) -> bool:
        """Whether this broker is one of several, or may become it."""
        return bool(self.cluster_brokers or self.cluster_store)

    @property
    def session_timeout_ms(self) -> int:
        """The session timeout of brokers; longer with a store, which may fail over itself."""
        if self.cluster_store and not self.is_static("broker.session.timeout.ms"):
            return _STORE_SESSION_TIMEOUT_MS
        return self.broker_session_timeout_ms

    @property
    def cluster_file(self) -> ClusterFile:
        """The brokers in `cluster.brokers`; empty for a single broker."""
        return parse_cluster_brokers(self.cluster_brokers)

    @property
    def parsed_listeners(self) -> tuple[Listener, ...]:
        """The listeners with their advertised addresses, which come from `cluster.brokers` if set.

        In a cluster, `listeners` defaults to the advertised addresses.
        """
        in_cluster = self.cluster_file.listeners_of(self.broker_id) if self.cluster_brokers else ()
        if in_cluster and self.listeners == _BROKER_ONLY["listeners"].default_value:
            return in_cluster
        advertised = self.advertised_listeners or ",".join(
            f"{listener.name}://{format_host(listener.advertised_host or '')}"
            f":{listener.advertised_port}"
            for listener in in_cluster
        )
        return parse_listeners(self.listeners, advertised)

    @property
    def listener_names(self) -> list[str]:
        """The names of the listeners."""
        return [listener.name for listener in self.parsed_listeners]

    def security_of(self, listener: str) -> ListenerSecurityConfig:
        """Return the security configs of a listener. Raises ConfigError."""
        protocols = parse_protocol_map(self.listener_security_protocol_map, self.listener_names)
        return ListenerSecurityConfig(self, listener, protocols[listener])

    @property
    def has_security(self) -> bool:
        """Whether any listener uses TLS or SASL."""
        protocols = parse_protocol_map(self.listener_security_protocol_map, self.listener_names)
        return any(protocol != PLAINTEXT for protocol in protocols.values())

    @property
    def listener_config_keys(self) -> list[ConfigKey]:
        """The configs of single listeners that are set."""
        return [broker_config_key(name) for name in sorted(self.listener_configs)]

    @property
    def clamps_replication_factor(self) -> bool:
        """Whether a replication factor above 1 is replaced by 1; see replication.factor.policy."""
        if self.replication_factor_policy == "auto":
            return not self.is_clustered and all(
                is_loopback(listener.host) for listener in self.parsed_listeners
            )
        return self.replication_factor_policy == "clamp"

    @property
    def new_topic_replication_factor(self) -> int:
        """The replication factor of a topic that does not say; with a store, at most."""
        if self.cluster_store and not self.is_static("default.replication.factor"):
            return _STORE_REPLICATION_FACTOR
        return self.default_replication_factor

    def check_replication_factor(self, name: str, factor: int) -> None:
        """Raise ConfigError if a config has a replication factor that this broker rejects."""
        if self.cluster_store:
            return
        if factor > 1 and not self.clamps_replication_factor:
            raise ConfigError(
                f"Invalid value {factor} for {name}: a partition has one replica; use 1, or"
                " replication.factor.policy=clamp"
            )

    @property
    def reads_in_rack(self) -> bool:
        """Whether consumers read from a follower that is in their rack."""
        return self.replica_selector_class == _RACK_AWARE_SELECTOR

    @property
    def inter_broker_listener(self) -> str:
        """The name of the listener used between brokers."""
        if self.inter_broker_listener_name:
            return self.inter_broker_listener_name
        names = (
            self.listener_names
            if self.cluster_store
            else list(self.cluster_file.brokers[self.broker_id])
        )
        protocol = self.security_inter_broker_protocol
        if not protocol:
            return names[0]
        protocols = parse_protocol_map(self.listener_security_protocol_map, names)
        with_protocol = [name for name in names if protocols[name] == protocol]
        if not with_protocol:
            raise ConfigError(
                f"Invalid value {protocol} for security.inter.broker.protocol: no listener has it"
            )
        return with_protocol[0]

    @property
    def super_user_principals(self) -> frozenset[KafkaPrincipal]:
        """The principals that may do everything. Raises ConfigError."""
        texts = filter(None, (text.strip() for text in self.super_users.split(";")))
        try:
            return frozenset(map(KafkaPrincipal.parse, texts))
        except ValueError as error:
            raise ConfigError(
                f"Invalid value {self.super_users!r} for super.users: {error}"
            ) from None

    @property
    def metrics_endpoint(self) -> Endpoint | None:
        """The address of the Prometheus endpoint. Raises ConfigError."""
        text = self.metrics_listener
        if not text:
            return None
        try:
            return parse_endpoint("metrics.listener", f"HTTP://{text}")
        except ConfigError:
            raise ConfigError(
                f"Invalid value {text!r} for metrics.listener: expected HOST:PORT, as in"
                " 127.0.0.1:9404"
            ) from None

    @property
    def group_protocols(self) -> tuple[str, ...]:
        """The group protocols that clients may use."""
        return _split(self.group_coordinator_rebalance_protocols)

    @property
    def consumer_assignors(self) -> tuple[str, ...]:
        """The assignors of consumer groups, the default first."""
        return _split(self.group_consumer_assignors)

    def _check_groups(self) -> None:
        for name, items, allowed in (
            ("group.coordinator.rebalance.protocols", self.group_protocols, GROUP_PROTOCOLS),
            ("group.consumer.assignors", self.consumer_assignors, ASSIGNORS),
        ):
            unknown = [item for item in items if item not in allowed]
            if unknown or not items:
                raise ConfigError(
                    f"Invalid {name} {', '.join(unknown)!r}: expected some of {', '.join(allowed)}"
                )
        if "classic" not in self.group_protocols:
            raise ConfigError("group.coordinator.rebalance.protocols must contain classic")
        for name in LIMITED_GROUP_CONFIGS:
            value, low, high = (
                getattr(self, field_of(f"group.{one}")) for one in (name, *limits_of(name))
            )
            if not low <= value <= high:
                raise ConfigError(
                    f"Invalid group.{name} {value}: expected {low} to {high}"
                    f" (group.{limits_of(name)[0]} and max)"
                )

    def _check_listeners(self) -> None:
        if self.cluster_store:
            self._check_store()
            return
        if not self.cluster_brokers:
            parse_listeners(self.listeners, self.advertised_listeners)
            return
        in_cluster = self.cluster_file.brokers.get(self.broker_id)
        if in_cluster is None:
            ids = ", ".join(map(str, self.cluster_file.broker_ids))
            raise ConfigError(
                f"Invalid value {self.broker_id} for broker.id: cluster.brokers has only {ids}"
            )
        names = ", ".join(in_cluster)
        if self.inter_broker_listener not in in_cluster:
            raise ConfigError(
                f"Invalid value {self.inter_broker_listener} for inter.broker.listener.name:"
                f" expected one of {names}"
            )
        if self.advertised_listeners:
            raise ConfigError(
                "advertised.listeners cannot be set in a cluster: cluster.brokers has the"
                " advertised addresses"
            )
        listeners = {listener.name for listener in self.parsed_listeners}
        if listeners != in_cluster.keys():
            raise ConfigError(
                f"Invalid value {self.listeners} for listeners: cluster.brokers has the listeners"
                f" {names} for broker {self.broker_id}"
            )

    def _check_store(self) -> None:
        parse_store_url(self.cluster_store)
        if self.cluster_brokers:
            raise ConfigError(
                "cluster.brokers cannot be set with cluster.store: brokers register in the store"
            )
        if self.broker_session_timeout_ms < _MIN_STORE_SESSION_TIMEOUT_MS:
            raise ConfigError(
                f"Invalid value {self.broker_session_timeout_ms} for broker.session.timeout.ms: the"
                f" minimum with cluster.store is {_MIN_STORE_SESSION_TIMEOUT_MS}"
            )
        listeners = self.parsed_listeners
        names = [listener.name for listener in listeners]
        if self.inter_broker_listener not in names:
            raise ConfigError(
                f"Invalid value {self.inter_broker_listener} for inter.broker.listener.name:"
                f" expected one of {', '.join(names)}"
            )
        for listener in listeners:
            if listener.advertised_host is None:
                raise ConfigError(
                    f"Listener {listener.name} binds all interfaces: with cluster.store it needs an"
                    " address in advertised.listeners"
                )


_SECURITY = config_keys(SecurityConfigs)
_DECLARED = config_keys(BrokerConfig)
# The configs of the base class come first there.
_BROKER_ONLY = {
    **{name: key for name, key in _DECLARED.items() if name not in _SECURITY},
    **_SECURITY,
}

BROKER_CONFIGS: Mapping[str, ConfigKey] = {
    **_BROKER_ONLY,
    **{
        name: replace(TOPIC_CONFIGS[topic_name], name=name, topic_name=topic_name)
        for name, topic_name in _TOPIC_DEFAULTS.items()
    },
    **{name: unit.key for name, unit in TIME_UNITS.items()},
}


def _split(items: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(item.strip() for item in items.split(",") if item.strip()))


def broker_config_key(name: str) -> ConfigKey:
    """Return the definition of a broker config. Raises ConfigError if there is none."""
    if name in BROKER_CONFIGS:
        return BROKER_CONFIGS[name]
    for default_name, topic_name in _TOPIC_DEFAULTS.items():
        if name == topic_name:
            raise ConfigError(
                f"{name} is a topic config; the broker config of its default is {default_name}"
            )
    if (key := listener_config_key(name)) is not None:
        return key
    raise unknown_config(name, BROKER_CONFIGS)
