"""Options of Spark's own Kafka source and sink, parsed into frozen dataclasses.

Names and meanings are Spark's, and names are case-insensitive, as in Spark. Options with the prefix
`kafka.` are configs of Kafka's clients: supported ones are applied, those that could only break a
query are rejected, and those that tune what this client does not have are ignored, so that a job
migrates by changing the name of the format. Any other option is an error, which names it and
suggests a similar one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..config import ClientConfig, RetryConfig, TimeoutConfig
from ..producer.batch import BatchConfig
from ..types import EARLIEST, LATEST, TopicPartition
from .errors import OptionError
from .kafka_keys import KAFKA, check_key, suggestion
from .security import security_option
from .values import (
    OffsetBound,
    one_of,
    parse_acks,
    parse_assigned,
    parse_bootstrap,
    parse_count,
    parse_duration_ms,
    parse_flag,
    parse_names,
    parse_number,
    parse_offsets,
    parse_pattern,
    parse_prefix,
    parse_seconds,
    parse_text,
    parse_time,
    parse_times,
)

T = TypeVar("T")

_MINUTE_MS = 60_000
_CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass(frozen=True)
class TopicSelection:
    """What is read: topics by name or pattern, or single partitions."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    partitions: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True)
class ConnectionOptions:
    """How to connect to the brokers. Hashable: idle clients are kept by it."""

    bootstrap: str
    client: ClientConfig


@dataclass(frozen=True)
class FetchOptions:
    """How executors fetch."""

    partition_max_bytes: int = 4 * 1024 * 1024
    check_crcs: bool = True
    #: Whether to skip records of open and aborted transactions.
    read_committed: bool = False
    fail_on_data_loss: bool = True
    has_headers: bool = False


@dataclass(frozen=True)
class SplitOptions:
    """How offset ranges are split into tasks."""

    min_partitions: int | None = None
    max_records: int | None = None


@dataclass(frozen=True)
class TriggerLimits:
    """How many offsets a micro-batch reads."""

    min_offsets: int | None = None
    max_offsets: int | None = None
    max_delay_ms: int = 15 * _MINUTE_MS


@dataclass(frozen=True)
class ReadOptions:
    """The options of a reader."""

    connection: ConnectionOptions
    selection: TopicSelection
    starting: OffsetBound
    ending: OffsetBound
    #: What to do if no record is as recent as the starting timestamp: "error" or "latest".
    timestamp_strategy: str
    fetch: FetchOptions
    splitting: SplitOptions
    limits: TriggerLimits
    commit_group: str | None


@dataclass(frozen=True)
class ExactlyOnceOptions:
    """How rows are written exactly once."""

    #: The start of all transactional ids, and of the name of the progress topic.
    prefix: str
    #: The identity of a batch write: one that was committed is not written again.
    batch_id: int | None = None
    transaction_timeout: float = 15 * _MINUTE_MS / 1000


@dataclass(frozen=True)
class WriteOptions:
    """The options of a writer; `producer` are arguments of `ottla.client.Producer`."""

    connection: ConnectionOptions
    topic: str | None
    include_timestamps: bool
    producer: Mapping[str, Any]
    batch: BatchConfig
    #: None is at least once.
    exactly_once: ExactlyOnceOptions | None = None


_BATCH = [
    "endingOffsets",
    "endingOffsetsByTimestamp",
    "endingTimestamp",
    "pushdown",
]
_STREAM = [
    "commitGroup",
    "maxOffsetsPerTrigger",
    "maxTriggerDelay",
    "minOffsetsPerTrigger",
]
_READ = [
    "assign",
    "failOnDataLoss",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
    "groupIdPrefix",
    "includeHeaders",
    "isolationLevel",
    "kafkaConsumer.pollTimeoutMs",
    "maxRecordsPerPartition",
    "minPartitions",
    "startingOffsets",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "startingTimestamp",
    "subscribe",
    "subscribePattern",
]
_WRITE = ["exactlyOnce", "includeHeaders", "includeTimestamp", "topic", "transactionalIdPrefix"]
_BATCH_WRITE = ["batchId"]
# Spark passes these to every streaming sink.
_STREAMING_SINK = {"checkpointlocation", "queryname"}


def read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Parse the options of a source. Raises OptionError."""
    usage = "a streaming read" if is_stream else "a batch read"
    known, others = (_READ + _STREAM, _BATCH) if is_stream else (_READ + _BATCH, _STREAM)
    values = _OptionValues(options, known, others, usage)
    limits = TriggerLimits(
        values.count("minOffsetsPerTrigger"),
        values.count("maxOffsetsPerTrigger"),
        values.get("maxTriggerDelay", parse_duration_ms) or 15 * _MINUTE_MS,
    )
    if limits.min_offsets and limits.max_offsets and limits.min_offsets > limits.max_offsets:
        raise OptionError(
            f"minOffsetsPerTrigger ({limits.min_offsets}) must not exceed"
            f" maxOffsetsPerTrigger ({limits.max_offsets})"
        )
    strategy = values.get("startingOffsetsByTimestampStrategy", one_of("error", "latest"))
    prefix = values.get("groupIdPrefix", str)
    return ReadOptions(
        connection=_connection_options(values, "default.api.timeout.ms", prefix),
        selection=_topic_selection(values),
        starting=_starting(values, is_stream=is_stream),
        ending=_ending(values),
        timestamp_strategy=strategy or "error",
        fetch=_fetch_options(values),
        splitting=SplitOptions(
            values.count("minPartitions"), values.count("maxRecordsPerPartition")
        ),
        limits=limits,
        commit_group=values.get("commitGroup", parse_text),
    )


def write_options(options: Mapping[str, str], *, is_stream: bool = False) -> WriteOptions:
    """Parse the options of a sink. Raises OptionError."""
    kept = {name: text for name, text in options.items() if name.lower() not in _STREAMING_SINK}
    usage = "a streaming write" if is_stream else "a write"
    known, others = (_WRITE, _BATCH_WRITE) if is_stream else (_WRITE + _BATCH_WRITE, [])
    values = _OptionValues(kept, known, _READ + others, usage)
    values.get("includeHeaders", parse_flag)  # a headers column is always written
    producer = {
        "acks": values.kafka("acks", parse_acks),
        "compression": values.kafka("compression.type", one_of(*_CODECS)),
        "idempotent": values.kafka("enable.idempotence", parse_flag),
    }
    if producer["idempotent"] and producer["acks"] not in ("all", None):
        raise OptionError("kafka.enable.idempotence=true requires kafka.acks=all")
    return WriteOptions(
        connection=_connection_options(values, "delivery.timeout.ms", None, is_sink=True),
        topic=values.get("topic", parse_text),
        include_timestamps=values.get("includeTimestamp", parse_flag) or False,
        producer=_without_none(producer),
        batch=_batch_config(values),
        exactly_once=_exactly_once(values, producer),
    )


def _exactly_once(values: _OptionValues, producer: Mapping[str, Any]) -> ExactlyOnceOptions | None:
    if not values.get("exactlyOnce", parse_flag):
        for name in ("transactionalIdPrefix", "batchId"):
            if values.has(name):
                raise OptionError(f"Option {name} requires exactlyOnce=true")
        return None
    if producer["acks"] not in ("all", None) or producer["idempotent"] is False:
        raise OptionError(
            "exactlyOnce=true requires kafka.acks=all and kafka.enable.idempotence=true"
        )
    prefix = values.get("transactionalIdPrefix", parse_prefix)
    if prefix is None:
        raise OptionError(
            "exactlyOnce=true requires transactionalIdPrefix: a name that no other query has, and"
            " that stays the same when this one is restarted"
        )
    default = ExactlyOnceOptions(prefix)
    return ExactlyOnceOptions(
        prefix,
        values.get("batchId", parse_number),
        values.kafka("transaction.timeout.ms", parse_seconds) or default.transaction_timeout,
    )


def check_names(options: Mapping[str, str]) -> None:
    """Check that all options are known to batch or streaming reads. Raises OptionError.

    Which of the two it is becomes known when the query starts, when errors come late.
    """
    _OptionValues(options, _READ + _BATCH + _STREAM, [], "a read")


def wants_headers(options: Mapping[str, str]) -> bool:
    """Whether includeHeaders is set: Spark asks for the schema before anything else."""
    return _flag_of(options, "includeHeaders")


def wants_pushdown(options: Mapping[str, str]) -> bool:
    """Whether pushdown is set."""
    return _flag_of(options, "pushdown")


def _flag_of(options: Mapping[str, str], name: str) -> bool:
    text = _find(options, name)
    return text is not None and _parsed(name, text, parse_flag)


def _find(options: Mapping[str, str], name: str) -> str | None:
    return next((text for key, text in options.items() if key.lower() == name.lower()), None)


class _OptionValues:
    """Option values by name; all names are known."""

    def __init__(
        self, options: Mapping[str, str], known: list[str], others: list[str], usage: str
    ) -> None:
        self._texts = {name.lower(): text for name, text in options.items()}
        names = {name.lower(): name for name in known}
        elsewhere = {name.lower(): name for name in others}
        for name in self._texts:
            if name.startswith(KAFKA):
                check_key(name.removeprefix(KAFKA))
            elif name in elsewhere and name not in names:
                raise OptionError(f"Option {elsewhere[name]} does not apply to {usage}")
            elif name not in names:
                raise OptionError(f"Unknown option {name!r} for {usage}{suggestion(name, names)}")

    def has(self, name: str) -> bool:
        return name.lower() in self._texts

    def get(self, name: str, parse: Callable[[str], T]) -> T | None:
        """Return the parsed value of an option, or None if it is not set."""
        text = self._texts.get(name.lower())
        return None if text is None else _parsed(name, text, parse)

    def kafka(self, name: str, parse: Callable[[str], T]) -> T | None:
        return self.get(KAFKA + name, parse)

    def count(self, name: str) -> int | None:
        return self.get(name, parse_count)


def _connection_options(
    values: _OptionValues, timeout: str, prefix: str | None, *, is_sink: bool = False
) -> ConnectionOptions:
    bootstrap = values.kafka("bootstrap.servers", parse_bootstrap)
    if bootstrap is None:
        raise OptionError(f"Missing option {KAFKA}bootstrap.servers: expected host:port,…")
    default = ClientConfig()
    timeouts, retry = default.timeouts, default.retry
    poll = values.get("kafkaConsumer.pollTimeoutMs", parse_seconds)
    identity = (
        values.kafka("client.id", parse_text) or values.kafka("group.id", parse_text) or prefix
    )
    client = ClientConfig(
        client_id=identity or "ottla-spark",
        retry=RetryConfig(
            backoff=values.kafka("retry.backoff.ms", parse_seconds) or retry.backoff,
            max_backoff=values.kafka("retry.backoff.max.ms", parse_seconds) or retry.max_backoff,
        ),
        timeouts=TimeoutConfig(
            connect=values.kafka("socket.connection.setup.timeout.ms", parse_seconds)
            or timeouts.connect,
            request=values.kafka("request.timeout.ms", parse_seconds) or timeouts.request,
            operation=values.kafka(timeout, parse_seconds) or poll or timeouts.operation,
        ),
        metadata_max_age=values.kafka("metadata.max.age.ms", parse_seconds)
        or default.metadata_max_age,
        # Reading must not create a topic; writing may, if the brokers are configured to.
        allow_auto_create=is_sink,
        security=security_option(values.kafka),
    )
    return ConnectionOptions(bootstrap, client)


def _topic_selection(values: _OptionValues) -> TopicSelection:
    names = [name for name in ("subscribe", "subscribePattern", "assign") if values.has(name)]
    if len(names) != 1:
        found = " and ".join(names) + " are set" if names else "none is set"
        raise OptionError(
            f"Exactly one of subscribe, subscribePattern and assign is required: {found}"
        )
    return TopicSelection(
        values.get("subscribe", parse_names) or (),
        values.get("subscribePattern", parse_pattern),
        values.get("assign", parse_assigned) or (),
    )


def _starting(values: _OptionValues, *, is_stream: bool) -> OffsetBound:
    bound = (
        values.get("startingTimestamp", parse_time)
        or values.get("startingOffsetsByTimestamp", parse_times)
        or values.get("startingOffsets", parse_offsets)
        or OffsetBound(LATEST if is_stream else EARLIEST)
    )
    if not is_stream and LATEST in (bound.everywhere, *bound.by_partition.values()):
        raise OptionError(
            "startingOffsets of a batch must not be latest (-1): nothing would be read"
        )
    return bound


def _ending(values: _OptionValues) -> OffsetBound:
    bound = (
        values.get("endingTimestamp", parse_time)
        or values.get("endingOffsetsByTimestamp", parse_times)
        or values.get("endingOffsets", parse_offsets)
        or OffsetBound(LATEST)
    )
    if EARLIEST in (bound.everywhere, *bound.by_partition.values()):
        raise OptionError("endingOffsets must not be earliest (-2): nothing would be read")
    return bound


def _fetch_options(values: _OptionValues) -> FetchOptions:
    levels = one_of("read_uncommitted", "read_committed")
    kafka_level, level = (
        values.kafka("isolation.level", levels),
        values.get("isolationLevel", levels),
    )
    if kafka_level and level and kafka_level != level:
        raise OptionError(f"isolationLevel={level} and kafka.isolation.level={kafka_level} differ")
    default = FetchOptions()
    values.get("fetchOffset.numRetries", str)  # retries last for the operation timeout
    values.get("fetchOffset.retryIntervalMs", str)
    values.get("pushdown", parse_flag)
    loss, crcs = values.get("failOnDataLoss", parse_flag), values.kafka("check.crcs", parse_flag)
    return FetchOptions(
        partition_max_bytes=values.kafka("max.partition.fetch.bytes", parse_count)
        or default.partition_max_bytes,
        check_crcs=default.check_crcs if crcs is None else crcs,
        read_committed=(level or kafka_level) == "read_committed",
        fail_on_data_loss=default.fail_on_data_loss if loss is None else loss,
        has_headers=values.get("includeHeaders", parse_flag) or False,
    )


def _batch_config(values: _OptionValues) -> BatchConfig:
    configs = {
        "batch_bytes": values.kafka("batch.size", parse_count),
        "linger": values.kafka("linger.ms", parse_seconds),
        "request_bytes": values.kafka("max.request.size", parse_count),
        "buffer_bytes": values.kafka("buffer.memory", parse_count),
        "buffer_timeout": values.kafka("max.block.ms", parse_seconds),
    }
    limits = [configs["request_bytes"], configs["buffer_bytes"]]
    if configs["batch_bytes"] is None:
        # A smaller request or buffer limit also limits the default batch size.
        configs["batch_bytes"] = min(filter(None, [BatchConfig().batch_bytes, *limits]))
    try:
        return BatchConfig(**_without_none(configs))
    except ValueError as error:
        raise OptionError(
            f"kafka.batch.size, kafka.max.request.size and kafka.buffer.memory: {error}"
        ) from None


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _parsed(name: str, text: str, parse: Callable[[str], T]) -> T:
    try:
        return parse(text.strip())
    except ValueError as error:
        raise OptionError(f"Invalid value {text!r} of option {name}: {error}") from None
