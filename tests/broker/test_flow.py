"""Budget: the request bytes that all connections share."""

from hypothesis import given
from hypothesis import strategies as st

from ottla.broker.net.flow import _MAX_SLOW_CHECKS, _MIN_BYTES_PER_CHECK, Budget

MIB = 1024 * 1024
LIMIT, MAX_REQUEST = 256 * MIB, 100 * MIB
#: Of the pool of large requests: the limit, less the reserve and the largest request.
THRESHOLD = 92 * MIB
#: So many of the medium requests are read when they have filled the other half of the reserve.
PARALLEL = 32


class Request:
    """A request that is received in parts."""

    def __init__(self, budget, size):
        self.charge = budget.open(size, self._resume, self._abort)
        self.size = size
        self.received = 0
        self.is_waiting = False
        self.is_aborted = False

    def _resume(self):
        assert self.is_waiting
        self.is_waiting = False

    def _abort(self):
        self.is_aborted = True

    def receive(self, size_bytes):
        assert not self.is_waiting
        self.received += size_bytes
        self.is_waiting = not self.charge.add(size_bytes)

    def end(self):
        self.charge.close()


def a_budget(limit=LIMIT, max_request=MAX_REQUEST):
    return Budget(lambda: limit, lambda: max_request)


def test_a_request_is_charged_for_what_arrived_not_for_what_it_announces():
    budget = a_budget()
    liars = [Request(budget, MAX_REQUEST) for _ in range(100)]

    for liar in liars:
        liar.receive(20)

    assert budget.used_bytes == 2000
    assert budget.waiting_count == 0


def test_medium_requests_are_read_while_large_ones_fill_the_budget():
    budget = a_budget()
    large = [Request(budget, MAX_REQUEST) for _ in range(5)]
    for request in large:
        request.receive(80 * MIB)
    assert [request.is_waiting for request in large] == [False, True, True, True, True]

    medium = [Request(budget, MIB) for _ in range(31)]
    for request in medium:
        request.receive(MIB)

    assert not any(request.is_waiting for request in medium)


def test_at_the_threshold_only_the_oldest_request_is_read():
    budget = a_budget()
    first, second, third = (Request(budget, MAX_REQUEST) for _ in range(3))
    third.receive(50 * MIB)
    second.receive(THRESHOLD - 50 * MIB)
    assert (second.is_waiting, third.is_waiting) == (True, False)

    first.receive(MAX_REQUEST)
    assert not first.is_waiting

    first.end()
    assert not second.is_waiting, "It is the oldest now"


def test_all_requests_continue_below_the_threshold():
    budget = a_budget()
    first, second, third = requests = [Request(budget, MAX_REQUEST) for _ in range(3)]
    for request in requests:
        request.receive(60 * MIB)
    assert (first.is_waiting, second.is_waiting, third.is_waiting) == (False, True, True)

    second.end()
    assert third.is_waiting
    third.end()
    assert budget.used_bytes == 60 * MIB
    fourth = Request(budget, MAX_REQUEST)
    fourth.receive(MIB)
    assert not fourth.is_waiting


def test_a_slow_request_is_aborted_only_while_others_wait():
    budget = a_budget()
    slow, other = Request(budget, MAX_REQUEST), Request(budget, MAX_REQUEST)
    slow.receive(90 * MIB)
    for _ in range(2 * _MAX_SLOW_CHECKS):
        assert budget.stalled() == []

    other.receive(3 * MIB)
    assert other.is_waiting
    for _ in range(_MAX_SLOW_CHECKS):
        slow.receive(64 * 1024)
        assert budget.stalled() == []
    for _ in range(_MAX_SLOW_CHECKS - 1):
        slow.receive(1)
        assert budget.stalled() == []
    assert budget.stalled() == [slow.charge]


def test_a_request_that_takes_long_is_aborted_only_while_others_wait():
    budget = a_budget()
    steady = [Request(budget, MIB) for _ in range(63)]
    for request in steady:
        request.receive(MIB - 100 * 1024)
    other = Request(budget, MIB)
    other.receive(MIB)
    assert other.is_waiting
    # The oldest are read, each just fast enough, and all the others wait.
    aborted = []
    while not aborted:
        for request in steady[PARALLEL:]:
            request.is_waiting or request.receive(1)
        for request in steady[:PARALLEL]:
            request.receive(_MIN_BYTES_PER_CHECK)
        aborted = budget.stalled()
    assert aborted == [request.charge for request in steady[:PARALLEL]]
    assert steady[0].received < 2 * MIB
    for request in steady[:PARALLEL]:
        request.end()
    assert not other.is_waiting


def test_the_limit_may_change_at_runtime():
    limit = LIMIT
    budget = Budget(lambda: limit, lambda: MAX_REQUEST)
    first, second, third = (Request(budget, MAX_REQUEST) for _ in range(3))
    for request in (first, second):
        request.receive(MIB)

    limit = 130 * MIB
    third.receive(MIB)
    assert third.is_waiting

    limit = LIMIT
    second.end()
    assert not third.is_waiting


SIZES = st.integers(100, 3000)
STEPS = st.lists(st.tuples(st.sampled_from(["open", "receive", "lose"]), st.integers(0, 50), SIZES))


@given(steps=STEPS)
def test_the_limit_holds_and_every_request_is_completed(steps):
    limit, max_request, read_bytes = 10_000, 3000, 100
    budget = a_budget(limit, max_request)
    requests = []

    def check():
        assert budget.used_bytes == sum(request.received for request in requests)
        assert budget.used_bytes <= limit + read_bytes * len(requests)
        assert budget.waiting_count == sum(request.is_waiting for request in requests)
        assert not requests or not all(request.is_waiting for request in requests)

    def receive(request):
        size_bytes = min(read_bytes, request.size - request.received)
        if request.received + size_bytes == request.size:
            requests.remove(request)
            request.end()
        else:
            request.receive(size_bytes)
        check()

    for step, number, size in steps:
        if step == "open":
            requests.append(Request(budget, size))
            receive(requests[-1])
        elif readable := [request for request in requests if not request.is_waiting]:
            request = readable[number % len(readable)]
            if step == "receive":
                receive(request)
            else:
                requests.remove(request)
                request.end()
                check()
    while requests:
        receive(next(request for request in requests if not request.is_waiting))
    assert (budget.used_bytes, budget.waiting_count) == (0, 0)
