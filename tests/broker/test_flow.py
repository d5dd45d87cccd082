"""The budget of bytes that all connections share."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.net.flow import Budget


class Asking:
    """Somebody who wants room, and remembers whether he was given it."""

    def __init__(self, budget, size):
        self.budget = budget
        self.size = size
        self.has_room = budget.reserve(size, self.granted)

    def granted(self):
        assert not self.has_room
        self.has_room = True

    def leave(self):
        if self.has_room:
            self.budget.release(self.size)
        else:
            self.budget.withdraw(self.granted)


def test_room_is_given_until_there_is_none():
    budget = Budget(lambda: 100)

    first, second, third = (Asking(budget, size) for size in (60, 40, 1))

    assert (first.has_room, second.has_room, third.has_room) == (True, True, False)
    assert budget.used_bytes == 100


def test_those_who_wait_are_served_in_their_order_however_small_the_later_ones_are():
    budget = Budget(lambda: 100)
    first, large, small = (Asking(budget, size) for size in (80, 90, 1))
    assert not small.has_room

    first.leave()
    assert (large.has_room, small.has_room) == (True, True)
    assert budget.used_bytes == 91


def test_one_that_is_larger_than_all_there_is_passes_alone():
    budget = Budget(lambda: 100)
    first, giant, next_one = (Asking(budget, size) for size in (10, 500, 10))

    first.leave()
    assert (giant.has_room, next_one.has_room) == (True, False)

    giant.leave()
    assert next_one.has_room
    assert budget.used_bytes == 10


def test_who_gives_up_lets_those_behind_him_pass():
    budget = Budget(lambda: 100)
    first, giant, small = (Asking(budget, size) for size in (50, 80, 20))

    giant.leave()

    assert small.has_room
    assert budget.used_bytes == 70
    assert not giant.has_room
    assert first.has_room


def test_the_limit_may_change():
    limit = 100
    budget = Budget(lambda: limit)
    first, second = Asking(budget, 100), Asking(budget, 50)

    limit = 30
    first.leave()

    assert second.has_room
    assert not Asking(budget, 1).has_room


SIZES = st.integers(1, 60)
STEPS = st.lists(st.one_of(SIZES.map(lambda size: ("ask", size)), st.tuples(st.just("go"), SIZES)))


@given(steps=STEPS)
def test_whatever_happens_the_budget_is_kept_and_nobody_is_forgotten(steps):
    budget = Budget(lambda: 100)
    present = []
    for what, number in steps:
        if what == "ask":
            present.append(Asking(budget, number))
        elif present:
            present.pop(number % len(present)).leave()

        inside = [asking for asking in present if asking.has_room]
        waiting = deque(asking for asking in present if not asking.has_room)
        assert budget.used_bytes == sum(asking.size for asking in inside) <= 100
        if waiting:
            assert budget.used_bytes + waiting[0].size > 100

    for asking in present:
        asking.leave()
    assert budget.used_bytes == 0
    assert Asking(budget, 100).has_room
