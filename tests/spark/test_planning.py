"""Planning of offsets, micro-batches and tasks, without Spark and brokers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ottla.client import TopicPartition
from ottla.client.spark import OptionError
from ottla.client.spark.options import OffsetBound, SplitOptions, TriggerLimits
from ottla.client.spark.planning import (
    EARLIEST,
    LATEST,
    PartitionRange,
    from_json,
    is_below_minimum,
    limited_to,
    ranges_between,
    ranges_of,
    rate_limited,
    resolve_end,
    resolve_start,
    split,
    to_json,
)

A, B, C = (TopicPartition("t", number) for number in range(3))
# The beginning and end of each partition's log.
LOGS = {A: (0, 100), B: (40, 50), C: (0, 0)}


def look_up(times):
    """Look up offsets in these logs, where the timestamp of each record is its offset."""
    found = {}
    for tp, time in times.items():
        begin, end = LOGS[tp]
        found[tp] = {EARLIEST: begin, LATEST: end}.get(time, max(begin, time))
        if time >= 0 and time >= end:
            found[tp] = LATEST
    return found


def losses():
    reasons = []
    return reasons, reasons.append


def test_earliest_and_latest_offsets():
    assert resolve_start(OffsetBound(EARLIEST), LOGS, look_up) == {A: 0, B: 40, C: 0}
    assert resolve_end(OffsetBound(LATEST), LOGS, look_up) == {A: 100, B: 50, C: 0}


def test_offsets_may_be_earliest_or_latest():
    bound = OffsetBound(by_partition={A: 23, B: EARLIEST, C: LATEST})

    assert resolve_start(bound, LOGS, look_up) == {A: 23, B: 40, C: 0}


def test_offsets_must_name_exactly_the_partitions_that_are_read():
    with pytest.raises(OptionError, match="The starting offsets lack t-1, t-2"):
        resolve_start(OffsetBound(by_partition={A: 1}), LOGS, look_up)
    with pytest.raises(OptionError, match="The ending offsets name t-1"):
        resolve_end(OffsetBound(by_partition={A: 1, B: 1}), [A], look_up)


def test_a_timestamp_resolves_to_the_first_record_that_is_not_older():
    assert resolve_start(OffsetBound(45, is_timestamp=True), [A, B], look_up) == {A: 45, B: 45}


def test_a_start_after_the_last_record_is_an_error_unless_the_strategy_is_latest():
    late = OffsetBound(70, is_timestamp=True)

    with pytest.raises(OptionError, match=r"No record of t-1, t-2 .*Strategy=latest"):
        resolve_start(late, LOGS, look_up)
    assert resolve_start(late, LOGS, look_up, "latest") == {A: 70, B: 50, C: 0}
    assert resolve_end(late, LOGS, look_up) == {A: 70, B: 50, C: 0}


def test_offsets_are_stored_in_sparks_format():
    offsets = {TopicPartition("a", 10): 7, TopicPartition("a", 9): 1, TopicPartition("b", 0): 2}

    assert to_json(offsets) == {"a": {"9": 1, "10": 7}, "b": {"0": 2}}
    assert from_json(to_json(offsets)) == offsets


def test_empty_ranges_are_left_out():
    assert ranges_of({A: 5, B: 40, C: 0}, {A: 9, B: 40, C: 0}) == [PartitionRange("t", 0, 5, 9)]


def test_new_partitions_are_read_from_their_beginning():
    reasons, report = losses()

    found = ranges_between({A: 10}, {A: 12, C: 3}, lambda tps: dict.fromkeys(tps, 0), report)

    assert found == [PartitionRange("t", 0, 10, 12), PartitionRange("t", 2, 0, 3)]
    assert reasons == []


def test_data_loss_is_reported():
    reasons, report = losses()

    found = ranges_between({A: 10, B: 90}, {B: 50, C: 70}, lambda tps: {B: 40, C: 60}, report)

    assert found == [PartitionRange("t", 1, 40, 50), PartitionRange("t", 2, 60, 70)]
    assert [text.split(",")[0] for text in reasons] == [
        "Partitions t-0 were deleted before they were read to their end",
        "t-1 ends at offset 50",
        "t-2 is new",
    ]


def test_the_rate_limit_is_shared_in_proportion():
    assert rate_limited({A: 0, B: 0}, {A: 900, B: 100}, 100) == {A: 90, B: 10}
    assert rate_limited({A: 0, B: 0}, {A: 9, B: 1}, 100) == {A: 9, B: 1}


@given(
    sizes=st.lists(st.integers(0, 10_000), min_size=1, max_size=20),
    max_offsets=st.integers(1, 20_000),
)
def test_the_rate_limit_is_used_up_and_no_partition_starves(sizes, max_offsets):
    tps = [TopicPartition("t", number) for number in range(len(sizes))]
    start = dict.fromkeys(tps, 1000)
    latest = {tp: 1000 + size for tp, size in zip(tps, sizes, strict=True)}

    end = rate_limited(start, latest, max_offsets)

    taken = {tp: end[tp] - start[tp] for tp in tps}
    busy = sum(size > 0 for size in sizes)
    assert sum(taken.values()) == min(sum(sizes), max(max_offsets, busy))
    for tp, size in zip(tps, sizes, strict=True):
        assert min(1, size) <= taken[tp] <= size


def test_a_small_batch_waits_until_the_maximum_delay():
    limits = TriggerLimits(min_offsets=10, max_delay_ms=1000)

    assert is_below_minimum({A: 0, B: 0}, {A: 5, B: 4}, limits, waited_ms=0)
    assert not is_below_minimum({A: 0, B: 0}, {A: 5, B: 5}, limits, waited_ms=0)
    assert not is_below_minimum({A: 0, B: 0}, {A: 5, B: 4}, limits, waited_ms=1000)
    assert not is_below_minimum({A: 0}, {A: 0}, TriggerLimits(), waited_ms=0)


def test_an_available_now_run_stops_at_its_target():
    assert limited_to({A: 100, B: 50, C: 7}, {A: 80, B: 60}) == {A: 80, B: 50}


def test_ranges_are_split_by_size():
    found = split(
        [PartitionRange("t", 0, 0, 10), PartitionRange("t", 1, 5, 8)], SplitOptions(max_records=4)
    )

    assert [(one.partition, one.start, one.end) for one in found] == [
        (0, 0, 3),
        (0, 3, 6),
        (0, 6, 10),
        (1, 5, 8),
    ]


@given(
    sizes=st.lists(st.integers(1, 5_000), min_size=1, max_size=10),
    min_partitions=st.none() | st.integers(1, 40),
    max_records=st.none() | st.integers(100, 5_000),
)
def test_splitting_keeps_every_offset_and_yields_enough_ranges(sizes, min_partitions, max_records):
    ranges = [PartitionRange("t", number, 100, 100 + size) for number, size in enumerate(sizes)]

    found = split(ranges, SplitOptions(min_partitions, max_records))

    for whole in ranges:
        parts = [one for one in found if one.partition == whole.partition]
        edges = [(part.start, part.end) for part in parts]
        assert edges[0][0] == whole.start
        assert edges[-1][1] == whole.end
        assert all(end == start for (_, end), (start, _) in pairwise(edges))
        assert all(part.size > 0 for part in parts)
        assert max_records is None or all(part.size <= max_records for part in parts)
    assert min_partitions is None or len(found) >= min(min_partitions, sum(sizes))
