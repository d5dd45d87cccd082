"""`ottla cluster …`: the brokers, and what they speak."""

from __future__ import annotations

import click

from . import output
from .target import Target, connected, json_option


@click.group()
def cluster() -> None:
    """Start a cluster, show its brokers and what they speak."""


@cluster.command("describe")
@json_option
@connected
def describe_cluster(target: Target, as_json: bool) -> None:
    """Show the brokers, the controller, and how much there is.

    \b
        ottla cluster describe --bootstrap logs.example.org:9092
    """
    with target.admin() as admin:
        found = admin.describe_cluster()
        topics = admin.list_topics(internal=True)
    led = [partition.leader for topic in topics for partition in topic.partitions]
    keys = ("broker", "host", "port", "rack", "is_controller", "partitions_led")
    rows = [
        (one.id, one.host, one.port, one.rack, one.is_controller, led.count(one.id))
        for one in found.brokers
    ]
    facts = {
        "cluster_id": found.cluster_id,
        "controller": found.controller,
        "topics": sum(not topic.is_internal for topic in topics),
        "internal_topics": sum(topic.is_internal for topic in topics),
        "partitions": len(led),
        "partitions_without_leader": led.count(-1),
    }
    if as_json:
        brokers = [dict(zip(keys, row, strict=True)) for row in rows]
        output.print_json({**facts, "brokers": brokers})
        return
    output.print_facts({key.replace("_", " "): value for key, value in facts.items()})
    output.print_rows(keys, rows, as_json=False)


@cluster.command("api-versions")
@click.option("--broker", type=int, help="Its number.  [default: whichever answers]")
@json_option
@connected
def show_api_versions(target: Target, broker: int | None, as_json: bool) -> None:
    """Show the apis that a broker serves. Used is the version that this client takes.

    \b
        ottla cluster api-versions --broker 0
    """
    with target.admin() as admin:
        found = admin.api_versions(broker)
    output.print_rows(
        ("key", "api", "first", "last", "used"),
        [(one.key, one.name or None, one.first, one.last, one.used) for one in found],
        as_json=as_json,
    )
