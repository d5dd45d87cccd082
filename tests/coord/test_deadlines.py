"""A key is due when it was last said to be, however often that was."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.coord.deadlines import Deadlines


def test_nothing_is_ever_due_where_nothing_was_set():
    deadlines = Deadlines()

    assert deadlines.next() is None
    assert list(deadlines.due(10**9)) == []
    assert len(deadlines) == 0


def test_a_key_is_due_once_from_its_time_on():
    deadlines = Deadlines()
    deadlines.set("tea", 100)

    assert list(deadlines.due(99)) == []
    assert "tea" in deadlines
    assert list(deadlines.due(100)) == ["tea"]
    assert "tea" not in deadlines
    assert list(deadlines.due(200)) == []


def test_the_earliest_is_due_first():
    deadlines = Deadlines()
    deadlines.set("late", 30)
    deadlines.set("early", 10)
    deadlines.set("between", 20)

    assert deadlines.next() == 10
    assert list(deadlines.due(30)) == ["early", "between", "late"]


def test_a_key_that_was_put_off_is_due_in_its_new_place():
    deadlines = Deadlines()
    deadlines.set("put off", 10)
    deadlines.set("other", 50)
    deadlines.set("put off", 100)

    assert list(deadlines.due(200)) == ["other", "put off"]


def test_a_key_that_was_put_off_is_not_due_at_its_old_time():
    deadlines = Deadlines()
    deadlines.set("tea", 10)
    deadlines.set("tea", 20)

    assert list(deadlines.due(19)) == []
    assert list(deadlines.due(20)) == ["tea"]


def test_to_postpone_a_key_never_brings_it_forward():
    deadlines = Deadlines()
    deadlines.set("tea", 20)

    deadlines.postpone("tea", 10)
    assert list(deadlines.due(19)) == []
    deadlines.postpone("tea", 30)
    assert list(deadlines.due(29)) == []
    assert list(deadlines.due(30)) == ["tea"]

    deadlines.postpone("tea", 40)
    assert list(deadlines.due(40)) == ["tea"]


def test_a_key_that_was_brought_forward_is_due_once():
    deadlines = Deadlines()
    deadlines.set("tea", 20)
    deadlines.set("tea", 10)

    assert list(deadlines.due(10)) == ["tea"]
    assert list(deadlines.due(20)) == []


def test_a_cancelled_key_is_not_due_and_nobody_need_wake_up_for_it():
    deadlines = Deadlines()
    deadlines.set("tea", 10)
    deadlines.cancel("tea")
    deadlines.cancel("coffee")

    assert deadlines.next() is None
    assert list(deadlines.due(10)) == []


def test_what_is_cancelled_or_put_off_while_others_are_dealt_with_is_not_due():
    deadlines = Deadlines()
    for when, key in enumerate(["first", "cancelled", "put off", "last"]):
        deadlines.set(key, when)

    seen = []
    for key in deadlines.due(10):
        seen.append(key)
        deadlines.cancel("cancelled")
        deadlines.set("put off", 20)

    assert seen == ["first", "last"]
    assert deadlines.next() <= 20
    assert list(deadlines.due(20)) == ["put off"]


def test_heartbeats_cost_no_memory():
    deadlines = Deadlines()
    for beat in range(10_000):
        deadlines.set("member", beat + 10_000)

    assert len(deadlines._heap) == 1


def test_those_who_came_and_went_leave_no_memory_behind():
    deadlines = Deadlines()
    deadlines.set("who stays", 5)
    for visitor in range(10_000):
        deadlines.set(visitor, 300_000)
        deadlines.cancel(visitor)

    assert len(deadlines._heap) < 200
    assert len(deadlines._queued) < 200
    assert list(deadlines.due(300_000)) == ["who stays"]


def test_going_back_and_forth_costs_no_memory():
    deadlines = Deadlines()
    for turn in range(10_000):
        deadlines.set("undecided", 1_000_000)
        deadlines.set("undecided", 900_000 - turn)

    assert len(deadlines._heap) < 200
    assert list(deadlines.due(1_000_000)) == ["undecided"]


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
def test_it_behaves_like_a_list_that_is_searched_each_time(steps):
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
