"""`ottla txn …`: list, describe and abort transactions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from . import output
from .completion import complete_topics, complete_transactional_ids
from .errors import Exit, Failure
from .option_types import DURATION, format_time
from .outcomes import Outcomes
from .target import Target, connected, json_option
from .topic import confirm, yes_option

if TYPE_CHECKING:
    from ottla.client.admin import HangingTransaction, TransactionDescription
    from ottla.client.blocking import Admin

_ids = click.argument(
    "ids",
    metavar="TRANSACTIONAL_ID...",
    nargs=-1,
    required=True,
    shell_complete=complete_transactional_ids,
)


@click.group()
def txn() -> None:
    """List, describe and abort transactions."""


@txn.command("list")
@click.option(
    "--state",
    "states",
    multiple=True,
    help="Only ids in this state (Ongoing, CompleteCommit, …); repeatable.",
)
@click.option(
    "--older-than", type=DURATION, help="Only transactions open for this long: 90s, 15m, 2h."
)
@click.option("-q", "--quiet", is_flag=True, help="Print transactional ids only, one per line.")
@json_option
@connected
def list_transactions(
    target: Target, states: tuple[str, ...], older_than: float | None, quiet: bool, as_json: bool
) -> None:
    """List the transactional ids of all brokers.

    \b
        ottla txn list
        ottla txn list --state Ongoing --older-than 1m
    """
    with target.admin() as admin:
        listed = admin.list_transactions(states=states, min_duration=older_than)
    if quiet and not as_json:
        click.echo("".join(f"{one.transactional_id}\n" for one in listed), nl=False)
        return
    output.print_rows(
        ("transactional_id", "state", "producer_id", "coordinator"),
        [(one.transactional_id, one.state, one.producer_id, one.coordinator) for one in listed],
        as_json=as_json,
    )


@txn.command("describe")
@_ids
@json_option
@connected
def describe_transactions(target: Target, ids: tuple[str, ...], as_json: bool) -> None:
    """Show the state and partitions of transactions.

    \b
        ottla txn describe payments-1
    """
    outcomes = Outcomes("transactional_id", ids)
    with target.admin() as admin:
        found = [one for one in outcomes.attempt(admin.describe_transactions).values() if one]
    if as_json:
        output.print_json([_as_json(one) for one in found])
    else:
        for one in found:
            _print_description(one)
    outcomes.finish()


def _as_json(description: TransactionDescription) -> dict[str, Any]:
    return {
        "transactional_id": description.transactional_id,
        "state": description.state,
        "producer_id": description.producer_id,
        "producer_epoch": description.producer_epoch,
        "coordinator": description.coordinator,
        "timeout_ms": description.timeout_ms,
        "started_ms": description.started_ms,
        "partitions": [
            {"topic": tp.topic, "partition": tp.partition} for tp in description.partitions
        ],
    }


def _print_description(description: TransactionDescription) -> None:
    started = description.started_ms
    is_open = bool(description.partitions)
    output.print_facts(
        {
            "transactional id": description.transactional_id,
            "state": description.state,
            "producer id": description.producer_id,
            "producer epoch": description.producer_epoch,
            "coordinator": description.coordinator,
            "timeout": f"{description.timeout_ms / 1000:g} s",
            "started": None if started is None else format_time(started),
            "open for": f"{max(0.0, time.time() - started / 1000):.1f} s"
            if is_open and started is not None
            else None,
        }
    )
    if is_open:
        output.print_table(("topic", "partition"), description.partitions)


@txn.command("abort")
@_ids
@yes_option
@json_option
@connected
def abort_transactions(target: Target, ids: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Abort open transactions, and fence their producers.

    A producer that still runs can neither write nor commit afterwards: restart it. For a
    transaction that no coordinator has, see `ottla txn hanging --abort`.

    \b
        ottla txn abort payments-1 --yes
    """
    outcomes = Outcomes("transactional_id", ids)
    with target.admin() as admin:
        states = outcomes.attempt(admin.describe_transactions)
        if states:
            confirm(f"abort the transactions of {', '.join(states)} and fence the producers", yes)
            for name, producer in outcomes.attempt(admin.fence_producers, list(states)).items():
                before = states[name]
                assert before is not None
                assert producer is not None
                was_open = before.state in ("Ongoing", "PrepareAbort")
                outcomes.succeed(
                    name,
                    "aborted, producer fenced" if was_open else "no open transaction; fenced",
                    outcome="aborted" if was_open else "fenced",
                    producer_id=producer[0],
                    producer_epoch=producer[1],
                )
    outcomes.print(as_json=as_json)


@txn.command("hanging")
@click.argument("topics", metavar="[TOPIC]...", nargs=-1, shell_complete=complete_topics)
@click.option(
    "--older-than",
    type=DURATION,
    default="15m",
    show_default=True,
    help="Only producers whose last record is at least this old.",
)
@click.option("--abort", is_flag=True, help="Abort them, each in its partition.")
@yes_option
@json_option
@connected
def hanging(
    target: Target,
    topics: tuple[str, ...],
    older_than: float,
    abort: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Find open transactions that no coordinator will end.

    They hold up consumers with read_committed for ever. Without TOPIC, all topics are searched.
    Brokers of a cluster accept --abort on their inter-broker listener only.

    \b
        ottla txn hanging
        ottla txn hanging orders --older-than 1h --abort --yes
    """
    with target.admin() as admin:
        names = topics or tuple(one.name for one in admin.list_topics(internal=True))
        found = admin.find_hanging_transactions(*names, min_age=older_than)
        if abort and found:
            confirm(f"abort {output.counted(len(found), 'hanging transaction')}", yes)
            _abort(admin, found)
    output.print_rows(
        (
            *("topic", "partition", "start_offset", "producer_id", "producer_epoch"),
            *("transactional_id", "last_timestamp", "outcome"),
        ),
        [
            (
                *one.partition,
                one.producer.transaction_start_offset,
                one.producer.producer_id,
                one.producer.producer_epoch,
                one.transactional_id,
                one.producer.last_timestamp
                if as_json
                else format_time(one.producer.last_timestamp),
                "aborted" if abort else "hanging",
            )
            for one in found
        ],
        as_json=as_json,
    )


def _abort(admin: Admin, found: list[HangingTransaction]) -> None:
    from ottla.client.errors import ErrorCode, KafkaError

    for one in found:
        try:
            admin.abort_transaction(one.partition, one.producer)
        except KafkaError as error:
            if error.code is not ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                raise
            raise Failure(
                f"{one.partition}: brokers of a cluster accept markers on their inter-broker"
                " listener only; use --bootstrap with its address",
                Exit.REJECTED,
            ) from error
