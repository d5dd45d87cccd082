"""Which process has which broker id, with a manual clock."""

from types import SimpleNamespace
from uuid import uuid4

import pytest

from ottla.broker.cluster.incarnations import BrokerIncarnations
from ottla.broker.requests.errors import ApiError
from ottla.protocol.errors import ErrorCode

FIRST, SECOND, THIRD = (uuid4() for _ in range(3))


class Processes:
    """Announces processes of broker 1 on connections of their own."""

    def __init__(self):
        self.now = 100.0
        self.incarnations = BrokerIncarnations(3, lambda: self.now)
        self.connections = {}

    def announce(self, incarnation):
        connection = self.connections.setdefault(incarnation, SimpleNamespace(is_open=True))
        try:
            self.incarnations.record(1, incarnation, f"at {incarnation}", connection)
        except ApiError as error:
            return error.code
        return ErrorCode.NONE


def test_one_process_has_a_broker_id_while_it_is_heard():
    processes = Processes()
    assert processes.announce(FIRST) == ErrorCode.NONE
    processes.now += 2.9
    assert processes.announce(SECOND) == ErrorCode.DUPLICATE_BROKER_REGISTRATION
    assert processes.announce(FIRST) == ErrorCode.NONE
    processes.now += 2.9
    with pytest.raises(ApiError, match=f"in use by another process, at at {FIRST}"):
        processes.incarnations.check(1, SECOND)
    processes.incarnations.check(2, SECOND)


def test_a_process_that_has_ended_is_replaced_at_once():
    processes = Processes()
    processes.announce(FIRST)
    processes.connections[FIRST].is_open = False

    assert processes.announce(SECOND) == ErrorCode.NONE


def test_a_process_that_was_replaced_is_refused_for_good():
    processes = Processes()
    processes.announce(FIRST)
    processes.now += 3.1
    processes.incarnations.check(1, SECOND)  # Asks only.
    assert processes.announce(FIRST) == ErrorCode.NONE
    processes.now += 3.1
    assert processes.announce(SECOND) == ErrorCode.NONE

    assert processes.announce(FIRST) == ErrorCode.STALE_BROKER_EPOCH
    processes.now += 10
    assert processes.announce(THIRD) == ErrorCode.NONE
    for replaced in (FIRST, SECOND):
        assert processes.announce(replaced) == ErrorCode.STALE_BROKER_EPOCH
