"""Damaged requests of every api and version: an error code or the end of a connection, no more."""

from contextlib import suppress
from copy import deepcopy
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.daemon import Daemon
from harness.strategies import messages
from harness.wire import BlockingWireClient, frame_of, framed
from hostile.attack import Bystander, made_plausible, make_topic, mutated, unharmed
from ottla.broker.requests.dispatch import SUPPORTED_APIS
from ottla.protocol.errors import EncodeError
from test_golden import LINES

MUTANTS = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzzed")
    # Of what is made by chance not everything is harmless: a topic can have many partitions.
    with Daemon(folder, "--set", "broker.max.partitions=200") as started:
        yield started


def ensure_topics(broker):
    """They are there, or were deleted by an earlier attack."""
    with suppress(AssertionError):
        make_topic(broker, "t", 3)
    with suppress(AssertionError):
        make_topic(broker, "compacted", cleanup_policy="compact")


def attack(broker, frames):
    for frame in frames:
        with BlockingWireClient(broker) as connection:
            connection.send(frame)
            connection.read_to_end()


@pytest.mark.parametrize("api", SUPPORTED_APIS.values(), ids=lambda api: api.name)
def test_damaged_requests_of_every_version(broker, api):
    """Some of them find topics, groups and settings; else they would not come far."""

    @given(data=st.data())
    def fuzz(data):
        version = data.draw(st.sampled_from(list(api.versions)))
        request = data.draw(messages(api.request, version))
        chance = Random(data.draw(st.integers(0, 2**32)))
        frames = [frame_of(request, version)]
        with suppress(EncodeError):  # a field that this version has not
            frames.append(frame_of(made_plausible(deepcopy(request), chance), version))
        damaged = [mutated(frame, chance) for frame in frames for _ in range(MUTANTS)]
        attack(broker, [*frames, *damaged])

    ensure_topics(broker)
    with unharmed(broker, growth_mib=48):
        fuzz()


def test_damaged_requests_of_real_clients(broker):
    chance = Random(1)
    frames = sorted({line.frame for line in LINES if line.direction == "request"})
    served = [frame for frame in frames if int.from_bytes(frame[:2]) in SUPPORTED_APIS]

    with unharmed(broker, growth_mib=48), Bystander(broker):
        for frame in chance.sample(served, 60):
            attack(broker, (mutated(framed(frame), chance) for _ in range(10)))


def test_noise(broker):
    chance = Random(2)

    with unharmed(broker, growth_mib=16):
        for _ in range(300):
            noise = chance.randbytes(chance.choice((1, 8, 100, 5000)))
            key = chance.choice([*SUPPORTED_APIS, 0x7FFF])
            head = key.to_bytes(2) + chance.randrange(14).to_bytes(2)
            attack(broker, [chance.choice((noise, framed(noise), framed(head + noise)))])
