"""Deadlines: the last one that was set for a key counts."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.coord.deadlines import Deadlines


def test_without_deadlines_nothing_is_due():
    deadlines = Deadlines()

    assert deadlines.next() is None
    assert list(deadlines.due(10**9)) == []
    assert len(deadlines) == 0


def test_a_key_is_due_once():
    deadlines = Deadlines()
    deadlines.set("key", 100)

    assert list(deadlines.due(99)) == []
    assert "key" in deadlines
    assert list(deadlines.due(100)) == ["key"]
    assert "key" not in deadlines
    assert list(deadlines.due(200)) == []


def test_keys_are_due_in_order_of_their_deadlines():
    deadlines = Deadlines()
    deadlines.set("late", 30)
    deadlines.set("early", 10)
    deadlines.set("between", 20)

    assert deadlines.next() == 10
    assert list(deadlines.due(30)) == ["early", "between", "late"]


def test_a_key_that_was_moved_is_due_in_its_new_order():
    deadlines = Deadlines()
    deadlines.set("moved", 10)
    deadlines.set("other", 50)
    deadlines.set("moved", 100)

    assert list(deadlines.due(200)) == ["other", "moved"]


def test_a_key_that_was_moved_is_not_due_at_its_old_time():
    deadlines = Deadlines()
    deadlines.set("key", 10)
    deadlines.set("key", 20)

    assert list(deadlines.due(19)) == []
    assert list(deadlines.due(20)) == ["key"]


def test_postpone_never_moves_a_deadline_forward():
    deadlines = Deadlines()
    deadlines.set("key", 20)

    deadlines.postpone("key", 10)
    assert list(deadlines.due(19)) == []
    deadlines.postpone("key", 30)
    assert list(deadlines.due(29)) == []
    assert list(deadlines.due(30)) == ["key"]

    deadlines.postpone("key", 40)
    assert list(deadlines.due(40)) == ["key"]


def test_a_key_that_was_moved_forward_is_due_once():
    deadlines = Deadlines()
    deadlines.set("key", 20)
    deadlines.set("key", 10)

    assert list(deadlines.due(10)) == ["key"]
    assert list(deadlines.due(20)) == []


def test_a_cancelled_key_is_not_due_and_needs_no_wake_up():
    deadlines = Deadlines()
    deadlines.set("key", 10)
    deadlines.cancel("key")
    deadlines.cancel("missing")

    assert deadlines.next() is None
    assert list(deadlines.due(10)) == []


def test_keys_that_are_cancelled_or_moved_while_others_are_handled_are_not_due():
    deadlines = Deadlines()
    for when, key in enumerate(["first", "cancelled", "moved", "last"]):
        deadlines.set(key, when)

    seen = []
    for key in deadlines.due(10):
        seen.append(key)
        deadlines.cancel("cancelled")
        deadlines.set("moved", 20)

    assert seen == ["first", "last"]
    assert deadlines.next() <= 20
    assert list(deadlines.due(20)) == ["moved"]


def test_heartbeats_do_not_grow_the_heap():
    deadlines = Deadlines()
    for beat in range(10_000):
        deadlines.set("member", beat + 10_000)

    assert len(deadlines._heap) == 1


def test_short_lived_keys_do_not_grow_the_heap():
    deadlines = Deadlines()
    deadlines.set("permanent", 5)
    for key in range(10_000):
        deadlines.set(key, 300_000)
        deadlines.cancel(key)

    assert len(deadlines._heap) < 200
    assert len(deadlines._queued) < 200
    assert list(deadlines.due(300_000)) == ["permanent"]


def test_moving_a_deadline_back_and_forth_does_not_grow_the_heap():
    deadlines = Deadlines()
    for round_number in range(10_000):
        deadlines.set("key", 1_000_000)
        deadlines.set("key", 900_000 - round_number)

    assert len(deadlines._heap) < 200
    assert list(deadlines.due(1_000_000)) == ["key"]


KEYS = st.sampled_from("abcd")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.sampled_from(["set", "postpone"]), KEYS, st.integers(0, 60)),
        st.tuples(st.just("cancel"), KEYS, st.just(0)),
        st.tuples(st.just("due"), st.just(""), st.integers(0, 15)),
    ),
    max_size=80,
)


@given(STEPS)
def test_deadlines_behave_like_a_dict_that_is_searched_each_time(steps):
    deadlines: Deadlines[str] = Deadlines()
    model: dict[str, int] = {}
    now = 0
    for step, key, number in steps:
        if step == "set":
            deadlines.set(key, now + number)
            model[key] = now + number
        elif step == "postpone":
            deadlines.postpone(key, now + number)
            model[key] = max(model.get(key, 0), now + number)
        elif step == "cancel":
            deadlines.cancel(key)
            model.pop(key, None)
        else:
            now += number
            due = list(deadlines.due(now))
            assert sorted(due) == sorted(k for k, when in model.items() if when <= now)
            times = [model.pop(k) for k in due]
            assert times == sorted(times)

        assert len(deadlines) == len(model)
        assert {k for k in "abcd" if k in deadlines} == set(model)
        wake = deadlines.next()
        assert (wake is None) == (not model)
        if model:
            assert wake <= min(model.values())
