"""A ledger: accounts are not stored, they are what a log of transfers says.

Transfers are appended to a topic with one partition, so that everybody reads them in one order, and
whoever replays them comes to the same balances. What it teaches:

- Event sourcing: a transfer is a request. Whether it is good is decided when it is read, by a rule
  that looks at nothing but what came before it: no account but `world` may owe anything.
- Reading a log from an offset to its end, with the consumer in its blocking form.
- Snapshots: balances and the offset behind them, in a compacted topic. A replay begins there; what
  is before it may be deleted. If there is a hole, `auto_offset_reset="none"` fails instead of
  going on behind it.

Without a command it plays a hundred transfers and audits them.

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
PLAYERS = (WORLD, "ann", "bob", "cleo", "dora")


@dataclass
class State:
    """The balances after all transfers before an offset."""

    next_offset: int = 0
    balances: defaultdict[str, int] = field(default_factory=lambda: defaultdict(int))
    refused: set[int] = field(default_factory=set)
    replayed: int = 0

    def apply(self, record: ConsumerRecord) -> None:
        """Take in a transfer, or refuse it."""
        payer, payee, amount = record.value
        if amount <= 0 or (payer != WORLD and self.balances[payer] < amount):
            self.refused.add(record.offset)
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
        """Make the topics, unless they are there: one is kept for ever, one is compacted."""
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
        """Append transfers; give the offset of the first."""
        with Producer(self.bootstrap, value_serializer=serialize_json) as producer:
            return producer.send_many(self.transfers.topic, transfers)[0].base_offset

    def replay(self, state: State) -> State:
        """Take in all transfers from where the state is to the end of the log."""
        for record in self._read(self.transfers, state.next_offset):
            state.apply(record)
        return state

    def snapshot(self, state: State) -> None:
        """Store a state; compaction removes the ones before it, which have the same key."""
        value = {"next_offset": state.next_offset, "balances": state.balances}
        with Producer(self.bootstrap, value_serializer=serialize_json) as producer:
            producer.send(self.snapshots.topic, value, key=b"balances")

    def last_snapshot(self) -> State:
        """Give the state that was stored last, or an empty one."""
        state = State()
        for record in self._read(self.snapshots, None):
            balances = defaultdict(int, record.value["balances"])
            state = State(record.value["next_offset"], balances)
        return state

    def _read(self, place: TopicPartition, offset: int | None) -> Iterator[ConsumerRecord]:
        """Give all records from an offset, or from the first that there is, to the end."""
        with Consumer(
            self.bootstrap, auto_offset_reset="none", value_deserializer=deserialize_json
        ) as consumer:
            consumer.assign([place])
            if offset is None:
                consumer.seek_to_beginning(place)
            else:
                consumer.seek(place, offset)
            end = consumer.end_offsets(place)[place]
            while consumer.position(place) < end:
                yield from consumer.getmany(1.0).get(place, [])


@click.group(invoke_without_command=True, help=(__doc__ or "").replace("\n\n", "\n\n\b\n"))
@click.option("--bootstrap", default="localhost:9092", show_default=True, help="A broker.")
@click.option("--prefix", default="ledger", show_default=True, help="Of topics.")
@click.pass_context
def main(context: click.Context, bootstrap: str, prefix: str) -> None:
    """Make the topics, and go on with a command."""
    context.obj = Ledger(bootstrap, prefix)
    context.obj.create()
    if context.invoked_subcommand is None:
        context.invoke(play)
        context.invoke(audit)


@main.command()
@click.option("--transfers", default=100, show_default=True, help="How many.")
@click.pass_obj
def play(ledger: Ledger, transfers: int) -> None:
    """Post transfers by chance; some of them ask for more than there is."""
    pairs = (random.sample(PLAYERS, 2) for _ in range(transfers))
    ledger.post(*((payer, payee, random.randrange(1, 100)) for payer, payee in pairs))
    click.echo(f"posted {transfers} transfers")


@main.command()
@click.argument("payer")
@click.argument("payee")
@click.argument("amount", type=int)
@click.pass_obj
def post(ledger: Ledger, payer: str, payee: str, amount: int) -> None:
    """Post one transfer, and say whether it was good."""
    offset = ledger.post((payer, payee, amount))
    state = ledger.replay(ledger.last_snapshot())
    click.echo(f"{offset}: {'refused' if offset in state.refused else 'done'}")


@main.command()
@click.option("--json", "as_json", is_flag=True, help="Print them as JSON.")
@click.pass_obj
def balances(ledger: Ledger, as_json: bool) -> None:
    """Print what everybody has, from the last snapshot and what came after it."""
    state = ledger.replay(ledger.last_snapshot())
    if as_json:
        click.echo(json.dumps({"balances": state.balances, "replayed": state.replayed}))
        return
    for account, balance in sorted(state.balances.items()):
        click.echo(f"{balance:8} {account}")
    click.echo(f"after {state.next_offset} transfers, {state.replayed} of them replayed")


@main.command()
@click.pass_obj
def snapshot(ledger: Ledger) -> None:
    """Store the balances, so that a replay begins here."""
    state = ledger.replay(ledger.last_snapshot())
    ledger.snapshot(state)
    click.echo(f"a snapshot of {state.next_offset} transfers")


@main.command()
@click.pass_obj
def audit(ledger: Ledger) -> None:
    """Replay everything from offset 0, and compare: with zero, and with the last snapshot."""
    shortcut, state = ledger.replay(ledger.last_snapshot()), ledger.replay(State())
    if total := sum(state.balances.values()):
        raise click.ClickException(f"the balances sum up to {total}")
    if shortcut.next_offset == state.next_offset and shortcut.balances != state.balances:
        raise click.ClickException("the last snapshot is not what its transfers come to")
    click.echo(f"{state.next_offset} transfers, {len(state.refused)} refused; the sum is zero")


if __name__ == "__main__":
    try:
        main()
    except (ClientError, KafkaError) as error:
        raise SystemExit(f"Error: {error}") from error
