"""Retention: how many of the oldest segments may go."""

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
YOUNG = a_segment(age_ms=HOUR_MS)
NO_TIME = a_segment(max_timestamp=-1)
EMPTY = a_segment(size=0, max_timestamp=-1)


def test_segments_past_their_time_go():
    assert count_deletable([OLD, OLD, YOUNG, YOUNG], BY_TIME, NOW) == 2


def test_a_segment_stays_until_its_youngest_record_is_older_than_the_retention_time():
    assert count_deletable([YOUNG, YOUNG], BY_TIME, NOW) == 0
    assert count_deletable([YOUNG, YOUNG], BY_TIME, NOW + 1) == 1


def test_an_old_segment_behind_a_young_one_stays():
    assert count_deletable([YOUNG, OLD, YOUNG], BY_TIME, NOW) == 0


def test_a_record_from_the_future_keeps_all_that_follows():
    future = a_segment(age_ms=-HOUR_MS)

    assert count_deletable([OLD, future, OLD, YOUNG], BY_TIME, NOW) == 1


def test_a_segment_without_a_known_time_does_not_expire():
    assert count_deletable([NO_TIME, OLD, YOUNG], BY_TIME, NOW) == 0


def test_an_empty_segment_is_in_nobodys_way():
    assert count_deletable([EMPTY, OLD, EMPTY, YOUNG], BY_TIME, NOW) == 3
    assert count_deletable([EMPTY, OLD, YOUNG], UNLIMITED, NOW) == 0


def test_the_oldest_go_while_the_log_has_the_retention_size_without_them():
    sizes = [a_segment(size=size) for size in (500, 300, 300, 700)]

    assert count_deletable(sizes, BY_SIZE, NOW) == 2


def test_a_log_keeps_at_least_the_retention_size():
    assert count_deletable([a_segment(size=1), a_segment(size=1000)], BY_SIZE, NOW) == 1
    assert count_deletable([a_segment(size=1), a_segment(size=999)], BY_SIZE, NOW) == 0


def test_a_segment_goes_if_either_rule_says_so():
    large_and_young = a_segment(size=900)
    small_and_old = a_segment(size=300, age_ms=HOUR_MS + 1)
    rest = [YOUNG, YOUNG]

    assert count_deletable([large_and_young, small_and_old, *rest], BY_BOTH, NOW) == 2
    assert count_deletable([small_and_old, large_and_young, *rest], BY_BOTH, NOW) == 1


def test_the_active_segment_always_stays():
    assert count_deletable([OLD], BY_BOTH, NOW) == 0
    assert count_deletable([OLD, OLD], BY_BOTH, NOW) == 1
    assert count_deletable([OLD, OLD], LogConfig(retention_ms=0, retention_bytes=0), NOW) == 1


def test_a_log_without_segments_has_nothing_to_delete():
    assert count_deletable([], BY_BOTH, NOW) == 0


@pytest.mark.parametrize("config", [UNLIMITED, LogConfig(retention_ms=LONG_MAX)])
def test_without_a_limit_all_stays(config):
    assert count_deletable([OLD] * 100, config, NOW) == 0
    assert not should_roll_for_retention(OLD, config, NOW)


def test_a_topic_that_is_only_compacted_keeps_all():
    config = LogConfig(cleanup_policy="compact", retention_ms=HOUR_MS, retention_bytes=0)

    assert count_deletable([OLD, OLD, OLD], config, NOW) == 0
    assert not should_roll_for_retention(OLD, config, NOW)


@pytest.mark.parametrize("policy", ["compact,delete", "delete,compact"])
def test_a_topic_that_is_compacted_and_deleted_lets_go(policy):
    config = LogConfig(cleanup_policy=policy, retention_ms=HOUR_MS)

    assert count_deletable([OLD, YOUNG], config, NOW) == 1
    assert should_roll_for_retention(OLD, config, NOW)


@pytest.mark.parametrize(
    ("active", "rolls"),
    [(OLD, True), (YOUNG, False), (NO_TIME, False), (EMPTY, False)],
    ids=["old", "young", "no time", "empty"],
)
def test_an_active_segment_is_rolled_when_all_in_it_is_past_its_time(active, rolls):
    assert should_roll_for_retention(active, BY_TIME, NOW) is rolls


def test_size_alone_never_rolls_the_active_segment():
    huge = a_segment(size=10_000, age_ms=HOUR_MS + 1)

    assert not should_roll_for_retention(huge, BY_SIZE, NOW)


def test_a_rolled_segment_is_let_go_at_the_next_look():
    assert should_roll_for_retention(OLD, BY_TIME, NOW)

    assert count_deletable([OLD, EMPTY], BY_TIME, NOW) == 1


segments = st.lists(
    st.builds(
        SegmentSummary,
        base_offset=st.just(0),
        size=st.integers(0, 2000),
        max_timestamp=st.sampled_from([-1, NOW - 2 * HOUR_MS, NOW - HOUR_MS, NOW, NOW + HOUR_MS]),
    ),
    max_size=8,
)


@given(log=segments, config=st.sampled_from([BY_TIME, BY_SIZE, BY_BOTH, UNLIMITED]))
@settings(max_examples=200)
def test_what_goes_may_go_and_what_stays_first_must_stay(log, config):
    count = count_deletable(log, config, NOW)

    assert 0 <= count <= max(len(log) - 1, 0)
    for position, segment in enumerate(log[: count + 1]):
        behind = sum(other.size for other in log[position + 1 :])
        is_old = config.retention_ms >= 0 and (
            segment.size == 0 or 0 <= segment.max_timestamp < NOW - config.retention_ms
        )
        is_surplus = config.retention_bytes >= 0 and behind >= config.retention_bytes
        is_active = position == len(log) - 1
        assert (is_old or is_surplus) == (position < count) or is_active
    assert count_deletable(log[count:], config, NOW) == 0
