"""Clients that announce, park or name very much: memory is bounded, and others are served."""

import struct
import time
from contextlib import ExitStack

import pytest

from harness.attack import MIB, create_topic, open_connections, unharmed
from harness.daemon import Daemon
from harness.logs import a_batch
from harness.wire import BlockingWireClient, error_codes, produce_request

PRODUCE_KEY = 0


@pytest.fixture
def broker(tmp_path):
    with Daemon(tmp_path) as started:
        yield started


# Announced sizes.


def test_announced_sizes_do_not_block_a_bystander(broker):
    create_topic(broker, "t")
    announcement = struct.pack(">ihhi", 100 * MIB, PRODUCE_KEY, 9, 1) + bytes(8)
    request = produce_request(a_batch(value=bytes(512 * 1024)))
    with unharmed(broker, growth_mib=16), ExitStack() as stack:
        open_connections(broker, stack, 50, announcement)
        with BlockingWireClient(broker) as bystander:
            started = time.monotonic()
            assert error_codes(bystander.request(request, 9)) == [0]
            assert time.monotonic() - started < 1


@pytest.mark.real_time
def test_partial_requests_that_fill_the_budget_do_not_block_a_bystander(tmp_path):
    limits = ("socket.request.max.bytes=16777216", "queued.max.request.bytes=33554432")
    with Daemon(tmp_path, "--set", limits[0], "--set", limits[1]) as broker:
        create_topic(broker, "t", max_message_bytes=str(16 * MIB))
        announcement = struct.pack(">ihhi", 15 * MIB, PRODUCE_KEY, 9, 1)
        with ExitStack() as stack:
            # More than the sockets' buffers hold is not sent: it would block here.
            open_connections(broker, stack, 10, announcement + bytes(MIB))
            with BlockingWireClient(broker) as bystander:
                request = produce_request(a_batch(value=bytes(512 * 1024)))
                started = time.monotonic()
                assert error_codes(bystander.request(request, 9)) == [0]
                assert time.monotonic() - started < 1
                # A large request is received once those that stall were closed.
                request = produce_request(a_batch(value=bytes(12 * MIB)))
                assert error_codes(bystander.request(request, 9)) == [0]
