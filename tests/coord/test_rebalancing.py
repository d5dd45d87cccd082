"""Plans for reassignments are valid, balanced, and move no more than they must."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.coord.rebalancing import NotEnoughBrokersError, plan_assignment

BROKERS = 6
REPLICAS = st.lists(st.integers(0, BROKERS - 1), min_size=1, max_size=3, unique=True).map(tuple)
ASSIGNMENTS = st.lists(REPLICAS, min_size=1, max_size=30).map(lambda some: dict(enumerate(some)))
RACKS = st.dictionaries(
    st.integers(0, BROKERS - 1), st.sampled_from([None, "a", "b"]), min_size=3, max_size=BROKERS
)


@given(ASSIGNMENTS, RACKS, st.sampled_from([None, 1, 2, 3]), st.booleans())
def test_a_plan_uses_distinct_brokers_and_all_racks(current, racks, factor, balances):
    planned = plan_assignment(current, racks, factor=factor, balances=balances)

    assert list(planned) == list(current)
    rack_of = {one: racks[one] or one for one in racks}
    for key, replicas in planned.items():
        assert len(replicas) == (factor or len(current[key]))
        assert set(replicas) <= set(racks)
        assert len(set(replicas)) == len(replicas)
        kept = [one for one in current[key] if one in racks][: len(replicas)]
        before = len({rack_of[one] for one in kept})
        added = len(replicas) - len(kept)
        assert len({rack_of[one] for one in replicas}) >= min(
            before + added, len(set(rack_of.values()))
        )


@given(ASSIGNMENTS, st.sampled_from([None, 1, 2, 3]))
def test_without_racks_brokers_have_as_many_replicas(current, factor):
    planned = plan_assignment(current, dict.fromkeys(range(BROKERS)), factor=factor)

    counts = Counter(one for replicas in planned.values() for one in replicas)
    loads = [counts[one] for one in range(BROKERS)]
    assert max(loads) - min(loads) <= 1
    assert plan_assignment(planned, dict.fromkeys(range(BROKERS))) == planned


@given(ASSIGNMENTS, st.integers(0, BROKERS - 1))
def test_draining_a_broker_touches_only_its_partitions(current, drained):
    others = dict.fromkeys(one for one in range(BROKERS) if one != drained)
    planned = plan_assignment(current, others, balances=False)

    for key, replicas in planned.items():
        if drained not in current[key]:
            assert replicas == current[key]
        else:
            assert drained not in replicas
            assert set(current[key]) - {drained} <= set(replicas)


def test_a_new_broker_gets_its_share():
    current = {index: (index % 3, (index + 1) % 3) for index in range(12)}
    planned = plan_assignment(current, dict.fromkeys(range(4)))

    assert sum(3 in replicas for replicas in planned.values()) == 6
    assert sum(planned[key] != current[key] for key in current) <= 9
    assert sorted(Counter(one[0] for one in planned.values()).values()) == [3, 3, 3, 3]


def test_a_factor_is_raised_in_other_racks():
    planned = plan_assignment({0: (0,)}, {0: "a", 1: "a", 2: "b"}, factor=2)
    assert planned == {0: (0, 2)}


def test_too_few_brokers():
    with pytest.raises(NotEnoughBrokersError, match=r"3 replicas need .* available: 0, 1"):
        plan_assignment({0: (0, 1, 2)}, {0: None, 1: None})
