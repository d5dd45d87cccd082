"""Retention: how many of the oldest segments may be deleted."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ottla.protocol.configdef import LONG_MAX
from ottla.storage.config import LogConfig
from ottla.storage.retention import SegmentSummary, count_deletable, should_roll_for_retention

NOW = 1_700_000_000_000
HOUR_MS = 60 * 60 * 1000
BY_TIME = LogConfig(retention_ms=HOUR_MS)
BY_SIZE = LogConfig(retention_ms=-1, retention_bytes=1000)
BY_BOTH = LogConfig(retention_ms=HOUR_MS, retention_bytes=1000)
UNLIMITED = LogConfig(retention_ms=-1, retention_bytes=-1)


def a_segment(*, size=400, age_ms=0, max_timestamp=None):
    return SegmentSummary(0, size, NOW - age_ms if max_timestamp is None else max_timestamp)


OLD = a_segment(age_ms=HOUR_MS + 1)
RECENT = a_segment(age_ms=HOUR_MS)
NO_TIMESTAMP = a_segment(max_timestamp=-1)
EMPTY = a_segment(size=0, max_timestamp=-1)


def test_segments_older_than_retention_ms_are_deleted():
    assert count_deletable([OLD, OLD, RECENT, RECENT], BY_TIME, NOW) == 2


def test_a_segment_stays_until_its_newest_record_is_older_than_retention_ms():
    assert count_deletable([RECENT, RECENT], BY_TIME, NOW) == 0
    assert count_deletable([RECENT, RECENT], BY_TIME, NOW + 1) == 1


def test_an_old_segment_after_a_recent_one_stays():
    assert count_deletable([RECENT, OLD, RECENT], BY_TIME, NOW) == 0


def test_a_record_from_the_future_keeps_all_later_segments():
    future = a_segment(age_ms=-HOUR_MS)

    assert count_deletable([OLD, future, OLD, RECENT], BY_TIME, NOW) == 1


def test_a_segment_without_a_timestamp_does_not_expire():
    assert count_deletable([NO_TIMESTAMP, OLD, RECENT], BY_TIME, NOW) == 0


def test_an_empty_segment_is_deleted_with_its_neighbours():
    assert count_deletable([EMPTY, OLD, EMPTY, RECENT], BY_TIME, NOW) == 3
    assert count_deletable([EMPTY, OLD, RECENT], UNLIMITED, NOW) == 0


def test_the_oldest_segments_are_deleted_down_to_retention_bytes():
    sizes = [a_segment(size=size) for size in (500, 300, 300, 700)]

    assert count_deletable(sizes, BY_SIZE, NOW) == 2


def test_a_log_keeps_at_least_retention_bytes():
    assert count_deletable([a_segment(size=1), a_segment(size=1000)], BY_SIZE, NOW) == 1
    assert count_deletable([a_segment(size=1), a_segment(size=999)], BY_SIZE, NOW) == 0


def test_a_segment_is_deleted_by_either_limit():
    large_and_recent = a_segment(size=900)
    small_and_old = a_segment(size=300, age_ms=HOUR_MS + 1)
    rest = [RECENT, RECENT]

    assert count_deletable([large_and_recent, small_and_old, *rest], BY_BOTH, NOW) == 2
    assert count_deletable([small_and_old, large_and_recent, *rest], BY_BOTH, NOW) == 1


def test_the_active_segment_is_never_deleted():
    assert count_deletable([OLD], BY_BOTH, NOW) == 0
    assert count_deletable([OLD, OLD], BY_BOTH, NOW) == 1
    assert count_deletable([OLD, OLD], LogConfig(retention_ms=0, retention_bytes=0), NOW) == 1


def test_a_log_without_segments_has_nothing_to_delete():
    assert count_deletable([], BY_BOTH, NOW) == 0


@pytest.mark.parametrize("config", [UNLIMITED, LogConfig(retention_ms=LONG_MAX)])
def test_without_a_limit_nothing_is_deleted(config):
    assert count_deletable([OLD] * 100, config, NOW) == 0
    assert not should_roll_for_retention(OLD, config, NOW)


def test_a_compacted_topic_is_not_subject_to_retention():
    config = LogConfig(cleanup_policy="compact", retention_ms=HOUR_MS, retention_bytes=0)

    assert count_deletable([OLD, OLD, OLD], config, NOW) == 0
    assert not should_roll_for_retention(OLD, config, NOW)


@pytest.mark.parametrize("policy", ["compact,delete", "delete,compact"])
def test_a_topic_with_both_policies_is_subject_to_retention(policy):
    config = LogConfig(cleanup_policy=policy, retention_ms=HOUR_MS)

    assert count_deletable([OLD, RECENT], config, NOW) == 1
    assert should_roll_for_retention(OLD, config, NOW)


@pytest.mark.parametrize(
    ("active", "rolls"),
    [(OLD, True), (RECENT, False), (NO_TIMESTAMP, False), (EMPTY, False)],
    ids=["old", "recent", "no timestamp", "empty"],
)
def test_an_active_segment_is_rolled_when_all_its_records_are_expired(active, rolls):
    assert should_roll_for_retention(active, BY_TIME, NOW) is rolls


def test_size_alone_never_rolls_the_active_segment():
    huge = a_segment(size=10_000, age_ms=HOUR_MS + 1)

    assert not should_roll_for_retention(huge, BY_SIZE, NOW)


def test_a_segment_rolled_for_retention_is_deleted():
    assert should_roll_for_retention(OLD, BY_TIME, NOW)

    assert count_deletable([OLD, EMPTY], BY_TIME, NOW) == 1


segments = st.lists(
    st.builds(
        SegmentSummary,
        base_offset=st.just(0),
        size=st.integers(0, 2000),
        newest_record_ms=st.sampled_from(
            [-1, NOW - 2 * HOUR_MS, NOW - HOUR_MS, NOW, NOW + HOUR_MS]
        ),
    ),
    max_size=8,
)


@given(log=segments, config=st.sampled_from([BY_TIME, BY_SIZE, BY_BOTH, UNLIMITED]))
@settings(max_examples=200)
def test_exactly_the_expired_or_surplus_segments_are_deleted(log, config):
    count = count_deletable(log, config, NOW)

    assert 0 <= count <= max(len(log) - 1, 0)
    for position, segment in enumerate(log[: count + 1]):
        following_bytes = sum(other.size for other in log[position + 1 :])
        is_old = config.retention_ms >= 0 and (
            segment.size == 0 or 0 <= segment.newest_record_ms < NOW - config.retention_ms
        )
        is_surplus = config.retention_bytes >= 0 and following_bytes >= config.retention_bytes
        is_active = position == len(log) - 1
        assert (is_old or is_surplus) == (position < count) or is_active
    assert count_deletable(log[count:], config, NOW) == 0
