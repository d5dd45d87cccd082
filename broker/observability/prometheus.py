"""The Prometheus endpoint: http://HOST:PORT/metrics.

It requires prometheus-client (`pip install "ottla[metrics]"`) and is served by a thread of its own
at `metrics.listener`. It only reads what the broker counts anyway, and does not involve the event
loop: collections that the loop may change meanwhile are copied before they are iterated.

Consumer lag is the log end offset, which the leader of a partition reports, minus the committed
offset, which the group coordinator reports. `docs/operations.md` has the query.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import accumulate
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from .metrics import BUCKETS

if TYPE_CHECKING:
    from ..broker import Broker
    from ..net.listeners import Endpoint

_BUCKET_LABELS = [*map(str, BUCKETS), "+Inf"]
_PARTITION_LABELS = ("topic", "partition")


class Exporter:
    """The HTTP server of the endpoint. Raises OSError if the address cannot be bound."""

    def __init__(self, broker: Broker, endpoint: Endpoint) -> None:
        registry = CollectorRegistry()
        registry.register(_BrokerCollector(broker))
        ProcessCollector(registry=registry)
        self._server, self._thread = start_http_server(endpoint.port, endpoint.host, registry)
        #: The bound port, also if port 0 was configured.
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Stop the server and its thread."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _BrokerCollector(Collector):
    """Collects the metrics of a broker, its partitions and its groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def describe(self) -> Iterator[Metric]:
        """Return no metrics, so that registration does not call `collect`."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield from self._requests()
        yield from self._connections()
        yield from self._memory()
        yield from self._disk()
        yield from self._partitions()
        if self._broker.replicas is not None:
            yield from self._metadata_store()
            yield from self._replication()
        yield from self._scrubber()
        yield from self._groups()
        if self._broker.has_shares:
            yield from self._shares()
        yield from self._transactions()

    def _requests(self) -> Iterator[Metric]:
        metrics = self._broker.metrics
        durations = HistogramMetricFamily(
            "ottla_request_duration_seconds",
            "Time from the last byte of a request to its response.",
            labels=["api"],
        )
        for api, histogram in list(metrics.latency.items()):
            counts = zip(_BUCKET_LABELS, map(float, accumulate(histogram.counts)), strict=True)
            durations.add_metric([api], list(counts), histogram.sum)
        yield durations
        errors = CounterMetricFamily(
            "ottla_request_errors",
            "Requests that failed as a whole, by error code.",
            labels=["api", "error_code"],
        )
        for (api, code), count in list(metrics.failures.items()):
            errors.add_metric([api, code], count)
        yield errors
        yield from self._security()
        rejected = CounterMetricFamily(
            "ottla_rejected_batches",
            "Produced batches that were not appended, by error code.",
            labels=["error_code"],
        )
        for code, count in list(metrics.rejected_batches.items()):
            rejected.add_metric([code], count)
        yield rejected
        yield GaugeMetricFamily(
            "ottla_validation_queue_bytes",
            "Produced batches that wait for validation in a thread.",
            self._broker.batch_workers.queued_bytes,
        )

    def _security(self) -> Iterator[Metric]:
        metrics, authorizer = self._broker.metrics, self._broker.authorizer
        denials = CounterMetricFamily(
            "ottla_authorizer_denials",
            "Operations that the authorizer denied.",
            labels=["operation", "resource_type"],
        )
        for labels, count in list(authorizer.denials.items()) if authorizer else ():
            denials.add_metric(labels, count)
        yield denials
        throttled = CounterMetricFamily(
            "ottla_quota_throttled_requests",
            "Requests whose clients were throttled, and connections refused, by client quota.",
            labels=["quota"],
        )
        seconds = CounterMetricFamily(
            "ottla_quota_throttle_seconds",
            "Time for which clients were throttled, by client quota.",
            labels=["quota"],
        )
        for quota, count in list(metrics.throttled_requests.items()):
            throttled.add_metric([quota], count)
            seconds.add_metric([quota], metrics.throttled_seconds[quota])
        yield throttled
        yield seconds

    def _connections(self) -> Iterator[Metric]:
        metrics = self._broker.metrics
        connections = CounterMetricFamily(
            "ottla_connections", "Connections by outcome.", labels=["outcome"]
        )
        for outcome, count in list(metrics.connections.items()):
            connections.add_metric([outcome], count)
        yield connections
        yield GaugeMetricFamily(
            "ottla_open_connections", "Open connections.", self._broker.server.connection_count
        )
        yield CounterMetricFamily(
            "ottla_received_bytes", "Bytes received from clients.", metrics.bytes_received
        )
        yield CounterMetricFamily("ottla_sent_bytes", "Bytes sent to clients.", metrics.bytes_sent)

    def _memory(self) -> Iterator[Metric]:
        memory = GaugeMetricFamily(
            "ottla_memory_bytes",
            "Estimated memory that broker.memory.max.bytes limits, by kind.",
            labels=["kind"],
        )
        for kind, source in self._broker.memory.sources.items():
            memory.add_metric([kind], source())
        yield memory

    def _disk(self) -> Iterator[Metric]:
        log_dir = self._broker.config.log_dir
        free = GaugeMetricFamily(
            "ottla_log_dir_free_bytes",
            "Free space of the log directory's file system.",
            labels=["log_dir"],
        )
        with suppress(OSError):
            free.add_metric([log_dir], shutil.disk_usage(log_dir).free)
        yield free
        errors = CounterMetricFamily(
            "ottla_storage_errors",
            "Failed appends and flushes, by errno (ENOSPC: full), or OFFLINE for an offline log.",
            labels=["reason"],
        )
        for reason, count in list(self._broker.disk_space.errors.items()):
            errors.add_metric([reason], count)
        yield errors

    def _partitions(self) -> Iterator[Metric]:
        start_offsets = GaugeMetricFamily(
            "ottla_partition_log_start_offset", "Log start offset.", labels=_PARTITION_LABELS
        )
        end_offsets = GaugeMetricFamily(
            "ottla_partition_log_end_offset", "Log end offset.", labels=_PARTITION_LABELS
        )
        sizes = GaugeMetricFamily(
            "ottla_partition_log_size_bytes", "Size of the log on disk.", labels=_PARTITION_LABELS
        )
        offline = len(self._broker.logs.failed)
        for partition in self._broker.topics.online_partitions():
            labels, log = [partition.topic, str(partition.index)], partition.log
            start_offsets.add_metric(labels, log.start_offset)
            end_offsets.add_metric(labels, log.end_offset)
            sizes.add_metric(labels, log.size)
            offline += log.offline_reason is not None
        yield from (start_offsets, end_offsets, sizes)
        yield GaugeMetricFamily(
            "ottla_offline_partitions", "Partitions whose log is offline.", offline
        )

    def _metadata_store(self) -> Iterator[Metric]:
        broker, registration = self._broker, self._broker.store_registration
        yield GaugeMetricFamily(
            "ottla_metadata_store_reachable",
            "1 if the metadata store answered the last keepalive of this broker.",
            registration.is_store_reachable,
        )
        yield CounterMetricFamily(
            "ottla_metadata_store_failed_keepalives",
            "Keepalives of this broker that the metadata store did not answer.",
            registration.failed_keep_alives,
        )
        yield GaugeMetricFamily(
            "ottla_broker_fenced",
            "1 while the controller has not unfenced this broker.",
            registration.is_fenced,
        )
        yield GaugeMetricFamily(
            "ottla_active_controller",
            "1 on the broker that is the controller; the sum over all brokers must be 1.",
            broker.cluster.is_controller,
        )

    def _replication(self) -> Iterator[Metric]:
        broker, metrics = self._broker, self._broker.metrics
        led = [one for one in list(broker.topics.online_partitions()) if one.state is not None]
        states = [one.state for one in led if one.state is not None]
        yield GaugeMetricFamily(
            "ottla_under_replicated_partitions",
            "Led partitions with replicas that are not in sync.",
            sum(state.is_under_replicated for state in states),
        )
        yield GaugeMetricFamily(
            "ottla_under_min_isr_partitions",
            "Led partitions with fewer in-sync replicas than min.insync.replicas.",
            sum(one.is_under_min_isr for one in led),
        )
        everywhere = [
            state
            for of_topic in list(broker.topics.image.partition_states.values())
            for state in list(of_topic.values())
        ]
        yield GaugeMetricFamily(
            "ottla_leaderless_partitions",
            "Partitions of the cluster without a leader.",
            sum(not state.has_leader for state in everywhere),
        )
        yield GaugeMetricFamily(
            "ottla_reassigning_partitions",
            "Partitions of the cluster that are being moved to other brokers.",
            sum(state.is_reassigning for state in everywhere),
        )
        yield GaugeMetricFamily(
            "ottla_preferred_leader_imbalance",
            "Partitions of the cluster that others than their preferred leaders lead.",
            sum(state.leader != state.replicas[0] for state in everywhere),
        )
        lag = GaugeMetricFamily(
            "ottla_replica_lag_records",
            "Records of a led partition that a follower does not have, as of its last fetch.",
            labels=[*_PARTITION_LABELS, "broker"],
        )
        for partition in led:
            if partition.progress is not None:
                for broker_id, fetch in list(partition.progress.fetches.items()):
                    labels = [partition.topic, str(partition.index), str(broker_id)]
                    lag.add_metric(labels, partition.log.end_offset - fetch.end_offset)
        yield lag
        changes = CounterMetricFamily(
            "ottla_isr_changes", "Changes of the ISR of led partitions.", labels=["change"]
        )
        for change, count in list(metrics.isr_changes.items()):
            changes.add_metric([change], count)
        yield changes
        elections = CounterMetricFamily(
            "ottla_elections",
            "Leaders elected by this broker as the controller: clean, preferred, unclean, by a"
            " reassignment, or none.",
            labels=["outcome"],
        )
        for outcome, count in list(metrics.elections.items()):
            elections.add_metric([outcome], count)
        yield elections
        fetches = HistogramMetricFamily(
            "ottla_replica_fetch_duration_seconds",
            "Time of the fetches of this broker's replicas, with the wait for records.",
        )
        histogram = metrics.replica_fetch_seconds
        counts = zip(_BUCKET_LABELS, map(float, accumulate(histogram.counts)), strict=True)
        fetches.add_metric([], list(counts), histogram.sum)
        yield fetches

    def _scrubber(self) -> Iterator[Metric]:
        scrubber = self._broker.housekeeping.scrubber
        yield CounterMetricFamily(
            "ottla_scrubbed_bytes", "Bytes of sealed segments verified.", scrubber.verified_bytes
        )
        yield GaugeMetricFamily(
            "ottla_damaged_ranges",
            "Damaged ranges that the scrubber has found in sealed segments.",
            scrubber.damage_count,
        )
        yield GaugeMetricFamily(
            "ottla_scrub_last_pass_timestamp_seconds",
            "When the last complete pass of the scrubber ended; 0 before the first.",
            scrubber.last_pass_ms / 1000,
        )

    def _transactions(self) -> Iterator[Metric]:
        coordinator = self._broker.transactions
        ids = GaugeMetricFamily(
            "ottla_transactional_ids",
            "Transactional ids coordinated by this broker, by state.",
            labels=["state"],
        )
        for state, count in coordinator.count_states().items():
            ids.add_metric([state], count)
        yield ids
        yield CounterMetricFamily(
            "ottla_transactions_timed_out",
            "Transactions that were aborted by their timeout.",
            coordinator.count_timed_out(),
        )
        yield GaugeMetricFamily(
            "ottla_transaction_markers_pending",
            "Transaction markers yet to be written.",
            coordinator.count_unwritten_markers(),
        )

    def _shares(self) -> Iterator[Metric]:
        shares = self._broker.shares
        counts = shares.counts
        for name, doc, count in (
            ("acquired", "Records that members of share groups acquired.", counts.acquired),
            ("redelivered", "Acquired records that had been acquired before.", counts.redelivered),
            ("archived", "Records given up at the delivery limit.", counts.archived),
        ):
            yield CounterMetricFamily(f"ottla_share_records_{name}", doc, count)
        acknowledged = CounterMetricFamily(
            "ottla_share_records_acknowledged",
            "Records that members of share groups acknowledged, by type.",
            labels=["type"],
        )
        for kind, count in counts.acknowledged.copy().items():
            acknowledged.add_metric([kind], count)
        yield acknowledged
        yield CounterMetricFamily(
            "ottla_share_locks_expired",
            "Acquired records that were not acknowledged in time.",
            counts.expired,
        )
        for name, doc, value in (
            ("records_locked", "Records acquired by members now.", shares.acquired_count()),
            ("partitions", "Share partitions that this broker serves.", len(shares)),
            ("sessions", "Open share sessions.", len(shares.sessions)),
        ):
            yield GaugeMetricFamily(f"ottla_share_{name}", doc, value)

    def _groups(self) -> Iterator[Metric]:
        coordinator = self._broker.groups
        states = Counter(group.state.value for group in coordinator.groups())
        groups = GaugeMetricFamily(
            "ottla_groups", "Groups coordinated by this broker, by state.", labels=["state"]
        )
        for state, count in states.items():
            groups.add_metric([state], count)
        yield groups
        committed_offsets = GaugeMetricFamily(
            "ottla_group_committed_offset",
            "Committed offset of a group.",
            labels=["group", *_PARTITION_LABELS],
        )
        for group_id, offsets in coordinator.all_committed():
            for (topic, index), offset in list(offsets.items()):
                committed_offsets.add_metric([group_id, topic, str(index)], offset.offset)
        yield committed_offsets
