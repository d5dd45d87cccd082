"""Budget: the request bytes that all connections share."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.net.flow import Budget


class Reservation:
    """A reservation, granted or waiting."""

    def __init__(self, budget, size):
        self.budget = budget
        self.size = size
        self.is_granted = budget.reserve(size, self._on_granted)

    def _on_granted(self):
        assert not self.is_granted
        self.is_granted = True

    def end(self):
        if self.is_granted:
            self.budget.release(self.size)
        else:
            self.budget.withdraw(self._on_granted)


def test_reservations_are_granted_up_to_the_limit():
    budget = Budget(lambda: 100)

    first, second, third = (Reservation(budget, size) for size in (60, 40, 1))

    assert (first.is_granted, second.is_granted, third.is_granted) == (True, True, False)
    assert budget.used_bytes == 100


def test_waiting_reservations_are_granted_in_order_even_if_a_later_one_fits():
    budget = Budget(lambda: 100)
    first, large, small = (Reservation(budget, size) for size in (80, 90, 1))
    assert not small.is_granted

    first.end()
    assert (large.is_granted, small.is_granted) == (True, True)
    assert budget.used_bytes == 91


def test_a_reservation_above_the_limit_is_granted_alone():
    budget = Budget(lambda: 100)
    first, giant, next_one = (Reservation(budget, size) for size in (10, 500, 10))

    first.end()
    assert (giant.is_granted, next_one.is_granted) == (True, False)

    giant.end()
    assert next_one.is_granted
    assert budget.used_bytes == 10


def test_withdrawing_a_reservation_grants_those_behind_it():
    budget = Budget(lambda: 100)
    first, giant, small = (Reservation(budget, size) for size in (50, 80, 20))

    giant.end()

    assert small.is_granted
    assert budget.used_bytes == 70
    assert not giant.is_granted
    assert first.is_granted


def test_the_limit_may_change_at_runtime():
    limit = 100
    budget = Budget(lambda: limit)
    first, second = Reservation(budget, 100), Reservation(budget, 50)

    limit = 30
    first.end()

    assert second.is_granted
    assert not Reservation(budget, 1).is_granted


SIZES = st.integers(1, 60)
STEPS = st.lists(
    st.one_of(SIZES.map(lambda size: ("reserve", size)), st.tuples(st.just("end"), SIZES))
)


@given(steps=STEPS)
def test_the_limit_holds_and_every_reservation_is_granted(steps):
    budget = Budget(lambda: 100)
    reservations = []
    for step, number in steps:
        if step == "reserve":
            reservations.append(Reservation(budget, number))
        elif reservations:
            reservations.pop(number % len(reservations)).end()

        granted = [reservation for reservation in reservations if reservation.is_granted]
        waiting = deque(reservation for reservation in reservations if not reservation.is_granted)
        assert budget.used_bytes == sum(reservation.size for reservation in granted) <= 100
        if waiting:
            assert budget.used_bytes + waiting[0].size > 100

    for reservation in reservations:
        reservation.end()
    assert budget.used_bytes == 0
    assert Reservation(budget, 100).is_granted
