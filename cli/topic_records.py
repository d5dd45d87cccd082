"""`ottla topic offsets`, `delete-records` and `clone`: what is in topics."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from . import output
from .completion import complete_topics
from .following import Bounds, between
from .target import Target, connected, json_option
from .topic import confirm, topic, topic_argument, topics_argument, yes_option
from .values import POSITION, Kind, Position, offsets_at

if TYPE_CHECKING:
    from ottla.client.admin import TopicDescription
    from ottla.client.types import TopicPartition


@topic.command("offsets")
@topics_argument
@click.option("--at", type=POSITION, help="A place in the logs: a time, -N, …")
@json_option
@connected
def show_offsets(
    target: Target, topics: tuple[str, ...], at: Position | None, as_json: bool
) -> None:
    """Show where logs begin and end. With --at, which offset a time has, or another place.

    \b
        ottla topic offsets orders
        ottla topic offsets orders --at 2026-11-16T12:00
    """
    with target.admin() as admin:
        ends = admin.end_offsets(*topics)
        if at is None:
            starts = admin.beginning_offsets(*topics)
            output.print_rows(
                ("topic", "partition", "start", "end", "offsets"),
                [(*place, starts[place], end, end - starts[place]) for place, end in ends.items()],
                as_json=as_json,
            )
            return
        found: dict[TopicPartition, int | None] = {}
        if at.kind is Kind.TIME:
            by_time = admin.offsets_for_times(dict.fromkeys(ends, at.number))
            found.update({place: one and one.offset for place, one in by_time.items()})
        else:
            found.update(offsets_at(admin, ends, at))
    output.print_rows(
        ("topic", "partition", "offset"),
        [(*place, offset) for place, offset in found.items()],
        as_json=as_json,
    )


@topic.command("delete-records")
@topic_argument
@click.option("--before", type=POSITION, required=True, help="end, OFFSET, -N, or a time.")
@click.option(
    "-p", "--partition", "partitions", type=int, multiple=True, help="Which. [default: all]"
)
@click.option("--dry-run", is_flag=True, help="Only show what would go.")
@yes_option
@json_option
@connected
def delete_records(
    target: Target,
    topic: str,
    before: Position,
    partitions: tuple[int, ...],
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Delete the records before an offset or a time.

    `--before end` empties the topic.

    \b
        ottla topic delete-records orders --before 7d
        ottla topic delete-records orders --before 1200 --partition 0 --yes
    """
    with target.admin() as admin:
        places = places_of(admin.describe_topics(topic)[topic], partitions)
        starts = admin.beginning_offsets(*places)
        until = offsets_at(admin, places, before)
        going = sum(until[place] - starts[place] for place in places)
        if going and not dry_run:
            confirm(f"delete {output.counted(going, 'offset')} of {topic}", yes)
            until = admin.delete_records(dict(until))
    output.print_rows(
        ("partition", "start_before", "start"),
        [(place.partition, starts[place], until[place]) for place in places],
        as_json=as_json,
    )


def places_of(
    description: TopicDescription, partitions: Collection[int] = ()
) -> tuple[TopicPartition, ...]:
    """Give the partitions of a topic, or those that are asked for."""
    for partition in partitions:
        if not 0 <= partition < len(description.partitions):
            raise click.BadParameter(
                f"{description.name} has the partitions 0 to {len(description.partitions) - 1}",
                param_hint="--partition",
            )
    return tuple(
        place for place in description.places if not partitions or place.partition in partitions
    )


@topic.command("clone")
@click.argument("source", shell_complete=complete_topics)
@click.argument("copy")
@click.option("--records", is_flag=True, help="Copy the records that are there, too.")
@json_option
@connected
def clone_topic(target: Target, source: str, copy: str, records: bool, as_json: bool) -> None:
    """Copy a topic. COPY has the partitions and settings that SOURCE has.

    Records are copied to the same partitions, with keys, headers and times; offsets are new where
    some are missing.

    \b
        ottla topic clone orders orders-experiment --records
    """
    from ottla.client.admin import NewTopic

    with target.admin() as admin:
        found = admin.describe_topics(source)[source]
        settings = {
            entry.name: entry.value
            for entry in admin.describe_topic_configs(source)[source].values()
            if entry.source.name == "TOPIC" and entry.value is not None
        }
        admin.create_topics(
            NewTopic(copy, len(found.partitions), found.replication_factor, settings)
        )
        bounds: Bounds = {}
        if records:
            starts, ends = admin.beginning_offsets(source), admin.end_offsets(source)
            bounds = {place: (starts[place], ends[place]) for place in ends}
    copied = asyncio.run(_copy(target, bounds, copy)) if bounds else 0
    if as_json:
        output.print_json(
            {
                "topic": copy,
                "partitions": len(found.partitions),
                "configs": settings,
                "records": copied,
            }
        )
    else:
        partitions = output.counted(len(found.partitions), "partition")
        click.echo(f"{copy}: created with {partitions}, {output.counted(copied, 'record')}")


async def _copy(target: Target, bounds: Bounds, copy: str) -> int:
    from ottla.client.producer.producer import ProducerRecord

    copied = 0
    total = sum((stop or 0) - start for start, stop in bounds.values())
    with output.progress("copying", total) as bar:
        async with target.consumer() as consumer, target.producer() as producer:
            async for place, records in between(consumer, bounds):
                await producer.send_many(
                    copy,
                    [
                        ProducerRecord(
                            record.value,
                            record.key,
                            record.headers,
                            place.partition,
                            record.timestamp if record.timestamp >= 0 else None,
                        )
                        for record in records
                    ],
                )
                copied += len(records)
                bar.advance(len(records))
    return copied
