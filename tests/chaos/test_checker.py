"""The checker detects every anomaly, in written histories and in random ones."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from itertools import groupby, pairwise
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.checker import check, counted
from harness.history import (
    MOVED,
    History,
    Outcome,
    Row,
    Send,
    Transaction,
    decoded,
    encoded,
    value_of,
)

ACKED, REFUSED, UNKNOWN = Outcome.ACKED, Outcome.REFUSED, Outcome.UNKNOWN


def sent(value: int, offset: int | None = None, outcome: Outcome = ACKED) -> Send:
    return Send(0, value, outcome, offset)


def seen(*rows: tuple[int, int]) -> list[Row]:
    """Rows of partition 0: an offset and a value each."""
    return [(0, offset, value) for offset, value in rows]


def of(sends: list[Send], *readers: list[Row], last: list[Row] | None = None) -> History:
    history = History()
    if last is not None:
        history.last_readers = {"last"}
        history.polls["last"] = last
    history.sends["p"] = sends
    for number, rows in enumerate(readers):
        history.polls[f"r{number}"] = rows
    return history


def in_transactions(history: History, *sizes: int, committed: int | None = None) -> History:
    """The history, whose sends are divided into transactions of these sizes."""
    sends = iter(history.sends["p"])
    history.transactions = [
        Transaction("p", offset, [next(sends) for _ in range(size)])
        for offset, size in enumerate(sizes, 1)
    ]
    if committed is not None:
        history.committed["p"] = committed
    return history


@dataclass
class Case:
    anomaly: str
    history: History
    also: str = ""


CASES = {
    "the last of three is nowhere": Case(
        "unseen", of([sent(7, 0), sent(8, 1), sent(9, 2)], seen((0, 7), (1, 8)))
    ),
    "it was acked without an offset, and is nowhere": Case(
        "unseen", of([sent(7, 0), sent(8)], seen((0, 7)))
    ),
    "nothing was ever seen": Case("unseen", of([sent(7, 0)])),
    "somebody saw what lies behind it": Case(
        "lost-write", of([sent(7, 0), sent(8, 1), sent(9, 2)], seen((0, 7), (2, 9)))
    ),
    "it was read, and is not there in the end": Case(
        "unseen", of([sent(7, 0)], seen((0, 7)), last=[]), also="vanished"
    ),
    "it was read, and is not there in the end, and others are": Case(
        "lost-write",
        of([sent(7, 0), sent(8, 1)], seen((0, 7), (1, 8)), last=seen((1, 8))),
        also="vanished",
    ),
    "it was read, never acked, and is not there in the end": Case(
        "vanished",
        of([sent(7, None, UNKNOWN), sent(8, 0)], seen((0, 7)), last=seen((0, 8))),
        also="inconsistent-offsets",
    ),
    "a retry was appended again": Case(
        "duplicate", of([sent(7, 0), sent(8, 2)], seen((0, 7), (1, 7), (2, 8)))
    ),
    "it is not where the ack said": Case(
        "duplicate", of([sent(7, 0), sent(8, 1)], seen((0, 7), (2, 8)))
    ),
    "what was read was replaced": Case(
        "inconsistent-offsets",
        of([sent(7, 0, UNKNOWN), sent(8, 0)], seen((0, 7)), seen((0, 8))),
    ),
    "two were acked at one offset": Case(
        "inconsistent-offsets", of([sent(7, 0), sent(8, 0)], seen((0, 7))), also="lost-write"
    ),
    "it came from nowhere": Case("phantom", of([sent(7, 0)], seen((0, 7), (1, 99)))),
    "it belongs to another partition": Case(
        "phantom", of([Send(1, 7, ACKED, 0), sent(8, 0)], seen((0, 8), (1, 7)), [(1, 0, 7)])
    ),
    "its sender was told that it is not there": Case(
        "refused-read", of([sent(7, None, REFUSED)], seen((0, 7)))
    ),
    "a reader did not see what another one saw": Case(
        "poll-skip",
        of(
            [sent(7, 0), sent(8, 1), sent(9, 2)],
            seen((0, 7), (1, 8), (2, 9)),
            seen((0, 7), (2, 9)),
        ),
    ),
    "a reader goes back": Case(
        "nonmonotonic-poll", of([sent(7, 0), sent(8, 1)], seen((0, 7), (1, 8), (0, 7)))
    ),
    "a reader is given the same again": Case(
        "nonmonotonic-poll", of([sent(7, 0), sent(8, 1)], seen((0, 7), (0, 7), (1, 8)))
    ),
    "the second is before the first": Case(
        "nonmonotonic-send", of([sent(7, 1), sent(8, 0)], seen((0, 8), (1, 7)))
    ),
    "the second is before the first, whose sender does not know where": Case(
        "nonmonotonic-send", of([sent(7, None, UNKNOWN), sent(8, 0)], seen((0, 8), (1, 7)))
    ),
    "half of a transaction is there, and its sender does not know": Case(
        "torn-transaction",
        in_transactions(
            of([sent(7, 0, UNKNOWN), sent(8, 1, UNKNOWN)], seen((0, 7)), last=seen((0, 7))), 2
        ),
    ),
    "an aborted transaction is there": Case(
        "refused-read",
        in_transactions(of([sent(7, 0, REFUSED), sent(8, 1)], seen((0, 7), (1, 8))), 1, 1),
    ),
    "the data of a transaction is there, its offset is not": Case(
        "offset-mismatch",
        in_transactions(of([sent(7, 0), sent(8, 1)], seen((0, 7), (1, 8))), 1, 1, committed=1),
    ),
    "the offset of a transaction is there, its data is not": Case(
        "offset-mismatch",
        in_transactions(of([sent(7, 0), sent(8, 1, REFUSED)], seen((0, 7))), 1, 1, committed=2),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_an_anomaly_is_detected_and_no_other(case):
    assert set(counted(check(case.history))) - {case.also} == {case.anomaly}


SOUND = {
    "nothing": of([]),
    "a committed, an aborted and an unknown transaction": in_transactions(
        of(
            [
                sent(7, 0),
                sent(8, 1),
                sent(9, 3, REFUSED),
                sent(10, 5, UNKNOWN),
                sent(11, 6, UNKNOWN),
            ],
            seen((0, 7), (1, 8), (5, 10), (6, 11)),
        ),
        *(2, 1, 2),
        committed=3,
    ),
    "a transaction that its sender gave up, and that was aborted": in_transactions(
        of([sent(7, 0), sent(8, 1, UNKNOWN)], seen((0, 7))), 1, 1, committed=1
    ),
    "a record": of([sent(7, 0)], seen((0, 7))),
    "one whose sender does not know, and which is not there": of([sent(7, None, UNKNOWN)]),
    "one whose sender does not know, and which is there": of(
        [sent(7, None, UNKNOWN), sent(8, 1)], seen((0, 7), (1, 8))
    ),
    "one that was refused": of([sent(7, None, REFUSED), sent(8, 0)], seen((0, 8))),
    "an ack that does not say where": of([sent(7), sent(8, 1)], seen((0, 7), (1, 8))),
    "a gap that nobody knows anything of": of(
        [sent(7, 0), sent(8, 5)], seen((0, 7), (5, 8)), seen((0, 7), (5, 8))
    ),
    "a reader that begins anew": of(
        [sent(7, 0), sent(8, 1)], [*seen((0, 7), (1, 8)), (0, MOVED, 0), *seen((0, 7), (1, 8))]
    ),
    "a reader that stopped early": of([sent(7, 0), sent(8, 1)], seen((0, 7)), seen((0, 7), (1, 8))),
}


@pytest.mark.parametrize("history", SOUND.values(), ids=SOUND.keys())
def test_a_valid_history_has_no_anomaly(history):
    assert check(history) == []


def test_only_deleted_records_may_be_missing():
    history = of([sent(7, 0), sent(8, 1), sent(9, 2)], seen((0, 7), (2, 9)))

    assert check(history, deleted={(0, 1)}) == []
    assert counted(check(history, deleted={(0, 0), (1, 1)})) == {"lost-write": 1}


def test_a_record_that_was_read_and_then_deleted_may_be_missing():
    history = of([sent(7, 0), sent(8, 1)], seen((0, 7), (1, 8)), last=seen((1, 8)))

    assert check(history, deleted={(0, 0)}) == []


def test_an_anomaly_names_the_producer_and_the_value():
    (anomaly,) = check(CASES["the last of three is nowhere"].history)

    assert str(anomaly) == "unseen in partition 0: 9, acked to p at offset 2"


# Random histories.


@dataclass
class World:
    """A valid log, and a history of its clients."""

    logs: dict[int, list[int]]
    history: History


def a_world(random: Random) -> World:
    """Return random sends, some without a response, and readers that start anywhere, or again."""
    logs: dict[int, list[int]] = defaultdict(list)
    history = History()
    for turn in range(random.randint(20, 60)):
        producer = random.randrange(3)
        send = Send(random.randrange(2), value_of(producer, turn))
        history.sends[f"producer {producer}"].append(send)
        send.outcome = random.choices([ACKED, UNKNOWN, REFUSED], [8, 1, 1])[0]
        if send.outcome is ACKED or (send.outcome is UNKNOWN and random.random() < 0.5):
            log = logs[send.partition]
            log.append(send.value)
            if send.outcome is ACKED and random.random() < 0.9:
                send.offset = len(log) - 1
            if random.random() < 0.1:
                log.append(-1)  # an offset without a record for clients
    for number in range(random.randint(1, 3)):
        rows = history.polls[f"reader {number}"]
        for partition, log in logs.items():
            for _ in range(random.randint(1, 2)):
                start = random.randrange(len(log))
                rows += read(partition, log, start, random.randint(start, len(log)))
    for partition, log in logs.items():
        history.polls["last"] += read(partition, log, 0, len(log))
    if random.random() < 0.5:
        history.last_readers = {"last"}
    add_transactions(history, {value for log in logs.values() for value in log})
    return World(logs, history)


def add_transactions(history: History, existing: set[int]) -> None:
    """Group neighbouring sends of a producer that exist, or do not, into transactions."""
    for producer, sends in history.sends.items():
        groups = groupby(sends, key=lambda send: send.value in existing)
        history.committed[producer] = 0
        for offset, (exists, members) in enumerate(groups, 1):
            history.transactions.append(Transaction(producer, offset, list(members)))
            if exists:
                history.committed[producer] = offset


def read(partition: int, log: list[int], start: int, stop: int) -> list[Row]:
    rows = [(partition, at, log[at]) for at in range(start, stop) if log[at] >= 0]
    return [(partition, MOVED, 0), *rows]


def drop(history: History, value: int) -> None:
    for process, rows in history.polls.items():
        history.polls[process] = [row for row in rows if row[1] == MOVED or row[2] != value]


def acked(history: History) -> list[Send]:
    return [send for send in history.all_sends if send.outcome is ACKED]


def records_of(rows: list[Row]) -> list[int]:
    return [at for at, row in enumerate(rows) if row[1] != MOVED]


def lose_the_last(world: World, random: Random) -> None:
    partition = random.choice([send.partition for send in acked(world.history)])
    values = {send.value: send for send in acked(world.history)}
    for value in reversed(world.logs[partition]):
        drop(world.history, value)
        if value in values:
            return


def lose_one(world: World, random: Random) -> None:
    """Return an acked send with a known offset and another record after it."""
    behind = {partition: _last_record(log) for partition, log in world.logs.items()}
    sends = [s for s in acked(world.history) if s.offset is not None]
    drop(world.history, random.choice([s for s in sends if s.value != behind[s.partition]]).value)


def _last_record(log: list[int]) -> int:
    return next(value for value in reversed(log) if value >= 0)


def lose_what_was_read(world: World, random: Random) -> None:
    """Make a record seen earlier and missing at the end."""
    rows = world.history.polls["last"]
    world.history.polls["early"] = list(rows)
    del rows[random.choice(records_of(rows))]
    world.history.last_readers = {"last"}


def double(world: World, random: Random) -> None:
    send = random.choice(acked(world.history))
    end = len(world.logs[send.partition])
    world.history.polls["late"] = [(send.partition, end, send.value)]


def replace(world: World, random: Random) -> None:
    """Make two readers see different records at one offset."""
    rows = world.history.polls["last"]
    partition, offset, _value = rows[random.choice(records_of(rows))]
    value = value_of(9, 0)
    world.history.sends["other"].append(Send(partition, value))
    world.history.polls["late"] = [(partition, offset, value)]


def make_up(world: World, random: Random) -> None:
    rows = world.history.polls["last"]
    at = random.choice(records_of(rows))
    rows[at] = (*rows[at][:2], value_of(9, 1))


def show_what_was_refused(world: World, random: Random) -> None:
    partition = random.choice(list(world.logs))
    value = value_of(9, 2)
    world.history.sends["other"].append(Send(partition, value, REFUSED))
    world.history.polls["late"] = [(partition, len(world.logs[partition]), value)]


def _neighbours(rows: list[Row]) -> list[int]:
    """Return an index whose row has neighbours of the same partition on both sides."""
    found = records_of(rows)
    return [
        at
        for at in found
        if at - 1 in found and at + 1 in found and rows[at - 1][0] == rows[at + 1][0]
    ]


def skip(world: World, random: Random) -> None:
    rows = list(world.history.polls["last"])
    del rows[random.choice(_neighbours(rows))]
    world.history.polls["late"] = rows


def go_back(world: World, random: Random) -> None:
    rows = world.history.polls["last"]
    at = random.choice(records_of(rows))
    rows.insert(at, rows[at])


def swap_sends(world: World, random: Random) -> None:
    pairs = []
    for sends in world.history.sends.values():
        known = [send for send in sends if send.outcome is ACKED and send.offset is not None]
        for partition in world.logs:
            mine = [send for send in known if send.partition == partition]
            pairs += [(sends, one, other) for one, other in pairwise(mine)]
    sends, one, other = random.choice(pairs)
    first, second = sends.index(one), sends.index(other)
    sends[first], sends[second] = other, one


def tear(world: World, random: Random) -> None:
    """Put a send that nobody knows of into a transaction that exists."""
    transaction = random.choice(_last_transactions(world))
    transaction.sends.append(Send(0, value_of(9, 3)))


def forget_an_offset(world: World, random: Random) -> None:
    world.history.committed[random.choice(_last_transactions(world)).producer] -= 1


def _last_transactions(world: World) -> list[Transaction]:
    """Return the last transaction of each producer that exists."""
    history = world.history
    return [
        each for each in history.transactions if each.offset == history.committed[each.producer]
    ]


MUTATIONS: dict[str, tuple[str, Callable[[World, Random], None]]] = {
    "unseen": ("unseen", lose_the_last),
    "lost-write": ("lost-write", lose_one),
    "vanished": ("vanished", lose_what_was_read),
    "duplicate": ("duplicate", double),
    "inconsistent-offsets": ("inconsistent-offsets", replace),
    "phantom": ("phantom", make_up),
    "refused-read": ("refused-read", show_what_was_refused),
    "poll-skip": ("poll-skip", skip),
    "nonmonotonic-poll": ("nonmonotonic-poll", go_back),
    "nonmonotonic-send": ("nonmonotonic-send", swap_sends),
    "torn-transaction": ("torn-transaction", tear),
    "offset-mismatch": ("offset-mismatch", forget_an_offset),
}
SEEDS = st.integers(0, 2**32)


@settings(max_examples=100)
@given(seed=SEEDS)
def test_a_random_valid_history_passes(seed):
    assert check(a_world(Random(seed)).history) == []


@pytest.mark.parametrize(("kind", "mutate"), MUTATIONS.values(), ids=MUTATIONS)
@settings(max_examples=40)
@given(seed=SEEDS)
def test_a_history_with_one_anomaly_fails(kind, mutate, seed):
    world = a_world(Random(seed))
    sound = deepcopy(world.history)

    mutate(world, Random(seed))

    assert counted(check(world.history))[kind] >= 1
    assert check(sound) == []


def test_every_documented_anomaly_is_tested():
    documented = {
        line.split()[0]
        for line in (check.__globals__["__doc__"] or "").splitlines()
        if line.startswith("    ")
    }

    assert documented == {case.anomaly for case in CASES.values()} == set(MUTATIONS)


# Values.


@given(value=st.integers(0, 2**50), data=st.data())
def test_a_damaged_record_is_detected(value, data):
    record = encoded(value)
    assert decoded(record) == value
    if len(record) > 16:
        at = data.draw(st.integers(0, len(record) - 1))
        damaged = bytearray(record)
        damaged[at] ^= 1 << data.draw(st.integers(0, 7))
        with pytest.raises(ValueError, match="Damaged record"):
            decoded(bytes(damaged))
    with pytest.raises(ValueError, match="Damaged record"):
        decoded(record[:-1])
