"""`ottla topic offsets`, `delete-records` and `clone`: commands about the records of topics."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import TYPE_CHECKING

import click

from . import output
from .available import AvailablePartitions
from .completion import complete_topics
from .option_types import POSITION, Kind, Position, offset_between, offsets_at
from .target import Target, connected, json_option
from .topic import confirm, topic, topic_argument, topics_argument, yes_option

if TYPE_CHECKING:
    from ottla.client.admin import TopicDescription
    from ottla.client.consumer.ranges import Bounds
    from ottla.client.types import TopicPartition


@topic.command("offsets")
@topics_argument
@click.option("--at", type=POSITION, help="A position: a time, -N, …")
@json_option
@connected
def show_offsets(
    target: Target, topics: tuple[str, ...], at: Position | None, as_json: bool
) -> None:
    """Show the start and end offsets of topics.

    With --at, the offsets of a time or position.

    \b
        ottla topic offsets orders
        ottla topic offsets orders --at 2026-11-16T12:00
    """
    with target.admin() as admin:
        described = admin.describe_topics(*topics)
        available = AvailablePartitions(
            admin, described, [tp for topic in described.values() for tp in partitions_of(topic)]
        )
        starts, ends = available.starts, available.ends
        if at is None:
            output.print_rows(
                ("topic", "partition", "start", "end", "offsets"),
                [
                    (*tp, starts[tp], ends[tp], ends[tp] - starts[tp])
                    if tp in ends
                    else (*tp, None, None, None)
                    for tp in available.requested
                ],
                as_json=as_json,
            )
            available.check()
            return
        offsets: dict[TopicPartition, int | None] = {}
        if at.kind is Kind.TIME:
            by_time = admin.offsets_for_times(dict.fromkeys(ends, at.number))
            offsets.update({tp: at_time and at_time.offset for tp, at_time in by_time.items()})
        else:
            offsets.update(offset_between(admin, starts, ends, at))
    output.print_rows(
        ("topic", "partition", "offset"),
        [(*tp, offsets.get(tp)) for tp in available.requested],
        as_json=as_json,
    )
    available.check()


@topic.command("delete-records")
@topic_argument
@click.option("--before", type=POSITION, required=True, help="end, OFFSET, -N, or a time.")
@click.option(
    "-p",
    "--partition",
    "partitions",
    type=int,
    multiple=True,
    help="Partition; repeatable. [default: all]",
)
@click.option("--dry-run", is_flag=True, help="Show the plan only.")
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
        selected = partitions_of(admin.describe_topics(topic)[topic], partitions)
        starts = admin.beginning_offsets(*selected)
        until = offsets_at(admin, selected, before)
        count = sum(until[tp] - starts[tp] for tp in selected)
        if count and not dry_run:
            confirm(f"delete {output.counted(count, 'offset')} of {topic}", yes)
            until = admin.delete_records(dict(until))
    output.print_rows(
        ("partition", "start_before", "start"),
        [(tp.partition, starts[tp], until[tp]) for tp in selected],
        as_json=as_json,
    )


def partitions_of(
    description: TopicDescription, partitions: Collection[int] = ()
) -> tuple[TopicPartition, ...]:
    """Return the partitions of a topic, or the selected ones. Raises BadParameter."""
    for partition in partitions:
        if not 0 <= partition < len(description.partitions):
            raise click.BadParameter(
                f"no partition {partition}: {description.name} has partitions 0 to"
                f" {len(description.partitions) - 1}",
                param_hint="--partition",
            )
    return tuple(
        tp for tp in description.topic_partitions if not partitions or tp.partition in partitions
    )


@topic.command("clone")
@click.argument("source", shell_complete=complete_topics)
@click.argument("copy")
@click.option("--records", is_flag=True, help="Also copy the records.")
@json_option
@connected
def clone_topic(target: Target, source: str, copy: str, records: bool, as_json: bool) -> None:
    """Create COPY with the partitions and configs of SOURCE.

    Records keep their partitions, keys, headers and timestamps. Offsets differ where the source has
    gaps.

    \b
        ottla topic clone orders orders-experiment --records
    """
    from ottla.client.admin import NewTopic

    with target.admin() as admin:
        description = admin.describe_topics(source)[source]
        configs = {
            entry.name: entry.value
            for entry in admin.describe_topic_configs(source)[source].values()
            if entry.source.name == "DYNAMIC_TOPIC" and entry.value is not None
        }
        admin.create_topics(
            NewTopic(copy, len(description.partitions), description.replication_factor, configs)
        )
        bounds: Bounds = {}
        if records:
            starts, ends = admin.beginning_offsets(source), admin.end_offsets(source)
            bounds = {tp: (starts[tp], ends[tp]) for tp in ends}
    copied = asyncio.run(_copy(target, bounds, copy)) if bounds else 0
    if as_json:
        output.print_json(
            {
                "topic": copy,
                "partitions": len(description.partitions),
                "configs": configs,
                "records": copied,
            }
        )
    else:
        partitions = output.counted(len(description.partitions), "partition")
        click.echo(f"{copy}: created with {partitions}, {output.counted(copied, 'record')}")


async def _copy(target: Target, bounds: Bounds, copy: str) -> int:
    from ottla.client.consumer.ranges import between
    from ottla.client.producer.producer import ProducerRecord

    copied = 0
    total = sum((stop or 0) - start for start, stop in bounds.values())
    with output.progress("copying", total) as bar:
        async with target.consumer() as consumer, target.producer() as producer:
            async for tp, records in between(consumer, bounds):
                await producer.send_many(
                    copy,
                    [
                        ProducerRecord(
                            record.value,
                            record.key,
                            record.headers,
                            tp.partition,
                            record.timestamp if record.timestamp >= 0 else None,
                        )
                        for record in records
                    ],
                )
                copied += len(records)
                bar.advance(len(records))
    return copied
