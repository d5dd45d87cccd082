"""`ottla cluster elect`, `reassign` and `drain`: move leaders and replicas between brokers.

Plans are the JSON that Kafka's kafka-reassign-partitions.sh reads and writes, too.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any

import click

from . import output
from .cluster import cluster
from .completion import complete_topics
from .errors import Exit, Failure
from .target import Target, connected, json_option
from .topic import confirm, yes_option

if TYPE_CHECKING:
    from ottla.client.blocking import Admin
    from ottla.client.types import TopicPartition

#: With these commands, for the module that adds the next ones.
__all__ = ["cluster"]

_POLL_SECONDS = 0.3
_PLAN_VERSION = 1
_THROTTLED_RATES = ("leader.replication.throttled.rate", "follower.replication.throttled.rate")
_THROTTLED_REPLICAS = (
    "leader.replication.throttled.replicas",
    "follower.replication.throttled.replicas",
)

Plan = dict["TopicPartition", tuple[int, ...]]


@cluster.command("elect")
@click.argument(
    "partitions", metavar="[TOPIC[:PARTITION]]...", nargs=-1, shell_complete=complete_topics
)
@click.option(
    "--unclean",
    is_flag=True,
    help="Elect any live replica of partitions without a leader: records may be lost.",
)
@yes_option
@json_option
@connected
def elect(
    target: Target, partitions: tuple[str, ...], unclean: bool, yes: bool, as_json: bool
) -> None:
    """Elect the preferred leaders of partitions.

    Of all if none is named.

    \b
    The first replica of each partition, if it is in sync:
        ottla cluster elect
    Of one topic, or one partition:
        ottla cluster elect orders payments:3
    Of a partition whose in-sync replicas are lost for good:
        ottla cluster elect orders:0 --unclean
    """
    if unclean and not partitions:
        raise Failure("--unclean requires the names of topics or partitions", Exit.USAGE)
    if unclean:
        confirm(f"elect leaders of {', '.join(partitions)} that may lack acked records", yes)
    with target.admin() as admin:
        named = _named_partitions(admin, partitions) if partitions else []
        elected = admin.elect_leaders(*named, unclean=unclean)
        leaders = _leaders(admin, elected)
    output.print_done(
        [{"topic": tp.topic, "partition": tp.partition, "leader": leaders[tp]} for tp in elected],
        [f"{tp.topic}:{tp.partition} is led by broker {leaders[tp]}" for tp in elected]
        or ["no election was needed"],
        as_json=as_json,
    )


def _leaders(admin: Admin, partitions: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
    topics = admin.describe_topics(*{tp.topic for tp in partitions}) if partitions else {}
    return {tp: topics[tp.topic].partitions[tp.partition].leader for tp in partitions}


@cluster.group("reassign")
def reassign() -> None:
    """Plan, execute, verify and cancel moves of replicas."""


@reassign.command("plan")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--brokers",
    metavar="ID,ID…",
    help="Brokers that are to have the replicas.  [default: all live brokers]",
)
@click.option(
    "--replication-factor",
    "factor",
    metavar="NUMBER",
    type=click.IntRange(min=1),
    help="Replicas of each partition.  [default: as many as it has]",
)
@click.option("--internal", is_flag=True, help="Internal topics, too, if no topic is named.")
@connected
def plan_reassignment(
    target: Target,
    topics: tuple[str, ...],
    brokers: str | None,
    factor: int | None,
    internal: bool,
) -> None:
    """Print a plan that spreads replicas and leaders.

    Of all topics if none is named, and with few moves. It contains the partitions that change, and
    is empty if none does. Racks are respected.

    \b
    Use a broker that was added:
        ottla cluster reassign plan > plan.json
    Raise the replication factor of a topic:
        ottla cluster reassign plan orders --replication-factor 3 > plan.json
    """
    from ottla.coord.rebalancing import NotEnoughBrokersError, plan_assignment

    with target.admin() as admin:
        racks = _racks(admin)
        if brokers is not None:
            ids = _broker_ids(brokers)
            if unknown := sorted(ids - racks.keys()):
                raise _not_alive(unknown, racks)
            racks = {one: racks[one] for one in sorted(ids)}
        current = _current(admin, topics, internal=internal)
    try:
        planned = plan_assignment(current, racks, factor=factor)
    except NotEnoughBrokersError as error:
        raise Failure(str(error), Exit.REJECTED) from None
    _print_plan({tp: replicas for tp, replicas in planned.items() if replicas != current[tp]})


def _print_plan(plan: Mapping[TopicPartition, Sequence[int]]) -> None:
    lines = ",\n".join(
        "  "
        + json.dumps({"topic": tp.topic, "partition": tp.partition, "replicas": list(replicas)})
        for tp, replicas in sorted(plan.items())
    )
    body = f"\n{lines}\n" if lines else ""
    click.echo(f'{{"version": {_PLAN_VERSION}, "partitions": [{body}]}}')


_plan_argument = click.argument("plan", metavar="PLAN", type=click.File("rb"))


@reassign.command("execute")
@_plan_argument
@click.option(
    "--throttle",
    metavar="BYTES",
    type=click.IntRange(min=1),
    help="Maximum bytes per second that each broker copies.  [default: no limit]",
)
@click.option("--no-wait", is_flag=True, help="Return when the moves have begun.")
@connected
def execute_reassignment(
    target: Target, plan: IO[bytes], throttle: int | None, no_wait: bool
) -> None:
    """Move replicas as a plan says, and wait for it.

    PLAN is a file, or - for stdin. Ctrl-C stops the wait, not the moves.

    A throttle is removed when the moves are complete, or by verify. To change it, execute the plan
    again.

    \b
        ottla cluster reassign execute plan.json
        ottla cluster reassign execute plan.json --throttle 20000000
    """
    targets = _read_plan(plan)
    with target.admin() as admin:
        if throttle is not None:
            _set_throttle(admin, targets, throttle)
        _execute(admin, targets, waits=not no_wait)
        if throttle is not None and not no_wait:
            _remove_throttle(admin, targets)


@reassign.command("verify")
@_plan_argument
@click.option(
    "--preserve-throttles", "keeps_throttles", is_flag=True, help="Do not remove throttles."
)
@json_option
@connected
def verify_reassignment(
    target: Target, plan: IO[bytes], keeps_throttles: bool, as_json: bool
) -> None:
    """Show whether a plan is complete; fail if not.

    When it is complete, this removes the throttles of its topics and of all brokers.

    \b
        ottla cluster reassign verify plan.json
    """
    targets = _read_plan(plan)
    with target.admin() as admin:
        states = _states(admin, targets)
        is_complete = all(state == "complete" for state in states.values())
        if is_complete and not keeps_throttles and not admin.list_partition_reassignments():
            _remove_throttle(admin, targets)
    output.print_rows(
        ("topic", "partition", "replicas", "state"),
        [
            (tp.topic, tp.partition, _joined(targets[tp]), state)
            for tp, state in sorted(states.items())
        ],
        as_json=as_json,
    )
    if not is_complete:
        raise click.exceptions.Exit(Exit.FAILED)


@reassign.command("cancel")
@click.argument("plan", metavar="[PLAN]", type=click.File("rb"), required=False)
@click.option("--all", "is_for_all", is_flag=True, help="Cancel all moves under way.")
@connected
def cancel_reassignment(target: Target, plan: IO[bytes] | None, is_for_all: bool) -> None:
    """Cancel the moves of a plan, or all.

    Replicas return to where they were.

    \b
        ottla cluster reassign cancel plan.json
        ottla cluster reassign cancel --all
    """
    if (plan is None) is not is_for_all:
        raise Failure("Give either a plan or --all", Exit.USAGE)
    named = [] if plan is None else list(_read_plan(plan))
    with target.admin() as admin:
        moving = admin.list_partition_reassignments(*named)
        admin.alter_partition_reassignments(dict.fromkeys(moving))
    click.echo(f"cancelled {output.counted(len(moving), 'reassignment')}")


@reassign.command("list")
@json_option
@connected
def list_reassignments(target: Target, as_json: bool) -> None:
    """List the partitions that are being moved.

    \b
        ottla cluster reassign list
    """
    with target.admin() as admin:
        moving = admin.list_partition_reassignments()
    output.print_rows(
        ("topic", "partition", "replicas", "adding", "removing"),
        [
            (
                tp.topic,
                tp.partition,
                *(_joined(some) for some in (one.replicas, one.adding, one.removing)),
            )
            for tp, one in sorted(moving.items())
        ],
        as_json=as_json,
    )


@cluster.command("drain")
@click.argument("broker", type=int)
@click.option("--dry-run", is_flag=True, help="Print the plan, and move nothing.")
@click.option("--no-wait", is_flag=True, help="Return when the moves have begun.")
@yes_option
@connected
def drain(target: Target, broker: int, dry_run: bool, no_wait: bool, yes: bool) -> None:
    """Move all replicas of a broker to the others.

    Before it is removed from the cluster.

    Replicas of other brokers stay where they are. New topics may still be placed on the broker:
    stop it when this is complete.

    \b
        ottla cluster drain 2 --dry-run
        ottla cluster drain 2
    """
    from ottla.coord.rebalancing import NotEnoughBrokersError, plan_assignment

    with target.admin() as admin:
        racks = _racks(admin)
        current = _current(admin, (), internal=True)
        others = {one: rack for one, rack in racks.items() if one != broker}
        if broker not in racks and not any(broker in some for some in current.values()):
            raise _not_alive([broker], racks)
        try:
            planned = plan_assignment(current, others, balances=False)
        except NotEnoughBrokersError as error:
            raise Failure(
                f"Broker {broker} cannot be drained: {error}; add a broker, or lower the"
                " replication factor with: ottla cluster reassign plan TOPIC --replication-factor"
                f" {max(len(others), 1)}",
                Exit.REJECTED,
            ) from None
        plan = {tp: some for tp, some in planned.items() if broker in current[tp]}
        if dry_run:
            _print_plan(plan)
            return
        if plan:
            count = output.counted(len(plan), "partition")
            confirm(f"move {count} away from broker {broker}", yes)
        _execute(admin, plan, waits=not no_wait)


def _execute(admin: Admin, targets: Plan, *, waits: bool) -> None:
    if not targets:
        click.echo("nothing to move")
        return
    admin.alter_partition_reassignments(targets)
    count = output.counted(len(targets), "partition")
    if not waits:
        click.echo(f"moving {count}; watch: ottla cluster reassign list")
        return
    try:
        with output.progress(f"moving {count}", len(targets)) as bar:
            done = 0
            while moving := admin.list_partition_reassignments(*targets):
                bar.advance(len(targets) - len(moving) - done)
                done = len(targets) - len(moving)
                time.sleep(_POLL_SECONDS)
            bar.advance(len(targets) - done)
    except KeyboardInterrupt:
        output.note("the moves continue; watch: ottla cluster reassign list")
        raise
    failed = {tp: one for tp, one in _states(admin, targets).items() if one != "complete"}
    if failed:
        names = ", ".join(f"{tp.topic}:{tp.partition}" for tp in sorted(failed)[:3])
        raise Failure(f"{output.counted(len(failed), 'move')} cancelled or replaced: {names}")
    click.echo(f"moved {count}")


def _set_throttle(admin: Admin, targets: Plan, bytes_per_second: int) -> None:
    """Throttle the new replicas of a plan, and those that they are copied from."""
    current = _current(admin, sorted({tp.topic for tp in targets}), internal=True)
    moving = admin.list_partition_reassignments(*targets) if targets else {}
    lists: dict[str, tuple[list[str], list[str]]] = {}
    for tp, replicas in sorted(targets.items()):
        existing = moving[tp].replicas if tp in moving else current.get(tp, ())
        adding = moving[tp].adding if tp in moving else ()
        leaders, followers = lists.setdefault(tp.topic, ([], []))
        leaders += [f"{tp.partition}:{one}" for one in existing if one not in adding]
        added = [one for one in replicas if one not in existing or one in adding]
        followers += [f"{tp.partition}:{one}" for one in added]
    rates = dict.fromkeys(_THROTTLED_RATES, str(bytes_per_second))
    for broker in _racks(admin):
        admin.alter_broker_configs(broker, rates)
    for topic, throttled in lists.items():
        configs = zip(_THROTTLED_REPLICAS, map(",".join, throttled), strict=True)
        admin.alter_topic_configs(topic, dict(configs))


def _remove_throttle(admin: Admin, targets: Plan) -> None:
    """Remove the throttles of the topics of a plan, and the rates of all brokers."""
    topics = {tp.topic for tp in targets}
    described = admin.describe_topic_configs(*topics, keys=_THROTTLED_REPLICAS) if topics else {}
    for topic, configs in described.items():
        if any(config.value for config in configs.values()):
            admin.alter_topic_configs(topic, unset=_THROTTLED_REPLICAS)
    brokers = admin.describe_broker_configs(*_racks(admin), keys=_THROTTLED_RATES)
    for broker, rates in brokers.items():
        if any(config.source.name == "DYNAMIC_BROKER" for config in rates.values()):
            admin.alter_broker_configs(broker, unset=_THROTTLED_RATES)


def _states(admin: Admin, targets: Plan) -> dict[TopicPartition, str]:
    """Return for each partition of a plan whether it is complete."""
    moving = admin.list_partition_reassignments(*targets) if targets else {}
    topics = admin.describe_topics(*{tp.topic for tp in targets}) if targets else {}
    states = {}
    for tp, replicas in targets.items():
        partitions = topics[tp.topic].partitions
        if tp in moving:
            is_planned = moving[tp].target == replicas
            states[tp] = "moving" if is_planned else "moving elsewhere"
        elif tp.partition >= len(partitions):
            states[tp] = "unknown partition"
        else:
            is_planned = partitions[tp.partition].replicas == replicas
            states[tp] = "complete" if is_planned else "not begun"
    return states


def _read_plan(file: IO[bytes]) -> Plan:
    from ottla.client.types import TopicPartition

    try:
        content = json.loads(file.read())
        plan = {
            TopicPartition(str(one["topic"]), int(one["partition"])): tuple(
                int(broker) for broker in one["replicas"]
            )
            for one in content["partitions"]
        }
        version = content.get("version", _PLAN_VERSION)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        reason = f"missing {error}" if isinstance(error, KeyError) else str(error)
        raise Failure(
            f"{file.name} is not a plan: {reason}; make one: ottla cluster reassign plan",
            Exit.USAGE,
        ) from None
    if version != _PLAN_VERSION:
        raise Failure(f"{file.name} has version {version}: expected {_PLAN_VERSION}", Exit.USAGE)
    return plan


def _racks(admin: Admin) -> dict[int, str | None]:
    """Return the racks of all live brokers."""
    return {one.id: one.rack for one in admin.describe_cluster().brokers if one.is_alive}


def _current(admin: Admin, topics: Sequence[str], *, internal: bool) -> Plan:
    """Return the replicas of topics, or of all; of those that are being moved, the new ones."""
    from ottla.client.types import TopicPartition

    found: Iterable[Any]
    found = (
        admin.describe_topics(*topics).values() if topics else admin.list_topics(internal=internal)
    )
    moving = admin.list_partition_reassignments()
    return {
        tp: moving[tp].target if tp in moving else one.replicas
        for topic in found
        for one in topic.partitions
        for tp in [TopicPartition(topic.name, one.partition)]
    }


def _named_partitions(admin: Admin, names: Sequence[str]) -> list[TopicPartition]:
    from ottla.client.types import TopicPartition

    parsed = [_parse_name(name) for name in names]
    topics = admin.describe_topics(*dict.fromkeys(topic for topic, _index in parsed))
    return list(
        dict.fromkeys(
            TopicPartition(topic, one)
            for topic, index in parsed
            for one in (range(len(topics[topic].partitions)) if index is None else [index])
        )
    )


def _parse_name(name: str) -> tuple[str, int | None]:
    topic, colon, index = name.rpartition(":")
    if not colon:
        return name, None
    if not index.isdecimal():
        raise Failure(f"Invalid partition {name!r}: use TOPIC or TOPIC:PARTITION", Exit.USAGE)
    return topic, int(index)


def _broker_ids(text: str) -> set[int]:
    try:
        return {int(word) for word in text.split(",")}
    except ValueError:
        raise Failure(f"Invalid brokers {text!r}: use ids, as in 0,1,2", Exit.USAGE) from None


def _not_alive(brokers: Sequence[int], racks: Mapping[int, str | None]) -> Failure:
    names = ", ".join(map(str, brokers))
    alive = ", ".join(map(str, sorted(racks)))
    return Failure(
        f"Broker {names} is not alive: {alive} are; show brokers: ottla cluster describe",
        Exit.NOT_FOUND,
    )


def _joined(replicas: Sequence[int]) -> str:
    return ",".join(map(str, replicas))
