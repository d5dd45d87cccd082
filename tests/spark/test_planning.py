"""Planning: which offsets, how many at a time, how many tasks. Neither Spark nor a broker."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client import TopicPartition
from ottla.client.spark import OptionError
from ottla.client.spark.options import Bound, Limits, Splitting
from ottla.client.spark.planning import (
    EARLIEST,
    LATEST,
    Range,
    capped,
    from_json,
    is_too_little,
    ranges_between,
    ranges_of,
    rate_limited,
    resolve_end,
    resolve_start,
    split,
    to_json,
)

A, B, C = (TopicPartition("t", number) for number in range(3))
# A log of each partition: where it begins and ends.
LOGS = {A: (0, 100), B: (40, 50), C: (0, 0)}


def look_up(times):
    """Each record of these logs has its offset as its time."""
    found = {}
    for place, time in times.items():
        begin, end = LOGS[place]
        found[place] = {EARLIEST: begin, LATEST: end}.get(time, max(begin, time))
        if time >= 0 and time >= end:
            found[place] = LATEST
    return found


def losses():
    told = []
    return told, told.append


def test_both_ends_of_the_logs():
    assert resolve_start(Bound(EARLIEST), LOGS, look_up) == {A: 0, B: 40, C: 0}
    assert resolve_end(Bound(LATEST), LOGS, look_up) == {A: 100, B: 50, C: 0}


def test_offsets_may_name_an_end():
    bound = Bound(by_place={A: 23, B: EARLIEST, C: LATEST})

    assert resolve_start(bound, LOGS, look_up) == {A: 23, B: 40, C: 0}


def test_offsets_speak_of_all_that_is_read_and_of_nothing_else():
    with pytest.raises(OptionError, match="starting offsets say nothing of t-1, t-2"):
        resolve_start(Bound(by_place={A: 1}), LOGS, look_up)
    with pytest.raises(OptionError, match="ending offsets speak of t-1"):
        resolve_end(Bound(by_place={A: 1, B: 1}), [A], look_up)


def test_a_time_is_the_first_record_that_is_not_older():
    assert resolve_start(Bound(45, is_time=True), [A, B], look_up) == {A: 45, B: 45}


def test_a_start_after_the_last_record_is_an_error_unless_told_otherwise():
    late = Bound(70, is_time=True)

    with pytest.raises(OptionError, match=r"no record of t-1, t-2 .*Strategy=latest"):
        resolve_start(late, LOGS, look_up)
    assert resolve_start(late, LOGS, look_up, "latest") == {A: 70, B: 50, C: 0}
    assert resolve_end(late, LOGS, look_up) == {A: 70, B: 50, C: 0}


def test_offsets_are_kept_as_spark_keeps_them():
    offsets = {TopicPartition("a", 10): 7, TopicPartition("a", 9): 1, TopicPartition("b", 0): 2}

    assert to_json(offsets) == {"a": {"9": 1, "10": 7}, "b": {"0": 2}}
    assert from_json(to_json(offsets)) == offsets


def test_ranges_leave_out_what_is_empty():
    assert ranges_of({A: 5, B: 40, C: 0}, {A: 9, B: 40, C: 0}) == [Range("t", 0, 5, 9)]


def test_new_partitions_are_read_from_their_beginning():
    told, tell = losses()

    found = ranges_between({A: 10}, {A: 12, C: 3}, lambda places: dict.fromkeys(places, 0), tell)

    assert found == [Range("t", 0, 10, 12), Range("t", 2, 0, 3)]
    assert told == []


def test_what_cannot_be_read_is_told():
    told, tell = losses()

    found = ranges_between({A: 10, B: 90}, {B: 50, C: 70}, lambda places: {B: 40, C: 60}, tell)

    assert found == [Range("t", 1, 40, 50), Range("t", 2, 60, 70)]
    assert [text.split(",")[0] for text in told] == [
        "Partitions t-0 are gone",
        "t-1 ends at offset 50",
        "t-2 is new",
    ]


def test_a_limit_is_shared_in_proportion():
    assert rate_limited({A: 0, B: 0}, {A: 900, B: 100}, 100) == {A: 90, B: 10}
    assert rate_limited({A: 0, B: 0}, {A: 9, B: 1}, 100) == {A: 9, B: 1}


@given(
    sizes=st.lists(st.integers(0, 10_000), min_size=1, max_size=20),
    most=st.integers(1, 20_000),
)
def test_a_limit_is_used_up_and_nobody_starves(sizes, most):
    places = [TopicPartition("t", number) for number in range(len(sizes))]
    start = dict.fromkeys(places, 1000)
    latest = {place: 1000 + size for place, size in zip(places, sizes, strict=True)}

    end = rate_limited(start, latest, most)

    taken = {place: end[place] - start[place] for place in places}
    busy = sum(size > 0 for size in sizes)
    assert sum(taken.values()) == min(sum(sizes), max(most, busy))
    for place, size in zip(places, sizes, strict=True):
        assert min(1, size) <= taken[place] <= size


def test_a_batch_that_is_too_small_waits_but_not_for_ever():
    limits = Limits(min_offsets=10, max_delay_ms=1000)

    assert is_too_little({A: 0, B: 0}, {A: 5, B: 4}, limits, waited_ms=0)
    assert not is_too_little({A: 0, B: 0}, {A: 5, B: 5}, limits, waited_ms=0)
    assert not is_too_little({A: 0, B: 0}, {A: 5, B: 4}, limits, waited_ms=1000)
    assert not is_too_little({A: 0}, {A: 0}, Limits(), waited_ms=0)


def test_a_run_that_ends_by_itself_goes_no_further_than_its_target():
    assert capped({A: 100, B: 50, C: 7}, {A: 80, B: 60}) == {A: 80, B: 50}


def test_ranges_are_split_by_size():
    found = split([Range("t", 0, 0, 10), Range("t", 1, 5, 8)], Splitting(max_records=4))

    assert [(one.partition, one.start, one.end) for one in found] == [
        (0, 0, 3),
        (0, 3, 6),
        (0, 6, 10),
        (1, 5, 8),
    ]


@given(
    sizes=st.lists(st.integers(1, 5_000), min_size=1, max_size=10),
    least=st.none() | st.integers(1, 40),
    most=st.none() | st.integers(100, 5_000),
)
def test_splitting_keeps_every_offset_and_gives_as_many_as_wanted(sizes, least, most):
    ranges = [Range("t", number, 100, 100 + size) for number, size in enumerate(sizes)]

    found = split(ranges, Splitting(least, most))

    for whole in ranges:
        parts = [one for one in found if one.partition == whole.partition]
        edges = [(part.start, part.end) for part in parts]
        assert edges[0][0] == whole.start
        assert edges[-1][1] == whole.end
        assert all(end == start for (_, end), (start, _) in pairwise(edges))
        assert all(part.size > 0 for part in parts)
        assert most is None or all(part.size <= most for part in parts)
    assert least is None or len(found) >= min(least, sum(sizes))
