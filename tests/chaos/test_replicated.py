"""Failure scenarios of replicated clusters, in short; `make chaos CHAOS=--replicated` runs all.

The rows share a cluster of three brokers and one member of etcd.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from chaos import rows as _rows  # noqa: F401  # registers the rows
from chaos.matrix import REPLICATED_ROWS, Size
from chaos.replicated import ReplicatedBed, replicated_bed
from chaos.runner import SEED, chosen, random_seed
from chaos.testbed import Run
from harness.daemon import shown_on_failure

#: Those that find most for their time.
SHORT = ("1", "2", "3", "4", "5", "6", "7b", "8", "10", "37")


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReplicatedBed]:
    with replicated_bed(tmp_path_factory.mktemp("replicated")) as bed:
        yield bed


@pytest.mark.process
@pytest.mark.real_time
@pytest.mark.xdist_group("replicated")
@pytest.mark.parametrize("number", SHORT)
def test_a_replicated_cluster_survives_the_fault(
    number: str, shared: ReplicatedBed, request: pytest.FixtureRequest, tmp_path
) -> None:
    row = REPLICATED_ROWS[number]
    seed = random_seed()
    run = Run(tmp_path / "run", seed=seed, count=row.counts[Size.SHORT], brokers=3, shared=shared)
    with shown_on_failure(request, shared.cluster.brokers):
        try:
            row.play(run)
        except Exception as error:
            error.add_note(f"To repeat it, set {SEED}={seed}")
            raise

    assert run.figures.acked > 0
    assert run.figures.lost == run.figures.duplicated == 0


def test_every_scenario_has_a_row() -> None:
    numbers = {row.number.rstrip("abp") for row in chosen("", REPLICATED_ROWS)}
    assert {str(number) for number in range(1, 38)} <= numbers
