"""Options: from the words of Spark's own Kafka source and sink to plain frozen data.

Names and meanings are Spark's, and letter case says nothing, as with Spark. Options that begin with
`kafka.` are settings of Kafka's clients: those that mean something to ours are heeded, those that
could only break a query are refused, and those that tune what we do not have are accepted, so that
a job moves by changing the name of the format. Anything else is an error that names it, and what
may have been meant.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from ..config import ClientConfig, RetryConfig, TimeoutConfig
from ..producer.batch import BatchConfig
from ..types import EARLIEST, LATEST, TopicPartition
from .errors import OptionError
from .kafka_keys import KAFKA, check_key, near
from .values import (
    Bound,
    one_of,
    parse_acks,
    parse_assigned,
    parse_bootstrap,
    parse_count,
    parse_duration_ms,
    parse_flag,
    parse_names,
    parse_offsets,
    parse_pattern,
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
    """What is read: topics by name, those that match a pattern, or single partitions."""

    names: tuple[str, ...] = ()
    pattern: str | None = None
    places: tuple[TopicPartition, ...] = ()


@dataclass(frozen=True)
class ConnectionOptions:
    """How brokers are reached. It is hashable: connections are kept by it."""

    bootstrap: str
    client: ClientConfig


@dataclass(frozen=True)
class Fetch:
    """How executors read."""

    partition_max_bytes: int = 4 * 1024 * 1024
    check_crcs: bool = True
    #: Whether records of transactions that are open or aborted are left out.
    is_committed: bool = False
    fails_on_data_loss: bool = True
    has_headers: bool = False


@dataclass(frozen=True)
class Splitting:
    """How ranges are shared out among tasks."""

    min_partitions: int | None = None
    max_records: int | None = None


@dataclass(frozen=True)
class Limits:
    """How much a micro-batch takes."""

    min_offsets: int | None = None
    max_offsets: int | None = None
    max_delay_ms: int = 15 * _MINUTE_MS


@dataclass(frozen=True)
class ReadOptions:
    """All that a reader has to know."""

    link: ConnectionOptions
    topics: TopicSelection
    starting: Bound
    ending: Bound
    #: What becomes of a start at a time that nothing is as young as: "error" or "latest".
    late_start: str
    fetch: Fetch
    splitting: Splitting
    limits: Limits
    commit_group: str | None


@dataclass(frozen=True)
class WriteOptions:
    """All that a writer has to know; `producer` is arguments of the SDK's."""

    link: ConnectionOptions
    topic: str | None
    has_timestamps: bool
    producer: Mapping[str, Any]
    batch: BatchConfig


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
_WRITE = ["includeHeaders", "includeTimestamp", "topic"]
# Spark gives these to every sink of a stream.
_SPARKS = {"checkpointlocation", "queryname"}


def read_options(options: Mapping[str, str], *, is_stream: bool) -> ReadOptions:
    """Read the options of a source. Raises OptionError."""
    what = "a stream" if is_stream else "a batch"
    known, others = (_READ + _STREAM, _BATCH) if is_stream else (_READ + _BATCH, _STREAM)
    given = _Given(options, known, others, f"{what} that is read")
    limits = Limits(
        given.count("minOffsetsPerTrigger"),
        given.count("maxOffsetsPerTrigger"),
        given.take("maxTriggerDelay", parse_duration_ms) or 15 * _MINUTE_MS,
    )
    if limits.min_offsets and limits.max_offsets and limits.min_offsets > limits.max_offsets:
        raise OptionError(
            f"minOffsetsPerTrigger is {limits.min_offsets},"
            f" and maxOffsetsPerTrigger is less: {limits.max_offsets}"
        )
    strategy = given.take("startingOffsetsByTimestampStrategy", one_of("error", "latest"))
    prefix = given.take("groupIdPrefix", str)
    return ReadOptions(
        link=_link(given, "default.api.timeout.ms", prefix),
        topics=_topics(given),
        starting=_starting(given, is_stream=is_stream),
        ending=_ending(given),
        late_start=strategy or "error",
        fetch=_fetch(given),
        splitting=Splitting(given.count("minPartitions"), given.count("maxRecordsPerPartition")),
        limits=limits,
        commit_group=given.take("commitGroup", parse_text),
    )


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Read the options of a sink. Raises OptionError."""
    kept = {name: text for name, text in options.items() if name.lower() not in _SPARKS}
    given = _Given(kept, _WRITE, _READ, "what is written")
    given.take("includeHeaders", parse_flag)  # a column of that name is written in any case
    producer = {
        "acks": given.kafka("acks", parse_acks),
        "compression": given.kafka("compression.type", one_of(*_CODECS)),
        "idempotent": given.kafka("enable.idempotence", parse_flag),
    }
    if producer["idempotent"] and producer["acks"] not in ("all", None):
        raise OptionError("kafka.enable.idempotence is true, which needs kafka.acks=all")
    return WriteOptions(
        link=_link(given, "delivery.timeout.ms", None, is_sink=True),
        topic=given.take("topic", parse_text),
        has_timestamps=given.take("includeTimestamp", parse_flag) or False,
        producer=_without_none(producer),
        batch=_batch_config(given),
    )


def check_names(options: Mapping[str, str]) -> None:
    """Check that a source has all these options, be it a batch or a stream. Raises OptionError.

    It is known which of them when a query starts, and then the error comes late.
    """
    _Given(options, _READ + _BATCH + _STREAM, [], "what is read")


def wants_headers(options: Mapping[str, str]) -> bool:
    """Say whether there is a column of headers: the schema is asked for before anything else."""
    return _flag_of(options, "includeHeaders")


def wants_pushdown(options: Mapping[str, str]) -> bool:
    """Say whether filters are pushed down."""
    return _flag_of(options, "pushdown")


def _flag_of(options: Mapping[str, str], name: str) -> bool:
    text = _find(options, name)
    return text is not None and _parsed(name, text, parse_flag)


def _find(options: Mapping[str, str], name: str) -> str | None:
    return next((text for key, text in options.items() if key.lower() == name.lower()), None)


class _Given:
    """The options that were given: all are known."""

    def __init__(
        self, options: Mapping[str, str], known: list[str], others: list[str], what: str
    ) -> None:
        self._texts = {name.lower(): text for name, text in options.items()}
        names = {name.lower(): name for name in known}
        elsewhere = {name.lower(): name for name in others}
        for name in self._texts:
            if name.startswith(KAFKA):
                check_key(name.removeprefix(KAFKA))
            elif name in elsewhere and name not in names:
                raise OptionError(f"option {elsewhere[name]} is not for {what}")
            elif name not in names:
                raise OptionError(f"unknown option {name!r} for {what}{near(name, names)}")

    def has(self, name: str) -> bool:
        return name.lower() in self._texts

    def take(self, name: str, parse: Callable[[str], T]) -> T | None:
        """Give what an option says, if it was given."""
        text = self._texts.get(name.lower())
        return None if text is None else _parsed(name, text, parse)

    def kafka(self, name: str, parse: Callable[[str], T]) -> T | None:
        return self.take(KAFKA + name, parse)

    def count(self, name: str) -> int | None:
        return self.take(name, parse_count)


# Parts.


def _link(
    given: _Given, timeout: str, prefix: str | None, *, is_sink: bool = False
) -> ConnectionOptions:
    bootstrap = given.kafka("bootstrap.servers", parse_bootstrap)
    if bootstrap is None:
        raise OptionError(f"option {KAFKA}bootstrap.servers is missing: host:port,…")
    given.kafka("security.protocol", one_of("PLAINTEXT"))
    default = ClientConfig()
    timeouts, retry = default.timeouts, default.retry
    poll = given.take("kafkaConsumer.pollTimeoutMs", parse_seconds)
    identity = given.kafka("client.id", parse_text) or given.kafka("group.id", parse_text) or prefix
    client = ClientConfig(
        client_id=identity or "ottla-spark",
        retry=RetryConfig(
            backoff=given.kafka("retry.backoff.ms", parse_seconds) or retry.backoff,
            max_backoff=given.kafka("retry.backoff.max.ms", parse_seconds) or retry.max_backoff,
        ),
        timeouts=TimeoutConfig(
            connect=given.kafka("socket.connection.setup.timeout.ms", parse_seconds)
            or timeouts.connect,
            request=given.kafka("request.timeout.ms", parse_seconds) or timeouts.request,
            operation=given.kafka(timeout, parse_seconds) or poll or timeouts.operation,
        ),
        metadata_max_age=given.kafka("metadata.max.age.ms", parse_seconds)
        or default.metadata_max_age,
        # To read a topic must not make it; a sink's is made where brokers do that.
        allow_auto_create=is_sink,
    )
    return ConnectionOptions(bootstrap, client)


def _topics(given: _Given) -> TopicSelection:
    ways = [name for name in ("subscribe", "subscribePattern", "assign") if given.has(name)]
    if len(ways) != 1:
        found = " and ".join(ways) + " are given" if ways else "none is given"
        raise OptionError(f"one of subscribe, subscribePattern and assign is needed: {found}")
    return TopicSelection(
        given.take("subscribe", parse_names) or (),
        given.take("subscribePattern", parse_pattern),
        given.take("assign", parse_assigned) or (),
    )


def _starting(given: _Given, *, is_stream: bool) -> Bound:
    bound = (
        given.take("startingTimestamp", parse_time)
        or given.take("startingOffsetsByTimestamp", parse_times)
        or given.take("startingOffsets", parse_offsets)
        or Bound(LATEST if is_stream else EARLIEST)
    )
    if not is_stream and LATEST in (bound.everywhere, *bound.by_place.values()):
        raise OptionError("startingOffsets of a batch cannot be latest (-1): nothing would be read")
    return bound


def _ending(given: _Given) -> Bound:
    bound = (
        given.take("endingTimestamp", parse_time)
        or given.take("endingOffsetsByTimestamp", parse_times)
        or given.take("endingOffsets", parse_offsets)
        or Bound(LATEST)
    )
    if EARLIEST in (bound.everywhere, *bound.by_place.values()):
        raise OptionError("endingOffsets cannot be earliest (-2): nothing would be read")
    return bound


def _fetch(given: _Given) -> Fetch:
    isolation = given.kafka("isolation.level", one_of("read_uncommitted", "read_committed"))
    default = Fetch()
    given.take("fetchOffset.numRetries", str)  # we try for as long as an operation may take
    given.take("fetchOffset.retryIntervalMs", str)
    given.take("pushdown", parse_flag)
    loss, crcs = given.take("failOnDataLoss", parse_flag), given.kafka("check.crcs", parse_flag)
    return Fetch(
        partition_max_bytes=given.kafka("max.partition.fetch.bytes", parse_count)
        or default.partition_max_bytes,
        check_crcs=default.check_crcs if crcs is None else crcs,
        is_committed=isolation == "read_committed",
        fails_on_data_loss=default.fails_on_data_loss if loss is None else loss,
        has_headers=given.take("includeHeaders", parse_flag) or False,
    )


def _batch_config(given: _Given) -> BatchConfig:
    found = {
        "batch_bytes": given.kafka("batch.size", parse_count),
        "linger": given.kafka("linger.ms", parse_seconds),
        "request_bytes": given.kafka("max.request.size", parse_count),
        "buffer_bytes": given.kafka("buffer.memory", parse_count),
        "buffer_timeout": given.kafka("max.block.ms", parse_seconds),
    }
    limits = [found["request_bytes"], found["buffer_bytes"]]
    if found["batch_bytes"] is None:
        # Who wants less of something else did not ask for batches that do not fit.
        found["batch_bytes"] = min(filter(None, [BatchConfig().batch_bytes, *limits]))
    try:
        return BatchConfig(**_without_none(found))
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
        raise OptionError(f"option {name} is {text!r}: {error}") from None
