"""A page of metrics, as Prometheus reads it: http://HOST:PORT/metrics.

It needs prometheus-client (`pip install "ottla[metrics]"`), and is served by a thread, where
`metrics.listener` says. Nothing is counted for it that is not counted anyway, and the event loop
has no part in it: what the loop may change meanwhile is copied before it is walked over.

A group is as far behind as the end of a partition, which its owner tells, is ahead of what the
group committed, which its coordinator tells. `docs/operations.md` has the question to ask.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
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

_ENDS = [*map(str, BUCKETS), "+Inf"]
_PLACE = ("topic", "partition")


class Exporter:
    """The page, from when it is made to `close`. Raises OSError if nobody may listen there."""

    def __init__(self, broker: Broker, address: Endpoint) -> None:
        registry = CollectorRegistry()
        registry.register(_BrokerCollector(broker))
        ProcessCollector(registry=registry)
        self._server, self._thread = start_http_server(address.port, address.host, registry)
        #: Where it is; the port may have been any.
        self.port: int = self._server.server_port

    def close(self) -> None:
        """Serve nobody any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _BrokerCollector(Collector):
    """Tells what a broker has counted, and how its partitions and groups are."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def describe(self) -> Iterator[Metric]:
        """Promise nothing in advance, so that nothing is collected before it is asked for."""
        return iter(())

    def collect(self) -> Iterator[Metric]:
        """Give all of it."""
        yield from self._traffic()
        yield from self._partitions()
        yield from self._groups()

    def _traffic(self) -> Iterator[Metric]:
        metrics = self._broker.metrics
        seconds = HistogramMetricFamily(
            "ottla_request_seconds",
            "From the last byte of a request to its response being handed over.",
            labels=["api"],
        )
        for api, found in list(metrics.latency.items()):
            counts = zip(_ENDS, map(float, accumulate(found.counts)), strict=True)
            seconds.add_metric([api], list(counts), found.sum)
        yield seconds
        errors = CounterMetricFamily(
            "ottla_request_errors", "Requests that failed as a whole.", labels=["api", "code"]
        )
        for (api, code), count in list(metrics.failures.items()):
            errors.add_metric([api, code], count)
        yield errors
        connections = CounterMetricFamily(
            "ottla_connections", "Connections, by what became of them.", labels=["what"]
        )
        for what, count in list(metrics.connections.items()):
            connections.add_metric([what], count)
        yield connections
        opened = self._broker.server.connection_count
        yield GaugeMetricFamily("ottla_connections_open", "Connections that there are.", opened)
        for name, count in (("received", metrics.bytes_received), ("sent", metrics.bytes_sent)):
            yield CounterMetricFamily(f"ottla_{name}_bytes", f"Bytes {name}, in frames.", count)

    def _partitions(self) -> Iterator[Metric]:
        starts = GaugeMetricFamily(
            "ottla_partition_start_offset", "The first offset that there is.", labels=_PLACE
        )
        ends = GaugeMetricFamily(
            "ottla_partition_end_offset", "The offset that the next record gets.", labels=_PLACE
        )
        sizes = GaugeMetricFamily(
            "ottla_partition_size_bytes", "What the log takes on disk.", labels=_PLACE
        )
        offline = len(self._broker.logs.failed)
        for partition in self._broker.topics.online_partitions():
            place, opened = [partition.topic, str(partition.index)], partition.log
            starts.add_metric(place, opened.start_offset)
            ends.add_metric(place, opened.end_offset)
            sizes.add_metric(place, opened.size)
            offline += opened.offline_reason is not None
        yield from (starts, ends, sizes)
        yield GaugeMetricFamily(
            "ottla_partitions_offline", "Partitions that cannot be written to.", offline
        )

    def _groups(self) -> Iterator[Metric]:
        coordinator = self._broker.groups
        states = Counter(group.state.value for group in coordinator.groups())
        groups = GaugeMetricFamily(
            "ottla_groups", "Groups that are coordinated here.", labels=["state"]
        )
        for state, count in states.items():
            groups.add_metric([state], count)
        yield groups
        committed = GaugeMetricFamily(
            "ottla_group_committed_offset",
            "The offset up to which a group has consumed.",
            labels=["group", *_PLACE],
        )
        for group_id, offsets in coordinator.all_committed():
            for (topic, index), offset in list(offsets.items()):
                committed.add_metric([group_id, topic, str(index)], offset.offset)
        yield committed
