"""The matrix of faults in its short form; `make chaos` runs more cycles.

Seeds are random. A failure shows its seed, which CHAOS_SEED sets:

    CHAOS_SEED=3141592653 .venv/bin/python -m pytest tests/chaos/test_matrix.py -k "kill"
"""

from __future__ import annotations

import pytest

from chaos import rows as _rows  # noqa: F401  # registers the rows
from chaos.matrix import ROWS, Row, Size
from chaos.runner import SEED, chosen, random_seed
from chaos.testbed import Run

#: Faults of one of several brokers, while the others serve.
IN_A_CLUSTER = ("1", "10", "11p")


#: Faults under a load of transactions; `make chaos CHAOS=--transactions` runs all others.
WITH_TRANSACTIONS = [("1", 1), ("2f", 1), ("10", 1), ("13", 1), ("1", 3)]


def play(row: Row, tmp_path, brokers: int, *, is_transactional: bool = False) -> Run:
    seed = random_seed()
    run = Run(
        tmp_path / "run",
        seed=seed,
        count=row.counts[Size.SHORT],
        brokers=brokers,
        is_transactional=is_transactional,
    )
    try:
        row.play(run)
    except Exception as error:
        error.add_note(f"To repeat it, set {SEED}={seed}")
        for path in sorted(tmp_path.rglob("broker.log")):
            print(f"--- {path}", *path.read_text().splitlines()[-40:], sep="\n")
        raise
    return run


@pytest.mark.process
@pytest.mark.real_time
@pytest.mark.parametrize("row", chosen(""), ids=str)
def test_one_broker_survives_the_fault(row, tmp_path):
    run = play(row, tmp_path, brokers=1)

    assert run.figures.cycles == run.count or row.number in ("12", "13")
    assert run.figures.acked > 0


@pytest.mark.process
@pytest.mark.real_time
@pytest.mark.parametrize("number", IN_A_CLUSTER)
def test_other_brokers_keep_serving_during_the_fault(number, tmp_path):
    run = play(ROWS[number], tmp_path, brokers=3)

    assert run.figures.acked > 0


@pytest.mark.process
@pytest.mark.real_time
@pytest.mark.parametrize(("number", "brokers"), WITH_TRANSACTIONS)
def test_transactions_are_atomic_during_the_fault(number, brokers, tmp_path):
    run = play(ROWS[number], tmp_path, brokers, is_transactional=True)

    assert run.figures.acked > 0


def test_rows_are_selected_by_number():
    assert [row.number for row in chosen("2-3,G,1")] == ["1", "2", "2c", "2f", "3", "G"]
    numbers = [row.number for row in chosen("")]
    assert [number for number in numbers if number.isdigit()] == [str(n) for n in range(1, 23)]
