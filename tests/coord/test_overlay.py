"""An overlay is a dict with changes, of which its base knows nothing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ottla.coord.overlay import Overlay

keys = st.integers(0, 5)
changes = st.lists(st.tuples(keys, st.none() | st.integers()), max_size=8)


@given(base=st.dictionaries(keys, st.integers()), changes=changes)
def test_an_overlay_equals_a_changed_copy_and_leaves_its_base_alone(base, changes):
    before, copy, overlay = dict(base), dict(base), Overlay(base)

    for key, value in changes:
        if value is None:
            assert overlay.pop(key, None) == copy.pop(key, None)
        else:
            overlay[key] = copy[key] = value

    assert overlay == copy
    assert len(overlay) == len(copy)
    assert set(overlay) == set(copy)
    assert dict(overlay.items()) == copy
    assert sorted(overlay.values()) == sorted(copy.values())
    assert [(overlay.get(key), key in overlay) for key in range(6)] == [
        (copy.get(key), key in copy) for key in range(6)
    ]
    assert base == before
