"""The bystander notices a broker that is slow for others, and one that starts too slowly."""

from __future__ import annotations

import time

import pytest

from chaos.testbed import FaultyDaemon
from harness.bystander import Bystanders, Result, Sample
from harness.daemon import Launch
from harness.waiting import wait_until


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    with FaultyDaemon(tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.mark.process
@pytest.mark.real_time
def test_a_stalled_event_loop_is_detected(broker, tmp_path):
    with Bystanders(broker, tmp_path) as bystanders:
        began = time.monotonic()
        time.sleep(0.3)
        healthy = time.monotonic()
        broker.stall(0.3, every=0.02)
        wait_until(lambda: broker.hits >= 3)
        stalled = time.monotonic()
        broker.heal()

    bystanders.result(began, healthy).check_latency()
    with pytest.raises(AssertionError, match="99th percentile of a bystander"):
        bystanders.result(healthy, stalled).check_latency()


def trips(*times: tuple[float, float]) -> list[Sample]:
    return [Sample(began, ended, 0.0, is_success=True) for began, ended in times]


QUICK = trips(*((n / 100, n / 100 + 0.001) for n in range(1000)))


def test_a_stall_of_the_machine_is_not_held_against_the_broker():
    slow = trips(*((n, n + 0.2) for n in range(10)))

    Result(slow, slow).check_latency()
    Result([sample._replace(cpu_wait_seconds=0.16) for sample in slow], QUICK).check_latency()
    with pytest.raises(AssertionError, match="200 ms, of the control 1 ms"):
        Result(slow, QUICK).check_latency()


def test_one_slow_round_trip_in_a_hundred_is_allowed():
    few = [*QUICK[:995], *trips(*((10 + n, 10.3 + n) for n in range(5)))]
    many = [*QUICK[:900], *trips(*((10 + n, 10.3 + n) for n in range(100)))]

    Result(few, QUICK).check_latency()
    with pytest.raises(AssertionError):
        Result(many, QUICK).check_latency()


def test_a_failed_request_is_detected():
    with pytest.raises(AssertionError, match="1 requests of a bystander failed"):
        Result([*QUICK, Sample(10, 10, 0.0, is_success=False)], QUICK).check_latency()


def test_a_slow_restart_is_detected():
    down = trips((0, 0.1), (3.9, 4.0))

    assert Result(down, QUICK).check_restarts([Launch(2.5)]) == pytest.approx(1.5)
    with pytest.raises(AssertionError, match=r"served 2\.50 s after a restart"):
        Result(down, QUICK).check_restarts([Launch(1.5)])
    with pytest.raises(AssertionError, match="not served"):
        Result(down, QUICK).check_restarts([Launch(5.0)])
    # A busy machine is not held against the broker.
    assert Result(down, QUICK).check_restarts([Launch(1.5, cpu_wait_seconds=0.6)]) > 2
    # The start of the broker is before the first round trip.
    assert Result(down, QUICK).check_restarts([Launch(-3.0)]) == 0
    assert Result(down, QUICK).longest_silence == pytest.approx(3.9)
