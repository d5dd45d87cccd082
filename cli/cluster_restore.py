"""`ottla cluster restore`, `migrate` and `export-metadata`: make a metadata store from brokers."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import output
from .cluster_replicas import cluster
from .errors import Exit, Failure
from .target import json_option
from .topic import confirm, yes_option

if TYPE_CHECKING:
    from ottla.broker.cluster.store.metadata_store import Snapshot
    from ottla.broker.config.broker_config import BrokerConfig
    from ottla.coord.restoration import LostPartition, MetadataCopy, RestorationPlan

#: Partitions that are listed one by one.
_MAX_LISTED = 20

_sources_argument = click.argument(
    "sources",
    metavar="DIRECTORY|FILE...",
    nargs=-1,
    required=True,
    type=click.Path(exists=True, path_type=Path),
)


@cluster.command("export-metadata")
@click.argument(
    "directory",
    metavar="DIRECTORY",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
)
@click.argument("file", metavar="[FILE]", required=False, type=click.Path(path_type=Path))
@json_option
def export_metadata(directory: Path, file: Path | None, as_json: bool) -> None:
    """Write the metadata of a stopped broker to a file.

    For `ottla cluster restore` and `migrate`, if the brokers are on several machines. Nothing in
    the data directory is changed. The file has the credentials of users, as salted hashes.

    \b
    To metadata-1.json, for broker 1:
        ottla cluster export-metadata ottla-data
    """
    from ottla.coord.restoration import copy_content

    copy = _read(directory)
    file = file or Path(f"metadata-{copy.broker_id}.json")
    content = json.dumps(copy_content(copy)).encode()
    try:
        with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as opened:
            opened.write(content)
    except FileExistsError:
        raise Failure(f"{file} exists: remove it, or name another file", Exit.EXISTS) from None
    except OSError as error:
        raise Failure(f"{file}: {error.strerror}") from None
    output.print_done(
        [{"file": str(file), "broker": copy.broker_id, "revision": copy.position.revision}],
        [f"{file}: the metadata of broker {copy.broker_id}, {_position(copy)}"],
        as_json=as_json,
    )


def _store_options(command: Any) -> Any:
    for option in (
        click.option(
            "--store",
            metavar="URL",
            help="The new metadata store, as in cluster.store.  [default: cluster.store]",
        ),
        click.option(
            "--config",
            "file",
            metavar="FILE",
            type=Path,
            help="Config file of a broker, for cluster.store and how to connect to it.",
        ),
        click.option(
            "--overwrite",
            metavar="NAME",
            help="Remove what a store with this cluster name has. It is the last part of its URL.",
        ),
        click.option("--dry-run", is_flag=True, help="Print the plan, and change nothing."),
        yes_option,
        json_option,
    ):
        command = option(command)
    return command


@cluster.command("restore")
@_sources_argument
@click.option(
    "--without",
    metavar="ID",
    multiple=True,
    type=int,
    help="Restore without the metadata of this broker; repeatable.",
)
@_store_options
def restore(sources: tuple[Path, ...], without: tuple[int, ...], **options: Any) -> None:
    """Make a new metadata store after etcd has lost its data.

    From the metadata that each broker has in its data directory, or from files of `ottla cluster
    export-metadata`. Stop all brokers first, and start them when it is done. The newest metadata is
    taken; the last leader of each partition leads again, and its followers truncate to it.

    Nothing is lost if all brokers are there. Records and changes may be lost that only a broker
    without its metadata knows: it must be named with --without.

    \b
    All brokers on one machine:
        ottla cluster restore ottla-cluster/broker-* --store etcd://localhost:2379/local
    Files of several machines, as a trial:
        ottla cluster restore metadata-*.json --config server.properties --dry-run
    Over an etcd that was restored from an older snapshot:
        ottla cluster restore metadata-*.json --config server.properties --overwrite orders
    """
    plan = _plan(sources, is_static=False)
    unnamed = plan.missing - set(without)
    if unnamed:
        brokers = ", ".join(map(str, sorted(unnamed)))
        raise Failure(
            f"The metadata of broker {brokers} is missing: add its data directory or exported file."
            " If it is lost, use --without ID: acked records may be lost if that broker had newer"
            " metadata"
        )
    _carry_out(plan, "restore", **options)


@cluster.command("migrate")
@_sources_argument
@_store_options
def migrate(sources: tuple[Path, ...], **options: Any) -> None:
    """Make a static cluster, or a single broker, replicated.

    Makes a metadata store from the data directories of all its brokers, which must be stopped, or
    from files of `ottla cluster export-metadata`. Then start the brokers with cluster.store,
    without a cluster file, on the same data directories: topics keep their ids, configs, records
    and committed offsets. Each partition has one replica; `ottla cluster reassign` adds others.

    \b
    A single broker:
        ottla cluster migrate ottla-data --store etcd://localhost:2379/orders
        ottla broker start --set cluster.store=etcd://localhost:2379/orders
    Later, with three brokers:
        ottla cluster reassign plan --internal --replication-factor 3 > plan.json
        ottla cluster reassign execute plan.json
    """
    plan = _plan(sources, is_static=True)
    if plan.missing:
        brokers = ", ".join(map(str, sorted(plan.missing)))
        raise Failure(
            f"The metadata of broker {brokers} is missing: add its data directory or exported file"
        )
    _carry_out(plan, "migrate", **options)


def _read(path: Path) -> MetadataCopy:
    from ottla.broker.cluster.metadata_copy import read_copy
    from ottla.coord.restoration import RestorationError
    from ottla.storage.errors import DataDirectoryError

    try:
        return read_copy(path)
    except (DataDirectoryError, RestorationError) as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise Failure(f"{path}: {error.strerror}") from None


def _plan(sources: Sequence[Path], *, is_static: bool) -> RestorationPlan:
    from ottla.coord.restoration import RestorationError, plan_restoration

    copies = [_read(path) for path in sources]
    for copy in copies:
        if copy.is_static is not is_static:
            kind, other = ("a static", "migrate") if copy.is_static else ("a replicated", "restore")
            raise Failure(f"{copy.source} is of {kind} cluster: use ottla cluster {other}")
    try:
        return plan_restoration(copies)
    except RestorationError as error:
        raise Failure(str(error)) from None


def _carry_out(
    plan: RestorationPlan,
    action: str,
    *,
    store: str | None,
    file: Path | None,
    overwrite: str | None,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    from ottla.broker.broker import open_store
    from ottla.broker.cluster.restoration import check_target, write_store
    from ottla.broker.cluster.store.metadata_store import StoreError
    from ottla.broker.cluster.store.store_url import parse_store_url
    from ottla.broker.config.broker_config import ConfigError

    config = _store_config(store, file)
    url = parse_store_url(config.cluster_store)
    if overwrite not in (None, url.cluster_name):
        raise Failure(
            f"--overwrite {overwrite}: the cluster name of {config.cluster_store} is"
            f" {url.cluster_name}",
            Exit.USAGE,
        )

    async def run() -> None:
        try:
            opened = open_store(config)
        except ConfigError as error:
            raise Failure(str(error), Exit.USAGE) from None
        try:
            target = await check_target(opened, overwrites=overwrite is not None)
            _print_plan(plan, target, config.cluster_store, as_json=as_json)
            if dry_run:
                output.note("dry run: nothing was changed")
                return
            confirm(f"{action} the metadata in {config.cluster_store}", yes)
            total = len(target.entries) + len(plan.entries)
            with output.progress("writing", total) as bar:
                await write_store(opened, target, plan, bar.advance)
        finally:
            await opened.close()

    try:
        asyncio.run(run())
    except StoreError as error:
        hint = ""
        if "not empty" in str(error):
            hint = (
                f": check that {config.cluster_store} is the right one; --overwrite"
                f" {url.cluster_name} removes them"
            )
        raise Failure(f"{error}{hint}") from None
    if not dry_run:
        output.note(
            f"wrote {output.counted(len(plan.entries), 'key')} to {config.cluster_store}."
            " Now start all brokers, and check: ottla topic describe --under-replicated --offline"
        )


def _store_config(store: str | None, file: Path | None) -> BrokerConfig:
    from ottla.broker.config.broker_config import ConfigError
    from ottla.broker.config.loader import load_broker_config

    from .broker import config_failure

    try:
        flags = {} if store is None else {"cluster.store": store}
        config = load_broker_config(flags, os.environ, file, None, lambda _warning: None)
    except ConfigError as problem:
        raise config_failure(problem) from None
    if not config.cluster_store:
        raise Failure("No metadata store: use --store URL, or --config FILE", Exit.USAGE)
    return config


def _print_plan(plan: RestorationPlan, target: Snapshot, url: str, *, as_json: bool) -> None:
    image = plan.newest.image
    if as_json:
        output.print_json(
            {
                "cluster_id": plan.newest.cluster_id,
                "store": url,
                "removed_keys": len(target.entries),
                "written_keys": len(plan.entries),
                "generation": plan.restoration.generation,
                "newest": plan.newest.source,
                "copies": [
                    {"source": one.source, "broker": one.broker_id, "revision": one.position[1]}
                    for one in plan.copies
                ],
                "missing_brokers": sorted(plan.missing),
                "topics": len(image.topics),
                "partitions": image.partition_count,
                "waiting": [_partition_json(one) for one in plan.waiting],
                "doubtful": [_partition_json(one) for one in plan.doubtful],
            }
        )
        return
    output.print_facts(
        {
            "cluster id": plan.newest.cluster_id,
            "metadata store": url,
            "keys to remove": len(target.entries),
            "keys to write": len(plan.entries),
            "topics": len(image.topics),
            "partitions": image.partition_count,
            "partitions that wait": len(plan.waiting),
            "partitions in doubt": len(plan.doubtful),
        }
    )
    output.print_rows(
        ("broker", "metadata of", "as of", "used"),
        [
            (one.broker_id, one.source, _position(one), one is plan.newest)
            for one in sorted(plan.copies, key=lambda one: one.broker_id)
        ],
        as_json=False,
    )
    _print_losses(plan)


def _print_losses(plan: RestorationPlan) -> None:
    """Say what may be lost, where nobody overlooks it."""
    if plan.missing:
        brokers = ", ".join(map(str, sorted(plan.missing)))
        output.note(
            f"WARNING: no metadata of broker {brokers}. If it was newer than the one used, changes"
            " of topics and configs are lost, and acked records may be lost. A broker with newer"
            " metadata is refused when it returns"
        )
    for partitions, meaning in (
        (
            plan.waiting,
            "will have no leader: start the broker it waits for, or, if it is lost, use"
            " ottla cluster elect TOPIC:PARTITION --unclean, which loses records",
        ),
        (
            plan.doubtful,
            "had a later leader than the newest metadata knows, so that metadata is"
            " missing: ACKED RECORDS MAY BE LOST",
        ),
    ):
        if partitions:
            output.note(f"WARNING: {output.counted(len(partitions), 'partition')} {meaning}")
        for (topic, index), reason in partitions[:_MAX_LISTED]:
            output.note(f"  {topic}:{index}: {reason}")
        if len(partitions) > _MAX_LISTED:
            output.note(f"  and {len(partitions) - _MAX_LISTED:,} more: see --json")


def _partition_json(one: LostPartition) -> dict[str, Any]:
    return {
        "topic": one.partition.topic,
        "partition": one.partition.partition,
        "reason": one.reason,
    }


def _position(copy: MetadataCopy) -> str:
    revision = copy.position.revision
    if copy.is_static:
        return f"offset {revision} of the metadata log"
    return f"revision {revision} of store {copy.position.store_id}"
