"""Collects the metrics of a broker, in the thread of a scraper.

It only reads what the broker counts anyway, and does not involve the event loop: collections that
the loop may change meanwhile are copied before they are iterated.

Consumer lag is the log end offset, which the leader of a partition reports, minus the committed
offset, which the group coordinator reports: deploy/monitoring/rules.yml has the query.
"""

from __future__ import annotations

import platform
import shutil
from collections import Counter as Tally
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

from ottla import __version__

from .exposition import Counter, Family, Gauge, HistogramFamily
from .partition_metrics import (
    cluster_partition_families,
    committed_offset_family,
    partition_families,
    topic_families,
)
from .process_metrics import process_families

if TYPE_CHECKING:
    from ..broker import Broker

#: The usual reasons. They are exported from the start, for Prometheus to see their first increase.
_STORAGE_ERRORS = ("ENOSPC", "EIO", "OFFLINE")


class Collector:
    """Collects the metrics of a broker, its partitions and its groups."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def families(self) -> Iterator[Family]:
        """Yield all metrics."""
        yield from self._identity()
        yield from self._requests()
        yield from self._connections()
        yield from self._memory()
        yield from self._disk()
        yield from partition_families(self._broker)
        yield from topic_families(self._broker)
        if self._broker.replicas is not None:
            yield from cluster_partition_families(self._broker)
            yield from self._metadata_store()
            yield from self._replication()
        yield from self._scrubber()
        yield from self._groups()
        if self._broker.has_shares:
            yield from self._shares()
        yield from self._transactions()
        yield from process_families()

    def _identity(self) -> Iterator[Family]:
        info = Gauge(
            "ottla_broker_info",
            "Always 1; its labels say which broker this is.",
            labels=("broker_id", "cluster_id", "version", "python"),
        )
        broker = self._broker
        info.add((broker.id, broker.cluster_id, __version__, platform.python_version()), 1)
        yield info

    def _requests(self) -> Iterator[Family]:
        metrics = self._broker.metrics
        durations = HistogramFamily(
            "ottla_request_duration_seconds",
            "Time from the last byte of a request to its response.",
            labels=("api",),
        )
        for api, histogram in list(metrics.latency.items()):
            durations.add_histogram((api,), histogram)
        yield durations
        errors = Counter(
            "ottla_request_errors",
            "Requests that failed as a whole, by error code.",
            labels=("api", "error_code"),
        )
        for (api, code), count in list(metrics.failures.items()):
            errors.add((api, code), count)
        yield errors
        yield from self._security()
        rejected = Counter(
            "ottla_rejected_batches",
            "Produced batches that were not appended, by error code.",
            labels=("error_code",),
        )
        for code, count in list(metrics.rejected_batches.items()):
            rejected.add((code,), count)
        yield rejected
        for name, doc, histogram in (
            ("produced_batch_bytes", "Sizes of produced batches.", metrics.produced_batch_bytes),
            ("fetched_bytes", "Bytes of records per Fetch of a consumer.", metrics.fetched_bytes),
            (
                "event_loop_delay_seconds",
                "How late the event loop is, measured ten times a second.",
                metrics.event_loop_delay_seconds,
            ),
        ):
            family = HistogramFamily(f"ottla_{name}", doc)
            family.add_histogram((), histogram)
            yield family
        yield Gauge(
            "ottla_validation_queue_bytes",
            "Produced batches that wait for validation in a thread.",
            self._broker.batch_workers.queued_bytes,
        )

    def _security(self) -> Iterator[Family]:
        metrics, authorizer = self._broker.metrics, self._broker.authorizer
        denials = Counter(
            "ottla_authorizer_denials",
            "Operations that the authorizer denied.",
            labels=("operation", "resource_type"),
        )
        for labels, count in list(authorizer.denials.items()) if authorizer else ():
            denials.add(labels, count)
        yield denials
        throttled = Counter(
            "ottla_quota_throttled_requests",
            "Requests whose clients were throttled, and connections refused, by client quota.",
            labels=("quota",),
        )
        seconds = Counter(
            "ottla_quota_throttle_seconds",
            "Time for which clients were throttled, by client quota.",
            labels=("quota",),
        )
        for quota, count in list(metrics.throttled_requests.items()):
            throttled.add((quota,), count)
            seconds.add((quota,), metrics.throttled_seconds[quota])
        yield throttled
        yield seconds

    def _connections(self) -> Iterator[Family]:
        metrics = self._broker.metrics
        connections = Counter("ottla_connections", "Connections by outcome.", labels=("outcome",))
        for outcome, count in list(metrics.connections.items()):
            connections.add((outcome,), count)
        yield connections
        yield Gauge(
            "ottla_open_connections", "Open connections.", self._broker.server.connection_count
        )
        yield Counter(
            "ottla_received_bytes", "Bytes received from clients.", metrics.bytes_received
        )
        yield Counter("ottla_sent_bytes", "Bytes sent to clients.", metrics.bytes_sent)

    def _memory(self) -> Iterator[Family]:
        memory = Gauge(
            "ottla_memory_bytes",
            "Estimated memory that broker.memory.max.bytes limits, by kind.",
            labels=("kind",),
        )
        for kind, source in list(self._broker.memory.sources.items()):
            memory.add((kind,), source())
        yield memory
        yield Gauge(
            "ottla_memory_max_bytes",
            "The limit of the sum of ottla_memory_bytes: broker.memory.max.bytes.",
            self._broker.config.broker_memory_max_bytes,
        )

    def _disk(self) -> Iterator[Family]:
        log_dir = self._broker.config.log_dir
        free = Gauge(
            "ottla_log_dir_free_bytes",
            "Free space of the log directory's file system.",
            labels=("log_dir",),
        )
        with suppress(OSError):
            free.add((log_dir,), shutil.disk_usage(log_dir).free)
        yield free
        errors = Counter(
            "ottla_storage_errors",
            "Failed appends and flushes, by errno (ENOSPC: full), or OFFLINE for an offline log.",
            labels=("reason",),
        )
        counts = dict.fromkeys(_STORAGE_ERRORS, 0) | self._broker.disk_space.errors
        for reason, count in counts.items():
            errors.add((reason,), count)
        yield errors
        metrics = self._broker.metrics
        flushes = HistogramFamily(
            "ottla_log_flush_duration_seconds", "Fsyncs that requests or replicas waited for."
        )
        flushes.add_histogram((), metrics.flush_seconds)
        yield flushes
        yield Gauge(
            "ottla_log_loading_seconds",
            "Time that opening all logs took at the start, with their recovery.",
            metrics.log_loading_seconds,
        )
        yield Gauge(
            "ottla_recovery_scanned_bytes",
            "Bytes that recovery has read at the start.",
            sum(report.scanned_bytes for report in list(self._broker.logs.reports.values())),
        )

    def _metadata_store(self) -> Iterator[Family]:
        broker, registration = self._broker, self._broker.store_registration
        yield Gauge(
            "ottla_metadata_store_reachable",
            "1 if the metadata store answered the last keepalive of this broker.",
            registration.is_store_reachable,
        )
        yield Counter(
            "ottla_metadata_store_failed_keepalives",
            "Keepalives of this broker that the metadata store did not answer.",
            registration.failed_keep_alives,
        )
        yield Gauge(
            "ottla_broker_fenced",
            "1 while the controller has not unfenced this broker.",
            registration.is_fenced,
        )
        yield Gauge(
            "ottla_active_controller",
            "1 on the broker that is the controller; the sum over all brokers must be 1.",
            broker.cluster.is_controller,
        )

    def _replication(self) -> Iterator[Family]:
        metrics = self._broker.metrics
        changes = Counter(
            "ottla_isr_changes", "Changes of the ISR of led partitions.", labels=("change",)
        )
        for change, count in list(metrics.isr_changes.items()):
            changes.add((change,), count)
        yield changes
        elections = Counter(
            "ottla_elections",
            "Leaders elected by this broker as the controller: clean, preferred, unclean, by a"
            " reassignment, or none.",
            labels=("outcome",),
        )
        for outcome, count in list(metrics.elections.items()):
            elections.add((outcome,), count)
        yield elections
        fetches = HistogramFamily(
            "ottla_replica_fetch_duration_seconds",
            "Time of the fetches of this broker's replicas, by leader, with the wait for records.",
            labels=("leader",),
        )
        for leader, histogram in list(metrics.replica_fetch_seconds.items()):
            fetches.add_histogram((leader,), histogram)
        yield fetches

    def _scrubber(self) -> Iterator[Family]:
        scrubber = self._broker.housekeeping.scrubber
        yield Counter(
            "ottla_scrubbed_bytes", "Bytes of sealed segments verified.", scrubber.verified_bytes
        )
        yield Gauge(
            "ottla_damaged_ranges",
            "Damaged ranges that the scrubber has found in sealed segments.",
            scrubber.damage_count,
        )
        yield Gauge(
            "ottla_scrub_last_pass_timestamp_seconds",
            "When the last complete pass of the scrubber ended; 0 before the first.",
            scrubber.last_pass_ms / 1000,
        )

    def _transactions(self) -> Iterator[Family]:
        coordinator = self._broker.transactions
        ids = Gauge(
            "ottla_transactional_ids",
            "Transactional ids coordinated by this broker, by state.",
            labels=("state",),
        )
        for state, count in coordinator.count_states().items():
            ids.add((state,), count)
        yield ids
        yield Counter(
            "ottla_transactions_timed_out",
            "Transactions that were aborted by their timeout.",
            coordinator.count_timed_out(),
        )
        yield Gauge(
            "ottla_transaction_markers_pending",
            "Transaction markers yet to be written.",
            coordinator.count_unwritten_markers(),
        )

    def _shares(self) -> Iterator[Family]:
        shares = self._broker.shares
        counts = shares.counts
        for name, doc, count in (
            ("acquired", "Records that members of share groups acquired.", counts.acquired),
            ("redelivered", "Acquired records that had been acquired before.", counts.redelivered),
            ("archived", "Records given up at the delivery limit.", counts.archived),
        ):
            yield Counter(f"ottla_share_records_{name}", doc, count)
        acknowledged = Counter(
            "ottla_share_records_acknowledged",
            "Records that members of share groups acknowledged, by type.",
            labels=("type",),
        )
        for kind, count in counts.acknowledged.copy().items():
            acknowledged.add((kind,), count)
        yield acknowledged
        yield Counter(
            "ottla_share_locks_expired",
            "Acquired records that were not acknowledged in time.",
            counts.expired,
        )
        for name, doc, value in (
            ("records_locked", "Records acquired by members now.", shares.acquired_count()),
            ("partitions", "Share partitions that this broker serves.", len(shares)),
            ("sessions", "Open share sessions.", len(shares.sessions)),
        ):
            yield Gauge(f"ottla_share_{name}", doc, value)

    def _groups(self) -> Iterator[Family]:
        coordinator = self._broker.groups
        states = Tally(group.state.value for group in coordinator.groups())
        groups = Gauge(
            "ottla_groups", "Groups coordinated by this broker, by state.", labels=("state",)
        )
        for state, count in states.items():
            groups.add((state,), count)
        yield groups
        yield committed_offset_family(self._broker)
