"""Ledger: account balances derived from a log of transfers.

Transfers are appended to a topic with one partition, so every reader sees them in the same order
and computes the same balances. It demonstrates:

- Event sourcing: a transfer is a request. Whether it is valid is decided when it is read, by a rule
  that depends only on the transfers before it: no account except `world` may go below zero.
- Reading a partition from an offset to its end with the sync consumer.
- Snapshots: balances and the next offset, in a compacted topic. A replay starts at the last
  snapshot, and transfers before it may be deleted. If transfers are missing,
  `auto_offset_reset="none"` makes the replay fail instead of skipping them.

Without a command it posts a hundred random transfers and audits them.

    python examples/ledger.py
    python examples/ledger.py post world ann 100
    python examples/ledger.py balances
"""

from __future__ import annotations

import json
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

import click

from ottla.client import ClientError, ConsumerRecord, ErrorCode, KafkaError, TopicPartition
from ottla.client.blocking import Admin, Consumer, Producer
from ottla.client.serializers import deserialize_json, serialize_json

WORLD = "world"
ACCOUNTS = (WORLD, "ann", "bob", "cleo", "dora")


@dataclass
class State:
    """The balances after all transfers up to `next_offset`."""

    next_offset: int = 0
    balances: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    rejected: set[int] = field(default_factory=set)
    replayed: int = 0

    def apply(self, record: ConsumerRecord) -> None:
        """Apply a transfer, or reject it."""
        payer, payee, amount = record.value
        if amount <= 0 or (payer != WORLD and self.balances[payer] < amount):
            self.rejected.add(record.offset)
        else:
            self.balances[payer] -= amount
            self.balances[payee] += amount
        self.next_offset = record.offset + 1
        self.replayed += 1


class Ledger:
    """Transfers and snapshots in two topics of a cluster."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        self.bootstrap = bootstrap
        self.transfers = TopicPartition(f"{prefix}.transfers", 0)
        self.snapshots = TopicPartition(f"{prefix}.snapshots", 0)

    def create(self) -> None:
        """Create the topics if they do not exist: one without retention limit, one compacted."""
        with Admin(self.bootstrap) as admin:
            for topic, configs in (
                (self.transfers.topic, {"retention.ms": "-1"}),
                (self.snapshots.topic, {"cleanup.policy": "compact"}),
            ):
                try:
                    admin.create_topic(topic, partitions=1, configs=configs)
                except KafkaError as error:
                    if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                        raise

    def post(self, *transfers: tuple[str, str, int]) -> int:
        """Append transfers; return the offset of the first one."""
        with Producer(self.bootstrap, value_serializer=serialize_json) as producer:
            return producer.send_many(self.transfers.topic, transfers)[0].base_offset

    def replay(self, state: State) -> State:
        """Apply all transfers from the next offset of the state to the end of the log."""
        for record in self._read(self.transfers, state.next_offset):
            state.apply(record)
        return state

    def snapshot(self, state: State) -> None:
        """Store a state; compaction removes earlier ones, which have the same key."""
        value = {"next_offset": state.next_offset, "balances": state.balances}
        with Producer(self.bootstrap, value_serializer=serialize_json) as producer:
            producer.send(self.snapshots.topic, value, key=b"balances")

    def last_snapshot(self) -> State:
        """Return the last stored state, or an empty one."""
        state = State()
        for record in self._read(self.snapshots, None):
            balances = defaultdict(int, record.value["balances"])
            state = State(record.value["next_offset"], balances)
        return state

    def _read(self, tp: TopicPartition, offset: int | None) -> Iterator[ConsumerRecord]:
        """Yield all records from an offset, or from the beginning, to the end."""
        with Consumer(
            self.bootstrap, auto_offset_reset="none", value_deserializer=deserialize_json
        ) as consumer:
            consumer.assign([tp])
            if offset is None:
                consumer.seek_to_beginning(tp)
            else:
                consumer.seek(tp, offset)
            end = consumer.end_offsets(tp)[tp]
            while consumer.position(tp) < end:
                yield from consumer.getmany(1.0).get(tp, [])


@click.group(invoke_without_command=True, help=(__doc__ or "").replace("\n\n", "\n\n\b\n"))
@click.option("--bootstrap", default="localhost:9092", show_default=True, help="Bootstrap servers.")
@click.option("--prefix", default="ledger", show_default=True, help="Prefix of topic names.")
@click.pass_context
def main(context: click.Context, bootstrap: str, prefix: str) -> None:
    """Create the topics, and run a command."""
    context.obj = Ledger(bootstrap, prefix)
    context.obj.create()
    if context.invoked_subcommand is None:
        context.invoke(play)
        context.invoke(audit)


@main.command()
@click.option("--transfers", default=100, show_default=True, help="Number of transfers.")
@click.pass_obj
def play(ledger: Ledger, transfers: int) -> None:
    """Post random transfers; some of them exceed the balance."""
    pairs = (random.sample(ACCOUNTS, 2) for _ in range(transfers))
    ledger.post(*((payer, payee, random.randrange(1, 100)) for payer, payee in pairs))
    click.echo(f"posted {transfers} transfers")


@main.command()
@click.argument("payer")
@click.argument("payee")
@click.argument("amount", type=int)
@click.pass_obj
def post(ledger: Ledger, payer: str, payee: str, amount: int) -> None:
    """Post one transfer, and print whether it was accepted."""
    offset = ledger.post((payer, payee, amount))
    state = ledger.replay(ledger.last_snapshot())
    click.echo(f"{offset}: {'rejected' if offset in state.rejected else 'accepted'}")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_obj
def balances(ledger: Ledger, as_json: bool) -> None:
    """Print all balances, from the last snapshot and the transfers after it."""
    state = ledger.replay(ledger.last_snapshot())
    if as_json:
        click.echo(json.dumps({"balances": state.balances, "replayed": state.replayed}))
        return
    for account, balance in sorted(state.balances.items()):
        click.echo(f"{balance:8} {account}")
    click.echo(f"after {state.next_offset} transfers, {state.replayed} replayed")


@main.command()
@click.pass_obj
def snapshot(ledger: Ledger) -> None:
    """Store the balances, so that a replay starts here."""
    state = ledger.replay(ledger.last_snapshot())
    ledger.snapshot(state)
    click.echo(f"stored a snapshot after {state.next_offset} transfers")


@main.command()
@click.pass_obj
def audit(ledger: Ledger) -> None:
    """Replay all transfers, and check that the sum is zero and the last snapshot is correct."""
    shortcut, state = ledger.replay(ledger.last_snapshot()), ledger.replay(State())
    if total := sum(state.balances.values()):
        raise click.ClickException(f"the sum of all balances is {total}, not 0")
    if shortcut.next_offset == state.next_offset and shortcut.balances != state.balances:
        raise click.ClickException("the last snapshot differs from the replayed balances")
    click.echo(f"{state.next_offset} transfers, {len(state.rejected)} rejected; the sum is zero")


if __name__ == "__main__":
    try:
        main()
    except (ClientError, KafkaError) as error:
        raise SystemExit(f"Error: {error}") from error
