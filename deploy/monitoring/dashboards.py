"""Writes the Grafana dashboards in grafana/dashboards/.

    python deploy/monitoring/dashboards.py            write them
    python deploy/monitoring/dashboards.py --check    fail if they are not what they would be

The variables of a dashboard narrow its queries: `$job` is the cluster, `$broker` a regular
expression of instances, `$topic` and `$group` of names.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent / "grafana" / "dashboards"
DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH = 24


@dataclass(frozen=True)
class Panel:
    """A chart, a number or a table, of one or more queries with their legends."""

    title: str
    queries: dict[str, str]
    unit: str = "short"
    kind: str = "timeseries"
    doc: str = ""
    #: Of the 24 columns of a dashboard.
    width: int = 12
    #: From this value on, a number is red.
    red_from: float | None = None


@dataclass(frozen=True)
class Dashboard:
    """A page of panels."""

    name: str
    title: str
    panels: tuple[Panel, ...]
    #: Variables beside the data source and the cluster, with the metric and label of their values.
    variables: dict[str, tuple[str, str]] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the file that Grafana imports."""
        content = {
            "uid": f"ottla-{self.name}",
            "title": f"ottla / {self.title}",
            "tags": ["ottla"],
            "schemaVersion": 39,
            "editable": True,
            "graphTooltip": 1,
            "refresh": "30s",
            "time": {"from": "now-1h", "to": "now"},
            "links": [
                {
                    "type": "dashboards",
                    "tags": ["ottla"],
                    "title": "ottla",
                    "asDropdown": True,
                    "includeVars": True,
                    "keepTime": True,
                }
            ],
            "templating": {"list": self._variables()},
            "panels": list(_placed(self.panels)),
        }
        return json.dumps(content, indent=1) + "\n"

    def _variables(self) -> list[dict[str, Any]]:
        sources = {"job": ("ottla_broker_info", "job"), **self.variables}
        listed: list[dict[str, Any]] = [
            {
                "name": "datasource",
                "label": "Data source",
                "type": "datasource",
                "query": "prometheus",
            }
        ]
        for name, (metric, label) in sources.items():
            is_job = name == "job"
            selector = metric if is_job else f'{metric}{{job="$job"}}'
            variable = {
                "name": name,
                "label": {"job": "Cluster"}.get(name, name.title()),
                "type": "query",
                "datasource": DATASOURCE,
                "query": {"query": f"label_values({selector}, {label})", "refId": name},
                "refresh": 2,
                "sort": 1,
                "multi": not is_job,
                "includeAll": not is_job,
            }
            listed.append(variable if is_job else {**variable, "allValue": ".+"})
        return listed


def _placed(panels: tuple[Panel, ...]) -> Any:
    """Yield the panels as JSON, from left to right in rows."""
    x = y = row_height = 0
    for number, panel in enumerate(panels, start=1):
        height = 4 if panel.kind == "stat" else 8
        if x + panel.width > _WIDTH:
            x, y, row_height = 0, y + row_height, 0
        yield _panel_json(number, panel, {"x": x, "y": y, "w": panel.width, "h": height})
        x, row_height = x + panel.width, max(row_height, height)


def _panel_json(number: int, panel: Panel, position: dict[str, int]) -> dict[str, Any]:
    is_table = panel.kind == "table"
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.red_from is not None:
        steps.append({"color": "red", "value": panel.red_from})
    content: dict[str, Any] = {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.doc,
        "datasource": DATASOURCE,
        "gridPos": position,
        "fieldConfig": {
            "defaults": {
                "unit": panel.unit,
                "min": 0,
                "thresholds": {"mode": "absolute", "steps": steps},
            },
            "overrides": [],
        },
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": DATASOURCE,
                "expr": query,
                "legendFormat": legend,
                **({"format": "table", "instant": True} if is_table else {}),
            }
            for index, (legend, query) in enumerate(panel.queries.items())
        ],
    }
    if panel.kind == "timeseries":
        content["options"] = {"legend": {"displayMode": "table", "calcs": ["lastNotNull", "max"]}}
    if is_table:
        content["transformations"] = [
            {"id": "organize", "options": {"excludeByName": {"Time": True, "job": True}}}
        ]
    return content


def stat(title: str, query: str, *, unit: str = "short", red_from: float | None = None) -> Panel:
    """Return a panel with one number."""
    return Panel(title, {"": query}, unit, "stat", width=4, red_from=red_from)


def quantiles(title: str, metric: str, selector: str, *, by: str = "", unit: str = "s") -> Panel:
    """Return a panel with the median and the 99th percentile of a histogram."""
    labels = f"le, {by}" if by else "le"
    legend = f" {{{{{by}}}}}" if by else ""
    queries = {
        f"p{100 * quantile:.0f}{legend}": (
            f"histogram_quantile({quantile}, sum by ({labels})"
            f" (rate({metric}_bucket{{{selector}}}[$__rate_interval])))"
        )
        for quantile in (0.5, 0.99)
    }
    return Panel(title, queries, unit)


def rate(metric: str, selector: str, *by: str) -> str:
    """Return the query of the rate of a counter."""
    total = f"sum(rate({metric}{{{selector}}}[$__rate_interval]))"
    return total.replace("sum(", f"sum by ({', '.join(by)}) (", 1) if by else total


JOB = 'job="$job"'
BROKER = f'{JOB}, instance=~"$broker"'
TOPIC = f'{JOB}, topic=~"$topic"'
GROUP = f'{JOB}, group=~"$group"'
BROKERS = {"broker": ("ottla_broker_info", "instance")}

CLUSTER = Dashboard(
    "cluster",
    "Cluster",
    (
        stat("Brokers up", f"sum(up{{{JOB}}})"),
        stat("Controllers", f"sum(ottla_active_controller{{{JOB}}})", red_from=2),
        stat("Leaderless", f"max(ottla_leaderless_partitions{{{JOB}}})", red_from=1),
        stat("Under min ISR", f"sum(ottla_under_min_isr_partitions{{{JOB}}})", red_from=1),
        stat("Under-replicated", f"sum(ottla_under_replicated_partitions{{{JOB}}})", red_from=1),
        stat("Offline logs", f"sum(ottla_offline_partitions{{{JOB}}})", red_from=1),
        Panel(
            "Records produced",
            {"{{instance}}": rate("ottla_topic_messages_in_total", JOB, "instance")},
            "cps",
        ),
        Panel(
            "Bytes produced and consumed",
            {
                "in": rate("ottla_topic_bytes_in_total", JOB),
                "out": rate("ottla_topic_bytes_out_total", JOB),
            },
            "Bps",
        ),
        Panel(
            "Latency of Produce, p99",
            {"{{instance}}": f'ottla:request_duration_seconds:p99{{{JOB}, api="Produce"}}'},
            "s",
        ),
        Panel(
            "Requests",
            {"{{api}}": rate("ottla_request_duration_seconds_count", JOB, "api")},
            "reqps",
        ),
        Panel("Partitions led", {"{{instance}}": f"ottla_leader_count{{{JOB}}}"}),
        Panel(
            "Free space of log directories",
            {"{{instance}}": f"ottla_log_dir_free_bytes{{{JOB}}}"},
            "bytes",
        ),
        Panel("Connections", {"{{instance}}": f"ottla_open_connections{{{JOB}}}"}),
        Panel(
            "Brokers",
            {"": f"ottla_broker_info{{{JOB}}}"},
            kind="table",
        ),
    ),
)

TOPICS = Dashboard(
    "topics",
    "Topics",
    (
        Panel(
            "Records produced",
            {"{{topic}}": rate("ottla_topic_messages_in_total", TOPIC, "topic")},
            "cps",
        ),
        Panel(
            "Bytes produced",
            {"{{topic}}": rate("ottla_topic_bytes_in_total", TOPIC, "topic")},
            "Bps",
        ),
        Panel(
            "Bytes consumed",
            {"{{topic}}": rate("ottla_topic_bytes_out_total", TOPIC, "topic")},
            "Bps",
        ),
        Panel(
            "Size on disk",
            {"{{topic}}": f"sum by (topic) (ottla_partition_log_size_bytes{{{TOPIC}}})"},
            "bytes",
            doc="Of the leaders; each follower has as much.",
        ),
        Panel(
            "Records kept",
            {
                "{{topic}}": f"sum by (topic) (max by (topic, partition)"
                f" (ottla_partition_log_end_offset{{{TOPIC}}}) - max by (topic, partition)"
                f" (ottla_partition_log_start_offset{{{TOPIC}}}))"
            },
            doc="Log end offset minus log start offset; fewer if the topic is compacted.",
        ),
        Panel(
            "Records produced, by partition",
            {
                "{{topic}}-{{partition}}": "max by (topic, partition) (rate("
                f"ottla_partition_log_end_offset{{{TOPIC}}}[$__rate_interval]))"
            },
            "cps",
        ),
        Panel(
            "Consumer lag",
            {"{{topic}} {{group}}": f"sum by (topic, group) (ottla:group_lag:records{{{TOPIC}}})"},
        ),
        Panel(
            "Batches that were not appended",
            {"{{error_code}}": rate("ottla_rejected_batches_total", JOB, "error_code")},
            "cps",
            doc="Of all topics.",
        ),
    ),
    {"topic": ("ottla_topic_messages_in_total", "topic")},
)

GROUPS = Dashboard(
    "groups",
    "Groups",
    (
        Panel("Lag", {"{{group}}": f"ottla:group_lag:sum{{{GROUP}}}"}),
        Panel(
            "Lag by partition",
            {"{{group}} {{topic}}-{{partition}}": f"ottla:group_lag:records{{{GROUP}}}"},
        ),
        Panel(
            "Records committed",
            {
                "{{group}} {{topic}}": "sum by (group, topic) (rate("
                f"ottla_group_committed_offset{{{GROUP}}}[$__rate_interval]))"
            },
            "cps",
            doc="What a group consumes, as far as it commits.",
        ),
        Panel(
            "Time until the lag is gone",
            {
                "{{group}}": f"ottla:group_lag:sum{{{GROUP}}} / sum by (job, group) (rate("
                f"ottla_group_committed_offset{{{GROUP}}}[$__rate_interval]))"
            },
            "s",
            doc="At the present rate, if nothing more was produced.",
        ),
        Panel("Groups by state", {"{{state}}": f"sum by (state) (ottla_groups{{{JOB}}})"}),
        Panel(
            "Latency of commits",
            {
                "p99": "histogram_quantile(0.99, sum by (le) (rate("
                f'ottla_request_duration_seconds_bucket{{{JOB}, api="OffsetCommit"}}'
                "[$__rate_interval])))"
            },
            "s",
        ),
        Panel(
            "Transactional ids by state",
            {"{{state}}": f"sum by (state) (ottla_transactional_ids{{{JOB}}})"},
        ),
        Panel(
            "Largest lags",
            {"": f"topk(20, ottla:group_lag:records{{{GROUP}}})"},
            kind="table",
        ),
    ),
    {"group": ("ottla_group_committed_offset", "group")},
)

BROKER_DASHBOARD = Dashboard(
    "broker",
    "Broker",
    (
        Panel(
            "Requests",
            {"{{api}}": rate("ottla_request_duration_seconds_count", BROKER, "api")},
            "reqps",
        ),
        Panel(
            "Latency by API, p99",
            {"{{api}}": f"max by (api) (ottla:request_duration_seconds:p99{{{BROKER}}})"},
            "s",
            doc="A fetch that waits for records counts as long as it waits.",
        ),
        quantiles("Event-loop delay", "ottla_event_loop_delay_seconds", BROKER, by="instance"),
        quantiles("Fsync", "ottla_log_flush_duration_seconds", BROKER, by="instance"),
        quantiles("Batch size", "ottla_produced_batch_bytes", BROKER, unit="bytes"),
        quantiles("Fetch size", "ottla_fetched_bytes", BROKER, unit="bytes"),
        Panel(
            "CPU",
            {"{{instance}}": f"rate(process_cpu_seconds_total{{{BROKER}}}[$__rate_interval])"},
        ),
        Panel(
            "Resident memory",
            {"{{instance}}": f"process_resident_memory_bytes{{{BROKER}}}"},
            "bytes",
            doc="With mapped files, which the kernel reclaims.",
        ),
        Panel(
            "Memory account",
            {
                "{{kind}}": f"sum by (kind) (ottla_memory_bytes{{{BROKER}}})",
                "limit": f"sum(ottla_memory_max_bytes{{{BROKER}}})",
            },
            "bytes",
        ),
        Panel(
            "Network",
            {
                "received": rate("ottla_received_bytes_total", BROKER),
                "sent": rate("ottla_sent_bytes_total", BROKER),
            },
            "Bps",
        ),
        Panel(
            "Connections",
            {
                "open": f"sum(ottla_open_connections{{{BROKER}}})",
                "{{outcome}} per second": rate("ottla_connections_total", BROKER, "outcome"),
            },
        ),
        Panel(
            "Errors of requests",
            {
                "{{api}} {{error_code}}": rate(
                    "ottla_request_errors_total", BROKER, "api", "error_code"
                )
            },
            "cps",
        ),
        Panel(
            "Time throttled by quotas",
            {"{{quota}}": rate("ottla_quota_throttle_seconds_total", BROKER, "quota")},
            "s",
        ),
        Panel(
            "Denied by the authorizer",
            {
                "{{operation}} {{resource_type}}": rate(
                    "ottla_authorizer_denials_total", BROKER, "operation", "resource_type"
                )
            },
            "cps",
        ),
        Panel(
            "Last start: opening the logs",
            {"{{instance}}": f"ottla_log_loading_seconds{{{BROKER}}}"},
            "s",
        ),
        Panel(
            "Storage errors",
            {"{{reason}}": rate("ottla_storage_errors_total", BROKER, "reason")},
            "cps",
        ),
        Panel(
            "File descriptors",
            {
                "{{instance}}": f"process_open_fds{{{BROKER}}}",
                "limit of {{instance}}": f"process_max_fds{{{BROKER}}}",
            },
        ),
        Panel("Scrubber: damaged ranges", {"{{instance}}": f"ottla_damaged_ranges{{{BROKER}}}"}),
    ),
    BROKERS,
)

REPLICATION = Dashboard(
    "replication",
    "Replication",
    (
        Panel(
            "Partitions that lack replicas",
            {
                "under-replicated {{instance}}": f"ottla_under_replicated_partitions{{{BROKER}}}",
                "at min ISR {{instance}}": f"ottla_at_min_isr_partitions{{{BROKER}}}",
                "under min ISR {{instance}}": f"ottla_under_min_isr_partitions{{{BROKER}}}",
            },
        ),
        Panel(
            "Changes of the ISR",
            {"{{change}}": rate("ottla_isr_changes_total", BROKER, "change")},
            "cps",
        ),
        Panel(
            "Largest replica lag", {"{{instance}}": f"ottla_replica_max_lag_records{{{BROKER}}}"}
        ),
        Panel(
            "Replica lag by follower",
            {"{{broker}}": f"sum by (broker) (ottla_replica_lag_records{{{BROKER}}})"},
        ),
        Panel(
            "Replicated bytes",
            {
                "in {{instance}}": rate(
                    "ottla_topic_replication_bytes_in_total", BROKER, "instance"
                ),
                "out {{instance}}": rate(
                    "ottla_topic_replication_bytes_out_total", BROKER, "instance"
                ),
            },
            "Bps",
        ),
        quantiles(
            "Fetches between brokers, by leader",
            "ottla_replica_fetch_duration_seconds",
            BROKER,
            by="leader",
        ),
        Panel(
            "Elections", {"{{outcome}}": rate("ottla_elections_total", BROKER, "outcome")}, "cps"
        ),
        Panel(
            "Partitions led, and not by the preferred leader",
            {
                "{{instance}}": f"ottla_leader_count{{{BROKER}}}",
                "imbalance": f"max(ottla_preferred_leader_imbalance{{{BROKER}}})",
            },
        ),
        Panel(
            "Leaderless and reassigned partitions",
            {
                "leaderless": f"max(ottla_leaderless_partitions{{{BROKER}}})",
                "reassigning": f"max(ottla_reassigning_partitions{{{BROKER}}})",
            },
        ),
        Panel(
            "Metadata store",
            {
                "reachable {{instance}}": f"ottla_metadata_store_reachable{{{BROKER}}}",
                "fenced {{instance}}": f"ottla_broker_fenced{{{BROKER}}}",
            },
        ),
        Panel(
            "Failed keepalives",
            {
                "{{instance}}": rate(
                    "ottla_metadata_store_failed_keepalives_total", BROKER, "instance"
                )
            },
            "cps",
        ),
        Panel("Replicas", {"{{instance}}": f"ottla_partition_count{{{BROKER}}}"}),
    ),
    BROKERS,
)

DASHBOARDS = (CLUSTER, TOPICS, GROUPS, BROKER_DASHBOARD, REPLICATION)


def main() -> int:
    """Write the dashboards, or check them."""
    stale = [
        path
        for dashboard in DASHBOARDS
        if not (path := FOLDER / f"{dashboard.name}.json").exists()
        or path.read_text() != dashboard.to_json()
    ]
    if "--check" in sys.argv:
        sys.stderr.writelines(f"stale: {path}\n" for path in stale)
        return 1 if stale else 0
    for dashboard in DASHBOARDS:
        (FOLDER / f"{dashboard.name}.json").write_text(dashboard.to_json())
    return 0


if __name__ == "__main__":
    sys.exit(main())
