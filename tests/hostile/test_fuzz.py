"""Damaged requests of every API and version get an error code or close the connection."""

from contextlib import suppress
from copy import deepcopy
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.attack import create_topic, mutated, undisturbed, unharmed, with_plausible_values
from harness.daemon import Daemon
from harness.golden_frames import RECORDED_FRAMES
from harness.strategies import messages
from harness.wire import BlockingWireClient, frame_of, framed
from ottla.broker.requests.dispatch import SUPPORTED_APIS
from ottla.protocol.errors import EncodeError

MUTANTS = 30


@pytest.fixture(scope="module")
def broker(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fuzz")
    # A random CreateTopics may ask for very many partitions.
    with Daemon(folder, "--set", "broker.max.partitions=200") as started:
        yield started


def ensure_topics(broker):
    """Create the topics that earlier requests may have deleted."""
    with suppress(AssertionError):
        create_topic(broker, "t", 3)
    with suppress(AssertionError):
        create_topic(broker, "compacted", cleanup_policy="compact")


def attack(broker, frames):
    for frame in frames:
        with BlockingWireClient(broker) as connection:
            connection.send(frame)
            connection.read_to_end()


@pytest.mark.parametrize("api", SUPPORTED_APIS.values(), ids=lambda api: api.name)
def test_damaged_requests_of_every_version(broker, api):
    """Some requests name existing topics, groups and configs, to get past the validation."""

    @given(data=st.data())
    def fuzz(data):
        version = data.draw(st.sampled_from(list(api.versions)))
        request = data.draw(messages(api.request, version))
        random = Random(data.draw(st.integers(0, 2**32)))
        frames = [frame_of(request, version)]
        with suppress(EncodeError):  # The version does not have the field.
            frames.append(frame_of(with_plausible_values(deepcopy(request), random), version))
        damaged = [mutated(frame, random) for frame in frames for _ in range(MUTANTS)]
        attack(broker, [*frames, *damaged])

    ensure_topics(broker)
    with unharmed(broker, growth_mib=48):
        fuzz()


def test_damaged_requests_of_real_clients(broker):
    random = Random(1)
    frames = sorted({each.frame for each in RECORDED_FRAMES if each.direction == "request"})
    supported = [frame for frame in frames if int.from_bytes(frame[:2]) in SUPPORTED_APIS]

    with unharmed(broker, growth_mib=48), undisturbed(broker):
        for frame in random.sample(supported, 60):
            attack(broker, (mutated(framed(frame), random) for _ in range(10)))


def test_random_bytes(broker):
    random = Random(2)

    with unharmed(broker, growth_mib=16):
        for _ in range(300):
            noise = random.randbytes(random.choice((1, 8, 100, 5000)))
            key = random.choice([*SUPPORTED_APIS, 0x7FFF])
            head = key.to_bytes(2) + random.randrange(14).to_bytes(2)
            attack(broker, [random.choice((noise, framed(noise), framed(head + noise)))])
