"""Cluster audit: leadership, data skew, unlimited retention and consumer lag.

It only reads, with the sync admin client: a script needs no event loop. It reports:

- brokers that lead more than their share of partitions, partitions without a leader or with
  out-of-sync replicas,
- topics with most of their records in one partition: their keys are skewed,
- topics without any retention limit: neither time, nor size, nor compaction,
- groups that lag behind, and groups without members.

    python examples/topology_audit.py
    python examples/topology_audit.py --json | jq .findings
    python examples/topology_audit.py --strict      # exit code 1 if there are findings
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import click

from ottla.client import ClientError, KafkaError
from ottla.client.blocking import Admin

# Skew of topics with fewer records is not reported.
MIN_RECORDS = 100
RETENTION = ("cleanup.policy", "retention.ms", "retention.bytes")


def skew(counts: list[int]) -> float:
    """Return the ratio of the maximum to the average."""
    return round(max(counts) * len(counts) / sum(counts), 2) if sum(counts) else 1.0


def audit_brokers(admin: Admin) -> dict[str, Any]:
    """Return the partitions each broker leads and hosts, and unhealthy partitions."""
    cluster = admin.describe_cluster()
    partitions = {
        f"{topic.name}-{partition.partition}": partition
        for topic in admin.list_topics(internal=True)
        for partition in topic.partitions
    }
    leads = Counter(partition.leader for partition in partitions.values())
    hosts = Counter(broker for partition in partitions.values() for broker in partition.replicas)
    return {
        "cluster": cluster.cluster_id,
        "controller": cluster.controller,
        "brokers": [
            {
                "id": broker.id,
                "address": f"{broker.host}:{broker.port}",
                "leads": leads[broker.id],
                "hosts": hosts[broker.id],
            }
            for broker in cluster.brokers
        ],
        "skew": skew([leads[broker.id] for broker in cluster.brokers]),
        "leaderless": [name for name, each in partitions.items() if each.leader < 0],
        "out_of_sync": [
            name for name, each in partitions.items() if set(each.isr) < set(each.replicas)
        ],
    }


def audit_topics(admin: Admin) -> list[dict[str, Any]]:
    """Return the distribution of records in each topic, and whether its retention is limited."""
    names = [topic.name for topic in admin.list_topics()]
    if not names:
        return []
    begins, ends = admin.beginning_offsets(*names), admin.end_offsets(*names)
    configs = admin.describe_topic_configs(*names, keys=RETENTION)
    topics = []
    for name in names:
        policy, *limits = (configs[name][key].value or "" for key in RETENTION)
        sizes = [ends[tp] - begins[tp] for tp in sorted(ends) if tp.topic == name]
        topics.append(
            {
                "topic": name,
                "partitions": len(sizes),
                "records": sum(sizes),
                "skew": skew(sizes),
                "largest": sizes.index(max(sizes)),
                "is_limited": "compact" in policy or limits != ["-1", "-1"],
            }
        )
    return topics


def audit_groups(admin: Admin) -> list[dict[str, Any]]:
    """Return the members and the lag of each group."""
    listed = [group.group_id for group in admin.list_groups()]
    return [
        {
            "group": name,
            "state": group.state,
            "members": len(group.members),
            "lag": {str(tp): each.lag for tp, each in admin.group_lag(name).items()},
        }
        for name, group in admin.describe_groups(*listed).items()
    ]


def findings_of(report: dict[str, Any], max_skew: float, max_lag: int) -> list[dict[str, str]]:
    """Return what needs attention, and why."""
    found = []
    if report["skew"] > max_skew:
        found.append(("brokers", f"one leads {report['skew']} times its share of partitions"))
    found += [(name, "has no leader") for name in report["leaderless"]]
    found += [(name, "has out-of-sync replicas") for name in report["out_of_sync"]]
    for topic in report["topics"]:
        if topic["skew"] > max_skew and topic["records"] > MIN_RECORDS:
            largest = f"{topic['topic']}-{topic['largest']}"
            found.append((largest, f"has {topic['skew']} times its share of records"))
        if not topic["is_limited"]:
            found.append((topic["topic"], "has unlimited retention"))
    for group in report["groups"]:
        lag = sum(each or 0 for each in group["lag"].values())
        if lag > max_lag:
            found.append((group["group"], f"has a lag of {lag} records"))
        if not group["members"]:
            found.append((group["group"], "has no members"))
    return [{"name": name, "finding": finding} for name, finding in found]


def show(report: dict[str, Any]) -> None:
    """Print the report as text."""
    click.echo(f"cluster {report['cluster']}, controller {report['controller']}")
    for broker in report["brokers"]:
        click.echo(
            "  broker {id} at {address}: leads {leads}, hosts {hosts} partitions".format(**broker)
        )
    for topic in report["topics"]:
        click.echo(
            "  topic {topic}: {records} records in {partitions}, skew {skew}".format(**topic)
        )
    for group in report["groups"]:
        lag = sum(lag or 0 for lag in group["lag"].values())
        click.echo("  group {group}: {state}, {members} members, lag {0}".format(lag, **group))
    click.echo(f"{len(report['findings'])} findings")
    for finding in report["findings"]:
        click.echo("  {name} {finding}".format(**finding))


@click.command(help=(__doc__ or "").replace("\n\n", "\n\n\b\n"))
@click.option("--bootstrap", default="localhost:9092", show_default=True, help="Bootstrap servers.")
@click.option("--skew", "max_skew", default=1.5, show_default=True, help="Maximum skew.")
@click.option("--lag", "max_lag", default=0, show_default=True, help="Maximum lag.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--strict", is_flag=True, help="Exit with 1 if there are findings.")
def main(bootstrap: str, max_skew: float, max_lag: int, as_json: bool, strict: bool) -> None:
    """Audit the cluster."""
    try:
        with Admin(bootstrap) as admin:
            report = audit_brokers(admin)
            report |= {"topics": audit_topics(admin), "groups": audit_groups(admin)}
    except (ClientError, KafkaError) as error:
        raise click.ClickException(str(error)) from error
    report["findings"] = findings_of(report, max_skew, max_lag)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        show(report)
    sys.exit(1 if strict and report["findings"] else 0)


if __name__ == "__main__":
    main()
