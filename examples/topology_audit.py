"""An audit of a cluster: who leads what, what is out of balance, what grows, who is behind.

It looks and changes nothing, with the admin in its blocking form: a script needs no event loop.
What it finds remarkable:

- brokers that lead more than their share of partitions, partitions without a leader or with
  replicas that are behind,
- topics most of whose records are in one partition: their keys are skewed,
- topics that keep everything for ever: neither time, nor size, nor compaction limits them,
- groups that are behind, and groups that nobody is a member of.

    python examples/topology_audit.py
    python examples/topology_audit.py --json | jq .findings
    python examples/topology_audit.py --strict      # exit code 1 if there is anything
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

import click

from ottla.client import ClientError, KafkaError
from ottla.client.blocking import Admin

# So few records are not worth a word about how they are spread.
FEW_RECORDS = 100
RETENTION = ("cleanup.policy", "retention.ms", "retention.bytes")


def skew(counts: list[int]) -> float:
    """Give how many times the average the largest one is."""
    return round(max(counts) * len(counts) / sum(counts), 2) if sum(counts) else 1.0


def audit_brokers(admin: Admin) -> dict[str, Any]:
    """Give brokers with the partitions that each leads and has, and partitions in need."""
    cluster = admin.describe_cluster()
    partitions = {
        f"{topic.name}-{one.partition}": one
        for topic in admin.list_topics(internal=True)
        for one in topic.partitions
    }
    leads = Counter(one.leader for one in partitions.values())
    has = Counter(broker for one in partitions.values() for broker in one.replicas)
    return {
        "cluster": cluster.cluster_id,
        "controller": cluster.controller,
        "brokers": [
            {
                "id": broker.id,
                "address": f"{broker.host}:{broker.port}",
                "leads": leads[broker.id],
                "has": has[broker.id],
            }
            for broker in cluster.brokers
        ],
        "skew": skew([leads[broker.id] for broker in cluster.brokers]),
        "leaderless": [name for name, one in partitions.items() if one.leader < 0],
        "behind": [name for name, one in partitions.items() if set(one.isr) < set(one.replicas)],
    }


def audit_topics(admin: Admin) -> list[dict[str, Any]]:
    """Give topics with how their records are spread, and whether anything limits them."""
    names = [topic.name for topic in admin.list_topics()]
    if not names:
        return []
    begins, ends = admin.beginning_offsets(*names), admin.end_offsets(*names)
    configs = admin.describe_topic_configs(*names, keys=RETENTION)
    found = []
    for name in names:
        policy, *limits = (configs[name][key].value or "" for key in RETENTION)
        sizes = [ends[place] - begins[place] for place in sorted(ends) if place.topic == name]
        found.append(
            {
                "topic": name,
                "partitions": len(sizes),
                "records": sum(sizes),
                "skew": skew(sizes),
                "largest": sizes.index(max(sizes)),
                "is_limited": "compact" in policy or limits != ["-1", "-1"],
            }
        )
    return found


def audit_groups(admin: Admin) -> list[dict[str, Any]]:
    """Give groups with their members and lags."""
    listed = [group.group_id for group in admin.list_groups()]
    return [
        {
            "group": name,
            "state": group.state,
            "members": len(group.members),
            "lag": {str(place): one.lag for place, one in admin.group_lag(name).items()},
        }
        for name, group in admin.describe_groups(*listed).items()
    ]


def findings_of(report: dict[str, Any], most_skew: float, most_lag: int) -> list[dict[str, str]]:
    """Give what somebody should look at: what it is, what is wrong with it."""
    found = []
    if report["skew"] > most_skew:
        found.append(("brokers", f"one leads {report['skew']} times its share"))
    found += [(name, "has no leader") for name in report["leaderless"]]
    found += [(name, "has replicas that are behind") for name in report["behind"]]
    for topic in report["topics"]:
        if topic["skew"] > most_skew and topic["records"] > FEW_RECORDS:
            largest = f"{topic['topic']}-{topic['largest']}"
            found.append((largest, f"has {topic['skew']} times its share of records"))
        if not topic["is_limited"]:
            found.append((topic["topic"], "grows for ever"))
    for group in report["groups"]:
        lag = sum(one or 0 for one in group["lag"].values())
        if lag > most_lag:
            found.append((group["group"], f"is {lag} records behind"))
        if not group["members"]:
            found.append((group["group"], "has no members"))
    return [{"name": name, "finding": finding} for name, finding in found]


def show(report: dict[str, Any]) -> None:
    """Print it for people."""
    click.echo(f"cluster {report['cluster']}, controller {report['controller']}")
    for one in report["brokers"]:
        click.echo("  broker {id} at {address}: leads {leads}, has {has} partitions".format(**one))
    for one in report["topics"]:
        click.echo("  topic {topic}: {records} records in {partitions}, skew {skew}".format(**one))
    for one in report["groups"]:
        lag = sum(lag or 0 for lag in one["lag"].values())
        click.echo("  group {group}: {state}, {members} members, lag {0}".format(lag, **one))
    click.echo(f"{len(report['findings'])} findings")
    for one in report["findings"]:
        click.echo("  {name} {finding}".format(**one))


@click.command(help=(__doc__ or "").replace("\n\n", "\n\n\b\n"))
@click.option("--bootstrap", default="localhost:9092", show_default=True, help="A broker.")
@click.option("--skew", "most_skew", default=1.5, show_default=True, help="What is no skew yet.")
@click.option("--lag", "most_lag", default=0, show_default=True, help="What is no lag yet.")
@click.option("--json", "as_json", is_flag=True, help="Print all of it as JSON.")
@click.option("--strict", is_flag=True, help="Fail if there is a finding.")
def main(bootstrap: str, most_skew: float, most_lag: int, as_json: bool, strict: bool) -> None:
    """Run it."""
    try:
        with Admin(bootstrap) as admin:
            report = audit_brokers(admin)
            report |= {"topics": audit_topics(admin), "groups": audit_groups(admin)}
    except (ClientError, KafkaError) as error:
        raise click.ClickException(str(error)) from error
    report["findings"] = findings_of(report, most_skew, most_lag)
    if as_json:
        click.echo(json.dumps(report, indent=2))
    else:
        show(report)
    sys.exit(1 if strict and report["findings"] else 0)


if __name__ == "__main__":
    main()
