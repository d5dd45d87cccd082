"""The sparse offset and time indexes."""

import pytest

from ottla.storage.index import OffsetIndex, TimeIndex


def an_offset_index():
    index = OffsetIndex(bytearray())
    for offset, position in [(10, 100), (20, 300), (35, 4_000_000_000)]:
        index.add(offset, position)
    return index


@pytest.mark.parametrize(
    ("offset", "position"),
    [
        (0, 0),
        (9, 0),
        (10, 100),
        (19, 100),
        (20, 300),
        (34, 300),
        (35, 4_000_000_000),
        (99, 4 * 10**9),
    ],
)
def test_an_offset_is_mapped_to_a_position_at_or_before_it(offset, position):
    assert an_offset_index().entry_at_or_before_offset(offset)[1] == position


@pytest.mark.parametrize(
    ("limit", "position"), [(0, 0), (99, 0), (100, 100), (299, 100), (300, 300)]
)
def test_the_last_entry_at_or_before_a_position_is_found(limit, position):
    assert an_offset_index().entry_at_or_before_position(limit)[1] == position


def test_an_empty_index_maps_to_the_start_of_the_segment():
    assert OffsetIndex().entry_at_or_before_offset(7) == (0, 0)
    assert TimeIndex().entry_before(7) == (-1, 0)
    assert TimeIndex().last == (-1, 0)


def test_only_increasing_timestamps_are_added():
    index = TimeIndex(bytearray())
    for time, offset in [(50, 0), (40, 5), (50, 6), (70, 9)]:
        index.add(time, offset)

    assert len(index) == 2
    assert index.last == (70, 9)
    entries = [index.entry_before(time) for time in (0, 50, 51, 70, 71)]
    assert entries == [(-1, 0), (-1, 0), (50, 0), (50, 0), (70, 9)]


def test_the_index_of_a_sealed_segment_is_read_only():
    with pytest.raises(AssertionError):
        OffsetIndex(b"").add(1, 1)
